//! Writes the log to a file or standard error in a thread of its own, so that a reader that stalls blocks no other
//! thread.
//!
//! Lines wait in a queue of [`LOG_QUEUE_LINES`]. A line that finds the queue full is lost; the number of lost lines
//! is written as soon as there is room again. Standard error is not made non-blocking, because that would affect
//! every process with the same open file. Not here: the log lines, and the limit of lines that a tenant may cause
//! ([`super::log`]).

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

/// Most lines that wait to be written.
pub const LOG_QUEUE_LINES: usize = 256;

enum LogMessage {
    Line(Vec<u8>),
    /// Answered when all earlier lines are written.
    End(SyncSender<()>),
}

/// The log writer. Passing a line to it never blocks.
#[derive(Clone)]
pub struct LogWriter {
    tell: SyncSender<LogMessage>,
    lost: Arc<AtomicU64>,
}

impl LogWriter {
    /// Starts the thread that writes to `to`.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(to: impl Write + Send + 'static) -> io::Result<Self> {
        let (tell, told) = sync_channel(LOG_QUEUE_LINES);
        let lost = Arc::new(AtomicU64::new(0));
        let scribe = Self { tell, lost: lost.clone() };
        thread::Builder::new().name("vgpud-log".into()).spawn(move || write(&told, &lost, to))?;
        Ok(scribe)
    }

    /// Waits until all lines passed so far are written, at most for `patience`.
    pub fn finish_writing(&self, patience: Duration) {
        let end = Instant::now() + patience;
        let (done, seen) = sync_channel(1);
        let mut word = LogMessage::End(done);
        while let Err(TrySendError::Full(back)) = self.tell.try_send(word) {
            if Instant::now() >= end {
                return;
            }
            word = back;
            thread::sleep(Duration::from_millis(1));
        }
        // If the reader of the log has stalled, the lines that are left are lost.
        let _ = seen.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}

fn write(told: &Receiver<LogMessage>, lost: &AtomicU64, mut to: impl Write) {
    for word in told {
        match word {
            // If standard error is closed, there is no other place to report it.
            LogMessage::Line(line) => drop(to.write_all(&line)),
            LogMessage::End(done) => drop(done.try_send(())),
        }
        let lost = lost.swap(0, Relaxed);
        if lost > 0 {
            let _ = writeln!(to, "vgpud: {lost} lines of the log were lost here: they were not read in time");
        }
    }
}

/// Takes one line, which the log formats completely before.
pub struct LineWriter<'s>(&'s LogWriter);

impl Write for LineWriter<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.0.tell.try_send(LogMessage::Line(line.to_vec())).is_err() {
            self.0.lost.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'s> MakeWriter<'s> for LogWriter {
    type Writer = LineWriter<'s>;

    fn make_writer(&'s self) -> LineWriter<'s> {
        LineWriter(self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Tells of each call and then waits for a message before it writes.
    struct Slow(Sender<()>, Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.send(());
            let _ = self.1.recv();
            self.2.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_does_not_read_holds_up_nobody_and_is_told_how_many_lines_were_lost() {
        let (go, slow) = channel();
        let written = Arc::new(Mutex::new(Vec::new()));
        let (tell, called) = channel();
        let scribe = LogWriter::start(Slow(tell, slow, written.clone())).unwrap();
        let lines = LOG_QUEUE_LINES + 101;
        for line in 0..lines {
            if line == 1 {
                called.recv().unwrap(); // The first line has left the queue.
            }
            scribe.make_writer().write_all(format!("line {line}\n").as_bytes()).unwrap();
        }
        scribe.finish_writing(Duration::from_millis(10));
        // From here on every line is written at once.
        drop(go);
        scribe.finish_writing(Duration::from_secs(60));
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        let (said, lost): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("line "));
        assert_eq!(said.len(), LOG_QUEUE_LINES + 1);
        assert_eq!(said.last().copied(), Some(format!("line {}", said.len() - 1).as_str()), "in their order");
        let words =
            format!("vgpud: {} lines of the log were lost here: they were not read in time", lines - said.len());
        assert_eq!(lost, [words]);
    }
}
