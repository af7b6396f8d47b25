//! Writes to a volume from several threads, and reads back what was written:
//! `cargo run -p cenote-client --example pages -- ~/.cenote/well/cluster.toml`.

use std::path::Path;

use cenote::Volume;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let file = std::env::args().nth(1).ok_or("which cluster file?")?;
    let said = write_and_read(Path::new(&file))?;
    println!("{said}");
    Ok(())
}

/// What is done in docs/guides/rust.md.
pub fn write_and_read(cluster_file: &Path) -> Result<String> {
    let volume = Volume::options()
        .size_bytes(64 << 20)
        .threads(4)
        .open(cluster_file)?;
    std::thread::scope(|scope| {
        let part = |number: u8| {
            let volume = &volume;
            move || volume.write_at(&vec![number; 1 << 20], u64::from(number) << 20)
        };
        let threads: Vec<_> = (0..16).map(|number| scope.spawn(part(number))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    let mut page = [0; 4096];
    for number in 0..16_u8 {
        volume.read_at(&mut page, (u64::from(number) << 20) + 8192)?;
        assert_eq!(page, [number; 4096]);
    }
    let status = volume.status()?;
    Ok(format!(
        "{}, {} bytes stored",
        status.scheme, status.stored_bytes
    ))
}
