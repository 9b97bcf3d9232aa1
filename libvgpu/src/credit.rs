//! The short way of a launch: which thread owns which credit, and what it needs to launch by it without a lock.
//!
//! A thread that goes on launching into one stream gets a credit when it comes by under the governor's lock
//! ([`Meter::allow`](crate::meter::Meter::allow)): so many launches, so much estimated work, up to the next look at the
//! clock, marker or question. It counts them by itself ([`vgpu_core::gate::credit`]); whoever takes the governor's lock
//! next counts them there first, and takes the credit back where its ground is gone: the interval ended, the stream was
//! found idle, the stream or the context ends. What needs no lock to change is looked at before each launch: the turn
//! among the tenant's members, a capture that has begun, a fork, the mode of this process.
//!
//! *Whose place it is* is told by the address of the thread's control block, which no two living threads share. A place is
//! never given back: when its thread ends, its words stay, and what they say is counted; whoever gets that control block
//! next owns it. A thread that finds no place goes by the lock, as everybody did. (Threads made without a control block
//! of their own, by a bare clone, can call neither the C library nor a driver.)
//!
//! No destructor, no thread-local data of the loader: a table in zeroed memory. Not here: what is allowed and counted.

use crate::arch::this_thread;
use crate::fork;
use crate::governor::Governor;
use crate::meter::Launch;
use crate::mode::{Mode, mode};
use crate::order::{self, Order};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering::*};
use shim_sys::cuda::{CUcontext, CUfunction, CUstream};
use vgpu_core::gate::credit::Credit;
use vgpu_core::turn::Watch;

/// Places for a thread and a stream, a power of two.
const PLACES: usize = 256;

/// What a credit was granted for. With a daemon its word belongs here too: its sequence, and `BoardSlot::stands`.
pub struct Terms {
    /// Whose lock counts; `None`: nothing was ever granted.
    pub governor: Option<&'static Governor>,
    /// The launch that came by: stream and context. Its function is not meant.
    pub launch: Launch,
    /// Where it is counted.
    pub chain: u64,
    /// The turn among the tenant's members, where they take turns.
    pub watch: Option<Watch<'static>>,
}

impl Terms {
    /// Nothing granted: zeros, so that the table takes no place in the library's file.
    const NONE: Self = Self {
        governor: None,
        launch: Launch { context: CUcontext::NULL, stream: CUstream::NULL, per_thread: false, key: 0, in_parts: false },
        chain: 0,
        watch: None,
    };

    fn is_by(&self, governor: &'static Governor) -> bool {
        self.governor.is_some_and(|one| core::ptr::eq(one, governor))
    }

    #[inline(always)]
    fn is_of(&self, stream: CUstream, per_thread: bool) -> bool {
        self.launch.stream == stream && self.launch.per_thread == per_thread
    }
}

/// The place of one thread and one stream.
#[repr(align(128))]
pub struct Place {
    /// The owner; 0: nobody yet.
    thread: AtomicUsize,
    terms: UnsafeCell<Terms>,
    /// How far it goes.
    pub credit: Credit,
}

// SAFETY: `terms` is touched only by the thread that `thread` names, and by nobody while it is 0; the rest are atomics.
unsafe impl Sync for Place {}

static TABLE: [Place; PLACES] =
    [const { Place { thread: AtomicUsize::new(0), terms: UnsafeCell::new(Terms::NONE), credit: Credit::new() } };
        PLACES];

/// The two places where a thread's credit for a stream may be.
#[inline(always)]
fn pair(thread: usize, stream: CUstream, per_thread: bool) -> [&'static Place; 2] {
    let key = thread as u64 ^ (stream.0 as u64).rotate_left(19) ^ u64::from(per_thread);
    let at = vgpu_core::mix::slot(key, PLACES);
    [&TABLE[at % PLACES], &TABLE[(at ^ 1) % PLACES]]
}

impl Place {
    /// What this thread was granted here. `None`: it is another thread's place, or nothing was.
    #[inline(always)]
    fn terms(&self, thread: usize) -> Option<&Terms> {
        if self.thread.load(Relaxed) != thread {
            return None;
        }
        // SAFETY: it is this thread's place; nobody else touches the terms, and this thread writes them only in `grant`,
        // beside which no reference from here is alive.
        Some(unsafe { &*self.terms.get() })
    }
}

/// A launch that goes by a credit, and is counted.
pub struct Passed {
    place: &'static Place,
    cost: u64,
}

impl Passed {
    /// The driver refused it: it is counted off.
    #[cold]
    pub fn refused(self) {
        if let Some(terms) = self.place.terms(this_thread())
            && let Some(governor) = terms.governor
        {
            governor.refused_on_credit(terms.chain, self.cost);
        }
    }
}

/// Counts a launch of `f` that may go by this thread's credit. `None` says nothing: it must go the long way.
///
/// # Cost
/// Some twenty loads and comparisons, two stores; for a default stream one call of the driver.
#[inline(always)]
pub fn pass(f: CUfunction, grid: [u32; 3], block: [u32; 3], stream: CUstream, per_thread: bool) -> Option<Passed> {
    if mode() != Mode::On || !fork::is_settled() || order::may_capture() {
        return None;
    }
    let thread = this_thread();
    let [first, second] = pair(thread, stream, per_thread);
    let found = |place: &'static Place| place.terms(thread).filter(|terms| terms.is_of(stream, per_thread));
    let (place, terms) = match found(first) {
        Some(terms) => (first, terms),
        None => (second, found(second)?),
    };
    // A stream has its context as long as it lives, and its end takes the credit back; a default stream is the current
    // context's.
    if (Order { stream, per_thread }).is_special() && order::current() != terms.launch.context {
        return None;
    }
    if terms.watch.as_ref().is_some_and(|watch| !watch.stands()) {
        return None;
    }
    let key = crate::meter::key(f.0 as usize, grid, block);
    let cost = terms.governor?.short_cost(key)?;
    place.credit.take(key, cost).then_some(Passed { place, cost })
}

/// This thread's place for launches into the stream of `launch`, by `governor`: the one it has, a new one, or one of its
/// others. `None`: there is none to be had.
pub fn place_of(governor: &'static Governor, launch: &Launch) -> Option<&'static Place> {
    let thread = this_thread();
    let pair = pair(thread, launch.stream, launch.per_thread);
    let is_for = |place: &&&'static Place| {
        place.terms(thread).is_some_and(|terms| terms.is_of(launch.stream, launch.per_thread) && terms.is_by(governor))
    };
    let is_new = |place: &&&'static Place| {
        place.thread.load(Relaxed) == 0 && place.thread.compare_exchange(0, thread, Relaxed, Relaxed).is_ok()
    };
    // Another governor counts by its own lock, which is not to be taken under this one's.
    let is_other = |place: &&&'static Place| {
        place.terms(thread).is_some_and(|terms| terms.governor.is_none() || terms.is_by(governor))
    };
    pair.iter().find(is_for).or_else(|| pair.iter().find(is_new)).or_else(|| pair.iter().find(is_other)).copied()
}

impl Place {
    /// Grants so much by these terms. By the place's own thread, under the governor's lock, after a count.
    pub fn grant(&self, terms: Terms, estimate: u64, launches: u64) {
        debug_assert_eq!(self.thread.load(Relaxed), this_thread());
        // SAFETY: this thread's place, from `place_of`; no reference to the terms is alive.
        unsafe { *self.terms.get() = terms };
        self.credit.grant(estimate, launches);
    }
}

/// Forgets the parent's threads, in a forked child.
pub fn reborn() {
    for place in &TABLE {
        place.credit.revoke();
        // SAFETY: the child's thread that settles it, before any other goes on; terms have nothing to drop.
        unsafe { *place.terms.get() = Terms::NONE };
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
