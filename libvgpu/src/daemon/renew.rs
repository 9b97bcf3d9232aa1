//! Without the daemon: the start from what it left in writing, its loss, its return, a forked child.
//!
//! A process looks for a lost daemon about once a second. The thread that watches ([`crate::watcher`]) does it, which every
//! process with a context has beside a daemon, or a call that was about to be refused; never under a lock of the governor.
//! A process that is welcomed again joins all devices with the device time that it measured so far, and takes the new pages.
//! The former terms hold until then. A device that is refused goes on as without a daemon, keeps no other device from being
//! joined, and is asked for again about every ten seconds.

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
use vgpu_core::wire::terms_file::{FILE_NAME, MAX_FILE, TermsFile};

/// Between two tries; up to a quarter more, so that members do not come all at once.
const RETRY_NS: u64 = 1_000_000_000;
/// How long the daemon may take to answer then.
const PATIENCE: Duration = Duration::from_millis(300);
/// How often who is about to try looks whether somebody else is done.
const WAIT_NS: u64 = 1_000_000;
/// A device that was refused is asked for again after so long, and up to a quarter more.
const REFUSED_NS: u64 = 10_000_000_000;

// What is looked for.
const DAEMON: u32 = 1;
const DEVICES: u32 = 2;

/// The daemon was found gone, or gave our slot away; devices that it refused are to be asked for again.
static SOUGHT: AtomicU32 = AtomicU32::new(0);
static TRYING: AtomicBool = AtomicBool::new(false);
/// When to try again: the daemon; and what it refused, never if that is nothing.
static NOT_BEFORE: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(u64::MAX);

/// What the last daemon left beside its socket; `None`: nothing.
///
/// # Errors
/// One line: the file and what is wrong with it.
pub fn file(socket: &Path) -> Result<Option<TermsFile>, String> {
    let path = socket.with_file_name(FILE_NAME);
    let wrong = |what: &dyn core::fmt::Display| format!("{}: {what}", path.display());
    // A pipe in its place must not hold the program up.
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

/// The daemon is gone: it is looked for from now on.
pub fn is_lost() {
    SOUGHT.fetch_or(DAEMON, AcqRel);
}

/// A device is without a slot of the daemon that is there: it is asked for again, if it is time to.
pub fn is_refused(now: u64) {
    if now >= REFUSED.load(Relaxed) {
        SOUGHT.fetch_or(DEVICES, AcqRel);
    }
}

/// Whether anything is looked for.
///
/// # Cost
/// One load.
pub fn seeks() -> bool {
    SOUGHT.load(Relaxed) != 0
}

/// When what is looked for is to be tried; all ones: nothing is looked for beside a daemon. `None`: there never was a daemon.
pub fn due() -> Option<u64> {
    match SOUGHT.load(Relaxed) {
        0 => session::current().map(|_| u64::MAX),
        what => Some(due_of(what)),
    }
}

fn due_of(what: u32) -> u64 {
    if what & DAEMON != 0 { NOT_BEFORE.load(Relaxed) } else { REFUSED.load(Relaxed) }
}

/// Looks whether it lives; if it does not, tries to find one, unless that was just done.
#[cold]
pub fn look() {
    let now = clock::now();
    if let Some(session) = session::current().filter(|session| !session.lives(now)) {
        lose(session);
    }
    is_refused(now);
    tend();
}

/// Counts the daemon as lost by the end of this session. While another thread says hello, or after it has found the next
/// daemon, the end of the former session says nothing: a second hello would map a second set of pages.
pub fn lose(session: &'static Session) {
    if !TRYING.load(Acquire) && session::is_present(session) {
        is_lost();
    }
}

/// True if something is looked for. An idle process counts its daemon as lost when the beat stopped and the daemon's end of
/// the connection is closed. A mere stall closes nothing; else ten thousand idle processes would say hello again.
pub fn notices_loss() -> bool {
    if let Some(session) = session::current().filter(|session| !session.lives(clock::now()))
        && hello::is_over()
    {
        lose(session);
    }
    seeks()
}

/// Tries to find the daemon again, or to join what it refused, if it is time to. Not under a lock.
///
/// # Cost
/// One load where nothing is looked for; else up to 300 ms for the hello and for each device, once a second; up to 2 s for
/// what was refused, by a daemon that beats and does not answer.
pub fn tend() {
    let what = SOUGHT.load(Relaxed);
    if what == 0 {
        return;
    }
    let (due, daemon) = (due_of(what), what & DAEMON != 0);
    if due == u64::MAX {
        // Nothing is refused any more; unless something just was.
        SOUGHT.fetch_and(!what, AcqRel);
        if REFUSED.load(Acquire) != u64::MAX {
            SOUGHT.fetch_or(what, AcqRel);
        }
    }
    if clock::now() < due || TRYING.swap(true, AcqRel) {
        return;
    }
    // Before, so that what is found gone meanwhile stays so.
    SOUGHT.fetch_and(!what, AcqRel);
    // A connection without an answer is given up, and the other devices' slots with it: not for a short stall.
    let answered = if daemon { again(false, PATIENCE) } else { more(hello::DEADLINE) };
    if !answered {
        is_lost();
    }
    if daemon {
        NOT_BEFORE.store(later(RETRY_NS), Relaxed);
    }
    TRYING.store(false, Release);
}

/// So much later, and up to a quarter more.
fn later(ns: u64) -> u64 {
    let now = clock::now();
    let jitter = (now ^ vgpu_core::mix::spread(std::process::id().into())) % (ns / 4);
    now.saturating_add(ns + jitter)
}

/// Says hello anew and joins all devices. False: nobody is there.
fn again(is_child: bool, patience: Duration) -> bool {
    let Some(socket) = variable("VGPU_SOCKET") else { return false };
    // One that refuses, or speaks another protocol, is no daemon of this process: its last terms hold.
    let Ok(session) = hello::begin(Path::new(&socket), patience) else { return false };
    if session.welcome.strict {
        doors::shut();
    }
    join_all(Err(session), is_child, patience)
}

/// Joins what the daemon that is there refused before. False: it is gone.
fn more(patience: Duration) -> bool {
    match session::current().filter(|session| session.lives(clock::now())) {
        Some(session) => join_all(Ok(session), false, patience),
        None => false,
    }
}

/// Joins all devices that have no slot of this session. Slots are taken, and the session kept, when every device was
/// answered for: silence ends the connection, and with it the slots that came before, so that nothing is left behind. A
/// forked child has nothing before any device; whoever was a member before may have, and says so by at least 1 ns of device
/// time, until it says in its report that it has not. False: nobody answers.
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
            // That is an answer: this device goes on by what held last.
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

/// Sees to it that what was refused is asked for again. Who launches there looks at its slot of the former daemon, and
/// tells when it is time; where there never was one, the thread that watches stays.
fn note_refused(session: &'static Session) {
    let mut refused = device::all().filter(|device| is_without(device, session)).peekable();
    REFUSED.store(if refused.peek().is_some() { later(REFUSED_NS) } else { u64::MAX }, Relaxed);
    if refused.any(|device| device.governor.as_ref().is_some_and(|governor| governor.post.place().is_none())) {
        SOUGHT.fetch_or(DEVICES, AcqRel);
    }
}

/// Joins a device that is being registered. A daemon that has gone since the welcome is looked for once, by one thread at a
/// time: a second conversation would end the one over which the first is about to join.
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
    // Somebody else may have found it meanwhile.
    let joined = match join() {
        Err(Trouble::Absent(_)) if again(false, hello::DEADLINE) => join(),
        Err(Trouble::Absent(_)) => first,
        joined => joined,
    };
    TRYING.store(false, Release);
    joined.map_err(told)
}

/// As [`join`], if the daemon has come back since the process began without it. Who is not answered, or refused, is asked
/// for again like any other device.
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

/// Registers a forked child anew. The limits are the parent's already; a daemon that is gone changes nothing.
pub fn reborn() {
    hello::reborn();
    // What a thread of the parent was just looking for is not marked as sought.
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
