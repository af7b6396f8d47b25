//! What is wrong with the help of a program, for its tests.

use clap::Command;

use super::laid_out;

/// Every command that is shown, with the words that lead to it, laid out for `width` columns.
#[must_use]
pub fn commands(root: Command, width: usize) -> Vec<(String, Command)> {
    fn below(path: &str, command: &Command, found: &mut Vec<(String, Command)>) {
        for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
            if one.get_name() != "help" {
                below(&format!("{path} {}", one.get_name()), one, found);
            }
        }
        found.push((path.to_owned(), command.clone()));
    }
    let mut root = laid_out(root, width);
    root.build();
    let mut found = Vec::new();
    below("cenote", &root, &mut found);
    found
}

/// Lines of more than 80 columns, commands without an example, and times whose flags name a unit.
#[must_use]
pub fn faults(root: Command) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, mut command) in commands(root, 80) {
        let help = command.render_long_help().to_string();
        let long = help.lines().filter(|line| line.chars().count() > 80);
        wrong.extend(long.map(|line| format!("{path}: {line}")));
        let is_example = |line: &str| line.starts_with("  ") && line.contains(&path);
        if !help.contains("Example") || !help.lines().any(is_example) {
            wrong.push(format!("{path}: no example"));
        }
        let flags = command.get_arguments();
        wrong.extend(flags.filter_map(|flag| Some(format!("{path} {}", of_flag(&path, flag)?))));
    }
    wrong
}

/// What is wrong with the names of a flag and of its value.
fn of_flag(path: &str, flag: &clap::Arg) -> Option<String> {
    const UNITS: [&str; 9] = [
        "ns", "us", "ms", "s", "secs", "seconds", "minutes", "hours", "days",
    ];
    let long = flag.get_long().unwrap_or_default();
    let last = long.rsplit('-').next().unwrap_or_default();
    let names = flag.get_value_names().unwrap_or_default();
    let is_unit = |name: &str| UNITS.contains(&name.to_lowercase().as_str());
    // What is one thing in one command is the same in all.
    let wanted = match long {
        "timeout" | "duration" | "interval" | "grace" | "distance" => Some("DURATION"),
        "cluster" if path != "cenote lab kv" => Some("FILE"),
        _ => None,
    };
    let is_wanted = |wanted: &str| names.len() == 1 && names[0].as_str() == wanted;
    match wanted {
        Some(wanted) if !is_wanted(wanted) => Some(format!("--{long} is not a {wanted}")),
        _ if is_unit(last) || names.iter().any(|name| is_unit(name)) => {
            Some(format!("--{long} names a unit"))
        }
        _ => None,
    }
}
