//! Welcomes that a member never receives: their descriptors stay in flight. The kernel counts those against the
//! daemon's user until the other end receives them or is closed, even if the daemon closes its own end.
//!
//! So the daemon keeps such a connection after it ended, counts it against its tenant's share, and closes it when the
//! descriptors are delivered. Not here: sending ([`super::time`]), files in flight that wait for members
//! ([`crate::descriptor_pool`]).

use std::fs;
use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::process::{Resource, getrlimit};

use super::{PEER_TIMEOUT, Reactor};
use crate::answer;
use crate::connection::{Connection, ConnectionSide, ConnectionState};

/// The limit of undelivered welcomes is divided by the number of tenants, and by at least this many.
const MIN_HOARDERS: u64 = 8;

/// Edge-triggered: one event for each delivery, and one when the other end is closed.
const TAKEN_EVENTS: EventFlags = EventFlags::OUT.union(EventFlags::ET);

/// True if the kernel does not limit this process's descriptors in flight. That needs one of two capabilities
/// (`CAP_SYS_ADMIN`, `CAP_SYS_RESOURCE`) in the host's own user namespace. Root in a container lacks them, or has
/// them in another namespace, which does not count.
fn is_exempt(status: &str, uid_map: &str) -> bool {
    const CAP_SYS_ADMIN_BIT: u64 = 1 << 21;
    const CAP_SYS_RESOURCE_BIT: u64 = 1 << 24;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|word| u64::from_str_radix(word.trim(), 16).ok()).unwrap_or(0);
    let is_hosts = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
    is_hosts && effective & (CAP_SYS_ADMIN_BIT | CAP_SYS_RESOURCE_BIT) != 0
}

/// Most undelivered welcomes of all tenants together: half of the descriptors that the kernel lets be in flight. The
/// kernel's limit is that of open files. `None`: there is no limit.
pub(super) fn max_undelivered() -> Option<u64> {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    if is_exempt(&read("status"), &read("uid_map")) {
        return None;
    }
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    Some(limit / 2 / answer::WELCOME_DESCRIPTORS.len() as u64)
}

impl Reactor {
    /// True if a tenant has its share of undelivered welcomes already.
    ///
    /// # Cost
    /// None if there is no limit. Otherwise one system call for each welcomed connection of a tenant that has that
    /// many.
    pub(super) fn is_hoarding(&self, id: u64) -> bool {
        let Some(all) = self.most_untaken else { return false };
        let tenants = u64::try_from(self.rooms.len()).unwrap_or(u64::MAX);
        let most = usize::try_from(all / tenants.max(MIN_HOARDERS)).unwrap_or(usize::MAX).max(4);
        if self.rooms.get(&id).is_none_or(|room| room.members + room.untaken < most) {
            return false;
        }
        let theirs =
            self.connections.values().filter(|one| one.side == ConnectionSide::Member(id) && one.was_welcomed());
        theirs.filter(|one| one.is_unread()).take(most).count() >= most
    }

    /// True if this ended connection must be kept, because descriptors sent to it are still in flight.
    pub(super) fn is_kept(&self, connection: &Connection) -> bool {
        self.most_untaken.is_some() && connection.was_welcomed() && connection.is_unread()
    }

    /// Keeps an ended connection. It is checked again when its other end receives something or closes, and every 2 s.
    pub(super) fn keep_over(&mut self, token: u64, mut connection: Connection) {
        let again = Instant::now() + PEER_TIMEOUT;
        if !matches!(connection.state, ConnectionState::Over) {
            // Only once, since the change itself causes an event. If it fails, the deadline still leads to a check.
            let _ = epoll::modify(&self.epoll, &connection, EventData::new_u64(token), TAKEN_EVENTS);
        }
        (connection.state, connection.deadline) = (ConnectionState::Over, Some(again));
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
            // Capabilities that container engines leave to root.
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
