//! One client of a history: what it asks, and what it makes of the answers.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use cenote_measure::random::{Random, mix};

use super::{Answer, Ask, Operation, Options};
use crate::memcached_text::{self, Item, with_value};

pub(super) struct Client<'a> {
    options: &'a Options,
    number: usize,
    prefix: &'a str,
    began: Instant,
    /// Whether nothing is done meanwhile any more.
    is_led: &'a AtomicBool,
    random: Random,
    /// Of the node that it asks.
    address: usize,
    server: Option<memcached_text::Client>,
    /// The last number that a GETS returned, of each key.
    uniques: Vec<Option<u64>>,
    /// Writes so far.
    written: u64,
    /// Requests so far.
    asked: usize,
}

/// What a server answered.
#[derive(Debug)]
enum Said {
    Line(String),
    Item(Option<Item>),
}

/// What came back of one request.
#[derive(Debug, Default, Eq, PartialEq)]
struct Returned {
    answer: Option<Answer>,
    value: Option<u64>,
    unique: Option<u64>,
}

impl<'a> Client<'a> {
    pub(super) fn new(
        options: &'a Options,
        number: usize,
        prefix: &'a str,
        began: Instant,
        is_led: &'a AtomicBool,
    ) -> Self {
        Self {
            options,
            number,
            prefix,
            began,
            is_led,
            random: Random::new(mix(options.seed) ^ number as u64),
            address: number % options.addresses.len(),
            server: None,
            uniques: vec![None; options.keys],
            written: 0,
            asked: 0,
        }
    }

    pub(super) fn run(mut self) -> Result<Vec<Operation>> {
        let mean_s = self.options.clients as f64 / f64::from(self.options.rate);
        let mut operations = Vec::new();
        while !self.is_over() {
            // Between nothing and twice the mean, so that clients meet in all ways.
            std::thread::sleep(Duration::from_secs_f64(mean_s * 2.0 * self.random.unit()));
            if self.server.is_none() && !self.connect()? {
                break;
            }
            operations.extend(self.ask()?);
            self.asked += 1;
        }
        Ok(operations)
    }

    fn is_over(&self) -> bool {
        let share = self.options.at_least.div_ceil(self.options.clients);
        self.asked >= share
            && self.began.elapsed() >= self.options.time
            && self.is_led.load(Ordering::SeqCst)
    }

    /// Whether a node was found before it was over.
    fn connect(&mut self) -> Result<bool> {
        let patience = Instant::now() + CONNECT_LIMIT;
        loop {
            let address = self.options.addresses[self.address];
            match memcached_text::Client::connect(address, ANSWER_LIMIT) {
                Ok(server) => {
                    self.server = Some(server);
                    return Ok(true);
                }
                Err(_) if self.is_over() => return Ok(false),
                Err(error) if Instant::now() >= patience => {
                    return Err(error).with_context(|| format!("connect to {address}"));
                }
                Err(_) => {
                    self.address = (self.address + 1) % self.options.addresses.len();
                    std::thread::sleep(RETRY_PERIOD);
                }
            }
        }
    }

    /// One request; `None` of a GET that was not answered, which says nothing.
    fn ask(&mut self) -> Result<Option<Operation>> {
        let key_number = usize::try_from(self.random.below(self.options.keys as u64))?;
        let key = format!("{}{key_number}", self.prefix);
        let (ask, argument) = self.choose(self.uniques[key_number].is_some());
        let unique = (ask == Ask::Cas)
            .then(|| self.uniques[key_number].take())
            .flatten();
        let request = request(ask, &key, argument, unique);
        let call_ns = self.now_ns();
        let said = self.exchange(ask, &request);
        let return_ns = self.now_ns();
        let returned = match said {
            Ok(said) => understand(ask, &said).with_context(|| {
                let request = request.escape_ascii();
                format!("\"{request}\": {said:?}")
            })?,
            Err(_) => Returned::default(),
        };
        let answer = returned.answer.unwrap_or(Answer::Unknown);
        if answer == Answer::Unknown {
            // Whatever comes late on this connection is of no use.
            self.server = None;
            self.address = (self.address + 1) % self.options.addresses.len();
            if matches!(ask, Ask::Get | Ask::Gets) {
                return Ok(None);
            }
        }
        if ask == Ask::Gets {
            self.uniques[key_number] = returned.unique;
        }
        Ok(Some(Operation {
            client: self.number,
            key,
            ask,
            argument,
            unique: unique.or(returned.unique),
            answer,
            value: returned.value,
            call_ns,
            return_ns: (answer != Answer::Unknown).then_some(return_ns),
        }))
    }

    fn choose(&mut self, has_unique: bool) -> (Ask, Option<u64>) {
        let ask = match self.random.below(100) {
            0..25 => Ask::Get,
            25..45 => Ask::Gets,
            45..60 => Ask::Set,
            60..65 => Ask::Add,
            65..80 if has_unique => Ask::Cas,
            65..80 => Ask::Gets,
            80..92 => Ask::Incr,
            _ => Ask::Delete,
        };
        let argument = match ask {
            Ask::Set | Ask::Add | Ask::Cas => {
                self.written += 1;
                // Room for what is added to it, so that no two writes meet in a value.
                Some((self.number as u64 + 1) * 1_000_000_000_000 + self.written * 1_000_000)
            }
            Ask::Incr => Some(1 + self.random.below(9)),
            Ask::Get | Ask::Gets | Ask::Delete => None,
        };
        (ask, argument)
    }

    fn exchange(&mut self, ask: Ask, request: &[u8]) -> io::Result<Said> {
        let server = self.server.as_mut().ok_or(ErrorKind::NotConnected)?;
        server.send(request)?;
        if matches!(ask, Ask::Get | Ask::Gets) {
            let found = server.value()?;
            return Ok(found.map_or_else(Said::Line, Said::Item));
        }
        server.line().map(Said::Line)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

fn request(ask: Ask, key: &str, argument: Option<u64>, unique: Option<u64>) -> Vec<u8> {
    let value = argument.unwrap_or_default().to_string();
    let store = |name: &str, tail: &str| {
        let head = format!("{name} {key}");
        with_value(&head, value.as_bytes(), tail)
    };
    match ask {
        Ask::Get => format!("get {key}\r\n").into_bytes(),
        Ask::Gets => format!("gets {key}\r\n").into_bytes(),
        Ask::Set => store("set", ""),
        Ask::Add => store("add", ""),
        Ask::Cas => store("cas", &format!(" {}", unique.unwrap_or_default())),
        Ask::Incr => format!("incr {key} {value}\r\n").into_bytes(),
        Ask::Delete => format!("delete {key}\r\n").into_bytes(),
    }
}

/// What an answer means.
///
/// # Errors
/// One that no server may give to this request.
fn understand(ask: Ask, said: &Said) -> Result<Returned> {
    let mut returned = Returned::default();
    let answer = match (ask, said) {
        (Ask::Get | Ask::Gets, Said::Item(None)) => Answer::Miss,
        (Ask::Get | Ask::Gets, Said::Item(Some((unique, value)))) => {
            returned.value = Some(
                str::from_utf8(value)?
                    .trim_end()
                    .parse()
                    .context("a value is a number")?,
            );
            if ask == Ask::Gets {
                returned.unique = Some(unique.context("a GETS has a number")?);
            }
            Answer::Value
        }
        (_, Said::Item(_)) => bail!("this is no answer to it"),
        (_, Said::Line(line)) => match (ask, line.as_str()) {
            // Nothing is said about what was done.
            (_, line) if line.starts_with("SERVER_ERROR") => Answer::Unknown,
            (Ask::Set | Ask::Add | Ask::Cas, "STORED") => Answer::Stored,
            (Ask::Add, "NOT_STORED") => Answer::NotStored,
            (Ask::Cas, "EXISTS") => Answer::Exists,
            (Ask::Cas | Ask::Incr | Ask::Delete, "NOT_FOUND") => Answer::NotFound,
            (Ask::Delete, "DELETED") => Answer::Deleted,
            (Ask::Incr, number) => {
                returned.value = Some(number.parse().context("what it became is a number")?);
                Answer::Value
            }
            _ => bail!("this is no answer to it"),
        },
    };
    returned.answer = Some(answer);
    Ok(returned)
}

/// A node that is silent for so long is given up. Arbitrary.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// When no node at all accepts. Arbitrary.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
const RETRY_PERIOD: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn line(line: &str) -> Said {
        Said::Line(line.to_owned())
    }

    fn item(unique: Option<u64>, value: &[u8]) -> Said {
        Said::Item(Some((unique, value.to_owned())))
    }

    #[test]
    fn answers_mean_what_memcached_says_they_do() {
        for (ask, said, answer, value, unique) in [
            (Ask::Get, Said::Item(None), Answer::Miss, None, None),
            (Ask::Get, item(None, b"12"), Answer::Value, Some(12), None),
            (
                Ask::Gets,
                item(Some(99), b"12"),
                Answer::Value,
                Some(12),
                Some(99),
            ),
            (Ask::Add, line("NOT_STORED"), Answer::NotStored, None, None),
            (Ask::Cas, line("EXISTS"), Answer::Exists, None, None),
            (Ask::Incr, line("13"), Answer::Value, Some(13), None),
            (Ask::Incr, line("NOT_FOUND"), Answer::NotFound, None, None),
            (
                Ask::Set,
                line("SERVER_ERROR out of memory"),
                Answer::Unknown,
                None,
                None,
            ),
        ] {
            let expected = Returned {
                answer: Some(answer),
                value,
                unique,
            };
            assert_eq!(understand(ask, &said).unwrap(), expected, "{said:?}");
        }
    }

    #[test]
    fn what_is_no_answer_to_a_request_is_an_error() {
        for (ask, said) in [
            (Ask::Set, line("NOT_STORED")),
            (Ask::Set, line("ERROR")),
            (Ask::Get, line("CLIENT_ERROR line too long")),
            (Ask::Get, item(None, b"x")),
            (Ask::Gets, item(None, b"12")),
            (Ask::Incr, line("CLIENT_ERROR cannot increment")),
            (Ask::Delete, line("STORED")),
        ] {
            assert!(understand(ask, &said).is_err(), "{said:?}");
        }
    }
}
