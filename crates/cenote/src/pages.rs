//! Tests of what pages say of our commands.

use std::path::{Path, PathBuf};

use clap::CommandFactory as _;

use crate::Cli;

#[test]
fn help_fits_a_terminal_of_80_columns_and_has_an_example() {
    let faults = cenote_cli::help::check::faults(Cli::command());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Our commands, with those of `cenote-lab` where this program passes on what it is given.
fn every_command() -> clap::Command {
    let lab = cenote_lab::Cli::command();
    let of_lab = |names: &[&str]| {
        let find = |at: &clap::Command, name: &&str| at.find_subcommand(name).cloned();
        let found = names
            .iter()
            .try_fold(lab.clone(), |at, name| find(&at, name));
        found.expect("a command of cenote-lab")
    };
    let root = ["demo", "bench", "lab"]
        .iter()
        .fold(Cli::command(), |root, name| {
            root.mut_subcommand(*name, |_| of_lab(&[*name]))
        });
    root.mut_subcommand("store", |store| {
        store.mut_subcommand("bench", |_| of_lab(&["bench", "store"]))
    })
}

/// Pages of which every command is checked: not of what was once.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![
        root.join("README.md"),
        root.join("docs/deploy.md"),
        root.join("docs/rdma.md"),
    ];
    for folder in ["docs/guides", "docs/papers"] {
        let entries = std::fs::read_dir(root.join(folder)).expect("a folder of pages");
        let entries = entries.map(|entry| entry.expect("an entry").path());
        pages.extend(entries.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    pages
}

#[test]
fn pages_name_flags_that_there_are() {
    let root = every_command();
    let mut count = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page)
            .expect("a page")
            .replace("\\\n", " ");
        // A flag at once is cargo's: of a package of this name.
        let ours = commands(&text).into_iter();
        for (line, command) in ours.filter(|(_, command)| !command.starts_with("cenote --")) {
            let mut at = &root;
            let mut globals: Vec<&clap::Arg> = Vec::new();
            for word in command.split_whitespace().skip(1) {
                if ["--", "|", "&&", ";", "]", "#"].contains(&word) {
                    break;
                }
                if let Some(flag) = word.strip_prefix("--") {
                    let end = flag.find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
                    let flag = &flag[..end.unwrap_or(flag.len())];
                    let known = at.get_arguments().chain(globals.iter().copied());
                    let is_known = known.into_iter().any(|one| one.get_long() == Some(flag));
                    let is_known = is_known || flag == "help" || flag == "version";
                    let (page, name) = (page.display(), at.get_name());
                    assert!(
                        is_known,
                        "{page}:{line}: cenote {name} has no --{flag}: {command}"
                    );
                    count += 1;
                } else if let Some(below) = at.find_subcommand(word) {
                    globals.extend(at.get_arguments().filter(|one| one.is_global_set()));
                    at = below;
                }
            }
        }
    }
    assert!(count > 100, "only {count} flags were found");
}

/// Commands of ours in code: lines of fences, and spans.
fn commands(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_fenced = false;
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced {
            let line = line.split("  #").next().unwrap_or_default();
            let starts = line
                .match_indices("cenote ")
                .filter(|(at, _)| *at == 0 || line[..*at].ends_with(' '));
            found.extend(starts.map(|(at, _)| (number + 1, line[at..].to_owned())));
        } else {
            let spans = line.split('`').skip(1).step_by(2);
            let ours = spans.filter(|span| span.starts_with("cenote "));
            found.extend(ours.map(|span| (number + 1, span.to_owned())));
        }
    }
    found
}
