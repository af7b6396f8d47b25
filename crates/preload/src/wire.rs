//! What a program's library and the process that serves its memory say to each other.
//!
//! Over a socket of packets (`SOCK_SEQPACKET`), in words of 64 bits: a hello with descriptors and
//! its answer; then lists of ranges to drop, each answered by one word. The program asks by a page
//! fault: it writes a request to a **mailbox** and touches its **doorbell**, a page that is missing;
//! the answer is that page's bytes.
//!
//! Each fault handler has a **shard** of the program's pages ([`Stripes`](crate::stripes::Stripes)),
//! and says all of this for itself: its socket, userfaultfd, mailbox and doorbell are its own.

/// The variable that holds `ARENA_BYTES:HEAP_BYTES:HANDLERS:SOCKET`. The socket of a handler is that
/// with a dot and its digit.
pub const VARIABLE: &[u8] = b"CENOTE_RUN\0";
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// First word of a hello and of its answer; a version, too.
pub const MAGIC: u64 = 0x6365_6e6f_7465_0002;
/// Words of a hello: `MAGIC`, kind, then as the kind says.
pub const HELLO_WORDS: usize = 9;
/// An address space begins: the doorbell's address, the arena's address and pages, the heap's
/// address and pages, all shards' together; which shard it is, and of how many. With a userfaultfd
/// and `/proc/self/mem`.
pub const HELLO_NEW: u64 = 1;
/// A child of `fork`: its number, as its doorbell tells. With `/proc/self/mem`; the answer has the
/// userfaultfd, so that somebody of the program holds it.
pub const HELLO_CHILD: u64 = 2;
/// Words of an answer: `MAGIC`, 0 or an errno, the number of the address space.
pub const ANSWER_WORDS: usize = 3;
/// Ranges in a list at most: a count, then address and length of each.
pub const RANGES_MAX: usize = 64;

/// Words of the mailbox, which is the page before the doorbell.
pub const MAILBOX_WORDS: usize = 4;
/// In the mailbox: what is asked.
pub const AT_REQUEST: usize = 0;
/// The first page of the shard, the doorbell as page 0, then the arena's, then the heap's.
pub const AT_FIRST: usize = 1;
/// How many pages.
pub const AT_COUNT: usize = 2;
/// Which request it is; written last.
pub const AT_SEQUENCE: usize = 3;

/// Forget pages: when it is answered, nothing touches them but the program.
pub const REQUEST_FORGET: u64 = 1;

/// In the doorbell's page: the number of the address space.
pub const AT_SPACE: usize = 0;
/// Which request is answered; 0 when none was read.
pub const AT_ANSWERED: usize = 1;
