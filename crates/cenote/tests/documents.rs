//! Every block of commands in the README and the guides, run as it stands there, in the order of the page.
//!
//! A page is one session of bash in an empty home. A block that cannot run everywhere has a line above it:
//!
//! ```text
//! <!-- needs: etcd jq /dev/fuse -->     it is run where these programs and files are
//! <!-- not run: REASON -->              it is not run at all
//! ```
//!
//! A command has to end with 0, or as its line says (`exit code 3`). `make` and `apt-get` are stand-ins
//! that know the repository's targets and packages, and change nothing.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::cenote;

/// Longer than any page takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(400);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Whether a block is run.
#[derive(Debug, Eq, PartialEq)]
enum Runs {
    Always,
    With(Vec<String>),
    Never(String),
}

/// A block of commands.
#[derive(Debug, Eq, PartialEq)]
struct Block {
    /// Number of its first line in the page, from 1.
    line: usize,
    commands: Vec<String>,
    runs: Runs,
}

/// The blocks of a page.
///
/// # Panics
/// A block that nobody would run: of commands in a fence that does not say `sh`, or without one.
fn blocks(page: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut fence: Option<&str> = None;
    let mut above = "";
    for (number, line) in text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
    {
        match (fence, line.strip_prefix("```")) {
            (None, Some(kind)) => {
                fence = Some(kind);
                if kind == "sh" {
                    let (line, commands) = (number + 1, Vec::new());
                    let runs = runs(above).unwrap_or_else(|| panic!("{page}:{number}: {above}"));
                    blocks.push(Block {
                        line,
                        commands,
                        runs,
                    });
                }
            }
            (Some(_), Some(_)) => fence = None,
            (Some("sh"), None) => {
                let block = blocks.last_mut().expect("a fence began it");
                block.commands.push(line.to_owned());
            }
            (Some(kind), None) => {
                let is_command = line.starts_with("cenote ") || line.starts_with("make ");
                assert!(
                    !is_command,
                    "{page}:{number}: commands in a fence {kind:?}, not sh"
                );
            }
            (None, None) => {
                let is_command = line.starts_with("    cenote ");
                assert!(
                    !is_command,
                    "{page}:{number}: commands without a fence ```sh"
                );
            }
        }
        if !line.is_empty() {
            above = line;
        }
    }
    blocks
}

/// What the line above a block says of it; `None`: it is neither of the two.
fn runs(above: &str) -> Option<Runs> {
    let Some(comment) = above.strip_prefix("<!-- ") else {
        return Some(Runs::Always);
    };
    let comment = comment.strip_suffix(" -->")?;
    let needed = comment.strip_prefix("needs: ");
    let needed = needed.map(|names| names.split_whitespace().map(str::to_owned).collect());
    let never = comment
        .strip_prefix("not run: ")
        .filter(|reason| reason.len() > 10);
    needed
        .map(Runs::With)
        .or_else(|| never.map(|reason| Runs::Never(reason.to_owned())))
}

/// Whether a program, or a file by its path, is here.
fn is_here(name: &str) -> bool {
    if name.starts_with('/') {
        return Path::new(name).exists();
    }
    let mut look = Command::new("sh");
    look.args(["-c", "command -v \"$0\"", name])
        .env("PATH", path(None));
    let found = look.stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// Where programs are looked for: the stand-ins, what was built, the system's.
fn path(stand_ins: Option<&Path>) -> String {
    let built = Path::new(env!("CARGO_BIN_EXE_cenote"))
        .parent()
        .expect("a folder");
    let stand_ins = stand_ins.map_or(String::new(), |folder| format!("{}:", folder.display()));
    let system = std::env::var("PATH").expect("a PATH");
    format!("{stand_ins}{}:{system}", built.display())
}

/// A home for one page, whose servers end with it.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().expect("a temporary folder"));
        let stand_ins = home.path().join(".stand-ins");
        fs::create_dir(&stand_ins).expect("a folder");
        let root = root();
        let root = root.display();
        for (name, text) in [
            (
                "make",
                format!("exec /usr/bin/make --dry-run --silent --directory '{root}' \"$@\" >&2"),
            ),
            (
                "apt-get",
                format!(
                    "for one; do [ \"$one\" = install ] || grep -qw -e \"$one\" '{root}/scripts/install-packages.sh' || exit 1; done"
                ),
            ),
        ] {
            let file = stand_ins.join(name);
            fs::write(&file, format!("#!/bin/sh\n{text}\n")).expect("a program");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("to run");
        }
        home
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs a script in which every command stands at its line of the page; what it said, and whether
    /// all was well.
    fn run(&self, page: &str, script: &str) -> (bool, String) {
        let (file, said) = (self.path().join(".page.sh"), self.path().join(".said"));
        fs::write(&file, script).expect("a script");
        let output = fs::File::create(&said).expect("a file");
        let mut command = Command::new("bash");
        command
            .args(["-c", DRIVER, page])
            .arg(&file)
            .current_dir(self.path())
            .env("HOME", self.path())
            .env("PATH", path(Some(&self.path().join(".stand-ins"))))
            .env("NO_COLOR", "1")
            .env_remove("CENOTE_DIR")
            .env_remove("CENOTE_LOG")
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a file"))
            .stderr(output)
            .process_group(0);
        let mut session = command.spawn().expect("bash runs");
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = session.try_wait().expect("a child of ours") {
                break Some(status);
            }
            if Instant::now() >= deadline {
                let group = format!("-{}", session.id());
                let killed = Command::new("kill")
                    .args(["-s", "KILL", "--", &group])
                    .status();
                assert!(killed.is_ok_and(|status| status.success()), "kill {group}");
                session.wait().expect("a child of ours");
                break None;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut text = fs::read_to_string(said).expect("UTF-8");
        if status.is_none() {
            write!(text, "\n{page}: not done after {PATIENCE:?}").expect("a text");
        }
        (status.is_some_and(|status| status.success()), text)
    }
}

impl Home {
    /// Processes that were started in it, in the background as well: all know it by their
    /// environment.
    fn processes(&self) -> Vec<Pid> {
        let home = format!("HOME={}", self.path().display());
        let processes = fs::read_dir("/proc").expect("processes").flatten();
        let is_here = |process: &fs::DirEntry| {
            // One that ends meanwhile has none.
            let environment = fs::read(process.path().join("environ")).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|variable| variable == home.as_bytes())
        };
        let number = |process: fs::DirEntry| process.file_name().to_str()?.parse().ok();
        let numbers = processes.filter(is_here).filter_map(number);
        numbers.filter_map(Pid::from_raw).collect()
    }

    /// Files that are mounted in it.
    fn mounts(&self) -> Vec<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let points = mounts.lines().filter_map(|mount| mount.split(' ').nth(1));
        let points = points.map(PathBuf::from);
        points.filter(|at| at.starts_with(self.path())).collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // What a page left, or did not get to.
        for mount in self.mounts() {
            drop(Command::new("umount").arg("-l").arg(mount).output());
        }
        let clusters = fs::read_dir(self.path().join(".cenote"));
        for cluster in clusters.into_iter().flatten().flatten() {
            for command in [&["kv", "down"][..], &["down", "--force"]] {
                drop(
                    cenote()
                        .args(command)
                        .arg("--dir")
                        .arg(cluster.path())
                        .output(),
                );
            }
        }
        // Servers of its volumes and stores, and what bash has begun.
        let deadline = Instant::now() + PATIENCE;
        let mut killed = Vec::new();
        loop {
            let left = self.processes();
            // One that ends has no variables any more, and may be there for a while yet.
            let is_over = left.is_empty() && !killed.iter().any(runs_yet);
            if is_over || Instant::now() >= deadline {
                break;
            }
            for process in left {
                // It may have ended meanwhile.
                kill_process(process, Signal::KILL).ok();
                killed.push(process);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn runs_yet(process: &Pid) -> bool {
    support::runs(process.as_raw_nonzero().get().cast_unsigned())
}

/// Ends at the first command that ends otherwise than its line says, and names it.
const DRIVER: &str = r#"
set -o errtrace -o pipefail
page=$0 script=$1
set --
failed() {
    code=$?
    if sed -n "$1p" "$script" | grep -q "exit code $code"; then return; fi
    echo "$page:$1: exit code $code: $(sed -n "$1p" "$script")" >&2
    exit 1
}
trap 'failed $LINENO' ERR
. "$script"
"#;

/// Runs the blocks of a page, and says which were left out.
fn check(page: &str) {
    let text = fs::read_to_string(root().join(page)).expect("a page");
    let mut script = String::new();
    let mut at = 1;
    for block in blocks(page, &text) {
        let left_out = match &block.runs {
            Runs::Always => None,
            Runs::With(names) => {
                let lacking = names.iter().find(|name| !is_here(name));
                lacking.map(|name| format!("{name} is not here"))
            }
            Runs::Never(reason) => Some(reason.clone()),
        };
        if let Some(reason) = left_out {
            println!("skipped: {page}:{}: {reason}", block.line);
            continue;
        }
        script.push_str(&"\n".repeat(block.line - at));
        at = block.line + block.commands.len();
        for line in &block.commands {
            script.push_str(line);
            script.push('\n');
        }
    }
    if script.is_empty() {
        return;
    }
    let home = Home::new();
    let (is_well, said) = home.run(page, &script);
    assert!(is_well, "{page}:\n{said}");
}

/// Names in `~/.cenote` that a page uses.
fn folders(text: &str) -> BTreeSet<&str> {
    let after = text.split("/.cenote/").skip(1);
    let ends = |c: char| !c.is_ascii_alphanumeric() && c != '-';
    after.filter_map(|rest| rest.split(ends).next()).collect()
}

/// Whoever reads one page after the other has one home for all of them, where volumes, caches and
/// clusters of the page before may be left.
#[test]
fn no_page_uses_a_folder_of_another_one() {
    let mut pages = BTreeMap::new();
    for page in PAGES {
        let text = fs::read_to_string(root().join(page)).expect("a page");
        for folder in folders(&text) {
            let other = pages.insert(folder.to_owned(), page);
            assert_eq!(other, None, "{page}: ~/.cenote/{folder}");
        }
    }
    assert_eq!(pages.get("well"), Some(&"README.md"));
}

/// The pages, each of which a test below runs.
const PAGES: [&str; 21] = [
    "README.md",
    "docs/guides/cache.md",
    "docs/guides/files.md",
    "docs/guides/heap.md",
    "docs/guides/integrity.md",
    "docs/guides/kv-load.md",
    "docs/guides/kv.md",
    "docs/guides/memcached.md",
    "docs/guides/nbd.md",
    "docs/guides/placement.md",
    "docs/guides/store.md",
    "docs/guides/swap.md",
    "docs/guides/rust.md",
    "docs/guides/volumes.md",
    "docs/guides/monitoring.md",
    "docs/guides/kubernetes.md",
    "docs/guides/dashboard.md",
    "docs/guides/python.md",
    "docs/guides/commands.md",
    "docs/guides/c.md",
    "docs/guides/lmcache.md",
];

#[test]
fn the_guide_to_caches() {
    check(PAGES[1]);
}

#[test]
fn the_guide_to_files() {
    check(PAGES[2]);
}

#[test]
fn the_guide_to_heaps() {
    check(PAGES[3]);
}

#[test]
fn the_guide_to_integrity() {
    check(PAGES[4]);
}

#[test]
fn the_readme_and_the_guides_to_key_value_stores() {
    // One after the other: each may want a port of memcached's.
    for page in [PAGES[0], PAGES[5], PAGES[6], PAGES[7]] {
        check(page);
    }
}

#[test]
fn the_guide_to_block_devices() {
    check(PAGES[8]);
}

#[test]
fn the_guide_to_placement() {
    check(PAGES[9]);
}

#[test]
fn the_guide_to_stores() {
    check(PAGES[10]);
}

#[test]
fn the_guide_to_swap() {
    check(PAGES[11]);
}

#[test]
fn the_guide_to_rust() {
    check(PAGES[12]);
}

#[test]
fn the_guide_to_volumes() {
    check(PAGES[13]);
}

#[test]
fn the_guide_to_monitoring() {
    check(PAGES[14]);
}

/// Nothing of it runs without a cluster: what its commands say is read all the same.
#[test]
fn the_guide_to_kubernetes() {
    check(PAGES[15]);
}

/// Its blocks of Python are run by bindings/python/tests.
#[test]
fn the_guide_to_c() {
    check(PAGES[19]);
}

#[test]
fn the_guide_to_python() {
    check(PAGES[17]);
}

#[test]
fn the_guide_to_lmcache() {
    check(PAGES[20]);
}

#[test]
fn the_guide_to_the_dashboard() {
    check(PAGES[16]);
}

#[test]
fn the_guide_to_commands() {
    check(PAGES[18]);
}

#[test]
fn every_guide_is_run() {
    let guides = fs::read_dir(root().join("docs/guides")).expect("guides");
    for guide in guides {
        let name = guide.expect("a guide").file_name();
        let page = format!("docs/guides/{}", name.to_str().expect("UTF-8"));
        assert!(PAGES.contains(&page.as_str()), "{page}: no test runs it");
    }
}

#[test]
fn blocks_are_found_with_what_is_said_of_them() {
    let text = "a\n\n```sh\none\n```\n<!-- needs: etcd /dev/fuse -->\n```sh\ntwo\nthree\n```\n\
                <!-- not run: changes the machine -->\n\n```sh\nfour\n```\n";
    let block = |line, commands: &[&str], runs| Block {
        line,
        commands: commands.iter().map(|one| (*one).to_owned()).collect(),
        runs,
    };
    let needed = Runs::With(vec!["etcd".to_owned(), "/dev/fuse".to_owned()]);
    let expected = [
        block(4, &["one"], Runs::Always),
        block(8, &["two", "three"], needed),
        block(14, &["four"], Runs::Never("changes the machine".to_owned())),
    ];
    assert_eq!(blocks("page", text), expected);
}

#[test]
fn what_runs_when_a_page_fails_ends_with_its_home() {
    let home = Home::new();
    let page = "cenote up --hosts 4 --memory 16M --dir ~/.cenote/left\n\
                cenote volume create v0 --size 4M --scheme plain --dir ~/.cenote/left\n\
                cenote nbd --volume v0 --socket ~/nbd --dir ~/.cenote/left --background\n\
                cenote store create ~/objects --size 16M\n\
                cenote key new --out key\n\
                cenote store serve ~/objects --listen tcp:127.0.0.1:0 --key key --background\n\
                sleep 600 &\n\
                false\n";
    let (is_well, said) = home.run("page.md", page);
    assert!(!is_well && said.contains("page.md:8"), "{said}");
    let left = home.processes();
    // Hosts, a server of each kind, and bash's.
    assert_eq!(left.len(), 4 + 2 + 1, "{said}");
    drop(home);
    assert_eq!(left.into_iter().filter(runs_yet).collect::<Vec<_>>(), []);
}

#[test]
fn a_command_that_fails_is_named_with_its_line() {
    let home = Home::new();
    let (is_well, said) = home.run(
        "page.md",
        "true\n\nfalse   # exit code 1\n\nsh -c 'exit 7'\ntouch no\n",
    );
    assert!(!is_well);
    assert!(
        said.contains("page.md:5: exit code 7: sh -c 'exit 7'"),
        "{said}"
    );
    assert!(!home.path().join("no").exists(), "it ended there");
    let (is_well, said) = home.run("page.md", "make build\napt-get install etcd-server\n");
    assert!(is_well, "{said}");
    assert!(!home.run("page.md", "make nothing-of-this-name\n").0);
    assert!(
        !home
            .run("page.md", "apt-get install nothing-of-this-name\n")
            .0
    );
}
