//! Windows by their two names: the fabric's and the pool's, which know nothing of each other.

use cenote_fabric::{Generation, Rights, WindowDescriptor, WindowId};
use cenote_pool::control::Window;

/// The pool's form of the fabric's window descriptor.
pub(super) fn pool_window(descriptor: &WindowDescriptor) -> Window {
    Window {
        id: descriptor.id.0,
        generation: descriptor.generation.0,
        len_bytes: descriptor.len_bytes,
        rights: descriptor.rights.0,
    }
}

/// The fabric's form of the pool's window.
pub(super) fn fabric_window(window: Window) -> WindowDescriptor {
    WindowDescriptor {
        id: WindowId(window.id),
        generation: Generation(window.generation),
        len_bytes: window.len_bytes,
        rights: Rights(window.rights),
    }
}
