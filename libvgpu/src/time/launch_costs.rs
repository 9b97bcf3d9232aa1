//! The learned device time of launches on one device.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use vgpu_core::time::account::cost::{CostGuess, CostTable, MAX_GUESS_NS, is_far};
use vgpu_core::time::config::{BASE, MARKER_INTERVAL_NS, SHORT_LAUNCH_NS};

/// Learned device time of launches, by function and grid.
pub struct LaunchCosts {
    /// Costs learned from undisturbed intervals; charges use them.
    pub exact: CostTable<1024>,
    /// Undisturbed costs: the time of launches when no process slows them, not even an unseen one.
    least: CostTable<1024>,
    /// Learned while others may have used the device: good enough to bound the work in flight, not to charge by.
    rough: CostTable<1024>,
}

impl LaunchCosts {
    /// Creates empty tables, directly on the heap: their 48 KiB exceed the stack that some threads have left.
    pub fn new_boxed() -> Box<Self> {
        let layout = Layout::new::<Self>();
        // SAFETY: the size is not zero. Tables of atomics: all zeros are valid, and are empty tables. The box frees
        // with the layout that it was allocated with.
        unsafe {
            let at = alloc_zeroed(layout);
            if at.is_null() { handle_alloc_error(layout) } else { Box::from_raw(at.cast()) }
        }
    }

    /// Creates tables without any learned cost.
    #[cfg(test)]
    pub const fn new() -> Self {
        Self { exact: CostTable::new(), least: CostTable::new(), rough: CostTable::new() }
    }

    /// The estimated cost of a launch, which is also the charge for one that is not measured.
    #[inline]
    pub fn guess_cost(&self, key: u64) -> CostGuess {
        self.exact.measured_cost(key).unwrap_or_else(|| self.rough.guess_cost(key))
    }

    /// The cost of a launch, if it may use a credit.
    #[inline(always)]
    pub fn short_cost(&self, key: u64) -> Option<u64> {
        self.guess_cost(key).known_below(SHORT_LAUNCH_NS)
    }

    /// True if all of these were measured while no other work was on the device.
    pub fn are_exact(&self, believed: &[(u64, u64)]) -> bool {
        believed.iter().all(|&(key, _)| self.exact.measured_cost(key).is_some())
    }

    /// Forgets a key, which names something else from now on.
    pub fn forget_key(&self, key: u64) {
        [&self.exact, &self.least, &self.rough].into_iter().for_each(|table| table.forget_key(key));
    }

    /// The charge for the first interval of a turn, if all its functions are known and it took about the expected
    /// time: at most a marker's interval more. Then the charge is at most the estimate, and no member pays for the
    /// context switch. Such an interval teaches nothing, because its two parts cannot be told apart.
    pub fn beside_change(&self, believed: &[(u64, u64)], estimate: u64, spent: u64) -> Option<u64> {
        let known = self.are_exact(believed);
        let usual = estimate / 2..=estimate.saturating_add(MARKER_INTERVAL_NS);
        (known && !believed.is_empty() && usual.contains(&spent)).then_some(spent.min(estimate))
    }

    /// Learns from launches of these functions. `believed` holds each function's estimated cost; together they were
    /// estimated at `estimate` and took `spent`. If others may have run, a far longer time is not learned, but it
    /// does not raise the confidence either.
    pub fn learn_costs(&self, believed: &[(u64, u64)], estimate: u64, spent: u64, clean: bool) {
        let is_far_off = spent > BASE.drain && is_far(spent, estimate);
        for &(key, cost) in believed {
            let scaled = u128::from(cost) * u128::from(spent) / u128::from(estimate.max(1));
            let cost = u64::try_from(scaled).unwrap_or(MAX_GUESS_NS).max(1);
            self.least.learn_least(key, cost, clean);
            if clean {
                self.exact.learn_cost(key, cost);
            } else if self.guess_cost(key).is_unknown() {
                self.rough.learn_cost(key, cost);
            } else if !is_far_off {
                self.age_doubt(key);
            }
        }
    }

    /// The undisturbed time of launches of these functions, estimated at `estimate` together.
    pub fn least_time(&self, believed: &[(u64, u64)], estimate: u64) -> u64 {
        let least = |&(key, cost): &(u64, u64)| self.least.measured_cost(key).map_or(cost, CostGuess::as_ns);
        let part = |costs: &dyn Fn(&(u64, u64)) -> u64| believed.iter().map(|one| u128::from(costs(one))).sum::<u128>();
        let (least, all) = (part(&least), part(&|one| one.1));
        u64::try_from(u128::from(estimate) * least / all.max(1)).unwrap_or(estimate)
    }

    /// Launches of these functions are over and taught nothing: raises the confidence in them.
    pub fn ripen_all(&self, believed: &[(u64, u64)]) {
        believed.iter().for_each(|&(key, _)| self.age_doubt(key));
    }

    /// A launch of this function taught nothing: raises the confidence in its cost.
    pub fn age_doubt(&self, key: u64) {
        self.exact.age_doubt(key);
        self.rough.age_doubt(key);
    }
}
