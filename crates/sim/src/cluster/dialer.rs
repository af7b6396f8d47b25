//! How a simulated client reaches hosts: what a thread does for a real one, in virtual time.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use cenote_fabric::{Address, Connector, FAILURE_TIMEOUT, Hello, Result, Time};
use cenote_volume::{Dialer, Greeted, Greeting, Link};

type Then = Box<dyn FnOnce(Result<Link>) + Send>;

/// An order to reach a host.
struct Order {
    address: Address,
    hello: Hello,
    then: Then,
}

/// Where the volume's control side leaves its orders.
#[derive(Default)]
pub struct Orders(Mutex<Vec<Order>>);

impl Dialer for Orders {
    fn dial(&self, address: Address, hello: Hello, then: Then) -> io::Result<()> {
        let order = Order {
            address,
            hello,
            then,
        };
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(order);
        Ok(())
    }

    fn run(&self, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        // Nothing blocks in a simulated fabric.
        work();
        Ok(())
    }
}

/// The connections of one client on their way up.
pub struct Dialing {
    connector: Arc<dyn Connector>,
    orders: Arc<Orders>,
    /// Not connected before this time.
    begun: Vec<(Time, Order)>,
    greetings: Vec<(Greeting, Then)>,
}

impl Dialing {
    /// Connects by `connector`, once a call has taken its time.
    pub fn new(connector: Arc<dyn Connector>) -> Self {
        Self {
            connector,
            orders: Arc::default(),
            begun: Vec::new(),
            greetings: Vec::new(),
        }
    }

    /// What the volume is given as its dialer.
    pub fn orders(&self) -> Arc<Orders> {
        Arc::clone(&self.orders)
    }

    /// Takes new orders; each takes `latency_ns()` to connect.
    pub fn take_orders(&mut self, now: Time, mut latency_ns: impl FnMut() -> u64) {
        let orders =
            std::mem::take(&mut *self.orders.0.lock().unwrap_or_else(PoisonError::into_inner));
        for order in orders {
            self.begun.push((Time(now.0 + latency_ns()), order));
        }
    }

    /// Goes on with every connection; whether one ended, so that the volume has to look.
    pub fn step(&mut self, now: Time) -> bool {
        let mut ended = false;
        let (due, later) = std::mem::take(&mut self.begun)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.begun = later;
        for (_, order) in due {
            let session = self
                .connector
                .connect(&order.address, &order.hello, FAILURE_TIMEOUT);
            match session.and_then(|session| Greeting::begin(session, now)) {
                Ok(greeting) => self.greetings.push((greeting, order.then)),
                Err(error) => {
                    (order.then)(Err(error));
                    ended = true;
                }
            }
        }
        for (greeting, then) in std::mem::take(&mut self.greetings) {
            match greeting.poll(now) {
                Ok(Greeted::Waiting(greeting)) => self.greetings.push((greeting, then)),
                Ok(Greeted::Ready(link)) => {
                    then(Ok(link));
                    ended = true;
                }
                Err(error) => {
                    then(Err(error));
                    ended = true;
                }
            }
        }
        ended
    }

    /// When it wants a step although nothing arrives.
    pub fn due(&self, now: Time) -> Option<Time> {
        /// How often an unanswered greeting looks at its time limit.
        const PATIENCE_NS: u64 = 50_000_000;
        let begun = self.begun.iter().map(|(at, _)| *at);
        let greetings = (!self.greetings.is_empty()).then_some(Time(now.0 + PATIENCE_NS));
        begun.chain(greetings).min()
    }
}
