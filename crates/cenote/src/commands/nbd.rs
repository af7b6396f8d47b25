#[derive(clap::Args, Debug)]
pub struct Args {}
pub fn run(_: &Args) -> anyhow::Result<u8> {
    Ok(0)
}
