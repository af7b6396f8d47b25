//! How help is laid out: prose in paragraphs as wide as the terminal, and commands in examples that are
//! wider go on after a backslash, so that they can be pasted.

pub mod check;

use std::io::IsTerminal as _;

use clap::Command;

/// Lines are no longer, however wide the terminal is.
const WIDTH_MAX: usize = 100;
/// Nothing is laid out for less.
const WIDTH_MIN: usize = 40;
/// Blanks before the rest of a command.
const INDENT: &str = "      ";

/// How wide help is here: as the terminal, or as COLUMNS says.
pub fn width() -> usize {
    let stdout = std::io::stdout();
    let terminal = stdout
        .is_terminal()
        .then(|| rustix::termios::tcgetwinsize(&stdout).ok());
    let columns = terminal.flatten().map(|size| usize::from(size.ws_col));
    let said = || std::env::var("COLUMNS").ok()?.parse().ok();
    let columns = columns.filter(|columns| *columns > 0).or_else(said);
    columns.unwrap_or(WIDTH_MAX).clamp(WIDTH_MIN, WIDTH_MAX)
}

/// A command, and those below it, with help for so many columns.
pub fn laid_out(command: Command, width: usize) -> Command {
    let names = command
        .get_subcommands()
        .map(|one| one.get_name().to_owned());
    let names: Vec<String> = names.collect();
    let mut command = command.term_width(width);
    if let Some(text) = command.get_after_help() {
        let text = flowed(&text.to_string(), width);
        command = command.after_help(text);
    }
    for name in names {
        command = command.mut_subcommand(name, |below| laid_out(below, width));
    }
    command
}

/// Joins the lines of each paragraph, and folds the commands of examples. Other lines with blanks before
/// them are lists, and stay.
fn flowed(text: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    let (mut is_prose, mut is_example) = (false, false);
    for line in text.lines() {
        let is_indented = line.starts_with(' ');
        match lines.last_mut() {
            Some(before) if is_prose && !line.is_empty() && !is_indented => {
                before.push(' ');
                before.push_str(line);
            }
            _ if is_indented && is_example => lines.extend(folded(line, width)),
            _ => {
                is_example = line.starts_with("Example");
                lines.push(line.to_owned());
            }
        }
        is_prose = !line.is_empty() && !is_indented && !is_example;
    }
    lines.join("\n")
}

/// A command as lines of at most `width`, broken before flags where that is possible, and never in quotes.
fn folded(command: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = command.to_owned();
    while rest.chars().count() > width {
        let Some(at) = break_of(&rest, width) else {
            break;
        };
        let next = format!("{INDENT}{}", rest[at..].trim_start());
        lines.push(format!("{} \\", rest[..at].trim_end()));
        rest = next;
    }
    lines.push(rest);
    lines
}

/// Where a line is broken: a byte of a blank in it, with room for a backslash after what is before it.
fn break_of(line: &str, width: usize) -> Option<usize> {
    let indent = line.len() - line.trim_start().len();
    let (mut quote, mut any, mut before_flag) = (None, None, None);
    for (column, (at, one)) in line.char_indices().enumerate() {
        match (quote, one) {
            (None, '\'' | '"') => quote = Some(one),
            (Some(open), _) if open == one => quote = None,
            (None, ' ') if at > indent && column + 2 <= width => {
                any = Some(at);
                if line[at..].starts_with(" --") {
                    before_flag = Some(at);
                }
            }
            _ => {}
        }
    }
    before_flag.or(any)
}

#[cfg(test)]
mod tests;
