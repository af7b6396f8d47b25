//! The journal's bytes: batches of records, each batch whole or not at all.

use bytes::Buf;

use std::time::Duration;

use cenote_durable::journal::{self, JournalError};

use super::image::{Identity, Image, KeptHost, KeptRegion};
use crate::fleet::{KeptMachine, Order, Stage};
use crate::owner::{Access, REGION_BYTES_MAX, REGIONS_MAX};
use crate::service::injected_faults::{InjectedFault, is_injected};
use crate::service::message::{HOSTS_MAX, access_of};

/// First eight bytes of a journal; the last one counts formats.
pub(super) const MAGIC: &[u8; 8] = b"cenoteC1";
/// In place of the number of a host that there is not.
const NO_HOST: u16 = u16::MAX;

/// One entry.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Record {
    /// First in every journal, and only there.
    Begin(Identity, u64),
    Host(u16, KeptHost),
    Region(u32, KeptRegion),
    Duration(Option<Duration>),
    /// Whether the host is to go.
    Leaving(u16, bool),
    Machine(KeptMachine),
    /// The machine of this order is gone for good.
    NoMachine(Order),
    /// What a checkpoint took of a region until then is of bytes that were cut off.
    Outdated(u32, u64),
}

impl Record {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Begin(identity, epoch) => {
                out.push(1);
                out.extend(identity.cache.to_le_bytes());
                out.extend(identity.slab_bytes.to_le_bytes());
                out.extend(identity.slabs_per_region.to_le_bytes());
                out.push(identity.copies);
                out.extend(epoch.to_le_bytes());
            }
            Self::Host(number, host) => {
                out.push(2);
                out.extend(number.to_le_bytes());
                for text in [&host.name, &host.address, &host.domain] {
                    put_text(out, text);
                }
            }
            Self::Region(number, region) => {
                out.push(3);
                out.extend(number.to_le_bytes());
                out.extend(region.generation.to_le_bytes());
                out.push(region.access as u8);
                out.extend(region.losses.to_le_bytes());
                out.extend(region.fell_back_ms.to_le_bytes());
                out.push(u8::try_from(region.hosts.len()).expect("two at most"));
                for host in &region.hosts {
                    out.extend(host.to_le_bytes());
                }
            }
            Self::Duration(duration) => {
                let ms = duration.map_or(0, |duration| duration.as_millis());
                out.extend([4, u8::from(duration.is_some())]);
                out.extend(u64::try_from(ms).unwrap_or(u64::MAX).to_le_bytes());
            }
            Self::Leaving(number, is_leaving) => {
                out.push(5);
                out.extend(number.to_le_bytes());
                out.push(u8::from(*is_leaving));
            }
            Self::Machine(machine) => {
                out.push(6);
                out.extend(machine.order.epoch.to_le_bytes());
                out.extend(machine.order.number.to_le_bytes());
                out.push(machine.stage as u8);
                out.push(u8::from(machine.is_spot));
                out.extend(machine.price_micros.to_le_bytes());
                out.extend(machine.memory_bytes.to_le_bytes());
                out.extend(machine.host.unwrap_or(NO_HOST).to_le_bytes());
                for text in [
                    &machine.machine_type,
                    &machine.provider,
                    &machine.id,
                    &machine.address,
                    &machine.domain,
                ] {
                    put_text(out, text);
                }
            }
            Self::NoMachine(order) => {
                out.push(7);
                out.extend(order.epoch.to_le_bytes());
                out.extend(order.number.to_le_bytes());
            }
            Self::Outdated(region, until_ms) => {
                out.push(8);
                out.extend(region.to_le_bytes());
                out.extend(until_ms.to_le_bytes());
            }
        }
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        Some(match bytes.try_get_u8().ok()? {
            1 => {
                let identity = Identity {
                    cache: bytes.try_get_u128_le().ok()?,
                    slab_bytes: bytes.try_get_u64_le().ok()?,
                    slabs_per_region: bytes.try_get_u32_le().ok()?,
                    copies: bytes.try_get_u8().ok()?,
                };
                let slabs = u64::from(identity.slabs_per_region);
                let region = identity.slab_bytes.checked_mul(slabs)?;
                let is_sound =
                    (1..=REGION_BYTES_MAX).contains(&region) && (1..=2).contains(&identity.copies);
                if !is_sound {
                    return None;
                }
                Self::Begin(identity, bytes.try_get_u64_le().ok()?)
            }
            2 => {
                let number = bytes.try_get_u16_le().ok()?;
                let host = KeptHost {
                    name: take_text(bytes)?,
                    address: take_text(bytes)?,
                    domain: take_text(bytes)?,
                };
                host.address.parse::<cenote_fabric::Address>().ok()?;
                Self::Host(number, host)
            }
            3 => {
                let number = bytes.try_get_u32_le().ok()?;
                let generation = bytes.try_get_u64_le().ok()?;
                let access = access_of(bytes.try_get_u8().ok()?)?;
                let losses = bytes.try_get_u32_le().ok()?;
                let fell_back_ms = bytes.try_get_u64_le().ok()?;
                let count = bytes.try_get_u8().ok()?;
                if count > 2 {
                    return None;
                }
                let host = |_| bytes.try_get_u16_le().ok();
                let hosts = (0..count).map(host).collect::<Option<_>>()?;
                let region = KeptRegion {
                    generation,
                    access,
                    losses,
                    fell_back_ms,
                    hosts,
                };
                Self::Region(number, region)
            }
            4 => {
                let kind = bytes.try_get_u8().ok()?;
                let ms = bytes.try_get_u64_le().ok()?;
                Self::Duration(match kind {
                    0 => None,
                    1 => Some(Duration::from_millis(ms)),
                    _ => return None,
                })
            }
            5 => {
                let number = bytes.try_get_u16_le().ok()?;
                match bytes.try_get_u8().ok()? {
                    0 => Self::Leaving(number, false),
                    1 => Self::Leaving(number, true),
                    _ => return None,
                }
            }
            6 => Self::Machine(take_machine(bytes)?),
            7 => Self::NoMachine(take_order(bytes)?),
            8 => Self::Outdated(bytes.try_get_u32_le().ok()?, bytes.try_get_u64_le().ok()?),
            _ => return None,
        })
    }

    /// Whether it makes sense where it stands.
    fn apply(self, image: &mut Image) -> Result<(), &'static str> {
        match self {
            Self::Begin(..) => return Err("begins twice"),
            Self::Host(number, host) => {
                put(&mut image.hosts, number.into(), host, HOSTS_MAX)
                    .ok_or("a host whose number is not the next")?;
            }
            Self::Region(number, region) => {
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
            Self::Leaving(number, is_leaving) => {
                if usize::from(number) >= image.hosts.len() {
                    return Err("a host that is not there and leaves");
                }
                image.leaving.retain(|other| *other != number);
                if is_leaving {
                    let at = image.leaving.partition_point(|other| *other < number);
                    image.leaving.insert(at, number);
                }
            }
            Self::Outdated(region, until_ms) => {
                if region as usize >= image.regions.len() {
                    return Err("a region that is not there and was cut off");
                }
                image.outdated.insert(region, until_ms);
            }
        }
        Ok(())
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let len = u8::try_from(text.len()).expect("checked when it came");
    out.push(len);
    out.extend(text.as_bytes());
}

fn take_text(bytes: &mut &[u8]) -> Option<String> {
    let len = usize::from(bytes.try_get_u8().ok()?);
    let (text, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(std::str::from_utf8(text).ok()?.to_owned())
}

fn take_order(bytes: &mut &[u8]) -> Option<Order> {
    Some(Order {
        epoch: bytes.try_get_u64_le().ok()?,
        number: bytes.try_get_u32_le().ok()?,
    })
}

fn take_machine(bytes: &mut &[u8]) -> Option<KeptMachine> {
    let order = take_order(bytes)?;
    let stage = Stage::of(bytes.try_get_u8().ok()?)?;
    let is_spot = match bytes.try_get_u8().ok()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let price_micros = bytes.try_get_u64_le().ok()?;
    let memory_bytes = bytes.try_get_u64_le().ok()?;
    let host = Some(bytes.try_get_u16_le().ok()?).filter(|&host| host != NO_HOST);
    let machine = KeptMachine {
        order,
        stage,
        is_spot,
        price_micros,
        memory_bytes,
        host,
        machine_type: take_text(bytes)?,
        provider: take_text(bytes)?,
        id: take_text(bytes)?,
        address: take_text(bytes)?,
        domain: take_text(bytes)?,
    };
    let is_named = !machine.id.is_empty() && machine.machine(0).is_some();
    let is_sound = match stage {
        Stage::Ordered => machine.id.is_empty(),
        Stage::Used => is_named && host.is_some(),
        Stage::Releasing => machine.id.is_empty() || is_named,
    };
    is_sound.then_some(machine)
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
    for record in records {
        record.write(&mut bytes);
    }
    journal::batch(&bytes)
}

/// The bytes of a journal that says `image` and has no history.
pub(super) fn whole(image: &Image) -> Vec<u8> {
    let hosts = (0..).zip(&image.hosts);
    let hosts = hosts.map(|(number, host)| Record::Host(number, host.clone()));
    let regions = (0..).zip(&image.regions);
    let regions = regions.map(|(number, region)| Record::Region(number, region.clone()));
    let leaving = image.leaving.iter();
    let leaving = leaving.map(|&number| Record::Leaving(number, true));
    let outdated = image.outdated.iter();
    let outdated = outdated.map(|(&region, &until_ms)| Record::Outdated(region, until_ms));
    let records: Vec<Record> = std::iter::once(Record::Begin(image.identity, image.epoch))
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
    let mut apply = |mut records: &[u8]| {
        while !records.is_empty() {
            let record = Record::read(&mut records).ok_or("a record that makes no sense")?;
            match (&mut image, record) {
                (None, Record::Begin(identity, epoch)) => {
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
