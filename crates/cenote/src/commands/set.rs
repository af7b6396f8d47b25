//! `cenote volume set`: what a volume expects of its hosts, changed also while it is in use.

use std::time::Duration;

use anyhow::{Context, Result};
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::progress::{self, Left};
use cenote_cli::size::Size;
use cenote_volume::{Mode, Resilience, Scheme};
use serde_json::Value;

use super::volume::check_scheme;
use crate::expectations::{Expected, usual_delta};
use crate::place::Which;
use crate::volumes::{Question, Spec, Volumes};

/// What is to be another.
#[derive(clap::Args, Debug)]
#[group(id = "change", required = true, multiple = true, args = ["scheme", "mode", "delta"])]
pub struct Wish {
    /// New scheme: from rs:8+2 to rs:8+3, say, or from mirror:2 to mirror:3. Another K, as from
    /// rs:8+2 to rs:4+2, restripes all pages
    #[arg(long, value_name = "SCHEME")]
    pub scheme: Option<String>,
    #[command(flatten)]
    pub expected: Expected,
}

/// How often the owner is asked how far it is.
const LOOK: Duration = Duration::from_millis(50);

impl Wish {
    /// What the volume is to expect of its hosts.
    fn of(&self, spec: &Spec) -> Result<Resilience> {
        let before = spec.resilience()?;
        let scheme: Scheme = match &self.scheme {
            Some(scheme) => check_scheme(scheme)?.parse()?,
            None => before.scheme(),
        };
        let mode = self.expected.mode.unwrap_or(before.mode());
        let was_usual = before.delta() == usual_delta(before.scheme(), before.mode());
        let usual = match mode {
            _ if was_usual => usual_delta(scheme, mode),
            _ if mode == before.mode() => before.delta(),
            Mode::Detection | Mode::Correction => before.delta().max(1),
            Mode::FailureRecovery | Mode::EcOnly => before.delta(),
        };
        let delta = self.expected.delta.unwrap_or(usual);
        let wanted = Resilience::new(scheme, mode, delta);
        Ok(wanted
            .map_err(|error| Failure::usage(error.to_string(), "--scheme, --mode, --delta"))?)
    }
}

/// Has a volume expect something else of its hosts; waits until that is so, where it is in use.
///
/// # Errors
/// There is no such volume; it cannot be what is wished; its owner does not answer.
pub fn set(which: &Which, name: &str, wish: &Wish, waits: bool, json: bool) -> Result<u8> {
    let volumes = Volumes::new(&which.directory()?);
    let spec = volumes.load(name)?;
    let wanted = wish.of(&spec)?;
    let in_use = volumes.is_owned(name)?;
    if in_use {
        volumes.ask(name, Question::set(wanted))?;
    } else {
        describe(&volumes, name, wanted)?;
    }
    let change = match in_use {
        true if waits => follow(&volumes, name)?,
        true => change_of(&volumes, name)?,
        false => Value::Null,
    };
    let (scheme, mode, delta) = (wanted.scheme(), wanted.mode(), wanted.delta());
    if json {
        let object = serde_json::json!({
            "name": name, "scheme": scheme.to_string(), "mode": mode.to_string(), "delta": delta,
            "in_use": in_use, "change": change,
        });
        println!("{}", serde_json::to_string_pretty(&object)?);
    } else {
        let under_way = describe_change(&change).unwrap_or_default();
        println!("{name}: {scheme} {mode} delta {delta}{under_way}");
    }
    Ok(DONE)
}

/// Notes what the next owner of a volume that nobody has is to bring it to.
fn describe(volumes: &Volumes, name: &str, wanted: Resilience) -> Result<()> {
    let _owner = volumes.own(name)?;
    let cuts = volumes
        .left(name)?
        .map(|left| left.cuts)
        .unwrap_or_default();
    // Its owner ended in the middle of a change.
    if let [one, other] = cuts[..]
        && !cuts.contains(&wanted.scheme().k())
    {
        return Err(Failure::new(
            format!("volume {name} is being restriped between K {one} and {other}"),
            format!(
                "use a scheme with K {one} or {other}, or serve it until the change is complete"
            ),
        )
        .into());
    }
    volumes.set_resilience(name, wanted)
}

/// Waits until nothing of a change is under way; `null`.
fn follow(volumes: &Volumes, name: &str) -> Result<Value> {
    let bar = progress::line();
    let mut time = Left::new();
    let mut total = None;
    loop {
        let change = change_of(volumes, name)
            .context("the change is recorded, and the volume's next owner continues it")?;
        if change.is_null() {
            bar.finish_and_clear();
            return Ok(change);
        }
        let total = total.get_or_insert_with(|| Total::of(&change));
        let change = total.count(change);
        let number = |field: &str| change[field].as_u64().unwrap_or(0);
        let time = time.after(number("bytes_done"), number("bytes"));
        bar.set_message(describe_change(&change).unwrap_or_default() + &time);
        std::thread::sleep(LOOK);
    }
}

/// What a change had to do when it was first looked at. Parts that are written meanwhile are new, and of
/// the new kind: they are no work, and what is done of the rest only grows.
struct Total {
    extents: [u64; 2],
    bytes: [u64; 2],
}

impl Total {
    fn of(change: &Value) -> Self {
        let number = |field: &str| change[field].as_u64().unwrap_or(0);
        Self {
            extents: [number("extents_done"), number("extents")],
            bytes: [number("bytes_done"), number("bytes")],
        }
    }

    /// The same change by this total.
    fn count(&mut self, mut change: Value) -> Value {
        let now = Self::of(&change);
        for (field, ours, now) in [
            ("extents", &mut self.extents, now.extents),
            ("bytes", &mut self.bytes, now.bytes),
        ] {
            let left = now[1].saturating_sub(now[0]);
            ours[0] = ours[0].max(ours[1].saturating_sub(left));
            change[field] = ours[1].into();
            change[format!("{field}_done")] = ours[0].into();
        }
        change
    }
}

fn change_of(volumes: &Volumes, name: &str) -> Result<Value> {
    Ok(volumes.ask(name, Question::Status)?["change"].clone())
}

/// Says how far a change is; `change` is of a volume's status. `None`: there is none.
pub fn describe_change(change: &Value) -> Option<String> {
    let (from, to) = (change["from"].as_str()?, change["to"].as_str()?);
    let (done, all) = (&change["extents_done"], &change["extents"]);
    let bytes = |field: &str| Size(change[field].as_u64().unwrap_or(0)).rounded();
    let far = format!(
        "{done} of {all} extents, {} of {}",
        bytes("bytes_done"),
        bytes("bytes")
    );
    Some(if from == to {
        format!(", changing: {far}")
    } else {
        format!(", changing from {from} to {to}: {far}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(scheme: Option<&str>, mode: Option<Mode>, delta: Option<usize>) -> Wish {
        Wish {
            scheme: scheme.map(str::to_owned),
            expected: Expected { mode, delta },
        }
    }

    #[test]
    fn what_is_not_said_stays_as_it_is() {
        let mut spec = Spec::new(Size(4096), "rs:8+3").unwrap();
        spec.expect(Resilience::new("rs:8+3".parse().unwrap(), Mode::Correction, 1).unwrap());
        let said = |wish: Wish| {
            wish.of(&spec)
                .map(|it| (it.scheme().r(), it.mode(), it.delta()))
        };
        assert_eq!(
            said(wish(Some("rs:8+4"), None, None)).unwrap(),
            (4, Mode::Correction, 1)
        );
        assert_eq!(
            said(wish(None, Some(Mode::EcOnly), Some(0))).unwrap(),
            (3, Mode::EcOnly, 0)
        );
        let refused = said(wish(Some("rs:8+2"), None, None)).unwrap_err();
        assert!(refused.to_string().contains("at least 3"), "{refused:#}");
        assert!(said(wish(None, None, Some(2))).is_err());
        assert!(said(wish(Some("rs:7+2"), None, None)).is_err());
    }

    #[test]
    fn a_delta_that_nobody_chose_goes_with_the_scheme() {
        let mut spec = Spec::new(Size(4096), "rs:8+2").unwrap();
        spec.expect(Expected::default().of("rs:8+2").unwrap());
        let delta = |spec: &Spec, scheme| wish(Some(scheme), None, None).of(spec).unwrap().delta();
        assert_eq!(delta(&spec, "plain"), 0);
        assert_eq!(delta(&spec, "mirror:3"), 0);
        assert_eq!(delta(&spec, "rs:4+2"), 1);
        let chosen = Resilience::new("rs:8+2".parse().unwrap(), Mode::FailureRecovery, 2);
        spec.expect(chosen.unwrap());
        assert_eq!(delta(&spec, "rs:4+2"), 2);
    }

    #[test]
    fn a_mode_that_compares_gets_a_delta() {
        let spec = Spec::new(Size(4096), "rs:8+2").unwrap();
        let detection = wish(None, Some(Mode::Detection), None).of(&spec).unwrap();
        assert_eq!((detection.mode(), detection.delta()), (Mode::Detection, 1));
    }

    #[test]
    fn what_is_written_meanwhile_does_not_make_a_change_longer() {
        let change = |done: u64, all: u64| {
            serde_json::json!({
                "from": "rs:8+2", "to": "rs:8+3", "extents_done": done, "extents": all,
                "bytes_done": done << 20, "bytes": all << 20,
            })
        };
        let mut total = Total::of(&change(2, 10));
        // Six extents come and are of the new kind at once; then four of the old ones are done.
        for (now, done) in [(change(2, 10), 2), (change(8, 16), 2), (change(12, 16), 6)] {
            let shown = total.count(now);
            assert_eq!(
                (&shown["extents"], &shown["extents_done"]),
                (&10.into(), &done.into())
            );
            assert_eq!(shown["bytes"], 10 << 20);
        }
        // Nor does what is done shrink.
        assert_eq!(total.count(change(12, 18))["extents_done"], 6);
        assert_eq!(total.count(change(18, 18))["extents_done"], 10);
    }

    #[test]
    fn a_change_is_told_as_long_as_there_is_one() {
        assert_eq!(describe_change(&Value::Null), None);
        let change = serde_json::json!({
            "from": "rs:8+2", "to": "rs:8+3", "extents_done": 3, "extents": 8,
            "bytes_done": 3_u64 << 30, "bytes": 5_u64 << 30,
        });
        assert_eq!(
            describe_change(&change).unwrap(),
            ", changing from rs:8+2 to rs:8+3: 3 of 8 extents, 3.00 GiB of 5.00 GiB"
        );
    }
}
