//! Tenants that do not fit now and for which a command waits (`vgpu tenant add --wait`).
//!
//! The command asks again several times a second. One that has not asked for [`FORGOTTEN_AFTER_NS`] has given up.
//! Pure: the time is an argument.

use std::collections::BTreeMap;

/// Time after its last request until an addition no longer waits, in ns. A busy host may delay a request.
const FORGOTTEN_AFTER_NS: u64 = 5_000_000_000;

/// Most additions that are remembered.
const MAX_WAITING: usize = 1024;

/// An addition that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WaitingAddition {
    /// Name of the tenant.
    pub tenant: String,
    /// Time of its first request, in ns.
    pub since: u64,
    /// Why it does not fit.
    pub words: String,
    last: u64,
}

/// The additions that wait.
#[derive(Debug, Default)]
pub(super) struct AdditionQueue(BTreeMap<String, WaitingAddition>);

impl AdditionQueue {
    /// Notes a request that was refused because the tenant does not fit.
    pub fn note_refusal(&mut self, tenant: &str, words: &str, now: u64) {
        self.forget_old(now);
        if self.0.len() >= MAX_WAITING && !self.0.contains_key(tenant) {
            return;
        }
        let fresh = || WaitingAddition { tenant: tenant.to_owned(), since: now, words: String::new(), last: now };
        let waiting = self.0.entry(tenant.to_owned()).or_insert_with(fresh);
        (waiting.last, waiting.words) = (now, words.to_owned());
    }

    /// Notes that a tenant was added.
    pub fn note_settled(&mut self, tenant: &str) {
        self.0.remove(tenant);
    }

    /// The additions that wait, the longest waiting first.
    pub fn waiting(&mut self, now: u64) -> Vec<WaitingAddition> {
        self.forget_old(now);
        let mut all: Vec<WaitingAddition> = self.0.values().cloned().collect();
        all.sort_by_key(|waiting| waiting.since);
        all
    }

    fn forget_old(&mut self, now: u64) {
        self.0.retain(|_, waiting| now.saturating_sub(waiting.last) <= FORGOTTEN_AFTER_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_again_keeps_its_place_and_who_stops_asking_loses_it() {
        let mut queue = AdditionQueue::default();
        let second = 1_000_000_000;
        queue.note_refusal("b", "full", second);
        queue.note_refusal("a", "full", 2 * second);
        queue.note_refusal("b", "still full", 3 * second);
        let order = |queue: &mut AdditionQueue, now| {
            queue.waiting(now).into_iter().map(|one| (one.tenant, one.since / second, one.words)).collect::<Vec<_>>()
        };
        let b = ("b".to_owned(), 1, "still full".to_owned());
        assert_eq!(order(&mut queue, 4 * second), [b.clone(), ("a".to_owned(), 2, "full".to_owned())]);
        assert_eq!(order(&mut queue, 8 * second), [b]);
        queue.note_settled("b");
        assert_eq!(order(&mut queue, 8 * second), []);
    }
}
