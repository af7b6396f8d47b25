//! What a core's work costs, and what comes of it: the server's half of each scheme.
//!
//! What a scheme's server does follows from when a version is durable and named; see
//! `cenote_store::schemes`. Nothing here waits: queues are the model's.

use cenote_store::schemes::{Durable, Named, Scheme};

use super::cores::Work;
use super::parameters::Parameters;
use super::versions::{Version, Versions};

/// What a core's work comes to.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Outcome {
    /// No space now: too much waits to be durable.
    Refused,
    /// There is space for a version of this key.
    Space {
        /// The key.
        key: u32,
    },
    /// A version of this key is there, whole and durable.
    Put {
        /// The key.
        key: u32,
    },
    /// This version is durable.
    Persisted {
        /// Which.
        version: Version,
    },
    /// This one may be read, and is durable.
    Place {
        /// Which.
        version: Version,
    },
}

/// Time of a core, of which some went to checksums and some to making durable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Priced {
    /// In all.
    pub ns: f64,
    /// Of it, checksums.
    pub check_ns: f64,
    /// Of it, copies and flushes of values.
    pub persist_ns: f64,
    /// What comes of it.
    pub outcome: Outcome,
}

/// The price list of one scheme for values of one length.
#[derive(Clone, Copy, Debug)]
pub struct Prices<'a> {
    /// Whose server.
    pub scheme: &'a dyn Scheme,
    /// What things cost.
    pub parameters: &'a Parameters,
    /// Length of each value.
    pub value_bytes: u64,
}

impl Prices<'_> {
    /// What `work` costs as things stand; `is_full`: no more may wait to be durable.
    #[must_use]
    pub fn of(&self, work: Work, versions: &Versions, is_full: bool) -> Priced {
        let costs = self.parameters;
        match work {
            Work::Space { .. } if is_full => self.plain(costs.message_ns, Outcome::Refused),
            Work::Space { key } => {
                let ns = costs.message_ns + self.allocate_ns();
                self.plain(ns, Outcome::Space { key })
            }
            Work::Value { key } => {
                // Header and value lie side by side: one flush for both.
                let bytes = costs.header_bytes + self.value_bytes;
                let persist_ns =
                    costs.copy_ns(self.value_bytes) + costs.flush_ns(bytes) + costs.flush_word_ns();
                Priced {
                    ns: costs.message_ns + costs.allocate_ns + persist_ns,
                    check_ns: 0.0,
                    persist_ns,
                    outcome: Outcome::Put { key },
                }
            }
            Work::Told { version } => self.publish(costs.message_ns, version),
            Work::Noticed { version } => self.publish(costs.notice_ns, version),
            Work::Place { key } => self.place(key, versions),
        }
    }

    /// Making a value durable that is verified, and saying so: a flag, a mark or an index word.
    #[must_use]
    pub fn settle_ns(&self) -> f64 {
        self.parameters.flush_ns(self.value_bytes) + self.parameters.flush_word_ns()
    }

    /// Taking a value to where it is verified, and its checksum.
    #[must_use]
    pub fn verify_ns(&self) -> (f64, f64) {
        let copied = match self.scheme.lands_beside_log() {
            true => self.parameters.copy_ns(self.value_bytes),
            false => 0.0,
        };
        (copied, self.parameters.crc_ns(self.value_bytes))
    }

    /// Appending a header and flushing it, and the index word where that names it at once.
    #[must_use]
    pub fn allocate_ns(&self) -> f64 {
        let costs = self.parameters;
        let named_ns = match self.scheme.named() {
            Named::AtAllocation => costs.flush_word_ns(),
            Named::WhenDurable => 0.0,
        };
        costs.allocate_ns + costs.flush_ns(costs.header_bytes) + named_ns
    }

    fn plain(&self, ns: f64, outcome: Outcome) -> Priced {
        Priced {
            ns,
            check_ns: 0.0,
            persist_ns: 0.0,
            outcome,
        }
    }

    fn publish(&self, taking_ns: f64, version: Version) -> Priced {
        let persist_ns = match self.scheme.durable() {
            Durable::BeforeAck => self.settle_ns(),
            Durable::Never | Durable::AtFirstRead | Durable::InBackground => 0.0,
        };
        Priced {
            ns: taking_ns + persist_ns,
            check_ns: 0.0,
            persist_ns,
            outcome: Outcome::Persisted { version },
        }
    }

    /// Walks the versions of a key, the newest first, to one that is whole.
    fn place(&self, key: u32, versions: &Versions) -> Priced {
        let (mut check_ns, mut persist_ns) = (0.0, 0.0);
        let mut version = versions.newest(key);
        loop {
            let is_durable = versions.is_durable(version);
            if is_durable && !self.scheme.verifies_each_read() {
                break;
            }
            let (copied_ns, summed_ns) = self.verify_ns();
            persist_ns += copied_ns;
            check_ns += summed_ns;
            if versions.is_whole(version) {
                persist_ns += self.settle_ns();
                break;
            }
            version = (versions.older(version)).expect("the first version of a key is whole");
        }
        Priced {
            ns: self.parameters.message_ns + check_ns + persist_ns,
            check_ns,
            persist_ns,
            outcome: Outcome::Place { version },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_store::schemes::by_name;

    const VALUE: u64 = 4096;

    fn price(scheme: &str, work: Work, versions: &Versions) -> Priced {
        let scheme = by_name(scheme).unwrap();
        let prices = Prices {
            scheme: &*scheme,
            parameters: &Parameters::default(),
            value_bytes: VALUE,
        };
        prices.of(work, versions, false)
    }

    fn versions(scheme: &str) -> Versions {
        Versions::new(1, by_name(scheme).unwrap().named())
    }

    #[test]
    fn what_the_server_does_for_a_put() {
        // A message 400, a header of two lines 50 + 110, a word 100, a value of 64 lines 730, its
        // copy 1024, header and value in 66 lines 750.
        let put = |scheme: &str, work| price(scheme, work, &versions(scheme)).ns;
        let space = Work::Space { key: 0 };
        for early in ["ca", "forca", "forca-each", "erda", "efactory"] {
            assert_eq!(put(early, space), 660.0, "{early}");
        }
        assert_eq!(put("saw", space), 560.0);
        assert_eq!(put("saw", Work::Told { version: 0 }), 1230.0);
        assert_eq!(put("imm", Work::Noticed { version: 0 }), 1130.0);
        assert_eq!(put("rpc", Work::Value { key: 0 }), 2324.0);
    }

    #[test]
    fn a_read_of_a_whole_version_settles_it() {
        let work = Work::Place { key: 0 };
        // Sum 4096, value and mark 830; only eFactory copies, 1024.
        for (scheme, first, again) in [
            ("forca", 5326.0, 400.0),
            ("forca-each", 5326.0, 5326.0),
            ("efactory", 6350.0, 400.0),
        ] {
            let mut versions = versions(scheme);
            let version = versions.allocate(0);
            versions.land(version);
            let priced = price(scheme, work, &versions);
            assert_eq!(priced.ns, first, "{scheme}");
            assert_eq!(priced.outcome, Outcome::Place { version });
            versions.make_durable(version);
            assert_eq!(price(scheme, work, &versions).ns, again, "{scheme}");
        }
    }

    #[test]
    fn a_read_passes_by_versions_without_their_values() {
        let mut versions = versions("efactory");
        let (whole, _) = (versions.allocate(0), versions.allocate(0));
        versions.land(whole);
        let priced = price("efactory", Work::Place { key: 0 }, &versions);
        assert_eq!(priced.outcome, Outcome::Place { version: whole });
        // Copied and summed twice, settled once.
        assert_eq!(priced.ns, 400.0 + 2.0 * (1024.0 + 4096.0) + 830.0);
    }
}
