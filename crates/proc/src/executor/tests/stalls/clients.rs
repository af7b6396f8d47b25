//! What is asked of numbers, and whether the answers are right.

use super::{ADD, Asked, CACHE, Count, MACHINES, NUMBERS, READ, REGION, REGIONS, Row, SET, World};
use cenote_proc_sdk::Away;
use cenote_proc_sdk::procedures::{Reached, Walk};

use super::Event;
use crate::{ClientId, Request, Response, Status};

impl World {
    pub(super) fn ask(&mut self) {
        let number = self.requests;
        self.requests += 1;
        let number_at = self.below(NUMBERS.len());
        let addr = REGION * self.below(REGIONS) as u64 + NUMBERS[number_at];
        let is_set = |asked: &Asked| asked.addr == addr && asked.procedure == SET;
        let is_being_set = self.asked.values().any(is_set);
        let reads = self.below(2) == 0;
        let away = [Away::Fetch, Away::Move][self.below(2)];
        let count = self.counts.entry(addr).or_default();
        let least = count.done;
        let (procedure, argument) = if reads || is_being_set {
            let read = Walk {
                node: addr,
                hops: 0,
                next_at: 0,
                value_at: 0,
                away,
            };
            (READ, read.to_bytes().to_vec())
        } else {
            count.asked += 1;
            let argument = [addr.to_le_bytes(), count.asked.to_le_bytes()].concat();
            (if number_at == 2 { SET } else { ADD }, argument)
        };
        let set_to = count.asked;
        let asked = Asked {
            addr,
            procedure,
            least,
            set_to,
        };
        self.asked.insert(number, asked);
        let request = Request::new(ClientId(number % 3), number, CACHE, procedure, &argument);
        let to = self.below(MACHINES);
        self.send(to, Event::Request(request));
    }

    pub(super) fn check(&mut self, response: &Response) {
        let Some(asked) = self.asked.remove(&response.number) else {
            return self.complain(format!("answered twice: {response:?}"));
        };
        let count = self.counts.entry(asked.addr).or_default();
        match (response.status, asked.procedure) {
            (Status::Done, ADD) => count.done += 1,
            (Status::Done, SET) => count.done = asked.set_to,
            (Status::Done, _) => {
                let value = Reached::of(&response.state).expect("a number").value;
                if value < asked.least || value > count.asked {
                    let (least, most) = (asked.least, count.asked);
                    self.complain(format!("read {value}, which is not {least} to {most}"));
                }
            }
            (status, _) if status.is_retryable() => {}
            _ => self.complain(format!("{response:?}")),
        }
    }

    pub(super) fn check_end(&mut self) -> Result<(), String> {
        if let Some(complaint) = self.complaint.take() {
            return Err(complaint);
        }
        if self.restarts == 0
            && let Some(number) = self.asked.keys().next()
        {
            return Err(format!("{number} is never answered"));
        }
        for (addr, count) in &self.counts {
            let row = &self.rows[usize::try_from(addr / REGION).unwrap()];
            let mut bytes = [0; 8];
            row.memory.read(addr % REGION, &mut bytes).unwrap();
            let value = u64::from_le_bytes(bytes);
            if value < count.done || value > count.asked {
                let Count { asked, done } = count;
                return Err(format!(
                    "{done} of {asked} additions answered, {value} there"
                ));
            }
        }
        if let Some(index) = self.rows.iter().position(Row::copies_differ) {
            return Err(format!("the copies of region {index} differ"));
        }
        Ok(())
    }
}
