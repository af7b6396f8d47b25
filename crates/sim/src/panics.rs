//! A simulation that panics: what it says is the promise that it broke.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a simulation gives.
///
/// # Errors
/// It panics, and says this.
pub fn caught<R>(simulate: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(simulate)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("it panics: {}", text.unwrap_or(""))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_panic_says_is_told() {
        assert_eq!(caught(|| 7), Ok(7));
        assert_eq!(
            caught(|| panic!("as is")),
            Err::<(), _>("it panics: as is".to_owned())
        );
        let said = caught(|| panic!("page {}", 3));
        assert_eq!(said, Err::<(), _>("it panics: page 3".to_owned()));
    }
}
