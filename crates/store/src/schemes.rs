//! Seven ways to keep objects behind one-sided verbs, told apart by the steps of a PUT and of a GET.
//!
//! A [`Scheme`] says what the client does, in order, and when the server makes a version durable and
//! lets the index name it. Client, server, simulator and the model of costs all go by it; whatever is not
//! in it (log, index, allocation, calls, fabric) is the same code for all.
//! Paper: eFactory, ICPP 2021, evaluation; `docs/papers/efactory.md` has a row for each.

mod ca;
mod efactory;
mod erda;
mod forca;
mod imm;
mod rpc;
mod saw;

pub use ca::Ca;
pub use efactory::EFactory;
pub use erda::Erda;
pub use forca::Forca;
pub use imm::Imm;
pub use rpc::Rpc;
pub use saw::Saw;

/// One message or verb of a PUT, as the client sends or awaits it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PutStep {
    /// A call with key, length and checksum; the answer says where the value goes.
    CallForSpace,
    /// A call that carries the value as well; its answer ends the PUT.
    CallWithValue,
    /// A one-sided WRITE of the value.
    Write,
    /// The same with an immediate, which tells the server.
    WriteImmediate,
    /// A message behind the WRITE on the same connection, which tells the server.
    Send,
    /// The server's answer to `WriteImmediate` or `Send`.
    AwaitAck,
}

/// One message or verb of a GET.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GetStep {
    /// A READ of the index entry.
    ReadEntry,
    /// A READ of the object that the entry names.
    ReadObject,
    /// The client compares the value with its checksum; where it differs it reads the version before.
    CheckValue,
    /// The flag decides: durable, and the GET ends; otherwise the steps that follow.
    UnlessDurable,
    /// A call; the answer says where the newest version is that may be read.
    CallForPlace,
}

/// When the server makes a version durable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Durable {
    /// Never on purpose.
    Never,
    /// Before it answers the call, the message or the immediate that ends the PUT.
    BeforeAck,
    /// When it is first read through the server.
    AtFirstRead,
    /// Behind the clients' backs, or when it is first read through the server.
    InBackground,
}

/// Since when the index names a version.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Named {
    /// Since there is space for it, before its value is there.
    AtAllocation,
    /// Since it is durable.
    WhenDurable,
}

/// A way to keep objects.
pub trait Scheme: Send + Sync + std::fmt::Debug {
    /// As commands know it.
    fn name(&self) -> &'static str;

    /// What a PUT is, in order.
    fn put_steps(&self) -> &'static [PutStep];

    /// What a GET is, in order; steps behind the one that ends it are not taken.
    fn get_steps(&self) -> &'static [GetStep];

    /// When a version is durable.
    fn durable(&self) -> Durable;

    /// When a version is named.
    fn named(&self) -> Named;

    /// Whether the server compares the value each time it is read through it, and not only until it was
    /// right once.
    fn verifies_each_read(&self) -> bool {
        false
    }

    /// Whether values are written beside the log, to memory of their client's, and copied into it once
    /// they are verified. Otherwise clients write to the log itself, and are trusted with it.
    fn lands_beside_log(&self) -> bool {
        false
    }
}

/// All of them, Forca with and without memory of what it verified.
#[must_use]
pub fn all() -> Vec<Box<dyn Scheme>> {
    vec![
        Box::new(Rpc),
        Box::new(Ca),
        Box::new(Saw),
        Box::new(Imm),
        Box::new(Forca { memo: true }),
        Box::new(Forca { memo: false }),
        Box::new(Erda),
        Box::new(EFactory),
    ]
}

/// The scheme of a name.
#[must_use]
pub fn by_name(name: &str) -> Option<Box<dyn Scheme>> {
    all().into_iter().find(|scheme| scheme.name() == name)
}
