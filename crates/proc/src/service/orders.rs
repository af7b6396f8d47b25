//! What who puts procedures on hosts says to them, and what they answer.

use cenote_wire::{Bytes, List, Reader, Text, Writer, messages};

use super::{NAME_MAX, ORDER, PIECE_MAX, REASON_MAX};
use crate::message::{ANY, NoMessage};
use crate::{Grants, ProcedureId};

messages! {
    /// What who puts procedures on a host wants.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub enum Order | "unknown order" {
        /// Which are there, from this one on.
        1 => List {
            /// Rows to leave out.
            skip: u32,
        },
        /// A module comes; an earlier one of this connection that did not come whole is forgotten.
        2 => Begin(Label),
        /// Bytes of it, in order.
        3 => Piece {
            /// Of the first.
            offset: u32,
            /// At most [`PIECE_MAX`].
            bytes: Vec<u8> as Bytes<u32, PIECE_MAX>,
        },
        /// What became of it: it is checked and compiled once it is whole.
        4 => Ask,
        /// Take a procedure away.
        5 => Remove(ProcedureId),
    }

    /// What a module is.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Label {
        /// Its number, the same on all hosts.
        pub id: ProcedureId,
        /// Its name.
        pub name: String as Text<u32, NAME_MAX>,
        /// Of that name.
        pub version: u32,
        /// On which caches it may run.
        pub grants: Grants,
        /// Bytes of the module.
        pub len_bytes: u32,
    }

    /// A host's answer to an [`Order`].
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub enum Told | "unknown answer to an order" {
        /// Some of the procedures.
        1 => List {
            /// All of them.
            total: u32,
            /// As many as fit.
            rows: Vec<Row> as List<u32, 0, ANY>,
        },
        /// So far so good: the next piece, or it is compiled.
        2 => Going,
        /// The module is there, for as long as the host's process lives.
        3 => Loaded,
        /// The module is there, and will be after a restart.
        6 => Kept,
        /// Whether it was there.
        4 => Removed(bool),
        /// Why not.
        5 => Refused(String as Text<u32, REASON_MAX>),
    }

    /// A procedure of a host.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Row {
        /// Its number.
        pub id: ProcedureId,
        /// Its name.
        pub name: String as Text<u32, NAME_MAX>,
        /// Of that name.
        pub version: u32,
        /// Whether it is part of the host's program.
        pub native: bool,
        /// On which caches it may run.
        pub grants: Grants,
        /// Of a module's bytes ([`crate::checksum`]); 0 of what is part of the program.
        pub checksum: u64,
    }
}

impl Order {
    /// Appends the call.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(ORDER);
        Writer::lenient(out).put(self);
    }

    /// Reads what follows the first byte.
    ///
    /// # Errors
    /// [`NoMessage`].
    pub fn read(bytes: &[u8]) -> Result<Self, NoMessage> {
        Ok(Reader::new(bytes).whole()?)
    }
}

impl Told {
    /// Appends the answer.
    pub fn write(&self, out: &mut Vec<u8>) {
        Writer::lenient(out).put(self);
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// [`NoMessage`].
    pub fn read(bytes: &[u8]) -> Result<Self, NoMessage> {
        Ok(Reader::new(bytes).whole()?)
    }
}

impl Row {
    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        Writer::lenient(out).put(self);
    }
}
