//! The own tests of memcached's clients in other languages: what passes with memcached passes with ours, but
//! for what `scripts/memcached-clients.txt` names.

mod long {
    use std::path::Path;
    use std::process::Command;

    /// How the script ends where it cannot be run here.
    const SKIPPED: i32 = 77;

    fn passes_its_own_tests(client: &str) {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("..");
        let output = Command::new(workspace.join("scripts/memcached-clients.sh"))
            .args(["-m", env!("CARGO_BIN_EXE_cenote-memcached"), client])
            .env("CARGO_TARGET_DIR", target)
            .output()
            .expect("the script can be run");
        let mut words = String::from_utf8_lossy(&output.stdout).into_owned();
        words += &String::from_utf8_lossy(&output.stderr);
        print!("{words}");
        if output.status.code() != Some(SKIPPED) {
            assert!(output.status.success(), "{words}");
        }
    }

    macro_rules! clients {
        ($($test:ident: $name:literal),*) => {$(
            #[test]
            fn $test() {
                passes_its_own_tests($name);
            }
        )*};
    }

    clients!(
        pymemcache: "pymemcache",
        pylibmc: "pylibmc",
        gomemcache: "gomemcache",
        node_memcached: "node-memcached"
    );
}
