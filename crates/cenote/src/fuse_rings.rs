//! Whether FUSE requests may come over io_uring, as the environment says.

/// False with `CENOTE_FUSE_URING=off`.
pub fn are_wanted() -> bool {
    std::env::var_os(VARIABLE).is_none_or(|word| word != "off")
}

const VARIABLE: &str = "CENOTE_FUSE_URING";
