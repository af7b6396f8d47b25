//! A tier in memory that stands for a remote one: it can be slow, fail, tear writes, and go away.

use std::collections::BTreeMap;
use std::io;

use super::{Busy, Ended, Request, Tier};

/// What befalls one request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// It ends at the next poll.
    None,
    /// It ends that many polls later.
    Delay(u32),
    /// It ends with this error, and nothing was done.
    Fail(io::ErrorKind),
    /// Of a write so many bytes arrive, and it ends well. Of a read so many bytes are right.
    Torn(usize),
    /// The tier takes no request now.
    Busy,
    /// The tier is gone, with all it held.
    Gone,
}

/// Chooses what befalls each request.
pub type Faults = Box<dyn FnMut(&Request) -> Fault + Send>;

/// Pages in a map. See the module.
pub struct MemoryTier {
    name: String,
    pages: BTreeMap<u64, Vec<u8>>,
    capacity_bytes: Option<u64>,
    faults: Faults,
    under_way: Vec<(u32, Ended)>,
    is_gone: bool,
}

impl MemoryTier {
    /// A tier that never fails. `capacity_bytes`: see [`Tier::capacity_bytes`].
    #[must_use]
    pub fn new(name: &str, capacity_bytes: Option<u64>) -> Self {
        Self::with_faults(name, capacity_bytes, Box::new(|_| Fault::None))
    }

    /// A tier whose requests go as `faults` says.
    #[must_use]
    pub fn with_faults(name: &str, capacity_bytes: Option<u64>, faults: Faults) -> Self {
        Self {
            name: name.to_owned(),
            pages: BTreeMap::new(),
            capacity_bytes,
            faults,
            under_way: Vec::new(),
            is_gone: false,
        }
    }

    fn carry_out(&mut self, request: Request, torn: Option<usize>) -> Vec<u8> {
        match request {
            Request::Write { address, page } => {
                let mut bytes = page.to_vec();
                bytes[torn.unwrap_or(page.len()).min(page.len())..].fill(0);
                self.pages.insert(address, bytes);
            }
            Request::Read { address, len_bytes } => {
                let mut bytes = self.read(address, len_bytes);
                if let Some(torn) = torn {
                    let torn = torn.min(bytes.len());
                    bytes[torn..].fill(0);
                }
                return bytes;
            }
            Request::Sync => {}
            Request::Drop { address } => self.pages = self.pages.split_off(&address),
            Request::Cut { address } => drop(self.pages.split_off(&address)),
        }
        Vec::new()
    }

    fn read(&self, address: u64, len_bytes: usize) -> Vec<u8> {
        let Some((start, page)) = self.pages.range(..=address).next_back() else {
            return Vec::new();
        };
        let from = ((address - start) as usize).min(page.len());
        page[from..page.len().min(from + len_bytes)].to_vec()
    }
}

impl Tier for MemoryTier {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn capacity_bytes(&self) -> Option<u64> {
        self.capacity_bytes
    }

    fn block_bytes(&self) -> usize {
        1
    }

    fn start(&mut self, token: u64, request: Request) -> Result<(), Busy> {
        let mut polls = 0;
        let result = match (self.faults)(&request) {
            Fault::Busy => return Err(Busy),
            Fault::Gone => {
                self.is_gone = true;
                Err(io::ErrorKind::NotConnected.into())
            }
            Fault::Fail(kind) => Err(kind.into()),
            Fault::Torn(bytes) => Ok(self.carry_out(request, Some(bytes))),
            Fault::Delay(count) => {
                polls = count;
                Ok(self.carry_out(request, None))
            }
            Fault::None => Ok(self.carry_out(request, None)),
        };
        self.under_way.push((polls, Ended { token, result }));
        Ok(())
    }

    fn poll(&mut self, ended: &mut Vec<Ended>) -> io::Result<()> {
        if self.is_gone {
            return Err(io::ErrorKind::NotConnected.into());
        }
        for (polls, _) in &mut self.under_way {
            *polls = polls.saturating_sub(1);
        }
        let is_over = |(polls, _): &mut (u32, Ended)| *polls == 0;
        ended.extend(self.under_way.extract_if(.., is_over).map(|(_, end)| end));
        Ok(())
    }
}
