//! Whether a lost daemon, or slots for devices that it refused, are being sought, and when to try next.
//!
//! Not here: the tries themselves, which join this process's devices again (`device/reconnect`).

use super::hello;
use super::session::{self, Session};
use crate::ffi::clock;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

/// Bit of [`SEEKING`]: the daemon was found gone, or gave our slot away.
pub const SEEK_DAEMON: u32 = 1;
/// Bit of [`SEEKING`]: devices that the daemon refused must ask again.
pub const SEEK_DEVICES: u32 = 2;

/// Bits of the searches to do.
pub static SEEKING: AtomicU32 = AtomicU32::new(0);
/// Whether a thread is searching.
pub static TRYING: AtomicBool = AtomicBool::new(false);
/// Earliest time of the next search for the daemon.
pub static RECONNECT_NOT_BEFORE: AtomicU64 = AtomicU64::new(0);
/// Earliest time at which refused devices ask again; all ones: none is refused.
pub static REJOIN_NOT_BEFORE: AtomicU64 = AtomicU64::new(u64::MAX);

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

/// When the search for these bits is due.
pub fn due_of(what: u32) -> u64 {
    if what & SEEK_DAEMON != 0 { RECONNECT_NOT_BEFORE.load(Relaxed) } else { REJOIN_NOT_BEFORE.load(Relaxed) }
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
