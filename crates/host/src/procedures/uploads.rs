//! Modules on their way to a host, and the thread that compiles them.
//!
//! A module comes in pieces over one connection. Compiling takes longer than a server thread may,
//! so the client asks until it is done. What was compiled is kept where there is a [`Depot`]. A client
//! that takes too long blocks nobody: its upload gives way to one that finds no room.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_proc::service::{Label, Order, REASON_MAX, Told};
use cenote_proc::{Library, MODULE_MAX, ProcedureId};

use super::depot::Depot;
use crate::Result;
use crate::machine::step_back;
use crate::side_thread::SideThread;

/// A module to compile.
pub(super) struct Job {
    thread: usize,
    connection: u64,
    label: Label,
    module: Vec<u8>,
}

/// What takes the ends: thread, connection, and what the client is told.
pub(super) type Deliver = Box<dyn Fn(usize, u64, Told) + Send>;

/// Starts the thread that compiles. What is `expected` from the depot comes when nobody waits for another
/// module: the host serves meanwhile, and there may be a thousand.
pub(super) fn start(
    library: Arc<Library>,
    depot: Option<Depot>,
    expected: Vec<ProcedureId>,
    deliver: Deliver,
) -> Result<SideThread<Job>> {
    // A module may take minutes, and what is not kept yet nobody was told of.
    let compiler = SideThread::start("proc-compile", move |jobs| {
        step_back();
        let compile = |job: Job| {
            let told = put(&library, depot.as_ref(), &job.label, &job.module);
            deliver(job.thread, job.connection, told);
        };
        let mut expected = expected.into_iter();
        loop {
            match (jobs.try_recv(), &depot) {
                (Ok(job), _) => compile(job),
                (Err(TryRecvError::Disconnected), _) => return,
                (Err(TryRecvError::Empty), Some(depot)) => match expected.next() {
                    Some(id) => depot.load(&library, id),
                    None => break,
                },
                (Err(TryRecvError::Empty), None) => break,
            }
        }
        jobs.into_iter().for_each(compile);
    })?;
    Ok(compiler.detached())
}

/// Compiles a module and keeps it. What is not kept, though it was to be, is not put in; and what ends the
/// host while it is compiled is not kept, or it would end the next process as well.
fn put(library: &Library, depot: Option<&Depot>, label: &Label, module: &[u8]) -> Told {
    // Looked at when its upload began, and another with this number may have come through since: its file
    // is not to be written over.
    if let Some(refusal) = taken(label, library) {
        return refusal;
    }
    let compiled = match library.compile(module) {
        Ok(compiled) => compiled,
        Err(error) => return refused(error.to_string()),
    };
    if let Some(depot) = depot
        && let Err(error) = depot.keep(label, module)
    {
        return refused(format!("keep the module on the host's disk: {error}"));
    }
    match library.enter(label, compiled) {
        Ok(()) => {
            tracing::info!(name = label.name, version = label.version, "a procedure");
            match depot {
                Some(depot) => conclude(library, depot, label.id),
                None => Told::Loaded,
            }
        }
        Err(error) => {
            // One that stays is told of; the next process will not load it either.
            drop(forget(depot, label.id));
            refused(error.to_string())
        }
    }
}

/// Whether a module that was kept and put in stays. It was removed meanwhile if its file is gone: who did so
/// may have come before it was put in.
fn conclude(library: &Library, depot: &Depot, id: ProcedureId) -> Told {
    if !depot.is_removed(id) {
        return Told::Kept;
    }
    library.registry().remove(id);
    refused("it was removed while it was compiled".into())
}

/// A refusal, if a module has this number or this version of the name, or had the number.
fn taken(label: &Label, library: &Library) -> Option<Told> {
    let is_same = |row: &cenote_proc::service::Row| {
        row.id == label.id || row.name == label.name && row.version == label.version
    };
    let registry = library.registry();
    let is_taken = registry.list().iter().any(is_same) || registry.was_used(label.id);
    is_taken.then(|| refused("the number, or the version of the name, is taken".into()))
}

fn forget(depot: Option<&Depot>, id: ProcedureId) -> io::Result<()> {
    let forgotten = depot.map_or(Ok(()), |depot| depot.forget(id));
    forgotten.inspect_err(|error| tracing::error!(id = id.0, %error, "a module stays on the disk"))
}

/// Those of one server thread.
pub(super) struct Uploads {
    thread: usize,
    by_connection: HashMap<u64, Upload>,
}

struct Upload {
    stage: Stage,
    /// When it was begun, or its client last asked for the end of its compiling.
    since: Time,
}

enum Stage {
    Coming(Label, Vec<u8>),
    Compiling,
    /// The same, and nobody will ask: its connection is gone.
    Forsaken,
    Ended(Told),
}

impl Upload {
    fn is_compiling(&self) -> bool {
        matches!(self.stage, Stage::Compiling | Stage::Forsaken)
    }
}

impl Uploads {
    pub(super) fn new(thread: usize) -> Self {
        Self {
            thread,
            by_connection: HashMap::new(),
        }
    }

    /// Carries an order out.
    pub(super) fn take(
        &mut self,
        now: Time,
        connection: u64,
        order: Order,
        library: &Library,
        depot: Option<&Depot>,
        compiler: &SideThread<Job>,
    ) -> Told {
        match order {
            Order::List { skip } => list(library, skip),
            Order::Remove(id) => remove(library, depot, id),
            Order::Begin(label) => self.begin(now, connection, label, library),
            Order::Piece { offset, bytes } => self.piece(connection, offset, &bytes, compiler),
            Order::Ask => match self.by_connection.remove(&connection) {
                None => refused("nothing was put here".into()),
                Some(Upload {
                    stage: Stage::Ended(told),
                    ..
                }) => told,
                Some(mut going) => {
                    if going.is_compiling() {
                        going.since = now;
                    }
                    self.by_connection.insert(connection, going);
                    Told::Going
                }
            },
        }
    }

    /// A module was compiled, or refused.
    pub(super) fn ended(&mut self, connection: u64, told: Told) {
        match self.by_connection.get_mut(&connection) {
            Some(upload) if matches!(upload.stage, Stage::Compiling) => {
                upload.stage = Stage::Ended(told);
            }
            _ => drop(self.by_connection.remove(&connection)),
        }
    }

    /// A connection ended. A module that is being compiled counts until it is.
    pub(super) fn connection_ended(&mut self, connection: u64) {
        match self.by_connection.get_mut(&connection) {
            Some(upload) if upload.is_compiling() => upload.stage = Stage::Forsaken,
            _ => drop(self.by_connection.remove(&connection)),
        }
    }

    /// Makes room for an upload, if it can: the oldest gives way, if its client takes too long.
    fn make_room(&mut self, now: Time) -> bool {
        if self.by_connection.len() < UPLOADS_MAX {
            return true;
        }
        let late = self
            .by_connection
            .iter()
            .filter(|(_, upload)| !upload.is_compiling() && now.since(upload.since) >= UPLOAD_MAX);
        let oldest = late.min_by_key(|(_, upload)| upload.since);
        let Some(connection) = oldest.map(|(connection, _)| *connection) else {
            return false;
        };
        self.by_connection.remove(&connection);
        true
    }

    fn begin(&mut self, now: Time, connection: u64, label: Label, library: &Library) -> Told {
        if label.len_bytes == 0 || label.len_bytes > MODULE_MAX {
            return refused(format!("a module has 1 to {MODULE_MAX} bytes"));
        }
        if let Some(refusal) = taken(&label, library) {
            return refusal;
        }
        let before = self.by_connection.get(&connection);
        match before.map(Upload::is_compiling) {
            // So the compiler's queue is as long as the uploads are many.
            Some(true) => {
                return refused("another module of this connection is being compiled".into());
            }
            None if !self.make_room(now) => {
                return refused(format!(
                    "{UPLOADS_MAX} modules are on their way here already"
                ));
            }
            _ => {}
        }
        let upload = Upload {
            stage: Stage::Coming(label, Vec::new()),
            since: now,
        };
        self.by_connection.insert(connection, upload);
        Told::Going
    }

    fn piece(
        &mut self,
        connection: u64,
        offset: u32,
        bytes: &[u8],
        compiler: &SideThread<Job>,
    ) -> Told {
        let upload = self.by_connection.get_mut(&connection);
        let Some(Upload { stage, .. }) = upload else {
            return refused("no module was begun".into());
        };
        let Stage::Coming(label, module) = stage else {
            return refused("no module was begun".into());
        };
        let whole = label.len_bytes as usize;
        if offset as usize != module.len() || module.len() + bytes.len() > whole {
            self.by_connection.remove(&connection);
            return refused("a piece is missing, or too long".into());
        }
        module.extend_from_slice(bytes);
        if module.len() == whole {
            let job = Job {
                thread: self.thread,
                connection,
                label: label.clone(),
                module: std::mem::take(module),
            };
            *stage = Stage::Compiling;
            compiler.ask(job);
        }
        Told::Going
    }
}

/// Those of the program stay: all hosts are taken to have them.
fn remove(library: &Library, depot: Option<&Depot>, id: ProcedureId) -> Told {
    let registry = library.registry();
    let rows = registry.list();
    let row = rows.iter().find(|row| row.id == id);
    if row.is_some_and(|row| row.native) {
        return refused("the procedure is part of the host's program".into());
    }
    // First: from the disk the next process would have it back, with who may call it.
    if let Err(error) = forget(depot, id) {
        return refused(format!("its file cannot be removed: {error}"));
    }
    // Who loads it may see first that its file is gone.
    Told::Removed(registry.remove(id) || row.is_some())
}

fn list(library: &Library, skip: u32) -> Told {
    let all = library.registry().list();
    let total = u32::try_from(all.len()).unwrap_or(u32::MAX);
    let mut rows = Vec::new();
    let mut bytes = Vec::new();
    for row in all.into_iter().skip(skip as usize) {
        row.write(&mut bytes);
        if bytes.len() > LIST_BYTES {
            break;
        }
        rows.push(row);
    }
    Told::List { total, rows }
}

fn refused(mut why: String) -> Told {
    let mut end = why.len().min(REASON_MAX);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    why.truncate(end);
    Told::Refused(why)
}

/// Modules under way on one thread: each has up to [`MODULE_MAX`] bytes.
const UPLOADS_MAX: usize = 8;
/// After so long a client that has not sent all of its module, or has not asked what became of it, gives
/// way to one that finds no room. What it says meanwhile counts for nothing: it may trickle.
const UPLOAD_MAX: Duration = Duration::from_secs(10);
/// Of a list's answer: one row more fits a call in any case.
const LIST_BYTES: usize = 48 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_proc::{Access, Grants, WALK};
    use cenote_proc_sdk::procedures::Echo;

    fn label(id: u32) -> Label {
        Label {
            id: ProcedureId(id),
            name: format!("guest-{id}"),
            version: 1,
            grants: Grants::All(Access::Read),
            len_bytes: 4,
        }
    }

    fn piece() -> Order {
        Order::Piece {
            offset: 0,
            bytes: vec![0; 4],
        }
    }

    fn is_refused(told: &Told, why: &str) -> bool {
        matches!(told, Told::Refused(text) if text.contains(why))
    }

    #[test]
    fn what_is_compiled_is_bounded_and_each_module_has_its_own_end() {
        let library = Library::new();
        let (compiler, jobs) = SideThread::done_elsewhere("proc-compile");
        let mut uploads = Uploads::new(0);
        let take = |uploads: &mut Uploads, connection, order| {
            uploads.take(Time(0), connection, order, &library, None, &compiler)
        };
        for connection in 0..UPLOADS_MAX as u64 {
            let id = 1000 + u32::try_from(connection).unwrap();
            let begun = take(&mut uploads, connection, Order::Begin(label(id)));
            assert_eq!(begun, Told::Going);
            assert_eq!(take(&mut uploads, connection, piece()), Told::Going);
        }
        let again = take(&mut uploads, 0, Order::Begin(label(2000)));
        assert!(is_refused(&again, "being compiled"), "{again:?}");
        // Clients that go away do not make room before their modules are done with.
        uploads.connection_ended(1);
        let more = take(&mut uploads, 99, Order::Begin(label(2000)));
        assert!(is_refused(&more, "on their way"), "{more:?}");
        assert_eq!(jobs.try_iter().count(), UPLOADS_MAX);
        uploads.ended(1, Told::Loaded);
        let more = take(&mut uploads, 99, Order::Begin(label(2000)));
        assert_eq!(more, Told::Going);
        uploads.ended(0, Told::Loaded);
        assert_eq!(take(&mut uploads, 0, Order::Ask), Told::Loaded);
        let native = take(&mut uploads, 0, Order::Remove(WALK));
        assert!(is_refused(&native, "the host's program"), "{native:?}");
    }

    #[test]
    fn a_module_that_is_removed_between_the_disk_and_the_library_is_not_told_to_be_kept() {
        let (library, folder) = (Library::new(), tempfile::tempdir().unwrap());
        let depot = Depot::new(folder.path().to_owned());
        let label = label(1000);
        depot.keep(&label, b"wasm").unwrap();
        let nothing = remove(&library, Some(&depot), label.id);
        assert_eq!(nothing, Told::Removed(false));
        let registry = library.registry();
        let grants = Grants::All(Access::Read);
        registry.link::<Echo>(label.id, "late", grants).unwrap();
        let told = conclude(&library, &depot, label.id);
        assert!(is_refused(&told, "removed while"), "{told:?}");
        assert!(registry.list().iter().all(|row| row.id != label.id));
    }

    #[test]
    fn a_module_that_does_not_compile_never_touches_the_folder() {
        let library = Library::new();
        let depot = Depot::new("/nonexistent".into());
        let told = put(&library, Some(&depot), &label(1000), b"wasm");
        assert!(matches!(told, Told::Refused(_)), "{told:?}");
        assert!(!is_refused(&told, "the host's disk"), "{told:?}");
    }

    #[test]
    fn a_client_that_takes_too_long_gives_way_to_one_that_finds_no_room() {
        let library = Library::new();
        let (compiler, jobs) = SideThread::done_elsewhere("proc-compile");
        let mut uploads = Uploads::new(0);
        let mut take = |seconds: u64, connection, order| {
            let now = Time(0).after(Duration::from_secs(seconds));
            uploads.take(now, connection, order, &library, None, &compiler)
        };
        for connection in 0..UPLOADS_MAX as u64 {
            let id = 1000 + u32::try_from(connection).unwrap();
            assert_eq!(
                take(connection, connection, Order::Begin(label(id))),
                Told::Going
            );
        }
        // The first one's module is whole: it waits for the host.
        assert_eq!(take(8, 0, piece()), Told::Going);
        // The second one trickles.
        let bytes = vec![0];
        let trickle = Order::Piece { offset: 0, bytes };
        assert_eq!(take(10, 1, trickle), Told::Going);
        assert_eq!(take(10, 1, Order::Ask), Told::Going);
        let more = take(10, 99, Order::Begin(label(2000)));
        assert!(is_refused(&more, "on their way"), "{more:?}");
        assert_eq!(take(11, 99, Order::Begin(label(2000))), Told::Going);
        let late = take(11, 1, piece());
        assert!(is_refused(&late, "no module was begun"), "{late:?}");
        let more = take(11, 98, Order::Begin(label(2001)));
        assert!(is_refused(&more, "on their way"), "{more:?}");
        // What goes on stays, however long it takes.
        for second in 12..60 {
            assert_eq!(take(second, 0, Order::Ask), Told::Going);
        }
        assert_eq!(take(60, 98, Order::Begin(label(2001))), Told::Going);
        assert_eq!(take(60, 99, piece()), Told::Going);
        assert_eq!(jobs.try_iter().count(), 2);
    }
}
