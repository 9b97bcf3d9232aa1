//! The member without its daemon: a start from the terms file, the daemon's loss and return, and forked children.
//!
//! A process looks for a lost daemon about once a second. Its watcher thread does this ([`crate::process::helper_thread`]), which
//! every process with a context has under a daemon; so does a call that is about to be refused. Neither holds a lock
//! of the governor. When a new daemon welcomes the process, the process joins all its devices with the device time
//! measured so far, and takes the new pages. The previous terms apply until then. If the daemon refuses a device,
//! that device goes on as without a daemon and does not keep other devices from joining. It asks again about every
//! ten seconds.

use super::hello::HelloError;
use super::session::{PagesSlot, Session};
use super::{hello, session};
use crate::device::table;
use crate::device::table::Device;
use crate::ffi::{clock, uuid};
use crate::ledger::file::Ledger;
use crate::lookup::bypasses;
use crate::process::environment::decisive_variable;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;
use vgpu_core::protocol::wire::terms_file::{MAX_TERMS_FILE_BYTES, TERMS_FILE_NAME, TermsFile};

/// Time between two tries, plus up to a quarter, so that the members of a tenant do not all try at once.
const RECONNECT_INTERVAL_NS: u64 = 1_000_000_000;
/// How long a returning daemon may take to answer.
const RECONNECT_TIMEOUT: Duration = Duration::from_millis(300);
/// How often a thread that wants to try checks whether another thread has finished.
const TRY_POLL_NS: u64 = 1_000_000;
/// Time until a refused device asks again, plus up to a quarter.
const REJOIN_INTERVAL_NS: u64 = 10_000_000_000;

/// Bit of [`SEEKING`]: the daemon was found gone, or gave our slot away.
const SEEK_DAEMON: u32 = 1;
/// Bit of [`SEEKING`]: devices that the daemon refused must ask again.
const SEEK_DEVICES: u32 = 2;

/// Bits of the searches to do.
static SEEKING: AtomicU32 = AtomicU32::new(0);
/// Whether a thread is searching.
static TRYING: AtomicBool = AtomicBool::new(false);
/// Earliest time of the next search for the daemon.
static RECONNECT_NOT_BEFORE: AtomicU64 = AtomicU64::new(0);
/// Earliest time at which refused devices ask again; all ones: none is refused.
static REJOIN_NOT_BEFORE: AtomicU64 = AtomicU64::new(u64::MAX);

/// The terms file that the last daemon left next to its socket; `None`: there is none.
///
/// # Errors
/// The message to print, in one line: the path of the terms file and what is wrong with it.
pub fn read_terms_file(socket: &Path) -> Result<Option<TermsFile>, String> {
    let path = socket.with_file_name(TERMS_FILE_NAME);
    let wrong = |what: &dyn core::fmt::Display| format!("{}: {what}", path.display());
    // Non-blocking: a pipe in place of the file must not block the program.
    let file = match std::fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(wrong(&e)),
    };
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err(wrong(&"is no file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_TERMS_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|e| wrong(&e))?;
    TermsFile::decode(&bytes).map(Some).map_err(|e| wrong(&e))
}

/// Records that the daemon is gone: the search for it starts.
pub fn is_lost() {
    SEEKING.fetch_or(SEEK_DAEMON, AcqRel);
}

/// Records that a device has no slot of the present daemon: it asks again, if the time has come.
pub fn is_refused(now: u64) {
    if now >= REJOIN_NOT_BEFORE.load(Relaxed) {
        SEEKING.fetch_or(SEEK_DEVICES, AcqRel);
    }
}

/// Whether the daemon, or a slot for a refused device, is being sought.
///
/// # Cost
/// One load.
pub fn is_seeking() -> bool {
    SEEKING.load(Relaxed) != 0
}

/// When to search for the daemon next; all ones: there is a daemon and nothing to search for. `None`: there never
/// was a daemon.
pub fn next_try() -> Option<u64> {
    match SEEKING.load(Relaxed) {
        0 => session::current().map(|_| u64::MAX),
        what => Some(due_of(what)),
    }
}

fn due_of(what: u32) -> u64 {
    if what & SEEK_DAEMON != 0 { RECONNECT_NOT_BEFORE.load(Relaxed) } else { REJOIN_NOT_BEFORE.load(Relaxed) }
}

/// Checks whether the daemon is alive. If it is not, tries to find one, unless that was just done.
#[cold]
pub fn look_for_daemon() {
    let now = clock::now();
    if let Some(session) = session::current().filter(|session| !session.is_beating(now)) {
        note_lost(session);
    }
    is_refused(now);
    reconnect_if_due();
}

/// Counts the daemon of this session as lost. Ignored while another thread says hello, or after that thread has found
/// the next daemon: a second hello would map a second set of pages.
pub fn note_lost(session: &'static Session) {
    if !TRYING.load(Acquire) && session::is_present(session) {
        is_lost();
    }
}

/// Returns whether a search is pending. An idle process counts its daemon as lost only if the heartbeat stopped and
/// the daemon closed its end of the connection. A stalled daemon closes nothing; otherwise ten thousand idle
/// processes would say hello again.
pub fn notices_loss() -> bool {
    if let Some(session) = session::current().filter(|session| !session.is_beating(clock::now()))
        && hello::is_over()
    {
        note_lost(session);
    }
    is_seeking()
}

/// If the time has come, tries to find the daemon again, or to join devices that it refused. Must not be called under
/// a lock.
///
/// # Cost
/// One load with nothing to search for. Else once a second up to 300 ms for the hello and for each device. For
/// refused devices up to 2 s, if the daemon has a heartbeat but does not answer.
pub fn reconnect_if_due() {
    let what = SEEKING.load(Relaxed);
    if what == 0 {
        return;
    }
    let (due, daemon) = (due_of(what), what & SEEK_DAEMON != 0);
    if due == u64::MAX {
        // No device is refused any more, unless another thread has just recorded one.
        SEEKING.fetch_and(!what, AcqRel);
        if REJOIN_NOT_BEFORE.load(Acquire) != u64::MAX {
            SEEKING.fetch_or(what, AcqRel);
        }
    }
    if clock::now() < due || TRYING.swap(true, AcqRel) {
        return;
    }
    // Cleared before the try, so that a loss found meanwhile stays recorded.
    SEEKING.fetch_and(!what, AcqRel);
    // A connection without an answer is closed, and the other devices' slots are lost with it. So refused devices
    // wait longer, to outlast a short stall.
    let answered =
        if daemon { reconnect(false, RECONNECT_TIMEOUT) } else { join_refused_devices(hello::ANSWER_TIMEOUT) };
    if !answered {
        is_lost();
    }
    if daemon {
        RECONNECT_NOT_BEFORE.store(jittered_after(RECONNECT_INTERVAL_NS), Relaxed);
    }
    TRYING.store(false, Release);
}

/// The time `ns` from now, plus up to a quarter.
fn jittered_after(ns: u64) -> u64 {
    let now = clock::now();
    let jitter = (now ^ vgpu_core::mix::spread_key(std::process::id().into())) % (ns / 4);
    now.saturating_add(ns + jitter)
}

/// Says hello again and joins all devices. False: no daemon answers.
fn reconnect(is_child: bool, patience: Duration) -> bool {
    let Some(socket) = decisive_variable("VGPU_SOCKET") else { return false };
    // A daemon that refuses, or speaks another protocol, does not serve this process: the last terms stay in force.
    let Ok(session) = hello::say_hello(Path::new(&socket), patience) else { return false };
    if session.welcome.strict {
        bypasses::set_daemon_strict();
    }
    join_all(Err(session), is_child, patience)
}

/// Joins devices that the present daemon refused before. False: the daemon is gone.
fn join_refused_devices(patience: Duration) -> bool {
    match session::current().filter(|session| session.is_beating(clock::now())) {
        Some(session) => join_all(Ok(session), false, patience),
        None => false,
    }
}

/// Joins all devices that have no slot of this session. The slots are used, and the session kept, only after an
/// answer for every device: silence ends the connection and its earlier slots, so none of them may be in use. A
/// forked child has no work queued on any device. An earlier member may have some, so it reports at least 1 ns of
/// device time, until its report says that no work is left. False: nobody answers.
fn join_all(session: Result<&'static Session, Box<Session>>, is_child: bool, patience: Duration) -> bool {
    let present = session.as_ref().ok().copied();
    let asked = match &session {
        Ok(session) => session,
        Err(fresh) => &**fresh,
    };
    let mut slots = Vec::new();
    for device in table::all().filter(|device| present.is_none_or(|session| is_without(device, session))) {
        let Some(governor) = &device.governor else { continue };
        let busy = if is_child { 0 } else { governor.post.busy_ns().max(1) };
        match hello::join(asked, &uuid::uuid_text(&device.uuid), busy, &device.ledger, patience) {
            Ok(slot) => slots.push((governor, slot)),
            // A refusal is an answer: this device keeps its previous terms.
            Err(HelloError::Refused(_)) => {}
            Err(HelloError::Absent(_)) => return false,
        }
    }
    let kept = session.unwrap_or_else(session::set_current);
    for (governor, slot) in slots {
        governor.post.take_slot(PagesSlot::new(kept, slot));
        governor.announce_member();
    }
    note_refused(kept);
    true
}

fn is_without(device: &Device, session: &Session) -> bool {
    let Some(governor) = &device.governor else { return false };
    !governor.post.pages_slot().is_some_and(|place| core::ptr::eq(place.session, session))
}

/// Schedules the next request for refused devices. Launches on such a device check its slot of the previous daemon
/// and report when the time has come. A device that never had a slot relies on the watcher thread, so the search is
/// marked at once.
fn note_refused(session: &'static Session) {
    let mut refused = table::all().filter(|device| is_without(device, session)).peekable();
    REJOIN_NOT_BEFORE
        .store(if refused.peek().is_some() { jittered_after(REJOIN_INTERVAL_NS) } else { u64::MAX }, Relaxed);
    if refused.any(|device| device.governor.as_ref().is_some_and(|governor| governor.post.pages_slot().is_none())) {
        SEEKING.fetch_or(SEEK_DEVICES, AcqRel);
    }
}

/// Joins a device that is being registered. If the daemon has gone since its welcome, looks for it once. Only one
/// thread at a time does so: a second conversation would end the one over which the first is about to join.
///
/// # Errors
/// One line.
pub fn join(name: &str, ledger: &Ledger) -> Result<PagesSlot, String> {
    let told = |trouble| match trouble {
        HelloError::Absent(words) | HelloError::Refused(words) => words,
    };
    let join = || match session::current() {
        Some(session) => {
            hello::join(session, name, 0, ledger, hello::ANSWER_TIMEOUT).map(|slot| PagesSlot::new(session, slot))
        }
        None => Err(HelloError::Absent("there is no daemon".to_owned())),
    };
    let first = join();
    if !matches!(first, Err(HelloError::Absent(_))) {
        return first.map_err(told);
    }
    while TRYING.swap(true, AcqRel) {
        clock::sleep(TRY_POLL_NS);
    }
    // Another thread may have found the daemon while this one waited.
    let joined = match join() {
        Err(HelloError::Absent(_)) if reconnect(false, hello::ANSWER_TIMEOUT) => join(),
        Err(HelloError::Absent(_)) => first,
        joined => joined,
    };
    TRYING.store(false, Release);
    joined.map_err(told)
}

/// As [`join`], if the daemon has come back since the process started without it. A device without an answer, or
/// refused, asks again like any other.
pub fn join_if_there(name: &str, ledger: &Ledger) -> Option<PagesSlot> {
    let session = session::current()?;
    match hello::join(session, name, 0, ledger, hello::ANSWER_TIMEOUT) {
        Ok(slot) => return Some(PagesSlot::new(session, slot)),
        Err(HelloError::Absent(_)) => is_lost(),
        Err(HelloError::Refused(_)) => {
            REJOIN_NOT_BEFORE.fetch_min(jittered_after(REJOIN_INTERVAL_NS), Relaxed);
            SEEKING.fetch_or(SEEK_DEVICES, AcqRel);
        }
    }
    None
}

/// Registers a forked child with the daemon. The child already has its parent's limits, so an absent daemon changes
/// nothing.
pub fn reset_after_fork() {
    hello::reset_after_fork();
    // A search that a thread of the parent was just doing is no longer marked in `SEEKING`, but in `TRYING`.
    let sought = TRYING.swap(false, Relaxed) || session::current().is_some() || is_seeking();
    session::reset_after_fork();
    REJOIN_NOT_BEFORE.store(u64::MAX, Relaxed);
    if hello::close() || sought {
        SEEKING.store(if sought { SEEK_DAEMON } else { 0 }, Relaxed);
        if reconnect(true, hello::ANSWER_TIMEOUT) {
            SEEKING.fetch_and(!SEEK_DAEMON, AcqRel);
        }
    }
}
