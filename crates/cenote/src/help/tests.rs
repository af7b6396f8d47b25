use std::path::{Path, PathBuf};

use clap::CommandFactory as _;

use super::*;
use crate::Cli;

/// Every command that is shown, with the words that lead to it.
fn all(width: usize) -> Vec<(String, Command)> {
    fn below(path: &str, command: &Command, found: &mut Vec<(String, Command)>) {
        for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
            if one.get_name() != "help" {
                below(&format!("{path} {}", one.get_name()), one, found);
            }
        }
        found.push((path.to_owned(), command.clone()));
    }
    let mut command = laid_out(Cli::command(), width);
    command.build();
    let mut found = Vec::new();
    below("cenote", &command, &mut found);
    found
}

#[test]
fn help_fits_a_terminal_of_80_columns_and_has_an_example() {
    let commands = all(80);
    assert!(commands.len() > 60, "{}", commands.len());
    let mut wrong = Vec::new();
    for (path, mut command) in commands {
        let help = command.render_long_help().to_string();
        let long = help.lines().filter(|line| line.chars().count() > 80);
        wrong.extend(long.map(|line| format!("{path}: {line}")));
        let is_example = |line: &str| line.starts_with("  ") && line.contains(&path);
        if !help.contains("Example") || !help.lines().any(is_example) {
            wrong.push(format!("{path}: no example"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_flag_that_is_a_time_has_no_unit_in_its_name() {
    for (path, command) in all(80) {
        for argument in command.get_arguments() {
            let long = argument.get_long().unwrap_or_default();
            let last = long.rsplit('-').next().unwrap_or_default();
            let units = [
                "ns", "us", "ms", "s", "secs", "seconds", "minutes", "hours", "days",
            ];
            assert!(!units.contains(&last), "{path} --{long}");
            let names = argument.get_value_names().unwrap_or_default();
            let units = ["NS", "US", "MS", "S", "SECONDS", "MINUTES", "HOURS", "DAYS"];
            assert!(
                !names.iter().any(|name| units.contains(&name.as_str())),
                "{path} --{long}"
            );
            // What is one thing in one command is the same in all.
            match long {
                "timeout" | "duration" | "interval" | "grace" | "distance" => {
                    assert_eq!(names, ["DURATION"], "{path} --{long}");
                }
                "cluster" if path != "cenote lab kv" => {
                    assert_eq!(names, ["FILE"], "{path} --{long}");
                }
                _ => {}
            }
        }
    }
}

#[test]
fn prose_flows_and_examples_are_folded() {
    let text = "Examples:\n  cenote fly --to 'a b c' --height 10000 --speed fast\n  cenote land\n\n\
                One line of\nprose.\n\nCodes:\n  0  done";
    let flown = "Examples:\n  cenote fly --to 'a b c' \\\n      --height 10000 \\\n      --speed fast\n  \
                 cenote land\n\nOne line of prose.\n\nCodes:\n  0  done";
    assert_eq!(flowed(text, 30), flown);
    assert_eq!(flowed(text, 100), text.replace("of\nprose", "of prose"));
    // Never within quotes, and what cannot be broken stays.
    let quoted = ["  x \\", "      'aaaa bbbb cccc' y"];
    assert_eq!(folded("  x 'aaaa bbbb cccc' y", 12), quoted);
    assert_eq!(folded("  0123456789", 5), ["  0123456789"]);
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
    let root = Cli::command();
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
