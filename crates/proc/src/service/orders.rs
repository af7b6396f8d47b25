//! What who puts procedures on hosts says to them, and what they answer.

use super::{GRANTS_MAX, NAME_MAX, ORDER, PIECE_MAX, REASON_MAX};
use crate::message::{Input, NoMessage, count, put_bytes, put_u32, put_u64, put_u128};
use crate::{Access, CacheId, Grants, ProcedureId};

/// What who puts procedures on a host wants.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Order {
    /// Which are there, from this one on.
    List {
        /// Rows to leave out.
        skip: u32,
    },
    /// A module comes; an earlier one of this connection that did not come whole is forgotten.
    Begin(Label),
    /// Bytes of it, in order.
    Piece {
        /// Of the first.
        offset: u32,
        /// At most [`PIECE_MAX`].
        bytes: Vec<u8>,
    },
    /// What became of it: it is checked and compiled once it is whole.
    Ask,
    /// Take a procedure away.
    Remove(ProcedureId),
}

/// What a module is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Label {
    /// Its number, the same on all hosts.
    pub id: ProcedureId,
    /// Its name.
    pub name: String,
    /// Of that name.
    pub version: u32,
    /// On which caches it may run.
    pub grants: Grants,
    /// Bytes of the module.
    pub len_bytes: u32,
}

/// A host's answer to an [`Order`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Told {
    /// Some of the procedures.
    List {
        /// All of them.
        total: u32,
        /// As many as fit.
        rows: Vec<Row>,
    },
    /// So far so good: the next piece, or it is compiled.
    Going,
    /// The module is there, for as long as the host's process lives.
    Loaded,
    /// The module is there, and will be after a restart.
    Kept,
    /// Whether it was there.
    Removed(bool),
    /// Why not.
    Refused(String),
}

/// A procedure of a host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Row {
    /// Its number.
    pub id: ProcedureId,
    /// Its name.
    pub name: String,
    /// Of that name.
    pub version: u32,
    /// Whether it is part of the host's program.
    pub native: bool,
    /// On which caches it may run.
    pub grants: Grants,
    /// Of a module's bytes ([`crate::checksum`]); 0 of what is part of the program.
    pub checksum: u64,
}

impl Order {
    /// Appends the call.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(ORDER);
        match self {
            Self::List { skip } => {
                out.push(1);
                put_u32(out, *skip);
            }
            Self::Begin(label) => {
                out.push(2);
                put_u32(out, label.id.0);
                put_bytes(out, label.name.as_bytes());
                put_u32(out, label.version);
                put_grants(out, &label.grants);
                put_u32(out, label.len_bytes);
            }
            Self::Piece { offset, bytes } => {
                out.push(3);
                put_u32(out, *offset);
                put_bytes(out, bytes);
            }
            Self::Ask => out.push(4),
            Self::Remove(id) => {
                out.push(5);
                put_u32(out, id.0);
            }
        }
    }

    /// Reads what follows the first byte.
    ///
    /// # Errors
    /// [`NoMessage`].
    pub fn read(bytes: &[u8]) -> Result<Self, NoMessage> {
        let mut input = Input(bytes);
        let order = match input.u8()? {
            1 => Self::List { skip: input.u32()? },
            2 => Self::Begin(Label {
                id: ProcedureId(input.u32()?),
                name: input.text(NAME_MAX)?,
                version: input.u32()?,
                grants: grants(&mut input)?,
                len_bytes: input.u32()?,
            }),
            3 => Self::Piece {
                offset: input.u32()?,
                bytes: input.bytes(PIECE_MAX)?,
            },
            4 => Self::Ask,
            5 => Self::Remove(ProcedureId(input.u32()?)),
            _ => return Err(NoMessage("unknown order")),
        };
        input.end()?;
        Ok(order)
    }
}

fn put_grants(out: &mut Vec<u8>, grants: &Grants) {
    match grants {
        Grants::All(access) => {
            out.push(0);
            out.push(u8::from(*access == Access::ReadWrite));
        }
        Grants::Caches(caches) => {
            out.push(1);
            put_u32(out, count(caches.len()));
            for (cache, access) in caches {
                put_u128(out, cache.0);
                out.push(u8::from(*access == Access::ReadWrite));
            }
        }
    }
}

fn grants(input: &mut Input<'_>) -> Result<Grants, NoMessage> {
    let access = |input: &mut Input<'_>| {
        let writes = input.bool()?;
        Ok(if writes {
            Access::ReadWrite
        } else {
            Access::Read
        })
    };
    match input.u8()? {
        0 => Ok(Grants::All(access(input)?)),
        1 => {
            let len = input.u32()? as usize;
            if len > GRANTS_MAX {
                return Err(NoMessage("too many caches"));
            }
            let one = |input: &mut Input<'_>| Ok((CacheId(input.u128()?), access(input)?));
            Ok(Grants::Caches(input.list(len, 17, one)?))
        }
        _ => Err(NoMessage("unknown grants")),
    }
}

impl Told {
    /// Appends the answer.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::List { total, rows } => {
                out.push(1);
                put_u32(out, *total);
                put_u32(out, count(rows.len()));
                rows.iter().for_each(|row| row.write(out));
            }
            Self::Going => out.push(2),
            Self::Loaded => out.push(3),
            Self::Kept => out.push(6),
            Self::Removed(was_there) => out.extend([4, u8::from(*was_there)]),
            Self::Refused(why) => {
                out.push(5);
                put_bytes(out, why.as_bytes());
            }
        }
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// [`NoMessage`].
    pub fn read(bytes: &[u8]) -> Result<Self, NoMessage> {
        let mut input = Input(bytes);
        let told = match input.u8()? {
            1 => {
                let total = input.u32()?;
                let len = input.u32()? as usize;
                let rows = input.list(len, 23, Row::read)?;
                Self::List { total, rows }
            }
            2 => Self::Going,
            3 => Self::Loaded,
            6 => Self::Kept,
            4 => Self::Removed(input.bool()?),
            5 => Self::Refused(input.text(REASON_MAX)?),
            _ => return Err(NoMessage("unknown answer to an order")),
        };
        input.end()?;
        Ok(told)
    }
}

impl Row {
    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        put_u32(out, self.id.0);
        put_bytes(out, self.name.as_bytes());
        put_u32(out, self.version);
        out.push(u8::from(self.native));
        put_grants(out, &self.grants);
        put_u64(out, self.checksum);
    }

    fn read(input: &mut Input<'_>) -> Result<Self, NoMessage> {
        Ok(Self {
            id: ProcedureId(input.u32()?),
            name: input.text(NAME_MAX)?,
            version: input.u32()?,
            native: input.bool()?,
            grants: grants(input)?,
            checksum: input.u64()?,
        })
    }
}
