//! What can be wrong with a request to a [`Code`](crate::Code).

use crate::kernel::Kernel;

/// Why a code was not made, or why splits were not decoded. No byte was changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CodeError {
    /// `k` is outside 1..=32 or `r` outside 0..=8.
    #[error("code of {k} data and {r} parity splits is outside 1..=32 and 0..=8")]
    Shape {
        /// Data splits asked for.
        k: usize,
        /// Parity splits asked for.
        r: usize,
    },
    /// This CPU cannot run the kernel asked for.
    #[error("kernel {} needs instructions that this CPU does not have", kernel.name())]
    KernelUnsupported {
        /// The kernel asked for.
        kernel: Kernel,
    },
    /// Not enough splits to do what was asked.
    #[error("{given} splits given, {needed} needed")]
    TooFewSplits {
        /// Splits that would have been enough.
        needed: usize,
        /// Splits that were there.
        given: usize,
    },
    /// More splits than the operation takes.
    #[error("{given} splits given, exactly {needed} needed")]
    TooManySplits {
        /// Splits the operation takes.
        needed: usize,
        /// Splits that were there.
        given: usize,
    },
    /// A split index that this code does not have.
    #[error("split {index} is not one of {splits}")]
    NoSuchSplit {
        /// The index given.
        index: usize,
        /// Splits of the code, `k + r`.
        splits: usize,
    },
    /// The same split was given twice, or is both a source and the target.
    #[error("split {index} given twice")]
    RepeatedSplit {
        /// The index given twice.
        index: usize,
    },
    /// A buffer is not as long as the others say.
    #[error("buffer of {given} bytes, expected {expected}")]
    Length {
        /// Bytes that the other buffers call for.
        expected: usize,
        /// Bytes of the buffer.
        given: usize,
    },
    /// More splits are wrong than can be told apart.
    #[error("no {tolerated} or fewer splits explain the difference among {given}")]
    NotLocatable {
        /// Most wrong splits looked for.
        tolerated: usize,
        /// Splits that were compared.
        given: usize,
    },
}
