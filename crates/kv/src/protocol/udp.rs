//! The frame in front of each datagram, and how a reply is cut into datagrams.
//!
//! Eight bytes, four numbers of 16 bits, high byte first: the request's id, this datagram's number
//! from 0, how many there are, and 0. A request is one datagram; a reply may be many, which come in
//! any order or not at all.

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 8;
/// Longest datagram of a reply, as memcached sends it: it passes an Ethernet whole.
pub const DATAGRAM_BYTES_MAX: usize = 1400;
/// Bytes of a reply in one datagram.
pub const PAYLOAD_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - HEADER_BYTES;

/// The header of a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Header {
    /// Chosen by the client, and the same in each datagram of the reply.
    pub request_id: u16,
    /// Number of this datagram, from 0.
    pub sequence: u16,
    /// Datagrams of this message.
    pub count: u16,
}

impl Header {
    /// Reads the header of a datagram, and gives the rest. Nothing where there is no rest.
    pub fn parse(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let (header, rest) = datagram.split_first_chunk::<HEADER_BYTES>()?;
        let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let header = Self {
            request_id: number(0),
            sequence: number(2),
            count: number(4),
        };
        (!rest.is_empty()).then_some((header, rest))
    }

    /// The header's bytes.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let [id_high, id_low] = self.request_id.to_be_bytes();
        let [sequence_high, sequence_low] = self.sequence.to_be_bytes();
        let [count_high, count_low] = self.count.to_be_bytes();
        [
            id_high,
            id_low,
            sequence_high,
            sequence_low,
            count_high,
            count_low,
            0,
            0,
        ]
    }
}

/// The id of a request and its bytes. A datagram that is short, empty or a part of a longer request
/// is nothing, and is not answered. Where several requests are in one, each has its own reply.
pub fn request(datagram: &[u8]) -> Option<(u16, &[u8])> {
    let (header, rest) = Header::parse(datagram)?;
    (header.count == 1).then_some((header.request_id, rest))
}

/// The datagrams of a reply, each as its header and its part of the reply. Nothing if the reply
/// takes more datagrams than can be counted, which is more than 91 MB; an empty reply has none.
pub fn datagrams(
    request_id: u16,
    reply: &[u8],
) -> Option<impl Iterator<Item = ([u8; HEADER_BYTES], &[u8])>> {
    let parts = reply.chunks(PAYLOAD_BYTES_MAX);
    let count = u16::try_from(parts.len()).ok()?;
    Some((0..count).zip(parts).map(move |(sequence, part)| {
        let header = Header {
            request_id,
            sequence,
            count,
        };
        (header.encode(), part)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_is_written() {
        let datagram = [0x12, 0x34, 0, 0, 0, 1, 0, 0, b'g'];
        let (header, rest) = Header::parse(&datagram).unwrap();
        assert_eq!(header.request_id, 0x1234);
        assert_eq!(request(&datagram), Some((0x1234, &b"g"[..])));
        assert_eq!(rest, b"g");
        assert_eq!(header.encode(), datagram[..8]);
        for length in 0..=8 {
            assert_eq!(Header::parse(&datagram[..length]), None);
        }
    }

    #[test]
    fn a_request_in_parts_is_none() {
        for (count, is_request) in [(0, false), (1, true), (2, false), (256, false)] {
            let header = Header {
                request_id: 1,
                sequence: 0,
                count,
            };
            let datagram = [&header.encode()[..], b"get a\r\n"].concat();
            assert_eq!(request(&datagram).is_some(), is_request, "{count}");
        }
    }

    #[test]
    fn a_reply_is_cut_at_1400_bytes_and_comes_together_again() {
        for length in [1usize, 1391, 1392, 1393, 2784, 2785, 100_000] {
            let reply: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
            let mut joined = Vec::new();
            for (expected, (header, part)) in datagrams(7, &reply).unwrap().enumerate() {
                let datagram = [&header[..], part].concat();
                assert!(datagram.len() <= DATAGRAM_BYTES_MAX);
                let (header, part) = Header::parse(&datagram).unwrap();
                assert_eq!(header.request_id, 7);
                assert_eq!(usize::from(header.sequence), expected);
                assert_eq!(usize::from(header.count), length.div_ceil(1392));
                joined.extend_from_slice(part);
            }
            assert_eq!(joined, reply);
        }
    }

    #[test]
    fn what_cannot_be_counted_is_not_cut() {
        assert!(datagrams(0, &vec![0; 65_536 * PAYLOAD_BYTES_MAX]).is_none());
        assert_eq!(datagrams(0, b"").unwrap().count(), 0);
    }
}
