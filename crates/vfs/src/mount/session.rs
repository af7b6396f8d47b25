//! What is agreed with the kernel when it begins to show files: how the mount is named and who may
//! look in, and which of FUSE's features both sides use.

use std::io;

use fuser::{InitFlags, KernelConfig, MountOption, SessionACL};

use super::Options;

/// Bytes of one read or write at most.
pub(super) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Asynchronous requests that the kernel may have open at once; arbitrary.
const BACKGROUND_MAX: u16 = 128;

/// How a session is mounted, and by how many threads it is served; `source` begins what `mount`
/// and `df` show before the name.
#[must_use]
pub fn config(source: &str, options: &Options) -> fuser::Config {
    let mut config = fuser::Config::default();
    config.mount_options = vec![
        MountOption::FSName(format!("{source}{}", options.name)),
        MountOption::Subtype("cenote".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
        MountOption::NoDev,
    ];
    config.acl = match options.allow_other {
        true => SessionACL::All,
        false => SessionACL::Owner,
    };
    config.n_threads = Some(options.threads.max(1));
    // A thread that waits for requests on a descriptor of its own wakes alone.
    config.clone_fd = true;
    config
}

/// Asks the kernel for caches that nobody else invalidates, large requests and many at a time.
///
/// # Errors
/// The kernel takes no requests of that size.
pub fn negotiate(config: &mut KernelConfig) -> io::Result<()> {
    let wanted = [
        InitFlags::FUSE_WRITEBACK_CACHE,
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_CACHE_SYMLINKS,
        // Without it the kernel asks for capabilities of the file at every write.
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    ];
    for flag in wanted {
        if config.add_capabilities(flag).is_err() {
            tracing::info!(?flag, "this kernel has no such FUSE feature");
        }
    }
    let refused = |least: u32| io::Error::other(format!("FUSE allows {least}"));
    config.set_max_write(REQUEST_BYTES_MAX).map_err(refused)?;
    if let Err(most) = config.set_max_readahead(REQUEST_BYTES_MAX) {
        config.set_max_readahead(most).map_err(refused)?;
    }
    let background = config.set_max_background(BACKGROUND_MAX);
    background.map_err(|least| refused(least.into()))?;
    Ok(())
}
