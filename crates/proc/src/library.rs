//! The procedures of a host: those that are part of its program, and the modules that were put
//! there.

use std::sync::Arc;
#[cfg(feature = "wasm")]
use std::sync::OnceLock;

use cenote_proc_sdk::procedures::{Echo, Filter, Lookup, WalkList};

use crate::service::Label;
#[cfg(feature = "wasm")]
use crate::wasm::{Limits, Runtime};
use crate::{Access, Grants, ProcedureId, Registry, RegistryError};

/// Answers its argument.
pub const ECHO: ProcedureId = ProcedureId(1);
/// Walks a linked list.
pub const WALK: ProcedureId = ProcedureId(2);
/// Looks a key up in a B+-tree.
pub const LOOKUP: ProcedureId = ProcedureId(3);
/// Filters records of a range.
pub const FILTER: ProcedureId = ProcedureId(4);

/// Bytes of a module at most.
pub const MODULE_MAX: u32 = 1 << 20;

/// Tells modules apart that were meant to be the same (FNV-1a). Who means harm can make two that
/// are one to it, and may put modules there anyway.
#[must_use]
pub fn checksum(module: &[u8]) -> u64 {
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    module.iter().fold(0xcbf2_9ce4_8422_2325, add)
}

/// See the module's text.
pub struct Library {
    registry: Arc<Registry>,
    /// Made for the first module: its thread and its compiler are of no use before.
    #[cfg(feature = "wasm")]
    runtime: OnceLock<Arc<Runtime>>,
}

/// A module that is compiled, and in no library so far.
#[cfg(feature = "wasm")]
pub struct Compiled(crate::wasm::Guest);
/// A module that is compiled: there is none.
#[cfg(not(feature = "wasm"))]
pub struct Compiled(std::convert::Infallible);

/// Why a module is not there.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// This host's program was built without WebAssembly.
    #[error("this host runs no WebAssembly: its program was built without it")]
    NoWebAssembly,
    /// Its number or name.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The module itself.
    #[cfg(feature = "wasm")]
    #[error(transparent)]
    Module(#[from] crate::wasm::ModuleError),
}

impl Default for Library {
    fn default() -> Self {
        Self::new()
    }
}

impl Library {
    /// With the procedures of the program, which read and write nothing: on all caches.
    ///
    /// # Panics
    /// If two of them have the same number.
    #[must_use]
    pub fn new() -> Self {
        let registry = Registry::default();
        let all = || Grants::All(Access::Read);
        registry
            .link::<Echo>(ECHO, "echo", all())
            .and_then(|()| registry.link::<WalkList>(WALK, "walk", all()))
            .and_then(|()| registry.link::<Lookup>(LOOKUP, "lookup", all()))
            .and_then(|()| registry.link::<Filter>(FILTER, "filter", all()))
            .expect("numbers and names are told apart");
        Self {
            registry: Arc::new(registry),
            #[cfg(feature = "wasm")]
            runtime: OnceLock::new(),
        }
    }

    /// What server threads run.
    #[must_use]
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Checks and compiles a module, which takes milliseconds and more, and puts it in.
    ///
    /// # Errors
    /// [`LoadError`]; nothing was put in.
    pub fn load(&self, label: &Label, module: &[u8]) -> Result<(), LoadError> {
        self.enter(label, self.compile(module)?)
    }

    /// Checks and compiles a module, which takes milliseconds and more, for [`Library::enter`].
    ///
    /// # Errors
    /// [`LoadError`], but for its number or name.
    #[cfg(feature = "wasm")]
    pub fn compile(&self, module: &[u8]) -> Result<Compiled, LoadError> {
        let runtime = match self.runtime.get() {
            Some(runtime) => runtime,
            None => {
                let new = Runtime::new(Limits::default())?;
                self.runtime.get_or_init(|| new)
            }
        };
        Ok(Compiled(runtime.compile(module)?))
    }

    /// Puts in a module that was compiled.
    ///
    /// # Errors
    /// Its number or name is taken; nothing was put in.
    #[cfg(feature = "wasm")]
    pub fn enter(&self, label: &Label, module: Compiled) -> Result<(), LoadError> {
        let Label {
            id, name, version, ..
        } = label;
        let grants = label.grants.clone();
        let entered = self.registry.load(*id, name, *version, grants, module.0);
        Ok(entered?)
    }

    /// Puts in a module whose place is [held](Registry::expect); whether it is, still.
    #[cfg(feature = "wasm")]
    pub fn arrive(&self, id: ProcedureId, module: Compiled) -> bool {
        self.registry.arrive(id, module.0)
    }

    /// Refuses: this program has no WebAssembly.
    ///
    /// # Errors
    /// `NoWebAssembly`.
    #[cfg(not(feature = "wasm"))]
    pub fn compile(&self, _module: &[u8]) -> Result<Compiled, LoadError> {
        Err(LoadError::NoWebAssembly)
    }

    /// Never called: nothing was compiled.
    #[cfg(not(feature = "wasm"))]
    pub fn arrive(&self, _id: ProcedureId, module: Compiled) -> bool {
        match module.0 {}
    }

    /// Never called: nothing was compiled.
    ///
    /// # Errors
    /// None.
    #[cfg(not(feature = "wasm"))]
    pub fn enter(&self, _label: &Label, module: Compiled) -> Result<(), LoadError> {
        match module.0 {}
    }
}
