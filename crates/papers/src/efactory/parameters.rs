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

/// Of each: field and default; unit, empty of a count; where it comes from, and why this value.
macro_rules! parameters {
    ($($(#[$doc:meta])+ $name:ident: $kind:ty = $value:expr, $unit:literal, $source:ident,
        $reason:literal;)*) => {
        /// Costs and sizes of the model.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        pub struct Parameters {
            $($(#[$doc])+ pub $name: $kind,)*
        }

        impl Default for Parameters {
            fn default() -> Self {
                Self { $($name: $value),* }
            }
        }

        impl Parameters {
            /// Each with its unit and its reason, in the order of the fields.
            #[must_use]
            pub fn described(&self) -> Vec<Described> {
                vec![$(Described {
                    name: stringify!($name),
                    value: self.$name as f64,
                    unit: $unit,
                    source: Source::$source,
                    reason: $reason,
                }),*]
            }
        }
    };
}

parameters! {
    /// From posting a verb without a payload to its completion, on an idle network.
    rtt_ns: f64 = 2000.0, "ns", Slides, "RDMA: low latency (2 us)";
    /// Bandwidth of the server's link, each way.
    link_gigabits_per_second: f64 = 100.0, "Gb/s", Slides, "ConnectX-5; high bandwidth (100 Gbps)";
    /// Least time of the server's card for a message or a verb, each way.
    card_ns: f64 = 20.0, "ns", Assumed, "50 million a second each way; as in Redy's model";
    /// A way takes up to this share more, or less, at random.
    jitter: f64 = 0.1, "share", Assumed, "so that clients do not march in step";
    /// Bytes that each message or verb has around its payload.
    frame_bytes: u64 = 30, "B", Assumed, "headers of RoCE or InfiniBand; as in Redy's model";
    /// Bytes of a packet: cards take connections in turn, packet by packet.
    packet_bytes: u64 = 1024, "B", Assumed, "the usual MTU of RoCE";
    /// A call without its value: key, length, checksum.
    call_bytes: u64 = 64, "B", Assumed, "a key of YCSB (23 B); length; checksum; what a call has";
    /// The answer to a call.
    answer_bytes: u64 = 32, "B", Assumed, "address; rights; length; status";
    /// What a READ of an index entry brings.
    entry_bytes: u64 = 16, "B", Store, "hash and word";
    /// Bytes of an object before its value: header and key.
    header_bytes: u64 = 88, "B", Store, "header of 64 B and a key of YCSB (23 B); on a grain";
    /// A client's time to post a verb behind another.
    post_ns: f64 = 100.0, "ns", Assumed, "a work request and a doorbell over PCIe";
    /// Cores of the server that answer.
    server_cores: usize = 4, "", Assumed,
        "the slides name none; their server has 20; others below the table";
    /// A core's time for a message: take it, look its key up, post the answer.
    message_ns: f64 = 400.0, "ns", Assumed,
        "poll; parse; look up; post a receive and an answer: some 100 ns each";
    /// The same for the completion of a WRITE with immediate, which has no body.
    notice_ns: f64 = 300.0, "ns", Assumed, "a message without parsing and lookup by key";
    /// A core's time to append a header, before it is flushed.
    allocate_ns: f64 = 50.0, "ns", Assumed, "88 B of header in the cache";
    /// From writing a line back to its being durable.
    nvm_ns: f64 = 100.0, "ns", Slides, "NVM: low latency (100ns)";
    /// Lines that a core has on their way at once.
    lines_in_flight: f64 = 10.0, "", Chosen,
        "ten line fill buffers: 6.4 GB/s; one by one the two claims on a PUT fit no size";
    /// Copying a byte from a message or a landing to the log.
    copy_byte_ns: f64 = 0.25, "ns/B", Derived,
        "a target line is fetched from NVM (100 ns / 10 / 64 B) and moved (10 GB/s)";
    /// The checksum of a byte, at server and client.
    crc_byte_ns: f64 = CRC_BY_TABLE_NS, "ns/B", Chosen,
        "1 GB/s of a table-driven CRC: puts Erda at 4 KiB near the slides' 1.96";
    /// The background core's time for a version besides its bytes.
    background_ns: f64 = 100.0, "ns", Assumed,
        "next version of the log; header in the cache or not";
    /// Entries cleaned, and versions persisted, in turn.
    batch: u32 = 64, "", Store, "copies between two fences of a cleaning";
    /// Looking at an entry that need not be moved.
    look_ns: f64 = 50.0, "ns", Assumed, "an entry and a header; prefetched";
    /// Versions that wait to be durable before the server refuses space, where it does.
    backlog_versions_max: u64 = 65_536, "", Store, "BACKLOG_MAX of a pool";
    /// Bytes of landings that wait, likewise.
    landing_bytes_max: u64 = 64 << 20, "B", Assumed, "a server gives clients that much to write to";
    /// How long a client that was refused space waits before it asks again.
    retry_ns: f64 = 20_000.0, "ns", Assumed, "ten round trips: asking costs a core's time";
    /// Keys of the store, all there from the start.
    keys: u32 = 100_000, "", Assumed,
        "the slides name no number; fewer meet more undurable versions";
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
}

/// Of the processor's caches.
const LINE_BYTES: u64 = 64;

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
