//! Where a catalogue's machines come from, as its file says.

use std::time::Duration;

use serde::Deserialize;

/// Longest that a command may be given: what clouds take for a machine, several times.
const LIMIT_S_MAX: u64 = 3600;
/// What it is given where the file does not say.
const LIMIT_S_DEFAULT: u64 = 300;
/// Most words of a command, and most bytes of them.
const WORDS_MAX: usize = 64;
const COMMAND_BYTES_MAX: usize = 4096;

/// A provider of the catalogue.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Source {
    /// What machines call it.
    pub name: String,
    /// What it is.
    pub kind: SourceKind,
}

/// How machines are had.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SourceKind {
    /// Hosts of the cluster that run already.
    Running,
    /// Host processes, started on this machine.
    Processes,
    /// A command gets a machine, and another releases it.
    Command {
        /// The first, with its arguments.
        acquire: Vec<String>,
        /// The second.
        release: Vec<String>,
        /// How long each may take.
        limit: Duration,
    },
}

/// As the file has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileSource {
    pub name: String,
    kind: FileKind,
    #[serde(default)]
    acquire: Vec<String>,
    #[serde(default)]
    release: Vec<String>,
    limit_s: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "lowercase")]
enum FileKind {
    Running,
    Processes,
    Command,
}

impl FileSource {
    /// # Errors
    /// The field that is wrong.
    pub fn checked(self) -> Result<Source, &'static str> {
        let is_command = |words: &[String]| {
            let bytes: usize = words.iter().map(String::len).sum();
            let is_word = |word: &String| !word.contains('\0');
            (1..=WORDS_MAX).contains(&words.len())
                && !words[0].is_empty()
                && bytes <= COMMAND_BYTES_MAX
                && words.iter().all(is_word)
        };
        let says_more =
            !self.acquire.is_empty() || !self.release.is_empty() || self.limit_s.is_some();
        let kind = match self.kind {
            FileKind::Running | FileKind::Processes if says_more => return Err("kind"),
            FileKind::Running => SourceKind::Running,
            FileKind::Processes => SourceKind::Processes,
            FileKind::Command => {
                let limit_s = self.limit_s.unwrap_or(LIMIT_S_DEFAULT);
                if !is_command(&self.acquire) {
                    return Err("acquire");
                }
                if !is_command(&self.release) {
                    return Err("release");
                }
                if !(1..=LIMIT_S_MAX).contains(&limit_s) {
                    return Err("limit_s");
                }
                SourceKind::Command {
                    acquire: self.acquire,
                    release: self.release,
                    limit: Duration::from_secs(limit_s),
                }
            }
        };
        let name = self.name;
        Ok(Source { name, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Catalogue;
    use super::*;

    const TEXT: &str = "\
[[provider]]
name = \"cloud\"
kind = \"command\"
acquire = [\"get-vm\", \"west\"]
release = [\"drop-vm\"]
limit_s = 90

[[provider]]
name = \"hosts\"
kind = \"running\"

[[provider]]
name = \"here\"
kind = \"processes\"

[[machine]]
name = \"small\"
provider = \"cloud\"
cores = 2
memory_mib = 4096
price_per_hour = 0.1
count = 3
";

    #[test]
    fn providers_are_read_with_their_kinds() {
        let catalogue: Catalogue = TEXT.parse().unwrap();
        let [cloud, hosts, here] = catalogue.sources() else {
            panic!("{catalogue:?}");
        };
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        assert_eq!(
            cloud.kind,
            SourceKind::Command {
                acquire: words(&["get-vm", "west"]),
                release: words(&["drop-vm"]),
                limit: Duration::from_secs(90),
            }
        );
        assert_eq!(hosts.kind, SourceKind::Running);
        assert_eq!(here.kind, SourceKind::Processes);
        assert_eq!(catalogue.source("here"), Some(here));
        assert_eq!(catalogue.source("nobody"), None);
    }

    #[test]
    fn each_mistake_of_a_provider_is_named() {
        for (old, new, said) in [
            ("limit_s = 90", "limit_s = 0", "provider cloud: limit_s"),
            ("limit_s = 90", "limit_s = 99999", "provider cloud: limit_s"),
            (
                "acquire = [\"get-vm\", \"west\"]",
                "",
                "provider cloud: acquire",
            ),
            (
                "release = [\"drop-vm\"]",
                "release = [\"\"]",
                "provider cloud: release",
            ),
            (
                "kind = \"running\"",
                "kind = \"running\"\nlimit_s = 4",
                "provider hosts: kind",
            ),
            (
                "kind = \"running\"",
                "kind = \"walking\"",
                "unknown variant",
            ),
            (
                "kind = \"running\"",
                "kind = \"running\"\ncolour = 1",
                "unknown field",
            ),
            (
                "name = \"hosts\"",
                "name = \"cloud\"",
                "provider cloud: name",
            ),
            (
                "name = \"hosts\"",
                "name = \"\"",
                "1 to 128 visible characters",
            ),
            (
                "provider = \"cloud\"",
                "provider = \"clout\"",
                "machine small: provider is out of range",
            ),
        ] {
            let read = TEXT.replacen(old, new, 1).parse::<Catalogue>();
            let error = read.unwrap_err().to_string();
            assert!(error.contains(said), "{new}: {error}");
        }
    }
}
