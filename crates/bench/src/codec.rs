//! Coding of 4 KiB pages as (8,2), beside copying them and beside other libraries.
//!
//! Every contender works on the same pages in turn, round after round, and its
//! figure is the median over the rounds. Before that, each has to give the same
//! bytes. Decoding rebuilds the first one or two splits where they lie, with the
//! decoding matrix made beforehand.
//! Units: nanoseconds per 4 KiB page; in a row, ours is a kernel of ours.
//! ISA-L is there when this crate is built with the feature `isal`.

use std::{hint::black_box, time::Instant};

use anyhow::{Context, ensure};
use cenote_codec::{Code, Kernel};
use cenote_measure::statistics::median;
use rusty_erasure::{Coder, Matrix};

use super::Row;

/// Measures every kernel of this CPU against every peer, each `rounds` times.
///
/// # Errors
/// If a contender gives other bytes than the rest, or a peer cannot be set up.
pub fn run(rounds: usize) -> anyhow::Result<Vec<Row>> {
    ensure!(rounds > 0, "measure codec in 0 rounds");
    if !cfg!(feature = "isal") {
        eprintln!("codec: ISA-L is left out, as this was built without the feature `isal`");
    }
    for kernel in Kernel::ALL.iter().filter(|kernel| !kernel.is_supported()) {
        eprintln!("codec: this CPU cannot run kernel {}", kernel.name());
    }
    let mut rows = Vec::new();
    for set in &SETS {
        let mut pages = Pages::new(set.pages)?;
        let order = set.order();
        for work in [Work::Encode, Work::Decode(1), Work::Decode(2)] {
            let mut contenders = contenders(work)?;
            check(&mut contenders, work, &pages)?;
            let medians = measure(&mut contenders, &mut pages, &order, set, rounds);
            rows.extend(compare(&contenders, &medians, work, set));
        }
    }
    Ok(rows)
}

/// What is done to a page.
#[derive(Clone, Copy)]
enum Work {
    Encode,
    /// Rebuild that many data splits, the first ones.
    Decode(usize),
}

impl Work {
    fn name(self) -> String {
        match self {
            Self::Encode => "encode 8+2".to_owned(),
            Self::Decode(lost) => format!("decode {lost} lost of 8+2"),
        }
    }
}

/// Pages worked on, and how.
struct Set {
    name: &'static str,
    pages: usize,
    /// Pages in one measurement: a different part of the set each time, if smaller than it.
    window: usize,
    /// Times over them in one measurement. All take a fraction of a millisecond to some
    /// milliseconds: long beside the clock, mostly short beside a time slice.
    passes: usize,
    /// Measurements per round asked for.
    repeats: usize,
    shuffled: bool,
}

/// Nothing but L1; the sixteen megabytes that other figures are known for; and
/// more than caches hold, in an order that nothing foresees.
const SETS: [Set; 3] = [
    Set {
        name: "L1-hot",
        pages: 1,
        window: 1,
        passes: 2_000,
        repeats: 20,
        shuffled: false,
    },
    Set {
        name: "over 16 MB",
        pages: 4_096,
        window: 4_096,
        passes: 1,
        repeats: 3,
        shuffled: false,
    },
    Set {
        name: "over 256 MB at random",
        pages: 65_536,
        window: 2_048,
        passes: 1,
        repeats: 3,
        shuffled: true,
    },
];

impl Set {
    /// Page numbers, each once.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.pages).collect();
        if self.shuffled {
            let mut state = 0x9e37_79b9_7f4a_7c15;
            for last in (1..order.len()).rev() {
                order.swap(last, xorshift(&mut state) as usize % (last + 1));
            }
        }
        order
    }
}

const K: usize = 8;
const R: usize = 2;
const PAGE_BYTES: usize = 4096;
const SPLIT_BYTES: usize = PAGE_BYTES / K;
const PARITY_BYTES: usize = R * SPLIT_BYTES;

/// Memory that all contenders share, so that they meet the same caches.
struct Pages {
    data: Vec<Page>,
    parity: Vec<Parity>,
    /// Where `memcpy` copies to.
    copy: Vec<Page>,
}

/// On a page of its own, as a program's are. Vectors that begin within a line read two for each.
#[derive(Clone, Debug, PartialEq)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

/// The parities of a page, which begin with a line.
#[derive(Clone, Debug, PartialEq)]
#[repr(C, align(64))]
struct Parity([u8; PARITY_BYTES]);

impl Pages {
    /// Pages of noise with their parities.
    fn new(count: usize) -> anyhow::Result<Self> {
        let mut state = 1;
        let mut pages = Self {
            data: vec![Page([0; PAGE_BYTES]); count],
            parity: vec![Parity([0; PARITY_BYTES]); count],
            copy: vec![Page([0; PAGE_BYTES]); count],
        };
        let code = Code::new(K, R)?;
        for page in 0..count {
            let (data, parity) = pages.page(page);
            for word in data.chunks_exact_mut(8) {
                word.copy_from_slice(&xorshift(&mut state).to_le_bytes());
            }
            code.encode(data, parity);
        }
        Ok(pages)
    }

    fn page(&mut self, page: usize) -> (&mut [u8], &mut [u8]) {
        (&mut self.data[page].0, &mut self.parity[page].0)
    }
}

/// One way to do the work.
struct Contender {
    name: String,
    /// False for a peer.
    ours: bool,
    /// False for `memcpy`, whose bytes are not those of the code.
    codes: bool,
    /// Does it to the pages named.
    run: Run,
}

type Run = Box<dyn FnMut(&mut Pages, &[usize])>;

impl Contender {
    /// A contender that takes one page's data and parity.
    fn new(name: String, ours: bool, mut one: impl FnMut(&mut [u8], &mut [u8]) + 'static) -> Self {
        Self {
            name,
            ours,
            codes: true,
            run: Box::new(move |pages, order| {
                for &page in order {
                    let (data, parity) = pages.page(page);
                    one(black_box(data), black_box(parity));
                }
            }),
        }
    }
}

/// Our kernels, then the peers.
fn contenders(work: Work) -> anyhow::Result<Vec<Contender>> {
    let mut contenders = Vec::new();
    for kernel in Kernel::ALL {
        if kernel.is_supported() {
            contenders.push(ours(work, kernel)?);
        }
    }
    contenders.push(memcpy());
    contenders.push(rusty(work)?);
    #[cfg(feature = "isal")]
    contenders.push(isal::contender(work)?);
    Ok(contenders)
}

fn ours(work: Work, kernel: Kernel) -> anyhow::Result<Contender> {
    let code = Code::with_kernel(K, R, kernel)?;
    let name = kernel.name().to_owned();
    Ok(match work {
        Work::Encode => Contender::new(name, true, move |data, parity| code.encode(data, parity)),
        Work::Decode(lost) => {
            let present = (1 << (K + R)) - (1 << lost);
            Contender::new(name, true, move |data, parity| {
                let done = code.reconstruct(present, data, parity);
                done.expect("eight splits of a page are present");
            })
        }
    })
}

fn memcpy() -> Contender {
    Contender {
        name: "memcpy".to_owned(),
        ours: false,
        codes: false,
        run: Box::new(|pages, order| {
            for &page in order {
                let source: &[u8] = black_box(&pages.data[page].0);
                let target: &mut [u8] = black_box(&mut pages.copy[page].0);
                target.copy_from_slice(source);
            }
        }),
    }
}

fn rusty(work: Work) -> anyhow::Result<Contender> {
    let coder = rusty_erasure::coder(Matrix::cauchy(K, R)?)?;
    let name = "rusty_erasure 0.4.3".to_owned();
    Ok(match work {
        Work::Encode => Contender::new(name, false, move |data, parity| {
            let rows: [&[u8]; K] = split_rows(data);
            let (first, second) = parity.split_at_mut(SPLIT_BYTES);
            let done = coder.encode(&rows, &mut [first, second]);
            done.expect("the rows are of one length");
        }),
        Work::Decode(lost) => {
            let present: [bool; K + R] = std::array::from_fn(|index| index >= lost);
            let rebuild: Vec<usize> = (0..lost).collect();
            let plan = coder
                .decode_plan(&present, &rebuild)
                .context("plan to decode with rusty_erasure")?;
            Contender::new(name, false, move |data, parity| {
                rusty_recover(&coder, &plan, lost, data, parity);
            })
        }
    })
}

fn rusty_recover(
    coder: &Coder,
    plan: &rusty_erasure::DecodePlan,
    lost: usize,
    data: &mut [u8],
    parity: &[u8],
) {
    let (targets, sources) = data.split_at_mut(lost * SPLIT_BYTES);
    let mut rows = [None; K + R];
    let present = sources
        .chunks(SPLIT_BYTES)
        .chain(parity.chunks(SPLIT_BYTES));
    for (row, bytes) in rows[lost..].iter_mut().zip(present) {
        *row = Some(bytes);
    }
    let done = match targets.split_at_mut(SPLIT_BYTES) {
        (first, []) => coder.recover_with(plan, &rows, &mut [first]),
        (first, second) => coder.recover_with(plan, &rows, &mut [first, second]),
    };
    done.expect("eight splits of a page are present");
}

fn split_rows(data: &[u8]) -> [&[u8]; K] {
    std::array::from_fn(|row| &data[row * SPLIT_BYTES..][..SPLIT_BYTES])
}

/// Lets every contender that codes do the first page, and compares.
fn check(contenders: &mut [Contender], work: Work, pages: &Pages) -> anyhow::Result<()> {
    for contender in contenders.iter_mut().filter(|contender| contender.codes) {
        let mut damaged = Pages {
            data: vec![pages.data[0].clone()],
            parity: vec![pages.parity[0].clone()],
            copy: Vec::new(),
        };
        match work {
            Work::Encode => damaged.parity[0].0.fill(0xee),
            Work::Decode(lost) => damaged.data[0].0[..lost * SPLIT_BYTES].fill(0xee),
        }
        (contender.run)(&mut damaged, &[0]);
        ensure!(
            damaged.data[0] == pages.data[0] && damaged.parity[0] == pages.parity[0],
            "{} does {} to other bytes",
            contender.name,
            work.name()
        );
    }
    Ok(())
}

/// Median nanoseconds per page of each contender, in their order.
fn measure(
    contenders: &mut [Contender],
    pages: &mut Pages,
    order: &[usize],
    set: &Set,
    rounds: usize,
) -> Vec<f64> {
    let mut times = vec![Vec::with_capacity(rounds * set.repeats); contenders.len()];
    let mut windows = order.chunks(set.window).cycle();
    // One more than asked for, unmeasured, to fault memory in and settle the clock.
    for round in 0..=rounds * set.repeats {
        for (contender, times) in contenders.iter_mut().zip(&mut times) {
            let window = windows.next().expect("a set has pages");
            let start = Instant::now();
            for _ in 0..set.passes {
                (contender.run)(pages, window);
            }
            if round > 0 {
                let pages = (set.passes * window.len()) as f64;
                times.push(start.elapsed().as_nanos() as f64 / pages);
            }
        }
    }
    times.into_iter().map(median).collect()
}

/// A row for each of our kernels and each peer.
fn compare(contenders: &[Contender], medians: &[f64], work: Work, set: &Set) -> Vec<Row> {
    let mut rows = Vec::new();
    let measured = || contenders.iter().zip(medians);
    for (kernel, &ours) in measured().filter(|(contender, _)| contender.ours) {
        for (peer, &theirs) in measured().filter(|(contender, _)| !contender.ours) {
            rows.push(Row::new(
                (
                    "codec",
                    format!("{}, {}, {}", work.name(), set.name, kernel.name),
                ),
                ("time_per_page", "ns"),
                ours,
                (peer.name.clone(), theirs),
            ));
        }
    }
    rows
}

/// Marsaglia's xorshift64, seeded with anything but zero.
fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Intel's library, by its C interface.
#[cfg(feature = "isal")]
mod isal {
    use std::ffi::c_int;

    use anyhow::ensure;
    use erasure_isa_l_sys as sys;

    use super::{Contender, K, R, SPLIT_BYTES, Work};

    pub(super) fn contender(work: Work) -> anyhow::Result<Contender> {
        let tables = Tables::new(work)?;
        let lost = match work {
            Work::Encode => 0,
            Work::Decode(lost) => lost,
        };
        let name = "ISA-L 2.32".to_owned();
        Ok(Contender::new(name, false, move |data, parity| {
            tables.code(lost, data, parity);
        }))
    }

    /// Coefficients of some rows over `K` sources, in ISA-L's form.
    struct Tables {
        rows: usize,
        bytes: Vec<u8>,
    }

    impl Tables {
        fn new(work: Work) -> anyhow::Result<Self> {
            let mut generator = vec![0u8; (K + R) * K];
            // SAFETY: the matrix has (K + R) x K bytes, as the call is told.
            unsafe {
                sys::gf_gen_cauchy1_matrix(generator.as_mut_ptr(), int(K + R), int(K));
            }
            let mut matrix = match work {
                Work::Encode => generator[K * K..].to_vec(),
                Work::Decode(lost) => {
                    // The first K survivors, when the first `lost` are gone.
                    let mut survivors = generator[lost * K..][..K * K].to_vec();
                    let mut inverse = vec![0u8; K * K];
                    // SAFETY: both matrices are K x K, as the call is told.
                    let failed = unsafe {
                        sys::gf_invert_matrix(survivors.as_mut_ptr(), inverse.as_mut_ptr(), int(K))
                    };
                    ensure!(failed == 0, "invert a matrix with ISA-L");
                    inverse.truncate(lost * K);
                    inverse
                }
            };
            let rows = matrix.len() / K;
            let mut bytes = vec![0u8; 32 * K * rows];
            // SAFETY: the matrix is rows x K, and ISA-L asks for 32 bytes of table per entry.
            unsafe {
                sys::ec_init_tables(int(K), int(rows), matrix.as_mut_ptr(), bytes.as_mut_ptr());
            }
            Ok(Self { rows, bytes })
        }

        /// Encodes if nothing is lost, else rebuilds the first `lost` splits in place.
        fn code(&self, lost: usize, data: &mut [u8], parity: &mut [u8]) {
            assert_eq!(
                (data.len(), parity.len()),
                (K * SPLIT_BYTES, R * SPLIT_BYTES)
            );
            let mut splits = [std::ptr::null_mut(); K + R];
            for (split, row) in splits.iter_mut().zip(
                data.chunks_mut(SPLIT_BYTES)
                    .chain(parity.chunks_mut(SPLIT_BYTES)),
            ) {
                *split = row.as_mut_ptr();
            }
            let targets = if lost == 0 { K } else { 0 };
            let mut sources: [*mut u8; K] = std::array::from_fn(|row| splits[lost + row]);
            // SAFETY: K sources and `rows` targets of SPLIT_BYTES each, none of them in both,
            // with tables for just that many; ISA-L writes the targets only.
            unsafe {
                sys::ec_encode_data(
                    int(SPLIT_BYTES),
                    int(K),
                    int(self.rows),
                    self.bytes.as_ptr().cast_mut(),
                    sources.as_mut_ptr(),
                    splits[targets..].as_mut_ptr(),
                );
            }
        }
    }

    fn int(value: usize) -> c_int {
        c_int::try_from(value).expect("sizes here are small")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_gives_the_same_bytes_and_a_figure() {
        let mut pages = Pages::new(2).unwrap();
        for work in [Work::Encode, Work::Decode(1), Work::Decode(2)] {
            let mut contenders = contenders(work).unwrap();
            check(&mut contenders, work, &pages).unwrap();
            let before = (pages.data.clone(), pages.parity.clone());
            let medians = measure(&mut contenders, &mut pages, &[1, 0], &SETS[1], 2);
            assert!(medians.iter().all(|&time| time > 0.0), "{medians:?}");
            assert!(before == (pages.data.clone(), pages.parity.clone()));
            let kernels = contenders.iter().filter(|contender| contender.ours).count();
            let rows = compare(&contenders, &medians, work, &SETS[0]);
            assert_eq!(rows.len(), kernels * (contenders.len() - kernels));
        }
    }

    #[test]
    fn a_contender_with_other_bytes_is_refused() {
        let pages = Pages::new(1).unwrap();
        let idle = Contender::new("idle".to_owned(), true, |_, _| {});
        let refused = check(&mut [idle], Work::Encode, &pages).unwrap_err();
        assert!(refused.to_string().starts_with("idle does encode"));
    }

    #[test]
    fn a_shuffled_order_has_every_page_once() {
        let set = Set {
            name: "",
            pages: 100,
            window: 100,
            passes: 1,
            repeats: 1,
            shuffled: true,
        };
        let mut order = set.order();
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
