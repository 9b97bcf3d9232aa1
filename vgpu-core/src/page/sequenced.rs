//! A record that one side writes and others read whole, without a lock between them.
//!
//! The counter is odd while the record is written. Nobody waits for a writer that was stopped half way: a reader looks a
//! bounded number of times and then says so. The writer is one thread of the daemon.
//!
//! A reader makes relaxed loads only, with fences between them: those are the atomic accesses that Rust allows on memory
//! that is mapped read-only.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, spin_loop};

/// How often a reader looks before it says that the record is being written.
const LOOKS: usize = if cfg!(loom) { 2 } else { 64 };

/// `head` and `N` words that change together.
#[repr(C, align(64))]
pub struct Sequenced<const N: usize> {
    sequence: AtomicU32,
    head: AtomicU32,
    words: [AtomicU64; N],
}

/// The record is being written, or its writer died while it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Busy {
    /// The counter to sleep for.
    pub sequence: u32,
}

/// One state of a record, as far as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State<const M: usize> {
    /// Even; another one stands there as soon as the record is written again.
    pub sequence: u32,
    pub head: u32,
    pub words: [u64; M],
}

impl<const N: usize> Sequenced<N> {
    /// All zeroes, as a fresh memory file is.
    #[must_use]
    pub fn zeroed() -> Self {
        Self { sequence: AtomicU32::new(0), head: AtomicU32::new(0), words: super::zeros() }
    }

    /// The counter, for a futex: whoever read a state sleeps while its sequence stands here.
    pub fn futex(&self) -> &AtomicU32 {
        &self.sequence
    }

    /// Has the record not been written since the state with this sequence was read?
    ///
    /// # Cost
    /// One relaxed load.
    #[inline(always)]
    pub fn stands(&self, sequence: u32) -> bool {
        self.sequence.load(Ordering::Relaxed) == sequence
    }

    /// Changes the record. Whoever reads then sees all of the change or nothing; whoever sleeps must be woken by the
    /// caller. What this thread reads afterwards, it reads after the change.
    pub(super) fn write(&self, change: impl FnOnce(&mut u32, &mut [u64; N])) {
        // Odd already: a writer before us died here. Its counter is left behind too.
        let odd = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(odd, Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        let mut words: [u64; N] = core::array::from_fn(|at| self.words[at].load(Ordering::Relaxed));
        change(&mut head, &mut words);
        // Release: whoever sees one of these sees the odd counter.
        self.head.store(head, Ordering::Release);
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Release);
        }
        self.sequence.store(odd.wrapping_add(1), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Reads the first `M` words.
    ///
    /// # Cost
    /// `M` + 3 loads, which cost what others do where each acquires; more only while the record is being written.
    #[inline]
    pub(super) fn read<const M: usize>(&self) -> Result<State<M>, Busy> {
        const { assert!(M <= N) };
        let mut sequence = 0;
        for _ in 0..LOOKS {
            sequence = self.sequence.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if sequence & 1 == 0 {
                let head = self.head.load(Ordering::Relaxed);
                let words = core::array::from_fn(|at| self.words[at].load(Ordering::Relaxed));
                // The second look at the counter comes after these.
                fence(Ordering::Acquire);
                if self.stands(sequence) {
                    return Ok(State { sequence, head, words });
                }
            }
            spin_loop();
        }
        Err(Busy { sequence })
    }
}
