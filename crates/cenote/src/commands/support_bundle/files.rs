//! Which files go into a bundle: logs, and configuration. Only those named here are opened; keys,
//! users, journals, pages and sockets are not among them.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::part::{Content, Part};
use super::secrets::Redactor;
use crate::folder::Folder;
use crate::place::ClusterDir;

/// Folders in a cluster's folder with one for each process, which has a log.
const PROCESSES: [&str; 4] = ["hosts", "caches", "servers", "nodes"];
/// Those with a log of their own.
const SINGLE: [&str; 2] = ["etcd", "swap"];
/// Configuration of this machine.
const SYSTEM: [&str; 2] = ["/etc/cenote/host.toml", "/etc/cenote/kv.env"];
/// Most bytes of a configuration file.
const CONFIGURATION_BYTES_MAX: u64 = 256 << 10;
/// Most files in a bundle. A cluster folder of more is cut off, and that is said.
const FILES_MAX: usize = 512;
/// Most bytes of a file with a secret that is learned.
const SECRET_BYTES_MAX: u64 = 64 << 10;

/// A file that goes into a bundle, and how much of its end.
#[derive(Debug)]
pub struct Chosen {
    name: String,
    folder: Option<Folder>,
    path: PathBuf,
    last_bytes: u64,
    /// Why nothing of its folder goes in.
    refused: Option<String>,
}

/// Logs and configuration of a cluster's folder, or of the machine alone.
///
/// # Errors
/// Folders of it cannot be listed, or others may change them.
pub fn chosen(dir: Option<&ClusterDir>, log_bytes: u64) -> Result<Vec<Chosen>> {
    let mut all: Vec<Chosen> = SYSTEM
        .iter()
        .filter(|path| Path::new(path).exists())
        .map(|path| Chosen {
            name: format!("config{path}"),
            folder: None,
            path: path.into(),
            last_bytes: CONFIGURATION_BYTES_MAX,
            refused: None,
        })
        .collect();
    let Some(dir) = dir else {
        return Ok(all);
    };
    let root = dir.folder();
    let mut add = |folder: &Folder, at: &str, file: &str, last_bytes: u64| {
        if folder.has(file)? {
            let kind = if file == "log" { "logs" } else { "config" };
            all.push(Chosen {
                name: format!("{kind}/{at}{file}"),
                folder: Some(folder.clone()),
                path: file.into(),
                last_bytes,
                refused: None,
            });
        }
        anyhow::Ok(())
    };
    for name in root.names()? {
        if name.ends_with(".toml") || name == "kv.json" {
            add(root, "", &name, CONFIGURATION_BYTES_MAX)?;
        }
    }
    let mut refused = Vec::new();
    for kind in PROCESSES {
        for (name, folder) in root.each_sub(kind)? {
            let at = format!("{kind}/{name}/");
            match folder {
                Ok(folder) => {
                    add(&folder, &at, "log", log_bytes)?;
                    add(&folder, &at, "cache.toml", CONFIGURATION_BYTES_MAX)?;
                }
                Err(error) => refused.push(Chosen {
                    name: at,
                    folder: None,
                    path: PathBuf::new(),
                    last_bytes: 0,
                    refused: Some(error.to_string()),
                }),
            }
        }
    }
    for kind in SINGLE {
        if let Some(folder) = root.sub(kind)? {
            add(&folder, &format!("{kind}/"), "log", log_bytes)?;
        }
    }
    if let Some(volumes) = root.sub("volumes")? {
        for name in volumes.names()? {
            if name.ends_with(".toml") {
                add(&volumes, "volumes/", &name, CONFIGURATION_BYTES_MAX)?;
            }
        }
    }
    all.extend(refused);
    if all.len() > FILES_MAX {
        eprintln!(
            "warning: only the first {FILES_MAX} of {} files are included",
            all.len()
        );
        all.truncate(FILES_MAX);
    }
    Ok(all)
}

impl Chosen {
    /// Its last bytes.
    pub fn read(&self) -> Part {
        Part::made(&self.name, || {
            if let Some(why) = &self.refused {
                anyhow::bail!("{why}");
            }
            let bytes = self.tail()?;
            Ok(Content::Text(String::from_utf8_lossy(&bytes).into_owned()))
        })
    }

    fn tail(&self) -> Result<Vec<u8>> {
        let mut file = match &self.folder {
            Some(folder) => {
                let name = self.path.to_str().context("a name in UTF-8")?;
                folder.existing_file(name)?.context("it no longer exists")?
            }
            None => File::open(&self.path)?,
        };
        let length = file.metadata()?.len();
        let skipped = length.saturating_sub(self.last_bytes);
        file.seek(SeekFrom::Start(skipped))?;
        let mut bytes = Vec::new();
        file.take(self.last_bytes).read_to_end(&mut bytes)?;
        if skipped > 0 {
            // The half line that the cut left, which may be the end of a secret, goes.
            let whole = bytes.iter().position(|byte| *byte == b'\n');
            let mut cut = format!("[{skipped} bytes before]\n").into_bytes();
            cut.extend_from_slice(&bytes[whole.map_or(bytes.len(), |at| at + 1)..]);
            return Ok(cut);
        }
        Ok(bytes)
    }
}

/// Learns keys and passwords of a cluster's folder, and of the environment.
///
/// # Errors
/// Folders of it cannot be listed.
pub fn learn(redactor: &mut Redactor, dir: Option<&ClusterDir>) -> Result<()> {
    for (name, value) in std::env::vars_os() {
        let name = name.to_string_lossy().to_lowercase();
        let is_secret = [
            "password",
            "secret",
            "token",
            "credential",
            "_key",
            "otlp_headers",
            "traces_headers",
        ]
        .iter()
        .any(|word| name.contains(word));
        if is_secret {
            redactor.learn(value.to_string_lossy().as_bytes());
        }
    }
    let Some(dir) = dir else {
        return Ok(());
    };
    let root = dir.folder();
    let mut folders = vec![root.clone()];
    for kind in PROCESSES {
        // Nothing goes in of a folder that cannot be used.
        let each = root.each_sub(kind)?.into_iter();
        folders.extend(each.filter_map(|(_, folder)| folder.ok()));
    }
    for kind in SINGLE.into_iter().chain(["volumes"]) {
        folders.extend(root.sub(kind)?);
    }
    for folder in folders {
        for name in folder.names()? {
            let stem = name.split('.').next().unwrap_or_default();
            let is_named = ["password", "passwords", "users", "token"].contains(&stem);
            let is_text = !name.contains('.') || name.ends_with(".txt");
            let is_secret = name.ends_with(".key") || name.ends_with(".pem") || is_named && is_text;
            if !is_secret {
                continue;
            }
            // What cannot be read is in nothing that we wrote either.
            let Ok(Some(file)) = folder.existing_file(&name) else {
                continue;
            };
            let mut bytes = Vec::new();
            if file.take(SECRET_BYTES_MAX).read_to_end(&mut bytes).is_ok() {
                redactor.learn(&bytes);
            }
        }
    }
    Ok(())
}

/// Learns what configuration among `parts` has for names that say that they are secret: logs may have it
/// without them.
pub fn learn_configured(redactor: &mut Redactor, parts: &[Part]) {
    for part in parts {
        if let Ok(Content::Text(text)) = &part.content
            && part.name.starts_with("config")
        {
            redactor.learn_named(text);
        }
    }
}
