//! memcached's command line, read as memcached reads it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use cenote_kv::memory::footprint::{Others, Roles};
use cenote_kv::protocol::{Dialect, Limits};
use cenote_memcached::files::{FileError, Files, TlsFiles, UsersFile};
use cenote_memcached::tls::Verify;
use cenote_memcached::{Binding, Settings, TcpAddress, WhenFull};
use clap::{ArgAction, Parser};

use super::resolver::{has_ipv6, resolve};

/// A server with memcached's protocols and command-line options.
///
/// It is a drop-in replacement in scripts that start memcached. Options that tune memcached's own
/// memory and threads are accepted and ignored; -v lists them.
#[derive(Debug, Parser)]
#[command(
    name = "memcached",
    version = VERSION,
    help_template = "memcached {version}\n{before-help}{about-with-newline}\n{usage-heading} {usage}\n\n{all-args}{after-help}",
    disable_version_flag = true,
    args_override_self = true
)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one of memcached's options"
)]
pub struct Options {
    /// TCP port to listen on; 0 disables, -1 picks a free port [default: that of -U, else 11211]
    #[arg(short = 'p', long, allow_negative_numbers = true)]
    port: Option<i32>,
    /// UDP port to listen on; 0 disables, -1 picks a free port
    #[arg(short = 'U', long, default_value = "0", allow_negative_numbers = true)]
    udp_port: i32,
    /// Unix socket to listen on; disables TCP and UDP
    #[arg(short = 's', long)]
    unix_socket: Option<PathBuf>,
    /// Permissions of the Unix socket, in octal
    #[arg(short = 'a', long, default_value = "700")]
    unix_mask: String,
    /// Enable the command shutdown
    #[arg(short = 'A', long)]
    enable_shutdown: bool,
    /// Comma-separated addresses to listen on, as IP, IP:PORT or, with -Z, notls:IP:PORT
    #[arg(short = 'l', long)]
    listen: Vec<String>,
    /// Run in the background
    #[arg(short = 'd', long)]
    pub daemon: bool,
    /// Raise the core file limit to its maximum; a daemon keeps its working directory
    #[arg(short = 'r', long)]
    pub enable_coredumps: bool,
    /// User to switch to, when started as root
    #[arg(short = 'u', long)]
    pub user: Option<String>,
    /// Memory limit of the whole process, in megabytes
    #[arg(short = 'm', long, default_value = "64")]
    memory_limit: u64,
    /// Return an error when memory is full, in place of evicting items
    #[arg(short = 'M', long)]
    disable_evictions: bool,
    /// Maximum number of connections
    #[arg(short = 'c', long, default_value = "1024")]
    pub conn_limit: usize,
    /// Lock all memory
    #[arg(short = 'k', long)]
    pub lock_memory: bool,
    /// Log events; -vv also logs requests
    #[arg(short = 'v', long, action = ArgAction::Count)]
    verbose: u8,
    /// Print the license
    #[arg(short = 'i', long)]
    pub license: bool,
    /// Print the version
    #[arg(short = 'V', long)]
    pub version: bool,
    /// File for the pid of a daemon
    #[arg(short = 'P', long)]
    pub pidfile: Option<PathBuf>,
    /// Growth of size classes; ignored, there are none
    #[arg(short = 'f', long)]
    slab_growth_factor: Option<f64>,
    /// Smallest size class; ignored, there are none
    #[arg(short = 'n', long)]
    slab_min_size: Option<i64>,
    /// Large pages; ignored
    #[arg(short = 'L', long)]
    enable_largepages: bool,
    /// Delimiter of statistics by prefix; ignored, there are none
    #[arg(short = 'D')]
    delimiter: Option<String>,
    /// Service threads; at most one for each 4 MiB of -m
    #[arg(short = 't', long, default_value = "4")]
    threads: usize,
    /// Requests served for one connection before others have their turn
    #[arg(short = 'R', long, default_value = "20")]
    max_reqs_per_event: u32,
    /// Show 0 for every cas number
    #[arg(short = 'C', long)]
    disable_cas: bool,
    /// Listen backlog
    #[arg(short = 'b', long, default_value = "1024")]
    listen_backlog: i32,
    /// Protocol: ascii, binary, or auto, which detects it on each connection [default: auto; with
    /// -S binary]
    #[arg(short = 'B', long)]
    protocol: Option<String>,
    /// Maximum item size, including memcached's overhead; with suffix k or m
    #[arg(short = 'I', long, default_value = "1m")]
    max_item_size: String,
    /// Require SASL authentication, in the binary protocol; users are those of -Y, or of the file
    /// that MEMCACHED_SASL_PWDB names
    #[arg(short = 'S', long)]
    enable_sasl: bool,
    /// Disable flush_all
    #[arg(short = 'F', long)]
    disable_flush_all: bool,
    /// Disable stats cachedump and lru_crawler metadump
    #[arg(short = 'X', long)]
    disable_dumping: bool,
    /// Disable watch
    #[arg(short = 'W', long)]
    disable_watch: bool,
    /// File of USER:PASSWORD lines; clients must authenticate, in the text protocol or by SASL
    #[arg(short = 'Y', long)]
    auth_file: Option<PathBuf>,
    /// Memory file for restarts; refused, since items do not outlive the process
    #[arg(short = 'e', long)]
    memory_file: Option<PathBuf>,
    /// NAPI ids; ignored
    #[arg(short = 'N', long)]
    napi_ids: Option<String>,
    /// Enable TLS, with -o ssl_chain_cert=FILE,ssl_key=FILE
    #[arg(short = 'Z', long)]
    enable_ssl: bool,
    /// Meta commands to use: those of memcached 1.6.18, or of later versions
    #[arg(long, value_enum, default_value = "1.6.18")]
    meta_dialect: MetaDialect,
    /// Enable debugtime N, which advances the clock by N seconds, for tests of expiry
    #[arg(long)]
    debug_time: bool,
    /// More options, comma-separated: maxconns_fast, no_maxconns_fast, idle_timeout, lru_crawler,
    /// no_lru_crawler, ssl_chain_cert, ssl_key, ssl_ca_cert, ssl_verify_mode; memcached's others
    /// are accepted
    #[arg(short = 'o', long)]
    extended: Vec<String>,
}

/// [`Dialect`] as an option.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum MetaDialect {
    /// memcached 1.6.18
    #[value(name = "1.6.18")]
    V1_6_18,
    /// Later versions
    Later,
}

impl From<MetaDialect> for Dialect {
    fn from(dialect: MetaDialect) -> Self {
        match dialect {
            MetaDialect::V1_6_18 => Self::V1_6_18,
            MetaDialect::Later => Self::Later,
        }
    }
}

/// What `-V` and `-h` say: whose options and commands these are, and whose program.
pub const VERSION: &str = concat!("1.6.18 (Cenote ", env!("CARGO_PKG_VERSION"), ")");
/// Memory for each thread that serves; with less there are fewer.
const THREAD_MEGABYTES: u64 = 4;
/// memcached's.
const PORT: i32 = 11211;

/// Names of memcached's other `-o` options, which change nothing here.
const EXTENDED_WITHOUT_USE: &[&str] = &[
    "drop_privileges",
    "ext_compact_under",
    "ext_drop_under",
    "ext_drop_unread",
    "ext_item_age",
    "ext_item_size",
    "ext_low_ttl",
    "ext_max_frag",
    "ext_max_sleep",
    "ext_page_size",
    "ext_path",
    "ext_recache_rate",
    "ext_threads",
    "ext_wbuf_size",
    "hash_algorithm",
    "hashpower",
    "hot_lru_pct",
    "hot_max_factor",
    "inline_ascii_resp",
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "no_drop_privileges",
    "no_hashexpand",
    "no_inline_ascii_resp",
    "no_slab_reassign",
    "read_buf_mem_limit",
    "relaxed_privileges",
    "resp_obj_mem_limit",
    "slab_automove",
    "slab_automove_freeratio",
    "slab_automove_window",
    "slab_chunk_max",
    "slab_reassign",
    "sock_cookie_id",
    "ssl_ciphers",
    "ssl_kernel_tls",
    "ssl_keyformat",
    "ssl_min_version",
    "ssl_session_cache",
    "ssl_wbuf_size",
    "tail_repair_time",
    "temporary_ttl",
    "track_sizes",
    "warm_lru_pct",
    "warm_max_factor",
    "watcher_logbuf_size",
    "worker_logbuf_size",
];

/// Why the options are refused, in memcached's words where it has some, and how the process ends.
#[derive(Debug)]
pub struct Refused {
    pub text: String,
    pub status: u8,
}

impl Refused {
    /// What memcached ends with where options do not go together.
    pub const USAGE: u8 = 64;

    pub fn new(status: u8, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { text, status }
    }
}

/// The options of `-o` that are looked at.
#[derive(Debug, Default)]
struct Extended {
    waits_when_full: bool,
    has_no_crawler: bool,
    has_no_maintainer: bool,
    idle_timeout: Option<Duration>,
    chain: Option<PathBuf>,
    key: Option<PathBuf>,
    authority: Option<PathBuf>,
    verify: Verify,
}

impl Extended {
    fn tls(self) -> Result<TlsFiles, Refused> {
        let none = || Refused::new(Refused::USAGE, "-Z needs -o ssl_chain_cert=FILE");
        Ok(TlsFiles {
            chain: self.chain.ok_or_else(none)?,
            key: self.key,
            authority: self.authority,
            verify: self.verify,
        })
    }
}

/// As memcached ends where a file is not taken.
fn refused_file(error: &FileError) -> Refused {
    let status = match error {
        FileError::Tls(_) => Refused::USAGE,
        _ => 1,
    };
    Refused::new(status, error.to_string())
}

/// What is to be said where whoever reaches a port is not asked who it is, or what it says travels as it is.
pub fn warning(settings: &Settings, files: &Files) -> Option<&'static str> {
    let is_verified = files
        .tls
        .as_ref()
        .is_some_and(|tls| tls.verify == Verify::Required)
        && settings.udp.is_empty()
        && !settings.tcp.iter().any(|address| address.is_plain);
    match (files.users.is_some() || is_verified, files.tls.is_some()) {
        _ if settings.tcp.is_empty() && settings.udp.is_empty() => None,
        (true, true) => None,
        (true, false) => Some("Clients' passwords and items travel unencrypted: see -Z."),
        (false, _) => Some(
            "Anyone who can reach the ports can read and change every item: see -Y, and -Z with -o \
             ssl_verify_mode=2.",
        ),
    }
}

impl Options {
    /// What a server is to be, and what is said of it with `-v`.
    pub fn settings(&self) -> Result<(Settings, Files, Vec<String>), Refused> {
        let mut notes = self.without_use();
        let extended = self.extended(&mut notes)?;
        self.check()?;
        let binding = self.binding()?;
        let item_bytes_max = self.item_bytes_max()?;
        let mode = u32::from_str_radix(&self.unix_mask, 8)
            .map_err(|_| Refused::new(1, "the mask of -a is an octal number"))?;
        let (tcp, udp) = match self.unix_socket {
            Some(_) => (Vec::new(), Vec::new()),
            None => self.addresses()?,
        };
        let memory_bytes = self.memory_limit << 20;
        let mut settings = Settings {
            tcp,
            udp,
            unix: self.unix_socket.clone().map(|path| (path, mode)),
            workers: self.workers(),
            connections_max: self.conn_limit,
            when_full: if extended.waits_when_full {
                WhenFull::Wait
            } else {
                WhenFull::Refuse
            },
            backlog: self.listen_backlog,
            requests_per_turn: self.max_reqs_per_event,
            idle_timeout: extended.idle_timeout,
            binding,
            limits: Limits {
                item_bytes_max,
                dialect: self.meta_dialect.into(),
                has_cas: !self.disable_cas,
                ..Limits::default()
            },
            memory_bytes,
            buffer_bytes: Others::new(memory_bytes, Roles::ALONE).buffers,
            evicts: !self.disable_evictions,
            may_flush: !self.disable_flush_all,
            may_dump: !self.disable_dumping,
            may_watch: !self.disable_watch,
            has_crawler: !extended.has_no_crawler,
            tells_lru: !extended.has_no_maintainer,
            may_shut_down: self.enable_shutdown,
            may_leap: self.debug_time,
            verbosity: self.verbose,
            ..Settings::default()
        };
        let tls = if self.enable_ssl {
            Some(extended.tls()?)
        } else {
            None
        };
        let files = Files {
            users: self.users()?,
            tls,
        };
        files
            .load(&mut settings)
            .map_err(|error| refused_file(&error))?;
        Ok((settings, files, notes))
    }

    fn check(&self) -> Result<(), Refused> {
        let usage = |text: &str| Err(Refused::new(Refused::USAGE, text));
        let wrong = |text: &str| Err(Refused::new(1, text));
        if self.threads == 0 {
            return wrong("Number of threads must be greater than 0");
        }
        if self.conn_limit == 0 {
            return wrong("Maximum connections must be greater than 0");
        }
        if self.max_reqs_per_event == 0 {
            return wrong("Number of requests per event must be greater than 0");
        }
        if self.slab_growth_factor.is_some_and(|factor| factor <= 1.0) {
            return wrong("Factor must be greater than 1");
        }
        if self.slab_min_size.is_some_and(|bytes| bytes <= 0) {
            return wrong("Chunk size must be greater than 0");
        }
        if self.memory_file.is_some() {
            return usage(
                "-e: items do not outlive this process; cenote kv keeps them on other machines",
            );
        }
        if self.auth_file.is_some() && self.udp_port != 0 {
            return usage("Cannot use UDP with ascii authentication enabled (-U 0 to disable)");
        }
        if self.enable_sasl && self.udp_port != 0 {
            return usage("Cannot enable UDP while using binary SASL authentication.");
        }
        Ok(())
    }

    /// Threads that serve: each needs some of the memory for what it has of the items.
    fn workers(&self) -> usize {
        let most = self.memory_limit / THREAD_MEGABYTES;
        self.threads
            .min(usize::try_from(most).unwrap_or(usize::MAX))
            .max(1)
    }

    /// Which protocols are spoken.
    fn binding(&self) -> Result<Binding, Refused> {
        let usage = |text: &str| Refused::new(Refused::USAGE, text);
        let binding = match self.protocol.as_deref() {
            None if self.enable_sasl => Binding::Binary,
            None | Some("auto") => Binding::Auto,
            Some("ascii") => Binding::Text,
            Some("binary") => Binding::Binary,
            Some(other) => {
                let text = format!(
                    "Invalid value for binding protocol: {other}\n -- should be one of auto, binary, or ascii"
                );
                return Err(usage(&text));
            }
        };
        if self.enable_sasl && binding != Binding::Binary {
            let text = "ERROR: You cannot allow the ASCII protocol while using SASL.";
            return Err(usage(text));
        }
        Ok(binding)
    }

    /// The file of users. What cyrus-sasl keeps is not read.
    fn users(&self) -> Result<Option<UsersFile>, Refused> {
        if self.auth_file.is_some() || !self.enable_sasl {
            return Ok(self.auth_file.clone().map(UsersFile::Plain));
        }
        let path = std::env::var_os("MEMCACHED_SASL_PWDB").map(PathBuf::from);
        let text = "-S needs users: -Y FILE, or a file that MEMCACHED_SASL_PWDB names";
        path.map(|path| Some(UsersFile::Sasl(path)))
            .ok_or_else(|| Refused::new(Refused::USAGE, text))
    }

    /// Bytes from `-I`, between memcached's bounds.
    fn item_bytes_max(&self) -> Result<u64, Refused> {
        let usage = |text: &str| Refused::new(Refused::USAGE, text);
        let text = self.max_item_size.as_str();
        let (digits, unit) = match text.char_indices().last() {
            Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
            Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
            _ => (text, 1),
        };
        let number: u64 = digits
            .parse()
            .map_err(|_| usage("the size of -I is a number, and k or m"))?;
        let bytes = number.saturating_mul(unit);
        match bytes {
            ..1024 => Err(usage("Item max size cannot be less than 1024 bytes.")),
            _ if bytes > 1 << 30 => {
                Err(usage("Cannot set item size limit higher than a gigabyte."))
            }
            _ if bytes > (self.memory_limit << 20) / 2 => Err(usage(
                "Cannot set item size limit higher than 1/2 of memory max.",
            )),
            _ => Ok(bytes),
        }
    }

    fn addresses(&self) -> Result<(Vec<TcpAddress>, Vec<SocketAddr>), Refused> {
        let port = |number: i32| match number {
            -1 => Ok(0),
            number => {
                u16::try_from(number).map_err(|_| Refused::new(1, "a port is a number below 65536"))
            }
        };
        // As memcached: where only one port is named it is both's.
        let tcp = match (self.port, self.udp_port) {
            (Some(number), _) => number,
            (None, 0) => PORT,
            (None, number) => number,
        };
        let (tcp_port, udp_port) = (port(tcp)?, port(self.udp_port)?);
        let has_tcp = tcp != 0;
        let mut tcp = Vec::new();
        let mut udp = Vec::new();
        let names = self
            .listen
            .iter()
            .flat_map(|list| list.split([',', ';', ' ']));
        let mut hosts: Vec<(IpAddr, Option<u16>, bool)> = Vec::new();
        for name in names.filter(|name| !name.is_empty()) {
            let (name, is_plain) = match name.strip_prefix("notls:") {
                Some(name) => (name, true),
                None => (name, false),
            };
            for (address, port) in resolve(name)? {
                hosts.push((address, port, is_plain));
            }
        }
        if hosts.is_empty() {
            hosts.push((Ipv4Addr::UNSPECIFIED.into(), None, false));
            if has_ipv6() {
                hosts.push((Ipv6Addr::UNSPECIFIED.into(), None, false));
            }
        }
        for (address, port, is_plain) in hosts {
            if has_tcp || port.is_some() {
                let address = SocketAddr::new(address, port.unwrap_or(tcp_port));
                tcp.push(TcpAddress { address, is_plain });
            }
            if self.udp_port != 0 {
                udp.push(SocketAddr::new(address, udp_port));
            }
        }
        Ok((tcp, udp))
    }

    fn extended(&self, notes: &mut Vec<String>) -> Result<Extended, Refused> {
        let mut extended = Extended::default();
        let list = self.extended.iter().flat_map(|list| list.split(','));
        for option in list.filter(|option| !option.is_empty()) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            let path = || {
                let missing = || Refused::new(1, format!("Missing {name} argument"));
                value.map(PathBuf::from).ok_or_else(missing)
            };
            let number = || {
                let number = value.and_then(|value| value.parse::<u64>().ok());
                number
                    .ok_or_else(|| Refused::new(1, format!("Missing numeric argument for {name}")))
            };
            match name {
                "maxconns_fast" => extended.waits_when_full = false,
                "no_maxconns_fast" => extended.waits_when_full = true,
                // The crawler can be asked or not; nothing else of what is modern is here.
                "lru_crawler" => extended.has_no_crawler = false,
                "no_lru_crawler" => extended.has_no_crawler = true,
                "lru_maintainer" => extended.has_no_maintainer = false,
                "no_lru_maintainer" => extended.has_no_maintainer = true,
                "modern" | "no_modern" => {
                    extended.has_no_crawler = name == "no_modern";
                    extended.has_no_maintainer = name == "no_modern";
                }
                "idle_timeout" => {
                    let seconds = number()?;
                    extended.idle_timeout = (seconds > 0).then(|| Duration::from_secs(seconds));
                }
                "ssl_chain_cert" => extended.chain = Some(path()?),
                "ssl_key" => extended.key = Some(path()?),
                "ssl_ca_cert" => extended.authority = Some(path()?),
                "ssl_verify_mode" => {
                    extended.verify = match number()? {
                        0 => Verify::None,
                        1 => Verify::Optional,
                        2 | 3 => Verify::Required,
                        other => {
                            let text = format!("Invalid ssl_verify_mode: {other}");
                            return Err(Refused::new(1, text));
                        }
                    }
                }
                name if EXTENDED_WITHOUT_USE.contains(&name) => {
                    notes.push(format!("-o {name} is accepted and ignored"));
                }
                _ => return Err(Refused::new(1, format!("Illegal suboption \"{option}\""))),
            }
        }
        Ok(extended)
    }

    /// Notes about options that have no meaning here.
    fn without_use(&self) -> Vec<String> {
        let notes = [
            (self.slab_growth_factor.is_some(), "-f"),
            (self.slab_min_size.is_some(), "-n"),
            (self.enable_largepages, "-L"),
            (self.delimiter.is_some(), "-D"),
            (self.napi_ids.is_some(), "-N"),
        ];
        let given = notes.into_iter().filter(|(is_given, _)| *is_given);
        given
            .map(|(_, name)| format!("{name} is accepted and ignored"))
            .collect()
    }
}
