use super::*;

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

#[test]
fn what_is_wrong_with_help_is_found() {
    let flag =
        |name: &'static str, value: &'static str| clap::Arg::new(name).long(name).value_name(value);
    let right = Command::new("fly")
        .after_help("Example:\n  cenote fly")
        .arg(flag("timeout", "DURATION"));
    let root = |command| {
        let root = Command::new("cenote").after_help("Example:\n  cenote fly");
        root.subcommand(command)
    };
    assert_eq!(check::faults(root(right.clone())), [""; 0]);
    for (wrong, said) in [
        (Command::new("fly"), "cenote fly: no example"),
        (
            right.clone().arg(flag("far-ms", "N")),
            "cenote fly --far-ms names a unit",
        ),
        (
            right.clone().arg(flag("far", "SECONDS")),
            "cenote fly --far names a unit",
        ),
        (
            right.clone().arg(flag("cluster", "NAME")),
            "cenote fly --cluster is not a FILE",
        ),
    ] {
        assert_eq!(check::faults(root(wrong)), [said]);
    }
    let wide = format!("Example:\n  cenote fly {}", "a".repeat(80));
    let wide = check::faults(root(right.after_help(wide)));
    assert!(wide.len() == 1 && wide[0].contains("aaa"), "{wide:?}");
}
