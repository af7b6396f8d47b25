//! What machines can be had, where, and for how much: a TOML file.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use super::source::FileSource;
use super::{Price, Source};

/// Most machine types of a catalogue: arbitrary, above what a cloud offers in one place.
pub const TYPES_MAX: usize = 4096;
/// Most providers of a catalogue.
const SOURCES_MAX: usize = 64;
/// Most machines of one type that are counted on.
const COUNT_MAX: u32 = 1 << 20;
/// Most cores and memory of a machine: arbitrary, above any.
const CORES_MAX: u32 = 1 << 16;
const MEMORY_MIB_MAX: u64 = 1 << 30;
/// Longest distance: a second.
const DISTANCE_NS_MAX: u64 = 1_000_000_000;
/// Between two looks, where a catalogue says nothing. Arbitrary: prices of spot machines change within hours.
pub const EVERY: Duration = Duration::from_secs(300);

/// Longest time between two looks for cheaper machines: a day.
const LOOK_EVERY_S_MAX: u64 = 86_400;
/// Longest name.
const NAME_BYTES_MAX: usize = 128;

/// The file, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileCatalogue {
    look_every_s: Option<u64>,
    #[serde(default)]
    provider: Vec<FileSource>,
    #[serde(default)]
    machine: Vec<FileMachine>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileMachine {
    name: String,
    provider: String,
    cores: u32,
    memory_mib: u64,
    price_per_hour: f64,
    spot_price_per_hour: Option<f64>,
    #[serde(default)]
    distance_ns: u64,
    count: u32,
}

/// Machine types, each under a name of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Catalogue {
    look_every: Duration,
    sources: Vec<Source>,
    types: Vec<MachineType>,
}

impl Default for Catalogue {
    /// Nothing can be had.
    fn default() -> Self {
        Self {
            look_every: EVERY,
            sources: Vec::new(),
            types: Vec::new(),
        }
    }
}

impl Catalogue {
    /// How often cheaper machines are looked for.
    #[must_use]
    pub fn look_every(&self) -> Duration {
        self.look_every
    }

    /// Only these types, changed as given: what can still be had of them.
    #[must_use]
    pub fn narrowed(&self, keep: impl Fn(&mut MachineType) -> bool) -> Self {
        let mut narrowed = self.clone();
        narrowed.types.retain_mut(|one| keep(one));
        narrowed
    }

    /// In the order of the file.
    #[must_use]
    pub fn types(&self) -> &[MachineType] {
        &self.types
    }

    /// Who has machines, in the order of the file.
    #[must_use]
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// The provider of this name.
    #[must_use]
    pub fn source(&self, name: &str) -> Option<&Source> {
        self.sources.iter().find(|source| source.name == name)
    }
}

/// Machines of one kind, that cost the same and are as far away.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineType {
    /// Its name in the catalogue, of at least one character.
    pub name: String,
    /// Who has them: the name of a provider.
    pub provider: String,
    /// Cores that server threads may have, all of them; 0 for memory that is only reached by one-sided verbs.
    pub cores: u32,
    /// Memory that caches may have, at least 1 MiB.
    pub memory_bytes: u64,
    /// For as long as it is wanted.
    pub price: Price,
    /// For as long as its owner does not want it back; `None` if it is not to be had so.
    pub spot_price: Option<Price>,
    /// Time of a bit from the client to it, one way, in nanoseconds.
    pub distance_ns: u64,
    /// How many there are, of both prices together.
    pub count: u32,
}

impl FromStr for Catalogue {
    type Err = CatalogueError;

    fn from_str(text: &str) -> Result<Self, CatalogueError> {
        let file: FileCatalogue =
            toml::from_str(text).map_err(|error| CatalogueError::Malformed(Box::new(error)))?;
        if file.machine.len() > TYPES_MAX {
            return Err(CatalogueError::Types(file.machine.len()));
        }
        if file.provider.len() > SOURCES_MAX {
            return Err(CatalogueError::Providers(file.provider.len()));
        }
        let sources: Result<Vec<_>, _> = file.provider.into_iter().map(source).collect();
        let sources = sources?;
        for (at, one) in sources.iter().enumerate() {
            if sources[..at].iter().any(|before| before.name == one.name) {
                let name = one.name.clone();
                return Err(CatalogueError::Provider {
                    name,
                    field: "name",
                });
            }
        }
        let types: Result<Vec<_>, _> = file.machine.into_iter().map(checked).collect();
        let types = types?;
        let mut names = BTreeSet::new();
        for one in &types {
            if !names.insert(one.name.as_str()) {
                return Err(CatalogueError::Twice(one.name.clone()));
            }
        }
        let is_known = |one: &MachineType| {
            sources.is_empty() || sources.iter().any(|source| source.name == one.provider)
        };
        if let Some(one) = types.iter().find(|one| !is_known(one)) {
            let name = one.name.clone();
            let field = "provider";
            return Err(CatalogueError::Range { name, field });
        }
        let look_every_s = file.look_every_s.unwrap_or(EVERY.as_secs());
        if !(1..=LOOK_EVERY_S_MAX).contains(&look_every_s) {
            return Err(CatalogueError::LookEvery);
        }
        let look_every = Duration::from_secs(look_every_s);
        Ok(Self {
            look_every,
            sources,
            types,
        })
    }
}

/// 1 to 128 visible characters.
fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(|one| one.is_ascii_graphic())
}

fn source(file: FileSource) -> Result<Source, CatalogueError> {
    if !is_name(&file.name) {
        return Err(CatalogueError::Name);
    }
    let name = file.name.clone();
    file.checked()
        .map_err(|field| CatalogueError::Provider { name, field })
}

fn checked(file: FileMachine) -> Result<MachineType, CatalogueError> {
    if !is_name(&file.name) {
        return Err(CatalogueError::Name);
    }
    let wrong = |field| CatalogueError::Range {
        name: file.name.clone(),
        field,
    };
    if !is_name(&file.provider) {
        return Err(wrong("provider"));
    }
    if file.cores > CORES_MAX {
        return Err(wrong("cores"));
    }
    if !(1..=MEMORY_MIB_MAX).contains(&file.memory_mib) {
        return Err(wrong("memory_mib"));
    }
    if file.distance_ns > DISTANCE_NS_MAX {
        return Err(wrong("distance_ns"));
    }
    if file.count > COUNT_MAX {
        return Err(wrong("count"));
    }
    let price = Price::new(file.price_per_hour).ok_or_else(|| wrong("price_per_hour"))?;
    let spot_price = match file.spot_price_per_hour {
        None => None,
        Some(spot) => Some(Price::new(spot).ok_or_else(|| wrong("spot_price_per_hour"))?),
    };
    Ok(MachineType {
        name: file.name,
        provider: file.provider,
        cores: file.cores,
        memory_bytes: file.memory_mib << 20,
        price,
        spot_price,
        distance_ns: file.distance_ns,
        count: file.count,
    })
}

/// A text that is no catalogue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogueError {
    /// Not TOML, or not of this form; the source says where.
    #[error("{0}")]
    Malformed(Box<toml::de::Error>),
    /// More types than are looked at.
    #[error("{0} machines; a catalogue has at most {TYPES_MAX}")]
    Types(usize),
    /// More providers than are looked at.
    #[error("{0} providers; a catalogue has at most {SOURCES_MAX}")]
    Providers(usize),
    /// Cheaper machines are looked for too often or too seldom.
    #[error("look_every_s is 1 to {LOOK_EVERY_S_MAX}")]
    LookEvery,
    /// A field of a provider that makes no sense.
    #[error("provider {name}: {field} makes no sense")]
    Provider {
        /// The provider's name.
        name: String,
        /// The field's.
        field: &'static str,
    },
    /// A name that is empty, long, or has something in it besides visible ASCII.
    #[error("a machine's name is 1 to {NAME_BYTES_MAX} visible characters")]
    Name,
    /// Two types of one name.
    #[error("machine {0} is there twice")]
    Twice(String),
    /// A field that makes no sense.
    #[error("machine {name}: {field} is out of range")]
    Range {
        /// The machine's name.
        name: String,
        /// The field's.
        field: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "\
[[machine]]
name = \"HB60rs\"
provider = \"azure\"
cores = 60
memory_mib = 233472
price_per_hour = 2.28
spot_price_per_hour = 0.456
distance_ns = 1000
count = 10

[[machine]]
name = \"h00\"
provider = \"hosts\"
cores = 0
memory_mib = 4096
price_per_hour = 0
count = 1
";

    #[test]
    fn a_catalogue_is_read_with_its_units() {
        let catalogue: Catalogue = TEXT.parse().unwrap();
        let [cloud, host] = catalogue.types() else {
            panic!("{catalogue:?}");
        };
        assert_eq!(cloud.memory_bytes, 228 << 30);
        assert_eq!(cloud.price, Price::from_micros(2_280_000));
        assert_eq!(cloud.spot_price, Some(Price::from_micros(456_000)));
        assert_eq!((host.price, host.spot_price), (Price::FREE, None));
        assert_eq!((host.distance_ns, host.count), (0, 1));
    }

    #[test]
    fn each_mistake_is_named() {
        for (old, new, said) in [
            (
                "price_per_hour = 2.28",
                "price_per_hour = -1",
                "machine HB60rs: price_per_hour is out of range",
            ),
            (
                "price_per_hour = 2.28",
                "price_per_hour = nan",
                "machine HB60rs: price_per_hour is out of range",
            ),
            (
                "memory_mib = 4096",
                "memory_mib = 0",
                "machine h00: memory_mib is out of range",
            ),
            (
                "count = 10",
                "count = 4000000000",
                "machine HB60rs: count is out of range",
            ),
            ("h00", "HB60rs", "machine HB60rs is there twice"),
            ("h00", "", "a machine's name is 1 to 128 visible characters"),
            (
                "h00",
                "a\\nb",
                "a machine's name is 1 to 128 visible characters",
            ),
            (
                "cores = 60",
                "cores = 60\ncolour = 1",
                "unknown field `colour`",
            ),
            ("count = 1\n", "", "missing field `count`"),
            ("cores = 60", "cores = -1", "invalid value"),
        ] {
            let read = TEXT.replacen(old, new, 1).parse::<Catalogue>();
            let error = read.unwrap_err().to_string();
            assert!(error.contains(said), "{new}: {error}");
        }
    }

    proptest! {
        #[test]
        fn whatever_the_bytes_it_is_a_catalogue_or_an_error(
            at in 0..TEXT.len(), with in "[ -~\n]{0,6}", cut in 0..6_usize,
        ) {
            let end = (at + cut).min(TEXT.len());
            let text = format!("{}{with}{}", &TEXT[..at], &TEXT[end..]);
            if let Ok(catalogue) = text.parse::<Catalogue>() {
                for one in catalogue.types() {
                    prop_assert!(one.memory_bytes > 0 && one.count <= COUNT_MAX);
                    prop_assert!(one.price.per_hour() <= 1e6);
                }
            }
        }
    }
}
