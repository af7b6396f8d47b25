//! What the manager sends, and when, to hosts that answer at once.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cenote_fabric::calls::CallerOpener;
use cenote_fabric::{Address, Opener, Result, Session};

use cenote_fabric::WindowDescriptor;

use super::*;

mod hosts;

const SLAB_BYTES: u64 = 1 << 21;

/// One host: what it was asked for, and its answers.
#[derive(Clone, Default)]
struct Host {
    maps: Arc<Mutex<u32>>,
    held: Arc<Mutex<Vec<HeldSlab>>>,
    /// It has seen a later owner.
    has_another: Arc<AtomicBool>,
    listings: Arc<AtomicU32>,
    answers: Arc<Mutex<VecDeque<Reply>>>,
    is_dialled: bool,
    dials: Arc<AtomicU32>,
    /// It has no slab to lend.
    is_full: bool,
    awaited: Arc<AtomicU32>,
    /// Its process is there no more.
    is_ended: Arc<AtomicBool>,
    /// It heard from an earlier owner not long ago.
    is_kept: Arc<AtomicBool>,
    /// Nothing reaches it.
    is_cut_off: Arc<AtomicBool>,
    /// Where it keeps what it is sent, if it answers nothing by itself.
    unanswered: Option<Arc<Mutex<Vec<Request>>>>,
}

impl Host {
    fn maps(&self) -> u32 {
        *self.maps.lock().unwrap()
    }

    fn slabs_free(&self) -> u32 {
        if self.is_full { 0 } else { 100 }
    }

    fn renew(&self, request: u64, window: Window) -> Reply {
        let mut held = self.held.lock().unwrap();
        match held.iter_mut().find(|slab| slab.window == window) {
            Some(slab) => {
                slab.window.generation += 1;
                let window = slab.window;
                Reply::Mapped { request, window }
            }
            None => {
                let reason = Refusal::NotHeld;
                Reply::Refused { request, reason }
            }
        }
    }

    fn answer(&self, request: Request) -> Option<Reply> {
        Some(match request {
            Request::Query => Reply::Free {
                slab_bytes: SLAB_BYTES,
                slabs_total: 100,
                slabs_free: self.slabs_free(),
                domain: "d".to_owned(),
            },
            Request::Ping { sequence } => Reply::Pong {
                sequence,
                slabs_free: self.slabs_free(),
            },
            Request::Awaits => {
                self.awaited.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            Request::Renew { request, window } => self.renew(request, window),
            Request::Own { request, .. } if self.has_another.load(Ordering::Relaxed) => {
                let reason = Refusal::Superseded;
                Reply::Refused { request, reason }
            }
            Request::Own { request, .. } if self.is_kept.load(Ordering::Relaxed) => {
                let reason = Refusal::Owned;
                Reply::Refused { request, reason }
            }
            Request::Own { request, .. } => Reply::Owned { request, slabs: 0 },
            Request::Held { skip } => {
                self.listings.fetch_add(1, Ordering::Relaxed);
                let slabs = self.held.lock().unwrap().clone();
                Reply::Held { skip, slabs }
            }
            Request::Map {
                request,
                volume,
                extent,
                member,
            } => {
                let mut maps = self.maps.lock().unwrap();
                *maps += 1;
                let window = Window {
                    id: *maps,
                    generation: 1,
                    len_bytes: SLAB_BYTES,
                    rights: 7,
                };
                self.held.lock().unwrap().push(HeldSlab {
                    volume,
                    extent,
                    member,
                    window,
                });
                Reply::Mapped { request, window }
            }
            _ => return None,
        })
    }
}

/// What reaches the hosts of a test, in the order of [`configs`].
struct Hosts(Vec<Host>);

impl Dial for Hosts {
    fn dial(&mut self, host: HostIndex, _: &Address) {
        self.0[host].dials.fetch_add(1, Ordering::Relaxed);
        self.0[host].is_dialled = true;
    }

    fn poll(&mut self) -> Option<Arrival> {
        let index = self.0.iter().position(|host| host.is_dialled)?;
        let host = &mut self.0[index];
        host.is_dialled = false;
        let session: Box<dyn Session> = Box::new(host.clone());
        let linked = Linked {
            session,
            endpoint: None,
            calls: None,
        };
        let failure = match () {
            () if host.is_cut_off.load(Ordering::Relaxed) => Some(std::io::ErrorKind::TimedOut),
            () if host.is_ended.load(Ordering::Relaxed) => {
                Some(std::io::ErrorKind::ConnectionRefused)
            }
            () => None,
        };
        Some(Arrival {
            host: index,
            address: configs(self.0.len()).swap_remove(index).address,
            linked: failure.map_or(Ok(linked), |kind| Err(refused(kind))),
        })
    }
}

fn refused(kind: std::io::ErrorKind) -> cenote_fabric::Error {
    cenote_fabric::Error::os("connect".to_owned(), kind.into())
}

impl Session for Host {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        let request = Request::decode(message).expect("it is well formed");
        if self.is_cut_off.load(Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(unanswered) = &self.unanswered {
            unanswered.lock().unwrap().push(request);
            return Ok(());
        }
        let answer = self.answer(request);
        self.answers.lock().unwrap().extend(answer);
        Ok(())
    }

    fn attach(&mut self, _: WindowDescriptor) -> Result<()> {
        unreachable!("an owner reads and writes nothing")
    }

    fn receive(&mut self) -> Result<Option<Incoming>> {
        if self.is_ended.load(Ordering::Relaxed) {
            return Err(refused(std::io::ErrorKind::ConnectionReset));
        }
        let answer = self.answers.lock().unwrap().pop_front();
        Ok(answer.map(|reply| {
            let mut bytes = Vec::new();
            reply.encode(&mut bytes);
            Incoming::Message(bytes)
        }))
    }

    fn opener(&self) -> Opener {
        unreachable!("an owner reads and writes nothing")
    }

    fn caller_opener(&self) -> CallerOpener {
        unreachable!("an owner makes no calls")
    }

    fn fd(&self) -> Option<RawFd> {
        None
    }

    fn wants_write(&self) -> bool {
        false
    }
}

fn settings() -> Settings {
    Settings {
        cache: 7,
        slab_bytes: SLAB_BYTES,
        slabs_per_region: 1,
        copies: 1,
        give_up_after: Duration::from_secs(10),
    }
}

fn configs(count: usize) -> Vec<HostConfig> {
    let config = |number: usize| HostConfig {
        name: format!("h{number}"),
        address: format!("tcp:127.0.0.1:{}", number + 1).parse().unwrap(),
        domain: format!("d{number}"),
    };
    (0..count).map(config).collect()
}

fn config() -> HostConfig {
    configs(1).remove(0)
}

fn only(host: &Host) -> Box<dyn Dial> {
    Box::new(Hosts(vec![host.clone()]))
}

/// A host, and one beside it that has no room.
fn beside_a_full_one(host: &Host) -> Box<dyn Dial> {
    let full = Host {
        is_full: true,
        ..Host::default()
    };
    Box::new(Hosts(vec![host.clone(), full]))
}

/// A manager of one region on one host, once it is open.
fn running(host: &Host) -> Manager {
    let owner = Owner::new(settings(), 1, &[0], Time(1));
    let mut manager = Manager::new(owner, settings(), 1, vec![config()], only(host));
    go_on(&mut manager);
    manager
}

/// The same, beside a host that has no room: one that is silent is given up while another is there.
fn running_beside_a_full_one(host: &Host) -> Manager {
    let owner = Owner::new(settings(), 1, &[0, 1], Time(1));
    let dial = beside_a_full_one(host);
    let mut manager = Manager::new(owner, settings(), 1, configs(2), dial);
    go_on(&mut manager);
    manager
}

fn go_on(manager: &mut Manager) {
    for _ in 0..8 {
        manager.step(Time(1));
        while let Some(news) = manager.take_news() {
            if matches!(news, News::Record) {
                manager.confirm_record(Time(1));
            }
        }
    }
}

#[test]
fn what_a_client_met_has_the_books_compared_within_the_same_session() {
    let host = Host::default();
    let mut manager = running(&host);
    assert!(manager.owner.is_settled());
    let listings = host.listings.load(Ordering::Relaxed);
    // The host took it back and said nothing.
    host.held.lock().unwrap().clear();
    manager.handle_trouble(0);
    manager.handle_trouble(77);
    go_on(&mut manager);
    assert!(host.listings.load(Ordering::Relaxed) > listings);
    assert_eq!(manager.owner.entries()[0].losses, 1);
    assert!(manager.owner.is_settled());
    assert!(manager.hosts().all(|(_, is_up)| is_up));
}

#[test]
fn a_slab_that_its_host_takes_is_missed_at_once() {
    let host = Host::default();
    let mut manager = running(&host);
    let window = host.held.lock().unwrap()[0].window;
    let listings = || host.listings.load(Ordering::Relaxed);
    let before = listings();
    // Given back, as an answer: nobody misses it.
    let other = Window { id: 77, ..window };
    let unmapped = |window| {
        host.answers
            .lock()
            .unwrap()
            .push_back(Reply::Unmapped { window })
    };
    unmapped(other);
    go_on(&mut manager);
    assert_eq!(listings(), before);
    host.held.lock().unwrap().clear();
    unmapped(window);
    go_on(&mut manager);
    assert!(listings() > before);
    assert_eq!(manager.owner.entries()[0].losses, 1);
}

#[test]
fn a_manager_that_a_host_calls_superseded_stands_down() {
    let host = Host::default();
    let mut manager = running(&host);
    host.has_another.store(true, Ordering::Relaxed);
    manager.owner.handle_host_silent(Time(1), 0);
    manager.hosts[0].go_down(Time(0));
    manager.owner.handle_resize(Time(1), 3);
    let maps = host.maps();
    let later = Time(1).after(Duration::from_secs(2));
    for _ in 0..5 {
        manager.step(later);
    }
    assert!(manager.owner.is_superseded());
    assert!(manager.take_news().is_none());
    assert_eq!(host.maps(), maps);
    assert!(manager.hosts().all(|(_, is_up)| !is_up));
    assert_eq!(
        manager.owner.handle_client_alive(later, 1),
        crate::owner::Renewal::Superseded
    );
}

#[test]
fn a_list_that_changes_while_it_is_read_is_read_again() {
    let slab = |extent: u32| HeldSlab {
        volume: 7,
        extent,
        member: 0,
        window: Window {
            id: extent,
            generation: 1,
            len_bytes: SLAB_BYTES,
            rights: 7,
        },
    };
    let all: Vec<HeldSlab> = (0..300).map(slab).collect();
    let mut link = HostLink::new(config());
    link.state = State::Up(Box::new(Host::default()));
    link.begin_listing();
    assert!(matches!(link.take_listing(0, &all[..256]), Listed::More));
    // Slab 3 went meanwhile, so that all behind it moved up.
    assert!(matches!(link.take_listing(255, &all[256..]), Listed::More));
    let left: Vec<HeldSlab> = all.iter().copied().filter(|s| s.extent != 3).collect();
    assert!(matches!(link.take_listing(0, &left[..256]), Listed::More));
    // So does one with another name for what was listed.
    link.note_mapped();
    assert!(matches!(link.take_listing(255, &left[255..]), Listed::More));
    assert!(matches!(link.take_listing(0, &left[..256]), Listed::More));
    let Listed::Again(held) = link.take_listing(255, &left[255..]) else {
        panic!("it is complete");
    };
    assert_eq!(held, left);
}

/// Steps it as its driver does, for so long; records are kept, or refused.
fn drive(manager: &mut Manager, from: Time, time: Duration, keeps: bool) -> Time {
    let (mut now, end) = (from, from.after(time));
    while now < end {
        now = manager.owner.due(now).min(end);
        manager.step(now);
        while keeps && let Some(news) = manager.take_news() {
            if matches!(news, News::Record) {
                manager.confirm_record(now);
            }
        }
    }
    now
}

#[test]
fn a_record_that_the_disk_refuses_for_long_loses_nothing_and_no_host_is_blamed() {
    let host = Host::default();
    let mut manager = running_beside_a_full_one(&host);
    assert!(manager.owner.handle_client_joined(Time(1), 1));
    let renewal = manager.owner.handle_client_alive(Time(1), 1);
    assert_eq!(renewal, crate::owner::Renewal::Granted);
    go_on(&mut manager);
    let held = host.held.lock().unwrap().clone();
    manager.owner.handle_resize(Time(1), 2);
    manager.step(Time(1));
    assert!(matches!(manager.take_news(), Some(News::Record)));
    let now = drive(&mut manager, Time(1), Duration::from_secs(30), false);
    assert!(manager.take_news().is_none());
    manager.confirm_record(now);
    let now = drive(&mut manager, now, Duration::from_secs(8), true);
    assert_eq!(manager.owner.entries()[0].losses, 0);
    assert!(manager.owner.is_settled());
    assert!(manager.hosts().all(|(_, is_up)| is_up));
    let is_there = |slab: &HeldSlab| slab.window.id == held[0].window.id;
    assert!(host.held.lock().unwrap().iter().any(is_there));
    // Its silence counts from then on.
    host.is_cut_off.store(true, Ordering::Relaxed);
    drive(&mut manager, now, Duration::from_secs(13), true);
    assert_eq!(manager.owner.entries()[0].losses, 1);
}

#[test]
fn a_manager_that_stood_still_looks_for_a_silent_host_before_it_gives_it_up() {
    let host = Host::default();
    let mut manager = running_beside_a_full_one(&host);
    host.is_cut_off.store(true, Ordering::Relaxed);
    let now = drive(&mut manager, Time(1), Duration::from_secs(5), true);
    assert!(manager.hosts().any(|(_, is_up)| !is_up));
    host.is_cut_off.store(false, Ordering::Relaxed);
    // A client's message is the first that it takes.
    let now = now.after(Duration::from_secs(15));
    manager.owner.handle_known(now, 1, 0, 1);
    drive(&mut manager, now, Duration::from_secs(2), true);
    assert_eq!(manager.owner.entries()[0].losses, 0);
    assert!(manager.owner.is_settled());
}

#[test]
fn a_host_that_still_keeps_to_an_earlier_owner_is_waited_for() {
    let host = Host::default();
    let record = running_beside_a_full_one(&host).record();
    host.is_kept.store(true, Ordering::Relaxed);
    let dial = beside_a_full_one(&host);
    let recovered = Manager::recover(record, settings(), 2, configs(2), dial, Time(1));
    let mut manager = recovered.unwrap();
    let now = drive(&mut manager, Time(1), Duration::from_secs(25), true);
    assert_eq!(manager.owner.entries()[0].losses, 0);
    host.is_kept.store(false, Ordering::Relaxed);
    let now = drive(&mut manager, now, Duration::from_secs(5), true);
    assert!(manager.owner.is_settled());
    assert_eq!(manager.owner.entries()[0].losses, 0);
    // One that answers nothing is not.
    host.is_cut_off.store(true, Ordering::Relaxed);
    drive(&mut manager, now, Duration::from_secs(13), true);
    assert_eq!(manager.owner.entries()[0].losses, 1);
}

#[test]
fn a_host_that_is_taken_speaks_all_that_is_asked_of_it() {
    let window = Window {
        id: 1,
        generation: 1,
        len_bytes: SLAB_BYTES,
        rights: 7,
    };
    let renew = Request::Renew { request: 2, window };
    assert!(OLDEST_HOST >= renew.since().into());
    assert!(OLDEST_HOST >= Reply::Notice { within_ms: 0 }.since().into());
}

#[test]
fn nothing_that_follows_a_record_is_sent_or_told_before_it_is_kept() {
    let settings = settings();
    let now = Time(1);
    let mut owner = Owner::new(settings, 1, &[0], now);
    assert!(owner.handle_client_joined(now, 1));
    let host = Host::default();
    let mut manager = Manager::new(owner, settings, 1, vec![config()], only(&host));
    for _ in 0..5 {
        manager.step(now);
    }
    // The client was told of a region that is nowhere; its memory came since, which is to be kept first.
    assert!(matches!(manager.take_news(), Some(News::Tell { .. })));
    assert!(matches!(manager.take_news(), Some(News::Record)));
    assert_eq!(host.maps(), 1);

    manager.owner.handle_resize(now, 2);
    for _ in 0..5 {
        manager.step(now);
        manager.flush(now);
    }
    assert!(manager.take_news().is_none());
    assert_eq!(host.maps(), 1);

    manager.confirm_record(now);
    assert!(matches!(manager.take_news(), Some(News::Tell { entry, .. }) if entry.generation > 0));
    for _ in 0..5 {
        while manager.take_news().is_some() {
            manager.confirm_record(now);
        }
        manager.step(now);
    }
    assert_eq!(host.maps(), 2);
}
