//! The one owner of a volume, and what it is asked: a JSON line each way on the volume's socket.
//!
//! An owner may end at any moment, also between a question and its answer. Whoever asks is told that,
//! and that a change may have been noted before.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cenote_block::unix::connect_within;
use cenote_cli::failure::Failure;
use serde::{Deserialize, Serialize};

use super::{OWNER_LIMIT, Question, file};
use crate::folder::Folder;

/// Longest request line in bytes; far above what any request needs.
const REQUEST_BYTES_MAX: u64 = 4096;
/// How long a question may take to arrive: whoever connects asks at once, and others wait for it.
const QUESTION_LIMIT: Duration = Duration::from_secs(1);
/// Longest answer in bytes: a status lists every extent of a volume.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// What it says.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Ok(serde_json::Value),
    Error(String),
}

/// Asks the owner of the volume `name` at its socket, which may take `limit` to read or to answer.
///
/// # Errors
/// There is no owner, it ends or is silent meanwhile, or it refuses.
pub(super) fn ask(
    socket: &Path,
    name: &str,
    question: &Question,
    limit: Duration,
) -> Result<serde_json::Value> {
    let connected = connect_within(socket, limit);
    let mut stream = connected.map_err(|error| unheard(name, question, &error))?;
    let text =
        exchange(&mut stream, question, limit).map_err(|error| unheard(name, question, &error))?;
    match serde_json::from_str(&text)
        .with_context(|| format!("volume {name}: cannot parse the owner's answer"))?
    {
        Answer::Ok(value) => Ok(value),
        Answer::Error(why) => bail!("volume {name}: {why}"),
    }
}

/// Sends the question; the line that comes back, `UnexpectedEof` without a whole one.
fn exchange(
    stream: &mut UnixStream,
    question: &Question,
    limit: Duration,
) -> std::io::Result<String> {
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    let mut line = serde_json::to_string(question)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut text = String::new();
    BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut text)?;
    if !text.ends_with('\n') {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(text)
}

/// Which command shows whether the owner did what it was asked.
fn seen_by(name: &str, question: &Question) -> String {
    match question {
        Question::Resize { .. } => "cenote volume list shows the size that it has".to_owned(),
        _ => format!("cenote volume status {name} shows whether it did"),
    }
}

/// Says what it means that no answer came.
fn unheard(name: &str, question: &Question, error: &std::io::Error) -> Failure {
    let is_asked_to_change = !matches!(question, Question::Status);
    let again = match is_asked_to_change {
        true => "and ask again then",
        false => "then its status is known",
    };
    let serve =
        format!("serve it again (cenote nbd --volume {name}, or cenote volume attach), {again}");
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            Failure::new(format!("volume {name}: its server has ended"), serve)
        }
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            let what = match is_asked_to_change {
                true => "was executing the request, which may or may not have completed",
                false => "was answering",
            };
            Failure::new(
                format!("volume {name}: its server ended while it {what}"),
                serve,
            )
        }
        // It has the question, and reads it when it goes on.
        ErrorKind::WouldBlock | ErrorKind::TimedOut if is_asked_to_change => Failure::new(
            format!(
                "volume {name}: its server does not answer, and may still carry the request out \
                 when it goes on"
            ),
            format!(
                "{}; a process that was stopped goes on by kill -CONT",
                seen_by(name, question)
            ),
        ),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Failure::new(
            format!("volume {name}: its server does not answer"),
            format!("try again; if that fails, stop the server and {serve}"),
        ),
        _ => Failure::new(format!("volume {name}: ask its owner: {error}"), serve),
    }
}

/// The right to a volume; given back when dropped.
#[derive(Debug)]
pub struct Owner {
    pub(super) folder: Folder,
    pub(super) name: String,
    pub(super) _lock: File,
}

impl Owner {
    /// The volume's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Removes files of the volume; those that are not there are no error.
    pub(super) fn remove(&self, kinds: &[&str]) -> Result<()> {
        for kind in kinds {
            self.folder.remove(&file(&self.name, kind))?;
        }
        Ok(())
    }

    /// Answers questions on a thread of its own until the process ends.
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub fn answer(
        &self,
        mut reply: impl FnMut(Question) -> Result<serde_json::Value> + Send + 'static,
    ) -> Result<()> {
        let socket = file(&self.name, "sock");
        // We hold the lock: a socket that is there belongs to an owner that is gone.
        self.folder.remove(&socket)?;
        let listener = UnixListener::bind(self.folder.socket(&socket))
            .with_context(|| self.folder.join(&socket).display().to_string())?;
        let name = self.name.clone();
        let serve = move || {
            for stream in listener.incoming() {
                let done = stream
                    .map_err(anyhow::Error::from)
                    .and_then(|stream| converse(&stream, &mut reply));
                if let Err(error) = done {
                    tracing::debug!(
                        volume = name,
                        error = cenote_cli::failure::chain(&error),
                        "question dropped"
                    );
                }
            }
        };
        std::thread::Builder::new()
            .name("volume-owner".to_owned())
            .spawn(serve)
            .context("start the thread that answers questions")?;
        Ok(())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Err(error) = self.folder.remove(&file(&self.name, "sock")) {
            tracing::warn!(%error, "clear socket");
        }
    }
}

/// One line in, one line out.
fn converse(
    stream: &UnixStream,
    reply: &mut impl FnMut(Question) -> Result<serde_json::Value>,
) -> Result<()> {
    stream.set_read_timeout(Some(QUESTION_LIMIT))?;
    stream.set_write_timeout(Some(OWNER_LIMIT))?;
    let mut line = String::new();
    BufReader::new(Read::take(stream, REQUEST_BYTES_MAX)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(question) => {
            reply(question).map_or_else(|e| Answer::Error(format!("{e:#}")), Answer::Ok)
        }
        Err(error) => Answer::Error(format!("invalid request: {error}")),
    };
    let mut text = serde_json::to_string(&answer)?;
    text.push('\n');
    let mut stream = stream;
    stream.write_all(text.as_bytes())?;
    Ok(())
}
