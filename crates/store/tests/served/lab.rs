//! A store that is served, and clients of it.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_fabric::{Address, ClientId, ClusterKey, WireProtection, connector};
use cenote_store::client::{Client, ClientError, Command, Outcome};
use cenote_store::schemes::{EFactory, Scheme};
use cenote_store::{
    Condition, FileMedium, Medium, PmMedium, Pool, PoolConfig, Server, ServerConfig,
};

pub const LIMIT: Duration = Duration::from_secs(30);

/// A folder with sockets and pools, and the key to it.
pub struct Lab {
    pub folder: tempfile::TempDir,
    pub key: ClusterKey,
    clients: AtomicU64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transport {
    Shm,
    Tcp,
}

pub const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

pub struct Options {
    pub transport: Transport,
    pub scheme: Arc<dyn Scheme>,
    pub pool_bytes: u64,
    pub shards: usize,
    pub patience: Duration,
    pub landing_bytes: u64,
}

impl Options {
    pub fn new(transport: Transport) -> Self {
        Self {
            transport,
            scheme: Arc::new(EFactory),
            pool_bytes: 16 << 20,
            shards: 2,
            patience: Duration::from_secs(10),
            landing_bytes: 4 << 20,
        }
    }
}

impl Lab {
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            key: ClusterKey::generate().unwrap(),
            clients: AtomicU64::new(0),
        }
    }

    pub fn file(&self, shard: usize) -> File {
        let path = self.folder.path().join(format!("pool.{shard}"));
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.open(path).unwrap()
    }

    /// Serves pools on ordinary files, new ones or those that are there.
    pub fn serve(&self, options: &Options) -> Server<FileMedium> {
        self.serve_on(options, |file| FileMedium::open(file).unwrap())
    }

    /// The same on mapped files.
    pub fn serve_pm(&self, options: &Options) -> Server<PmMedium> {
        self.serve_on(options, |file| {
            PmMedium::open(file.into(), Duration::ZERO).unwrap()
        })
    }

    pub fn serve_on<M: Medium>(&self, options: &Options, open: impl Fn(File) -> M) -> Server<M> {
        let pools = (0..options.shards).map(|shard| {
            let file = self.file(shard);
            if file.metadata().unwrap().len() > 0 {
                return Pool::open(open(file)).unwrap().0;
            }
            file.set_len(options.pool_bytes).unwrap();
            let config = PoolConfig {
                entry_count: 1024,
                seed: 77,
            };
            Pool::create(open(file), config).unwrap()
        });
        let socket = self.folder.path().join("store.sock");
        let address = match options.transport {
            Transport::Shm => Address::Shm(socket),
            Transport::Tcp => "tcp:127.0.0.1:0".parse().unwrap(),
        };
        let config = ServerConfig {
            addresses: vec![address],
            key: self.key.clone(),
            scheme: Arc::clone(&options.scheme),
            threads: 1,
            landing_bytes: options.landing_bytes,
            patience: options.patience,
            page_traffic: WireProtection::default(),
        };
        Server::start(pools.collect(), config).unwrap()
    }

    pub fn client<M: Medium>(&self, server: &Server<M>) -> User {
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        let connector = connector(self.key.clone());
        let id = ClientId(u128::from(number) + 1);
        User(Client::connect(&connector, &server.addresses()[0], id, LIMIT).unwrap())
    }
}

/// A client that does one thing after the other.
pub struct User(pub Client);

impl User {
    pub fn call(&mut self, command: Command) -> Result<Outcome, ClientError> {
        self.0.call(command, LIMIT)
    }

    fn put_as(&mut self, key: &[u8], value: &[u8], condition: Condition, is_durable: bool) -> u64 {
        let end = self.call(Command::Put {
            key: key.to_vec(),
            value: value.to_vec(),
            condition,
            is_durable,
        });
        match end.unwrap() {
            Outcome::Done { sequence } => sequence,
            other => panic!("{other:?}"),
        }
    }

    pub fn put(&mut self, key: &[u8], value: &[u8]) -> u64 {
        self.put_as(key, value, Condition::Always, false)
    }

    pub fn put_durable(&mut self, key: &[u8], value: &[u8]) -> u64 {
        self.put_as(key, value, Condition::Always, true)
    }

    pub fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let key = key.to_vec();
        match self.call(Command::Get { key }).unwrap() {
            Outcome::Value { value, .. } => Some(value),
            Outcome::Absent => None,
            other => panic!("{other:?}"),
        }
    }

    pub fn delete(&mut self, key: &[u8]) {
        let (key, condition) = (key.to_vec(), Condition::Always);
        self.call(Command::Delete { key, condition }).unwrap();
    }

    pub fn sync(&mut self) -> u64 {
        match self.call(Command::Sync).unwrap() {
            Outcome::Synced { lost } => lost,
            other => panic!("{other:?}"),
        }
    }
}
