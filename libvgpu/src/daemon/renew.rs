//! The member without its daemon: a start from the terms file, the daemon's loss and return, and forked children.
//!
//! A process looks for a lost daemon about once a second. Its watcher thread does this ([`crate::watcher`]), which
//! every process with a context has under a daemon; so does a call that is about to be refused. Neither holds a lock
//! of the governor. When a new daemon welcomes the process, the process joins all its devices with the device time
//! measured so far, and takes the new pages. The previous terms apply until then. If the daemon refuses a device,
//! that device goes on as without a daemon and does not keep other devices from joining. It asks again about every
//! ten seconds.

use super::hello::Trouble;
use super::session::Session;
use super::{Place, hello, session};
use crate::device::Device;
use crate::environment::variable;
use crate::ledger::Ledger;
use crate::{clock, device, doors, uuid};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;
use vgpu_core::protocol::wire::terms_file::{FILE_NAME, MAX_FILE, TermsFile};

/// Time between two tries, plus up to a quarter, so that the members of a tenant do not all try at once.
const RETRY_NS: u64 = 1_000_000_000;
/// How long a returning daemon may take to answer.
const PATIENCE: Duration = Duration::from_millis(300);
/// How often a thread that wants to try checks whether another thread has finished.
const WAIT_NS: u64 = 1_000_000;
/// Time until a refused device asks again, plus up to a quarter.
const REFUSED_NS: u64 = 10_000_000_000;

/// Bit of [`SOUGHT`]: the daemon was found gone, or gave our slot away.
const DAEMON: u32 = 1;
/// Bit of [`SOUGHT`]: devices that the daemon refused must ask again.
const DEVICES: u32 = 2;

/// Bits of the searches to do.
static SOUGHT: AtomicU32 = AtomicU32::new(0);
/// Whether a thread is searching.
static TRYING: AtomicBool = AtomicBool::new(false);
/// Earliest time of the next search for the daemon.
static NOT_BEFORE: AtomicU64 = AtomicU64::new(0);
/// Earliest time at which refused devices ask again; all ones: none is refused.
static REFUSED: AtomicU64 = AtomicU64::new(u64::MAX);

/// The terms file that the last daemon left next to its socket; `None`: there is none.
///
/// # Errors
/// The message to print, in one line: the path of the terms file and what is wrong with it.
pub fn file(socket: &Path) -> Result<Option<TermsFile>, String> {
    let path = socket.with_file_name(FILE_NAME);
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
    file.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes).map_err(|e| wrong(&e))?;
    TermsFile::decode(&bytes).map(Some).map_err(|e| wrong(&e))
}

/// Records that the daemon is gone: the search for it starts.
pub fn is_lost() {
    SOUGHT.fetch_or(DAEMON, AcqRel);
}

/// Records that a device has no slot of the present daemon: it asks again, if the time has come.
pub fn is_refused(now: u64) {
    if now >= REFUSED.load(Relaxed) {
        SOUGHT.fetch_or(DEVICES, AcqRel);
    }
}

/// Whether the daemon, or a slot for a refused device, is being sought.
///
/// # Cost
/// One load.
pub fn seeks() -> bool {
    SOUGHT.load(Relaxed) != 0
}

/// When to search for the daemon next; all ones: there is a daemon and nothing to search for. `None`: there never
/// was a daemon.
pub fn due() -> Option<u64> {
    match SOUGHT.load(Relaxed) {
        0 => session::current().map(|_| u64::MAX),
        what => Some(due_of(what)),
    }
}

fn due_of(what: u32) -> u64 {
    if what & DAEMON != 0 { NOT_BEFORE.load(Relaxed) } else { REFUSED.load(Relaxed) }
}

/// Checks whether the daemon is alive. If it is not, tries to find one, unless that was just done.
#[cold]
pub fn look() {
    let now = clock::now();
    if let Some(session) = session::current().filter(|session| !session.lives(now)) {
        lose(session);
    }
    is_refused(now);
    tend();
}

/// Counts the daemon of this session as lost. Ignored while another thread says hello, or after that thread has found
/// the next daemon: a second hello would map a second set of pages.
pub fn lose(session: &'static Session) {
    if !TRYING.load(Acquire) && session::is_present(session) {
        is_lost();
    }
}

/// Returns whether a search is pending. An idle process counts its daemon as lost only if the heartbeat stopped and
/// the daemon closed its end of the connection. A stalled daemon closes nothing; otherwise ten thousand idle
/// processes would say hello again.
pub fn notices_loss() -> bool {
    if let Some(session) = session::current().filter(|session| !session.lives(clock::now()))
        && hello::is_over()
    {
        lose(session);
    }
    seeks()
}

/// If the time has come, tries to find the daemon again, or to join devices that it refused. Must not be called under
/// a lock.
///
/// # Cost
/// One load with nothing to search for. Else once a second up to 300 ms for the hello and for each device. For
/// refused devices up to 2 s, if the daemon has a heartbeat but does not answer.
pub fn tend() {
    let what = SOUGHT.load(Relaxed);
    if what == 0 {
        return;
    }
    let (due, daemon) = (due_of(what), what & DAEMON != 0);
    if due == u64::MAX {
        // No device is refused any more, unless another thread has just recorded one.
        SOUGHT.fetch_and(!what, AcqRel);
        if REFUSED.load(Acquire) != u64::MAX {
            SOUGHT.fetch_or(what, AcqRel);
        }
    }
    if clock::now() < due || TRYING.swap(true, AcqRel) {
        return;
    }
    // Cleared before the try, so that a loss found meanwhile stays recorded.
    SOUGHT.fetch_and(!what, AcqRel);
    // A connection without an answer is closed, and the other devices' slots are lost with it. So refused devices
    // wait longer, to outlast a short stall.
    let answered = if daemon { again(false, PATIENCE) } else { more(hello::DEADLINE) };
    if !answered {
        is_lost();
    }
    if daemon {
        NOT_BEFORE.store(later(RETRY_NS), Relaxed);
    }
    TRYING.store(false, Release);
}

/// The time `ns` from now, plus up to a quarter.
fn later(ns: u64) -> u64 {
    let now = clock::now();
    let jitter = (now ^ vgpu_core::mix::spread(std::process::id().into())) % (ns / 4);
    now.saturating_add(ns + jitter)
}

/// Says hello again and joins all devices. False: no daemon answers.
fn again(is_child: bool, patience: Duration) -> bool {
    let Some(socket) = variable("VGPU_SOCKET") else { return false };
    // A daemon that refuses, or speaks another protocol, does not serve this process: the last terms stay in force.
    let Ok(session) = hello::begin(Path::new(&socket), patience) else { return false };
    if session.welcome.strict {
        doors::shut();
    }
    join_all(Err(session), is_child, patience)
}

/// Joins devices that the present daemon refused before. False: the daemon is gone.
fn more(patience: Duration) -> bool {
    match session::current().filter(|session| session.lives(clock::now())) {
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
    for device in device::all().filter(|device| present.is_none_or(|session| is_without(device, session))) {
        let Some(governor) = &device.governor else { continue };
        let busy = if is_child { 0 } else { governor.post.busy().max(1) };
        match hello::join(asked, &uuid::text(&device.uuid), busy, &device.ledger, patience) {
            Ok(slot) => slots.push((governor, slot)),
            // A refusal is an answer: this device keeps its previous terms.
            Err(Trouble::Refused(_)) => {}
            Err(Trouble::Absent(_)) => return false,
        }
    }
    let kept = session.unwrap_or_else(session::keep);
    for (governor, slot) in slots {
        governor.post.take(Place::new(kept, slot));
        governor.greet();
    }
    note_refused(kept);
    true
}

fn is_without(device: &Device, session: &Session) -> bool {
    let Some(governor) = &device.governor else { return false };
    !governor.post.place().is_some_and(|place| core::ptr::eq(place.session, session))
}

/// Schedules the next request for refused devices. Launches on such a device check its slot of the previous daemon
/// and report when the time has come. A device that never had a slot relies on the watcher thread, so the search is
/// marked at once.
fn note_refused(session: &'static Session) {
    let mut refused = device::all().filter(|device| is_without(device, session)).peekable();
    REFUSED.store(if refused.peek().is_some() { later(REFUSED_NS) } else { u64::MAX }, Relaxed);
    if refused.any(|device| device.governor.as_ref().is_some_and(|governor| governor.post.place().is_none())) {
        SOUGHT.fetch_or(DEVICES, AcqRel);
    }
}

/// Joins a device that is being registered. If the daemon has gone since its welcome, looks for it once. Only one
/// thread at a time does so: a second conversation would end the one over which the first is about to join.
///
/// # Errors
/// One line.
pub fn join(name: &str, ledger: &Ledger) -> Result<Place, String> {
    let told = |trouble| match trouble {
        Trouble::Absent(words) | Trouble::Refused(words) => words,
    };
    let join = || match session::current() {
        Some(session) => hello::join(session, name, 0, ledger, hello::DEADLINE).map(|slot| Place::new(session, slot)),
        None => Err(Trouble::Absent("there is no daemon".to_owned())),
    };
    let first = join();
    if !matches!(first, Err(Trouble::Absent(_))) {
        return first.map_err(told);
    }
    while TRYING.swap(true, AcqRel) {
        clock::sleep(WAIT_NS);
    }
    // Another thread may have found the daemon while this one waited.
    let joined = match join() {
        Err(Trouble::Absent(_)) if again(false, hello::DEADLINE) => join(),
        Err(Trouble::Absent(_)) => first,
        joined => joined,
    };
    TRYING.store(false, Release);
    joined.map_err(told)
}

/// As [`join`], if the daemon has come back since the process started without it. A device without an answer, or
/// refused, asks again like any other.
pub fn join_if_there(name: &str, ledger: &Ledger) -> Option<Place> {
    let session = session::current()?;
    match hello::join(session, name, 0, ledger, hello::DEADLINE) {
        Ok(slot) => return Some(Place::new(session, slot)),
        Err(Trouble::Absent(_)) => is_lost(),
        Err(Trouble::Refused(_)) => {
            REFUSED.fetch_min(later(REFUSED_NS), Relaxed);
            SOUGHT.fetch_or(DEVICES, AcqRel);
        }
    }
    None
}

/// Registers a forked child with the daemon. The child already has its parent's limits, so an absent daemon changes
/// nothing.
pub fn reborn() {
    hello::reborn();
    // A search that a thread of the parent was just doing is no longer marked in `SOUGHT`, but in `TRYING`.
    let sought = TRYING.swap(false, Relaxed) || session::current().is_some() || seeks();
    session::forget();
    REFUSED.store(u64::MAX, Relaxed);
    if hello::close() || sought {
        SOUGHT.store(if sought { DAEMON } else { 0 }, Relaxed);
        if again(true, hello::DEADLINE) {
            SOUGHT.fetch_and(!DAEMON, AcqRel);
        }
    }
}
