//! How long a call takes from one thread to another over `shm` and `tcp`, one at a time, by how long
//! both may look for it before they block: microseconds, the arguments.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cenote_fabric::calls::{Answered, Call, Caller, Spin, Spinner};
use cenote_fabric::{
    Address, ClientId, ClusterKey, Connector, Hello, Listen, Listener, Time, WireProtection,
    connector_with, wait,
};

const SPAN: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let spins: Vec<u64> = std::env::args()
        .skip(1)
        .map(|word| word.parse())
        .collect::<Result<_, _>>()?;
    let directory = tempfile::tempdir()?;
    println!("transport  spin_us  calls_per_second  p50_us  p99_us");
    for spin_us in spins {
        let spin = Duration::from_micros(spin_us);
        let shm = Address::Shm(directory.path().join("host"));
        for address in [shm, "tcp:127.0.0.1:0".parse()?] {
            let name = address.to_string();
            let name = name.split(':').next().unwrap_or_default();
            let mut took = measure(address, spin)?;
            took.sort_unstable();
            let at = |share: usize| took[took.len() * share / 100].as_nanos() as f64 / 1000.0;
            let rate = took.len() as f64 / SPAN.as_secs_f64();
            let (p50, p99) = (at(50), at(99));
            println!("{name:<9}  {spin_us:>7}  {rate:>16.0}  {p50:>6.2}  {p99:>6.2}");
        }
    }
    Ok(())
}

/// The time of each call.
fn measure(address: Address, spin: Duration) -> Result<Vec<Duration>, Box<dyn Error>> {
    let key = ClusterKey::generate()?;
    let plain = WireProtection::Plain;
    let mut listener = Listener::bind_with(&[address], &key, plain, Vec::new())?;
    let mut answerer = listener.answerer()?;
    let address = listener.addresses()[0].clone();
    let wakers = [listener.waker(), answerer.waker()];
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let control = std::thread::spawn(move || {
        let mut events = Vec::new();
        while !stopped.load(Ordering::Acquire) {
            listener.poll(None, &mut events).expect("poll");
            events.clear();
        }
    });
    let stopped = Arc::clone(&stop);
    let server = std::thread::spawn(move || {
        let mut echo = |call: Call<'_>, answer: &mut Vec<u8>| {
            answer.extend_from_slice(call.request);
            Answered::Now
        };
        answerer
            .run(&stopped, Spin(spin), &mut echo)
            .expect("answer");
    });
    let hello = Hello {
        client: ClientId(1),
        name: "latency".into(),
    };
    let session = connector_with(key, plain).connect(&address, &hello, PATIENCE)?;
    let mut caller = session.caller_opener()(PATIENCE)?;
    let took = ask(&mut *caller, spin)?;
    stop.store(true, Ordering::Release);
    wakers.iter().for_each(|waker| waker.wake());
    control.join().expect("the control thread ends");
    server.join().expect("the server thread ends");
    Ok(took)
}

fn ask(caller: &mut dyn Caller, spin: Duration) -> Result<Vec<Duration>, Box<dyn Error>> {
    let mut took = Vec::new();
    let mut spinner = Spinner::new(Spin(spin));
    let begun = Instant::now();
    while begun.elapsed() < SPAN {
        let from = Instant::now();
        caller.call(&[7; 24], 1)?;
        caller.flush();
        loop {
            let mut answer = None;
            caller.poll(Time::now(), &mut |_, ended| {
                answer = Some(ended.map(<[u8]>::len));
            });
            if let Some(ended) = answer {
                ended.map_err(|status| format!("{status:?}"))?;
                spinner.found();
                break;
            }
            if !spinner.looks_on(Time::now()) {
                let fds: Vec<_> = caller.fd().into_iter().collect();
                wait(&fds, Some(Duration::from_millis(10)))?;
            }
        }
        took.push(from.elapsed());
    }
    Ok(took)
}
