//! Prometheus' own text format, version 0.0.4, made of OpenMetrics text.
//!
//! The two differ in little: here a counter is named with its `_total` also where it is described, units
//! stand in names alone, and there is no mark at the end. A family that was written in pieces is put
//! together, since it may be described once only.

/// What the format is called in HTTP.
pub const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The samples of one name.
struct Family<'a> {
    /// As OpenMetrics describes it.
    name: &'a str,
    kind: &'a str,
    help: &'a str,
    samples: Vec<&'a str>,
}

/// Rewrites a page.
pub fn of(open_metrics: &str) -> String {
    let mut families: Vec<Family<'_>> = Vec::new();
    let mut at: Option<usize> = None;
    for line in open_metrics.lines() {
        let Some(said) = line.strip_prefix("# ") else {
            if let Some(at) = at {
                let family: &mut Family<'_> = &mut families[at];
                family.samples.push(line);
            }
            continue;
        };
        let mut words = said.splitn(3, ' ');
        let (Some(what), Some(name)) = (words.next(), words.next()) else {
            continue;
        };
        let text = words.next().unwrap_or_default();
        let found = families.iter().position(|family| family.name == name);
        let found = found.unwrap_or_else(|| {
            let (kind, help, samples) = ("unknown", "", Vec::new());
            families.push(Family {
                name,
                kind,
                help,
                samples,
            });
            families.len() - 1
        });
        at = Some(found);
        match what {
            "TYPE" => families[found].kind = text,
            "HELP" => families[found].help = text,
            _ => {}
        }
    }
    let mut page = String::with_capacity(open_metrics.len());
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        let (suffix, kind) = match family.kind {
            "counter" => ("_total", "counter"),
            "info" => ("_info", "gauge"),
            "unknown" => ("", "untyped"),
            other => ("", other),
        };
        let (name, help) = (family.name, family.help);
        let described = [
            ["# HELP ", name, suffix, " ", help, "\n"],
            ["# TYPE ", name, suffix, " ", kind, "\n"],
        ];
        page.extend(described.into_iter().flatten());
        for sample in &family.samples {
            page.push_str(sample);
            page.push('\n');
        }
    }
    page
}

/// Whether whoever asks takes OpenMetrics.
pub fn takes_open_metrics(accept: Option<&str>) -> bool {
    accept.is_some_and(|kinds| kinds.contains("application/openmetrics-text"))
}

#[cfg(test)]
#[path = "../../tests/support/prometheus.rs"]
pub mod prometheus;

#[cfg(test)]
mod tests {
    use super::prometheus::faults;
    use super::*;

    const OPEN: &str = "# HELP a_bytes Depth.\n# TYPE a_bytes gauge\n# UNIT a_bytes bytes\na_bytes 42\n\
        # HELP b Times.\n# TYPE b counter\nb_total{k=\"x y\"} 1\n# HELP v Version.\n# TYPE v info\n\
        v_info{version=\"1\"} 1\n# HELP b Times.\n# TYPE b counter\nb_total{k=\"z\"} 2\n# EOF\n";

    #[test]
    fn a_page_is_what_prometheus_reads_without_being_told_of_open_metrics() {
        let page = of(OPEN);
        assert_eq!(
            page,
            "# HELP a_bytes Depth.\n# TYPE a_bytes gauge\na_bytes 42\n\
             # HELP b_total Times.\n# TYPE b_total counter\nb_total{k=\"x y\"} 1\nb_total{k=\"z\"} 2\n\
             # HELP v_info Version.\n# TYPE v_info gauge\nv_info{version=\"1\"} 1\n"
        );
        assert_eq!(faults(&page), Vec::<String>::new());
        // As it was served before, whoever asked.
        assert!(faults(OPEN).len() > 3, "{:?}", faults(OPEN));
    }

    #[test]
    fn open_metrics_is_for_those_who_ask_for_it() {
        let asked = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2";
        assert!(takes_open_metrics(Some(asked)));
        assert!(!takes_open_metrics(Some("text/plain")));
        assert!(!takes_open_metrics(Some("*/*")));
        assert!(!takes_open_metrics(None));
    }
}
