//! Which device an address means, opened once per process; and the fabric's words for what a device
//! is told.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cenote_verbs::{Access, Device, DeviceInfo, Memory, PairAddress};

use super::{Found, Support};
use crate::frame::PairName;
use crate::{Address, Error, Region, Result, Rights};

/// Looks for devices.
pub(super) fn support() -> Support {
    match cenote_verbs::devices() {
        Ok(devices) if devices.is_empty() => {
            Support::NoDevice("this machine has no RDMA device".into())
        }
        Ok(devices) => Support::Devices(devices.into_iter().map(Found::from).collect()),
        Err(cenote_verbs::Error::NoLibrary) => Support::NoLibrary,
        Err(error) => Support::NoDevice(error.to_string()),
    }
}

/// The device whose port has the IP address, or the one that the user named in [`DEVICE_VARIABLE`].
/// Shared with whoever else uses it in this process.
///
/// # Errors
/// `Unusable`, with the reason.
pub(crate) fn with_ip(ip: IpAddr, address: &Address) -> Result<Arc<Device>> {
    static OPEN: Mutex<Vec<(IpAddr, Weak<Device>)>> = Mutex::new(Vec::new());
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|(_, device)| device.strong_count() > 0);
    if let Some(device) = open
        .iter()
        .find(|(other, _)| *other == ip)
        .and_then(|(_, device)| device.upgrade())
    {
        return Ok(device);
    }
    let unusable = |reason: String| Error::Unusable {
        address: address.clone(),
        reason,
    };
    let support = support();
    let Support::Devices(_) = support else {
        return Err(unusable(support.to_string()));
    };
    let named = std::env::var(DEVICE_VARIABLE).ok();
    let device = Device::open(ip, named.as_deref()).map_err(|e| unusable(e.to_string()))?;
    if let Some(device) = device.map(Arc::new) {
        open.push((ip, Arc::downgrade(&device)));
        return Ok(device);
    }
    Err(unusable(match named {
        Some(named) => format!("{DEVICE_VARIABLE} is {named}, and the devices are {support}"),
        None => format!("no device has the address {ip}; the devices are {support}"),
    }))
}

impl From<DeviceInfo> for Found {
    fn from(device: DeviceInfo) -> Self {
        Self {
            name: device.name,
            addresses: device.addresses,
        }
    }
}

// SAFETY: a region is mapped while it lives, at one address, and gives out no reference to its
// bytes, which peers write by other transports as well.
unsafe impl Memory for Region {
    fn range(&self) -> (*mut u8, usize) {
        (self.view().base(), self.view().len_bytes())
    }

    fn is_written_here(&self) -> bool {
        false
    }
}

impl From<Rights> for Access {
    fn from(rights: Rights) -> Self {
        Self {
            read: rights.contains(Rights::READ),
            write: rights.contains(Rights::WRITE),
            atomic: rights.contains(Rights::ATOMIC),
        }
    }
}

impl From<PairAddress> for PairName {
    fn from(pair: PairAddress) -> Self {
        Self {
            number: pair.number,
            first_packet: pair.first_packet,
            lid: pair.lid,
            mtu: pair.mtu,
            reads: pair.reads,
            gid: pair.gid,
        }
    }
}

impl From<PairName> for PairAddress {
    fn from(name: PairName) -> Self {
        Self {
            number: name.number,
            first_packet: name.first_packet,
            lid: name.lid,
            mtu: name.mtu,
            reads: name.reads,
            gid: name.gid,
        }
    }
}

/// Names a device, where an IP address does not: `name[:port[:gid index]]`.
const DEVICE_VARIABLE: &str = "CENOTE_RDMA_DEVICE";
