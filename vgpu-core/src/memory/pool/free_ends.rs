//! Ends of frees that are recorded without the pool's lock.
//!
//! A free begins under the pool's lock, before the driver is called. Taking that lock again at the end costs about as
//! much as the rest of the free. So a free gets a slot of its own, and its end is one store there
//! ([`FreeEnds::record_end`]). The next holder of the lock takes over all recorded ends before it does anything else
//! ([`SlottedFrees::next_ended`]). So each holder finds the state that it would find if the end had taken the lock.
//!
//! Two frees never share a slot. Otherwise one of two ends could overwrite the other, and the room of one block would
//! stay unknown: a full tenant's request that fits there would be refused. If all slots are taken, the end of a free
//! takes the lock.

use super::{NO_STREAM, PendingFree, StreamKey};
use crate::sync::{AtomicU64, Ordering};

/// Number of frees of a pool that can be in flight with a slot.
const FREE_SLOTS: usize = 8;

/// The recorded ends, by slot. They are outside the pool's lock.
#[derive(Debug)]
pub struct FreeEnds {
    /// The stream in whose order the slot's free ended; [`NO_STREAM`] until then.
    streams: [AtomicU64; FREE_SLOTS],
}

/// The slot of a free in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSlot(usize);

/// The frees that have a slot. They are under the pool's lock.
#[derive(Clone, Debug, Default)]
#[repr(C)] // the word that each holder of the lock reads comes first
pub struct SlottedFrees {
    /// A bit for each slot that is taken.
    taken: u32,
    /// The free of each slot.
    frees: [PendingFree; FREE_SLOTS],
}

impl Default for FreeEnds {
    fn default() -> Self {
        Self { streams: core::array::from_fn(|_| AtomicU64::new(NO_STREAM)) }
    }
}

impl FreeEnds {
    /// Records that the slot's free has ended in the order of `stream`.
    #[inline]
    pub fn record_end(&self, slot: FreeSlot, stream: StreamKey) {
        // Release: the holder that takes the end over sees all that this thread did before.
        self.streams[slot.0 % FREE_SLOTS].store(stream, Ordering::Release);
    }
}

impl SlottedFrees {
    /// Gives a slot to a free that begins. `None`: all are taken.
    #[inline]
    pub fn take_slot(&mut self, free: PendingFree) -> Option<FreeSlot> {
        let slot = self.taken.trailing_ones() as usize;
        *self.frees.get_mut(slot)? = free;
        self.taken |= 1 << slot;
        Some(FreeSlot(slot))
    }

    /// Takes the slot back from a free that ends under the lock.
    pub fn return_slot(&mut self, slot: FreeSlot) {
        self.taken &= !(1 << slot.0);
    }

    /// True if no free has a slot, so that there is no end to take over.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// Takes over one recorded end: the free, and the stream in whose order it ended. `None`: there is no other.
    #[inline]
    pub fn next_ended(&mut self, ends: &FreeEnds) -> Option<(PendingFree, StreamKey)> {
        let mut left = self.taken;
        while left != 0 {
            let slot = left.trailing_zeros() as usize % FREE_SLOTS;
            let stream = ends.streams[slot].load(Ordering::Acquire);
            if stream != NO_STREAM {
                // Relaxed: the slot's next free begins under the lock.
                ends.streams[slot].store(NO_STREAM, Ordering::Relaxed);
                self.taken &= !(1 << slot);
                return Some((self.frees[slot], stream));
            }
            left &= left - 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::pool::FreeRanges;

    #[cfg(not(loom))]
    #[test]
    fn each_free_in_flight_ends_for_itself_and_the_ones_beyond_the_slots_get_none() {
        let (ends, mut slotted, mut holes) = (FreeEnds::default(), SlottedFrees::default(), FreeRanges::new());
        let frees: Vec<PendingFree> = (0..=FREE_SLOTS as u64).map(|at| holes.begin_free(4096 * at, 4096)).collect();
        let mut slots: Vec<FreeSlot> = frees.iter().filter_map(|free| slotted.take_slot(*free)).collect();
        assert_eq!(slots.len(), FREE_SLOTS, "the last free got none");
        assert_eq!(slotted.next_ended(&ends), None, "none has ended");
        for ended in [5, 2] {
            ends.record_end(slots[ended], ended as u64);
        }
        assert_eq!(slotted.next_ended(&ends), Some((frees[2], 2)));
        assert_eq!(slotted.next_ended(&ends), Some((frees[5], 5)));
        assert_eq!(slotted.next_ended(&ends), None, "each ends once");
        slots[2] = slotted.take_slot(frees[FREE_SLOTS]).unwrap();
        assert_eq!(slotted.next_ended(&ends), None, "an end belongs to one free");
        slotted.return_slot(slots[5]);
        ends.record_end(slots[2], 0);
        assert_eq!(slotted.next_ended(&ends), Some((frees[FREE_SLOTS], 0)));
    }

    /// Two threads free a block each while a third looks. `RUSTFLAGS="--cfg loom" cargo test -p vgpu-core --release
    /// --lib loom_`. Red once when all frees shared a slot, and once when ends were recorded with `Relaxed`.
    #[cfg(loom)]
    #[test]
    fn loom_each_end_is_taken_over_once_and_after_the_driver_has_freed_the_block() {
        use loom::sync::{Arc, Mutex};
        const STREAMS: [StreamKey; 2] = [3, 4];

        #[derive(Default)]
        struct Pool {
            ends: FreeEnds,
            locked: Mutex<(SlottedFrees, FreeRanges, u64)>,
            freed: [AtomicU64; 2],
        }
        impl Pool {
            /// Takes over the ends, and returns the sum of the streams of all frees that have ended.
            fn ended(&self) -> u64 {
                let mut locked = self.locked.lock().unwrap();
                while let Some((free, stream)) = locked.0.next_ended(&self.ends) {
                    let index = STREAMS.iter().position(|known| *known == stream).expect("a stream");
                    assert_eq!(self.freed[index].load(Ordering::Relaxed), free.bytes(), "before the driver's answer");
                    locked.2 += stream;
                }
                locked.2
            }
        }
        loom::model(|| {
            let pool = Arc::new(Pool::default());
            let threads = [0, 1].map(|index: usize| {
                let pool = Arc::clone(&pool);
                loom::thread::spawn(move || {
                    let bytes = 1 + index as u64;
                    let slot = {
                        let mut locked = pool.locked.lock().unwrap();
                        let free = locked.1.begin_free(4096 * bytes, bytes);
                        locked.0.take_slot(free).expect("two slots")
                    };
                    pool.freed[index].store(bytes, Ordering::Relaxed);
                    pool.ends.record_end(slot, STREAMS[index]);
                })
            });
            let _ = pool.ended();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(pool.ended(), STREAMS.iter().sum(), "an end was lost, or taken over twice");
        });
    }
}
