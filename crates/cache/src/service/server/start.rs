//! How a manager begins: from its predecessor's journal, under an epoch that nobody had.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cenote_fabric::{Address, ClientId, ClusterKey, Hello, Listener, Time, Waker, connector};

use super::clients::PLACES;
use super::herald::Herald;
use super::leadership::{BeginError, Claim, Leadership};
use super::supply::{Supplier, Supply};
use super::{FOUNDING, Journal, JournalError, Life, Record, Server, Terms};
use crate::links::{Caller, HostConfig, Threads};
use crate::manager::Manager;
use crate::owner::{BadRecord, Owner, Settings};
use crate::service::injected_faults::{InjectedFault, is_injected};
use crate::service::journal::{Identity, Image, KeptHost, Listed, Log, listed};
use crate::service::message::{ENTRY_SLABS_MAX, HOSTS_MAX, is_short};

/// What a manager needs.
pub struct Config {
    /// The cache.
    pub settings: Settings,
    /// How many regions one has that had no manager yet.
    pub regions: u32,
    /// When that one ends.
    pub duration: Option<Duration>,
    /// What clients are told.
    pub terms: Terms,
    /// The hosts of the cluster; none where machines are got.
    pub hosts: Vec<HostConfig>,
    /// Where hosts come from that are not there yet.
    pub supply: Supply,
    /// The cluster's key.
    pub key: ClusterKey,
    /// Where clients reach it.
    pub addresses: Vec<Address>,
    /// What is left to the next manager, and was by the last one.
    pub journal: Box<dyn Log>,
    /// Where the cache's checkpoint is, or will be; lost regions come back from it. None: there is none.
    pub checkpoint: Option<std::path::PathBuf>,
    /// Who keeps other managers of the cache out.
    pub claim: Claim,
    /// Seconds of Unix time.
    pub clock: fn() -> u64,
}

/// Why a manager does not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The journal cannot be read, or makes no sense.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// What it says cannot be.
    #[error(transparent)]
    Record(#[from] BadRecord),
    /// It is another cache's, or one of another shape.
    #[error("the journal is of another cache")]
    OtherCache,
    /// A host cannot be named to clients, or there are too many, or a region has too many slabs.
    #[error("{0}")]
    Config(String),
    /// Another manager has it.
    #[error("{0}")]
    Claim(String),
    /// Hosts know a later manager of the cache: the journal is an earlier one. It is as it was, and
    /// so are the hosts.
    #[error("hosts know a later manager of this cache: the journal here is an earlier one")]
    Superseded,
    /// It was to stop while it waited.
    #[error("stopped before it began")]
    Stopped,
    /// No address can be listened on, or the system refuses.
    #[error(transparent)]
    Fabric(#[from] cenote_fabric::Error),
}

impl Server {
    /// Takes the cache over, or begins it. The caller keeps others out. Once `stop` is set it waits no
    /// more for those who agree on its epoch.
    ///
    /// # Errors
    /// [`StartError`]; no host has heard of it then.
    pub fn start(mut config: Config, stop: &AtomicBool) -> Result<Self, StartError> {
        let settings = config.settings;
        let identity = Identity {
            cache: settings.cache,
            slab_bytes: settings.slab_bytes,
            slabs_per_region: settings.slabs_per_region,
            copies: u8::try_from(settings.copies).expect("one or two"),
        };
        let (image, _) = config.left(identity)?;
        let waker = Waker::new()?;
        let no_thread =
            |error| StartError::from(cenote_fabric::Error::os("start a thread".to_owned(), error));
        let claim = std::mem::replace(&mut config.claim, Claim::Lock);
        let begun = Leadership::begin(claim, image.epoch, waker.clone(), stop);
        let not_begun = |error| match error {
            BeginError::Refused(why) => StartError::Claim(why),
            BeginError::Stopped => StartError::Stopped,
            BeginError::System(error) => no_thread(error),
        };
        let (claimed, leadership) = begun.map_err(not_begun)?;
        // Once more: until now the manager before may have written, elsewhere.
        let (mut image, hosts) = config.left(identity)?;
        let before = image.epoch;
        if !is_injected(InjectedFault::EpochKept) {
            image.epoch = claimed;
        }
        let listed = |number: usize| match &config.supply {
            Supply::Cluster(_) => listed(&hosts[number], &config.hosts),
            Supply::Market(_) if image.has_machine(number) => Listed::There,
            // It was emptied before its machine was given back.
            Supply::Market(_) => Listed::Displaced,
        };
        let all_listed: Vec<Listed> = (0..hosts.len()).map(listed).collect();
        image.hosts = hosts.iter().map(kept).collect();
        let (epoch, record) = (image.epoch, image.record());
        // Bound first: who cannot be reached by clients does not begin.
        let mut listener = Listener::bind(&config.addresses, &config.key)?;
        listener.set_places(PLACES);
        let left = image.clone();
        let journal = Journal::begin(config.journal, image).map_err(JournalError::from)?;
        leadership.confirm(stop).map_err(not_begun)?;

        let now = Time::now();
        let caller = Caller {
            connector: Arc::new(connector(config.key)),
            hello: Hello {
                client: ClientId(random()?),
                name: "cache manager".to_owned(),
            },
            with_data: false,
        };
        let for_data = caller.clone();
        let dial = Box::new(Threads::new(caller).waking(waker.clone()));
        let is_new = record.entries.is_empty();
        let (mut manager, life) = if is_new {
            let mut owner = Owner::new(settings, 0, &Manager::domains(&hosts), now);
            owner.handle_life_renewed(now, record.duration);
            for host in 0..hosts.len() {
                // Nobody knows yet whether it is there.
                owner.handle_host_silent(now, host);
            }
            let regions = config.regions;
            // Machines that are to be got are waited for by their regions.
            let is_there = matches!(config.supply, Supply::Cluster(_));
            let until = if is_there { now.after(FOUNDING) } else { now };
            let manager = Manager::new(owner, settings, epoch, hosts, dial);
            (manager, Life::Founding { regions, until })
        } else {
            let manager = Manager::recover(record, settings, epoch, hosts, dial, now)?;
            (manager, Life::Serving)
        };
        let herald = Herald::new(settings, waker.clone());
        let threads = config.terms.configuration.s;
        let to_wake = waker.clone();
        let proof = leadership.proof();
        let supplier = Supplier::begin(config.supply, &left, threads, epoch, now, to_wake, proof);
        let supplier = supplier.map_err(no_thread)?;
        for (host, listed) in all_listed.into_iter().enumerate() {
            match listed {
                Listed::There => {}
                Listed::NoMore => manager.keep_out(host),
                Listed::Displaced => manager.put_aside(host),
            }
        }
        let mut server = Self {
            supplier: Some(supplier),
            leadership,
            manager,
            settings,
            terms: config.terms,
            epoch,
            before,
            listener,
            waker,
            journal,
            record: Record::Kept,
            connected: BTreeMap::new(),
            joined: BTreeMap::new(),
            clients_made: 0,
            clock: config.clock,
            life,
            checkpoint_path: config.checkpoint,
            checkpoint: None,
            herald,
        };
        server.begin_with_checkpoint(for_data)?;
        Ok(server)
    }
}

impl Config {
    /// What the manager before left, or the beginning of a new cache; and its hosts.
    fn left(&mut self, identity: Identity) -> Result<(Image, Vec<HostConfig>), StartError> {
        let image = match Journal::load(&mut *self.journal)? {
            Some(found) if found.identity != identity => return Err(StartError::OtherCache),
            Some(found) => found,
            None => Image {
                duration: self.duration,
                ..Image::fresh(identity)
            },
        };
        let hosts = image.hosts_in(&self.hosts);
        check(&self.settings, &hosts)?;
        Ok((image, hosts))
    }
}

fn check(settings: &Settings, hosts: &[HostConfig]) -> Result<(), StartError> {
    let wrong = |what: String| Err(StartError::Config(what));
    let slabs = settings.slabs_per_region as usize * settings.copies;
    if slabs > ENTRY_SLABS_MAX {
        return wrong(format!(
            "a region has {slabs} slabs in all its copies, and {ENTRY_SLABS_MAX} at most"
        ));
    }
    if hosts.len() > HOSTS_MAX {
        return wrong(format!("{} hosts; {HOSTS_MAX} at most", hosts.len()));
    }
    for host in hosts {
        let kept = kept(host);
        if ![&kept.name, &kept.address, &kept.domain]
            .into_iter()
            .all(|text| is_short(text))
        {
            return wrong(format!(
                "host {}: name, address or domain are too long",
                host.name
            ));
        }
    }
    Ok(())
}

pub(super) fn kept(host: &HostConfig) -> KeptHost {
    KeptHost {
        name: host.name.clone(),
        address: host.address.to_string(),
        domain: host.domain.clone(),
    }
}

/// An identity that nobody else has drawn.
fn random() -> Result<u128, StartError> {
    let mut bytes = [0; 16];
    let failed = |error| StartError::Config(format!("read random bytes: {error}"));
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(u128::from_le_bytes(bytes))
}
