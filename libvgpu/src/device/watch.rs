//! The helper thread's looks at the devices: it sees work complete while the program makes no call, passes the turn on
//! to other members of the tenant, and looks for a lost daemon.
//!
//! Not here: the thread itself ([`crate::process::helper_thread`]).

use super::reconnect;
use super::table;
use crate::daemon::search;
use crate::ffi::clock;
use crate::process::helper_thread::{self, doze_until};
use core::sync::atomic::Ordering::*;
use shim_sys::futex;

/// Time without contention after which the helper thread ends.
const IDLE_EXIT_NS: u64 = 1_000_000_000;
/// Polling interval with several devices: the helper thread can wait on one device's bell only.
const SEVERAL_DEVICES_POLL_NS: u64 = 1_000_000;
/// Polling interval while only open gates are left to watch.
const OPEN_GATE_POLL_NS: u64 = 10_000_000;

/// Starts or wakes the helper thread if it is not awake.
///
/// # Cost
/// One load if it is awake; some tens of microseconds if not.
pub fn start() {
    helper_thread::start(look_at_devices);
}

/// Starts the helper thread under a daemon, when the process begins to hold memory.
#[cold]
pub fn start_beside_daemon() {
    if search::next_try().is_some() && !helper_thread::is_there() {
        start();
    }
}

/// Checks every device once, then waits. False: the turn has not been contended for `IDLE_EXIT_NS`.
fn look_at_devices(last: &mut u64) -> bool {
    let now = clock::now();
    let (mut next, mut bells, mut bell) = (now.saturating_add(IDLE_EXIT_NS), 0, None);
    // True if a gate is watched. If its next check is far off, only open gates are watched, which is not urgent.
    let mut is_open = false;
    reconnect::reconnect_if_due();
    for device in table::all() {
        let Some(governor) = &device.governor else { continue };
        let Ok(joined) = device.ledger.membership() else { continue };
        let turn = joined.joined_member().device_turn();
        let heard = turn.bell_word().load(SeqCst);
        bells += 1;
        let look = governor.watch_turn(joined);
        let (word, heard, bits) = match governor.daemon_word() {
            Some((word, sequence)) => (word, sequence, u32::MAX),
            None => (turn.bell_word(), heard, turn.bell_bit()),
        };
        if let Some(look) = look {
            (*last, is_open) = (now, true);
            next = next.min(look);
            bell = Some((word, heard, bits));
        } else if bell.is_none() {
            bell = Some((word, heard, bits));
        }
    }
    let end = last.saturating_add(IDLE_EXIT_NS);
    let Some((word, heard, bits)) = bell else { return false };
    if now >= end {
        loop {
            let Some(due) = search::next_try() else { return false };
            let now = clock::now();
            let is_started =
                doze_until(due.clamp(now.saturating_add(OPEN_GATE_POLL_NS), now.saturating_add(IDLE_EXIT_NS)));
            if is_started || search::notices_loss() {
                return true;
            }
        }
    }
    let several = if is_open && next > now.saturating_add(IDLE_EXIT_NS / 2) {
        OPEN_GATE_POLL_NS
    } else {
        SEVERAL_DEVICES_POLL_NS
    };
    let most = if bells > 1 { now.saturating_add(several) } else { end };
    futex::wait(word, heard, next.min(end).min(most), bits);
    true
}
