//! A simple model of a file system, the requests that tests make of it and of the real one, and how
//! the two are compared.

#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};

use cenote_vfs::{
    AttributeMode, Caller, Changed, Files, FsError, Ino, NewInode, ROOT, RenameMode, Timestamp,
    Write,
};
use proptest::prelude::*;

/// A request. Files and directories are chosen from those that there are, by number.
#[derive(Clone, Debug)]
pub enum Op {
    Make(u8, u8, Kind),
    Link(u8, u8, u8),
    Remove(u8, u8),
    Rename(u8, u8, u8, u8, RenameMode),
    Write(u8, u32, u32),
    Cut(u8, u32),
    Allocate(u8, u32, u32, i32),
    Copy(u8, u32, u8, u32, u32),
    Attribute(u8, u8, Option<u8>),
    /// Keeps a file in use although its names may go.
    Hold(u8),
    Release,
    Sync(u8),
    Commit,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    File,
    Directory,
    Link,
}

/// Largest files of the tests, in bytes.
const FILE_BYTES: u32 = 48 << 10;
const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;

/// Lists of up to `count` requests, more of those that change bytes.
pub fn ops(count: usize) -> impl Strategy<Value = Vec<Op>> {
    proptest::collection::vec(op(), 1..count)
}

pub fn op() -> impl Strategy<Value = Op> {
    let kind = prop_oneof![
        4 => Just(Kind::File),
        2 => Just(Kind::Directory),
        1 => Just(Kind::Link)
    ];
    let mode = prop_oneof![
        3 => Just(RenameMode::Replace),
        1 => Just(RenameMode::NoReplace),
        1 => Just(RenameMode::Exchange)
    ];
    let flags = prop_oneof![
        Just(0),
        Just(KEEP),
        Just(libc::FALLOC_FL_PUNCH_HOLE | KEEP),
        Just(libc::FALLOC_FL_ZERO_RANGE),
        Just(libc::FALLOC_FL_ZERO_RANGE | KEEP),
    ];
    let (dir, name) = (0..4_u8, 0..6_u8);
    let (at, len) = (offset(), 1..20_000_u32);
    prop_oneof![
        6 => (dir.clone(), name.clone(), kind).prop_map(|(d, n, k)| Op::Make(d, n, k)),
        1 => (any::<u8>(), dir.clone(), name.clone()).prop_map(|(f, d, n)| Op::Link(f, d, n)),
        4 => (dir.clone(), name.clone()).prop_map(|(d, n)| Op::Remove(d, n)),
        2 => (dir.clone(), name.clone(), dir, name, mode)
            .prop_map(|(a, b, c, d, m)| Op::Rename(a, b, c, d, m)),
        10 => (any::<u8>(), at.clone(), len.clone()).prop_map(|(f, o, l)| Op::Write(f, o, l)),
        3 => (any::<u8>(), at.clone()).prop_map(|(f, o)| Op::Cut(f, o)),
        3 => (any::<u8>(), at.clone(), len.clone(), flags)
            .prop_map(|(f, o, l, m)| Op::Allocate(f, o, l, m)),
        1 => (any::<u8>(), at.clone(), any::<u8>(), at, len)
            .prop_map(|(f, a, t, b, l)| Op::Copy(f, a, t, b, l)),
        1 => (any::<u8>(), 0..3_u8, proptest::option::of(any::<u8>()))
            .prop_map(|(f, n, v)| Op::Attribute(f, n, v)),
        1 => any::<u8>().prop_map(Op::Hold),
        1 => Just(Op::Release),
        2 => any::<u8>().prop_map(Op::Sync),
        1 => Just(Op::Commit),
    ]
}

/// Offsets, often at or beside the ends of blocks.
fn offset() -> impl Strategy<Value = u32> + Clone {
    prop_oneof![
        0..FILE_BYTES,
        (0..FILE_BYTES / 4096, -2..3_i64)
            .prop_map(|(block, by)| (i64::from(block) * 4096 + by).max(0) as u32),
    ]
}

/// What a file system should hold.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub nodes: BTreeMap<u32, Node>,
    next: u32,
    /// Which inode a node is.
    pub inos: BTreeMap<u32, Ino>,
    held: Vec<u32>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Node {
    pub body: Body,
    pub links: u32,
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Body {
    File(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, u32>),
    Link(Vec<u8>),
}

const TOP: u32 = 0;

impl Model {
    pub fn new() -> Self {
        let mut model = Self::default();
        let root = model.add(Body::Directory(BTreeMap::new()), 1);
        model.inos.insert(root, ROOT);
        model
    }

    fn add(&mut self, body: Body, links: u32) -> u32 {
        let id = self.next;
        self.next += 1;
        let node = Node {
            body,
            links,
            attributes: BTreeMap::new(),
        };
        self.nodes.insert(id, node);
        id
    }

    /// Directories that can be reached, in order.
    fn directories(&self) -> Vec<u32> {
        let is_directory = |node: &&u32| matches!(self.nodes[node].body, Body::Directory(_));
        self.reachable()
            .iter()
            .filter(is_directory)
            .copied()
            .collect()
    }

    pub fn files(&self) -> Vec<u32> {
        let mut files: Vec<u32> = self.reachable().into_iter().collect();
        files.extend(&self.held);
        files.retain(|node| matches!(self.nodes[node].body, Body::File(_)));
        files
    }

    fn reachable(&self) -> BTreeSet<u32> {
        let mut found = BTreeSet::from([TOP]);
        let mut open = vec![TOP];
        while let Some(at) = open.pop() {
            if let Body::Directory(entries) = &self.nodes[&at].body {
                for child in entries.values() {
                    if found.insert(*child) {
                        open.push(*child);
                    }
                }
            }
        }
        found
    }

    fn entries(&mut self, directory: u32) -> &mut BTreeMap<Vec<u8>, u32> {
        match &mut self.nodes.get_mut(&directory).expect("a node").body {
            Body::Directory(entries) => entries,
            _ => panic!("a directory"),
        }
    }

    fn bytes(&mut self, file: u32) -> &mut Vec<u8> {
        match &mut self.nodes.get_mut(&file).expect("a node").body {
            Body::File(bytes) => bytes,
            _ => panic!("a file"),
        }
    }

    fn is_within(&self, node: u32, ancestor: u32) -> bool {
        let mut found = BTreeSet::from([ancestor]);
        let mut open = vec![ancestor];
        while let Some(at) = open.pop() {
            if let Body::Directory(entries) = &self.nodes[&at].body {
                for child in entries.values() {
                    if found.insert(*child) {
                        open.push(*child);
                    }
                }
            }
        }
        found.contains(&node)
    }

    fn unlink(&mut self, node: u32) {
        let links = &mut self.nodes.get_mut(&node).expect("a node").links;
        *links -= 1;
        if *links == 0 && !self.held.contains(&node) {
            self.nodes.remove(&node);
        }
    }
}

/// The file system beside its model.
pub struct Pair {
    pub files: Files,
    pub model: Model,
    /// Fills what is written: a different byte for each request.
    pub stamp: u8,
}

pub fn caller() -> Caller {
    Caller {
        uid: 1000,
        gid: 1000,
        now: Timestamp {
            seconds: 1_000_000,
            nanos: 5,
        },
    }
}

pub fn name_of(number: u8) -> Vec<u8> {
    match number {
        // Bytes that are no text, and as many as there may be.
        0 => vec![0xFF, b' ', b'\n', 0x80],
        1 => vec![b'n'; 255],
        other => vec![b'a' + other],
    }
}

fn pick(from: &[u32], number: u8) -> Option<u32> {
    (!from.is_empty()).then(|| from[usize::from(number) % from.len()])
}

impl Pair {
    pub fn new(files: Files) -> Self {
        Self {
            files,
            model: Model::new(),
            stamp: 0,
        }
    }

    /// Runs a request on both, and compares what they answer.
    pub fn run(&mut self, op: &Op) {
        self.stamp = self.stamp % 200 + 1;
        let real = self.run_real(op);
        let full = matches!(real, Err(FsError::NoSpace));
        if full {
            // Where the model has room; what was there stays.
            return;
        }
        let modelled = self.model.run(op, self.stamp);
        match (real, modelled) {
            (Ok(Some(ino)), Ok(Some(node))) => {
                self.model.inos.insert(node, ino);
            }
            (Ok(_), Ok(None)) => {}
            (real, modelled) => {
                let (real, modelled) = (real.map(drop), modelled.map(drop));
                assert_eq!(real, modelled, "{op:?}");
            }
        }
    }

    fn ino(&self, node: u32) -> Ino {
        self.model.inos[&node]
    }

    fn run_real(&mut self, op: &Op) -> Result<Option<Ino>, FsError> {
        let (files, model, me) = (&self.files, &self.model, caller());
        let (dirs, all) = (model.directories(), model.files());
        let dir = |number: u8| self.ino(dirs[usize::from(number) % dirs.len()]);
        let file = |number: u8| pick(&all, number).map(|node| self.ino(node));
        match *op {
            Op::Make(parent, name, kind) => {
                let (mode, target) = match kind {
                    Kind::File => (libc::S_IFREG | 0o644, None),
                    Kind::Directory => (libc::S_IFDIR | 0o755, None),
                    Kind::Link => (libc::S_IFLNK | 0o777, Some(&b"where"[..])),
                };
                let new = NewInode {
                    mode,
                    rdev: 0,
                    target,
                };
                let (ino, _) = files.make(&me, dir(parent), &name_of(name), new)?;
                files.forget(ino, 1)?;
                return Ok(Some(ino));
            }
            Op::Link(number, parent, name) => {
                if let Some(ino) = file(number) {
                    files.link(&me, ino, dir(parent), &name_of(name))?;
                    files.forget(ino, 1)?;
                }
            }
            Op::Remove(parent, name) => {
                let (parent, name) = (dir(parent), name_of(name));
                match files.unlink(&me, parent, &name) {
                    Err(FsError::IsDirectory) => files.remove_directory(&me, parent, &name)?,
                    other => other?,
                }
            }
            Op::Rename(parent, name, to, to_name, mode) => {
                let (name, to_name) = (name_of(name), name_of(to_name));
                files.rename(&me, (dir(parent), &name), (dir(to), &to_name), mode)?;
            }
            Op::Write(number, offset, len) => {
                if let Some(ino) = file(number) {
                    let bytes = vec![self.stamp; len as usize];
                    files.write(&me, ino, offset.into(), &bytes, Write::default())?;
                }
            }
            Op::Cut(number, size) => {
                if let Some(ino) = file(number) {
                    let changed = Changed {
                        size: Some(size.into()),
                        ..Changed::default()
                    };
                    files.set(&me, ino, changed)?;
                }
            }
            Op::Allocate(number, offset, len, mode) => {
                if let Some(ino) = file(number) {
                    files.allocate(&me, ino, (offset.into(), len.into()), mode)?;
                }
            }
            Op::Copy(from, at, to, to_at, len) => {
                if let (Some(from), Some(to)) = (file(from), file(to))
                    && from != to
                {
                    files.copy(&me, (from, at.into()), (to, to_at.into()), len.into())?;
                }
            }
            Op::Attribute(number, name, value) => {
                if let Some(ino) = file(number) {
                    let name = [b"user.", &[b'a' + name][..]].concat();
                    match value {
                        Some(value) => files.set_attribute(
                            &me,
                            ino,
                            (&name, &[value; 9]),
                            AttributeMode::Set,
                        )?,
                        None => files.remove_attribute(&me, ino, &name)?,
                    }
                }
            }
            Op::Hold(number) => {
                if let Some(ino) = file(number) {
                    files.remember(ino);
                }
            }
            Op::Release => {
                for node in &model.held {
                    files.forget(self.ino(*node), 1)?;
                }
            }
            Op::Sync(number) => {
                if let Some(ino) = file(number) {
                    files.fsync(ino)?;
                }
            }
            Op::Commit => files.commit()?,
        }
        Ok(None)
    }
}

impl Model {
    /// Runs a request.
    pub fn run(&mut self, op: &Op, stamp: u8) -> Result<Option<u32>, FsError> {
        let model = self;
        let (dirs, all) = (model.directories(), model.files());
        let dir = |number: u8| dirs[usize::from(number) % dirs.len()];
        let file = |number: u8| pick(&all, number);
        match *op {
            Op::Make(parent, name, kind) => {
                let (parent, name) = (dir(parent), name_of(name));
                if model.entries(parent).contains_key(&name) {
                    return Err(FsError::Exists);
                }
                let body = match kind {
                    Kind::File => Body::File(Vec::new()),
                    Kind::Directory => Body::Directory(BTreeMap::new()),
                    Kind::Link => Body::Link(b"where".to_vec()),
                };
                let node = model.add(body, 1);
                model.entries(parent).insert(name, node);
                return Ok(Some(node));
            }
            Op::Link(number, parent, name) => {
                if let Some(node) = file(number) {
                    let (parent, name) = (dir(parent), name_of(name));
                    if model.entries(parent).contains_key(&name) {
                        return Err(FsError::Exists);
                    }
                    model.nodes.get_mut(&node).expect("a node").links += 1;
                    model.entries(parent).insert(name, node);
                }
            }
            Op::Remove(parent, name) => {
                let (parent, name) = (dir(parent), name_of(name));
                let node = *model.entries(parent).get(&name).ok_or(FsError::NotFound)?;
                if matches!(&model.nodes[&node].body, Body::Directory(all) if !all.is_empty()) {
                    return Err(FsError::NotEmpty);
                }
                model.entries(parent).remove(&name);
                model.unlink(node);
            }
            Op::Rename(parent, name, to, to_name, mode) => {
                let from = (dir(parent), name_of(name));
                return rename(model, from, (dir(to), name_of(to_name)), mode);
            }
            Op::Write(number, offset, len) => {
                if let Some(node) = file(number) {
                    let (from, to) = (offset as usize, (offset + len) as usize);
                    let bytes = model.bytes(node);
                    bytes.resize(bytes.len().max(to), 0);
                    bytes[from..to].fill(stamp);
                }
            }
            Op::Cut(number, size) => {
                if let Some(node) = file(number) {
                    model.bytes(node).resize(size as usize, 0);
                }
            }
            Op::Allocate(number, offset, len, mode) => {
                if let Some(node) = file(number) {
                    let (from, to) = (offset as usize, (offset + len) as usize);
                    let bytes = model.bytes(node);
                    if mode & KEEP == 0 {
                        bytes.resize(bytes.len().max(to), 0);
                    }
                    if mode & !KEEP != 0 {
                        let (from, to) = (from.min(bytes.len()), to.min(bytes.len()));
                        bytes[from..to].fill(0);
                    }
                }
            }
            Op::Copy(from, at, to, to_at, len) => {
                if let (Some(from), Some(to)) = (file(from), file(to))
                    && from != to
                {
                    let source = model.bytes(from).clone();
                    let end = source.len().min((at + len) as usize);
                    let part = source.get(at as usize..end).unwrap_or_default();
                    if !part.is_empty() {
                        let (start, end) = (to_at as usize, to_at as usize + part.len());
                        let bytes = model.bytes(to);
                        bytes.resize(bytes.len().max(end), 0);
                        bytes[start..end].copy_from_slice(part);
                    }
                }
            }
            Op::Attribute(number, name, value) => {
                if let Some(node) = file(number) {
                    let name = [b"user.", &[b'a' + name][..]].concat();
                    let attributes = &mut model.nodes.get_mut(&node).expect("a node").attributes;
                    match value {
                        Some(value) => drop(attributes.insert(name, vec![value; 9])),
                        None => drop(attributes.remove(&name).ok_or(FsError::NoAttribute)?),
                    }
                }
            }
            Op::Hold(number) => {
                if let Some(node) = file(number) {
                    model.held.push(node);
                }
            }
            Op::Release => {
                for node in std::mem::take(&mut model.held) {
                    if model.nodes.get(&node).is_some_and(|node| node.links == 0) {
                        model.nodes.remove(&node);
                    }
                }
            }
            Op::Sync(_) | Op::Commit => {}
        }
        Ok(None)
    }
}

fn rename(
    model: &mut Model,
    (parent, name): (u32, Vec<u8>),
    (to, to_name): (u32, Vec<u8>),
    mode: RenameMode,
) -> Result<Option<u32>, FsError> {
    let moved = *model.entries(parent).get(&name).ok_or(FsError::NotFound)?;
    let other = model.entries(to).get(&to_name).copied();
    match (mode, other) {
        (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
        (RenameMode::Exchange, None) => return Err(FsError::NotFound),
        _ => {}
    }
    let is_directory =
        |model: &Model, node: u32| matches!(model.nodes[&node].body, Body::Directory(_));
    if is_directory(model, moved) && model.is_within(to, moved) {
        return Err(FsError::Invalid);
    }
    let Some(other) = other else {
        model.entries(parent).remove(&name);
        model.entries(to).insert(to_name, moved);
        return Ok(None);
    };
    if other == moved {
        return Ok(None);
    }
    if mode == RenameMode::Exchange {
        if is_directory(model, other) && model.is_within(parent, other) {
            return Err(FsError::Invalid);
        }
        model.entries(parent).insert(name, other);
        model.entries(to).insert(to_name, moved);
        return Ok(None);
    }
    match (is_directory(model, moved), is_directory(model, other)) {
        (true, false) => return Err(FsError::NotDirectory),
        (false, true) => return Err(FsError::IsDirectory),
        (true, true) if !model.entries(other).is_empty() => return Err(FsError::NotEmpty),
        _ => {}
    }
    model.entries(parent).remove(&name);
    model.entries(to).insert(to_name, moved);
    model.unlink(other);
    Ok(None)
}

/// What judges the bytes of a file: its number, what is there, and what is expected.
type BytesCheck<'a> = &'a mut dyn FnMut(u32, &[u8], &[u8]) -> Result<(), String>;

/// Compares names, kinds, links, sizes and attributes; hands every file to `bytes` to compare.
pub fn compare(files: &Files, model: &Model, bytes: BytesCheck<'_>) -> Result<(), String> {
    let mut inos: BTreeMap<u32, Ino> = BTreeMap::new();
    let mut open = vec![(TOP, ROOT)];
    while let Some((node, ino)) = open.pop() {
        let say = |what: &str| format!("node {node}, inode {ino}: {what}");
        let inode = files.inode(ino).map_err(|error| say(&error.to_string()))?;
        if *inos.entry(node).or_insert(ino) != ino {
            return Err(say("one file became two"));
        }
        let expected = &model.nodes[&node];
        let named = |error: FsError| say(&error.to_string());
        let names = files.attributes(ino).map_err(named)?;
        let kept: Vec<_> = expected
            .attributes
            .keys()
            .map(|name| name.clone().into())
            .collect();
        if names != kept {
            return Err(say("other attributes"));
        }
        for (name, value) in &expected.attributes {
            if *files.attribute(ino, name).map_err(named)? != value[..] {
                return Err(say("another attribute's value"));
            }
        }
        match &expected.body {
            Body::Directory(entries) => {
                if !inode.is_directory() || inode.size != entries.len() as u64 {
                    return Err(say("no directory of that size"));
                }
                let listed = files.list(ino, None, usize::MAX).map_err(named)?;
                let names: Vec<_> = listed.iter().map(|entry| entry.name.to_vec()).collect();
                if names != entries.keys().cloned().collect::<Vec<_>>() {
                    return Err(say("other names"));
                }
                let is_directory =
                    |child: &&u32| matches!(model.nodes[child].body, Body::Directory(_));
                let inner = entries.values().filter(is_directory).count() as u32;
                if inode.nlink != 2 + inner {
                    return Err(say("another number of links of a directory"));
                }
                for entry in listed {
                    open.push((entries[&*entry.name], entry.ino));
                }
            }
            Body::Link(target) => {
                if *files.target(ino).map_err(named)? != target[..] {
                    return Err(say("another target"));
                }
            }
            Body::File(expected_bytes) => {
                if !inode.is_file() || inode.size != expected_bytes.len() as u64 {
                    return Err(say("no file of that size"));
                }
                if inode.nlink != expected.links {
                    return Err(say("another number of links"));
                }
                let mut found = vec![0xAA; expected_bytes.len() + 1];
                let len = files.read(ino, 0, &mut found).map_err(named)?;
                if len != expected_bytes.len() {
                    return Err(say("a short read"));
                }
                bytes(node, expected_bytes, &found[..len])?;
            }
        }
    }
    Ok(())
}

/// As the model says, byte by byte.
pub fn same_bytes(node: u32, expected: &[u8], found: &[u8]) -> Result<(), String> {
    let differs = expected.iter().zip(found).position(|(a, b)| a != b);
    match differs {
        Some(at) => Err(format!(
            "node {node}: byte {at} is {} and not {}",
            found[at], expected[at]
        )),
        None => Ok(()),
    }
}

impl Model {
    /// Bytes of a file, if there is one.
    pub fn content(&self, node: u32) -> Option<&[u8]> {
        match &self.nodes.get(&node)?.body {
            Body::File(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// What nobody holds after a crash.
    pub fn forget_held(&mut self) {
        self.held.clear();
    }
}

impl Pair {
    /// What a request is going to leave in the model.
    pub fn foresee(&self, op: &Op) -> Model {
        let mut model = self.model.clone();
        // What it answers is compared when it has run.
        match model.run(op, self.stamp % 200 + 1) {
            Ok(_) | Err(_) => model,
        }
    }
}

/// A file in the root, with these bytes.
pub fn new_file(files: &Files, name: &[u8], bytes: &[u8]) -> Result<Ino, FsError> {
    let new = NewInode {
        mode: libc::S_IFREG | 0o644,
        rdev: 0,
        target: None,
    };
    let (ino, _) = files.make(&caller(), ROOT, name, new)?;
    files.write(&caller(), ino, 0, bytes, Write::default())?;
    Ok(ino)
}

/// All bytes of a file.
pub fn content(files: &Files, ino: Ino) -> Result<Vec<u8>, FsError> {
    let mut bytes = vec![0; files.inode(ino)?.size as usize];
    let len = files.read(ino, 0, &mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

/// Blocks of all files that have a name.
pub fn blocks_of_names(files: &Files) -> Result<u64, FsError> {
    let mut blocks = BTreeMap::new();
    let mut open = vec![ROOT];
    while let Some(directory) = open.pop() {
        for entry in files.list(directory, None, usize::MAX)? {
            blocks.insert(entry.ino, entry.inode.blocks);
            if entry.inode.is_directory() {
                open.push(entry.ino);
            }
        }
    }
    Ok(blocks.values().sum())
}
