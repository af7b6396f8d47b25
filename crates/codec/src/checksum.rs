//! CRC32C, the checksum of everything that leaves this machine or rests on disk, and sums of 64 bits for
//! what is searched by its checksum: a search makes many guesses, each of which may fit by chance. Of those
//! XXH3 is the faster one where vectors have 256 bits; CRC-64 is there for what was written before.

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

/// XXH3-64 of `bytes`, without a seed.
pub fn xxh3(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

#[cfg(test)]
mod tests {
    use super::{crc32c, crc64, xxh3};

    #[test]
    fn xxh3_matches_other_implementations() {
        assert_eq!(xxh3(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(xxh3(b"abc"), 0x78af_5f94_892f_3950);
        // A page each, by `xxhash-rust`.
        assert_eq!(xxh3(&[0; 4096]), 0x93d7_6fe1_48c6_89ba);
        let counted: Vec<u8> = (0..4096_u32).map(|at| (at % 251) as u8).collect();
        assert_eq!(xxh3(&counted), 0x7135_ffa5_04f1_bc71);
    }

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
