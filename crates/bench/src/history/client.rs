//! One client of a history: what it asks, and what it makes of the answers.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use cenote_measure::random::{Random, mix};

use super::{Answer, Ask, Operation, Options};

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
    stream: Option<BufReader<TcpStream>>,
    /// The last number that a GETS returned, of each key.
    uniques: Vec<Option<u64>>,
    /// Writes so far.
    written: u64,
    /// Requests so far.
    asked: usize,
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
            stream: None,
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
            if self.stream.is_none() && !self.connect()? {
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
            match TcpStream::connect_timeout(&address, ANSWER_LIMIT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
                    self.stream = Some(BufReader::new(stream));
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
        let returned = self.exchange(&request);
        let return_ns = self.now_ns();
        let returned = match returned {
            Ok(line) => {
                let value = self.value_of(&line);
                understand(ask, &line, value).with_context(|| format!("{request:?}: {line:?}"))?
            }
            Err(_) => Returned::default(),
        };
        let answer = returned.answer.unwrap_or(Answer::Unknown);
        if answer == Answer::Unknown {
            // Whatever comes late on this connection is of no use.
            self.stream = None;
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

    /// Sends, and reads the first line of the answer.
    fn exchange(&mut self, request: &str) -> io::Result<String> {
        let stream = self.stream.as_mut().ok_or(ErrorKind::NotConnected)?;
        stream.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        stream.read_line(&mut line)?;
        if !line.ends_with("\r\n") {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.len() - 2);
        Ok(line)
    }

    /// What follows a line that announces a value; `None` if the connection ended in it.
    fn value_of(&mut self, line: &str) -> Option<String> {
        let length = line
            .strip_prefix("VALUE ")?
            .split(' ')
            .nth(2)?
            .parse()
            .ok()?;
        let stream = self.stream.as_mut()?;
        let mut bytes = vec![0; usize::min(length, VALUE_BYTES_MAX) + "\r\nEND\r\n".len()];
        stream.read_exact(&mut bytes).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        Some(text.strip_suffix("\r\nEND\r\n")?.to_owned())
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

fn request(ask: Ask, key: &str, argument: Option<u64>, unique: Option<u64>) -> String {
    let value = argument.unwrap_or_default().to_string();
    let length = value.len();
    match ask {
        Ask::Get => format!("get {key}\r\n"),
        Ask::Gets => format!("gets {key}\r\n"),
        Ask::Set => format!("set {key} 0 0 {length}\r\n{value}\r\n"),
        Ask::Add => format!("add {key} 0 0 {length}\r\n{value}\r\n"),
        Ask::Cas => {
            let unique = unique.unwrap_or_default();
            format!("cas {key} 0 0 {length} {unique}\r\n{value}\r\n")
        }
        Ask::Incr => format!("incr {key} {value}\r\n"),
        Ask::Delete => format!("delete {key}\r\n"),
    }
}

/// What an answer means; a value that did not come whole is no answer.
///
/// # Errors
/// One that no server may give to this request.
fn understand(ask: Ask, line: &str, value: Option<String>) -> Result<Returned> {
    let mut returned = Returned::default();
    let answer = match (ask, line) {
        // Nothing is said about what was done.
        (_, line) if line.starts_with("SERVER_ERROR") => Answer::Unknown,
        (Ask::Get | Ask::Gets, "END") => Answer::Miss,
        (Ask::Get | Ask::Gets, line) if line.starts_with("VALUE ") => {
            let Some(value) = value else {
                return Ok(returned);
            };
            returned.value = Some(value.trim_end().parse().context("a value is a number")?);
            if ask == Ask::Gets {
                let unique = line.split(' ').nth(4).context("a GETS has a number")?;
                returned.unique = Some(unique.parse().context("and it is one")?);
            }
            Answer::Value
        }
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
    };
    returned.answer = Some(answer);
    Ok(returned)
}

/// A node that is silent for so long is given up. Arbitrary.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// When no node at all accepts. Arbitrary.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
const RETRY_PERIOD: Duration = Duration::from_millis(20);
/// Values are digits; what is longer is none of ours.
const VALUE_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(ask: Ask, line: &str, value: Option<&str>) -> Result<Returned> {
        understand(ask, line, value.map(str::to_owned))
    }

    #[test]
    fn answers_mean_what_memcached_says_they_do() {
        for (ask, line, value, expected) in [
            (Ask::Get, "END", None, (Answer::Miss, None, None)),
            (
                Ask::Get,
                "VALUE k 0 2",
                Some("12"),
                (Answer::Value, Some(12), None),
            ),
            (
                Ask::Gets,
                "VALUE k 0 2 99",
                Some("12"),
                (Answer::Value, Some(12), Some(99)),
            ),
            (
                Ask::Add,
                "NOT_STORED",
                None,
                (Answer::NotStored, None, None),
            ),
            (Ask::Cas, "EXISTS", None, (Answer::Exists, None, None)),
            (Ask::Incr, "13", None, (Answer::Value, Some(13), None)),
            (Ask::Incr, "NOT_FOUND", None, (Answer::NotFound, None, None)),
            (
                Ask::Set,
                "SERVER_ERROR out of memory",
                None,
                (Answer::Unknown, None, None),
            ),
        ] {
            let returned = answer(ask, line, value).unwrap();
            let (expected, value, unique) = expected;
            assert_eq!(
                returned,
                Returned {
                    answer: Some(expected),
                    value,
                    unique
                },
                "{line}"
            );
        }
        assert_eq!(
            answer(Ask::Get, "VALUE k 0 2", None).unwrap(),
            Returned::default()
        );
    }

    #[test]
    fn what_is_no_answer_to_a_request_is_an_error() {
        for (ask, line) in [
            (Ask::Set, "NOT_STORED"),
            (Ask::Set, "ERROR"),
            (Ask::Get, "CLIENT_ERROR line too long"),
            (Ask::Incr, "CLIENT_ERROR cannot increment"),
            (Ask::Delete, "STORED"),
        ] {
            assert!(answer(ask, line, None).is_err(), "{line}");
        }
    }
}
