//! `cenote volume scrub`: a pass over every page of a volume, by its owner.

use std::time::Duration;

use anyhow::{Context, Result};
use cenote_cli::failure::{DONE, NOT_WHOLE};
use cenote_cli::progress::{self, Left};
use serde_json::Value;

use crate::place::Which;
use crate::volume_server::{End, Serving};
use crate::volumes::{Question, Volumes};

/// How often the owner is asked how far it is.
const LOOK: Duration = Duration::from_millis(50);

/// Has a volume's owner look at every page, or does so as its owner, and says what was found.
///
/// # Errors
/// There is no such volume; its owner does not answer; it cannot be opened.
pub fn scrub(which: &Which, name: &str, json: bool) -> Result<u8> {
    let volumes = Volumes::new(&which.directory()?);
    volumes.load(name)?;
    let report = if volumes.is_owned(name)? {
        let passes = status_of(&volumes, name)?["passes"].clone();
        volumes.ask(name, Question::Scrub)?;
        follow(&passes, || status_of(&volumes, name))?
    } else {
        let serving = Serving::open_named(&which.load()?, volumes, name, End::Keep)?;
        let status = || Ok(serde_json::to_value(serving.volume.status()?.scrub)?);
        let passes = status()?["passes"].clone();
        serving.volume.begin_scrub()?;
        follow(&passes, status)?
    };
    let number = |field: &str| report[field].as_u64().unwrap_or(0);
    let is_whole = number("corrupt_pages") + number("unreadable_pages") == 0
        && number("healed_splits") == number("wrong_splits");
    if json {
        let object = serde_json::json!({ "name": name, "whole": is_whole, "report": report });
        println!("{}", serde_json::to_string_pretty(&object)?);
    } else {
        println!(
            "{name}: {} pages in {} ms, {} wrong splits, {} repaired, {} pages corrupt, {} \
             unreadable",
            number("pages"),
            number("took_ms"),
            number("wrong_splits"),
            number("healed_splits"),
            number("corrupt_pages"),
            number("unreadable_pages"),
        );
    }
    Ok(if is_whole { DONE } else { NOT_WHOLE })
}

fn status_of(volumes: &Volumes, name: &str) -> Result<Value> {
    Ok(volumes.ask(name, Question::Status)?["scrub"].clone())
}

/// Waits for the end of a pass that began after `passes` others; what it found.
fn follow(passes: &Value, status: impl Fn() -> Result<Value>) -> Result<Value> {
    let bar = progress::line();
    let mut time = Left::new();
    loop {
        let now = status()?;
        if now["is_running"] == false && now["passes"] != *passes {
            bar.finish_and_clear();
            return Ok(now
                .get("last")
                .context("a pass that ended has a report")?
                .clone());
        }
        let number = |field: &str| now[field].as_u64().unwrap_or(0);
        let (done, total) = (number("pages_done"), number("pages_total"));
        let time = time.after(done, total);
        bar.set_message(format!("{done} of {total} pages{time}"));
        std::thread::sleep(LOOK);
    }
}
