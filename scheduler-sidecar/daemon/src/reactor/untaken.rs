//! Welcomes that nobody takes: the descriptors that came with them are in flight, and the kernel counts those as the daemon's
//! until they are taken out at the other end or that end is gone, whatever becomes of the daemon's own end.
//!
//! So a connection that is over is kept as long as that lasts, counts against its tenant's share, and is closed then. Not
//! here: what is sent ([`super::time`]), files that wait in flight for members ([`vgpu_accounting::shelf`]).

use std::fs;
use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::process::{Resource, getrlimit};

use super::{PATIENCE, Reactor};
use crate::answer;
use crate::connection::{Connection, Side, State};

/// Tenants that may at least have as many as they may before nobody else is welcomed.
const HOARDERS: u64 = 8;

/// Every taking out is an event, once; so is the other end's end.
const TAKEN: EventFlags = EventFlags::OUT.union(EventFlags::ET);

/// Is nobody counting? It takes one of two capabilities of the host's own user namespace: root in a container has none of
/// them, or those of another namespace, which do not count.
fn is_exempt(status: &str, uid_map: &str) -> bool {
    const ADMIN: u64 = 1 << 21;
    const RESOURCE: u64 = 1 << 24;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|word| u64::from_str_radix(word.trim(), 16).ok()).unwrap_or(0);
    let is_hosts = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
    is_hosts && effective & (ADMIN | RESOURCE) != 0
}

/// Welcomes that may be untaken, of all tenants together: half of the descriptors that the kernel lets be in flight, which are
/// as many as may be open. `None`: there is no bound.
pub(super) fn most() -> Option<u64> {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    if is_exempt(&read("status"), &read("uid_map")) {
        return None;
    }
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    Some(limit / 2 / answer::DESCRIPTORS.len() as u64)
}

impl Reactor {
    /// Whether a tenant has as many welcomes lying about untaken as it may.
    ///
    /// # Cost
    /// None where nothing is counted; else a system call for each connection of a tenant to which that many were welcomed.
    pub(super) fn hoards(&self, id: u64) -> bool {
        let Some(all) = self.most_untaken else { return false };
        let tenants = u64::try_from(self.rooms.len()).unwrap_or(u64::MAX);
        let most = usize::try_from(all / tenants.max(HOARDERS)).unwrap_or(usize::MAX).max(4);
        if self.rooms.get(&id).is_none_or(|room| room.paged + room.untaken < most) {
            return false;
        }
        let theirs = self.connections.values().filter(|one| one.side == Side::Member(id) && one.was_welcomed());
        theirs.filter(|one| one.is_unread()).take(most).count() >= most
    }

    /// A connection of a room is over: is it to be kept, since what was sent is still in flight?
    pub(super) fn is_kept(&self, connection: &Connection) -> bool {
        self.most_untaken.is_some() && connection.was_welcomed() && connection.is_unread()
    }

    /// Keeps it. It is looked at when something is taken out at its other end, when that is gone, and now and then.
    pub(super) fn keep_over(&mut self, token: u64, mut connection: Connection) {
        let again = Instant::now() + PATIENCE;
        if !matches!(connection.state, State::Over) {
            // Once: it is an event by itself. Where it cannot be, the deadline is what is left.
            let _ = epoll::modify(&self.epoll, &connection, EventData::new_u64(token), TAKEN);
        }
        (connection.state, connection.deadline) = (State::Over, Some(again));
        self.deadlines.insert((again, token));
        self.connections.insert(token, connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_counted_is_told_by_capabilities_and_not_by_the_user() {
        let hosts = "         0          0 4294967295\n";
        let with = |word: &str| format!("Name:\tvgpud\nUid:\t0\t0\t0\t0\nCapPrm:\t000001ffffffffff\nCapEff:\t{word}\n");
        for (word, exempt) in [
            ("000001ffffffffff", true),
            ("0000000000200000", true),
            ("0000000001000000", true),
            // What container engines leave root.
            ("00000000a80425fb", false),
            ("0000000000000000", false),
            ("", false),
        ] {
            assert_eq!(is_exempt(&with(word), hosts), exempt, "{word:?}");
        }
        let all = with("000001ffffffffff");
        assert!(!is_exempt(&all, "         0     100000      65536\n"), "a namespace's own capabilities");
        assert!(!is_exempt(&all, "") && !is_exempt("", hosts));
    }
}
