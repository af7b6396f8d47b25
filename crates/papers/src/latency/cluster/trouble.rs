//! What `latency::trouble` does to a cluster, and asks of it.

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use cenote_volume::{Op, PAGE_BYTES, Request};

use super::{Cluster, PATIENCE, SLAB_BYTES};
use crate::latency::{Operation, costs};

impl Cluster {
    /// The host of the first split of the first extent.
    pub fn first_host(&self) -> Result<usize> {
        let seats = self.volume.seats();
        let first = seats.first().ok_or_else(|| anyhow!("nothing is mapped"))?;
        Ok(first.host)
    }

    /// Waits a little, so that nothing is in step, and for what is under way.
    fn rest(&mut self) -> Result<()> {
        let pause_ns = self.random.below(10_000);
        self.pass(self.net.now().after(Duration::from_nanos(pause_ns)));
        self.settle()
    }

    /// As [`Cluster::measure`], of a page with a split that is wrong.
    pub fn measure_rotten(&mut self, operation: Operation) -> Result<u64> {
        self.rest()?;
        let page = self.random.below(self.setup.pages);
        let split_bytes = self.setup.resilience.scheme().split_bytes();
        let extent_pages = SLAB_BYTES / split_bytes as u64;
        let extent = usize::try_from(page / extent_pages)?;
        let mut seats = self.volume.seats();
        seats.retain(|seat| seat.extent == extent && seat.is_live);
        ensure!(!seats.is_empty(), "page {page} is on no host");
        let at = usize::try_from(self.random.below(seats.len() as u64))?;
        let node = self.hosts[seats[at].host].node;
        let offset = page % extent_pages * split_bytes as u64;
        self.net.corrupt(
            node,
            seats[at].window,
            seats[at].generation,
            offset,
            split_bytes,
        )?;
        match operation {
            Operation::Read => self.read(page),
            Operation::Write => self.write(page),
        }
    }

    /// Reads or writes `count` neighbouring pages at once; adds how long each took.
    pub fn measure_burst(
        &mut self,
        operation: Operation,
        count: usize,
        times: &mut Vec<u64>,
    ) -> Result<()> {
        self.rest()?;
        let start = self.net.now();
        let first = self.random.below(self.setup.pages);
        let is_woken = !self.setup.switches.run_to_completion;
        self.is_rung = false;
        for number in 0..count as u64 {
            let page = (first + number) % self.setup.pages;
            let bytes = vec![number as u8; PAGE_BYTES];
            let request = Request {
                tag: number,
                offset: page * PAGE_BYTES as u64,
                op: match operation {
                    Operation::Read => Op::Read(bytes),
                    Operation::Write => Op::Write(bytes),
                },
            };
            ensure!(self.worker()?.submit(request).is_ok(), "a burst too large");
        }
        let (mut done, mut left) = (Vec::new(), count);
        while left > 0 {
            let polled_at = self.net.now();
            if is_woken && std::mem::take(&mut self.is_rung) {
                costs::wake();
            }
            self.worker()?.poll(&mut done);
            if self.setup.disk_ns.is_some() {
                self.volume.turn();
            }
            if is_woken && !done.is_empty() {
                costs::wake();
            }
            let took = self.net.now().since(start);
            for end in done.drain(..) {
                end.result?;
                times.push(u64::try_from(took.as_nanos())?);
                left -= 1;
            }
            ensure!(took < PATIENCE, "a burst is not done");
            // What came while the processor worked is there already.
            if left > 0 && self.net.now() == polled_at {
                self.step();
            }
        }
        Ok(())
    }
}
