//! The parameters that the experiments share.

use cenote_cli::number::share;
use cenote_plan::loss::Case;

const PAPER: Case = Case::PAPER;

#[derive(clap::Args, Debug)]
pub struct CaseArgs {
    /// Data splits of a page (k)
    #[arg(long, value_name = "N", default_value_t = PAPER.k)]
    k: usize,
    /// Parity splits of a page (r)
    #[arg(long, value_name = "N", default_value_t = PAPER.r)]
    r: usize,
    /// Hosts of a group beyond k+r (l)
    #[arg(long, value_name = "N", default_value_t = PAPER.l)]
    l: usize,
    /// Slabs in use on each host
    #[arg(long, value_name = "N", default_value_t = PAPER.slabs_per_host, value_parser = clap::value_parser!(u32).range(1..=1000))]
    slabs_per_host: u32,
    /// Share of the hosts that fail at once
    #[arg(long, value_name = "SHARE", default_value_t = PAPER.failed, value_parser = share)]
    failed: f64,
    /// Number of hosts in the cluster
    #[arg(long, value_name = "N", default_value_t = PAPER.hosts)]
    hosts: usize,
}

impl CaseArgs {
    pub fn case(&self) -> Case {
        Case {
            hosts: self.hosts,
            k: self.k,
            r: self.r,
            l: self.l,
            slabs_per_host: self.slabs_per_host,
            failed: self.failed,
        }
    }
}
