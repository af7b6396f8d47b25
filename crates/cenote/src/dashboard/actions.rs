//! What may be ordered by the page: each the same as a command does, and no more.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use cenote_cli::size::Size;
use cenote_pool::HostEntry;
use cenote_pool::control::{Drain, Request};
use serde::Deserialize;

use crate::ask::Asker;
use crate::commands::host::drain::{check_room, lent};
use crate::place::Loaded;
use crate::volumes::{Question, Volumes};

/// How long a host, or the owner of a volume, may take.
const LIMIT: Duration = Duration::from_secs(5);

/// An order, as the page sends it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[serde(tag = "order", rename_all = "lowercase", deny_unknown_fields)]
pub enum Order {
    /// A host stops to lend, and its clients move what they have there.
    Drain { host: String },
    /// A host that drains lends again.
    Lend { host: String },
    /// Every page of a volume is looked at.
    Scrub { volume: String },
    /// A volume rebuilds and moves so many bytes per second at most; 0: no limit.
    Repair { volume: String, bytes_per_s: u64 },
}

/// Carries out orders.
pub struct Actions {
    loaded: Option<Arc<Loaded>>,
}

impl Actions {
    /// On the hosts and volumes of a cluster, if there is one.
    pub fn new(loaded: Option<Arc<Loaded>>) -> Self {
        Self { loaded }
    }

    /// Does it; what was done, for people. Blocks while others are asked.
    ///
    /// # Errors
    /// There is nothing of that name, it does not answer or refuses.
    pub fn carry_out(&self, order: &Order) -> Result<String> {
        let Some(loaded) = &self.loaded else {
            bail!("this dashboard has no hosts and no volumes");
        };
        let volumes = || Volumes::new(&loaded.dir);
        match order {
            Order::Drain { host } => {
                drain(loaded, host, Drain::On)?;
                Ok(format!("host {host}: draining"))
            }
            Order::Lend { host } => {
                drain(loaded, host, Drain::Off)?;
                Ok(format!("host {host}: lends again"))
            }
            Order::Scrub { volume } => {
                volumes().ask_within(volume, Question::Scrub, LIMIT)?;
                Ok(format!("volume {volume}: scrub started"))
            }
            Order::Repair {
                volume,
                bytes_per_s,
            } => {
                let question = Question::Repair {
                    bytes_per_s: *bytes_per_s,
                };
                volumes().ask_within(volume, question, LIMIT)?;
                Ok(match bytes_per_s {
                    0 => format!("volume {volume}: repair rate unlimited"),
                    _ => format!(
                        "volume {volume}: repair rate limited to {} per second",
                        Size(*bytes_per_s).rounded()
                    ),
                })
            }
        }
    }
}

fn drain(loaded: &Loaded, name: &str, how: Drain) -> Result<()> {
    let cluster = loaded.cluster_now()?;
    let is_meant = |host: &HostEntry| host.name == name;
    let (found, others): (Vec<_>, Vec<_>) = cluster.hosts.into_iter().partition(is_meant);
    let [host] = &found[..] else {
        bail!("there is no host {name:?} in the cluster file");
    };
    let mut asker = Asker::connect(&host.address, &loaded.key, "cenote dashboard", LIMIT)?;
    let request = Request::Drain(how);
    if asker.version() < request.since() {
        bail!("host {name} runs an older version that cannot drain");
    }
    if how != Drain::Off {
        let status = asker.ask(&Request::Status, LIMIT)?;
        check_room(name, &others, &loaded.key, lent(&status))?;
    }
    asker.ask(&request, LIMIT)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_the_page_writes_them_and_nothing_else_is() {
        let read = |text: &str| serde_json::from_str::<Order>(text).ok();
        let host = "h03".to_owned();
        assert_eq!(
            read(r#"{"order":"drain","host":"h03"}"#),
            Some(Order::Drain { host })
        );
        let volume = "v0".to_owned();
        assert_eq!(
            read(r#"{"order":"repair","volume":"v0","bytes_per_s":1048576}"#),
            Some(Order::Repair {
                volume,
                bytes_per_s: 1 << 20
            })
        );
        for text in [
            r#"{"order":"drain"}"#,
            r#"{"order":"drain","host":"h03","stop":true}"#,
            r#"{"order":"delete","volume":"v0"}"#,
            r#"{"order":"repair","volume":"v0","bytes_per_s":-1}"#,
            "",
            "[]",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
