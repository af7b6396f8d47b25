//! The file system beside its model.

use cenote_vfs::{AttributeMode, Changed, Files, FsError, Ino, NewInode, Write};

use super::caller;
use super::model::Model;
use super::ops::{Kind, Op, name_of, pick};

/// Both, which run the same requests.
pub struct Pair {
    pub files: Files,
    pub model: Model,
    /// Fills what is written: a different byte for each request.
    pub stamp: u8,
}

impl Pair {
    pub fn new(files: Files) -> Self {
        Self {
            files,
            model: Model::new(),
            stamp: 0,
        }
    }

    /// Runs a request on both, and compares what they answer. False when the medium failed under
    /// the real one: the model is as before then.
    pub fn run(&mut self, op: &Op) -> bool {
        self.stamp = self.stamp % 200 + 1;
        let real = self.run_real(op);
        match real {
            // Where the model has room; what was there stays.
            Err(FsError::NoSpace) => return true,
            Err(FsError::Io) => return false,
            _ => {}
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
        true
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
                let inos = model.held.iter().map(|node| self.ino(*node));
                // Each, whatever becomes of the others.
                let forgotten: Vec<_> = inos.map(|ino| files.forget(ino, 1)).collect();
                forgotten.into_iter().collect::<Result<(), _>>()?;
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
