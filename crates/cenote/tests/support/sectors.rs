//! Clients that write parts of pages until their server is killed, and know what each sector may be.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};

use cenote_test_kit::Random;

use super::nbd::Client;

/// The least that a client may write.
pub const SECTOR: usize = 512;
/// Sectors of a page.
const PAGE: usize = 8;
/// Clients at a time. Half of them write even pages, half odd ones, each a sector of its own of each page.
const WRITERS: usize = 2 * PAGE;

/// The sectors of the first part of a volume.
pub struct Sectors {
    /// What each is: a number that its bytes are made of, and that no two writes share.
    known: Vec<u64>,
    random: Random,
    contents: u64,
}

/// A write that was under way when its server ended.
struct Unknown {
    sector: usize,
    content: u64,
}

/// What one client did.
#[derive(Default)]
struct Done {
    written: Vec<(usize, u64)>,
    unknown: Option<Unknown>,
}

/// The clients of a server.
pub struct Writers<'scope> {
    threads: Vec<ScopedJoinHandle<'scope, Done>>,
}

impl Sectors {
    /// Writes all of so many pages, and has them flushed.
    pub fn fill(socket: &Path, pages: usize, seed: u64) -> Self {
        let mut sectors = Self {
            known: (1..).take(pages * PAGE).collect(),
            random: Random(seed),
            contents: (pages * PAGE) as u64 + 1,
        };
        sectors.draw();
        let bytes: Vec<u8> = sectors.known.iter().flat_map(|&c| bytes_of(c)).collect();
        let mut client = Client::connect(socket, "");
        client.write(0, &bytes).expect("the first write");
        client.flush().expect("a flush");
        sectors
    }

    /// The next number of this run, at random.
    pub fn draw(&mut self) -> u64 {
        self.random.next()
    }

    /// Has clients write until their connections end; they count what was acknowledged.
    pub fn write<'scope>(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        socket: &'scope Path,
        acknowledged: &'scope AtomicU64,
    ) -> Writers<'scope> {
        let pages = self.known.len() / PAGE;
        let threads = (0..WRITERS).map(|writer| {
            let mut random = Random(self.draw());
            // Far more than one client writes before it ends.
            let mut content = self.contents;
            self.contents += 1 << 32;
            let mut client = Client::connect(socket, "");
            scope.spawn(move || {
                let mut done = Done::default();
                loop {
                    let page = random.next() as usize % (pages / 2) * 2 + writer / PAGE;
                    let sector = page * PAGE + writer % PAGE;
                    content += 1;
                    let offset = (sector * SECTOR) as u64;
                    match client.try_write(offset, &bytes_of(content)) {
                        Ok(result) => {
                            result.expect("no stripe has lost more than it survives");
                            done.written.push((sector, content));
                            acknowledged.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(_) => {
                            done.unknown = Some(Unknown { sector, content });
                            return done;
                        }
                    }
                }
            })
        });
        Writers {
            threads: threads.collect(),
        }
    }

    /// Reads everything: each sector is what was acknowledged last, or what was being written. How many were
    /// being written, and how many of those are there now.
    ///
    /// # Panics
    /// With `state` if one is an error, or something else.
    pub fn check(&mut self, socket: &Path, writers: Writers<'_>, state: &str) -> (usize, usize) {
        let mut unknown = Vec::new();
        for thread in writers.threads {
            let done = thread.join().expect("a client");
            for (sector, content) in done.written {
                self.known[sector] = content;
            }
            unknown.extend(done.unknown);
        }
        let mut client = Client::connect(socket, "");
        let (mut there, mut wrong) = (0, Vec::new());
        for page in 0..self.known.len() / PAGE {
            let offset = (page * PAGE * SECTOR) as u64;
            let bytes = match client.read(offset, PAGE * SECTOR) {
                Ok(bytes) => bytes,
                Err(refused) => {
                    wrong.push(format!("page {page}: error {}", refused.0));
                    continue;
                }
            };
            for (at, bytes) in bytes.chunks(SECTOR).enumerate() {
                let sector = page * PAGE + at;
                let is = |content: u64| bytes == bytes_of(content);
                if is(self.known[sector]) {
                    continue;
                }
                let newer = unknown.iter().find(|write| write.sector == sector);
                match newer.filter(|write| is(write.content)) {
                    Some(write) => {
                        there += 1;
                        self.known[sector] = write.content;
                    }
                    None => wrong.push(format!("page {page} sector {at}: neither old nor new")),
                }
            }
        }
        assert!(wrong.is_empty(), "{state}: {}", wrong.join(", "));
        (unknown.len(), there)
    }
}

/// The bytes of a sector; no two contents share any eight.
fn bytes_of(content: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    for (word, chunk) in (0..).zip(bytes.chunks_exact_mut(8)) {
        let word = Random(content << 6 | word).next();
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
