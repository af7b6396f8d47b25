//! The volumes of a folder: what commands leave of them that are about something else.

mod support;

use std::fs;
use std::path::Path;

use support::nbd::Client;
use support::server::{Server, up};
use support::{Ended, Folder};

/// A cluster file as for hosts on other machines, and a volume that somebody has written to.
fn deployed(address: &str) -> Folder {
    let folder = Folder::with_key();
    let text =
        format!("key = \"cluster.key\"\n\n[[host]]\nname = \"h00\"\naddress = \"{address}\"\n");
    fs::write(folder.path().join("cluster.toml"), text).expect("a file");
    folder.create_volume("v0", "4M", "plain");
    for kind in ["journal", "pages", "tags"] {
        let path = folder.path().join(format!("volumes/v0.{kind}"));
        fs::write(path, kind).expect("a file");
    }
    folder
}

/// What is in the folder of volumes, and the cluster files beside it.
fn content(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let files = |folder: &Path| fs::read_dir(folder).expect("a folder").map(Result::unwrap);
    let files = files(folder).chain(files(&folder.join("volumes")));
    let is_kept = |name: &str| !name.ends_with("lock");
    let files = files.filter(|entry| entry.path().is_file());
    let mut content: Vec<_> = files
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.path()))
        .filter(|(name, _)| is_kept(name))
        .map(|(name, path)| (name, fs::read(path).expect("it can be read")))
        .collect();
    content.sort();
    content
}

const UP: [&str; 5] = ["up", "--hosts", "1", "--memory", "16M"];

#[test]
fn a_cluster_that_up_did_not_start_is_refused_by_down_and_up() {
    // Also where `up` once made hosts of these names.
    for is_used in [false, true] {
        let folder = deployed("tcp:10.0.0.7:7000");
        if is_used {
            fs::create_dir_all(folder.host("h00")).expect("a folder");
        }
        let before = content(folder.path());
        for command in [&["down"][..], &["down", "--force"], &UP] {
            let refused: Ended = folder.run(command).expect(1);
            let said = "not started by cenote up: host h00 is at tcp:10.0.0.7:7000";
            assert!(refused.stderr.contains(said), "{refused:#?}");
            assert!(refused.stderr.contains("use another --dir"), "{refused:#?}");
            assert!(content(folder.path()) == before, "{command:?}");
        }
    }
}

#[test]
fn down_where_nothing_runs_leaves_the_volumes_of_a_cluster_file_of_another_name() {
    let folder = deployed("tcp:10.0.0.7:7000");
    let at = |name: &str| folder.path().join(name);
    fs::rename(at("cluster.toml"), at("production.toml")).expect("in one step");
    let before = content(folder.path());
    let down = folder.run(&["down"]).expect(0);
    assert!(down.stdout.contains("already down"), "{down:#?}");
    assert!(content(folder.path()) == before);
}

#[test]
fn down_names_the_volumes_whose_content_goes() {
    let folder = Folder::new();
    up(&folder);
    for name in ["v0", "empty"] {
        folder.create_volume(name, "4M", "plain");
    }
    let mut server = Server::start(&folder, &["--volume", "v0"]);
    server.ready();
    let mut client = Client::connect(&folder.path().join("nbd"), "v0");
    assert_eq!(client.write(0, &[1; 4096]), Ok(()));
    drop(client);
    assert_eq!(server.end(), Some(0));
    let down = folder.run(&["down"]).expect(0);
    let lost = "what they held is lost: volume v0\n";
    assert!(down.stdout.ends_with(lost), "{down:#?}");
}

#[test]
fn a_volume_whose_files_are_damaged_is_shown_and_the_others_are_served() {
    let folder = Folder::new();
    up(&folder);
    folder.create_volume("v0", "4M", "plain");
    folder.create_volume("x", "4M", "plain");
    let at = |name: &str| folder.path().join("volumes").join(name);
    fs::write(at("x.journal"), "of no version").expect("a file");
    fs::write(at("y.toml"), "size = 1").expect("a file");

    let mut server = Server::start(&folder, &["--volume", "v0"]);
    assert!(server.ready().starts_with("ready v0"));
    let mut client = Client::connect(&folder.path().join("nbd"), "v0");
    assert_eq!(client.write(0, &[1; 4096]), Ok(()));

    let status = folder.run(&["status", "--json"]).expect(3).json();
    assert_eq!(status["hosts_up"], 4, "{status}");
    assert_eq!(status["hosts"].as_array().map(Vec::len), Some(4));
    let rows = folder.run(&["volume", "status", "--json"]).expect(3).json();
    for rows in [&status["volumes"], &rows] {
        assert_eq!(rows[0]["name"], "v0", "{rows}");
        assert_eq!(rows[0]["status"]["health"], "healthy", "{rows}");
        for (index, file) in [(1, "x.journal"), (2, "y.toml")] {
            let error = rows[index]["error"].as_str().unwrap_or_default();
            assert!(error.contains(file), "{rows}");
        }
    }
    assert_eq!(rows[0]["size_bytes"], 4 << 20, "{rows}");
    for field in ["size", "size_bytes"] {
        assert_eq!(rows[2][field], serde_json::Value::Null);
    }
    let one = folder.run(&["volume", "status", "v0", "--json"]).expect(0);
    assert_eq!(one.json()["size_bytes"], 4 << 20, "{one:#?}");
    for command in [&["status"][..], &["volume", "status"], &["volume", "list"]] {
        let shown = folder.run(command).expect(3).stdout;
        assert!(shown.contains("y.toml"), "{shown}");
    }
    // Each can be put right by itself.
    folder.run(&["volume", "reset", "x"]).expect(0);
    folder.run(&["volume", "delete", "y"]).expect(0);
    folder.look(&[]).expect(0);
    drop(client);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_volume_of_eight_and_two_borrows_five_quarters_of_what_it_maps() {
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", "10", "--memory", "16M"])
        .expect(0);
    folder.create_volume("v0", "64M", "rs:8+2");
    let mut server = Server::start(&folder, &["--volume", "v0"]);
    assert!(server.ready().starts_with("ready "));
    let mut client = Client::connect(&folder.path().join("nbd"), "v0");
    assert_eq!(client.write(0, &[7; 1 << 16]), Ok(()));
    let told = folder.run(&["volume", "status", "v0", "--json"]).expect(0);
    let told = told.json();
    let bytes = |of: &str| told["status"][of].as_u64().expect("a number");
    assert!(bytes("mapped_bytes") > 0, "{told:#}");
    assert_eq!(4 * bytes("lent_bytes"), 5 * bytes("mapped_bytes"));
    assert_eq!(folder.lent_bytes(), bytes("lent_bytes"));
    // With the owner's own tables as well.
    let shown = folder.run(&["volume", "status", "v0"]).expect(0).stdout;
    let overhead = ", 1.250 bytes lent per byte of mapped extents";
    assert!(shown.contains(overhead), "{shown}");
    assert_eq!(server.end(), Some(0));
}
