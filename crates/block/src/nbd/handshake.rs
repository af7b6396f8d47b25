//! The handshake of one connection: options in, replies out.
//!
//! Pure: [`Handshake::advance`] is fed received bytes and appends what is to be
//! sent; the worker does the I/O and enforces the time limit. Whatever the
//! client sends, memory stays below [`OPTION_BYTES_MAX`] and the number of
//! options below [`OPTIONS_MAX`].

use super::export::{Export, META_CONTEXT_ID, META_CONTEXT_NAME};
use super::wire::{
    self, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, Framing, Input, OPTION_MAGIC, OPTION_REPLY_MAGIC,
    export_flag, info, option, reply,
};

/// Where a connection stands before its first command.
#[derive(Debug)]
pub(crate) struct Handshake {
    /// `None` until the client's flags came.
    client_flags: Option<u32>,
    security: Security,
    framing: Framing,
    /// The export for which `base:allocation` was chosen.
    meta_context_export: Option<usize>,
    /// Bytes of an oversized option still to be thrown away, and its number.
    skipping: Option<(u32, u64)>,
    option_count: u32,
}

/// What a handshake has to do with TLS.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Security {
    /// There is none.
    None,
    /// A client may ask for it.
    Offered,
    /// Nothing is said before a client has asked for it.
    Required,
    /// It runs.
    Running,
}

/// What comes after the bytes fed so far.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Step {
    /// More bytes are needed.
    More,
    /// Replies were appended; send them before the next call.
    Replied,
    /// Send what was appended, then go on over TLS.
    StartTls,
    /// Commands follow.
    Transmit(Agreed),
    /// Send what was appended, then close.
    Close,
}

/// What a handshake ended with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Agreed {
    /// Index of the export.
    pub(crate) export: usize,
    /// Its size as the client was told.
    pub(crate) size_bytes: u64,
    /// How requests and replies look.
    pub(crate) framing: Framing,
    /// Whether block status was agreed on.
    pub(crate) block_status: bool,
}

/// A client's longest sensible option: a name and queries of 4096 bytes each.
const OPTION_BYTES_MAX: u32 = 16 << 10;
/// Longest string the protocol allows.
const STRING_BYTES_MAX: usize = 4096;
/// Options in one handshake before the client is taken for a hostile one; arbitrary.
const OPTIONS_MAX: u32 = 1024;
const OPTION_HEADER_BYTES: usize = 16;

impl Handshake {
    /// Starts a handshake and appends the server's greeting.
    pub(crate) fn start(security: Security, out: &mut Vec<u8>) -> Self {
        out.extend(wire::SERVER_MAGIC.to_be_bytes());
        out.extend(OPTION_MAGIC.to_be_bytes());
        out.extend((FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
        Self {
            client_flags: None,
            security,
            framing: Framing::Simple,
            meta_context_export: None,
            skipping: None,
            option_count: 0,
        }
    }

    /// Most bytes that one call can ask to see before it moves on.
    pub(crate) const INPUT_BYTES_MAX: usize = OPTION_HEADER_BYTES + OPTION_BYTES_MAX as usize;

    /// Takes at most one message from the front of `input`; returns how many
    /// bytes it used and what comes next.
    pub(crate) fn advance(
        &mut self,
        input: &[u8],
        exports: &[Export],
        out: &mut Vec<u8>,
    ) -> (usize, Step) {
        if self.client_flags.is_none() {
            return self.take_client_flags(input);
        }
        if self.skipping.is_some() {
            return self.skip(input, out);
        }
        let mut header = Input::new(input);
        let (Some(magic), Some(number), Some(len)) = (header.u64(), header.u32(), header.u32())
        else {
            return (0, Step::More);
        };
        if magic != OPTION_MAGIC || self.option_count >= OPTIONS_MAX {
            return (0, Step::Close);
        }
        if len > OPTION_BYTES_MAX {
            self.option_count += 1;
            self.skipping = Some((number, u64::from(len)));
            return (OPTION_HEADER_BYTES, Step::Replied);
        }
        let Some(data) = header.take(len as usize) else {
            return (0, Step::More);
        };
        self.option_count += 1;
        let step = self.take_option(number, data, exports, out);
        (OPTION_HEADER_BYTES + data.len(), step)
    }

    fn take_client_flags(&mut self, input: &[u8]) -> (usize, Step) {
        let Some(flags) = Input::new(input).u32() else {
            return (0, Step::More);
        };
        if flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
            return (0, Step::Close);
        }
        self.client_flags = Some(flags);
        (4, Step::Replied)
    }

    fn skip(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        let Some((number, left)) = self.skipping.take() else {
            return (0, Step::Replied);
        };
        let used = left.min(input.len() as u64);
        if left > used {
            self.skipping = Some((number, left - used));
            return (used as usize, Step::More);
        }
        let step = self.refuse_early(number, out).unwrap_or_else(|| {
            if number == option::EXPORT_NAME {
                return Step::Close;
            }
            put_reply(out, number, reply::ERR_TOO_BIG, &[]);
            Step::Replied
        });
        (used as usize, step)
    }

    /// What is said to an option whatever its data is, if it may not be sent as things stand.
    fn refuse_early(&self, number: u32, out: &mut Vec<u8>) -> Option<Step> {
        let flags = self.client_flags.unwrap_or(0);
        if flags & u32::from(FLAG_FIXED_NEWSTYLE) == 0 && number != option::EXPORT_NAME {
            // Without the fixed style there is no way to answer an option.
            return Some(Step::Close);
        }
        if self.security != Security::Required {
            return None;
        }
        match number {
            option::STARTTLS | option::ABORT => None,
            option::EXPORT_NAME => Some(Step::Close),
            _ => {
                put_reply(out, number, reply::ERR_TLS_REQUIRED, &[]);
                Some(Step::Replied)
            }
        }
    }

    fn take_option(
        &mut self,
        number: u32,
        data: &[u8],
        exports: &[Export],
        out: &mut Vec<u8>,
    ) -> Step {
        if let Some(step) = self.refuse_early(number, out) {
            return step;
        }
        match number {
            option::STARTTLS => self.start_tls(data, out),
            option::EXPORT_NAME => self.export_name(data, exports, out),
            option::ABORT => {
                put_reply(out, number, reply::ACK, &[]);
                Step::Close
            }
            option::LIST => {
                list(data, exports, out);
                Step::Replied
            }
            option::INFO | option::GO => self.info_or_go(number, data, exports, out),
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => {
                let kind = self.change_framing(number, data);
                put_reply(out, number, kind, &[]);
                Step::Replied
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                if let Err(kind) = self.meta_context(number, data, exports, out) {
                    put_reply(out, number, kind, &[]);
                }
                Step::Replied
            }
            _ => {
                put_reply(out, number, reply::ERR_UNSUPPORTED, &[]);
                Step::Replied
            }
        }
    }

    fn start_tls(&mut self, data: &[u8], out: &mut Vec<u8>) -> Step {
        let refusal = match self.security {
            Security::None => Some(reply::ERR_UNSUPPORTED),
            Security::Running => Some(reply::ERR_INVALID),
            Security::Offered | Security::Required => {
                (!data.is_empty()).then_some(reply::ERR_INVALID)
            }
        };
        if let Some(kind) = refusal {
            put_reply(out, option::STARTTLS, kind, &[]);
            return Step::Replied;
        }
        put_reply(out, option::STARTTLS, reply::ACK, &[]);
        // Whatever was agreed on in the clear may be somebody else's word.
        self.security = Security::Running;
        self.framing = Framing::Simple;
        self.meta_context_export = None;
        Step::StartTls
    }

    /// Takes up another framing; the reply type that says so, or why not.
    fn change_framing(&mut self, number: u32, data: &[u8]) -> u32 {
        let wanted = match number {
            option::EXTENDED_HEADERS => Framing::Extended,
            _ => Framing::Structured,
        };
        if !data.is_empty() || self.framing == wanted {
            return reply::ERR_INVALID;
        }
        if self.framing == Framing::Extended {
            // There is no way back to structured replies.
            return reply::ERR_EXTENDED_HEADERS;
        }
        self.framing = wanted;
        reply::ACK
    }

    fn export_name(&mut self, name: &[u8], exports: &[Export], out: &mut Vec<u8>) -> Step {
        if self.framing == Framing::Extended {
            // Forbidden, and it has no answer that could say so.
            return Step::Close;
        }
        let Some(export) = find(exports, name) else {
            return Step::Close;
        };
        let agreed = self.agree(export, exports);
        out.extend(agreed.size_bytes.to_be_bytes());
        out.extend(self.export_flags().to_be_bytes());
        if self.client_flags.unwrap_or(0) & u32::from(FLAG_NO_ZEROES) == 0 {
            out.extend([0; 124]);
        }
        Step::Transmit(agreed)
    }

    fn info_or_go(
        &mut self,
        number: u32,
        data: &[u8],
        exports: &[Export],
        out: &mut Vec<u8>,
    ) -> Step {
        let Some((name, wanted)) = parse_info(data) else {
            put_reply(out, number, reply::ERR_INVALID, &[]);
            return Step::Replied;
        };
        let Some(index) = find(exports, name) else {
            put_reply(out, number, reply::ERR_UNKNOWN, &[]);
            return Step::Replied;
        };
        let export = &exports[index];
        let agreed = self.agree(index, exports);
        let mut body = info::EXPORT.to_be_bytes().to_vec();
        body.extend(agreed.size_bytes.to_be_bytes());
        body.extend(self.export_flags().to_be_bytes());
        put_reply(out, number, reply::INFO, &body);
        for (kind, text) in [
            (info::NAME, export.name.clone()),
            (info::DESCRIPTION, export.disk.description()),
        ] {
            if wanted.contains(kind) {
                body = kind.to_be_bytes().to_vec();
                body.extend(clip(&text).as_bytes());
                put_reply(out, number, reply::INFO, &body);
            }
        }
        if wanted.contains(info::BLOCK_SIZE) {
            body = info::BLOCK_SIZE.to_be_bytes().to_vec();
            for size in [1, cenote_volume::PAGE_BYTES as u32, wire::PAYLOAD_BYTES_MAX] {
                body.extend(size.to_be_bytes());
            }
            put_reply(out, number, reply::INFO, &body);
        }
        put_reply(out, number, reply::ACK, &[]);
        if number == option::GO {
            Step::Transmit(agreed)
        } else {
            Step::Replied
        }
    }

    /// Answers LIST and SET_META_CONTEXT; the error is the reply type to send.
    fn meta_context(
        &mut self,
        number: u32,
        data: &[u8],
        exports: &[Export],
        out: &mut Vec<u8>,
    ) -> Result<(), u32> {
        let set = number == option::SET_META_CONTEXT;
        if set {
            // A failed choice undoes an earlier one too.
            self.meta_context_export = None;
        }
        if !self.framing.has_chunks() {
            return Err(reply::ERR_INVALID);
        }
        let (name, queries) = parse_meta_context(data)?;
        let export = find(exports, name).ok_or(reply::ERR_UNKNOWN)?;
        let matched = match queries {
            Queries::None => !set,
            Queries::Some { exact, namespace } => exact || (namespace && !set),
        };
        if matched {
            let id = if set { META_CONTEXT_ID } else { 0 };
            let mut body = id.to_be_bytes().to_vec();
            body.extend(META_CONTEXT_NAME);
            put_reply(out, number, reply::META_CONTEXT, &body);
            if set {
                self.meta_context_export = Some(export);
            }
        }
        put_reply(out, number, reply::ACK, &[]);
        Ok(())
    }

    fn agree(&self, export: usize, exports: &[Export]) -> Agreed {
        Agreed {
            export,
            size_bytes: exports[export].disk.size_bytes(),
            framing: self.framing,
            block_status: self.meta_context_export == Some(export),
        }
    }

    fn export_flags(&self) -> u16 {
        let flags = export_flag::HAS_FLAGS
            | export_flag::SEND_FLUSH
            | export_flag::SEND_FUA
            | export_flag::SEND_TRIM
            | export_flag::SEND_WRITE_ZEROES
            | export_flag::CAN_MULTI_CONN
            | export_flag::SEND_CACHE
            | export_flag::SEND_FAST_ZERO;
        if self.framing.has_chunks() {
            flags | export_flag::SEND_DF
        } else {
            flags
        }
    }
}

/// The export of that name; the empty name means the first one.
fn find(exports: &[Export], name: &[u8]) -> Option<usize> {
    let named = exports
        .iter()
        .position(|export| export.name.as_bytes() == name);
    named.or((name.is_empty() && !exports.is_empty()).then_some(0))
}

fn list(data: &[u8], exports: &[Export], out: &mut Vec<u8>) {
    if !data.is_empty() {
        put_reply(out, option::LIST, reply::ERR_INVALID, &[]);
        return;
    }
    for export in exports {
        let description = export.disk.description();
        let mut body = (export.name.len() as u32).to_be_bytes().to_vec();
        body.extend(export.name.as_bytes());
        body.extend(clip(&description).as_bytes());
        put_reply(out, option::LIST, reply::SERVER, &body);
    }
    put_reply(out, option::LIST, reply::ACK, &[]);
}

/// Information types a client asked for.
struct Wanted<'a>(&'a [u8]);

impl Wanted<'_> {
    fn contains(&self, kind: u16) -> bool {
        self.0
            .chunks_exact(2)
            .any(|pair| pair == kind.to_be_bytes())
    }
}

fn parse_info(data: &[u8]) -> Option<(&[u8], Wanted<'_>)> {
    let mut input = Input::new(data);
    let name = input.string()?;
    let count = input.u16()?;
    let kinds = input.take(usize::from(count) * 2)?;
    (input.is_empty() && name.len() <= STRING_BYTES_MAX).then_some((name, Wanted(kinds)))
}

/// What the queries of a meta context option ask for.
enum Queries {
    None,
    Some {
        /// `base:allocation` is among them.
        exact: bool,
        /// `base:` is among them.
        namespace: bool,
    },
}

fn parse_meta_context(data: &[u8]) -> Result<(&[u8], Queries), u32> {
    let mut input = Input::new(data);
    let name = input.string().ok_or(reply::ERR_INVALID)?;
    let count = input.u32().ok_or(reply::ERR_INVALID)?;
    let (mut exact, mut namespace) = (false, false);
    // Each round takes at least four bytes of `data`, or fails.
    for _ in 0..count {
        let query = input.string().ok_or(reply::ERR_INVALID)?;
        exact |= query == META_CONTEXT_NAME;
        namespace |= query == b"base:";
        if query.len() > STRING_BYTES_MAX {
            return Err(reply::ERR_TOO_BIG);
        }
    }
    if !input.is_empty() || name.len() > STRING_BYTES_MAX {
        return Err(reply::ERR_INVALID);
    }
    let queries = match count {
        0 => Queries::None,
        _ => Queries::Some { exact, namespace },
    };
    Ok((name, queries))
}

fn clip(text: &str) -> &str {
    &text[..text.floor_char_boundary(STRING_BYTES_MAX)]
}

fn put_reply(out: &mut Vec<u8>, number: u32, kind: u32, body: &[u8]) {
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(number.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((body.len() as u32).to_be_bytes());
    out.extend(body);
}

#[cfg(test)]
mod tests;
