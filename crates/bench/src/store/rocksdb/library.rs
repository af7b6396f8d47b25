//! RocksDB's library by its C interface, opened when it is wanted: nothing is built with it.
//!
//! A [`Database`] has the handles of a database and of how it is read and written, and closes them
//! in the right order. Any thread may use it: that is RocksDB's promise for a database.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::{self, NonNull};

use anyhow::{Context as _, Result, bail, ensure};

/// Any of RocksDB's objects.
type Handle = *mut c_void;
/// Where a call leaves its error, a string to be freed; null where there is none.
type ErrorAt = *mut *mut c_char;

/// Declares the functions that are used, each without the prefix of its name.
macro_rules! library {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// Functions of the library, which stays loaded until this process ends.
        struct Library {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            fn load() -> Result<Self> {
                let library = open()?;
                Ok(Self {
                    $(
                        // SAFETY: `rocksdb/c.h` declares a function of this name and type.
                        $name: unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(symbol(library, concat!("rocksdb_", stringify!($name)))?.as_ptr())
                        },
                    )*
                })
            }
        }
    };
}

library! {
    options_create() -> Handle;
    options_destroy(Handle);
    options_set_create_if_missing(Handle, c_uchar);
    options_set_error_if_exists(Handle, c_uchar);
    options_set_compression(Handle, c_int);
    options_set_block_based_table_factory(Handle, Handle);
    block_based_options_create() -> Handle;
    block_based_options_destroy(Handle);
    block_based_options_set_filter_policy(Handle, Handle);
    block_based_options_set_block_cache(Handle, Handle);
    filterpolicy_create_bloom(f64) -> Handle;
    cache_create_lru(usize) -> Handle;
    cache_destroy(Handle);
    readoptions_create() -> Handle;
    readoptions_destroy(Handle);
    writeoptions_create() -> Handle;
    writeoptions_destroy(Handle);
    writeoptions_set_sync(Handle, c_uchar);
    open(Handle, *const c_char, ErrorAt) -> Handle;
    close(Handle);
    put(Handle, Handle, *const c_char, usize, *const c_char, usize, ErrorAt);
    get_pinned(Handle, Handle, *const c_char, usize, ErrorAt) -> Handle;
    pinnableslice_value(Handle, *mut usize) -> *const c_char;
    pinnableslice_destroy(Handle);
    flush_wal(Handle, c_uchar, ErrorAt);
    property_int(Handle, *const c_char, *mut u64) -> c_int;
    free(*mut c_void);
}

/// As Debian's packages name it: the one to build with, and the one to run with.
const NAMES: [&CStr; 2] = [c"librocksdb.so", c"librocksdb.so.7.8"];

/// Opens the library.
fn open() -> Result<NonNull<c_void>> {
    let found = NAMES.iter().find_map(|name| {
        // SAFETY: the name ends with a zero; what the library does when it is loaded is its affair.
        NonNull::new(unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) })
    });
    found.context("RocksDB's library is not installed (librocksdb-dev)")
}

fn symbol(library: NonNull<c_void>, name: &str) -> Result<NonNull<c_void>> {
    let name = CString::new(name)?;
    // SAFETY: a library that is loaded, and a name that ends with a zero.
    let found = unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) };
    NonNull::new(found).with_context(|| format!("RocksDB's library lacks {name:?}"))
}

/// As in `rocksdb 7.8.3`, by the file that was loaded.
fn version() -> Result<String> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let version = maps
        .lines()
        .find_map(|line| line.split_once("librocksdb.so."));
    Ok(format!(
        "rocksdb {}",
        version.map_or("?", |(_, version)| version)
    ))
}

/// A database that is open. Closed when dropped.
pub(super) struct Database {
    library: Library,
    pub(super) name: String,
    database: Handle,
    reads: Handle,
    /// Writes that do not wait for the disk, and writes that do.
    writes: [Handle; 2],
    options: Handle,
    tables: Handle,
    cache: Handle,
}

// SAFETY: RocksDB's databases and options may be used by any thread; nothing here changes them.
unsafe impl Send for Database {}
// SAFETY: likewise, by several at a time.
unsafe impl Sync for Database {}

impl Database {
    /// Makes a database in `dir`, with a block cache of so many bytes.
    ///
    /// # Errors
    /// The library is not installed, or makes none.
    pub(super) fn create(dir: &Path, cache_bytes: usize) -> Result<Self> {
        let library = Library::load()?;
        let path = CString::new(dir.as_os_str().as_bytes())?;
        // SAFETY: constructors without conditions.
        let (options, tables, cache, bloom) = unsafe {
            (
                (library.options_create)(),
                (library.block_based_options_create)(),
                (library.cache_create_lru)(cache_bytes),
                (library.filterpolicy_create_bloom)(BLOOM_BITS),
            )
        };
        // SAFETY: likewise; these objects are new and nobody else's.
        let (reads, writes) = unsafe {
            let writes = [0, 1].map(|sync| {
                let writes = (library.writeoptions_create)();
                (library.writeoptions_set_sync)(writes, sync);
                writes
            });
            ((library.readoptions_create)(), writes)
        };
        // SAFETY: new objects of the right kinds. The tables take the filter over, and a share of
        // the cache; the options copy the tables.
        unsafe {
            (library.block_based_options_set_filter_policy)(tables, bloom);
            (library.block_based_options_set_block_cache)(tables, cache);
            (library.options_set_block_based_table_factory)(options, tables);
            (library.options_set_create_if_missing)(options, 1);
            (library.options_set_error_if_exists)(options, 1);
            (library.options_set_compression)(options, NO_COMPRESSION);
        }
        let mut database = Self {
            library,
            name: version()?,
            database: ptr::null_mut(),
            reads,
            writes,
            options,
            tables,
            cache,
        };
        // SAFETY: options that live, and a path that ends with a zero.
        database.database = database
            .checked(|error| unsafe { (database.library.open)(options, path.as_ptr(), error) })?;
        Ok(database)
    }

    /// Stores a value; `is_synced`: it waits for the disk.
    ///
    /// # Errors
    /// RocksDB's own.
    pub(super) fn put(&self, key: &[u8], value: &[u8], is_synced: bool) -> Result<()> {
        let writes = self.writes[usize::from(is_synced)];
        // SAFETY: an open database, options that live, and bytes that do until it returns.
        self.checked(|error| unsafe {
            let (key_at, value_at) = (key.as_ptr().cast(), value.as_ptr().cast());
            let (key_bytes, value_bytes) = (key.len(), value.len());
            (self.library.put)(
                self.database,
                writes,
                key_at,
                key_bytes,
                value_at,
                value_bytes,
                error,
            );
        })
    }

    /// Hands `take` the value, or `None` where there is none.
    ///
    /// # Errors
    /// RocksDB's own.
    pub(super) fn get<R>(&self, key: &[u8], take: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        // SAFETY: an open database, options that live, and bytes that do until it returns.
        let pinned = self.checked(|error| unsafe {
            let key_at = key.as_ptr().cast();
            (self.library.get_pinned)(self.database, self.reads, key_at, key.len(), error)
        })?;
        if pinned.is_null() {
            return Ok(take(None));
        }
        let mut len_bytes = 0;
        // SAFETY: a slice that is not freed yet; its bytes stay until it is.
        let taken = unsafe {
            let bytes = (self.library.pinnableslice_value)(pinned, &raw mut len_bytes);
            take(Some(std::slice::from_raw_parts(bytes.cast(), len_bytes)))
        };
        // SAFETY: the slice is freed once, and no bytes of it are used any more.
        unsafe { (self.library.pinnableslice_destroy)(pinned) };
        Ok(taken)
    }

    /// Waits until the log is on the disk.
    ///
    /// # Errors
    /// RocksDB's own.
    pub(super) fn sync(&self) -> Result<()> {
        // SAFETY: an open database.
        self.checked(|error| unsafe { (self.library.flush_wal)(self.database, 1, error) })
    }

    /// A property that is a number.
    ///
    /// # Errors
    /// There is no such property.
    pub(super) fn property(&self, name: &CStr) -> Result<u64> {
        let mut value = 0;
        // SAFETY: an open database, a name that ends with a zero, and room for the number.
        let failed =
            unsafe { (self.library.property_int)(self.database, name.as_ptr(), &raw mut value) };
        ensure!(failed == 0, "RocksDB knows no {name:?}");
        Ok(value)
    }

    /// Calls the library, and makes what it left as its error one of ours.
    fn checked<R>(&self, call: impl FnOnce(ErrorAt) -> R) -> Result<R> {
        let mut error = ptr::null_mut();
        let result = call(&raw mut error);
        if error.is_null() {
            return Ok(result);
        }
        // SAFETY: an error is a string that ends with a zero, ours to free.
        let said = unsafe { CStr::from_ptr(error) }
            .to_string_lossy()
            .into_owned();
        // SAFETY: see above; it is not used any more.
        unsafe { (self.library.free)(error.cast()) };
        bail!("rocksdb: {said}")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: each is freed once, the database before what it uses. It is null where it was not
        // opened.
        unsafe {
            if !self.database.is_null() {
                (self.library.close)(self.database);
            }
            (self.library.readoptions_destroy)(self.reads);
            for writes in self.writes {
                (self.library.writeoptions_destroy)(writes);
            }
            (self.library.options_destroy)(self.options);
            (self.library.block_based_options_destroy)(self.tables);
            (self.library.cache_destroy)(self.cache);
        }
    }
}

/// Of a key, as in the benchmark of the log store.
const BLOOM_BITS: f64 = 10.0;
/// `rocksdb_no_compression`: the values are random.
const NO_COMPRESSION: c_int = 0;
