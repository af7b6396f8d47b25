//! How a node's memory is parted between values and tables.
//!
//! A node plays data slots and parity slots. A data slot takes a region of values and a table; a parity slot
//! takes a region of parity as long as the longest of its K partitions' (in copies: all of theirs), and the
//! tables of all K. Values of any length are to fit, so nothing is set aside for either: a partition's owner
//! lets its region grow as far as the tables leave room, and then lets items go. An owner knows its own table
//! only and takes the others' to be as large, which hashing sees to.
//!
//! ```text
//! data x (v + t) + parity x (v + K t) <= m     v: bytes of a region     t: bytes of a table and its space's tree
//! ```
//!
//! Pure arithmetic. A partition's region may be as long as the tightest of the nodes that have it allows.
//! Paper: \[cocytus16\] section 3: metadata count K times at a parity process, hence groups are interleaved.

use super::region::CHUNK_BYTES;

const MIB: u64 = 1 << 20;

/// The program: its code, its stacks and what its allocator keeps.
const PROCESS_BYTES: u64 = 12 * MIB;
/// One part in so many is for what the allocator does not give back at once.
const SLACK_PART: u64 = 64;
/// One part in so many is for what clients have sent and not been served, or have not read, ...
const BUFFERS_PART: u64 = 16;
/// ... within these bounds.
const BUFFERS_BYTES: std::ops::RangeInclusive<u64> = 8 * MIB..=256 * MIB;
/// One part in so many is for requests and answers on their way between nodes, and what is written to links, ...
const LINKS_PART: u64 = 32;
/// ... within these bounds.
const LINKS_BYTES: std::ops::RangeInclusive<u64> = 4 * MIB..=128 * MIB;
/// One part in so many is for operations under way, here and at the owners of what is backed up here, ...
const OPERATIONS_PART: u64 = 8;
/// ... and each partition has within these bounds.
const OPERATIONS_BYTES: std::ops::RangeInclusive<u64> = 2 * MIB..=64 * MIB;
/// One part in so many is left to tables where regions cannot shrink.
const TABLES_PART: u64 = 16;

/// What a node plays.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Roles {
    /// Data slots, of whatever groups.
    pub data: u32,
    /// Parity slots.
    pub parity: u32,
    /// Data slots of a group, K: a parity slot has a table for each.
    pub group_data: u32,
    /// Whether parity slots hold copies of all their group's values.
    pub are_copies: bool,
}

impl Roles {
    /// Of one thread of a server alone.
    pub const ALONE: Self = Self {
        data: 1,
        parity: 0,
        group_data: 0,
        are_copies: false,
    };

    fn regions(self) -> u64 {
        let of_parity = if self.are_copies { self.group_data } else { 1 };
        u64::from(self.data) + u64::from(self.parity) * u64::from(of_parity)
    }

    /// Tables that it keeps.
    pub fn tables(self) -> u64 {
        u64::from(self.data) + u64::from(self.parity) * u64::from(self.group_data)
    }
}

/// Bytes of a node's memory that are not for regions and tables.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Others {
    /// For what clients have sent and not been served, or have not read.
    pub buffers: u64,
    /// For requests and answers on their way between nodes, and what is written to links.
    pub links: u64,
    /// For operations under way in each partition.
    pub operations: u64,
    /// All of them, with the program itself.
    pub all: u64,
}

impl Others {
    /// Of a node with these roles. A node alone has no operations under way, and no links.
    ///
    /// With little memory they are at most a part of it each, so that something is left in any case.
    pub fn new(node_bytes: u64, roles: Roles) -> Self {
        let bounded = |part: u64, bounds: std::ops::RangeInclusive<u64>| {
            (node_bytes / part).clamp(*bounds.start(), *bounds.end())
        };
        let buffers = bounded(BUFFERS_PART, BUFFERS_BYTES).min(node_bytes / 8);
        let tables = roles.tables();
        let (links, operations) = match tables {
            0 | 1 => (0, 0),
            _ => (
                bounded(LINKS_PART, LINKS_BYTES).min(node_bytes / 16),
                bounded(OPERATIONS_PART * tables, OPERATIONS_BYTES).min(node_bytes / 4 / tables),
            ),
        };
        let process = PROCESS_BYTES.min(node_bytes / 8) + node_bytes / SLACK_PART;
        Self {
            buffers,
            links,
            operations,
            all: buffers + links + operations * tables + process,
        }
    }
}

/// The part of a node's memory that is for regions and tables.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Footprint {
    bytes: u64,
    /// Regions and tables of the node.
    regions: u64,
    tables: u64,
}

impl Footprint {
    /// The memory of a node with these roles, of which others (connections, operations under way) take some.
    ///
    /// Nothing if it plays no role, or has no memory for a chunk of each region.
    pub fn new(node_bytes: u64, other_bytes: u64, roles: Roles) -> Option<Self> {
        let footprint = Self {
            bytes: node_bytes.checked_sub(other_bytes)?,
            regions: roles.regions(),
            tables: roles.tables(),
        };
        let is_enough = footprint.regions > 0 && footprint.region_cap(0) >= CHUNK_BYTES;
        is_enough.then_some(footprint)
    }

    /// How long regions may be beside tables of so many bytes: whole chunks, as that is what they take.
    pub fn region_cap(&self, table_bytes: u64) -> u64 {
        let tables = self.tables.saturating_mul(table_bytes);
        self.bytes.saturating_sub(tables) / self.regions / CHUNK_BYTES * CHUNK_BYTES
    }

    /// How large tables may be beside regions of so many bytes. With larger ones an owner lets an item go for
    /// each that comes.
    pub fn table_cap(&self, region_bytes: u64) -> u64 {
        let chunks = region_bytes.div_ceil(CHUNK_BYTES);
        let regions = chunks
            .saturating_mul(CHUNK_BYTES)
            .saturating_mul(self.regions);
        self.bytes.saturating_sub(regions) / self.tables
    }

    /// What is left to each table whatever values take: where a region cannot shrink, small items could
    /// otherwise not come after large ones.
    pub fn table_reserve(&self) -> u64 {
        self.bytes / TABLES_PART / self.tables
    }

    /// The length that a region grows to which is too short by `lacking_bytes`; nothing where items are to go
    /// instead.
    pub fn grown(&self, region_bytes: u64, lacking_bytes: u64, table_bytes: u64) -> Option<u64> {
        let wanted = region_bytes.checked_add(lacking_bytes)?;
        let wanted = wanted.checked_next_multiple_of(CHUNK_BYTES)?;
        (wanted > region_bytes && wanted <= self.region_cap(table_bytes)).then_some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a node takes, slot by slot.
    fn taken(roles: Roles, region: u64, table: u64) -> u64 {
        let data = (0..roles.data).map(|_| region + table);
        let parity = (0..roles.parity).map(|_| {
            let of_each = if roles.are_copies {
                region + table
            } else {
                table
            };
            let alone = if roles.are_copies { 0 } else { region };
            alone + (0..roles.group_data).map(|_| of_each).sum::<u64>()
        });
        data.chain(parity).sum()
    }

    fn roles() -> impl Strategy<Value = Roles> {
        let counts = (0_u32..6, 0_u32..6, 1_u32..9, any::<bool>());
        counts.prop_map(|(data, parity, group_data, are_copies)| Roles {
            data,
            parity,
            group_data,
            are_copies,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn caps_are_the_most_that_fits(
            roles in roles(), node in 0..1_u64 << 40, other in 0..64 * MIB, table in 0..1_u64 << 34,
        ) {
            let Some(footprint) = Footprint::new(node, other, roles) else {
                let chunk = taken(roles, CHUNK_BYTES, 0);
                prop_assert!(chunk == 0 || chunk + other > node);
                return Ok(());
            };
            let region = footprint.region_cap(table);
            prop_assert!(region == 0 || taken(roles, region, table) + other <= node);
            prop_assert!(taken(roles, region + CHUNK_BYTES, table) + other > node);
            let table = footprint.table_cap(region);
            prop_assert!(taken(roles, region, table) + other <= node);
            prop_assert!(taken(roles, region, table + 1) + other > node);
        }

        #[test]
        fn a_region_grows_by_chunks_up_to_its_cap(
            chunks in 0_u64..64, lacking in 0..5 * MIB, table in 0..64 * MIB,
        ) {
            let roles = Roles { data: 3, parity: 2, group_data: 3, are_copies: false };
            let footprint = Footprint::new(256 * MIB, 0, roles).expect("enough");
            let fits = |region: u64| taken(roles, region, table) <= 256 * MIB;
            match footprint.grown(chunks * MIB, lacking, table) {
                Some(region) => {
                    prop_assert!(fits(region) && region.is_multiple_of(MIB));
                    prop_assert!((lacking..lacking + MIB).contains(&(region - chunks * MIB)));
                }
                None => prop_assert!(lacking == 0 || !fits(chunks * MIB + lacking.div_ceil(MIB) * MIB)),
            }
        }
    }

    #[test]
    fn the_papers_node_takes_five_regions_and_nine_tables() {
        // RS(3,5): five groups on five nodes, so each plays three data and two parity slots.
        let roles = Roles {
            data: 3,
            parity: 2,
            group_data: 3,
            are_copies: false,
        };
        let footprint = Footprint::new(1000 * MIB, 10 * MIB, roles).expect("enough");
        assert_eq!(footprint.region_cap(10 * MIB), 180 * MIB);
        assert_eq!(footprint.table_cap(180 * MIB), 10 * MIB);
        assert_eq!(footprint.region_cap(110 * MIB), 0);
        assert_eq!(footprint.region_cap(u64::MAX), 0);
        assert_eq!(footprint.table_cap(u64::MAX), 0);
    }

    #[test]
    fn copies_take_as_many_regions_as_tables() {
        let roles = Roles {
            data: 1,
            parity: 2,
            group_data: 1,
            are_copies: true,
        };
        let footprint = Footprint::new(300 * MIB, 0, roles).expect("enough");
        assert_eq!(footprint.region_cap(20 * MIB), 80 * MIB);
    }

    #[test]
    fn too_little_memory_or_nothing_to_do_is_refused() {
        let roles = |data| Roles {
            data,
            parity: 0,
            group_data: 3,
            are_copies: false,
        };
        assert_eq!(Footprint::new(100 * MIB, 0, roles(0)), None);
        assert_eq!(Footprint::new(4 * MIB - 1, 0, roles(4)), None);
        assert_eq!(Footprint::new(4 * MIB, MIB, roles(4)), None);
        assert_eq!(Footprint::new(MIB, 2 * MIB, roles(1)), None);
        assert!(Footprint::new(4 * MIB, 0, roles(4)).is_some());
    }
}
