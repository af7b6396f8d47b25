//! The rules of Prometheus' text format and of names, as promtool checks them.

/// What is wrong with a page by the rules of the format, and of names: those that promtool checks.
pub fn faults(page: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut described: Vec<(&str, &str)> = Vec::new();
    let mut helped: Vec<&str> = Vec::new();
    for line in page.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] if !help.trim().is_empty() => {
                if helped.contains(&name) {
                    faults.push(format!("{name}: a second HELP"));
                }
                helped.push(name);
            }
            ["#", "TYPE", name, kind] => {
                if described.iter().any(|(known, _)| *known == name) {
                    faults.push(format!("{name}: a second TYPE"));
                }
                described.push((name, kind));
                let is_total = name.ends_with("_total");
                if (kind == "counter") != is_total {
                    faults.push(format!("{name}: _total is for counters, which need it"));
                }
                let ends = ["_count", "_sum", "_bucket"];
                if kind != "histogram" && ends.iter().any(|end| name.ends_with(end)) {
                    faults.push(format!("{name}: ends as a histogram's sample does"));
                }
                let bare = name.trim_end_matches("_total");
                let units = [
                    "_ms",
                    "_us",
                    "_ns",
                    "_s",
                    "_milliseconds",
                    "_kb",
                    "_mb",
                    "_mib",
                    "_percent",
                ];
                if units.iter().any(|unit| bare.ends_with(unit)) {
                    faults.push(format!("{name}: its unit is no base unit"));
                }
                let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                if !name.chars().all(is_plain) {
                    faults.push(format!("{name}: small letters, digits and _ are for names"));
                }
            }
            ["#", ..] => faults.push(format!("{line}: no HELP with a text, and no TYPE")),
            _ => {
                let name = line.split(['{', ' ']).next().unwrap_or_default();
                let is_of = |(of, kind): &(&str, &str)| match *kind {
                    "histogram" => ["_bucket", "_sum", "_count"]
                        .iter()
                        .any(|end| name.strip_suffix(end) == Some(of)),
                    _ => name == *of,
                };
                if !described.last().is_some_and(is_of)
                    || helped.last() != described.last().map(|(of, _)| of)
                {
                    faults.push(format!("{line}: not of the family above it"));
                }
                let value = line.rsplit(' ').next().unwrap_or_default();
                if value.parse::<f64>().is_err() {
                    faults.push(format!("{line}: no number"));
                }
            }
        }
    }
    if described.is_empty() {
        faults.push("nothing is described".to_owned());
    }
    faults
}
