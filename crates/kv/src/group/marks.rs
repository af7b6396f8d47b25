//! What an item is marked with besides its value.

/// A set of marks, as an entry keeps it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Marks(u8);

impl Marks {
    /// None.
    pub const NONE: Self = Self(0);
    /// Its key was given in base64, and is shown so.
    pub const KEY_BASE64: Self = Self(1);
    /// It is stale.
    pub const STALE: Self = Self(2);
    /// A client has won the right to store it again.
    pub const WON: Self = Self(4);

    /// As an entry has them.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// From what an entry or a message has; nothing if there are marks that are unknown.
    pub fn from_bits(bits: u8) -> Option<Self> {
        (bits < 8).then_some(Self(bits))
    }

    /// Whether all of `marks` are set.
    pub fn has(self, marks: Self) -> bool {
        self.0 & marks.0 == marks.0
    }

    /// With `marks` set.
    #[must_use]
    pub fn with(self, marks: Self) -> Self {
        Self(self.0 | marks.0)
    }

    /// With `marks` cleared.
    #[must_use]
    pub fn without(self, marks: Self) -> Self {
        Self(self.0 & !marks.0)
    }
}
