//! How clients reach the hosts of a local cluster, as an argument.

/// How clients reach the hosts of a local cluster.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum Transport {
    /// Clients map the hosts' memory; no system call per page
    Shm,
    /// Loopback TCP, one port per host
    Tcp,
    /// RDMA, over the first device with an IP address
    Rdma,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        })
    }
}
