//! The host's end: its windows as a device knows them, and the pairs of its clients.
//!
//! The device serves READ, WRITE and atomics by itself. The control thread has a part in messages
//! alone: they land in receive buffers, of which each client knows the number by its credits.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cenote_verbs::{Access, Completed, Completions, Device, Ended, Pages, Pair, Registered};

use super::credits::Credits;
use super::device;
use super::keys::Keys;
use crate::channel::Channel;
use crate::frame::{FRAME_BYTES_MAX, Frame, PairName};
use crate::listen::{Event, PeerId};
use crate::listener::pass_on;
use crate::socket::{Epoll, Interest};
use crate::windows::WindowTable;
use crate::{Address, Error, Region, Result, Rights, WindowId};

/// One device of a host, and the windows that clients reach by it.
pub(crate) struct HostDevice {
    device: Arc<Device>,
    windows: Mutex<Windows>,
}

#[derive(Default)]
struct Windows {
    registered: HashMap<u32, Registered<Arc<Region>>>,
    keys: Keys,
}

impl HostDevice {
    /// Opens the device that has the address.
    pub(crate) fn open(ip: IpAddr, address: &Address) -> Result<Self> {
        Ok(Self {
            device: device::with_ip(ip, address)?,
            windows: Mutex::default(),
        })
    }

    /// For connections that are not served here.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Lets the device serve a window. Pins the region's pages.
    pub(crate) fn register(
        &self,
        window: WindowId,
        region: &Arc<Region>,
        rights: Rights,
    ) -> Result<()> {
        let os = |e: io::Error| {
            let what = format!("register {} bytes with an RDMA device", region.len_bytes());
            Error::os(what, e)
        };
        let mut windows = self.windows();
        let make = || Registered::new(&self.device, Arc::clone(region), rights.into());
        let began = Instant::now();
        let is_over = || began.elapsed() > DRAW_LIMIT;
        let drawn = windows.keys.draw(make, Registered::remote_key, is_over);
        let bound = Error::Bound("keys of an RDMA device that no client holds");
        let drawn = drawn.map_err(os)?.ok_or(bound)?;
        // One that the device did not let go of still has the window's name. Its key may be given
        // out again once it goes, and clients may hold that.
        if let Some(stuck) = windows.registered.insert(window.0, drawn) {
            windows.keys.retire(stuck.remote_key());
        }
        Ok(())
    }

    /// Takes a window away from the device: after the return none of its bytes changes by it.
    pub(crate) fn revoke(&self, window: WindowId) -> Result<()> {
        let mut windows = self.windows();
        let Some(registered) = windows.registered.remove(&window.0) else {
            return Ok(());
        };
        let key = registered.remote_key();
        match registered.unregister() {
            Ok(()) => {
                windows.keys.retire(key);
                Ok(())
            }
            Err((registered, error)) => {
                windows.registered.insert(window.0, registered);
                Err(Error::os("take a window away from an RDMA device", error))
            }
        }
    }

    /// Where a window starts, and its key.
    pub(crate) fn grant(&self, window: WindowId) -> Option<(u64, u32)> {
        let windows = self.windows();
        let registered = windows.registered.get(&window.0)?;
        Some((registered.address(), registered.remote_key()))
    }

    /// The peers that are connected have changed.
    pub(crate) fn note_peers(&self, oldest: u64, next: u64) {
        self.windows().keys.note_peers(oldest, next);
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One data connection of a client.
pub(crate) struct Connection {
    host: Arc<HostDevice>,
    channel: Channel,
    pub(crate) peer: PeerId,
    served: Option<Served>,
}

/// A connected pair and the buffers that its messages land in.
struct Served {
    // Dropped first: it works on what follows.
    pair: Pair,
    completions: Completions,
    pages: Registered<Pages>,
    /// Receives that the device has.
    offered: usize,
    credits: Credits,
    /// Places are not offered again.
    is_leaving: bool,
}

impl Connection {
    pub(crate) fn new(host: Arc<HostDevice>, channel: Channel, peer: PeerId) -> Self {
        Self {
            host,
            channel,
            peer,
            served: None,
        }
    }

    /// Takes what the client says, by either way; an error ends the connection. Other clients
    /// wait meanwhile, so a turn has a bound: one pair is made, and a message has a credit.
    pub(crate) fn serve(
        &mut self,
        id: u64,
        epoll: &Epoll,
        table: &WindowTable,
        events: &mut Vec<Event>,
    ) -> Result<()> {
        let received = self.channel.fill();
        // Before the connection ends, or another pair takes this one's place.
        self.take_messages(table, events)?;
        if let Some(client) = take_join(&mut self.channel)? {
            self.leave(table, events)?;
            let served = Served::new(&self.host.device, client)
                .map_err(|e| Error::os("connect a queue pair", e))?;
            epoll
                .add(served.completions.fd(), id, Interest::READ)
                .map_err(|e| Error::os("watch a queue pair", e))?;
            self.channel
                .queue(&Frame::Join(served.pair.address().into()), None)?;
            self.served = Some(served);
            self.say_credits()?;
        }
        self.channel.flush()?;
        received.map(|_| ())
    }

    fn take_messages(&mut self, table: &WindowTable, events: &mut Vec<Event>) -> Result<()> {
        if let Some(served) = &mut self.served {
            loop {
                served.take(self.peer, table, events)?;
                let armed = served.completions.arm();
                if !armed.map_err(|e| Error::os("wait for messages", e))? {
                    break;
                }
            }
        }
        self.say_credits()
    }

    fn say_credits(&mut self) -> Result<()> {
        if let Some(served) = &mut self.served
            && let Some(count) = served.credits.say()
        {
            self.channel.queue(&Frame::Credits(count), None)?;
        }
        self.channel.flush()
    }

    /// Ends the pair; messages that the client was told are taken come out first.
    fn leave(&mut self, table: &WindowTable, events: &mut Vec<Event>) -> Result<()> {
        let Some(mut served) = self.served.take() else {
            return Ok(());
        };
        let os = |e| Error::os("end a queue pair", e);
        served.pair.close().map_err(os)?;
        let deadline = Instant::now() + LEAVE_TIME;
        served.is_leaving = true;
        while served.offered > 0 {
            served.take(self.peer, table, events)?;
            if Instant::now() > deadline {
                return Err(Error::Timeout(LEAVE_TIME));
            }
        }
        Ok(())
    }
}

/// The pair that a client asks for, of the frames that are here.
///
/// # Errors
/// `Protocol`: something else, or another pair before the first was answered. Each costs pinned
/// memory and several calls of the device, and nobody can use two.
fn take_join(channel: &mut Channel) -> Result<Option<PairName>> {
    let mut join = None;
    while let Some(frame) = channel.next()? {
        let Frame::Join(client) = frame else {
            return Err(Error::Protocol("not on a data connection"));
        };
        if join.replace(client).is_some() {
            return Err(Error::Protocol("a second pair before the first"));
        }
    }
    Ok(join)
}

impl Served {
    fn new(device: &Arc<Device>, client: PairName) -> io::Result<Self> {
        let completions = Completions::new(device, 2 * RECEIVE_COUNT)?;
        let pages = Pages::new(RECEIVE_COUNT * RECEIVE_BYTES);
        let pages = Registered::new(device, pages, Access::NONE)?;
        let pair = Pair::new(&completions, 1, RECEIVE_COUNT)?;
        let mut served = Self {
            pair,
            completions,
            pages,
            offered: 0,
            credits: Credits::default(),
            is_leaving: false,
        };
        for place in 0..RECEIVE_COUNT {
            served.offer(place)?;
        }
        served.completions.arm()?;
        served.pair.connect(&client.into())?;
        Ok(served)
    }

    fn offer(&mut self, place: usize) -> io::Result<()> {
        let part = self.pages.part(place * RECEIVE_BYTES, RECEIVE_BYTES);
        self.pair.receive(place as u64, part)?;
        self.offered += 1;
        self.credits.offer();
        Ok(())
    }

    /// Passes on the messages that are there.
    fn take(&mut self, peer: PeerId, table: &WindowTable, events: &mut Vec<Event>) -> Result<()> {
        let os = |e| Error::os("take messages", e);
        let mut taken: Vec<Completed> = Vec::new();
        while self.completions.take(&mut taken).map_err(os)? > 0 {}
        for completed in taken {
            self.offered -= 1;
            match completed.ended {
                Ended::Ok => {}
                // A verb was refused, and the client will make another pair.
                Ended::Flushed => continue,
                _ => return Err(Error::Protocol("a message broke its queue pair")),
            }
            self.credits.spend()?;
            let place = completed.id as usize;
            let len_bytes = completed.len_bytes.min(RECEIVE_BYTES);
            let start = self.pages.memory().at(place * RECEIVE_BYTES, len_bytes);
            // SAFETY: the device is done with the place, and nobody else writes it until it is
            // offered again below.
            let bytes = unsafe { std::slice::from_raw_parts(start, len_bytes) };
            pass_on(&Frame::decode(bytes)?, peer, table, events)?;
            if !self.is_leaving {
                self.offer(place).map_err(os)?;
            }
        }
        Ok(())
    }
}

impl std::os::fd::AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Messages of one connection that may wait for the host. With `RECEIVE_BYTES` about half a MiB
/// of pinned memory each.
const RECEIVE_COUNT: usize = 32;
/// The longest message and its kind, to whole cache lines.
const RECEIVE_BYTES: usize = FRAME_BYTES_MAX.next_multiple_of(64);
/// How long keys are drawn that clients may hold. Each try pins the window's memory, and clients
/// take a host that is silent for a second for dead.
const DRAW_LIMIT: Duration = Duration::from_millis(500);
/// A device flushes receives at once.
const LEAVE_TIME: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::ClusterKey;
    use crate::noise::{Initiator, Responder};

    /// A client's end and the host's.
    fn channels() -> (Channel, Channel) {
        let key = ClusterKey::generate().unwrap();
        let (initiator, first) = Initiator::start(&key);
        let (responder, answer, _) = Responder::answer(&key, &first).unwrap();
        let (client, host) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        host.set_nonblocking(true).unwrap();
        let transport = initiator.finish(&answer).unwrap();
        (
            Channel::new(client.into(), transport, false),
            Channel::new(host.into(), responder.transport(), false),
        )
    }

    fn name(number: u32) -> PairName {
        PairName {
            number,
            first_packet: 1,
            lid: 0,
            mtu: 5,
            reads: 16,
            gid: [9; 16],
        }
    }

    #[test]
    fn a_turn_makes_one_pair_at_most() {
        let (mut client, mut host) = channels();
        assert_eq!(take_join(&mut host).unwrap(), None);
        for number in [7, 8] {
            client.queue(&Frame::Join(name(number)), None).unwrap();
            client.flush().unwrap();
            host.fill().unwrap();
            assert_eq!(take_join(&mut host).unwrap(), Some(name(number)));
        }
        for number in [9, 10] {
            client.queue(&Frame::Join(name(number)), None).unwrap();
        }
        client.flush().unwrap();
        host.fill().unwrap();
        assert!(matches!(take_join(&mut host), Err(Error::Protocol(_))));
    }
}
