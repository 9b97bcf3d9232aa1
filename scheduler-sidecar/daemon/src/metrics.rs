//! Serves metrics over HTTP in threads of its own, which ask the reactor for the status and format it.
//!
//! A byte over a socket wakes the reactor, which answers over a channel. It never waits for a client, and is asked at
//! most once a second, however many clients there are.
//!
//! Two GET paths need no library. The small one available limits neither connections nor their time, and stops for
//! good when descriptors run out. Here at most [`MAX_CONNECTIONS`] connections are served at the same time, and each
//! step of one takes at most [`CLIENT_TIMEOUT`]. When one more arrives, the connection that has been without a
//! complete request for longest is closed. So clients that never finish a request cannot keep out one that does.
//!
//! Not here: the text ([`vgpu_accounting::metrics`]).

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::asked::{WakeReason, read_questions};
use vgpu_accounting::metrics;
use vgpu_control::DaemonStatus;

/// Time limit for the reactor's answer, for a client's request, and for sending the response.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

/// Age up to which a text is used again.
const TEXT_LIFETIME: Duration = Duration::from_secs(1);

/// Most connections at the same time.
const MAX_CONNECTIONS: usize = 16;

/// Longest request that is read, in bytes.
const MAX_REQUEST_BYTES: usize = 8192;

const OPEN_METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN_TYPE: &str = "text/plain; charset=utf-8";
const INDEX_TEXT: &str = "vgpud: /metrics (OpenMetrics), /healthz\n";

/// The reactor's side of the metrics server: takes requests for the status, and sends it.
#[derive(Debug)]
pub struct MetricsServer {
    asked: UnixStream,
    answer: SyncSender<DaemonStatus>,
}

impl MetricsServer {
    /// Starts to listen. `hami`: metrics also have the names that HAMi uses.
    ///
    /// # Errors
    /// A message that names the address.
    pub fn start(at: SocketAddr, hami: bool) -> Result<Self, String> {
        let failed = |why: &dyn std::fmt::Display| format!("metrics.listen = \"{at}\": {why}");
        let listener = TcpListener::bind(at).map_err(|why| failed(&why))?;
        let (asked, ask) = UnixStream::pair().map_err(|why| failed(&why))?;
        asked.set_nonblocking(true).map_err(|why| failed(&why))?;
        let (answer, answers) = sync_channel(1);
        let asking = HttpState {
            loop_: Mutex::new(LoopLink { ask, answers, last: None }),
            hami,
            served: Mutex::new(OpenConnections::default()),
            ended: Condvar::new(),
        };
        let thread = thread::Builder::new().name("vgpud-metrics".into());
        thread.spawn(move || accept(&listener, &Arc::new(asking))).map_err(|why| failed(&why))?;
        Ok(Self { asked, answer })
    }

    /// Reads the requests of the serving threads.
    pub fn take_question(&mut self) -> WakeReason {
        read_questions(&mut self.asked)
    }

    /// Sends the status to the thread that waits for it. If it no longer waits, nothing happens.
    pub fn answer_question(&self, status: DaemonStatus) {
        let _ = self.answer.try_send(status);
    }
}

impl AsFd for MetricsServer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.asked.as_fd()
    }
}

/// The socket and channel to the reactor, and the last text.
struct LoopLink {
    ask: UnixStream,
    answers: Receiver<DaemonStatus>,
    last: Option<(Instant, Arc<str>)>,
}

struct HttpState {
    loop_: Mutex<LoopLink>,
    hami: bool,
    served: Mutex<OpenConnections>,
    ended: Condvar,
}

/// Open connections of the metrics server.
#[derive(Default)]
struct OpenConnections {
    open: usize,
    /// Connections that have not sent a complete request, oldest first.
    asking: VecDeque<Arc<TcpStream>>,
}

fn accept(listener: &TcpListener, asking: &Arc<HttpState>) {
    loop {
        let begun = listener.accept().and_then(|(client, _)| {
            let client = Arc::new(client);
            asking.begin_connection(&client);
            let (theirs, asking_too) = (client.clone(), asking.clone());
            let thread = thread::Builder::new().name("vgpud-http".into());
            let begun = thread.spawn(move || {
                // An error of a client concerns that client only.
                let _ = asking_too.serve(&theirs);
                asking_too.end_connection(&theirs);
            });
            begun.map(drop).inspect_err(|_| asking.end_connection(&client))
        });
        if begun.is_err() {
            // No descriptor or no thread is left now; there will be later.
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl HttpState {
    /// Adds a connection, after waiting until one of the places is free.
    fn begin_connection(&self, client: &Arc<TcpStream>) {
        let mut served = self.served.lock();
        while served.open >= MAX_CONNECTIONS {
            if let Some(oldest) = served.asking.pop_front() {
                // The thread of that connection then reads the end of input, and closes the connection.
                let _ = oldest.shutdown(Shutdown::Both);
            }
            self.ended.wait(&mut served);
        }
        served.open += 1;
        served.asking.push_back(client.clone());
    }

    /// The request is complete: the connection is no longer closed in favour of others.
    fn has_asked(&self, client: &TcpStream) {
        self.served.lock().asking.retain(|other| !std::ptr::eq(&raw const **other, client));
    }

    fn end_connection(&self, client: &TcpStream) {
        self.has_asked(client);
        self.served.lock().open -= 1;
        self.ended.notify_one();
    }

    /// The metrics text, at most 1 s old; `None`: the reactor does not answer.
    fn current_text(&self) -> Option<Arc<str>> {
        let mut to = self.loop_.lock();
        if let Some((at, text)) = &to.last
            && at.elapsed() < TEXT_LIFETIME
        {
            return Some(text.clone());
        }
        // Drop answers that came too late for an earlier request.
        while to.answers.try_recv().is_ok() {}
        to.ask.write_all(&[0]).ok()?;
        let status = to.answers.recv_timeout(CLIENT_TIMEOUT).ok()?;
        let text: Arc<str> = metrics::metrics_text(&status, self.hami).into();
        to.last = Some((Instant::now(), text.clone()));
        Some(text)
    }

    fn serve(&self, client: &TcpStream) -> io::Result<()> {
        let end = Instant::now() + CLIENT_TIMEOUT;
        let mut question = Vec::new();
        while !question.windows(4).any(|four| four == b"\r\n\r\n") {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || question.len() > MAX_REQUEST_BYTES {
                return Ok(());
            }
            client.set_read_timeout(Some(left))?;
            let mut part = [0; 1024];
            match (&*client).read(&mut part)? {
                0 => return Ok(()),
                length => question.extend_from_slice(&part[..length]),
            }
        }
        self.has_asked(client);
        let line = question.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let mut words = line.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let silent = || ("503 Service Unavailable", PLAIN_TYPE, Arc::from("the daemon does not answer within 2 s\n"));
        let (code, kind, body): (_, _, Arc<str>) = match (method, path.split('?').next().unwrap_or_default()) {
            ("GET" | "HEAD", "/metrics") => {
                self.current_text().map_or_else(silent, |text| ("200 OK", OPEN_METRICS_TYPE, text))
            }
            ("GET" | "HEAD", "/healthz") => {
                self.current_text().map_or_else(silent, |_| ("200 OK", PLAIN_TYPE, "ok\n".into()))
            }
            ("GET" | "HEAD", "/") => ("200 OK", PLAIN_TYPE, INDEX_TEXT.into()),
            ("GET" | "HEAD", _) => ("404 Not Found", PLAIN_TYPE, INDEX_TEXT.into()),
            _ => ("405 Method Not Allowed", PLAIN_TYPE, "only GET\n".into()),
        };
        let head = format!(
            "HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let end = Instant::now() + CLIENT_TIMEOUT;
        write_by(client, head.as_bytes(), end)?;
        if method != "HEAD" {
            write_by(client, body.as_bytes(), end)?;
        }
        client.shutdown(Shutdown::Write)
    }
}

/// Writes everything before `end`. So a client that takes one byte at a time cannot keep its place longer.
fn write_by(mut client: &TcpStream, mut bytes: &[u8], end: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        client.set_write_timeout(Some(left))?;
        match client.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
}
