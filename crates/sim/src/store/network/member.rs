//! A client of the simulated store: what it has under way, and what it was told.

use std::collections::BTreeMap;
use std::time::Duration;

use cenote_fabric::sim::{self, Memory, Net, NodeId, Notice, SimConnector};
use cenote_fabric::{Address, ClientId, Time};
use cenote_measure::random::Random;
use cenote_store::client::{Client, ClientError, Command, Connecting, Counts, Outcome};
use cenote_store::schemes::{Durable, Scheme};
use cenote_store::{Condition, Refusal, shard_of};

use super::{KEYS, POOL, Ran, SHARDS};
use crate::store::life::name;
use crate::store::oracle::{Checked, Floor, Oracle};

/// What a scheme's acknowledgements say.
pub struct Promises<'a> {
    pub scheme: &'a dyn Scheme,
    /// What is read is durable.
    pub is_durable: bool,
}

pub struct Member {
    address: Address,
    connector: SimConnector,
    number: u64,
    state: State,
    pub is_paused: bool,
    asked: BTreeMap<u64, Asked>,
    next_token: u64,
    /// Put on this connection, and not known to be durable.
    put: Vec<(u64, u64)>,
    /// Keys that are still to be read at the end.
    last_reads: Option<Vec<u64>>,
}

enum State {
    Away(Time),
    Coming(Connecting, Time),
    Here(Box<Client>),
}

/// A command under way.
#[derive(Debug)]
enum Asked {
    Put {
        key: u64,
        value: Vec<u8>,
        is_durable: bool,
        /// The version that it is to be put in place of.
        before: Option<u64>,
    },
    Delete {
        key: u64,
    },
    /// What was told before it was asked.
    Get {
        key: u64,
        floor: Floor,
    },
    Sync {
        covers: Vec<(u64, u64)>,
    },
}

impl Asked {
    fn covers_mut(&mut self) -> Option<&mut Vec<(u64, u64)>> {
        match self {
            Self::Sync { covers } => Some(covers),
            _ => None,
        }
    }
}

const TIMEOUT: Duration = Duration::from_secs(1);
/// Most commands under way.
const DEPTH: usize = 4;

impl Member {
    pub fn new(net: &Net, number: u64, address: &Address) -> Self {
        Self {
            address: address.clone(),
            connector: net.client(&format!("client {number}")),
            number,
            state: State::Away(Time(0)),
            is_paused: false,
            asked: BTreeMap::new(),
            next_token: 0,
            put: Vec::new(),
            last_reads: None,
        }
    }

    pub fn node(&self) -> NodeId {
        self.connector.node()
    }

    /// Its process is killed, and started again.
    pub fn die(&mut self, net: &Net, random: &mut Random) {
        let notice = match random.below(2) {
            0 => Notice::AtOnce,
            _ => Notice::BySilence,
        };
        net.crash(self.node(), Memory::Lost, notice);
        net.restart_client(self.node());
        self.is_paused = false;
        self.leave(net, random);
    }

    fn leave(&mut self, net: &Net, random: &mut Random) {
        let pause = Duration::from_micros(random.below(20_000));
        self.state = State::Away(net.now().after(pause));
        self.asked.clear();
        self.put.clear();
    }

    pub fn begin_last_reads(&mut self) {
        self.last_reads = Some((0..KEYS).collect());
    }

    pub fn is_done(&self) -> bool {
        self.last_reads.as_ref().is_some_and(Vec::is_empty) && self.asked.is_empty()
    }

    pub fn describe(&self) -> String {
        let state = match self.state {
            State::Away(_) => "away",
            State::Coming(..) => "coming",
            State::Here(_) => "here",
        };
        format!(
            "client {}: {state}, {} under way",
            self.number,
            self.asked.len()
        )
    }

    pub fn step(
        &mut self,
        net: &Net,
        random: &mut Random,
        oracle: &mut Oracle,
        promises: &Promises<'_>,
        is_stormy: bool,
        ran: &mut Ran,
    ) -> Checked {
        if self.is_paused {
            return Ok(());
        }
        let now = net.now();
        match std::mem::replace(&mut self.state, State::Away(now)) {
            State::Away(until) if until > now => self.state = State::Away(until),
            State::Away(_) => {
                let id = ClientId(7 + u128::from(self.number));
                match Connecting::begin(&self.connector, &self.address, id, TIMEOUT) {
                    Ok(coming) => self.state = State::Coming(coming, now),
                    Err(_) => self.leave(net, random),
                }
            }
            State::Coming(mut coming, since) => match coming.advance() {
                Ok(false) if now.since(since) < TIMEOUT => {
                    self.state = State::Coming(coming, since);
                }
                Ok(true) => match coming.finish(TIMEOUT) {
                    Ok(mut client) => {
                        client.set_clock(sim::now);
                        self.state = State::Here(Box::new(client));
                    }
                    Err(_) => self.leave(net, random),
                },
                _ => self.leave(net, random),
            },
            State::Here(mut client) => {
                let counts = client.counts();
                let is_lost = self.work(&mut client, now, random, oracle, promises, ran)?;
                count(ran, counts, client.counts());
                if is_lost {
                    self.leave(net, random);
                } else {
                    let depth = self.asked.len();
                    self.state = State::Here(client);
                    if depth < DEPTH && random.below(3) == 0 {
                        self.ask(now, random, oracle, is_stormy);
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes what ended; whether the connection did.
    fn work(
        &mut self,
        client: &mut Client,
        now: Time,
        random: &mut Random,
        oracle: &mut Oracle,
        promises: &Promises<'_>,
        ran: &mut Ran,
    ) -> Result<bool, String> {
        let mut is_lost = false;
        while let Some((token, end)) = client.poll(now) {
            let Some(asked) = self.asked.remove(&token) else {
                return Err(format!("a command of client {} ended twice", self.number));
            };
            match end {
                Ok(outcome) => {
                    ran.done += 1;
                    self.take(asked, outcome, oracle, promises)?;
                }
                Err(ClientError::Lost(_)) => {
                    ran.lost += 1;
                    is_lost = true;
                }
                // The medium has failed: nobody knows, but the next life.
                Err(ClientError::Refused(Refusal::Broken)) => {}
                // What is late lands in the log all the same, and a recovery finds it whole.
                Err(ClientError::Refused(Refusal::Incomplete))
                    if !promises.scheme.lands_beside_log() => {}
                Err(ClientError::Refused(_)) => refused(&asked, oracle),
                Err(error) => return Err(format!("client {}: {error}", self.number)),
            }
        }
        // Who hears of nothing more gives up.
        Ok(is_lost || !self.asked.is_empty() && random.below(20_000) == 0)
    }

    fn take(
        &mut self,
        asked: Asked,
        outcome: Outcome,
        oracle: &mut Oracle,
        promises: &Promises<'_>,
    ) -> Checked {
        let at_once = promises.scheme.durable() == Durable::BeforeAck;
        oracle.note(|| format!("client {} of {asked:?}: {outcome:?}", self.number));
        match (asked, outcome) {
            (
                Asked::Put {
                    key,
                    value,
                    is_durable,
                    before,
                },
                Outcome::Done { sequence },
            ) => {
                let sequence = version(key, sequence);
                if let Some(before) = before {
                    oracle.replaced(key, before, sequence);
                }
                oracle.known(key, Some(&value));
                oracle.allocated(key, sequence, Some(value))?;
                match is_durable || at_once {
                    true => oracle.tell(key, sequence),
                    false => self.put.push((key, sequence)),
                }
            }
            (Asked::Delete { key }, Outcome::Done { sequence }) => {
                let sequence = version(key, sequence);
                oracle.known(key, None);
                oracle.allocated(key, sequence, None)?;
                oracle.tell(key, sequence);
            }
            (Asked::Get { key, floor }, Outcome::Value { sequence, value }) => {
                let said = Some((version(key, sequence), value));
                oracle.check_since(key, floor, said, promises.is_durable)?;
            }
            (Asked::Get { key, floor }, Outcome::Absent) => {
                oracle.check_since(key, floor, None, promises.is_durable)?;
            }
            (Asked::Sync { covers }, Outcome::Synced { lost }) => {
                self.put.retain(|one| !covers.contains(one));
                if lost > 0 {
                    // Any of those that it was told to have written may be the lost one, and none is counted
                    // twice.
                    self.put.clear();
                    let waits = self.asked.values_mut();
                    for covers in waits.filter_map(Asked::covers_mut) {
                        covers.clear();
                    }
                } else if promises.is_durable {
                    for (key, sequence) in covers {
                        oracle.tell(key, sequence);
                    }
                }
            }
            (_, outcome) => return Err(format!("client {}: told {outcome:?}", self.number)),
        }
        Ok(())
    }

    fn ask(&mut self, now: Time, random: &mut Random, oracle: &mut Oracle, is_stormy: bool) {
        let mut key = random.below(KEYS);
        let (command, asked) = if let Some(left) = &mut self.last_reads {
            let Some(next) = left.pop() else { return };
            key = next;
            get(key, oracle)
        } else {
            match random.below(20) {
                0..8 => get(key, oracle),
                8..16 => self.put(key, random, oracle),
                16 => {
                    oracle.unknown.push((key, None));
                    let condition = Condition::Always;
                    let command = Command::Delete {
                        key: name(key),
                        condition,
                    };
                    (command, Asked::Delete { key })
                }
                17 => {
                    let covers = self.put.clone();
                    (Command::Sync, Asked::Sync { covers })
                }
                _ => return,
            }
        };
        debug_assert!(is_stormy || self.last_reads.is_some());
        let State::Here(client) = &mut self.state else {
            return;
        };
        self.next_token += 1;
        oracle.note(|| format!("client {} asks {asked:?}", self.number));
        client.submit(command, self.next_token, now);
        self.asked.insert(self.next_token, asked);
    }

    fn put(&self, key: u64, random: &mut Random, oracle: &mut Oracle) -> (Command, Asked) {
        // Nobody writes the same twice.
        let tag = [self.number, self.next_token, random.next()];
        let mut value: Vec<u8> = tag.iter().flat_map(|word| word.to_le_bytes()).collect();
        let len = match random.below(4) {
            0 => value.len() as u64,
            _ => random.between(24, 700),
        };
        value.extend((value.len() as u64..len).map(|at| at as u8 ^ tag[2] as u8));
        let is_durable = random.below(3) == 0;
        let condition = match random.below(6) {
            0 => Condition::Absent,
            1 => Condition::Sequence(oracle.told(key) / SHARDS as u64),
            _ => Condition::Always,
        };
        oracle.unknown.push((key, Some(value.clone())));
        let command = Command::Put {
            key: name(key),
            value: value.clone(),
            condition,
            is_durable,
        };
        let before = matches!(condition, Condition::Sequence(_)).then(|| oracle.told(key));
        let asked = Asked::Put {
            key,
            value,
            is_durable,
            before,
        };
        (command, asked)
    }
}

/// Sequences are of a shard: these are of the store, in the same order.
fn version(key: u64, sequence: u64) -> u64 {
    let shard = shard_of(POOL.seed, &name(key), SHARDS) as u64;
    sequence * SHARDS as u64 + shard
}

fn get(key: u64, oracle: &Oracle) -> (Command, Asked) {
    let floor = oracle.floor(key);
    (Command::Get { key: name(key) }, Asked::Get { key, floor })
}

/// Nothing was done, and nothing will be.
fn refused(asked: &Asked, oracle: &mut Oracle) {
    match asked {
        Asked::Put { key, value, .. } => oracle.known(*key, Some(value)),
        Asked::Delete { key } => oracle.known(*key, None),
        Asked::Get { .. } | Asked::Sync { .. } => {}
    }
}

fn count(ran: &mut Ran, before: Counts, after: Counts) {
    ran.gets.0 += after.pure_gets - before.pure_gets;
    ran.gets.1 += after.asked_gets - before.asked_gets;
}
