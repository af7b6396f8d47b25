//! `cenote dashboard` on a real cluster, without a browser: tests/ops/dashboard.py has one.

mod support;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::server::Server;
use support::{Folder, cenote, run, signal, words};

/// Longer than anything here takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn cluster() -> Folder {
    let folder = Folder::new();
    let up = ["up", "--hosts", "3", "--memory", "8M", "--slab", "1M"];
    folder.run(&up).expect(0);
    folder
}

/// A dashboard on loopback, and its host and port.
fn dashboard(folder: &Folder, arguments: &[&str]) -> (Server, String) {
    let mut program = cenote();
    program
        .args(["dashboard", "--dir", folder.str()])
        .args(["--listen", "127.0.0.1:0", "--interval", "500ms"])
        .args(arguments);
    let mut server = Server::spawn(program);
    let line = server.ready();
    let at = line
        .trim()
        .strip_prefix("ready dashboard at http://")
        .and_then(|rest| rest.strip_suffix('/'));
    let at = at.unwrap_or_else(|| panic!("{line}")).to_owned();
    (server, at)
}

fn connect(at: &str, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(at).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// Status, and all that came with it. A host name in place of its own, if any.
fn ask(at: &str, line: &str, headers: &str, body: &str) -> (u16, String) {
    let host = match headers.contains("Host: ") {
        true => String::new(),
        false => format!("Host: {at}\r\n"),
    };
    let len = body.len();
    let request = format!(
        "{line} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {len}\r\n{headers}\r\n{body}"
    );
    let mut text = String::new();
    connect(at, &request).read_to_string(&mut text).unwrap();
    let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.unwrap_or_else(|| panic!("{text}")), text)
}

/// What a page is told.
struct Events(BufReader<TcpStream>);

impl Events {
    fn open(at: &str) -> Self {
        let request = format!("GET /events HTTP/1.1\r\nHost: {at}\r\n\r\n");
        Self(BufReader::new(connect(at, &request)))
    }

    /// Reads on until a part is as wanted.
    fn until(&mut self, part: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        let (mut line, mut name, mut last) = (String::new(), String::new(), Value::Null);
        loop {
            assert!(Instant::now() < deadline, "{part} is still {last}");
            line.clear();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "it ended");
            if let Some(event) = line.trim_end().strip_prefix("event: ") {
                event.clone_into(&mut name);
            }
            if let Some(data) = line.strip_prefix("data: ")
                && name == part
            {
                last = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
                if wanted(&last) {
                    return last;
                }
            }
        }
    }
}

#[test]
fn a_page_is_told_what_is_and_what_changes() {
    let folder = cluster();
    let (_server, at) = dashboard(&folder, &[]);
    let (status, page) = ask(&at, "GET /", "", "");
    assert_eq!(status, 200, "{page}");
    assert!(page.contains("default-src 'none'"), "{page}");
    assert!(page.contains("<title>Cenote</title>"), "{page}");
    let mut events = Events::open(&at);
    let hosts = events.until("hosts", |hosts| {
        let hosts = hosts["answer"].as_array().into_iter().flatten();
        hosts.filter(|host| host["state"] == "up").count() == 3
    });
    let hosts = hosts["answer"].as_array().unwrap();
    assert_eq!(hosts.len(), 3);
    assert_eq!(hosts[0]["figures"]["memory_bytes"], 8 << 20);

    let create = words("volume create v0 --size 2M --scheme rs:2+1");
    folder.run(&create).expect(0);
    signal(folder.pid("h02"), "KILL");
    let is_told = |events: &Value, text: &str| {
        let mut events = events.as_array().expect("a list").iter();
        events.any(|event| event["text"] == text)
    };
    events.until("events", |events| {
        is_told(events, "host h02 is down: its process has exited")
            && is_told(events, "volume v0 was created")
    });
    // Who comes later is told the same at once.
    let late = Events::open(&at).until("hosts", |_| true);
    assert_eq!(late["answer"][2]["state"], "ended", "{late}");
    let (status, hour) = ask(&at, "GET /history", "", "");
    assert_eq!(status, 200, "{hour}");
    let (_, hour) = hour.split_once("\r\n\r\n").unwrap();
    let hour: Value = serde_json::from_str(hour).unwrap();
    assert_eq!(hour["lent_bytes"].as_array().unwrap().len(), 360);
    assert_eq!(ask(&at, "GET /history/volumes/none", "", "").0, 404);
    assert_eq!(ask(&at, "GET /no", "", "").0, 404);
}

#[test]
fn a_token_that_cannot_be_used_is_no_matter_of_the_clusters_key() {
    let folder = cluster();
    let token = folder.path().join("a token");
    let token_file = token.to_str().unwrap();
    let refused = || {
        let ended = folder
            .run(&["dashboard", "--token-file", token_file])
            .expect(1);
        assert!(ended.stderr.contains("--token-file"), "{ended:#?}");
        assert!(!ended.stderr.contains("cluster"), "{ended:#?}");
        ended.stderr
    };
    let make = format!("cenote key new --out '{token_file}'");
    assert!(refused().contains(&format!("try: {make}")));
    std::fs::write(&token, "open sesame").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let said = refused();
    assert!(
        said.contains(&make) && said.contains("64 hexadecimal"),
        "{said}"
    );
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).unwrap();
    let said = refused();
    assert!(said.contains("chmod 600"), "{said}");
}

#[test]
fn orders_are_for_those_with_the_token() {
    let folder = cluster();
    let token = folder.path().join("token");
    let token_file = token.to_str().unwrap();
    run(&["key", "new", "--out", token_file]).expect(0);
    let (_server, at) = dashboard(&folder, &["--token-file", token_file]);
    let token = std::fs::read_to_string(&token).unwrap();
    let right = format!("Authorization: Bearer {}\r\n", token.trim());
    let own = format!("Origin: http://{at}\r\n");
    let drain = r#"{"order":"drain","host":"h01"}"#;
    let order = |headers: &str, body: &str| ask(&at, "POST /orders", headers, body);
    assert_eq!(order(&own, drain).0, 401);
    let wrong = format!("{own}Authorization: Bearer {}\r\n", "0".repeat(64));
    assert_eq!(order(&wrong, drain).0, 401);
    assert_eq!(
        order(&right, drain).0,
        403,
        "no word of where it comes from"
    );
    let foreign = format!("{right}Origin: http://evil.example.org\r\n");
    assert_eq!(order(&foreign, drain).0, 403);
    let renamed = format!("{right}Host: evil.example.org\r\nOrigin: http://evil.example.org\r\n");
    assert_eq!(order(&renamed, drain).0, 421);
    assert_eq!(
        ask(&at, "GET /events", "Host: evil.example.org\r\n", "").0,
        421
    );
    let mut events = Events::open(&at);
    events.until("hosts", |hosts| {
        let state = &hosts["answer"][1]["state"];
        assert_ne!(state, "draining", "nothing of it was done");
        state == "up"
    });

    let both = format!("{own}{right}");
    let (status, said) = order(&both, drain);
    assert_eq!(status, 200, "{said}");
    events.until("hosts", |hosts| hosts["answer"][1]["state"] == "draining");
    let lend = r#"{"order":"lend","host":"h01"}"#;
    assert_eq!(order(&both, lend).0, 200);
    events.until("hosts", |hosts| hosts["answer"][1]["state"] == "up");
    for (body, status) in [
        (r#"{"order":"drain","host":"h09"}"#, 409),
        (r#"{"order":"scrub","volume":"../../etc/passwd"}"#, 409),
        (r#"{"order":"delete","volume":"v0"}"#, 400),
        ("", 400),
    ] {
        assert_eq!(order(&both, body).0, status, "{body}");
    }
    assert_eq!(order(&both, &" ".repeat(5000)).0, 400);
}
