//! The audit log: who joined with which limits, and every change of limits, in an append-only file.
//!
//! A line is an event ([`vgpu_control::event`]) with two more fields. `prev` is the hash of the line before it.
//! `hash`, at the end, is the SHA-256 of everything in the line before that field. So a line that was changed,
//! removed or cut is detected ([`vgpu_accounting::audit_chain`]).
//!
//! The hash of the last line is the head, which the daemon serves ([`AuditLog::last_hash`]). Only a head kept
//! elsewhere shows that whole lines are missing at the end. The file is rotated by size, and the chain continues over
//! rotations and restarts.
//!
//! A thread of its own writes the file, and flushes it to the disk before it takes more lines. Logging waits for
//! nothing. Lines that cannot be written are reported as a fault, and enforcement continues.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::warn;

use super::rotate::RotatingFile;
use vgpu_accounting::audit_chain::{chained, name};
use vgpu_control::event::DaemonEvent;

/// Most events that wait to be written.
const AUDIT_QUEUE_EVENTS: usize = 4096;

/// Bytes at the end of a file in which the last line is searched.
const MAX_AUDIT_LINE_BYTES: u64 = 1 << 20;

/// Value of `prev` in the very first line.
const FIRST_PREVIOUS_HASH: &str = "";

enum AuditMessage {
    Event(Arc<DaemonEvent>),
    /// Answered when all earlier events are written.
    End(SyncSender<()>),
}

/// The audit log. Passing an event to it never blocks.
#[derive(Debug)]
pub struct AuditLog {
    tell: SyncSender<AuditMessage>,
    path: PathBuf,
    state: Arc<Mutex<AuditState>>,
}

/// State shared with the writing thread.
#[derive(Debug)]
struct AuditState {
    /// Why the log is incomplete; `None`: the last write succeeded.
    fault: Option<String>,
    /// Hash of the last line written.
    head: String,
}

impl AuditLog {
    /// Opens the file and starts the thread that writes it.
    ///
    /// # Errors
    /// The file cannot be opened or read, or no thread can be started.
    pub fn start(path: &Path, most: u64, keep: u32) -> io::Result<Self> {
        let mut file = RotatingFile::open(path, most, keep)?;
        let mut last = last_line(path)?;
        if last.is_empty() {
            // The daemon ended after it rotated the file and before it wrote the first line.
            let aside = format!("{}.1", path.display());
            last = last_line(Path::new(&aside)).unwrap_or_default();
        } else if !is_terminated(path)? {
            file.write_line(b"\n")?;
        }
        let state = Arc::new(Mutex::new(AuditState { fault: None, head: last.clone() }));
        let (tell, told) = sync_channel(AUDIT_QUEUE_EVENTS);
        let mut writer = AuditWriter { file, last, state: state.clone() };
        thread::Builder::new().name("vgpud-audit".into()).spawn(move || writer.serve(&told))?;
        Ok(Self { tell, path: path.to_owned(), state })
    }

    /// Queues an event; never blocks.
    pub fn write(&self, event: &Arc<DaemonEvent>) {
        if let Err(TrySendError::Full(_)) = self.tell.try_send(AuditMessage::Event(event.clone())) {
            set_fault(&self.state, Some("events came faster than they could be written; some are missing".into()));
        }
    }

    /// Why the log is incomplete; `None`: the last write succeeded.
    #[must_use]
    pub fn audit_fault(&self) -> Option<String> {
        self.state.lock().fault.clone()
    }

    /// The file, and the hash of the last line written there; empty before the first line.
    #[must_use]
    pub fn last_hash(&self) -> (PathBuf, String) {
        (self.path.clone(), self.state.lock().head.clone())
    }

    /// Waits up to 1 s until all events are written.
    pub fn finish_writing(&self) {
        let (done, seen) = sync_channel(1);
        if self.tell.try_send(AuditMessage::End(done)).is_ok() {
            let _ = seen.recv_timeout(Duration::from_secs(1));
        }
    }
}

/// Sets or clears the fault; true if it changed.
fn set_fault(state: &Mutex<AuditState>, words: Option<String>) -> bool {
    let mut state = state.lock();
    let news = state.fault != words;
    state.fault = words;
    news
}

struct AuditWriter {
    file: RotatingFile,
    /// Hash of the last line, which the next line refers to.
    last: String,
    state: Arc<Mutex<AuditState>>,
}

impl AuditWriter {
    fn serve(&mut self, told: &Receiver<AuditMessage>) {
        while let Ok(first) = told.recv() {
            let mut ends = Vec::new();
            let mut done = Ok(());
            // Events that arrived meanwhile are flushed to the disk together.
            for word in std::iter::once(first).chain(told.try_iter().take(AUDIT_QUEUE_EVENTS)) {
                match word {
                    // An event that cannot be written does not stop the next one.
                    AuditMessage::Event(event) => done = done.and(self.append_event(&event)),
                    AuditMessage::End(end) => ends.push(end),
                }
            }
            let done = done.and_then(|()| self.file.sync_file());
            self.state.lock().head.clone_from(&self.last);
            let words = done.err().map(|why| why.to_string());
            if set_fault(&self.state, words.clone()) {
                match words {
                    // Without a kind, since an event of this would be written here.
                    Some(why) => warn!(%why, "the audit log cannot be written; limits are still enforced"),
                    None => {
                        warn!(file = %self.file.file_path().display(), "the audit log is written again; lines are missing")
                    }
                }
            }
            for end in ends {
                let _ = end.try_send(());
            }
        }
    }

    fn append_event(&mut self, event: &DaemonEvent) -> io::Result<()> {
        let (mut bytes, hash) = chained(event, &self.last)?;
        bytes.push(b'\n');
        match self.file.write_line(&bytes) {
            Ok(()) => {
                self.last = hash;
                Ok(())
            }
            Err(why) => {
                // Part of the line may be in the file; the next one must not be joined to it.
                let _ = self.file.write_line(b"\n");
                if let Ok(last) = last_line(self.file.file_path()) {
                    self.last = last;
                }
                Err(why)
            }
        }
    }
}

/// Hash of the last line of a file that is not empty. A line that was cut off counts as one.
fn last_line(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_AUDIT_LINE_BYTES)))?;
    let mut end = Vec::new();
    file.read_to_end(&mut end)?;
    let last = end.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty());
    Ok(last.map_or(FIRST_PREVIOUS_HASH.to_owned(), name))
}

/// True if the file ends with a newline.
fn is_terminated(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_accounting::audit_chain::{Head, verify};

    fn event(words: &str) -> Arc<DaemonEvent> {
        Arc::new(DaemonEvent { kind: "tenant.changed".into(), words: words.into(), ..DaemonEvent::default() })
    }

    fn written(path: &Path, most: u64, count: usize) {
        let audit = AuditLog::start(path, most, 9).unwrap();
        for at in 0..count {
            audit.write(&event(&format!("number {at}")));
        }
        audit.finish_writing();
        assert_eq!(audit.audit_fault(), None);
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
        let chain = verify(&files, &[]).unwrap();
        assert_eq!((chain.lines, chain.cut), (23, 0));

        let mut changed = files.clone();
        let text = String::from_utf8(changed[0].clone()).unwrap().replace("number 1\"", "number 7\"");
        changed[0] = text.into_bytes();
        let found = verify(&changed, &[]).unwrap_err();
        assert_eq!((found.file, found.line), (0, 2), "it has another hash: {found:?}");

        let mut fewer = files.clone();
        fewer.remove(1);
        assert!(files.len() < 3 || verify(&fewer, &[]).is_err(), "a file in between is missing");
        let first: Vec<u8> = files[0].split_inclusive(|byte| *byte == b'\n').skip(1).flatten().copied().collect();
        let rest = [vec![first], files[1..].to_vec()].concat();
        let rest = verify(&rest, &[]).unwrap();
        assert_eq!((rest.lines, rest.is_from_first), (22, false), "the oldest may be gone, and that is said");
        assert!(verify(&files, &[]).unwrap().is_from_first);
    }

    #[test]
    fn a_line_that_was_cut_off_is_seen_as_that_and_the_chain_goes_on_behind_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        written(&path, 1 << 20, 2);
        let mut text = std::fs::read(&path).unwrap();
        text.extend(br#"{"seq":3,"wor"#);
        std::fs::write(&path, &text).unwrap();
        let found = verify(&[text], &[]).unwrap_err();
        assert_eq!(
            (found.line, found.words.contains("the daemon ended while it wrote the line")),
            (3, true),
            "{found:?}"
        );
        written(&path, 1 << 20, 2);
        let bytes = std::fs::read(&path).unwrap();
        let chain = verify(std::slice::from_ref(&bytes), &[]).unwrap();
        assert_eq!((chain.lines, chain.cut), (5, 1), "{}", String::from_utf8_lossy(&bytes));
        let other = String::from_utf8(bytes).unwrap().replace("\"wor\n", "\"word\n");
        assert_eq!(verify(&[other.into_bytes()], &[]).unwrap_err().line, 3, "the next line names what was there");
    }

    #[test]
    fn no_file_but_a_whole_log_is_one_and_of_its_last_line_no_byte_can_be_changed() {
        let refused = |text: &str| verify(&[text.as_bytes().to_vec()], &[]).unwrap_err();
        for garbage in
            ["", "\n\n", "garbage", "garbage\nmore\n", "{}\n", "{\"prev\":\"\"}\n", "\0\u{1}\n{\"prev\":\"\"}\n"]
        {
            let found = refused(garbage);
            assert!(found.words.contains("line of an audit log"), "{garbage:?}: {found:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        written(&path, 1 << 20, 3);
        let text = std::fs::read_to_string(&path).unwrap();
        let last = text.trim_end().rfind('\n').unwrap() + 1;
        for at in last..text.len() - 1 {
            let mut changed = text.clone().into_bytes();
            changed[at] ^= 1;
            assert!(verify(&[changed], &[]).is_err(), "byte {at}");
            if at > last {
                assert!(verify(&[text.as_bytes()[..at].to_vec()], &[]).is_err(), "cut at {at}");
            }
        }
        assert_eq!(refused(&text.replace("number 2", "number 7")).line, 3);
        assert!(refused(&format!("{text}garbage\n")).words.contains("not a complete line"));
    }

    #[test]
    fn lines_that_are_missing_at_the_end_show_against_a_head_that_was_kept_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        written(&path, 1 << 20, 3);
        let audit = AuditLog::start(&path, 1 << 20, 9).unwrap();
        let head = audit.last_hash().1;
        audit.write(&event("one more"));
        audit.finish_writing();
        let later = audit.last_hash().1;
        let text = std::fs::read(&path).unwrap();
        let heads = [Head { hash: &head, by: "somebody" }, Head { hash: &later, by: "the daemon" }];
        let chain = verify(std::slice::from_ref(&text), &heads).unwrap();
        assert_eq!((chain.lines, &chain.head), (4, &later), "an earlier head is a line of the log too");
        let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
        let found = verify(&[lines[..3].concat()], &heads).unwrap_err();
        assert_eq!(found.line, 3);
        assert!(found.words.contains("the daemon knows a later line") && found.words.contains(&later), "{found:?}");
    }
}
