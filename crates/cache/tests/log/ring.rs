//! A cache's bytes as a tier sees them, that are slow, fail, and lose regions.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use cenote_cache::client::{Ended, Error};
use cenote_cache::log::tiers::remote::Remote;

use cenote_test_kit::Random;

/// See the module. Requests take effect in the order of their submission, at any time until they end.
pub struct Ring {
    bytes: Vec<u8>,
    region_bytes: u64,
    random: Random,
    /// One write in so many fails; 0: none.
    failing_writes: u64,
    /// One poll in so many loses a region; 0: none.
    losses: u64,
    waiting: VecDeque<Submitted>,
    done: Vec<(u64, Ended)>,
    lost: VecDeque<Range<u64>>,
}

enum Submitted {
    Read(u64, BytesMut, u64),
    Write(u64, Bytes, u64),
}

impl Ring {
    pub fn new(len_bytes: usize, region_bytes: u64, seed: u64) -> Self {
        Self {
            bytes: vec![0; len_bytes],
            region_bytes,
            random: Random(seed),
            failing_writes: 0,
            losses: 0,
            waiting: VecDeque::new(),
            done: Vec::new(),
            lost: VecDeque::new(),
        }
    }

    pub fn failing(mut self, failing_writes: u64, losses: u64) -> Self {
        (self.failing_writes, self.losses) = (failing_writes, losses);
        self
    }

    fn hits(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.random.one_in(one_in)
    }

    fn carry_out(&mut self, request: Submitted) {
        let (token, result, buffer) = match request {
            Submitted::Read(at, mut buffer, token) => {
                let at = at as usize;
                let len_bytes = buffer.len();
                buffer.copy_from_slice(&self.bytes[at..at + len_bytes]);
                (token, Ok(()), buffer)
            }
            Submitted::Write(at, bytes, token) => {
                let region = u32::try_from(at / self.region_bytes).unwrap();
                let mut result = Ok(());
                let mut arrive = bytes.len();
                if self.hits(self.failing_writes) {
                    result = Err(Error::Unavailable { region });
                    arrive = self.random.below(arrive as u64) as usize;
                }
                let at = at as usize;
                self.bytes[at..at + arrive].copy_from_slice(&bytes[..arrive]);
                (token, result, BytesMut::new())
            }
        };
        let polls = self.random.below(4);
        let ended = Ended {
            token,
            result,
            buffer,
        };
        self.done.push((polls, ended));
    }

    fn lose(&mut self) {
        let regions = self.bytes.len() as u64 / self.region_bytes;
        let start = self.random.below(regions) * self.region_bytes;
        let range = start..start + self.region_bytes;
        self.bytes[range.start as usize..range.end as usize].fill(0);
        self.lost.push_back(range);
    }
}

impl Remote for Ring {
    fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn submit_read(&mut self, address: u64, buffer: BytesMut, token: u64) -> Result<(), Error> {
        self.waiting
            .push_back(Submitted::Read(address, buffer, token));
        Ok(())
    }

    fn submit_write(&mut self, address: u64, bytes: Bytes, token: u64) -> Result<(), Error> {
        if self.waiting.len() > 5 {
            return Err(Error::Full);
        }
        self.waiting
            .push_back(Submitted::Write(address, bytes, token));
        Ok(())
    }

    fn poll(&mut self, ended: &mut Vec<Ended>) -> io::Result<()> {
        while !self.waiting.is_empty() && !self.random.one_in(3) {
            let request = self.waiting.pop_front().unwrap();
            self.carry_out(request);
            if self.hits(self.losses) {
                self.lose();
            }
        }
        for (polls, _) in &mut self.done {
            *polls = polls.saturating_sub(1);
        }
        let is_over = |(polls, _): &mut (u64, Ended)| *polls == 0;
        ended.extend(self.done.extract_if(.., is_over).map(|(_, end)| end));
        Ok(())
    }

    fn take_lost(&mut self) -> Option<Range<u64>> {
        self.lost.pop_front()
    }
}
