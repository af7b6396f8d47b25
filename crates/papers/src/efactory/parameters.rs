//! What everything costs in the model, in one place, each value with its reason.
//!
//! Times are nanoseconds of one operation that nothing else waits for; what waits for what is the
//! model's own result. A value is one of the slides', one of this project's code, or assumed.

use serde::Serialize;

/// Where a value comes from.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The paper's slides have the number.
    Slides,
    /// It is what `cenote_store` does.
    Store,
    /// It follows from other values of this table.
    Derived,
    /// Nobody says; the reason says why this value is likely. No figure of the paper was aimed at.
    Assumed,
    /// As `Assumed`, with one of the paper's figures in view.
    Chosen,
}

impl Source {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Slides => "slides",
            Self::Store => "store",
            Self::Derived => "derived",
            Self::Assumed => "assumed",
            Self::Chosen => "chosen",
        }
    }
}

/// Costs and sizes of the model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameters {
    /// From posting a verb without a payload to its completion, on an idle network.
    pub rtt_ns: f64,
    /// Bandwidth of the server's link, each way.
    pub link_gigabits_per_second: f64,
    /// Least time of the server's card for a message or a verb, each way.
    pub card_ns: f64,
    /// A way takes up to this share more, or less, at random.
    pub jitter: f64,
    /// Bytes that each message or verb has around its payload.
    pub frame_bytes: u64,
    /// Bytes of a packet: cards take connections in turn, packet by packet.
    pub packet_bytes: u64,
    /// A call without its value: key, length, checksum.
    pub call_bytes: u64,
    /// The answer to a call.
    pub answer_bytes: u64,
    /// What a READ of an index entry brings.
    pub entry_bytes: u64,
    /// Bytes of an object before its value: header and key.
    pub header_bytes: u64,
    /// A client's time to post a verb behind another.
    pub post_ns: f64,
    /// Cores of the server that answer.
    pub server_cores: usize,
    /// A core's time for a message: take it, look its key up, post the answer.
    pub message_ns: f64,
    /// The same for the completion of a WRITE with immediate, which has no body.
    pub notice_ns: f64,
    /// A core's time to append a header, before it is flushed.
    pub allocate_ns: f64,
    /// From writing a line back to its being durable.
    pub nvm_ns: f64,
    /// Lines that a core has on their way at once.
    pub lines_in_flight: f64,
    /// Copying a byte from a message or a landing to the log.
    pub copy_byte_ns: f64,
    /// The checksum of a byte, at server and client.
    pub crc_byte_ns: f64,
    /// The background core's time for a version besides its bytes.
    pub background_ns: f64,
    /// Entries cleaned, and versions persisted, in turn.
    pub batch: u32,
    /// Looking at an entry that need not be moved.
    pub look_ns: f64,
    /// Versions that wait to be durable before the server refuses space, where it does.
    pub backlog_versions_max: u64,
    /// Bytes of landings that wait, likewise.
    pub landing_bytes_max: u64,
    /// How long a client that was refused space waits before it asks again.
    pub retry_ns: f64,
    /// Keys of the store, all there from the start.
    pub keys: u32,
}

/// A parameter as it is printed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Described {
    /// The field.
    pub name: &'static str,
    /// As a number.
    pub value: f64,
    /// Of the value; empty for a count.
    pub unit: &'static str,
    /// Where it comes from.
    pub source: Source,
    /// Why this value.
    pub reason: &'static str,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            rtt_ns: 2000.0,
            link_gigabits_per_second: 100.0,
            card_ns: 20.0,
            jitter: 0.1,
            frame_bytes: 30,
            packet_bytes: 1024,
            call_bytes: 64,
            answer_bytes: 32,
            entry_bytes: 16,
            header_bytes: 88,
            post_ns: 100.0,
            server_cores: 4,
            message_ns: 400.0,
            notice_ns: 300.0,
            allocate_ns: 50.0,
            nvm_ns: 100.0,
            lines_in_flight: 10.0,
            copy_byte_ns: 0.25,
            crc_byte_ns: CRC_BY_TABLE_NS,
            background_ns: 100.0,
            batch: 64,
            look_ns: 50.0,
            backlog_versions_max: 65_536,
            landing_bytes_max: 64 << 20,
            retry_ns: 20_000.0,
            keys: 100_000,
        }
    }
}

/// A checksum from tables, 1 GB/s: that of a library of the paper's time.
pub const CRC_BY_TABLE_NS: f64 = 1.0;
/// A checksum by carry-less multiplication, 20 GB/s: that of this project.
pub const CRC_BY_MULTIPLICATION_NS: f64 = 0.05;

impl Parameters {
    /// The server's card, one way, for so many bytes of payload.
    #[must_use]
    pub fn card_way_ns(&self, payload_bytes: u64) -> f64 {
        let bytes = (payload_bytes + self.frame_bytes) as f64;
        self.card_ns
            .max(bytes * 8.0 / self.link_gigabits_per_second)
    }

    /// One way without the server's card: half of what is left of the round trip.
    #[must_use]
    pub fn distance_ns(&self) -> f64 {
        (self.rtt_ns / 2.0 - self.card_ns).max(0.0)
    }

    /// Writing back `bytes` and waiting until they are durable.
    #[must_use]
    pub fn flush_ns(&self, bytes: u64) -> f64 {
        let lines = bytes.div_ceil(LINE_BYTES).max(1);
        self.nvm_ns + (lines - 1) as f64 * (self.nvm_ns / self.lines_in_flight)
    }

    /// Writing back a word: of the index, or a flag.
    #[must_use]
    pub fn flush_word_ns(&self) -> f64 {
        self.flush_ns(8)
    }

    /// The checksum of a value.
    #[must_use]
    pub fn crc_ns(&self, bytes: u64) -> f64 {
        bytes as f64 * self.crc_byte_ns
    }

    /// Copying a value.
    #[must_use]
    pub fn copy_ns(&self, bytes: u64) -> f64 {
        bytes as f64 * self.copy_byte_ns
    }

    /// Each with its unit and its reason, in the order of the fields.
    #[must_use]
    pub fn described(&self) -> Vec<Described> {
        let values = self.values();
        assert_eq!(values.len(), REASONS.len(), "a parameter has no reason");
        let described = |(value, &(name, unit, source, reason))| Described {
            name,
            value,
            unit,
            source,
            reason,
        };
        values.into_iter().zip(REASONS).map(described).collect()
    }

    fn values(&self) -> [f64; 26] {
        [
            self.rtt_ns,
            self.link_gigabits_per_second,
            self.card_ns,
            self.jitter,
            self.frame_bytes as f64,
            self.packet_bytes as f64,
            self.call_bytes as f64,
            self.answer_bytes as f64,
            self.entry_bytes as f64,
            self.header_bytes as f64,
            self.post_ns,
            self.server_cores as f64,
            self.message_ns,
            self.notice_ns,
            self.allocate_ns,
            self.nvm_ns,
            self.lines_in_flight,
            self.copy_byte_ns,
            self.crc_byte_ns,
            self.background_ns,
            f64::from(self.batch),
            self.look_ns,
            self.backlog_versions_max as f64,
            self.landing_bytes_max as f64,
            self.retry_ns,
            f64::from(self.keys),
        ]
    }
}

/// Of the processor's caches.
const LINE_BYTES: u64 = 64;

type Reason = (&'static str, &'static str, Source, &'static str);

/// Name, unit, source and reason, in the order of the fields.
const REASONS: &[Reason] = {
    use Source::{Assumed, Chosen, Derived, Slides, Store};
    &[
        ("rtt_ns", "ns", Slides, "RDMA: low latency (2 us)"),
        (
            "link_gigabits_per_second",
            "Gb/s",
            Slides,
            "ConnectX-5; high bandwidth (100 Gbps)",
        ),
        (
            "card_ns",
            "ns",
            Assumed,
            "50 million a second each way; as in Redy's model",
        ),
        (
            "jitter",
            "share",
            Assumed,
            "so that clients do not march in step",
        ),
        (
            "frame_bytes",
            "B",
            Assumed,
            "headers of RoCE or InfiniBand; as in Redy's model",
        ),
        ("packet_bytes", "B", Assumed, "the usual MTU of RoCE"),
        (
            "call_bytes",
            "B",
            Assumed,
            "a key of YCSB (23 B); length; checksum; what a call has",
        ),
        (
            "answer_bytes",
            "B",
            Assumed,
            "address; rights; length; status",
        ),
        ("entry_bytes", "B", Store, "hash and word"),
        (
            "header_bytes",
            "B",
            Store,
            "header of 64 B and a key of YCSB (23 B); on a grain",
        ),
        (
            "post_ns",
            "ns",
            Assumed,
            "a work request and a doorbell over PCIe",
        ),
        (
            "server_cores",
            "",
            Assumed,
            "the slides name none; their server has 20; others below the table",
        ),
        (
            "message_ns",
            "ns",
            Assumed,
            "poll; parse; look up; post a receive and an answer: some 100 ns each",
        ),
        (
            "notice_ns",
            "ns",
            Assumed,
            "a message without parsing and lookup by key",
        ),
        ("allocate_ns", "ns", Assumed, "88 B of header in the cache"),
        ("nvm_ns", "ns", Slides, "NVM: low latency (100ns)"),
        (
            "lines_in_flight",
            "",
            Chosen,
            "ten line fill buffers: 6.4 GB/s; one by one the two claims on a PUT fit no size",
        ),
        (
            "copy_byte_ns",
            "ns/B",
            Derived,
            "a target line is fetched from NVM (100 ns / 10 / 64 B) and moved (10 GB/s)",
        ),
        (
            "crc_byte_ns",
            "ns/B",
            Chosen,
            "1 GB/s of a table-driven CRC: puts Erda at 4 KiB near the slides' 1.96",
        ),
        (
            "background_ns",
            "ns",
            Assumed,
            "next version of the log; header in the cache or not",
        ),
        (
            "batch",
            "",
            Store,
            "copies between two fences of a cleaning",
        ),
        (
            "look_ns",
            "ns",
            Assumed,
            "an entry and a header; prefetched",
        ),
        ("backlog_versions_max", "", Store, "BACKLOG_MAX of a pool"),
        (
            "landing_bytes_max",
            "B",
            Assumed,
            "a server gives clients that much to write to",
        ),
        (
            "retry_ns",
            "ns",
            Assumed,
            "ten round trips: asking costs a core's time",
        ),
        (
            "keys",
            "",
            Assumed,
            "the slides name no number; fewer meet more undurable versions",
        ),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_described_under_its_name_with_its_value() {
        let parameters = Parameters::default();
        let fields = serde_json::to_value(&parameters).unwrap();
        let described = parameters.described();
        assert_eq!(described.len(), fields.as_object().unwrap().len());
        for one in described {
            assert_eq!(fields[one.name].as_f64(), Some(one.value), "{}", one.name);
            assert!(!one.reason.contains([',', '"']), "a cell: {}", one.reason);
        }
    }

    #[test]
    fn a_flush_waits_once_and_then_for_bandwidth() {
        let parameters = Parameters::default();
        assert_eq!(parameters.flush_ns(1), 100.0);
        assert_eq!(parameters.flush_ns(64), 100.0);
        assert_eq!(parameters.flush_ns(65), 110.0);
        // 64 lines.
        assert_eq!(parameters.flush_ns(4096), 730.0);
    }

    #[test]
    fn a_verb_without_payload_takes_the_round_trip() {
        let parameters = Parameters::default();
        let ways = 2.0 * (parameters.distance_ns() + parameters.card_way_ns(0));
        assert_eq!(ways, 2000.0);
    }
}
