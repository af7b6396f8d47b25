//! Both copies of every region, read one by one when nothing is under way.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use cenote_cache::client::{Client, Geometry};
use cenote_cache::connections::Attached;
use cenote_cache::links::{AtOnce, Caller};
use cenote_cache::owner::{Access, Entry};
use cenote_fabric::{ClientId, Hello, sim};

use super::{SLAB_BYTES, SLABS_PER_REGION, World};
use crate::cache::model::CELL_BYTES;

impl World {
    /// Copies of a region that is settled, with nothing under way, are the same.
    pub(super) fn compare_copies(&mut self) {
        let Some(manager) = &self.manager else { return };
        let entries = manager.owner.entries();
        if self.copies < 2 || self.report.is_broken() {
            return;
        }
        let (first, second) = (self.read_copy(&entries, 0), self.read_copy(&entries, 1));
        let (Some(first), Some(second)) = (first, second) else {
            return self.violate("a copy cannot be read".to_owned());
        };
        let cell_bytes = usize::try_from(CELL_BYTES).expect("small");
        let mut cells = first.chunks(cell_bytes).zip(second.chunks(cell_bytes));
        if let Some(cell) = cells.position(|(one, other)| one != other) {
            self.violate(format!("cell {cell} differs between its copies"));
        }
    }

    /// All bytes of one copy of each region, as a client reads them that knows of no other.
    fn read_copy(&mut self, entries: &[Entry], copy: usize) -> Option<BytesMut> {
        let geometry = Geometry {
            slab_bytes: SLAB_BYTES,
            slabs_per_region: SLABS_PER_REGION,
        };
        let (hosts, patience) = (self.configs.len(), Duration::from_secs(5));
        let mut client = Client::new(geometry, hosts, patience).with_clock(sim::now);
        client.handle_lease(self.net.now(), self.net.now());
        for entry in entries {
            client.handle_entry(Entry {
                access: Access::Frozen,
                copies: vec![entry.copies.get(copy)?.clone()],
                ..entry.clone()
            });
        }
        let caller = Caller {
            connector: Arc::new(self.net.client("inspector")),
            hello: Hello {
                client: ClientId(2000 + u128::from(self.net.now().0) + copy as u128),
                name: "inspector".to_owned(),
            },
            with_data: true,
        };
        let dial = Box::new(AtOnce::new(caller));
        let mut attached = Attached::new(client, self.configs.clone(), dial, 64);
        let bytes = geometry.region_bytes() * entries.len() as u64;
        let buffer = BytesMut::zeroed(usize::try_from(bytes).expect("small"));
        let now = self.net.now();
        attached.client.submit_read(now, 0, buffer, 1).ok()?;
        let mut ended = Vec::new();
        for _ in 0..2000 {
            self.run_for(Duration::from_millis(1));
            let now = self.net.now();
            attached.step(now);
            attached.client.handle_lease(now, now);
            attached.client.poll(now, &mut ended);
            if let Some(end) = ended.pop() {
                return end.result.ok().map(|()| end.buffer);
            }
        }
        None
    }
}
