//! What every word of the cache may hold.
//!
//! Each cell has one client that writes it, in the order of its versions; a word says which cell
//! and version it is of. A read may return any version from the last that was acknowledged when it
//! began to the last that was submitted when it ended, and zeros only where nothing was
//! acknowledged, or bytes were lost.

/// Bytes that are written as one.
pub const CELL_BYTES: u64 = 512;
/// Cells that have the same writer, one after the other.
const BLOCK_CELLS: u64 = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    submitted: u64,
    /// The lowest version that may be read.
    floor: u64,
    /// The lowest that a client left under way when it ended: it may take effect at any time.
    stray: Option<u64>,
}

/// See the module's text.
pub struct Model {
    cells: Vec<Cell>,
    region_cells: u64,
    writers: u64,
    losses: Vec<u32>,
    /// Cells of each region that were written, whether once or again.
    acknowledged: Vec<u64>,
}

/// What a read may return, as known when it began.
pub struct Expected {
    first: u64,
    floors: Vec<u64>,
    losses: Vec<u32>,
}

impl Model {
    pub fn new(bytes: u64, region_bytes: u64, writers: usize) -> Self {
        let regions = usize::try_from(bytes / region_bytes).expect("small");
        Self {
            cells: vec![Cell::default(); usize::try_from(bytes / CELL_BYTES).expect("small")],
            region_cells: region_bytes / CELL_BYTES,
            writers: writers as u64,
            losses: vec![0; regions],
            acknowledged: vec![0; regions],
        }
    }

    pub fn cells(&self) -> u64 {
        self.cells.len() as u64
    }

    /// Blocks straddle the borders of slabs and regions.
    fn block_of(cell: u64) -> u64 {
        (cell + BLOCK_CELLS / 2) / BLOCK_CELLS
    }

    pub fn writer_of(&self, cell: u64) -> usize {
        usize::try_from(Self::block_of(cell) % self.writers).expect("a client")
    }

    /// Cells from `cell` on, at most `count`, that have its writer.
    pub fn run_of(&self, cell: u64, count: u64) -> u64 {
        let same =
            |other: &u64| *other < self.cells() && Self::block_of(*other) == Self::block_of(cell);
        (cell..cell + count).take_while(same).count() as u64
    }

    fn region_of(&self, cell: u64) -> usize {
        usize::try_from(cell / self.region_cells).expect("small")
    }

    fn at(&mut self, cell: u64) -> &mut Cell {
        &mut self.cells[usize::try_from(cell).expect("small")]
    }

    fn word(cell: u64, version: u64) -> u64 {
        version << 16 | cell
    }

    /// The bytes of a new version of each cell.
    pub fn write(&mut self, first: u64, count: u64) -> (Vec<u8>, Vec<u64>) {
        let (mut bytes, mut versions) = (Vec::new(), Vec::new());
        for cell in first..first + count {
            let known = self.at(cell);
            known.submitted += 1;
            let version = known.submitted;
            versions.push(version);
            for _ in 0..CELL_BYTES / 8 {
                bytes.extend(Self::word(cell, version).to_le_bytes());
            }
        }
        (bytes, versions)
    }

    /// A write was acknowledged to a client that knows of so many losses of a region.
    pub fn acknowledge(&mut self, first: u64, versions: &[u64], known: impl Fn(usize) -> u32) {
        for (cell, &version) in (first..).zip(versions) {
            let region = self.region_of(cell);
            self.acknowledged[region] += 1;
            // To one that was not told yet, what it wrote went with what was lost.
            if known(region) >= self.losses[region] {
                let known = self.at(cell);
                known.floor = known.floor.max(version);
            }
        }
    }

    /// A client ended, and will not say what became of a write.
    pub fn stray(&mut self, first: u64, versions: &[u64]) {
        for (cell, &version) in (first..).zip(versions) {
            let known = self.at(cell);
            known.stray = Some(known.stray.map_or(version, |stray| stray.min(version)));
        }
    }

    /// A region lost its bytes.
    pub fn lose(&mut self, region: usize, losses: u32) {
        self.losses[region] = losses;
        for cell in 0..self.cells() {
            if self.region_of(cell) == region {
                self.at(cell).floor = 0;
            }
        }
    }

    pub fn acknowledged(&self) -> &[u64] {
        &self.acknowledged
    }

    pub fn losses(&self, region: usize) -> u32 {
        self.losses[region]
    }

    pub fn expect(&self, first: u64, count: u64) -> Expected {
        let cells = first..first + count;
        let floor = |cell: u64| {
            let known = self.cells[usize::try_from(cell).expect("small")];
            known.floor.min(known.stray.unwrap_or(u64::MAX))
        };
        Expected {
            first,
            floors: cells.clone().map(floor).collect(),
            losses: cells
                .map(|cell| self.losses[self.region_of(cell)])
                .collect(),
        }
    }

    /// What is wrong with what was read.
    pub fn check(&self, expected: &Expected, bytes: &[u8]) -> Result<(), String> {
        let words = bytes.chunks_exact(8);
        for (index, word) in words.enumerate() {
            let at = index / usize::try_from(CELL_BYTES / 8).expect("small");
            let cell = expected.first + at as u64;
            let word = u64::from_le_bytes(word.try_into().expect("of 8"));
            let (version, of) = (word >> 16, word & 0xffff);
            let known = &self.cells[usize::try_from(cell).expect("small")];
            let is_lost = self.losses[self.region_of(cell)] != expected.losses[at];
            let stray = known.stray.unwrap_or(u64::MAX);
            let floor = if is_lost {
                0
            } else {
                expected.floors[at].min(stray)
            };
            let is_other = word != 0 && of != cell;
            if is_other || version < floor || version > known.submitted {
                return Err(format!(
                    "cell {cell} reads version {version} of cell {of}, and may {floor} to {}",
                    known.submitted
                ));
            }
        }
        Ok(())
    }
}
