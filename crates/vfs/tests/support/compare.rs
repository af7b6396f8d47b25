//! How a file system is compared with what it should hold.

use std::collections::BTreeMap;

use cenote_vfs::{Files, FsError, Ino, ROOT};

use super::model::{Body, Model, TOP};

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
