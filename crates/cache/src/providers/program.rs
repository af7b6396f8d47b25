//! A command that gets a machine, and one that releases it: for clouds and for Kubernetes.
//!
//! What is wished for is in the environment: `CENOTE_MACHINE_TYPE`, `CENOTE_MEMORY_BYTES`,
//! `CENOTE_SLAB_BYTES`, `CENOTE_CORES`, `CENOTE_SPOT` (0 or 1). It ends with 0 once a host runs there, and
//! writes one JSON object: `{"id":"vm-17","address":"tcp:10.0.0.7:7000","domain":"rack2"}`. Both get `CENOTE_ORDER`,
//! under which a machine is got once. The other one gets `CENOTE_MACHINE_ID` besides, which is empty where it is to
//! take back whatever the order got: who gave it was killed before it was told. A machine that is taken
//! back gets SIGTERM from its cloud, which its host, with a grace period, tells as a notice.

use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use super::command;
use super::{Error, Machine, Provider, TEXT_BYTES_MAX, Wish, is_name};
use crate::links::HostConfig;

/// Gets machines by a command.
#[derive(Clone, Debug)]
pub struct Program {
    /// The command and its arguments; not empty.
    pub acquire: Vec<String>,
    /// The same.
    pub release: Vec<String>,
    /// How long each may take.
    pub limit: Duration,
}

/// What the first one says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    id: String,
    address: String,
    domain: Option<String>,
}

impl Program {
    fn run(
        &self,
        arguments: &[String],
        environment: impl FnOnce(&mut Command),
    ) -> Result<(Vec<u8>, String), Error> {
        let Some((program, arguments)) = arguments.split_first() else {
            return Err(Error::Nonsense {
                what: "a provider's command".to_owned(),
                said: "it is empty".to_owned(),
            });
        };
        let mut command = command::command(program, self.limit);
        command.args(arguments);
        environment(&mut command);
        let said = command::run(command, program, self.limit)?;
        Ok((said, program.clone()))
    }

    fn take_back(&self, id: &str, order: &str) -> Result<(), Error> {
        let environment = |command: &mut Command| {
            command
                .env("CENOTE_MACHINE_ID", id)
                .env("CENOTE_ORDER", order);
        };
        self.run(&self.release, environment).map(drop)
    }
}

impl Provider for Program {
    fn acquire(&mut self, wish: &Wish) -> Result<Machine, Error> {
        let environment = |command: &mut Command| {
            command
                .env("CENOTE_ORDER", &wish.order)
                .env("CENOTE_MACHINE_TYPE", &wish.machine_type)
                .env("CENOTE_MEMORY_BYTES", wish.memory_bytes.to_string())
                .env("CENOTE_SLAB_BYTES", wish.slab_bytes.to_string())
                .env("CENOTE_CORES", wish.cores.to_string())
                .env("CENOTE_SPOT", if wish.is_spot { "1" } else { "0" });
        };
        let (said, what) = self.run(&self.acquire, environment)?;
        machine(&wish.order, &said).map_err(|said| Error::Nonsense { what, said })
    }

    fn release(&mut self, machine: &Machine) -> Result<(), Error> {
        self.take_back(&machine.id, &machine.order)
    }

    fn cancel(&mut self, order: &str) -> Result<(), Error> {
        self.take_back("", order)
    }
}

/// The machine that a command names, or what is wrong with its words.
pub(super) fn machine(order: &str, said: &[u8]) -> Result<Machine, String> {
    let said: Said = serde_json::from_slice(said).map_err(|error| error.to_string())?;
    let domain = said.domain.unwrap_or_else(|| said.id.clone());
    if !is_name(&said.id) || !is_name(&domain) {
        return Err("an id and a domain are 1 to 64 letters, digits and -_.:/".to_owned());
    }
    let address = said.address.parse();
    let address = address.map_err(|error| format!("{:?}: {error}", said.address))?;
    let host = HostConfig {
        name: said.id.clone(),
        address,
        domain,
    };
    let machine = Machine {
        order: order.to_owned(),
        id: said.id,
        host,
    };
    match machine.is_short() {
        true => Ok(machine),
        false => Err(format!("an address has at most {TEXT_BYTES_MAX} bytes")),
    }
}
