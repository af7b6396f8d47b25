//! What a simulator sees of a relocation.

/// A slab that is being rebuilt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Relocation {
    /// The extent.
    pub extent: usize,
    /// The member of its stripe.
    pub split: usize,
    /// Host of the new slab.
    pub target: usize,
    /// How far it is.
    pub stage: RelocationStage,
}

/// The part of the relocation machine that repeats for every chunk of a slab.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum RelocationStage {
    /// Writers in the chunk wait, earlier ones are leaving.
    Fenced,
    /// They have left, and the target fills the chunk.
    Drained,
}
