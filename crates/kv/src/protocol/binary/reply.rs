//! Replies, appended to what a connection is to send.

use super::{HEADER_BYTES, Head, Message, REPLY_MAGIC, Status};

/// Lengths of what follows a header.
#[derive(Clone, Copy, Default)]
struct Lengths {
    extras: u8,
    key: usize,
    value: usize,
}

fn header(out: &mut Vec<u8>, head: Head, status: Status, lengths: Lengths, cas: u64) {
    let Lengths { extras, key, value } = lengths;
    let body = usize::from(extras) + key + value;
    let key = u16::try_from(key).expect("a key is short");
    let body = u32::try_from(body).expect("an item is shorter than 4 GiB");
    let mut bytes = [0; HEADER_BYTES];
    bytes[0] = REPLY_MAGIC;
    bytes[1] = head.opcode;
    bytes[2..4].copy_from_slice(&key.to_be_bytes());
    bytes[4] = extras;
    bytes[6..8].copy_from_slice(&(status as u16).to_be_bytes());
    bytes[8..12].copy_from_slice(&body.to_be_bytes());
    bytes[12..16].copy_from_slice(&head.opaque.to_be_bytes());
    bytes[16..].copy_from_slice(&cas.to_be_bytes());
    out.extend_from_slice(&bytes);
}

/// An item that was found, without its value: `value_bytes` of it follow.
pub fn item(
    out: &mut Vec<u8>,
    message: &Message<'_>,
    shows_key: bool,
    client_flags: u32,
    cas: u64,
    value_bytes: usize,
) {
    let key = if shows_key { message.key } else { &[] };
    let lengths = Lengths {
        extras: 4,
        key: key.len(),
        value: value_bytes,
    };
    header(out, message.head, Status::Done, lengths, cas);
    out.extend_from_slice(&client_flags.to_be_bytes());
    out.extend_from_slice(key);
}

/// That a retrieval found nothing. With the key, where it asked for it, and no words.
pub fn miss(out: &mut Vec<u8>, message: &Message<'_>, shows_key: bool) {
    if message.is_quiet {
        return;
    }
    if !shows_key {
        return error(out, message.head, Status::NotFound);
    }
    let lengths = Lengths {
        key: message.key.len(),
        ..Lengths::default()
    };
    header(out, message.head, Status::NotFound, lengths, 0);
    out.extend_from_slice(message.key);
}

/// Success, unless the request is quiet; `cas` is the number of what was made, or 0.
pub fn done(out: &mut Vec<u8>, message: &Message<'_>, cas: u64) {
    if !message.is_quiet {
        header(out, message.head, Status::Done, Lengths::default(), cas);
    }
}

/// The number that counting made, likewise.
pub fn number(out: &mut Vec<u8>, message: &Message<'_>, number: u64, cas: u64) {
    if message.is_quiet {
        return;
    }
    let lengths = Lengths {
        value: 8,
        ..Lengths::default()
    };
    header(out, message.head, Status::Done, lengths, cas);
    out.extend_from_slice(&number.to_be_bytes());
}

/// An error in memcached's words. Quiet requests are told, too.
pub fn error(out: &mut Vec<u8>, head: Head, status: Status) {
    text(out, head, status, status.text().as_bytes());
}

/// A reply that is text.
pub fn text(out: &mut Vec<u8>, head: Head, status: Status, text: &[u8]) {
    let lengths = Lengths {
        value: text.len(),
        ..Lengths::default()
    };
    header(out, head, status, lengths, 0);
    out.extend_from_slice(text);
}

/// One statistic; one without name and value ends them.
pub fn stat(out: &mut Vec<u8>, head: Head, name: &[u8], value: &[u8]) {
    let lengths = Lengths {
        key: name.len(),
        value: value.len(),
        ..Lengths::default()
    };
    header(out, head, Status::Done, lengths, 0);
    out.extend_from_slice(name);
    out.extend_from_slice(value);
}
