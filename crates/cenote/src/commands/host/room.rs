//! What a host leaves to the rest of its machine: flags that `host` and `up` share.

use std::path::PathBuf;

use anyhow::Result;
use cenote_cli::failure::Failure;
use cenote_host::Headroom;
use serde::Deserialize;

use crate::share::Share;

/// Whether and how a host gives way to the programs of its machine.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Lending {
    /// Policy when other programs of the machine need memory [default: headroom with --headroom,
    /// --floor, --evict-extra, --reclaim or a host's --meminfo, else fixed]
    #[arg(long = "yield", value_enum, value_name = "HOW")]
    pub giving: Option<Yield>,
    /// Memory to leave free, as 25% or 8G; slabs are asked back to keep it free [default: 12.5%]
    #[arg(long, value_name = "SHARE")]
    pub headroom: Option<Share>,
    /// Free memory below which slabs are taken from clients that do not return them in time
    /// [default: a quarter of the headroom]
    #[arg(long, value_name = "SHARE")]
    pub floor: Option<Share>,
    /// Slabs to consider beyond those to evict, to find the least active [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=64))]
    pub evict_extra: Option<u32>,
    /// Tell clients on the host's own machine when it has spare memory, so that they reclaim their
    /// pages before slabs are prepared for others [default: on with --yield reclaim on a real
    /// machine, else off]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub reclaim: Option<Switch>,
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// Enabled
    On,
    /// Disabled
    Off,
}

/// What a host does when others need the memory that it lends.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Yield {
    /// Lend --memory unconditionally
    Fixed,
    /// Keep an eighth of the machine's memory free (--headroom): ask clients for their least used
    /// slabs when less is free, as Infiniswap does
    Headroom,
    /// Keep a quarter free in the same way; when more is free, clients on the same machine reclaim
    /// their pages from other hosts, as in Hydra
    Reclaim,
}

impl Lending {
    /// As the host takes it; `None`: it lends whatever happens.
    ///
    /// # Errors
    /// A fixed host with a headroom.
    pub fn headroom(&self, meminfo: Option<PathBuf>) -> Result<Option<Headroom>> {
        let says_more = self.headroom.is_some()
            || self.floor.is_some()
            || self.evict_extra.is_some()
            || self.reclaim.is_some();
        match self.giving {
            Some(Yield::Fixed) if says_more || meminfo.is_some() => Err(Failure::usage(
                "a host with --yield fixed has no headroom",
                "use --yield headroom, or leave out --headroom, --floor, --evict-extra, --reclaim \
                 and --meminfo",
            )
            .into()),
            Some(Yield::Fixed) => Ok(None),
            None if !says_more && meminfo.is_none() => Ok(None),
            _ => {
                let paper = match self.giving {
                    Some(Yield::Reclaim) => Headroom::hydra(),
                    _ => Headroom::infiniswap(),
                };
                // A file that stands for the machine says nothing of that which clients are on.
                let reclaim = match self.reclaim {
                    Some(switch) => switch == Switch::On,
                    None => paper.reclaim && meminfo.is_none(),
                };
                Ok(Some(Headroom {
                    keep: self.headroom.map_or(paper.keep, Into::into),
                    floor: self.floor.map(Into::into),
                    evict_extra: self.evict_extra.unwrap_or(paper.evict_extra),
                    meminfo,
                    reclaim,
                }))
            }
        }
    }

    /// What is said here, and what is not as `other` has it.
    pub fn or(self, other: Self) -> Self {
        Self {
            giving: self.giving.or(other.giving),
            headroom: self.headroom.or(other.headroom),
            floor: self.floor.or(other.floor),
            evict_extra: self.evict_extra.or(other.evict_extra),
            reclaim: self.reclaim.or(other.reclaim),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_cli::size::Size;

    #[test]
    fn a_headroom_makes_a_host_give_way_and_a_fixed_one_has_none() {
        let given = Lending::default();
        assert_eq!(given.headroom(None).unwrap(), None);
        let paper = Lending {
            giving: Some(Yield::Headroom),
            ..Lending::default()
        };
        assert_eq!(paper.headroom(None).unwrap(), Some(Headroom::infiniswap()));
        let hydra = Lending {
            giving: Some(Yield::Reclaim),
            ..Lending::default()
        };
        let quarter = hydra.headroom(None).unwrap().unwrap();
        assert_eq!(quarter, Headroom::hydra());
        assert_eq!(
            (quarter.keep, quarter.evict_extra, quarter.reclaim),
            (cenote_host::Share::PerMille(250), 2, true)
        );
        let stands_in = hydra.headroom(Some("/m".into())).unwrap().unwrap();
        assert!(
            !stands_in.reclaim,
            "nobody's pages are reclaimed into a file"
        );
        let told = Lending {
            reclaim: Some(Switch::On),
            ..hydra
        };
        assert!(told.headroom(Some("/m".into())).unwrap().unwrap().reclaim);
        let mut own = Lending {
            headroom: Some(Share::Size(Size(1 << 30))),
            evict_extra: Some(5),
            ..Lending::default()
        };
        let headroom = own.headroom(Some("/m".into())).unwrap().unwrap();
        assert_eq!(headroom.keep, cenote_host::Share::Bytes(1 << 30));
        assert_eq!(
            (headroom.floor, headroom.evict_extra, headroom.meminfo),
            (None, 5, Some("/m".into()))
        );
        own.giving = Some(Yield::Fixed);
        let error = format!("{:#}", own.headroom(None).unwrap_err());
        assert!(error.contains("fixed"), "{error}");
    }
}
