//! What a page operation is for: what a request asks for of one page.

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Kind {
    #[default]
    Read,
    Write,
    Discard,
    /// Reads pages that hold data for nobody, to find splits that are wrong.
    Scrub,
    /// Brings pages to the volume's other layout.
    Move,
    /// Writes a page that the last owner was writing.
    Redo,
}

/// Part of a request inside one page.
#[derive(Clone, Copy, Default)]
pub struct Chunk {
    pub page: u64,
    // First byte inside the page.
    pub start: usize,
    pub len_bytes: usize,
    // Where the chunk's bytes are in the request's buffer.
    pub buffer_offset: usize,
}

/// What a new operation is for.
#[derive(Clone, Copy)]
pub struct Order {
    pub request: u16,
    pub kind: Kind,
    pub chunk: Chunk,
    /// The chunk's bytes in the request's buffer; null where it has none.
    pub target: *mut u8,
    /// The place in the list of pages in flight of the write that it redoes.
    pub redoes: Option<u32>,
    /// Whether the page is claimed for it.
    pub is_claimed: bool,
    /// Whether a request that came earlier, and is no read, waits for free operations.
    pub is_behind: bool,
}
