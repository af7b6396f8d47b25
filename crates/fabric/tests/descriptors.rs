//! A client that has no place for another descriptor. A process of its own: the limit is the process's.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_fabric::{
    Address, ClientId, ClusterKey, CompletionQueue, Connector, Error, Hello, Incoming, Listen,
    Listener, Region, RegionOptions, RemoteWindow, Result, Rights, Session, Status,
    WindowDescriptor, connector, wait,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn attach(session: &mut dyn Session, window: WindowDescriptor) -> Result<RemoteWindow> {
    session.attach(window).unwrap();
    loop {
        match session.receive().unwrap() {
            Some(Incoming::Attached(_, attached)) => return attached,
            Some(other) => panic!("{other:?}"),
            None => drop(wait(session.fd().as_slice(), Some(PATIENCE)).unwrap()),
        }
    }
}

/// Allows descriptors below a number only.
fn limit(below: u64) {
    let limit = libc::rlimit {
        rlim_cur: below,
        rlim_max: below,
    };
    // SAFETY: `limit` is a valid rlimit.
    let limited = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(limited, 0);
}

#[test]
fn a_window_for_which_no_descriptor_is_left_costs_no_other_one() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Shm(folder.path().join("host"));
    let key = ClusterKey::from_hex(&"42".repeat(32)).unwrap();
    let mut listener = Listener::bind(std::slice::from_ref(&address), &key).unwrap();
    let region = || Arc::new(Region::create("test", 4096, RegionOptions::default()).unwrap());
    let window = || listener.register(region(), Rights::ALL).unwrap();
    let windows = [window(), window()];
    let read_only = listener.register(region(), Rights::READ).unwrap();
    let (stop, waker) = (Arc::new(AtomicBool::new(false)), listener.waker());
    let stopped = Arc::clone(&stop);
    let host = std::thread::spawn(move || {
        while !stopped.load(Ordering::SeqCst) {
            listener.poll(None, &mut Vec::new()).unwrap();
        }
    });
    let hello = Hello {
        client: ClientId(1),
        name: "client".to_owned(),
    };
    let mut session = connector(key).connect(&address, &hello, PATIENCE).unwrap();
    let first = attach(&mut *session, windows[0]).unwrap();
    let mut endpoint = session.endpoint(PATIENCE).unwrap();
    let free = std::fs::File::open("/").unwrap();
    let lowest = u64::try_from(free.as_raw_fd()).unwrap();
    drop(free);
    limit(lowest);
    let refused = attach(&mut *session, windows[1]);
    assert!(matches!(refused, Err(Error::Os { .. })), "{refused:?}");
    // The host, which is this process, too, has none to open it with.
    let refused = attach(&mut *session, read_only);
    assert!(matches!(refused, Err(Error::StaleWindow)), "{refused:?}");
    // What it had before is there still.
    let (mut queue, mut landing) = (CompletionQueue::default(), [1; 8]);
    // SAFETY: the landing outlives the verb, which ends with the assertion below.
    unsafe { endpoint.post_read(&first, 0, landing.as_mut_ptr(), 8, 1, &mut queue) }.unwrap();
    endpoint.flush(&mut queue);
    assert_eq!(queue.pop().map(|end| end.status), Some(Status::Ok));
    assert_eq!(landing, [0; 8]);
    session.send(b"still here").unwrap();
    stop.store(true, Ordering::SeqCst);
    waker.wake();
    host.join().unwrap();
}
