//! The audit log: who was let in with which limits, and every change of them, in a file that is only appended to.
//!
//! A line is an event ([`crate::control::event`]) with `prev`, the SHA-256 of the line before it, without its newline: a line
//! that was taken out or changed shows ([`verify`]). The file is rotated by size, and the chain goes on over rotations and
//! restarts. It is written by a thread of its own, and is on the disk before the next lines are taken; who logs waits for
//! nothing. What cannot be written is counted and said, and enforcement goes on.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tracing::warn;

use super::rotate::Rotating;
use crate::control::event::Event;

/// Most events that wait to be written.
const QUEUE: usize = 4096;

/// The longest line that is looked for at the end of a file.
const LONGEST: u64 = 1 << 20;

/// What the first line of all says of the one before it.
const NOTHING: &str = "";

enum Word {
    Event(Arc<Event>),
    /// Everything before it is written.
    End(SyncSender<()>),
}

/// Where events are handed in.
#[derive(Debug)]
pub struct Audit {
    tell: SyncSender<Word>,
    fault: Arc<Mutex<Option<String>>>,
}

impl Audit {
    /// Opens the file and starts the thread that writes it.
    ///
    /// # Errors
    /// The file cannot be opened or read, or there can be no thread.
    pub fn start(path: &Path, most: u64, keep: u32) -> io::Result<Self> {
        let mut file = Rotating::open(path, most, keep)?;
        let mut last = last_line(path)?;
        if last.is_empty() {
            // The daemon ended between putting a file aside and its first line.
            let aside = format!("{}.1", path.display());
            last = last_line(Path::new(&aside)).unwrap_or_default();
        } else if !ends(path)? {
            file.line(b"\n")?;
        }
        let fault = Arc::new(Mutex::new(None));
        let (tell, told) = sync_channel(QUEUE);
        let mut writer = Writer { file, last, fault: fault.clone() };
        thread::Builder::new().name("vgpud-audit".into()).spawn(move || writer.serve(&told))?;
        Ok(Self { tell, fault })
    }

    /// Hands an event in; never waits.
    pub fn write(&self, event: &Arc<Event>) {
        if let Err(TrySendError::Full(_)) = self.tell.try_send(Word::Event(event.clone())) {
            set(&self.fault, Some("events came faster than they could be written; some are missing".into()));
        }
    }

    /// Why it is not written as it should be.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until everything is written, for a second at most.
    pub fn finish(&self) {
        let (done, seen) = sync_channel(1);
        if self.tell.try_send(Word::End(done)).is_ok() {
            let _ = seen.recv_timeout(Duration::from_secs(1));
        }
    }
}

fn set(fault: &Mutex<Option<String>>, words: Option<String>) -> bool {
    let mut fault = fault.lock().unwrap_or_else(PoisonError::into_inner);
    let news = *fault != words;
    *fault = words;
    news
}

struct Writer {
    file: Rotating,
    /// The hash of the last line.
    last: String,
    fault: Arc<Mutex<Option<String>>>,
}

impl Writer {
    fn serve(&mut self, told: &Receiver<Word>) {
        while let Ok(first) = told.recv() {
            let mut ends = Vec::new();
            let mut done = Ok(());
            // What came meanwhile goes to the disk together.
            for word in std::iter::once(first).chain(told.try_iter().take(QUEUE)) {
                match word {
                    // One that cannot be written takes no other with it.
                    Word::Event(event) => done = done.and(self.append(&event)),
                    Word::End(end) => ends.push(end),
                }
            }
            let done = done.and_then(|()| self.file.sync());
            let words = done.err().map(|why| why.to_string());
            if set(&self.fault, words.clone()) {
                match words {
                    // No kind: it would come here.
                    Some(why) => warn!(%why, "the audit log cannot be written; limits are kept all the same"),
                    None => {
                        warn!(file = %self.file.path().display(), "the audit log is written again; lines are missing")
                    }
                }
            }
            for end in ends {
                let _ = end.try_send(());
            }
        }
    }

    fn append(&mut self, event: &Event) -> io::Result<()> {
        let line = chained(event, &self.last)?;
        let hash = hash(&line);
        let mut bytes = line;
        bytes.push(b'\n');
        match self.file.line(&bytes) {
            Ok(()) => {
                self.last = hash;
                Ok(())
            }
            Err(why) => {
                // Part of it may be there: the next line must not be joined to it.
                let _ = self.file.line(b"\n");
                if let Ok(last) = last_line(self.file.path()) {
                    self.last = last;
                }
                Err(why)
            }
        }
    }
}

fn chained(event: &Event, prev: &str) -> io::Result<Vec<u8>> {
    let mut value = serde_json::to_value(event)?;
    if let Some(object) = value.as_object_mut() {
        object.insert("prev".into(), Value::String(prev.to_owned()));
    }
    Ok(serde_json::to_vec(&value)?)
}

fn hash(line: &[u8]) -> String {
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(line) {
        // Writing into text does not fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// The hash of the last line of a file that has anything in it; a line that was cut off is one.
fn last_line(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LONGEST)))?;
    let mut end = Vec::new();
    file.read_to_end(&mut end)?;
    let last = end.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty());
    Ok(last.map_or(NOTHING.to_owned(), hash))
}

/// Does its last line have an end?
fn ends(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// What is wrong with audit logs.
#[derive(Debug, PartialEq, Eq)]
pub struct Break {
    /// Which of the files, from 0.
    pub file: usize,
    /// Which line of it, from 1.
    pub line: usize,
    /// In words.
    pub words: String,
}

/// Checks the chain over files, the oldest first: `Ok` is how many lines there are. The first line of all is believed: what
/// was before it is not there to be compared.
///
/// # Errors
/// The first line that does not fit.
pub fn verify(files: &[Vec<u8>]) -> Result<usize, Break> {
    #[derive(Deserialize)]
    struct Link {
        prev: String,
    }
    let (mut before, mut count) = (None::<String>, 0);
    for (file, bytes) in files.iter().enumerate() {
        let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        for (at, text) in lines.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
            let wrong = |words: &str| Break { file, line: at + 1, words: words.to_owned() };
            match serde_json::from_slice::<Link>(text) {
                Ok(link) => {
                    if before.as_ref().is_some_and(|before| *before != link.prev) {
                        return Err(wrong("the line before it was changed, or lines between were taken out"));
                    }
                }
                // The daemon was killed while it wrote, or the disk was full; the next line says whether this one is as it was.
                Err(_) if before.is_some() || count == 0 => {}
                Err(_) => return Err(wrong("this is no line of an audit log")),
            }
            before = Some(hash(text));
            count += 1;
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(words: &str) -> Arc<Event> {
        Arc::new(Event { kind: "tenant.changed".into(), words: words.into(), ..Event::default() })
    }

    fn written(path: &Path, most: u64, count: usize) {
        let audit = Audit::start(path, most, 9).unwrap();
        for at in 0..count {
            audit.write(&event(&format!("number {at}")));
        }
        audit.finish();
        assert_eq!(audit.fault(), None);
    }

    #[test]
    fn the_chain_goes_on_over_restarts_and_rotations_and_shows_what_was_changed_or_taken_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        written(&path, 2000, 3);
        written(&path, 2000, 20);
        let mut files = Vec::new();
        for number in (1..9).rev() {
            files.extend(std::fs::read(dir.path().join(format!("audit.log.{number}"))));
        }
        files.push(std::fs::read(&path).unwrap());
        assert!(files.len() > 1, "it was rotated");
        assert_eq!(verify(&files), Ok(23));

        let mut changed = files.clone();
        let text = String::from_utf8(changed[0].clone()).unwrap().replace("number 1\"", "number 7\"");
        changed[0] = text.into_bytes();
        let found = verify(&changed).unwrap_err();
        assert_eq!((found.file, found.line), (0, 3), "the line behind it does not fit: {found:?}");

        let mut fewer = files.clone();
        fewer.remove(1);
        assert!(files.len() < 3 || verify(&fewer).is_err(), "a file in between is missing");
        let first: Vec<u8> = files[0].split_inclusive(|byte| *byte == b'\n').skip(1).flatten().copied().collect();
        assert_eq!(verify(&[vec![first], files[1..].to_vec()].concat()), Ok(22), "the oldest may be gone");
    }

    #[test]
    fn a_line_that_was_cut_off_is_seen_as_that_and_the_chain_goes_on_behind_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        written(&path, 1 << 20, 2);
        let mut text = std::fs::read(&path).unwrap();
        text.extend(br#"{"seq":3,"wor"#);
        std::fs::write(&path, &text).unwrap();
        written(&path, 1 << 20, 2);
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(verify(std::slice::from_ref(&bytes)), Ok(5), "{}", String::from_utf8_lossy(&bytes));
    }
}
