//! `cenote top` on a real cluster: a frame as text, and live in a terminal.

mod support;

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use support::lab::wait_until;
use support::{Folder, run, signal};

fn cluster() -> Folder {
    let folder = Folder::new();
    let up = ["up", "--hosts", "3", "--memory", "32M", "--slab", "1M"];
    folder.run(&up).expect(0);
    let create = ["volume", "create", "v0", "--size", "64M"];
    folder
        .run(&[&create[..], &["--scheme", "mirror:2"]].concat())
        .expect(0);
    folder
}

#[test]
fn one_frame_is_text_with_every_host_and_volume() {
    let folder = cluster();
    let once = ["top", "--once", "--interval", "100ms"];
    let mut frame = String::new();
    // A host may be silent for as long as a frame waits.
    let all_answer = || {
        frame = folder.run(&once).expect(0).stdout;
        frame.contains(": 3 of 3 hosts up")
    };
    wait_until("all hosts answer", all_answer, String::new);
    let lines: Vec<&str> = frame.lines().collect();
    assert!(lines[0].starts_with("cenote top  "), "{frame}");
    assert!(lines[0].contains(": 3 of 3 hosts up, 0 B lent of 96.0 MiB"));
    assert!(lines[1].starts_with("HOST^ "), "{frame}");
    for (line, host) in lines[2..5].iter().zip(["h00", "h01", "h02"]) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[..4], [host, "up", "0", "B"], "{frame}");
    }
    let volume: Vec<&str> = lines[7].split_whitespace().collect();
    assert_eq!(volume[..6], ["v0", "not", "in", "use", "mirror:2", "64.0"]);
    assert!(!frame.contains('\x1b'), "no colours: {frame:?}");

    signal(folder.pid("h01"), "KILL");
    wait_until(
        "the frame shows that h01 has ended",
        || {
            folder
                .run(&once)
                .expect(0)
                .stdout
                .contains("\nh01    ended ")
        },
        || format!("{:?}", folder.run(&once)),
    );
}

/// Words of a host's line in a frame.
fn words(frame: &str, host: &str) -> Vec<String> {
    let words = line_of(frame, host).split_whitespace();
    words.map(str::to_owned).collect()
}

#[test]
fn what_a_hosts_machine_needs_is_seen() {
    let folder = Folder::new();
    let up = ["up", "--hosts", "2", "--memory", "32M", "--slab", "1M"];
    folder
        .run(&[&up[..], &["--headroom", "16M", "--floor", "1M"]].concat())
        .expect(0);
    let frame = || {
        let once = ["top", "--once", "--interval", "100ms"];
        folder.run(&once).expect(0).stdout
    };
    // NAME up 0 B 32.0 MiB FREE MiB PERCENT % LEFT MiB HEADROOM MiB EVICTED CLIENTS
    let is_watched = || {
        words(&frame(), "h00")
            .get(9)
            .is_some_and(|word| word == "%")
    };
    wait_until("the host has looked", is_watched, frame);
    // Of a host that answers: it may be silent for as long as a frame waits.
    let told = |host: &str| {
        let mut told = Vec::new();
        let answers = || {
            told = words(&frame(), host);
            told.get(1).is_some_and(|word| word == "up")
        };
        wait_until("the host answers", answers, frame);
        told
    };
    let calm = told("h00");
    assert_eq!(calm[8..10], ["0", "%"], "{calm:?}");
    assert_eq!(calm[12..14], ["16.0", "MiB"], "{calm:?}");

    // All of its machine but 4 MiB is used by others.
    let file = folder.host("h00").join("meminfo");
    let machine = std::fs::read_to_string(&file).expect("the host's machine");
    let total = machine.split_whitespace().nth(1).expect("a number");
    let next = file.with_extension("next");
    let squeezed = format!("MemTotal: {total} kB\nMemAvailable: 4096 kB\n");
    std::fs::write(&next, squeezed).expect("a file");
    std::fs::rename(&next, &file).expect("a file");
    let number = |word: &str| word.parse::<f64>().expect("a number");
    let is_squeezed = || {
        let squeezed = told("h00");
        // By the average, which follows within some seconds.
        number(&squeezed[8]) > 85.0 && number(&squeezed[10]) < 16.0 && squeezed[6] == "0"
    };
    wait_until("the others' memory is seen", is_squeezed, frame);
    let other = told("h01");
    assert_eq!(other[8..10], ["0", "%"], "{other:?}");
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    let folder = cluster();
    let ended = folder.run(&["top"]).expect(1);
    assert!(ended.stderr.contains("top needs a terminal"), "{ended:#?}");
    assert!(ended.stderr.contains("cenote status"), "{ended:#?}");
    assert_eq!(ended.stdout, "");
    run(&["top", "--dir", "/nowhere"]).expect(1);
}

/// `cenote top` in a terminal of 160 columns and 40 lines, which `script` makes.
struct Terminal {
    script: Child,
    keys: ChildStdin,
    written: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Terminal {
    /// `None` where there is no `script`; says so.
    fn new(folder: &Folder) -> Option<Self> {
        let command = format!(
            "stty cols 160 rows 40; exec {} top --interval 100ms --timeout 500ms --dir {}",
            env!("CARGO_BIN_EXE_cenote"),
            folder.str()
        );
        let spawned = Command::new("script")
            .args(["--quiet", "--return", "--command", &command, "/dev/null"])
            .env("TERM", "xterm")
            .env_remove("CENOTE_DIR")
            .env_remove("CENOTE_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut script) = spawned else {
            println!("skipped: script is not installed (Debian: bsdutils)");
            return None;
        };
        let keys = script.stdin.take().expect("a pipe");
        let mut output = script.stdout.take().expect("a pipe");
        let written = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&written);
        let reader = std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut some) {
                kept.lock().expect("no panic").extend(&some[..count]);
            }
        });
        Some(Self {
            script,
            keys,
            written,
            reader,
        })
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("top reads");
        self.keys.flush().expect("top reads");
    }

    fn written(&self) -> String {
        let bytes = self.written.lock().expect("no panic").clone();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The last whole frame, without what is not text.
    fn frame(&self) -> String {
        let written = self.written();
        let mut frames: Vec<&str> = written.split("\x1b[1;1H").collect();
        // What follows the last one may be half a frame.
        frames.pop();
        let frame = frames.pop().unwrap_or("");
        let mut text = String::new();
        let mut pieces = frame.split("\x1b[");
        text.push_str(pieces.next().unwrap_or(""));
        for piece in pieces {
            let end = piece.find(|c: char| c.is_ascii_alphabetic());
            text.push_str(end.map_or("", |end| &piece[end + 1..]));
        }
        text
    }

    fn wait_frame(&self, what: &str, is_it: impl Fn(&str) -> bool) {
        wait_until(what, || is_it(&self.frame()), || self.frame());
    }

    /// Waits for its end; what it wrote in all.
    fn end(mut self) -> (Option<i32>, String) {
        let written = Arc::clone(&self.written);
        let mut status = None;
        wait_until(
            "top has ended",
            || {
                status = self.script.try_wait().expect("a child");
                status.is_some()
            },
            || format!("{:?}", written.lock()),
        );
        self.reader.join().expect("no panic");
        let bytes = std::mem::take(&mut *self.written.lock().expect("no panic"));
        let code = status.and_then(|status| status.code());
        (code, String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The terminal as it was before: its own screen, a cursor.
fn is_given_back(written: &str) -> bool {
    let tail = &written[written.rfind("\x1b[?1049l").unwrap_or(0)..];
    let (left, shown) = (written.rfind("\x1b[?1049l"), written.rfind("\x1b[?25h"));
    let (entered, hidden) = (written.rfind("\x1b[?1049h"), written.rfind("\x1b[?25l"));
    left > entered && shown > hidden && entered.is_some() && !tail.contains("HOST")
}

fn line_of<'a>(frame: &'a str, name: &str) -> &'a str {
    let mut lines = frame.lines();
    lines
        .find(|line| line.starts_with(&format!("{name} ")))
        .unwrap_or("")
}

#[test]
fn in_a_terminal_it_follows_hosts_obeys_keys_and_gives_the_terminal_back() {
    let folder = cluster();
    let Some(mut terminal) = Terminal::new(&folder) else {
        return;
    };
    terminal.wait_frame("three hosts are up", |frame| {
        frame.contains("3 of 3 hosts up") && frame.contains("not in use")
    });
    signal(folder.pid("h01"), "KILL");
    terminal.wait_frame("it sees that one has ended and shows the others", |frame| {
        frame.contains("2 of 3 hosts up")
            && line_of(frame, "h01").contains(" ended ")
            && line_of(frame, "h02").contains(" up ")
    });
    // A host that is stopped holds nothing up.
    signal(folder.pid("h02"), "STOP");
    terminal.wait_frame("one is silent", |frame| {
        line_of(frame, "h02").contains(" silent ") && line_of(frame, "h00").contains(" up ")
    });
    signal(folder.pid("h02"), "CONT");
    terminal.wait_frame("it is back", |frame| line_of(frame, "h02").contains(" up "));
    terminal.press("\x1b[B");
    terminal.wait_frame("the second line is told in full", |frame| {
        frame.contains("\nh01: ")
    });
    terminal.press("\t");
    terminal.wait_frame("the volume is told in full", |frame| {
        frame.contains("\nv0: not in use")
    });
    terminal.press("q");
    let (code, written) = terminal.end();
    assert_eq!(code, Some(0), "{written}");
    assert!(is_given_back(&written), "{written:?}");
}

#[test]
fn control_c_ends_it_and_gives_the_terminal_back() {
    let folder = cluster();
    let Some(mut terminal) = Terminal::new(&folder) else {
        return;
    };
    terminal.wait_frame("three hosts are up", |frame| {
        frame.contains("3 of 3 hosts up")
    });
    terminal.press("\x03");
    let (code, written) = terminal.end();
    assert_eq!(code, Some(0), "{written}");
    assert!(is_given_back(&written), "{written:?}");
}
