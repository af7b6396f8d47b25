//! Questions: how the cache is, and what is to become of it.

use std::time::Duration;

use cenote_fabric::{Address, PeerId, Time};

use super::supply::Supplier;
use super::{Life, Record, Server};
use crate::configuration::Space;
use crate::fleet::{Fleet, Shown};
use crate::market::Price;
use crate::owner::{Access, Entry, Owner, REGIONS_MAX, Stage};
use crate::service::question::{
    Answer, Host, Loss, Machine, Move, Question, Regions, Status, Trouble,
};

impl Server {
    pub(super) fn ask(&mut self, now: Time, peer: PeerId, number: u32, question: &[u8]) {
        let answer = match serde_json::from_slice(question) {
            Ok(question) => self.answer(now, question).unwrap_or_else(Answer::Error),
            Err(error) => Answer::Error(format!("not a question: {error}")),
        };
        let text = serde_json::to_vec(&answer).expect("plain data");
        let Some(connected) = self.connected.get_mut(&peer) else {
            return;
        };
        if !connected.outbox.answer(number, text) {
            tracing::warn!("cut off: a client asks and reads no answers");
            self.cut_off(peer);
        }
    }

    fn answer(&mut self, now: Time, question: Question) -> Result<Answer, String> {
        if self.is_ending() && !matches!(question, Question::Status | Question::Delete) {
            return Err("the cache is being deleted".to_owned());
        }
        if question != Question::Status
            && let Some(why) = self.leadership.trouble(now)
        {
            return Err(format!("the manager {why}"));
        }
        match question {
            Question::Status => return Ok(Answer::Status(Box::new(self.status(now)))),
            Question::Resize { regions } => {
                if !(1..=REGIONS_MAX).contains(&regions) {
                    return Err(format!("a cache has 1 to {REGIONS_MAX} regions"));
                }
                match &mut self.life {
                    Life::Founding {
                        regions: wanted, ..
                    } => *wanted = regions,
                    _ => return self.change(now, |owner| owner.handle_resize(now, regions)),
                }
            }
            Question::Configure(parameters) => {
                let configuration = parameters.into();
                let space = Space::new(1024, 1024, 4096, 1024).expect("limits in their range");
                if !space.contains(configuration) {
                    return Err(format!("{configuration} is no configuration"));
                }
                self.terms.configuration = configuration;
            }
            Question::Renew { seconds } => {
                if seconds == Some(0) {
                    return Err("for at least one second".to_owned());
                }
                let duration = seconds.map(Duration::from_secs);
                return self.change(now, |owner| owner.handle_life_renewed(now, duration));
            }
            Question::Notice { host, seconds } => {
                let host = self.host(&host)?;
                let deadline = seconds.map(|seconds| now.after(Duration::from_secs(seconds)));
                return self.change(now, |owner| owner.handle_notice(now, host, deadline));
            }
            Question::Withdraw { host } => {
                let host = self.host(&host)?;
                return self.change(now, |owner| owner.handle_notice_withdrawn(now, host));
            }
            Question::Checkpoint => self.begin_checkpoint()?,
            Question::Delete => {
                let none = Some(Duration::ZERO);
                return self.change(now, |owner| owner.handle_life_renewed(now, none));
            }
        }
        Ok(Answer::Done)
    }

    /// Changes what the owner has decided, and brings it to the disk: nobody is told before that it
    /// is done. While the disk lacks an earlier change it changes nothing.
    fn change(&mut self, now: Time, change: impl FnOnce(&mut Owner)) -> Result<Answer, String> {
        self.pass_on(now);
        if let Some(why) = self.why_behind(now) {
            return Err(format!("nothing is changed: {why}"));
        }
        change(&mut self.manager.owner);
        self.manager.flush(now);
        self.pass_on(now);
        match self.why_behind(now) {
            None => Ok(Answer::Done),
            // Its journal takes nothing more.
            Some(why) if self.manager.owner.is_superseded() => Err(why),
            Some(why) => Ok(Answer::Pending(format!(
                "not on the disk yet, and done as soon as it is: {why}"
            ))),
        }
    }

    /// Why the disk lacks what was decided, where it does.
    fn why_behind(&self, now: Time) -> Option<String> {
        match &self.record {
            Record::Kept => None,
            Record::Refused { error, .. } => {
                Some(format!("the journal cannot be written: {error}"))
            }
            Record::Unproven => {
                let why = self.leadership.trouble(now);
                let why =
                    why.unwrap_or_else(|| "has to prove again that it is in charge".to_owned());
                Some(format!("the manager {why}"))
            }
        }
    }

    fn host(&self, name: &str) -> Result<usize, String> {
        let found = self.manager.hosts().position(|(host, _)| host.name == name);
        found.ok_or_else(|| format!("there is no host {name}"))
    }

    /// What is wrong, for people.
    fn troubles(&self, now: Time) -> Vec<Trouble> {
        let with = "leadership".to_owned();
        let leadership = self.leadership.trouble(now);
        let leadership = leadership.map(|what| Trouble { with, what });
        let supplier = self.supplier.iter().flat_map(Supplier::troubles);
        leadership.into_iter().chain(supplier).collect()
    }

    fn status(&self, now: Time) -> Status {
        let owner = &self.manager.owner;
        let names: Vec<&str> = self.manager.hosts().map(|(host, _)| &*host.name).collect();
        let mut hosts: Vec<Host> = self
            .manager
            .hosts()
            .map(|(host, is_up)| Host {
                name: host.name.clone(),
                address: host.address.to_string(),
                domain: host.domain.clone(),
                up: is_up,
                regions: 0,
            })
            .collect();
        let mut regions = Regions::default();
        let (mut moves, mut losses) = (Vec::new(), Vec::new());
        let entries = owner.entries();
        for (entry, index) in entries.iter().zip(0..) {
            for copy in &entry.copies {
                hosts[copy.host].regions += 1;
            }
            count(&mut regions, entry);
            let stage = owner.stage(index);
            if stage != Stage::Open {
                let from = entry.copies.iter().map(|copy| names[copy.host].to_owned());
                moves.push(Move {
                    region: entry.region,
                    stage: stage_name(stage).to_owned(),
                    from: from.collect(),
                });
            }
            if entry.losses > 0 && entry.access != Access::Cut {
                let (region, losses_now) = (entry.region, entry.losses);
                losses.push(Loss {
                    region,
                    losses: losses_now,
                    fell_back_to_ms: (entry.fell_back_ms != 0).then_some(entry.fell_back_ms),
                });
            }
        }
        let region_bytes = self.settings.region_bytes();
        let fleet = self.supplier.as_ref().and_then(Supplier::fleet);
        Status {
            machines: fleet.map_or_else(Vec::new, machines),
            price_per_hour: fleet.map(|fleet| fleet.price().per_hour()),
            troubles: self.troubles(now),
            id: format!("{:032x}", self.settings.cache),
            addresses: self.addresses().iter().map(Address::to_string).collect(),
            epoch: self.epoch,
            size_bytes: regions.total as u64 * region_bytes,
            region_bytes,
            slab_bytes: self.settings.slab_bytes,
            copies: self.settings.copies,
            configuration: Some(self.terms.configuration.into()),
            whole: owner.is_settled()
                && regions.open == regions.total
                && self.life == Life::Serving
                && self.is_kept(),
            ending: self.is_ending(),
            ends_at: owner.ends_at().map(|at| {
                let left = at.since(now).as_secs();
                (self.clock)().saturating_add(left)
            }),
            clients: self.joined.len(),
            regions,
            moves,
            losses,
            hosts,
            checkpoint: self.checkpoint.clone(),
            journal_error: match &self.record {
                Record::Kept | Record::Unproven => None,
                Record::Refused { error, .. } => Some(error.clone()),
            },
        }
    }
}

fn machines(fleet: &Fleet) -> Vec<Machine> {
    let machine = |one: Shown<'_>| Machine {
        order: one.kept.order.to_string(),
        id: (!one.kept.id.is_empty()).then(|| one.kept.id.clone()),
        machine: one.kept.machine_type.clone(),
        provider: one.kept.provider.clone(),
        spot: one.kept.is_spot,
        price_per_hour: Price::from_micros(one.kept.price_micros).per_hour(),
        state: one.state.to_owned(),
    };
    fleet.shown().map(machine).collect()
}

fn count(regions: &mut Regions, entry: &Entry) {
    let of = match entry.access {
        Access::Open => &mut regions.open,
        Access::Frozen => &mut regions.frozen,
        Access::Absent => &mut regions.absent,
        Access::Cut => return,
    };
    *of += 1;
    regions.total += 1;
}

fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Open => "open",
        Stage::Placing => "placing",
        Stage::Ready => "ready",
        Stage::Draining => "draining",
        Stage::Fencing => "fencing",
        Stage::Filling => "filling",
        Stage::Switching => "switching",
        Stage::Held => "held",
        Stage::Restoring => "restoring",
    }
}
