//! Functions of libc, or of another library, behind those of the same names here.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::sys;

unsafe extern "C" {
    fn dlsym(handle: *mut u8, name: *const i8) -> usize;
}

/// A function of the next library.
pub struct Next {
    name: &'static core::ffi::CStr,
    at: AtomicUsize,
}

impl Next {
    pub const fn new(name: &'static core::ffi::CStr) -> Self {
        Self {
            name,
            at: AtomicUsize::new(0),
        }
    }

    pub fn at(&self) -> usize {
        const RTLD_NEXT: *mut u8 = usize::MAX as *mut u8;
        let mut at = self.at.load(Ordering::Relaxed);
        if at == 0 {
            // SAFETY: the name ends with 0.
            at = unsafe { dlsym(RTLD_NEXT, self.name.as_ptr()) };
            if at == 0 {
                sys::die();
            }
            self.at.store(at, Ordering::Relaxed);
        }
        at
    }
}

/// Calls a function of the next library.
macro_rules! next {
    ($name:literal, fn($($kind:ty),*) -> $result:ty, ($($argument:expr),*)) => {{
        static NEXT: $crate::next::Next = $crate::next::Next::new($name);
        // SAFETY: the function of this name has this type.
        unsafe {
            core::mem::transmute::<usize, unsafe extern "C" fn($($kind),*) -> $result>(NEXT.at())(
                $($argument),*
            )
        }
    }};
}
pub(crate) use next;
