//! Many endpoints share their system calls, and each still behaves as it does alone.

use std::net::Shutdown;

use super::*;
use crate::Batch;

/// Clients of as many hosts, their endpoints in one batch.
struct Fleet {
    batch: Batch,
    clients: Vec<Client>,
}

impl Fleet {
    fn new(rigs: &[Rig], batch: Batch) -> Self {
        let clients = rigs.iter().map(Rig::client).collect();
        Self { batch, clients }
    }

    fn flush(&mut self, queue: &mut CompletionQueue) {
        let endpoints = self.clients.iter_mut();
        let endpoints = endpoints.map(|client| &mut client.endpoint as &mut dyn Endpoint);
        self.batch.flush(endpoints, queue);
    }

    fn poll(&mut self, queue: &mut CompletionQueue) {
        let endpoints = self.clients.iter_mut();
        let endpoints = endpoints.map(|client| &mut client.endpoint as &mut dyn Endpoint);
        self.batch.poll(endpoints, STILL, queue);
    }

    /// Waits until every host that owes an answer has begun to give it.
    fn await_all(&self) {
        for client in &self.clients {
            if client.endpoint.outstanding() > 0 {
                let fd = client.endpoint.fd().expect("it is alive");
                assert!(
                    wait(&[fd], Some(Duration::from_secs(20))).unwrap(),
                    "no answer"
                );
            }
        }
    }

    /// Polls until nothing is owed; how verbs ended, by token.
    fn finish(&mut self, queue: &mut CompletionQueue, count: usize) -> Vec<Status> {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut ended = vec![None; count];
        while ended.iter().any(Option::is_none) {
            assert!(Instant::now() < deadline, "not ended: {ended:?}");
            let fds: Vec<_> = self
                .clients
                .iter()
                .filter_map(|c| c.endpoint.fd())
                .collect();
            wait(&fds, Some(Duration::from_millis(100))).unwrap();
            self.poll(queue);
            while let Some(completion) = queue.pop() {
                ended[completion.token as usize] = Some(completion.status);
            }
        }
        ended.into_iter().flatten().collect()
    }

    /// Of the endpoints themselves.
    fn own_calls(&self) -> u64 {
        let calls = self.clients.iter().map(|c| c.endpoint.system_calls());
        calls.sum()
    }
}

fn rigs(count: usize, protection: WireProtection) -> Vec<Rig> {
    (0..count).map(|_| Rig::with(8, protection)).collect()
}

/// A batch with a ring, where the system has one.
fn batch() -> Option<Batch> {
    let batch = Batch::new();
    if !batch.is_on() {
        println!("skipped: this system has no io_uring for tcp");
    }
    Some(batch).filter(Batch::is_on)
}

#[test]
fn one_call_sends_to_all_hosts_and_one_hears_them() {
    for protection in WireProtection::ALL {
        let Some(batch) = batch() else { return };
        let rigs = rigs(10, protection);
        let mut fleet = Fleet::new(&rigs, batch);
        let mut queue = CompletionQueue::default();
        let mut landing = vec![0; 10 * 512];
        for (i, part) in landing.chunks_mut(512).enumerate() {
            let (region, window) = rigs[i].window(4096, Rights::ALL);
            region.write(512, &[i as u8 + 1; 512]).unwrap();
            fleet.clients[i].read(&window, 512, part, i as u64);
        }
        fleet.flush(&mut queue);
        assert_eq!((fleet.batch.system_calls(), fleet.own_calls()), (1, 0));
        fleet.await_all();
        fleet.poll(&mut queue);
        assert_eq!((fleet.batch.system_calls(), fleet.own_calls()), (2, 0));
        let ended: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(ended.len(), 10);
        assert!(ended.iter().all(|c| c.status == Status::Ok), "{ended:?}");
        for (i, part) in landing.chunks(512).enumerate() {
            assert_eq!(part, [i as u8 + 1; 512], "of host {i}");
        }
    }
}

#[test]
fn more_endpoints_than_one_call_takes_are_all_served() {
    let Some(batch) = batch() else { return };
    let rig = Rig::new(8);
    let (_region, window) = rig.window(4096, Rights::ALL);
    let mut fleet = Fleet {
        batch,
        clients: (0..130).map(|_| rig.client()).collect(),
    };
    let mut queue = CompletionQueue::default();
    let mut landing = vec![0; 130 * 8];
    for (i, part) in landing.chunks_mut(8).enumerate() {
        fleet.clients[i].read(&window, 0, part, i as u64);
    }
    fleet.flush(&mut queue);
    // Two calls for 64 each, and one for the other two.
    assert_eq!((fleet.batch.system_calls(), fleet.own_calls()), (3, 0));
    assert_eq!(fleet.finish(&mut queue, 130), [Status::Ok; 130]);
}

#[test]
fn a_full_socket_holds_back_no_other_connection() {
    for protection in WireProtection::ALL {
        const LEN: usize = 24 << 20;
        let Some(batch) = batch() else { return };
        let rigs = rigs(3, protection);
        let mut fleet = Fleet::new(&rigs, batch);
        let mut queue = CompletionQueue::default();
        let written = pattern(LEN, 1);
        let mut read = vec![0; LEN];
        let (_long, window) = rigs[0].window(LEN as u64, Rights::ALL);
        fleet.clients[0].write(&window, 0, &written, 0);
        fleet.clients[0].read(&window, 0, &mut read, 1);
        let mut regions = Vec::new();
        for i in [1, 2] {
            let (region, window) = rigs[i].window(4096, Rights::ALL);
            fleet.clients[i].write(&window, 0, &written[..4096], 1 + i as u64);
            regions.push(region);
        }
        fleet.flush(&mut queue);
        assert_eq!(fleet.finish(&mut queue, 4), [Status::Ok; 4]);
        assert!(read == written, "the bytes differ");
        for region in regions {
            let mut bytes = vec![0; 4096];
            region.read(0, &mut bytes).unwrap();
            assert!(bytes == written[..4096], "the bytes differ");
        }
    }
}

#[test]
fn a_connection_that_breaks_ends_its_own_verbs_alone() {
    let Some(batch) = batch() else { return };
    let rigs = rigs(2, WireProtection::Plain);
    let (ours, theirs) = sockets();
    let mut fleet = Fleet::new(&rigs, batch);
    fleet.clients.push(Client::new(ours));
    theirs.shutdown(Shutdown::Both).unwrap();
    let mut queue = CompletionQueue::default();
    let mut landing = [0; 3 * 8];
    let (_region, window) = rigs[0].window(4096, Rights::ALL);
    let (_other, there) = rigs[1].window(4096, Rights::ALL);
    for (i, part) in landing.chunks_mut(8).enumerate() {
        let window = if i == 1 { &there } else { &window };
        fleet.clients[i].read(window, 0, part, i as u64);
    }
    fleet.flush(&mut queue);
    let expected = [Status::Ok, Status::Ok, Status::Disconnected];
    assert_eq!(fleet.finish(&mut queue, 3), expected);
    assert!(fleet.clients[2].endpoint.is_dead());
}

#[test]
fn a_landing_revoked_between_calls_stays_untouched() {
    let Some(batch) = batch() else { return };
    let rigs = rigs(2, WireProtection::Plain);
    let mut fleet = Fleet::new(&rigs, batch);
    let mut queue = CompletionQueue::default();
    let mut landing = vec![7; 2 * 512];
    for (i, part) in landing.chunks_mut(512).enumerate() {
        let (_region, window) = rigs[i].window(4096, Rights::ALL);
        fleet.clients[i].read(&window, 0, part, i as u64);
    }
    fleet.flush(&mut queue);
    fleet.await_all();
    fleet.clients[1].endpoint.revoke_landing(1);
    assert_eq!(fleet.finish(&mut queue, 2)[0], Status::Ok);
    assert!(fleet.batch.system_calls() > 1, "received by the ring");
    assert_eq!(landing[..512], [0; 512]);
    assert_eq!(landing[512..], [7; 512], "bytes of a revoked landing");
}

#[test]
fn without_a_ring_each_endpoint_makes_its_own_calls() {
    let rigs = rigs(3, WireProtection::Encrypted);
    let mut fleet = Fleet::new(&rigs, Batch::off());
    let mut queue = CompletionQueue::default();
    let mut landing = [0; 3 * 8];
    for (i, part) in landing.chunks_mut(8).enumerate() {
        let (_region, window) = rigs[i].window(4096, Rights::ALL);
        fleet.clients[i].read(&window, 0, part, i as u64);
    }
    fleet.flush(&mut queue);
    assert_eq!((fleet.batch.system_calls(), fleet.own_calls()), (0, 3));
    assert_eq!(fleet.finish(&mut queue, 3), [Status::Ok; 3]);
}

#[test]
fn a_request_costs_the_agent_of_several_connections_one_call() {
    const REQUESTS: u64 = 200;
    for protection in WireProtection::ALL {
        let rig = Rig::with(8, protection);
        let (_region, window) = rig.window(4096, Rights::ALL);
        let (mut client, mut other) = (rig.client(), rig.client());
        let mut landing = [0; 512];
        for client in [&mut client, &mut other] {
            client.read(&window, 0, &mut landing, 0);
            assert_eq!(client.next().status, Status::Ok);
        }
        if !rig.agent.has_ring() {
            println!("skipped: this system has no io_uring for a host's tcp");
            return;
        }
        let before = rig.agent.system_calls();
        for token in 0..REQUESTS {
            client.read(&window, 0, &mut landing, token);
            assert_eq!(client.next().status, Status::Ok);
        }
        // A receive and a send apart would be two for each.
        let calls = rig.agent.system_calls() - before;
        assert!(calls < REQUESTS * 3 / 2, "{calls} for {REQUESTS} requests");
    }
}

#[test]
fn an_agent_ends_while_the_kernel_still_receives() {
    for rig in Rig::all(8) {
        let (_region, window) = rig.window(4096, Rights::ALL);
        let mut clients: Vec<_> = (0..8).map(|_| rig.client()).collect();
        for client in &mut clients {
            client.write(&window, 0, &[1; 64], 0);
            assert_eq!(client.next().status, Status::Ok);
        }
        drop(rig.agent);
        let mut landing = [0; 8];
        for client in &mut clients {
            client.read(&window, 0, &mut landing, 1);
            assert_eq!(client.next().status, Status::Disconnected);
        }
    }
}

/// Answers that the ring sends in part, since nobody takes them, are all given in the end.
#[test]
fn many_short_answers_that_nobody_takes_are_given_later() {
    const READS: usize = 40;
    for rig in Rig::all(8) {
        let (region, window) = rig.window(4096, Rights::ALL);
        let bytes = pattern(4096, 3);
        region.write(0, &bytes).unwrap();
        let (ours, theirs) = sockets();
        shrink(&ours, libc::SO_RCVBUF);
        shrink(&theirs, libc::SO_SNDBUF);
        let (mine, other) = records(rig.protection);
        rig.agent.adopt(theirs, CLIENT, other);
        let mut client = Client::with(ours, mine);
        let mut landing = vec![0; READS * 4096];
        for (token, part) in (0..).zip(landing.chunks_mut(4096)) {
            client.read(&window, 0, part, token);
            // Each in a record and a send of its own.
            client.endpoint.flush(&mut client.queue);
        }
        assert_eq!(client.statuses(READS), [Status::Ok; READS]);
        assert!(landing.chunks(4096).all(|part| part == bytes));
    }
}

/// The same of one beside another: the agent waits for both of them, and the first says nothing
/// before it has all.
#[test]
fn an_answer_that_goes_out_in_part_is_given_later_beside_an_idle_client() {
    const LEN: usize = 64 << 10;
    for rig in Rig::all(8) {
        let (region, window) = rig.window(LEN as u64, Rights::ALL);
        let bytes = pattern(LEN, 3);
        region.write(0, &bytes).unwrap();
        let mut idle = rig.client();
        let mut landing = vec![0; LEN];
        idle.read(&window, 0, &mut landing[..8], 1);
        assert_eq!(idle.next().status, Status::Ok);
        let (ours, theirs) = sockets();
        shrink(&ours, libc::SO_RCVBUF);
        shrink(&theirs, libc::SO_SNDBUF);
        let (mine, other) = records(rig.protection);
        rig.agent.adopt(theirs, CLIENT, other);
        let mut client = Client::with(ours, mine);
        client.read(&window, 0, &mut landing, 2);
        assert_eq!(client.next().status, Status::Ok);
        assert!(landing == bytes);
        // Small ones are copied where a ring sends without records.
        for (token, part) in (0..).zip(landing.chunks_mut(4096)) {
            client.read(&window, 0, part, token);
        }
        assert_eq!(client.statuses(LEN / 4096), [Status::Ok; LEN / 4096]);
    }
}

/// Has the system keep as few bytes for a socket as it allows.
fn shrink(socket: &std::net::TcpStream, which: libc::c_int) {
    let bytes: libc::c_int = 4096;
    let len = size_of_val(&bytes) as libc::socklen_t;
    // SAFETY: the option's value is valid for its length.
    let set = unsafe {
        let fd = std::os::fd::AsRawFd::as_raw_fd(socket);
        libc::setsockopt(fd, libc::SOL_SOCKET, which, (&raw const bytes).cast(), len)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}
