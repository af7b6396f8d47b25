//! CRC32C, the checksum of everything that leaves this machine or rests on disk.

use crc_fast::CrcAlgorithm;

/// CRC-32/ISCSI (Castagnoli) of `bytes`, by the CPU's own instructions where it has them.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let sum = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes);
    u32::try_from(sum).expect("a 32-bit checksum fits in 32 bits")
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn matches_the_published_check_values() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        // RFC 3720, appendix B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&[]), 0);
    }
}
