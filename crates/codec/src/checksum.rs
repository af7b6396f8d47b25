//! CRC32C, the checksum of everything that leaves this machine or rests on disk, and CRC-64 for
//! what is searched by its checksum: a search makes many guesses, each of which may fit by chance.

use crc_fast::CrcAlgorithm;

/// CRC-32/ISCSI (Castagnoli) of `bytes`, by the CPU's own instructions where it has them.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let sum = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes);
    u32::try_from(sum).expect("a 32-bit checksum fits in 32 bits")
}

/// CRC-64/NVME of `bytes`, by the CPU's carry-less multiplication where it has it.
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

#[cfg(test)]
mod tests {
    use super::{crc32c, crc64};

    #[test]
    fn crc64_matches_the_published_check_values() {
        assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888);
        // NVM command set specification, 5.2.1.3.5: a block of zeros, and of ones.
        assert_eq!(crc64(&[0; 4096]), 0x6482_d367_eb22_b64e);
        assert_eq!(crc64(&[0xff; 4096]), 0xc0dd_ba73_02ec_a3ac);
    }

    #[test]
    fn matches_the_published_check_values() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        // RFC 3720, appendix B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&[]), 0);
    }
}
