//! What the manager sends, and when, to hosts that answer at once.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cenote_fabric::calls::CallerOpener;
use cenote_fabric::{Address, Opener, Result, Session};

use super::*;
use crate::links::Arrival;

const SLAB_BYTES: u64 = 1 << 21;

/// One host: what it was asked for, and its answers.
#[derive(Clone, Default)]
struct Host {
    maps: Arc<Mutex<u32>>,
    answers: Arc<Mutex<VecDeque<Reply>>>,
    dialled: bool,
}

impl Host {
    fn maps(&self) -> u32 {
        *self.maps.lock().unwrap()
    }

    fn answer(&self, request: Request) -> Option<Reply> {
        Some(match request {
            Request::Query => Reply::Free {
                slab_bytes: SLAB_BYTES,
                slabs_total: 100,
                slabs_free: 100,
                domain: "d".to_owned(),
            },
            Request::Own { request, .. } => Reply::Owned { request, slabs: 0 },
            Request::Held { skip } => Reply::Held {
                skip,
                slabs: Vec::new(),
            },
            Request::Map { request, .. } => {
                let mut maps = self.maps.lock().unwrap();
                *maps += 1;
                let window = Window {
                    id: *maps,
                    generation: 1,
                    len_bytes: SLAB_BYTES,
                    rights: 7,
                };
                Reply::Mapped { request, window }
            }
            _ => return None,
        })
    }
}

impl Dial for Host {
    fn dial(&mut self, _: HostIndex, _: &Address) {
        self.dialled = true;
    }

    fn poll(&mut self) -> Option<Arrival> {
        let session: Box<dyn Session> = Box::new(self.clone());
        let endpoint = None;
        std::mem::take(&mut self.dialled).then_some((0, Ok(Linked { session, endpoint })))
    }
}

impl Session for Host {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        let request = Request::decode(message).expect("it is well formed");
        let answer = self.answer(request);
        self.answers.lock().unwrap().extend(answer);
        Ok(())
    }

    fn attach(&mut self, _: WindowDescriptor) -> Result<()> {
        unreachable!("an owner reads and writes nothing")
    }

    fn receive(&mut self) -> Result<Option<Incoming>> {
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

#[test]
fn nothing_that_follows_a_record_is_sent_or_told_before_it_is_kept() {
    let settings = Settings {
        cache: 7,
        slab_bytes: SLAB_BYTES,
        slabs_per_region: 1,
        copies: 1,
        give_up_after: Duration::from_secs(10),
    };
    let now = Time(1);
    let mut owner = Owner::new(settings, 1, &[0], now);
    assert!(owner.handle_client_joined(now, 1));
    let config = HostConfig {
        name: "h".to_owned(),
        address: "tcp:127.0.0.1:1".parse().unwrap(),
        domain: "d".to_owned(),
    };
    let host = Host::default();
    let dial = Box::new(host.clone());
    let mut manager = Manager::new(owner, settings, 1, vec![config], dial);
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
