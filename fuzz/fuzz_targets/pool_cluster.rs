// Longest input: 4096 bytes.
#![no_main]

use cenote_pool::Cluster;

// The file that names the hosts of a cluster: what is read is written so that it is read the same.
libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    if let Ok(text) = std::str::from_utf8(text)
        && let Ok(cluster) = Cluster::parse(text)
    {
        let again = Cluster::parse(&cluster.to_toml());
        assert_eq!(again.expect("what was written is read"), cluster);
    }
});
