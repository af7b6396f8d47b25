//! What `cenote run` says in the environment: how much is served, and where the handlers are, to
//! whom an address space is introduced.

use crate::stripes::SHARDS_MAX;
use crate::wire::PAGE;
use crate::{sys, wire};

/// See the module.
#[derive(Clone, Copy)]
pub struct Settings {
    pub arena_bytes: usize,
    pub heap_bytes: usize,
    pub handlers: usize,
    socket: [u8; sys::PATH_MAX],
    socket_len: usize,
}

impl Settings {
    /// A handler's socket.
    pub fn connect(&self, shard: usize) -> i32 {
        let (mut path, len) = (self.socket, self.socket_len);
        (path[len], path[len + 1]) = (b'.', b'0' + shard as u8);
        sys::connect(&path[..len + 2])
    }

    /// Says a hello to a handler at a socket of it: the answer, or why there is none. A program that was stopped between its connection and
    /// the hello, or waited for other handlers, finds the connection closed, and nothing served: it
    /// connects again.
    pub fn greet(
        &self,
        shard: usize,
        socket: &mut i32,
        hello: &[u64; wire::HELLO_WORDS],
        fds: &[i32],
    ) -> Result<Answer, i32> {
        let (mut answer, mut is_reconnected) = (say(*socket, hello, fds), false);
        for _ in 0..GREETINGS_AGAIN {
            match answer {
                Err(errno) if is_unheard(errno) => {
                    sys::close(*socket);
                    *socket = self.connect(shard);
                    is_reconnected = true;
                    answer = say(*socket, hello, fds);
                }
                Ok(_) | Err(_) => break,
            }
        }
        let (space, descriptor) = answer?;
        Ok(Answer {
            space,
            descriptor,
            is_reconnected,
        })
    }
}

/// What a handler says to a hello.
pub struct Answer {
    /// The number of the address space.
    pub space: u64,
    pub descriptor: Option<i32>,
    /// The socket is another one than before.
    pub is_reconnected: bool,
}

/// How often a hello is said again.
const GREETINGS_AGAIN: usize = 2;

/// Whether a handler may have closed a connection without hearing the hello.
fn is_unheard(errno: i32) -> bool {
    [sys::EPIPE, sys::ECONNRESET, sys::ETIMEDOUT].contains(&errno)
}

fn say(
    socket: i32,
    hello: &[u64; wire::HELLO_WORDS],
    fds: &[i32],
) -> Result<(u64, Option<i32>), i32> {
    if socket < 0 {
        return Err(-socket);
    }
    let sent = sys::send(socket, hello, fds);
    if sent < 0 && !is_unheard(-sent as i32) {
        return Err(-sent as i32);
    }
    // One that hung up before has said why, and the kernel may tell of the end first.
    let mut words = [0; wire::ANSWER_WORDS];
    let mut received = sys::receive(socket, &mut words);
    if received.0 == -sys::ECONNRESET as isize {
        received = sys::receive(socket, &mut words);
    }
    match received {
        (24, fd) if words[0] == wire::MAGIC && words[1] == 0 && sent > 0 => Ok((words[2], fd)),
        (24, _) if words[0] == wire::MAGIC && words[1] != 0 => Err(words[1] as i32),
        _ if sent < 0 => Err(-sent as i32),
        (len, _) if len < 0 => Err(-len as i32),
        // It hung up.
        _ => Err(sys::EPIPE),
    }
}

/// What `cenote run` says in the environment.
pub fn settings() -> Option<Settings> {
    unsafe extern "C" {
        fn getenv(name: *const u8) -> *const u8;
    }
    // SAFETY: the name ends with 0.
    let text = unsafe { getenv(wire::VARIABLE.as_ptr()) };
    if text.is_null() {
        return None;
    }
    // SAFETY: a variable's value is a string that ends with 0.
    let text = unsafe { core::ffi::CStr::from_ptr(text.cast()) }.to_bytes();
    let mut parts = text.splitn(4, |byte| *byte == b':');
    let mut number = || {
        core::str::from_utf8(parts.next()?)
            .ok()?
            .parse::<usize>()
            .ok()
    };
    let (arena_bytes, heap_bytes, handlers) = (number()?, number()?, number()?);
    let (path, mut socket) = (parts.next()?, [0; sys::PATH_MAX]);
    // A dot and a digit follow.
    if !(1..=SHARDS_MAX).contains(&handlers) || path.len() + 2 > socket.len() {
        return None;
    }
    socket[..path.len()].copy_from_slice(path);
    Some(Settings {
        handlers,
        arena_bytes: arena_bytes.next_multiple_of(PAGE),
        heap_bytes: heap_bytes.next_multiple_of(PAGE),
        socket,
        socket_len: path.len(),
    })
}
