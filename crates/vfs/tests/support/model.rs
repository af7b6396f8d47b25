//! What a file system should hold, and what a request does to that.

use std::collections::{BTreeMap, BTreeSet};

use cenote_vfs::{FsError, Ino, ROOT, RenameMode};

use super::ops::{KEEP, Kind, Op, name_of, pick};

/// What a file system should hold.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub nodes: BTreeMap<u32, Node>,
    next: u32,
    /// Which inode a node is.
    pub inos: BTreeMap<u32, Ino>,
    pub held: Vec<u32>,
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

/// The root's node.
pub const TOP: u32 = 0;

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
    pub fn directories(&self) -> Vec<u32> {
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
