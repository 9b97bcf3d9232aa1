//! A credit: launches that one thread may make without taking the lock that protects the count of work in flight.
//!
//! Under the lock, [`LaunchCredit::grant_work`] allows an amount of estimated work and a number of launches.
//! [`super::LaunchGate`], the account and the markers decide how much. Then one thread, the owner, counts each launch
//! here ([`LaunchCredit::take_launch`]) with plain loads and stores of words that only it writes. The lock's holder
//! reads those words and counts the new launches ([`LaunchCredit::count_new`]).
//!
//! *No launch is lost.* The owner's words only grow, and only the owner writes them. A reader remembers how much it
//! has counted ([`CreditCount`]) and never subtracts. So a reader that looks often enough counts each launch exactly
//! once, even if a store of the owner becomes visible late or the owner dies. *At most one launch escapes a
//! revocation.* [`LaunchCredit::revoke_credit`] sets a word that the owner reads before each launch. The owner may be
//! interrupted between that load and its own store; the launch under way then goes and is counted late. The same
//! happens to a launch that was counted under the lock and interrupted before the driver call.
//!
//! A credit has one owner at a time. The next owner must start after the last one ended, as a thread does that gets
//! the place of a dead one. Not here: which thread owns which credit, and the lock.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Number of functions that one credit can tell apart.
#[cfg(not(loom))]
const MAX_CREDIT_FUNCTIONS: usize = 16;
#[cfg(loom)]
const MAX_CREDIT_FUNCTIONS: usize = 2;

struct CreditFunction {
    key: AtomicU64,
    cost: AtomicU64,
}

/// The words of one credit. The owner writes all of them except `most`.
pub struct LaunchCredit {
    /// Estimated work of all launches so far.
    spent: AtomicU64,
    /// Number of all launches so far.
    launches: AtomicU64,
    /// The limit up to which `spent` may grow.
    most: AtomicU64,
    /// The limit up to which `launches` may grow.
    last: AtomicU64,
    /// Different functions launched since the last grant.
    len: AtomicU32,
    functions: [CreditFunction; MAX_CREDIT_FUNCTIONS],
}

/// The part of a credit that a reader has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditCount {
    spent: u64,
    launches: u64,
}

/// Launches that are new since the last count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditUse {
    /// Estimated device time of the launches, in ns.
    pub estimate: u64,
    /// Number of launches.
    pub launches: u64,
}

impl Default for LaunchCredit {
    fn default() -> Self {
        Self::new()
    }
}

impl LaunchCredit {
    /// A credit with no launches granted and none spent.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            spent: AtomicU64::new(0),
            launches: AtomicU64::new(0),
            most: AtomicU64::new(0),
            last: AtomicU64::new(0),
            len: AtomicU32::new(0),
            functions: [const { CreditFunction { key: AtomicU64::new(0), cost: AtomicU64::new(0) } };
                MAX_CREDIT_FUNCTIONS],
        }
    }

    /// A credit with no launches granted and none spent.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            spent: AtomicU64::new(0),
            launches: AtomicU64::new(0),
            most: AtomicU64::new(0),
            last: AtomicU64::new(0),
            len: AtomicU32::new(0),
            functions: core::array::from_fn(|_| CreditFunction { key: AtomicU64::new(0), cost: AtomicU64::new(0) }),
        }
    }

    /// Counts one launch of function `key` that costs `cost`, if the credit covers it. For the owner only, before it
    /// calls the driver. `false`: nothing is counted, and the launch must ask under the lock.
    ///
    /// # Cost
    /// Five loads and two stores, all of the owner's own cache lines; no atomic read-modify-write.
    #[inline(always)]
    pub fn take_launch(&self, key: u64, cost: u64) -> bool {
        let spent = self.spent.load(Ordering::Relaxed).saturating_add(cost);
        let launches = self.launches.load(Ordering::Relaxed).wrapping_add(1);
        if spent > self.most.load(Ordering::Relaxed) || launches > self.last.load(Ordering::Relaxed) {
            return false;
        }
        self.note_function(key, cost);
        self.launches.store(launches, Ordering::Relaxed);
        // Stored after the functions: a reader that counts this launch sees its function.
        self.spent.store(spent, Ordering::Release);
        true
    }

    #[inline(always)]
    fn note_function(&self, key: u64, cost: u64) {
        let len = self.len.load(Ordering::Relaxed);
        if self.functions.iter().take(len as usize).any(|function| function.key.load(Ordering::Relaxed) == key) {
            return;
        }
        self.note_new(len, key, cost);
    }

    /// Notes a new function while there is room; further functions are not learned from.
    #[cold]
    fn note_new(&self, len: u32, key: u64, cost: u64) {
        if let Some(function) = self.functions.get(len as usize) {
            function.key.store(key, Ordering::Relaxed);
            function.cost.store(cost, Ordering::Relaxed);
            self.len.store(len + 1, Ordering::Relaxed);
        }
    }

    /// Grants `estimate` of work in at most `launches` launches; this replaces what is left. For the owner, under the
    /// lock, after a count. `launches` 0 or `estimate` 0 grants nothing.
    pub fn grant_work(&self, estimate: u64, launches: u64) {
        self.len.store(0, Ordering::Relaxed);
        self.last.store(self.launches.load(Ordering::Relaxed).wrapping_add(launches), Ordering::Relaxed);
        self.most.store(self.spent.load(Ordering::Relaxed).saturating_add(estimate), Ordering::Relaxed);
    }

    /// Stops all launches on this credit until the next grant. For the lock's holder.
    pub fn revoke_credit(&self) {
        // Less than any launch needs: a launch costs at least a nanosecond.
        self.most.store(0, Ordering::Relaxed);
    }

    /// The unspent part of the grant. Under the lock.
    #[must_use]
    pub fn unspent_work(&self) -> u64 {
        self.most.load(Ordering::Relaxed).saturating_sub(self.spent.load(Ordering::Relaxed))
    }

    /// Returns the launches since `counted`. For the lock's holder. Launches that the owner makes meanwhile count as
    /// new the next time.
    ///
    /// # Cost
    /// Two loads.
    #[inline]
    pub fn count_new(&self, counted: &mut CreditCount) -> CreditUse {
        // In this order: a reader that counts the work of a launch has counted the launch.
        let spent = self.spent.load(Ordering::Acquire);
        let launches = self.launches.load(Ordering::Relaxed);
        let taken = CreditUse {
            estimate: spent.wrapping_sub(counted.spent),
            launches: launches.wrapping_sub(counted.launches),
        };
        *counted = CreditCount { spent, launches };
        taken
    }

    /// The functions launched since the last grant, each with its cost. Call [`Self::count_new`] first.
    pub fn launched_functions(&self) -> impl Iterator<Item = (u64, u64)> {
        let len = self.len.load(Ordering::Relaxed) as usize;
        self.functions
            .iter()
            .take(len)
            .map(|function| (function.key.load(Ordering::Relaxed), function.cost.load(Ordering::Relaxed)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_credit_goes_as_far_as_it_was_granted_and_not_further() {
        let (credit, mut counted) = (LaunchCredit::new(), CreditCount::default());
        assert!(!credit.take_launch(1, 1), "nothing was granted");
        credit.grant_work(1_000, 8);
        assert_eq!((0..20).filter(|_| credit.take_launch(7, 300)).count(), 3, "by work");
        assert_eq!(credit.count_new(&mut counted), CreditUse { estimate: 900, launches: 3 });
        credit.grant_work(1_000, 8);
        assert_eq!((0..20).filter(|_| credit.take_launch(7, 1)).count(), 8, "by number");
        assert_eq!(credit.count_new(&mut counted), CreditUse { estimate: 8, launches: 8 });
        assert_eq!(credit.count_new(&mut counted), CreditUse::default(), "each once");
        credit.grant_work(1_000, 8);
        assert!(credit.take_launch(7, 1));
        assert_eq!(credit.unspent_work(), 999);
        credit.revoke_credit();
        assert!(!credit.take_launch(7, 1) && credit.unspent_work() == 0);
        assert_eq!(
            credit.count_new(&mut counted),
            CreditUse { estimate: 1, launches: 1 },
            "what went before still counts"
        );
    }

    #[test]
    fn each_function_is_told_once_and_only_since_the_grant() {
        let credit = LaunchCredit::new();
        credit.grant_work(10_000, 100);
        for _ in 0..3 {
            assert!(credit.take_launch(5, 10) && credit.take_launch(6, 20));
        }
        assert_eq!(credit.launched_functions().collect::<Vec<_>>(), [(5, 10), (6, 20)]);
        credit.grant_work(10_000, 100);
        assert_eq!(credit.launched_functions().count(), 0);
        assert_eq!((0..40).filter(|&key| credit.take_launch(key, 1)).count(), 40, "more than are told apart");
        assert_eq!(credit.launched_functions().count(), MAX_CREDIT_FUNCTIONS);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! `RUSTFLAGS="--cfg loom" cargo test -p vgpu-core --release --lib loom_`
    //!
    //! Seen red with a `count` that takes what it counted out of the owner's words.

    use super::*;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    /// One thread counts and revokes while the owner launches. The launches that both counted must agree with those
    /// that went.
    #[test]
    fn loom_every_launch_is_counted_once_whoever_counts_when() {
        loom::model(|| {
            let credit = Arc::new(LaunchCredit::new());
            let counts = Arc::new(Mutex::new((CreditCount::default(), CreditUse::default())));
            credit.grant_work(2, 2);
            let look = |credit: &LaunchCredit, counts: &Mutex<(CreditCount, CreditUse)>| {
                let (counted, sum) = &mut *counts.lock().unwrap();
                let taken = credit.count_new(counted);
                sum.estimate += taken.estimate;
                sum.launches += taken.launches;
                assert!(sum.launches >= sum.estimate, "work of a launch that was not counted");
            };
            let other = {
                let (credit, counts) = (credit.clone(), counts.clone());
                thread::spawn(move || {
                    look(&credit, &counts);
                    let _held = counts.lock().unwrap();
                    credit.revoke_credit();
                })
            };
            let went = (0..2).filter(|_| credit.take_launch(7, 1)).count() as u64;
            look(&credit, &counts);
            other.join().unwrap();
            look(&credit, &counts);
            let sum = counts.lock().unwrap().1;
            assert_eq!(sum, CreditUse { estimate: went, launches: went });
            assert!(!credit.take_launch(7, 1), "revoked");
        });
    }
}
