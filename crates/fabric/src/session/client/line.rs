//! A session's way to its host: data connections and those for calls are made along it.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[cfg(feature = "rdma")]
use super::our_device;
#[cfg(not(feature = "rdma"))]
use super::unusable;
use super::{Dialog, open};
use crate::calls::{Caller, Pipe, SocketCaller};
use crate::channel::Channel;
use crate::noise::Purpose;
#[cfg(feature = "rdma")]
use crate::rdma::Tuning;
#[cfg(feature = "rdma")]
use crate::rdma::calls::PairedRings;
use crate::record::{CALL_RECORDS, DATA_RECORDS};
use crate::resolver::Resolver;
use crate::shm::ShmEndpoint;
use crate::tcp::endpoint::TcpEndpoint;
use crate::{Address, ClusterKey, Endpoint, Error, Hello, Result, WireProtection};

/// What a session's data connections are made with.
pub(super) struct Line {
    /// Where the host was reached.
    pub address: Address,
    pub key: ClusterKey,
    pub protection: WireProtection,
    #[cfg(feature = "rdma")]
    pub tuning: Tuning,
    pub hello: Hello,
    pub host_lost: Arc<AtomicBool>,
}

impl Line {
    pub fn endpoint(&self, timeout: Duration) -> Result<Box<dyn Endpoint>> {
        let (_, channel) = self.open(Purpose::Data, timeout)?;
        Ok(match &self.address {
            Address::Shm(_) => Box::new(ShmEndpoint::new(channel, Arc::clone(&self.host_lost))),
            Address::Tcp(_) => {
                let (socket, transport) = channel.into_parts();
                let records = transport.records(DATA_RECORDS, self.protection);
                Box::new(TcpEndpoint::new(TcpStream::from(socket), records)?)
            }
            #[cfg(feature = "rdma")]
            Address::Rdma(_) => {
                let device = our_device(&channel, &self.address)?;
                let session = Arc::clone(&self.host_lost);
                let connected = crate::rdma::endpoint::RdmaEndpoint::connect(
                    channel,
                    device,
                    session,
                    self.tuning,
                    timeout,
                );
                Box::new(connected?)
            }
            #[cfg(not(feature = "rdma"))]
            Address::Rdma(_) => return Err(unusable(&self.address)),
        })
    }

    pub fn caller(&self, timeout: Duration) -> Result<Box<dyn Caller>> {
        let (dialog, channel) = self.open(Purpose::Calls, timeout)?;
        let pipe = match &self.address {
            Address::Shm(_) => {
                let mut channel = channel;
                let rings = dialog.rings(&mut channel)?;
                let (socket, _) = channel.into_parts();
                Pipe::of_client(socket, rings)
            }
            Address::Tcp(_) => {
                let (socket, transport) = channel.into_parts();
                let records = transport.records(CALL_RECORDS, self.protection);
                Pipe::of_stream(TcpStream::from(socket), records)
            }
            #[cfg(feature = "rdma")]
            Address::Rdma(_) => {
                let device = our_device(&channel, &self.address)?;
                let rings = PairedRings::connect(&device, channel, self.tuning, timeout)?;
                Pipe::of_pair(rings)?
            }
            #[cfg(not(feature = "rdma"))]
            Address::Rdma(_) => return Err(unusable(&self.address)),
        };
        Ok(Box::new(SocketCaller::new(
            pipe,
            Arc::clone(&self.host_lost),
        )?))
    }

    /// A connection past its handshake, with what is left of the time for its first words.
    fn open(
        &self,
        purpose: fn(WireProtection) -> Purpose,
        timeout: Duration,
    ) -> Result<(Dialog<'_>, Channel)> {
        if self.host_lost.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        let dialog = Dialog::new(&self.address, timeout);
        let (socket, _) = dialog.dial(&Resolver::default())?;
        let purpose = purpose(self.protection);
        let channel = open(&dialog, socket, &self.key, purpose, &self.hello)?;
        Ok((dialog, channel))
    }
}
