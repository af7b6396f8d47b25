//! Hosts, listeners and etcd that are given by name.

mod support;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::Stdio;

use cenote_kv_cluster::etcd::{EtcdServer, ServerError};
use support::etc_hosts::EtcHosts;
use support::lab::{Lab, has_tools};
use support::machines::serve;
use support::nbd::Client;
use support::net::Killed;
use support::well::Well;
use support::{Ended, Folder, run, words};

/// A host, and where it says that it listens.
fn start(hosts: &EtcHosts, folder: &Folder, name: &str, listen: &str) -> (Killed, String) {
    serve(hosts.cenote(), folder, name, &["--memory", "96M"], listen)
}

fn write_cluster(folder: &Folder, hosts: &[(&str, &str)]) {
    let mut text = "key = \"cluster.key\"\n".to_owned();
    for (name, at) in hosts {
        write!(
            text,
            "\n[[host]]\nname = \"{name}\"\naddress = \"tcp:{at}\"\n"
        )
        .unwrap();
    }
    std::fs::write(folder.path().join("cluster.toml"), text).unwrap();
}

fn port(address: &str) -> &str {
    address.rsplit(':').next().unwrap()
}

#[test]
fn a_host_that_moved_is_found_under_its_name_by_a_client_that_runs() {
    let Some(hosts) = EtcHosts::new().filter(|_| has_tools()) else {
        return;
    };
    let folder = Folder::with_key();
    // What a resolver that prefers IPv6 says of a machine that listens on IPv4 alone.
    let (a, b, c) = ("a.cenote.test", "b.cenote.test", "c.cenote.test");
    hosts.write(&[
        (a, "::1"),
        (a, "127.0.0.2"),
        (b, "127.0.0.3"),
        (c, "127.0.0.4"),
    ]);
    let (first, at) = start(&hosts, &folder, "h0", "127.0.0.2:0");
    let moving = port(&at).to_owned();
    // Listening by name: at the address of this machine that the name has.
    let (_second, at_b) = start(&hosts, &folder, "h1", &format!("{b}:0"));
    assert!(at_b.starts_with("127.0.0.3:"), "{at_b}");
    let (_third, at_c) = start(&hosts, &folder, "h2", "127.0.0.4:0");
    let places = [
        format!("{a}:{moving}"),
        format!("{b}:{}", port(&at_b)),
        format!("{c}:{}", port(&at_c)),
    ];
    let names = ["h0", "h1", "h2"];
    let entries: Vec<_> = names
        .into_iter()
        .zip(places.iter().map(String::as_str))
        .collect();
    write_cluster(&folder, &entries);
    let lab = Lab::served(folder, "mirror:3", hosts.cenote());
    for name in names {
        lab.wait_connected(name, true);
    }
    let mut client = Client::connect(&lab.socket(), support::lab::VOLUME);
    let page = vec![7; 4096];
    client.write(0, &page).unwrap();

    // Its name leads nowhere for a while, and then to another address.
    drop(first);
    hosts.write(&[(b, "127.0.0.3"), (c, "127.0.0.4")]);
    lab.wait_connected("h0", false);
    assert_eq!(client.read(0, 4096).unwrap(), page);
    let (_moved, at) = start(&hosts, &lab.folder, "h0", &format!("127.0.0.5:{moving}"));
    assert_eq!(at, format!("127.0.0.5:{moving}"));
    hosts.write(&[(a, "127.0.0.5"), (b, "127.0.0.3"), (c, "127.0.0.4")]);
    lab.wait_connected("h0", true);
    lab.wait_healthy();
    assert_eq!(client.read(0, 4096).unwrap(), page);
}

#[test]
fn a_name_that_nobody_has_is_said_with_its_line_and_is_one_host_away() {
    let Some(hosts) = EtcHosts::new() else {
        return;
    };
    let folder = Folder::with_key();
    let (_host, at) = start(&hosts, &folder, "h0", "localhost:0");
    let there = format!("localhost:{}", port(&at));
    write_cluster(&folder, &[("h0", &there), ("h1", "gone.invalid:7000")]);
    let status = folder.run(&["status", "--json"]).expect(3);
    let expected =
        "cluster.toml: line 9: gone.invalid:7000 is unreachable: cannot resolve its name";
    assert!(status.stderr.contains(expected), "{status:#?}");
    let found = status.json();
    assert_eq!(found["hosts"][0]["state"], "up", "{status:#?}");
    assert_eq!(found["hosts"][0]["address"], format!("tcp:{there}"));
    assert_eq!(found["hosts"][1]["state"], "unreachable", "{status:#?}");
    let why = found["hosts"][1]["error"].as_str().unwrap();
    assert!(why.contains("tcp:gone.invalid:7000"), "{why}");
    assert!(
        why.contains("the name of the host cannot be resolved"),
        "{why}"
    );
}

#[test]
fn what_is_no_host_and_port_is_an_error_of_the_line() {
    let folder = Folder::with_key();
    for (at, why) in [
        ("a b:1", "letters, digits"),
        ("db1.example", "without a port"),
        ("300.1.2.3:7000", "neither an IP address"),
        ("db1.example:0", "the port is 0"),
    ] {
        write_cluster(&folder, &[("h0", "127.0.0.1:1"), ("h1", at)]);
        let refused = folder.run(&["status"]).expect(1);
        assert!(refused.stderr.contains("line 9"), "{refused:#?}");
        assert!(refused.stderr.contains(why), "{refused:#?}");
    }
}

#[test]
fn a_listener_whose_name_nobody_has_says_which() {
    let folder = Folder::with_key();
    let key = folder.path().join("cluster.key");
    let lend = |more: &[&str]| {
        let host = words("host --name h --memory 1M --lock never --key");
        run(&[&host[..], &[key.to_str().unwrap()], more].concat()).expect(1)
    };
    let refused = lend(&["--listen", "tcp:gone.invalid:0"]);
    assert!(
        refused.stderr.contains("tcp:gone.invalid:0"),
        "{refused:#?}"
    );
    let refused = lend(&["--listen", "tcp:localhost:0", "--metrics", "gone.invalid:0"]);
    assert!(
        refused.stderr.contains("--metrics gone.invalid:0"),
        "{refused:#?}"
    );
    assert!(
        refused.stderr.contains("try: check the name with getent"),
        "{refused:#?}"
    );
}

#[test]
fn a_volume_and_its_metrics_are_served_by_name() {
    let Some(hosts) = EtcHosts::new() else {
        return;
    };
    hosts.write(&[("front.cenote.test", "127.0.0.6")]);
    let folder = Folder::with_key();
    let (_host, at) = start(&hosts, &folder, "h0", "127.0.0.2:0");
    write_cluster(&folder, &[("h0", &at)]);
    let mut server = hosts.cenote();
    server
        .args(words(&format!(
            "nbd --size 4M --scheme plain --dir {}",
            folder.str()
        )))
        .args(words(
            "--listen front.cenote.test:0 --metrics front.cenote.test:0",
        ))
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut remote = hosts.cenote();
    remote
        .args(words(&format!(
            "nbd --size 4M --scheme plain --dir {}",
            folder.str()
        )))
        .args(["--listen", "machine.cenote.test:0"]);
    let mut server = Killed(server.spawn().unwrap());
    let mut line = String::new();
    let stdout = server.0.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let (_, uri) = line
        .trim_end()
        .split_once("nbd://")
        .expect("a line with an address");
    let address = uri.split('/').next().unwrap();
    assert!(address.starts_with("127.0.0.6:"), "{line}");
    TcpStream::connect(address).expect("it listens there");
    // A name is no way around --allow-remote.
    hosts.write(&[("machine.cenote.test", "0.0.0.0")]);
    let refused = Ended::from(remote.output().unwrap()).expect(1);
    assert!(refused.stderr.contains("--allow-remote"), "{refused:#?}");
}

#[test]
fn a_store_and_its_etcd_are_found_by_name() {
    let well = Well::empty();
    let etcd = match EtcdServer::start(&well.path("etcd"), |_| ()) {
        Err(error @ ServerError::Missing) => return println!("skipped: {error}"),
        other => other.expect("etcd starts"),
    };
    let url = etcd.url().replace("127.0.0.1", "localhost");
    assert_ne!(url, etcd.url());
    let up = ["up", "--nodes", "3", "--groups", "3", "--code", "1+1"];
    well.run(&[&up[..], &["--memory", "256M", "--etcd", &url]].concat())
        .expect(0);
    let join = ["join", "--name", "n03", "--etcd", &url];
    let refused = well.run(&[&join[..], &["--clients", "gone.invalid:0"]].concat());
    let refused = refused.expect(1);
    assert!(
        refused.stderr.contains("--clients gone.invalid:0"),
        "{refused:#?}"
    );
    let at = ["--listen", "localhost", "--clients", "localhost:0"];
    well.run(&[&join[..], &at].concat()).expect(0);
    let addresses = std::fs::read_to_string(well.path("nodes/n03/addresses")).unwrap();
    let addresses: serde_json::Value = serde_json::from_str(&addresses).unwrap();
    assert_eq!(addresses["listen"], "localhost");
    // The name that was given, and the port that was found.
    let clients = addresses["clients"].as_str().unwrap();
    let port: u16 = port(clients).parse().unwrap();
    assert_eq!(clients, format!("localhost:{port}"));
    assert_ne!(port, 0);
    TcpStream::connect(clients).expect("it serves there");
    let status = well.status();
    assert_eq!(status["nodes"].as_array().unwrap().len(), 4, "{status}");
}
