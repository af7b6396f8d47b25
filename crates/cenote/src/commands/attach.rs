//! `cenote volume attach`, and what else becomes of a volume's content that nobody serves.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Result;
use cenote_cli::failure::{DONE, Failure, NOT_WHOLE};
use cenote_cli::{progress, signals, stderr};
use cenote_volume::{Health, Left, VolumeStatus};

use crate::place::Which;
use crate::volume_server::{End, Serving};
use crate::volumes::{Owner, Volumes};

/// How often the volume is looked at until it is whole.
const LOOK: Duration = Duration::from_millis(100);

/// Takes a volume over, waits until it is whole or `limit` is over, and leaves it; with `hold`,
/// once a signal comes.
///
/// # Errors
/// As [`Serving::open`]; it holds nothing.
pub fn attach(which: &Which, name: &str, limit: Duration, hold: bool, json: bool) -> Result<u8> {
    let (tell, told) = mpsc::channel::<()>();
    signals::on_stop(move || drop(tell))?;
    let loaded = which.load()?;
    let volumes = Volumes::new(&loaded.dir);
    volumes.load(name)?;
    let Some(left) = volumes.left(name)? else {
        // Of a volume that is served nothing may be written yet.
        drop(volumes.own(name)?);
        return Err(Failure::new(
            format!("volume {name} is empty: there is nothing to take over"),
            format!("cenote nbd --volume {name} serves it"),
        )
        .into());
    };
    let serving = Serving::open_named(&loaded, volumes, name, End::Keep)?;
    let begun = Instant::now();
    let (bar, mut time) = (progress::line(), progress::Left::new());
    let status = loop {
        let status = serving.volume.status()?;
        let whole = status
            .extents
            .iter()
            .filter(|extent| extent.health == Health::Healthy);
        let (whole, all) = (whole.count() as u64, status.extents.len() as u64);
        let time = time.after(whole, all);
        bar.set_message(format!("{whole} of {all} extents whole{time}"));
        let is_stopped = matches!(told.recv_timeout(LOOK), Err(RecvTimeoutError::Disconnected));
        if status.health == Health::Healthy || begun.elapsed() >= limit || is_stopped {
            break status;
        }
    };
    bar.finish_and_clear();
    let is_whole = status.health == Health::Healthy && status.torn_pages == 0;
    print(name, left.slabs, left.owners + 1, &status, is_whole, json)?;
    if hold {
        stderr::say(format_args!(
            "holding volume {name} until SIGTERM or SIGINT"
        ));
        // Nothing is ever sent: this ends when a signal drops the other end.
        assert!(told.recv().is_err(), "the channel carries its end only");
    }
    Ok(if is_whole { DONE } else { NOT_WHOLE })
}

fn print(
    name: &str,
    left: usize,
    owner: u64,
    status: &VolumeStatus,
    is_whole: bool,
    json: bool,
) -> Result<()> {
    let value = serde_json::to_value(status)?;
    if json {
        let object = serde_json::json!({
            "name": name, "owner": owner, "slabs_left": left,
            "whole": is_whole, "status": value,
        });
        println!("{}", serde_json::to_string_pretty(&object)?);
        return Ok(());
    }
    println!(
        "{name}: taken over with {left} slabs; {}",
        super::volume::health(&value)
    );
    if status.torn_pages > 0 {
        println!(
            "{} pages return errors until they are completely overwritten: more hosts were lost \
             than the scheme tolerates, or the file that lists pages with data was damaged",
            status.torn_pages
        );
    }
    Ok(())
}

/// Gives back what hosts hold of a volume that nobody serves, and forgets it; says what that was.
///
/// # Errors
/// Another process owns the volume; its files cannot be changed.
pub fn reset(which: &Which, name: &str) -> Result<String> {
    let volumes = Volumes::new(&which.directory()?);
    let give_back = |owner: &_| give_back(which, &volumes, owner);
    discard(&volumes, name, give_back, Volumes::forget_content)
}

/// As [`reset`]; then there is no such volume.
///
/// # Errors
/// As [`reset`].
pub fn delete(which: &Which, name: &str) -> Result<String> {
    let volumes = Volumes::new(&which.directory()?);
    let give_back = |owner: &_| give_back(which, &volumes, owner);
    discard(&volumes, name, give_back, Volumes::forget)
}

/// Owns the volume until both are done: what somebody else writes to it in between would be lost.
fn discard(
    volumes: &Volumes,
    name: &str,
    give_back: impl FnOnce(&Arc<Owner>) -> String,
    forget: impl FnOnce(&Volumes, &Owner) -> Result<()>,
) -> Result<String> {
    let owner = Arc::new(volumes.own(name)?);
    let given_back = give_back(&owner);
    forget(volumes, &owner)?;
    Ok(given_back)
}

/// Gives back what hosts hold of a volume. Hosts that cannot be told keep it until they are in want
/// of memory, or for a day.
fn give_back(which: &Which, volumes: &Volumes, owner: &Arc<Owner>) -> String {
    let name = owner.name();
    let slabs = |left: Left| {
        let loaded = which.load()?;
        drop(Serving::open_to_give_back(&loaded, volumes.clone(), owner)?);
        let hosts = left.hosts.len();
        anyhow::Ok(format!("{} slabs returned to {hosts} hosts", left.slabs))
    };
    let given_back = match volumes.left(name) {
        Ok(None) => Ok("it was empty".to_owned()),
        Ok(Some(left)) => slabs(left),
        Err(damaged) => Err(damaged),
    };
    given_back.unwrap_or_else(|error| {
        stderr::say(format_args!(
            "warning: {error:#}; hosts keep their slabs of volume {name} for a day or until they \
             need the memory"
        ));
        "some slabs could not be returned".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use cenote_cli::size::Size;

    use super::*;
    use crate::place::ClusterDir;
    use crate::volumes::Spec;

    #[test]
    fn nobody_opens_a_volume_while_its_content_is_discarded() {
        let folder = tempfile::tempdir().unwrap();
        let volumes = Volumes::new(&ClusterDir::open(folder.path()).unwrap());
        let spec = Spec::new(Size(4096), "plain").unwrap();
        volumes.create("v", &spec).unwrap();
        let journal = folder.path().join("volumes/v.journal");
        std::fs::write(&journal, "of a server").unwrap();
        // While somebody serves it nothing of it is touched, and no host is told to give it back.
        let server = volumes.own("v").unwrap();
        let not_asked = |_: &_| -> String { panic!("given back") };
        for forget in [Volumes::forget_content, Volumes::forget] {
            let refused = discard(&volumes, "v", not_asked, forget).unwrap_err();
            assert!(refused.to_string().contains("in use"), "{refused:#}");
        }
        assert_eq!(volumes.load("v").unwrap(), spec);
        assert!(journal.exists());
        drop(server);
        // And nobody begins to, however long hosts take.
        for forget in [Volumes::forget_content, Volumes::forget] {
            let slowly = |_: &_| {
                let refused = volumes.own("v").unwrap_err();
                assert!(refused.to_string().contains("in use"), "{refused:#}");
                String::new()
            };
            // A child that another test has just started has the lock's file until it is another program.
            let discarded = loop {
                match discard(&volumes, "v", slowly, forget) {
                    Err(error) if error.to_string().contains("in use") => std::thread::yield_now(),
                    discarded => break discarded,
                }
            };
            discarded.unwrap();
            assert!(!journal.exists());
        }
        assert!(volumes.load("v").is_err());
    }
}
