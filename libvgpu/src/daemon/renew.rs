//! Without the daemon: the start from what it left in writing, its loss, its return, a forked child.
//!
//! A lost daemon is looked for about once a second, by the thread that watches ([`crate::watcher`]) or by a call that was
//! about to be refused; never under a lock of the governor. Whoever was welcomed anew joins all devices with the device
//! time that it measured so far, and takes the new pages; what held before holds until then.

use super::hello::Trouble;
use super::{Place, Start, hello, session};
use crate::environment::variable;
use crate::{clock, device, doors, uuid};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::io::Read;
use std::path::Path;
use std::time::Duration;
use vgpu_core::wire::terms_file::{FILE_NAME, MAX_FILE, TermsFile};

/// Between two tries; up to a quarter more, so that members do not come all at once.
const RETRY_NS: u64 = 1_000_000_000;
/// How long the daemon may take to answer then.
const PATIENCE: Duration = Duration::from_millis(300);

/// The daemon was found gone, or gave our slot away.
static LOST: AtomicBool = AtomicBool::new(false);
static TRYING: AtomicBool = AtomicBool::new(false);
static NOT_BEFORE: AtomicU64 = AtomicU64::new(0);

/// What the last daemon left beside its socket; `None`: nothing.
///
/// # Errors
/// One line: the file and what is wrong with it.
pub fn file(socket: &Path) -> Result<Option<TermsFile>, String> {
    let path = socket.with_file_name(FILE_NAME);
    let wrong = |what: &dyn core::fmt::Display| format!("{}: {what}", path.display());
    let file = match std::fs::File::open(&path) {
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
    LOST.store(true, Release);
}

/// Whether it is looked for.
///
/// # Cost
/// One load.
pub fn seeks() -> bool {
    LOST.load(Relaxed)
}

/// Looks whether it lives; if it does not, tries to find one, unless that was just done.
#[cold]
pub fn look() {
    if session::current().is_some_and(|session| !session.lives(clock::now())) {
        is_lost();
    }
    tend();
}

/// Tries to find the daemon again, if it is time to. Not under a lock.
///
/// # Cost
/// One load where it is not lost; else up to two times 300 ms, once a second.
pub fn tend() {
    let now = clock::now();
    if !seeks() || now < NOT_BEFORE.load(Relaxed) || TRYING.swap(true, AcqRel) {
        return;
    }
    let jitter = (now ^ u64::from(std::process::id()).wrapping_mul(0x9e37_79b9_7f4a_7c15)) % (RETRY_NS / 4);
    if again(false, PATIENCE) {
        LOST.store(false, Release);
    }
    NOT_BEFORE.store(clock::now() + RETRY_NS + jitter, Relaxed);
    TRYING.store(false, Release);
}

/// Says hello anew and joins all devices. False: nobody is there. A forked child has nothing before any device; whoever was
/// a member before may have, and says so by at least 1 ns of device time, until it says in its report that it has not.
fn again(is_child: bool, patience: Duration) -> bool {
    let Some(socket) = variable("VGPU_SOCKET") else { return false };
    let session = match hello::begin(Path::new(&socket), patience) {
        Ok(Start::Session(session)) => session,
        // An older daemon knows that we live; it has no pages.
        Ok(_) | Err(_) => return false,
    };
    if session.welcome.strict {
        doors::shut();
    }
    device::all().all(|device| {
        let Some(governor) = &device.governor else { return true };
        let busy = if is_child { 0 } else { governor.post.busy().max(1) };
        let Ok(place) = hello::join(session, &uuid::text(&device.uuid), busy, patience) else { return false };
        governor.post.take(place);
        governor.greet();
        true
    })
}

/// Joins a device that is being registered. A daemon that has gone since the welcome is looked for once.
///
/// # Errors
/// One line.
pub fn join(name: &str) -> Result<Place, String> {
    let told = |trouble| match trouble {
        Trouble::Absent(words) | Trouble::Refused(words) => words,
    };
    let join = || match session::current() {
        Some(session) => hello::join(session, name, 0, hello::DEADLINE),
        None => Err(Trouble::Absent("there is no daemon".to_owned())),
    };
    match join() {
        Err(Trouble::Absent(_)) if again(false, hello::DEADLINE) => join().map_err(told),
        joined => joined.map_err(told),
    }
}

/// As [`join`], if the daemon has come back since the process began without it.
pub fn join_if_there(name: &str) -> Option<Place> {
    session::current().and_then(|session| hello::join(session, name, 0, PATIENCE).ok())
}

/// Registers a forked child anew. The limits are the parent's already; a daemon that is gone changes nothing.
pub fn reborn() {
    hello::reborn();
    TRYING.store(false, Relaxed);
    let had_pages = session::current().is_some();
    session::forget();
    if hello::close() || had_pages || seeks() {
        LOST.store(had_pages, Relaxed);
        if again(true, hello::DEADLINE) {
            LOST.store(false, Relaxed);
        }
    }
}
