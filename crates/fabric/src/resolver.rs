//! Names of hosts to addresses, each time that one is dialled, within the dialler's time.
//!
//! The system's resolver blocks for as long as name servers are silent, and cannot be stopped. So it runs on
//! a thread of its own, one for each name at a time: whoever asks meanwhile waits for the same answer, and
//! whoever has waited long enough goes without. Nothing is kept once it is answered: a host that
//! moved is found by the next who dials it.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::host_port::{HostName, HostPort};

/// Which of these hosts have a name that cannot be resolved now, by their index, and why. Those that
/// are not answered for within `limit`, all in all, are not among them.
#[must_use]
pub fn unresolved(hosts: &[HostPort], limit: Duration) -> Vec<(usize, io::Error)> {
    let (resolver, deadline) = (Resolver::default(), Instant::now() + limit);
    let is_named = |(_, host): &(usize, &HostPort)| host.socket().is_none();
    let named: Vec<_> = hosts.iter().enumerate().filter(is_named).collect();
    let mut found = Vec::new();
    for some in named.chunks(ASKED_AT_ONCE) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        std::thread::scope(|scope| {
            let resolver = &resolver;
            let ask = |&(index, host): &(usize, &HostPort)| {
                let host = host.clone();
                (index, scope.spawn(move || resolver.resolve(&host, left)))
            };
            let asked: Vec<_> = some.iter().map(ask).collect();
            for (index, answer) in asked {
                match answer.join().expect("resolving does not panic") {
                    Err(error) if error.kind() != io::ErrorKind::TimedOut => {
                        found.push((index, error));
                    }
                    _ => {}
                }
            }
        });
    }
    found
}

/// Names that [`unresolved`] looks up at a time; bounds threads on large clusters.
const ASKED_AT_ONCE: usize = 32;

/// Lookups under way, by name.
#[derive(Clone, Default)]
pub(crate) struct Resolver(Arc<Mutex<HashMap<HostName, Arc<Lookup>>>>);

#[derive(Default)]
struct Lookup {
    answer: Mutex<Option<Answer>>,
    answered: Condvar,
}

/// The kind and text of an error: many may wait for one.
type Answer = Result<Vec<IpAddr>, (io::ErrorKind, String)>;

impl Resolver {
    /// The addresses of a host in the order in which they are to be tried, at least one.
    ///
    /// # Errors
    /// The resolver's, and `TimedOut` when it has no answer within `limit`.
    pub(crate) fn resolve(&self, to: &HostPort, limit: Duration) -> io::Result<Vec<SocketAddr>> {
        match to {
            HostPort::Socket(address) => Ok(vec![*address]),
            HostPort::Named(name, port) => {
                let found = self.addresses(name, limit, HostName::look_up)?;
                Ok(found.iter().map(|ip| SocketAddr::new(*ip, *port)).collect())
            }
        }
    }

    fn addresses(
        &self,
        name: &HostName,
        limit: Duration,
        look_up: impl FnOnce(&HostName) -> io::Result<Vec<IpAddr>> + Send + 'static,
    ) -> io::Result<Vec<IpAddr>> {
        let lookup = self.begin(name, look_up)?;
        let answer = lookup.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let (answer, _) = lookup
            .answered
            .wait_timeout_while(answer, limit, |answer| answer.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        match &*answer {
            Some(Ok(found)) => Ok(found.clone()),
            Some(Err((kind, text))) => Err(io::Error::new(*kind, text.clone())),
            None => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the resolver does not answer",
            )),
        }
    }

    /// The lookup of a name that is under way, or a new one.
    fn begin(
        &self,
        name: &HostName,
        look_up: impl FnOnce(&HostName) -> io::Result<Vec<IpAddr>> + Send + 'static,
    ) -> io::Result<Arc<Lookup>> {
        let mut lookups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(under_way) = lookups.get(name) {
            return Ok(Arc::clone(under_way));
        }
        let lookup = Arc::<Lookup>::default();
        let (all, asked, theirs) = (self.clone(), name.clone(), Arc::clone(&lookup));
        std::thread::Builder::new()
            .name("cenote-resolve".into())
            .spawn(move || {
                let answer = look_up(&asked).map_err(|e| (e.kind(), e.to_string()));
                // First, so that who comes now asks again and gets no older answer.
                let mut lookups = all.0.lock().unwrap_or_else(PoisonError::into_inner);
                lookups.remove(&asked);
                drop(lookups);
                let mut waited_for = theirs.answer.lock().unwrap_or_else(PoisonError::into_inner);
                *waited_for = Some(answer);
                theirs.answered.notify_all();
            })?;
        lookups.insert(name.clone(), Arc::clone(&lookup));
        Ok(lookup)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);
    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 3));

    fn name() -> HostName {
        "moved.example".parse().unwrap()
    }

    #[test]
    fn an_address_needs_no_resolver_and_a_name_of_the_hosts_file_has_one() {
        let resolver = Resolver::default();
        let fixed: HostPort = "127.0.0.1:7".parse().unwrap();
        let found = resolver.resolve(&fixed, Duration::ZERO).unwrap();
        assert_eq!(found, [SocketAddr::from(([127, 0, 0, 1], 7))]);
        let named: HostPort = "localhost:7".parse().unwrap();
        let found = resolver.resolve(&named, PATIENCE).unwrap();
        assert!(!found.is_empty());
        assert!(
            found
                .iter()
                .all(|at| at.ip().is_loopback() && at.port() == 7)
        );
        let nobody: HostPort = "nobody.invalid:7".parse().unwrap();
        assert!(resolver.resolve(&nobody, PATIENCE).is_err());
    }

    #[test]
    fn names_that_nobody_has_are_told_apart() {
        let hosts = ["127.0.0.1:1", "nobody.invalid:2", "localhost:3"].map(|h| h.parse().unwrap());
        let found = unresolved(&hosts, PATIENCE);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, 1);
        assert!(unresolved(&hosts, Duration::ZERO).is_empty());
    }

    #[test]
    fn a_name_is_looked_up_again_each_time() {
        let resolver = Resolver::default();
        let now = |ip| resolver.addresses(&name(), PATIENCE, move |_| Ok(vec![ip]));
        assert_eq!(now(A).unwrap(), [A]);
        assert_eq!(now(B).unwrap(), [B]);
    }

    #[test]
    fn a_silent_resolver_has_one_thread_for_a_name_and_nobody_waits_longer_than_they_like() {
        let resolver = Resolver::default();
        let (answer, told) = channel();
        let silent = move |_: &HostName| Ok(vec![told.recv().expect("an answer")]);
        let error = resolver.addresses(&name(), Duration::ZERO, silent);
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let refuse = |_: &HostName| -> io::Result<Vec<IpAddr>> { panic!("a second lookup") };
        let again = resolver.addresses(&name(), Duration::ZERO, refuse);
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::TimedOut);
        std::thread::scope(|scope| {
            let late = scope.spawn(|| resolver.addresses(&name(), PATIENCE, refuse));
            // Either order is right: who comes after the answer would look up again, and panic.
            while resolver.waiting(&name()) < 2 {
                std::thread::yield_now();
            }
            answer.send(A).unwrap();
            assert_eq!(late.join().unwrap().unwrap(), [A]);
        });
        let fresh = resolver.addresses(&name(), PATIENCE, |_| Ok(vec![B]));
        assert_eq!(fresh.unwrap(), [B]);
    }

    impl Resolver {
        /// Who holds the lookup besides the book: its thread, and those who wait.
        fn waiting(&self, name: &HostName) -> usize {
            let lookups = self.0.lock().unwrap();
            lookups
                .get(name)
                .map_or(0, |one| Arc::strong_count(one) - 1)
        }
    }
}
