//! Devices: which there are, finding the one that has an address, and opening it.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use rdma_mummy_sys as sys;

use crate::check;

/// An open device, the port and address on it that are used, and its protection domain.
pub struct Device {
    context: *mut sys::ibv_context,
    domain: *mut sys::ibv_pd,
    name: String,
    pub(crate) port: u8,
    pub(crate) gid: [u8; 16],
    pub(crate) gid_index: u8,
    /// 0 on Ethernet.
    pub(crate) lid: u16,
    pub(crate) mtu: u8,
    /// READs and atomics that a queue pair may have on their way, as the one who asks.
    pub(crate) reads_asked: u8,
    /// And as the one who answers.
    pub(crate) reads_answered: u8,
}

// SAFETY: libibverbs locks its objects; the pointers are freed in `drop` alone.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// A device of this machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DeviceInfo {
    /// As in `/sys/class/infiniband`.
    pub name: String,
    /// IPv4 addresses that its ports answer to. Empty on InfiniBand, and on a port that is not
    /// configured.
    pub addresses: Vec<IpAddr>,
}

/// Why there is no device to use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `libibverbs.so.1` cannot be loaded.
    #[error("libibverbs.so.1 was not found")]
    NoLibrary,
    /// The system names no devices.
    #[error("{0}")]
    List(#[source] io::Error),
    /// A device cannot be opened or asked.
    #[error("{device}: {source}")]
    Open {
        /// Its name.
        device: String,
        /// Its answer.
        source: io::Error,
    },
}

/// Where on a device a connection starts.
struct PortAddress {
    port: u8,
    gid_index: u8,
    gid: [u8; 16],
}

/// The devices of this machine.
///
/// # Errors
/// [`Error::NoLibrary`], [`Error::List`].
pub fn devices() -> Result<Vec<DeviceInfo>, Error> {
    let list = List::new()?;
    Ok(list.devices().iter().map(|&d| look_at(d)).collect())
}

/// Name and IP addresses of a device of a list.
fn look_at(device: *mut sys::ibv_device) -> DeviceInfo {
    let mut found = DeviceInfo {
        name: name_of(device),
        addresses: Vec::new(),
    };
    // SAFETY: `device` is of a list that the caller keeps.
    let context = unsafe { sys::ibv_open_device(device) };
    if context.is_null() {
        return found;
    }
    match gid_table(context) {
        Ok(entries) => {
            for entry in &entries {
                let ip = Ipv6Addr::from(raw(entry));
                // Link-local addresses, which every port has, are not unique on a machine.
                if let Some(ip) = ip.to_ipv4_mapped().map(IpAddr::V4)
                    && !found.addresses.contains(&ip)
                {
                    found.addresses.push(ip);
                }
            }
        }
        Err(error) => tracing::warn!(%error, device = found.name, "read a device's addresses"),
    }
    // SAFETY: opened above, used by nobody.
    unsafe { sys::ibv_close_device(context) };
    found
}

impl Device {
    /// Opens the device whose port has the IP address, or the one that `named` says:
    /// `NAME[:PORT[:GID INDEX]]`. `None`: there is no such device.
    ///
    /// # Errors
    /// [`Error::NoLibrary`], [`Error::List`]; [`Error::Open`] of the first that does not open.
    pub fn open(ip: IpAddr, named: Option<&str>) -> Result<Option<Self>, Error> {
        let list = List::new()?;
        for &device in list.devices() {
            let opened = Self::open_one(device, ip, named).map_err(|source| Error::Open {
                device: name_of(device),
                source,
            })?;
            if opened.is_some() {
                return Ok(opened);
            }
        }
        Ok(None)
    }

    /// As in `/sys/class/infiniband`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `None`: it is another device that is looked for.
    fn open_one(
        device: *mut sys::ibv_device,
        ip: IpAddr,
        named: Option<&str>,
    ) -> io::Result<Option<Self>> {
        let name = name_of(device);
        let wanted = match named.map(|named| parse_named(named, &name)) {
            Some(None) => return Ok(None),
            Some(Some(wanted)) => Some(wanted),
            None => None,
        };
        // SAFETY: `device` is of a list that the caller keeps.
        let context = unsafe { sys::ibv_open_device(device) };
        if context.is_null() {
            return Err(io::Error::last_os_error());
        }
        // From here on dropping it closes what is open.
        let mut opened = Self {
            context,
            domain: std::ptr::null_mut(),
            name,
            port: 1,
            gid: [0; 16],
            gid_index: 0,
            lid: 0,
            mtu: 1,
            reads_asked: 1,
            reads_answered: 1,
        };
        let Some(place) = find_place(context, ip, wanted)? else {
            return Ok(None);
        };
        opened.port = place.port;
        opened.gid = place.gid;
        opened.gid_index = place.gid_index;
        opened.query()?;
        // SAFETY: an open context.
        opened.domain = unsafe { sys::ibv_alloc_pd(context) };
        if opened.domain.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(Some(opened))
    }

    fn query(&mut self) -> io::Result<()> {
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut port: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open context and an exclusive struct.
        check(unsafe { sys::ibv_query_port(self.context, self.port, &raw mut port) })?;
        if port.state != sys::ibv_port_state::IBV_PORT_ACTIVE {
            return Err(io::Error::other(format!("port {} is not up", self.port)));
        }
        self.lid = port.lid;
        self.mtu = port.active_mtu as u8;
        // SAFETY: as above.
        let mut limits: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        check(unsafe { sys::ibv_query_device(self.context, &raw mut limits) })?;
        let bounded = |limit: libc::c_int| limit.clamp(1, READS_MAX) as u8;
        self.reads_asked = bounded(limits.max_qp_init_rd_atom);
        self.reads_answered = bounded(limits.max_qp_rd_atom);
        Ok(())
    }

    pub(crate) fn context(&self) -> *mut sys::ibv_context {
        self.context
    }

    pub(crate) fn domain(&self) -> *mut sys::ibv_pd {
        self.domain
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: everything made in the domain holds this value, so nothing is left in it.
        unsafe {
            if !self.domain.is_null() {
                sys::ibv_dealloc_pd(self.domain);
            }
            sys::ibv_close_device(self.context);
        }
    }
}

/// `name[:port[:gid index]]`, if it names this device; port 0 and no index are "any".
fn parse_named(named: &str, device: &str) -> Option<(u8, Option<u8>)> {
    let mut parts = named.split(':');
    if parts.next() != Some(device) {
        return None;
    }
    let port = parts.next().map_or(Some(0), |part| part.parse().ok())?;
    let index = match parts.next() {
        Some(part) => Some(part.parse().ok()?),
        None => None,
    };
    Some((port, index))
}

/// The entry of the device's address table that is `ip`, routable RoCE (v2) before others; or the
/// one that the user named.
fn find_place(
    context: *mut sys::ibv_context,
    ip: IpAddr,
    wanted: Option<(u8, Option<u8>)>,
) -> io::Result<Option<PortAddress>> {
    let entries = gid_table(context)?;
    let ip = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let fits = |entry: &&sys::ibv_gid_entry| match wanted {
        Some((port, index)) => {
            (port == 0 || entry.port_num == u32::from(port))
                && index.is_none_or(|index| entry.gid_index == u32::from(index))
        }
        None => raw(entry) == ip.octets(),
    };
    let best = entries.iter().filter(fits).max_by_key(|entry| {
        (
            raw(entry) == ip.octets(),
            entry.gid_type,
            u32::MAX - entry.gid_index,
        )
    });
    Ok(best.and_then(|entry| {
        Some(PortAddress {
            port: entry.port_num.try_into().ok()?,
            gid_index: entry.gid_index.try_into().ok()?,
            gid: raw(entry),
        })
    }))
}

/// The addresses of all ports.
fn gid_table(context: *mut sys::ibv_context) -> io::Result<Vec<sys::ibv_gid_entry>> {
    let mut entries = Vec::with_capacity(GID_COUNT_MAX);
    // SAFETY: the vector has room for as many entries as are asked for.
    let count =
        unsafe { sys::ibv_query_gid_table(context, entries.as_mut_ptr(), GID_COUNT_MAX, 0) };
    let Ok(count) = usize::try_from(count) else {
        return Err(io::Error::from_raw_os_error(-(count as i32)));
    };
    // SAFETY: the call filled `count` entries of plain data.
    unsafe { entries.set_len(count) };
    Ok(entries)
}

fn raw(entry: &sys::ibv_gid_entry) -> [u8; 16] {
    // SAFETY: every view of the union is 16 plain bytes.
    unsafe { entry.gid.raw }
}

/// All devices, for as long as it lives.
struct List {
    first: *mut *mut sys::ibv_device,
    count: usize,
}

impl List {
    fn new() -> Result<Self, Error> {
        // Asked first, so that a library that is missing is told of as such.
        // SAFETY: a name with its zero; the handle is kept for ever, as the bindings do.
        let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_LAZY) };
        if library.is_null() {
            return Err(Error::NoLibrary);
        }
        let mut count = 0;
        // SAFETY: an exclusive integer.
        let first = unsafe { sys::ibv_get_device_list(&raw mut count) };
        if first.is_null() {
            return Err(Error::List(io::Error::last_os_error()));
        }
        Ok(Self {
            first,
            count: count.unsigned_abs() as usize,
        })
    }

    fn devices(&self) -> &[*mut sys::ibv_device] {
        // SAFETY: the library returned an array of that many pointers.
        unsafe { std::slice::from_raw_parts(self.first, self.count) }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: our own list; devices that are open do not need it.
        unsafe { sys::ibv_free_device_list(self.first) };
    }
}

fn name_of(device: *mut sys::ibv_device) -> String {
    // SAFETY: a device of a list has a name with its zero, which lives as long as the list.
    let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name(device)) };
    name.to_string_lossy().into_owned()
}

/// Most entries that are looked at; devices have up to a thousand, nearly all empty and not told.
const GID_COUNT_MAX: usize = 1024;
/// What every device has, and more than a worker's pages use at a time.
const READS_MAX: libc::c_int = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_device_may_say_port_and_gid() {
        assert_eq!(parse_named("mlx5_0", "mlx5_0"), Some((0, None)));
        assert_eq!(parse_named("mlx5_0:2", "mlx5_0"), Some((2, None)));
        assert_eq!(parse_named("mlx5_0:1:3", "mlx5_0"), Some((1, Some(3))));
        assert_eq!(parse_named("mlx5_1", "mlx5_0"), None);
        assert_eq!(parse_named("mlx5_0:x", "mlx5_0"), None);
    }
}
