//! The journal's bytes: batches of records, each batch whole or not at all.

use std::time::Duration;

use cenote_durable::journal::{self, JournalError};
use cenote_fabric::Address;
use cenote_wire::{Layout, List, Malformed, Reader, Taken, Text, Writer, messages};

use super::image::{Identity, Image, KeptHost, KeptRegion};
use crate::fleet::{KeptMachine, Order, Stage};
use crate::owner::{Access, REGION_BYTES_MAX, REGIONS_MAX};
use crate::service::injected_faults::{InjectedFault, is_injected};
use crate::service::message::HOSTS_MAX;

/// First eight bytes of a journal; the last one counts formats.
pub(super) const MAGIC: &[u8; 8] = b"cenoteC1";
/// In place of the number of a host that there is not.
const NO_HOST: u16 = u16::MAX;

messages! {
    /// One entry.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub(super) enum Record | "a record of no known kind" {
        /// First in every journal, and only there.
        1 => Begin {
            identity: Identity,
            epoch: u64,
        },
        2 => Host {
            number: u16,
            host: KeptHost,
        },
        3 => Region {
            number: u32,
            region: KeptRegion,
        },
        4 => Duration(Option<Duration> as Millis),
        /// Whether the host is to go.
        5 => Leaving {
            number: u16,
            is_leaving: bool,
        },
        6 => Machine(KeptMachine),
        /// The machine of this order is gone for good.
        7 => NoMachine(Order),
        /// What a checkpoint took of a region until then is of bytes that were cut off.
        8 => Outdated {
            region: u32,
            until_ms: u64,
        },
    }

    for Identity {
        cache,
        slab_bytes,
        slabs_per_region,
        copies,
    }

    for KeptHost {
        name as Text<u8, 255>,
        address as Text<u8, 255>,
        domain as Text<u8, 255>,
    }

    for KeptRegion {
        generation,
        access,
        losses,
        fell_back_ms,
        hosts as List<u8, 0, 2>,
    }

    for KeptMachine {
        order,
        stage,
        is_spot,
        price_micros,
        memory_bytes,
        host as HostOrNone,
        machine_type as Text<u8, 255>,
        provider as Text<u8, 255>,
        id as Text<u8, 255>,
        address as Text<u8, 255>,
        domain as Text<u8, 255>,
    }

    for Order {
        epoch,
        number,
    }
}

/// Whether there is one, then milliseconds all the same.
struct Millis;

impl Layout<'_, Option<Duration>> for Millis {
    fn put(duration: &Option<Duration>, out: &mut Writer<'_>) {
        let ms = duration.map_or(0, |duration| duration.as_millis());
        out.put(&duration.is_some());
        out.put(&u64::try_from(ms).unwrap_or(u64::MAX));
    }

    fn take(input: &mut Reader<'_>) -> Taken<Option<Duration>> {
        let (is_some, ms) = input.take::<(bool, u64)>()?;
        Ok(is_some.then(|| Duration::from_millis(ms)))
    }
}

/// The number of a host, or [`NO_HOST`].
struct HostOrNone;

impl Layout<'_, Option<u16>> for HostOrNone {
    fn put(host: &Option<u16>, out: &mut Writer<'_>) {
        out.put(&host.unwrap_or(NO_HOST));
    }

    fn take(input: &mut Reader<'_>) -> Taken<Option<u16>> {
        Ok(Some(input.take()?).filter(|&host| host != NO_HOST))
    }
}

impl Record {
    /// Whether it makes sense wherever it stands.
    fn is_sound(&self) -> bool {
        match self {
            Self::Begin { identity, .. } => {
                let slabs = u64::from(identity.slabs_per_region);
                let region = identity.slab_bytes.checked_mul(slabs);
                region.is_some_and(|region| (1..=REGION_BYTES_MAX).contains(&region))
                    && (1..=2).contains(&identity.copies)
            }
            Self::Host { host, .. } => host.address.parse::<Address>().is_ok(),
            Self::Machine(machine) => {
                let is_named = machine.machine(0).is_some();
                match machine.stage {
                    Stage::Ordered => machine.id.is_empty(),
                    Stage::Used => is_named && machine.host.is_some(),
                    Stage::Releasing => machine.id.is_empty() || is_named,
                }
            }
            _ => true,
        }
    }

    /// Whether it makes sense where it stands.
    fn apply(self, image: &mut Image) -> Result<(), &'static str> {
        match self {
            Self::Begin { .. } => return Err("begins twice"),
            Self::Host { number, host } => {
                put(&mut image.hosts, number.into(), host, HOSTS_MAX)
                    .ok_or("a host whose number is not the next")?;
            }
            Self::Region { number, region } => {
                let is_twice = matches!(region.hosts[..], [one, other] if one == other);
                let is_known = |&host: &u16| usize::from(host) < image.hosts.len();
                if is_twice || !region.hosts.iter().all(is_known) {
                    return Err("a region on a host that is not there, or twice on one");
                }
                if region.access == Access::Open && region.hosts.is_empty() {
                    return Err("a region that is nowhere and written to");
                }
                put(
                    &mut image.regions,
                    number as usize,
                    region,
                    REGIONS_MAX as usize,
                )
                .ok_or("a region whose number is not the next")?;
            }
            Self::Duration(duration) => image.duration = duration,
            Self::Machine(machine) => {
                let is_known = |&host: &u16| usize::from(host) < image.hosts.len();
                if !machine.host.as_ref().is_none_or(is_known) {
                    return Err("a machine whose host is not there");
                }
                match image.find_machine(machine.order) {
                    Ok(at) => image.machines[at] = machine,
                    Err(at) if image.machines.len() < HOSTS_MAX => {
                        image.machines.insert(at, machine);
                    }
                    Err(_) => return Err("too many machines"),
                }
            }
            Self::NoMachine(order) => match image.find_machine(order) {
                Ok(at) => drop(image.machines.remove(at)),
                Err(_) => return Err("a machine that is not there and goes"),
            },
            Self::Leaving { number, is_leaving } => {
                if usize::from(number) >= image.hosts.len() {
                    return Err("a host that is not there and leaves");
                }
                image.leaving.retain(|other| *other != number);
                if is_leaving {
                    let at = image.leaving.partition_point(|other| *other < number);
                    image.leaving.insert(at, number);
                }
            }
            Self::Outdated { region, until_ms } => {
                if region as usize >= image.regions.len() {
                    return Err("a region that is not there and was cut off");
                }
                image.outdated.insert(region, until_ms);
            }
        }
        Ok(())
    }
}

/// Puts something where something was, or at the end.
fn put<T>(list: &mut Vec<T>, at: usize, one: T, max: usize) -> Option<()> {
    if let Some(there) = list.get_mut(at) {
        *there = one;
        return Some(());
    }
    (at == list.len() && at < max).then(|| list.push(one))
}

/// The bytes of a batch.
pub(super) fn batch(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut out = Writer::new(&mut bytes);
    records.iter().for_each(|record| out.put(record));
    journal::batch(&bytes)
}

/// The bytes of a journal that says `image` and has no history.
pub(super) fn whole(image: &Image) -> Vec<u8> {
    let hosts = (0..).zip(&image.hosts);
    let hosts = hosts.map(|(number, host)| Record::Host {
        number,
        host: host.clone(),
    });
    let regions = (0..).zip(&image.regions);
    let regions = regions.map(|(number, region)| Record::Region {
        number,
        region: region.clone(),
    });
    let leaving = image.leaving.iter();
    let leaving = leaving.map(|&number| Record::Leaving {
        number,
        is_leaving: true,
    });
    let outdated = image.outdated.iter();
    let outdated = outdated.map(|(&region, &until_ms)| Record::Outdated { region, until_ms });
    let records: Vec<Record> = std::iter::once(Record::Begin {
        identity: image.identity,
        epoch: image.epoch,
    })
    .chain(hosts)
    .chain(regions)
    .chain(leaving)
    .chain(image.machines.iter().cloned().map(Record::Machine))
    .chain(outdated)
    .chain([Record::Duration(image.duration)])
    .collect();
    let mut bytes = MAGIC.to_vec();
    bytes.extend(batch(&records));
    bytes
}

/// About as long as [`whole`].
pub(super) fn size(image: &Image) -> u64 {
    let (hosts, machines) = (image.hosts.len() * 64, image.machines.len() * 160);
    let (regions, outdated) = (image.regions.len() * 24, image.outdated.len() * 13);
    (hosts + machines + regions + outdated + 64) as u64
}

/// What a journal says; `None` when there are no bytes.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<Image>, JournalError> {
    let mut image: Option<Image> = None;
    let mut apply = |records: &[u8]| {
        let mut input = Reader::new(records);
        while input.left() > 0 {
            let record: Record = input.take().map_err(|Malformed(what)| what)?;
            if !record.is_sound() {
                return Err("a record that makes no sense");
            }
            match (&mut image, record) {
                (None, Record::Begin { identity, epoch }) => {
                    let fresh = Image::fresh(identity);
                    image = Some(Image { epoch, ..fresh });
                }
                (None, _) => return Err("it does not begin"),
                (Some(image), record) => record.apply(image)?,
            }
        }
        Ok(())
    };
    let end = journal::batches(bytes, MAGIC, &mut apply)?;
    if is_injected(InjectedFault::TornAccepted)
        && let Some(torn) = bytes.get(end + journal::FRAME_BYTES..)
    {
        apply(torn).map_err(|what| JournalError::Damaged { at: end, what })?;
    }
    Ok(image)
}

/// The epoch of the manager that wrote a journal, whatever else is in it: a later version's may have
/// records that are not known here. `None` where it was cut off before.
///
/// # Errors
/// It is of another kind, or does not begin as a journal does.
pub(super) fn epoch(bytes: &[u8]) -> Result<Option<u64>, JournalError> {
    let mut begun = None;
    let batches = journal::batches(bytes, MAGIC, |records| {
        begun.get_or_insert_with(|| Reader::new(records).take());
        Ok(())
    });
    let is_cut_off = bytes.starts_with(MAGIC) || MAGIC.starts_with(bytes);
    match (begun, batches) {
        // What follows may be damaged.
        (Some(Ok(Record::Begin { epoch, .. })), _) => Ok(Some(epoch)),
        (Some(_), _) => Err(JournalError::Damaged {
            at: MAGIC.len(),
            what: "it does not begin",
        }),
        (None, Err(error)) if !is_cut_off => Err(error),
        (None, _) => Ok(None),
    }
}
