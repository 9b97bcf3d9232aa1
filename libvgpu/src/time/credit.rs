//! The short path of a launch: which thread owns which credit, and how it launches on it without a lock.
//!
//! A thread that keeps launching into one stream gets a credit when it takes the governor's lock
//! ([`UsageMeter::allow_credit`](crate::time::meter::UsageMeter::allow_credit)). The credit allows a number of launches
//! and an amount of estimated work, up to the next clock read, marker or query. The thread counts its launches by
//! itself ([`vgpu_core::time::gate::credit`]). The next thread that takes the governor's lock counts them there first,
//! and revokes a credit that is no longer valid. That is so when the interval ended, the stream was found idle, or the
//! stream or the context ends. Some conditions change without the lock. The owner checks them before each launch: the
//! turn among the tenant's members, a capture that has begun, a fork, the mode of this process.
//!
//! The owner of an entry is identified by the address of its thread's control block, which no two living threads
//! share. An entry is never freed. When its thread ends, its words stay and are still counted; the next thread with
//! that control block owns it. A thread that finds no entry uses the lock. (A thread made without its own control
//! block, by a bare clone, can call neither the C library nor a driver.)
//!
//! No destructor, no thread-local data of the loader: a table in zeroed memory. Not here: the decision about
//! launches, and their count.

use crate::driver::launch::MeteredLaunch;
use crate::driver::streams::{self, StreamId};
use crate::ffi::arch::this_thread;
use crate::process::fork;
use crate::process::mode::{ProcessMode, process_mode};
use crate::time::launch_costs::LaunchCosts;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering::*};
use shim_sys::cuda::{CUcontext, CUfunction, CUstream};
use vgpu_core::time::gate::credit::LaunchCredit;
use vgpu_core::time::turn::TurnWatch;

/// Entries in the table, each for a thread and a stream; a power of two.
const CREDIT_PLACES: usize = 256;

/// The conditions of a credit. There is none under a daemon's gate: a credit there would also need the sequence of the
/// daemon's word, and a check that the word is unchanged before each launch.
pub struct CreditTerms {
    /// The learned costs of the governor whose lock counts the launches; `None`: nothing was ever granted.
    pub costs: Option<&'static LaunchCosts>,
    /// The launch that took the lock: only its stream and context matter, not its function.
    pub launch: MeteredLaunch,
    /// The stream timeline that counts the launches.
    pub chain: u64,
    /// The turn among the tenant's members, if they take turns.
    pub watch: Option<TurnWatch<'static>>,
}

impl CreditTerms {
    /// Nothing granted: zeros, so that the table takes no space in the library's file.
    const NOT_GRANTED: Self = Self {
        costs: None,
        launch: MeteredLaunch {
            context: CUcontext::NULL,
            stream: CUstream::NULL,
            per_thread: false,
            key: 0,
            in_parts: false,
        },
        chain: 0,
        watch: None,
    };

    fn is_by(&self, costs: &'static LaunchCosts) -> bool {
        self.costs.is_some_and(|one| core::ptr::eq(one, costs))
    }

    #[inline(always)]
    fn is_of(&self, stream: CUstream, per_thread: bool) -> bool {
        self.launch.stream == stream && self.launch.per_thread == per_thread
    }
}

/// The entry of one thread and one stream.
#[repr(align(128))]
pub struct CreditPlace {
    /// The owner; 0: none yet.
    thread: AtomicUsize,
    terms: UnsafeCell<CreditTerms>,
    /// The launches that this thread may still count without a lock.
    pub credit: LaunchCredit,
}

// SAFETY: `terms` is touched only by the thread that `thread` names, and by nobody while it is 0; the rest are atomics.
unsafe impl Sync for CreditPlace {}

static CREDIT_TABLE: [CreditPlace; CREDIT_PLACES] = [const {
    CreditPlace {
        thread: AtomicUsize::new(0),
        terms: UnsafeCell::new(CreditTerms::NOT_GRANTED),
        credit: LaunchCredit::new(),
    }
}; CREDIT_PLACES];

/// The two entries where a thread's credit for a stream may be.
#[inline(always)]
fn places_of(thread: usize, stream: CUstream, per_thread: bool) -> [&'static CreditPlace; 2] {
    let key = thread as u64 ^ (stream.0 as u64).rotate_left(19) ^ u64::from(per_thread);
    let at = vgpu_core::mix::slot_of(key, CREDIT_PLACES);
    [&CREDIT_TABLE[at % CREDIT_PLACES], &CREDIT_TABLE[(at ^ 1) % CREDIT_PLACES]]
}

impl CreditPlace {
    /// The conditions that this thread was granted here. `None`: another thread owns the entry, or no thread does.
    #[inline(always)]
    fn granted_terms(&self, thread: usize) -> Option<&CreditTerms> {
        if self.thread.load(Relaxed) != thread {
            return None;
        }
        // SAFETY: this thread owns the entry. No other thread touches the terms, and this thread writes them only in
        // `grant`, during which no reference from here is alive.
        Some(unsafe { &*self.terms.get() })
    }
}

/// A launch on a credit, already counted.
pub struct CountedLaunch {
    place: &'static CreditPlace,
    cost: u64,
}

impl CountedLaunch {
    /// The costs, the stream timeline and the estimate that the launch was counted by.
    pub fn counted_by(&self) -> Option<(&'static LaunchCosts, u64, u64)> {
        let terms = self.place.granted_terms(this_thread())?;
        Some((terms.costs?, terms.chain, self.cost))
    }
}

/// Counts a launch of `f` if this thread's credit allows it. `None` decides nothing: the launch must take the long
/// path.
///
/// # Cost
/// Some twenty loads and comparisons, two stores; for a default stream one call of the driver.
#[inline(always)]
pub fn launch_on_credit(
    f: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    stream: CUstream,
    per_thread: bool,
) -> Option<CountedLaunch> {
    if process_mode() != ProcessMode::On || !fork::is_settled() || streams::may_capture() {
        return None;
    }
    let thread = this_thread();
    let [first, second] = places_of(thread, stream, per_thread);
    let found =
        |place: &'static CreditPlace| place.granted_terms(thread).filter(|terms| terms.is_of(stream, per_thread));
    let (place, terms) = match found(first) {
        Some(terms) => (first, terms),
        None => (second, found(second)?),
    };
    // A stream keeps its context as long as it lives, and its end revokes the credit; a default stream belongs to the
    // current context.
    if (StreamId { stream, per_thread }).is_special() && streams::current() != terms.launch.context {
        return None;
    }
    if terms.watch.as_ref().is_some_and(|watch| !watch.is_unchanged()) {
        return None;
    }
    let key = crate::driver::launch::cost_key_of(f.0 as usize, grid, block);
    let cost = terms.costs?.short_cost(key)?;
    place.credit.take_launch(key, cost).then_some(CountedLaunch { place, cost })
}

/// This thread's entry for launches into the stream of `launch`, by the governor of these costs: its existing one, a
/// new one, or one of its others. `None`: no entry is available.
pub fn place_of(costs: &'static LaunchCosts, launch: &MeteredLaunch) -> Option<&'static CreditPlace> {
    let thread = this_thread();
    let pair = places_of(thread, launch.stream, launch.per_thread);
    let is_for = |place: &&&'static CreditPlace| {
        place
            .granted_terms(thread)
            .is_some_and(|terms| terms.is_of(launch.stream, launch.per_thread) && terms.is_by(costs))
    };
    let is_new = |place: &&&'static CreditPlace| {
        place.thread.load(Relaxed) == 0 && place.thread.compare_exchange(0, thread, Relaxed, Relaxed).is_ok()
    };
    // Another governor counts under its own lock, which must not be taken under this one's.
    let is_other = |place: &&&'static CreditPlace| {
        place.granted_terms(thread).is_some_and(|terms| terms.costs.is_none() || terms.is_by(costs))
    };
    pair.iter().find(is_for).or_else(|| pair.iter().find(is_new)).or_else(|| pair.iter().find(is_other)).copied()
}

impl CreditPlace {
    /// Grants this much on these terms. For the entry's own thread, under the governor's lock, after a count.
    pub fn grant_credit(&self, terms: CreditTerms, estimate: u64, launches: u64) {
        debug_assert_eq!(self.thread.load(Relaxed), this_thread());
        // SAFETY: this thread's entry, from `place_of`; no reference to the terms is alive.
        unsafe { *self.terms.get() = terms };
        self.credit.grant_work(estimate, launches);
    }
}

/// Forgets the parent's threads, in a forked child.
pub fn reset_after_fork() {
    for place in &CREDIT_TABLE {
        place.credit.revoke_credit();
        // SAFETY: the child's thread that settles it, before any other continues; terms have nothing to drop.
        unsafe { *place.terms.get() = CreditTerms::NOT_GRANTED };
        place.thread.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn living_threads_have_control_blocks_of_their_own() {
        let own = this_thread();
        assert_eq!(own, this_thread());
        let other = std::thread::scope(|scope| scope.spawn(this_thread).join().unwrap());
        assert_ne!(own, other);
    }
}
