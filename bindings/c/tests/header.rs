//! The header is what the sources say. `CENOTE_BLESS=1 cargo test -p cenote-c` writes it.

use std::fs;
use std::path::Path;

#[test]
fn the_header_is_that_of_the_sources() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(package.join("cbindgen.toml")).expect("a config");
    let sources = ["result", "volume", "cache"].map(|name| package.join(format!("src/{name}.rs")));
    let made = sources
        .iter()
        .fold(cbindgen::Builder::new(), |builder, source| {
            builder.with_src(source)
        });
    let mut header = Vec::new();
    let made = made.with_config(config).generate().expect("bindings");
    made.write(&mut header);
    let header = String::from_utf8(header).expect("a text");
    let header = header.replace("# Safety\n", "What the caller promises:\n");

    let path = package.join("include/cenote.h");
    if std::env::var_os("CENOTE_BLESS").is_some() {
        fs::write(&path, &header).expect("written");
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        there, header,
        "write it: CENOTE_BLESS=1 cargo test -p cenote-c"
    );
}
