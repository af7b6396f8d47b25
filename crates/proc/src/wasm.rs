//! Procedures that are loaded at run time: WebAssembly, compiled by wasmtime.
//!
//! A guest gets nothing of the machine but three calls that reach the bytes of one cache. What it
//! may take is bounded: the module's size and [`Shape`], its memory and tables, the stack, and the
//! time of a step. A guest that loops is stopped to be looked at by each epoch, which a thread
//! counts while a guest runs ([`Ticker`]), and ended when it had its share of processor time.
//!
//! Bounds are checked by code, not by signals: a host has its own handler for lost memory, and two
//! that guess whose fault it was are one too many (decision 76).
//! Paper: `[compucache]` stored procedures; WebAssembly is ours.

mod instance;
mod shape;
mod ticker;

use std::sync::Arc;
use std::time::Duration;

use wasmtime::{Config, Engine, ExternType, Linker, Module, ValType};

pub use instance::Instance;
pub use shape::Shape;
pub use ticker::{Running, Ticker};

/// What a guest may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of a module, in bytes.
    pub module_bytes: usize,
    /// Of what a module costs to compile, by the shape of its functions.
    pub shape: Shape,
    /// Of a guest's own memory, in bytes.
    pub memory_bytes: usize,
    /// Of its stack, in bytes.
    pub stack_bytes: usize,
    /// Entries of its table.
    pub table_entries: usize,
    /// Processor time that a step may take. A thread that others keep waiting costs its guest
    /// nothing.
    pub step_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            module_bytes: 1 << 20,
            shape: Shape::default(),
            memory_bytes: 4 << 20,
            stack_bytes: 256 << 10,
            table_entries: 4096,
            step_time: Duration::from_millis(10),
        }
    }
}

/// Why a module was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// It is longer than allowed.
    #[error("the module has {len} bytes, at most {most} are allowed")]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// What is allowed.
        most: usize,
    },
    /// It could take minutes to compile, or memory that the host does not have.
    #[error("the module has {what}: {found}, at most {most} are allowed")]
    Shape {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        found: u64,
        /// What is allowed.
        most: u64,
    },
    /// It is not a valid module, or uses what is not offered.
    #[error("the module is not valid: {0}")]
    Invalid(String),
    /// It wants something of the machine that no procedure gets.
    #[error("the module imports {module}.{name}, which is not offered")]
    Import {
        /// From where.
        module: String,
        /// What.
        name: String,
    },
    /// It lacks a function or the memory that a procedure has.
    #[error("the module has no export {0} of the right type")]
    Export(&'static str),
    /// It does not come up.
    #[error("the module does not start: {0}")]
    Start(String),
}

/// Compiles modules and keeps what they share; one per process.
pub struct Runtime {
    engine: Engine,
    linker: Linker<instance::Guest>,
    limits: Limits,
    ticker: Ticker,
}

/// A module that was checked and compiled.
pub struct Guest {
    checksum: u64,
    pre: wasmtime::InstancePre<instance::Guest>,
    runtime: Arc<Runtime>,
}

impl Runtime {
    /// With a thread that counts epochs every millisecond while a guest runs.
    ///
    /// # Errors
    /// `Invalid`: this processor is not one that modules can be compiled for.
    pub fn new(limits: Limits) -> Result<Arc<Self>, ModuleError> {
        let mut config = Config::new();
        config.epoch_interruption(true);
        config.signals_based_traps(false);
        config.max_wasm_stack(limits.stack_bytes);
        // Bounds are checked by code: guard pages are of no use, only room to grow in place.
        config.memory_reservation(limits.memory_bytes as u64);
        config.memory_guard_size(0);
        config.memory_reservation_for_growth(0);
        config.wasm_multi_memory(false);
        config.wasm_memory64(false);
        // Blocks with many results cost what locals cost, and no compiler makes them unasked.
        config.wasm_multi_value(false);
        let engine = Engine::new(&config).map_err(invalid)?;
        let mut linker = Linker::new(&engine);
        instance::link(&mut linker).map_err(invalid)?;
        let ticker = Ticker::start(&engine);
        Ok(Arc::new(Self {
            engine,
            linker,
            limits,
            ticker,
        }))
    }

    /// Checks and compiles a module. Takes milliseconds and more: never on a server thread.
    ///
    /// # Errors
    /// [`ModuleError`]; it is never of use to try the same module again.
    pub fn compile(self: &Arc<Self>, bytes: &[u8]) -> Result<Guest, ModuleError> {
        let most = self.limits.module_bytes;
        if bytes.len() > most {
            let len = bytes.len();
            return Err(ModuleError::TooLong { len, most });
        }
        self.limits.shape.check(bytes)?;
        let module = Module::from_binary(&self.engine, bytes).map_err(invalid)?;
        check_imports(&module)?;
        check_exports(&module)?;
        let pre = self.linker.instantiate_pre(&module).map_err(invalid)?;
        let runtime = Arc::clone(self);
        let guest = Guest {
            checksum: crate::library::checksum(bytes),
            pre,
            runtime,
        };
        // Its start function, and where it puts its frame, are tried here and not by a request.
        drop(guest.instance()?);
        Ok(guest)
    }

    /// Says that guests run until the guard is dropped; once for a batch.
    #[must_use]
    pub fn running(&self) -> Running<'_> {
        self.ticker.running()
    }
}

impl Guest {
    /// Of the module's bytes.
    #[must_use]
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// A fresh instance, with memory of its own.
    ///
    /// # Errors
    /// `Start`: its start function traps, or memory is out.
    pub fn instance(&self) -> Result<Instance, ModuleError> {
        let _running = self.runtime.running();
        Instance::new(&self.pre, &self.runtime.engine, self.runtime.limits)
    }

    /// The runtime that compiled it.
    #[must_use]
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }
}

fn check_imports(module: &Module) -> Result<(), ModuleError> {
    for import in module.imports() {
        let offered = import.module() == MODULE && IMPORTS.contains(&import.name());
        if !offered {
            return Err(ModuleError::Import {
                module: import.module().to_owned(),
                name: import.name().to_owned(),
            });
        }
    }
    Ok(())
}

fn check_exports(module: &Module) -> Result<(), ModuleError> {
    let is_number = |name: &str| match module.get_export(name) {
        Some(ExternType::Func(function)) => {
            function.params().len() == 0
                && function.results().len() == 1
                && function
                    .results()
                    .all(|result| matches!(result, ValType::I32))
        }
        _ => false,
    };
    if !is_number("frame") {
        return Err(ModuleError::Export("frame"));
    }
    if !is_number("step") {
        return Err(ModuleError::Export("step"));
    }
    match module.get_export("memory") {
        Some(ExternType::Memory(_)) => Ok(()),
        _ => Err(ModuleError::Export("memory")),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn invalid(error: wasmtime::Error) -> ModuleError {
    ModuleError::Invalid(format!("{error:#}"))
}

/// The one module that guests import from.
const MODULE: &str = "cenote";
/// What it has.
const IMPORTS: [&str; 3] = ["load", "store", "here"];
