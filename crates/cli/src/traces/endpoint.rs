//! What the environment says of where spans go, by OpenTelemetry's names, checked.

use std::path::PathBuf;
use std::time::Duration;

use crate::failure::Failure;

/// What is read here; headers, samplers and the times of batches are read by OpenTelemetry's own code.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Settings {
    /// Where requests go, with the path.
    pub url: String,
    /// How long one request may take.
    pub timeout: Duration,
    /// Spans that wait to be sent, at most.
    pub queue_spans: usize,
    /// Who may have signed the collector's certificate, in place of whom the machine trusts.
    pub authorities: Option<PathBuf>,
    /// What is not followed.
    pub warnings: Vec<String>,
}

/// OpenTelemetry's own.
const TIMEOUT: Duration = Duration::from_secs(10);
/// OpenTelemetry's own: a megabyte or two.
const QUEUE_SPANS: usize = 2048;
/// As many as nobody asks for by mistake.
const QUEUE_SPANS_MAX: usize = 1 << 20;

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
/// What a collector listens at for OTLP over HTTP.
const EXAMPLE: &str = "http://127.0.0.1:4318";

const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];

impl Settings {
    /// Reads them; `None` where no traces are wanted.
    ///
    /// # Errors
    /// An endpoint that is no URL of HTTP, or a protocol that is not spoken here.
    pub fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, Failure> {
        // An empty variable is one that is not set, says the specification.
        let value = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let of_traces = |name: &str| {
            let own = name.replacen("OTLP_", "OTLP_TRACES_", 1);
            value(&own)
                .map(|found| (own, found))
                .or_else(|| value(name).map(|found| (name.to_owned(), found)))
        };
        let is_disabled =
            value("OTEL_SDK_DISABLED").is_some_and(|word| word.trim().eq_ignore_ascii_case("true"));
        let is_unwanted = value("OTEL_TRACES_EXPORTER").is_some_and(|names| {
            let mut names = names.split(',').map(str::trim);
            !names.any(|name| name == "otlp")
        });
        if is_disabled || is_unwanted {
            return Ok(None);
        }
        let url = match (value(TRACES_ENDPOINT), value(ENDPOINT)) {
            (Some(own), _) => checked(TRACES_ENDPOINT, &own)?.to_owned(),
            (None, Some(base)) => {
                let base = checked(ENDPOINT, &base)?.trim_end_matches('/').to_owned();
                format!("{base}/v1/traces")
            }
            (None, None) => return Ok(None),
        };
        if let Some((name, protocol)) = of_traces("OTEL_EXPORTER_OTLP_PROTOCOL")
            && protocol != "http/protobuf"
        {
            return Err(Failure::new(
                format!("{name} is {protocol}: only http/protobuf is supported"),
                format!(
                    "set {name}=http/protobuf and use the collector's HTTP port, as in {EXAMPLE}"
                ),
            ));
        }
        let mut warnings = Vec::new();
        let mut number = |name: &str, text: &str, least: u64| {
            let number = text.trim().parse().ok().filter(|&number| number >= least);
            if number.is_none() {
                let known = format!("{name} is {text}: expected a number of at least {least}");
                warnings.push(format!("{known}; using the default"));
            }
            number
        };
        let timeout = of_traces("OTEL_EXPORTER_OTLP_TIMEOUT")
            .and_then(|(name, text)| number(&name, &text, 1))
            .map_or(TIMEOUT, Duration::from_millis);
        let name = "OTEL_BSP_MAX_QUEUE_SIZE";
        let queue_spans =
            value(name)
                .and_then(|text| number(name, &text, 1))
                .map_or(QUEUE_SPANS, |spans| {
                    usize::try_from(spans)
                        .map_or(QUEUE_SPANS_MAX, |spans| spans.min(QUEUE_SPANS_MAX))
                });
        if let Some(sampler) = value("OTEL_TRACES_SAMPLER") {
            let ratio = value("OTEL_TRACES_SAMPLER_ARG");
            warnings.extend(doubt(&sampler, ratio.as_deref()));
        }
        let authorities = of_traces("OTEL_EXPORTER_OTLP_CERTIFICATE");
        Ok(Some(Self {
            url,
            timeout,
            queue_spans,
            authorities: authorities.map(|(_, path)| path.into()),
            warnings,
        }))
    }
}

/// The endpoint, if it is a URL of HTTP with a host.
fn checked<'a>(name: &str, text: &'a str) -> Result<&'a str, Failure> {
    let text = text.trim();
    let parsed = text.parse::<ureq::http::Uri>().ok();
    let is_good = parsed.is_some_and(|uri| {
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        is_http && uri.host().is_some_and(|host| !host.is_empty())
    });
    match is_good {
        true => Ok(text),
        false => Err(Failure::new(
            format!("{name} is `{text}`, which is not a collector's address"),
            format!("set {name}={EXAMPLE}, or unset it to send no traces"),
        )),
    }
}

/// What is wrong with a sampler, for which OpenTelemetry's code takes another without a word.
fn doubt(sampler: &str, ratio: Option<&str>) -> Option<String> {
    if !SAMPLERS.contains(&sampler) {
        let known = SAMPLERS.join(", ");
        return Some(format!(
            "OTEL_TRACES_SAMPLER is {sampler}, not one of {known}: every trace is sent"
        ));
    }
    let is_ratio = |text: &str| {
        let ratio = text.parse::<f64>();
        ratio.is_ok_and(|ratio| (0.0..=1.0).contains(&ratio))
    };
    (sampler.ends_with("traceidratio") && !ratio.is_some_and(is_ratio)).then(|| {
        "OTEL_TRACES_SAMPLER_ARG is not a number from 0 to 1, which the sampler needs: every trace \
         is sent"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, Failure> {
        Settings::read(&|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn url(variables: &[(&str, &str)]) -> Option<String> {
        let settings = read(variables).expect("nothing is wrong with these");
        settings.map(|settings| settings.url)
    }

    #[test]
    fn an_endpoint_gets_the_path_and_one_of_traces_is_taken_as_it_is() {
        for (base, expected) in [
            ("http://c:4318", "http://c:4318/v1/traces"),
            (" https://c/otlp/ ", "https://c/otlp/v1/traces"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
        ] {
            assert_eq!(url(&[(ENDPOINT, base)]).as_deref(), Some(expected));
        }
        let both = [
            (ENDPOINT, "http://all:1"),
            (TRACES_ENDPOINT, "http://own:2/x"),
        ];
        assert_eq!(url(&both).as_deref(), Some("http://own:2/x"));
    }

    #[test]
    fn nothing_is_sent_where_nobody_asks_for_it_or_somebody_forbids_it() {
        assert_eq!(url(&[]), None);
        assert_eq!(url(&[(ENDPOINT, ""), (TRACES_ENDPOINT, " ")]), None);
        let at = (ENDPOINT, "http://c:4318");
        assert_eq!(url(&[at, ("OTEL_SDK_DISABLED", "True")]), None);
        assert_eq!(url(&[at, ("OTEL_TRACES_EXPORTER", "none")]), None);
        // Somebody who disabled it is not told that the endpoint is wrong.
        let wrong = (ENDPOINT, "c:4318");
        assert_eq!(url(&[wrong, ("OTEL_SDK_DISABLED", "true")]), None);
        let sent = Some("http://c:4318/v1/traces".to_owned());
        assert_eq!(url(&[at, ("OTEL_SDK_DISABLED", "no")]), sent);
        assert_eq!(url(&[at, ("OTEL_TRACES_EXPORTER", "console, otlp")]), sent);
    }

    #[test]
    fn an_endpoint_that_is_none_is_an_error_that_names_the_variable_and_the_way_out() {
        for wrong in [
            "localhost:4318",
            "c",
            "ftp://c",
            "http://",
            "http:// c",
            "/v1",
        ] {
            for name in [ENDPOINT, TRACES_ENDPOINT] {
                let said = format!("{:?}", read(&[(name, wrong)]).expect_err(wrong));
                assert!(said.contains(name) && said.contains(EXAMPLE), "{said}");
            }
        }
        let at = (ENDPOINT, "http://c:4317");
        for name in [
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
        ] {
            let said = format!("{:?}", read(&[at, (name, "grpc")]).expect_err("not spoken"));
            assert!(said.contains(&format!("{name} is grpc")), "{said}");
            assert!(read(&[at, (name, "http/protobuf")]).is_ok());
        }
    }

    #[test]
    fn times_are_milliseconds_and_what_is_wrong_is_said_and_not_followed() {
        let at = (ENDPOINT, "http://c:4318");
        let settings = |more: &[(&'static str, &'static str)]| {
            let all: Vec<_> = std::iter::once(at).chain(more.iter().copied()).collect();
            read(&all).expect("no error").expect("traces")
        };
        let usual = settings(&[]);
        assert_eq!(usual.timeout, Duration::from_secs(10));
        assert_eq!(usual.queue_spans, 2048);
        assert_eq!(usual.warnings, [""; 0]);
        let general = ("OTEL_EXPORTER_OTLP_TIMEOUT", "700");
        assert_eq!(settings(&[general]).timeout, Duration::from_millis(700));
        let own = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "30");
        let both = settings(&[general, own]);
        assert_eq!(both.timeout, Duration::from_millis(30));
        for (name, wrong) in [
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
            ("OTEL_TRACES_SAMPLER", "half"),
        ] {
            let found = settings(&[(name, wrong)]);
            assert_eq!(found.warnings.len(), 1, "{found:?}");
            assert!(found.warnings[0].contains(name), "{found:?}");
            assert_eq!(found.timeout, usual.timeout);
            assert_eq!(found.queue_spans, usual.queue_spans);
        }
        let ratio = |arg| {
            let sampler = ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio");
            settings(&[sampler, ("OTEL_TRACES_SAMPLER_ARG", arg)]).warnings
        };
        assert_eq!(ratio("0.25"), [""; 0]);
        assert_eq!(ratio("25").len(), 1);
        let huge = settings(&[("OTEL_BSP_MAX_QUEUE_SIZE", "999999999999")]);
        assert_eq!(huge.queue_spans, QUEUE_SPANS_MAX);
    }
}
