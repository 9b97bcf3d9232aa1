//! A sequence lock: a record that one thread writes and others read whole, without a lock between them.
//!
//! The counter is odd while the record is written. No reader waits for a writer that stopped midway: it tries a
//! bounded number of times and then returns [`BeingWritten`]. The writer is one thread of the daemon.
//!
//! A reader makes only relaxed loads, with fences between them. Rust allows no other atomic accesses to memory that
//! is mapped read-only.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, spin_loop};

/// Tries before a reader reports that the record is being written.
const MAX_READ_TRIES: usize = if cfg!(loom) { 2 } else { 64 };

/// A head and `N` words that change together.
#[repr(C, align(64))]
pub struct Sequenced<const N: usize> {
    sequence: AtomicU32,
    head: AtomicU32,
    words: [AtomicU64; N],
}

/// The record is being written, or its writer died during the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BeingWritten {
    /// Futex value to sleep on.
    pub sequence: u32,
}

/// One state of a record: the words that the reader requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordState<const M: usize> {
    /// Even; the next write changes the counter.
    pub sequence: u32,
    pub head: u32,
    pub words: [u64; M],
}

impl<const N: usize> Sequenced<N> {
    /// A record of zeros, as in a new memory file.
    #[must_use]
    pub fn zeroed() -> Self {
        Self { sequence: AtomicU32::new(0), head: AtomicU32::new(0), words: super::zeroed_words() }
    }

    /// The counter as a futex: a reader of a state sleeps while it equals that state's sequence.
    pub fn futex_word(&self) -> &AtomicU32 {
        &self.sequence
    }

    /// True if the record was not written since the state with this sequence was read.
    ///
    /// # Cost
    /// One relaxed load.
    #[inline(always)]
    pub fn is_unchanged(&self, sequence: u32) -> bool {
        self.sequence.load(Ordering::Relaxed) == sequence
    }

    /// Changes the record. Readers see the whole change or nothing. The caller wakes the sleepers. Later reads of
    /// this thread are ordered after the change.
    pub(super) fn write(&self, change: impl FnOnce(&mut u32, &mut [u64; N])) {
        // Already odd: an earlier writer died here. The addition below passes its counter, too.
        let odd = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(odd, Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        let mut words: [u64; N] = core::array::from_fn(|at| self.words[at].load(Ordering::Relaxed));
        change(&mut head, &mut words);
        // Release: a reader that sees one of these stores also sees the odd counter.
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
    /// `M` + 3 loads, relaxed, at the cost of acquire loads because of the fences; more only while the record is
    /// being written.
    #[inline]
    pub(super) fn read<const M: usize>(&self) -> Result<RecordState<M>, BeingWritten> {
        const { assert!(M <= N) };
        let mut sequence = 0;
        for _ in 0..MAX_READ_TRIES {
            sequence = self.sequence.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if sequence & 1 == 0 {
                let head = self.head.load(Ordering::Relaxed);
                let words = core::array::from_fn(|at| self.words[at].load(Ordering::Relaxed));
                // Orders the second load of the counter after these loads.
                fence(Ordering::Acquire);
                if self.is_unchanged(sequence) {
                    return Ok(RecordState { sequence, head, words });
                }
            }
            spin_loop();
        }
        Err(BeingWritten { sequence })
    }
}
