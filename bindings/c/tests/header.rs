//! The header in the repository is the one that the library has.

use std::path::Path;

#[test]
fn the_header_is_what_cbindgen_makes_of_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config =
        cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("its configuration");
    // The source alone: which crates it uses is of no matter, and cargo is not asked.
    let made = cbindgen::Builder::new()
        .with_config(config)
        .with_src(root.join("src/lib.rs"))
        .generate()
        .expect("a header");
    let mut text = Vec::new();
    made.write(&mut text);
    let text = String::from_utf8(text).expect("UTF-8");
    let path = root.join("include/cenote.h");
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&path, &text).expect("written");
    }
    let kept = std::fs::read_to_string(&path).expect("the header");
    assert!(
        kept == text,
        "include/cenote.h is stale: UPDATE_HEADER=1 cargo test -p cenote-c --test header\n{text}"
    );
}
