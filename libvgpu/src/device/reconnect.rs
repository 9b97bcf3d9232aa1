//! The daemon's return after a loss, and devices that join it: at registration, again later, in forked children.
//!
//! A process looks for a lost daemon about once a second. Its helper thread does this ([`super::watch`]), which every
//! process with a context has under a daemon; so does a call that is about to be refused. Neither holds a lock of the
//! governor. When a new daemon welcomes the process, the process joins all its devices with the device time measured so
//! far, and takes the new pages. The previous terms apply until then. If the daemon refuses a device, that device goes
//! on as without a daemon and does not keep other devices from joining. It asks again about every ten seconds.

use super::table::{self, Device};
use crate::daemon::hello::{self, HelloError};
use crate::daemon::search::*;
use crate::daemon::session::{self, PagesSlot, Session};
use crate::ffi::{clock, uuid};
use crate::ledger::file::Ledger;
use crate::process::environment::decisive_variable;
use crate::process::strictness::set_daemon_strict;
use core::sync::atomic::Ordering::*;
use std::path::Path;
use std::time::Duration;

/// Time between two tries, plus up to a quarter, so that the members of a tenant do not all try at once.
const RECONNECT_INTERVAL_NS: u64 = 1_000_000_000;
/// How long a returning daemon may take to answer.
const RECONNECT_TIMEOUT: Duration = Duration::from_millis(300);
/// How often a thread that wants to try checks whether another thread has finished.
const TRY_POLL_NS: u64 = 1_000_000;
/// Time until a refused device asks again, plus up to a quarter.
const REJOIN_INTERVAL_NS: u64 = 10_000_000_000;

/// Checks whether the daemon is alive. If it is not, tries to find one, unless that was just done.
#[cold]
fn look_for_daemon() {
    let now = clock::now();
    if let Some(session) = session::current().filter(|session| !session.is_beating(now)) {
        note_lost(session);
    }
    is_refused(now);
    reconnect_if_due();
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
        set_daemon_strict();
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
/// and report when the time has come. A device that never had a slot relies on the helper thread, so the search is
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
pub fn rejoin_after_fork() {
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

impl Device {
    /// Checks whether the daemon is alive, and looks for a new one if not. Called before a request is refused or a
    /// number is shown.
    pub fn look_for_daemon(&self) {
        if self.is_governed() {
            look_for_daemon();
        }
    }
}
