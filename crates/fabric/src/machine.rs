//! Which machine this process runs on, so that two processes can tell that they share one.

use std::sync::OnceLock;

/// The kernel's identity of this boot: the same for all that shares its memory, containers too,
/// and another one elsewhere and after a restart. 0 where the system does not say.
#[must_use]
pub fn machine_id() -> u128 {
    static ID: OnceLock<u128> = OnceLock::new();
    *ID.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        text.ok().and_then(|text| parse(&text)).unwrap_or(0)
    })
}

fn parse(text: &str) -> Option<u128> {
    let digits: String = text.trim().chars().filter(|&digit| digit != '-').collect();
    (digits.len() == 32).then(|| u128::from_str_radix(&digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_is_read_as_one_number() {
        let text = "6f8d0d3c-0f6b-4a0e-9a57-0c51a1b7f001\n";
        assert_eq!(parse(text), Some(0x6f8d_0d3c_0f6b_4a0e_9a57_0c51_a1b7_f001));
        assert_eq!(parse(""), None);
        assert_eq!(parse("6f8d0d3c-0f6b"), None);
        assert_eq!(machine_id(), machine_id());
    }
}
