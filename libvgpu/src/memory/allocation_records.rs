//! Allocation records: the charge of each address or handle, so that its end releases exactly the bytes that its
//! beginning charged.
//!
//! Each kind has its own table, so that kinds cannot be confused: device addresses, arrays, and memory of other APIs.
//! Physical allocations of the virtual-memory calls are in `physical`, and a pool keeps its blocks itself
//! (`pool_entry`). A charge belongs to the context that made it and ends with that context. Tables are split into
//! shards so that threads do not queue; a lock is held for one table operation only.

use crate::ffi::lock::{Lock, LockGuard};
use crate::ledger::held_shares::LocalShare;
use core::hash::{BuildHasherDefault, Hasher};
use core::sync::atomic::{AtomicU64, Ordering::*};
use shim_sys::cuda::CUcontext;
use std::collections::HashMap;

/// The charge of an address or a handle, and its context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocationRecord {
    /// The kind of the charge.
    pub charge: RecordedCharge,
    /// The context, as an integer. 0: none, for example for physical allocations, which outlive contexts.
    pub context: usize,
}

/// The kind of charge of an allocation record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordedCharge {
    /// Bytes of its own.
    Own {
        /// Bytes charged.
        bytes: u64,
        /// Number of the device that the bytes are on.
        device: u8,
    },
    /// A place in a slab that several allocations share: see `slabs`.
    InSlab {
        /// Number of the slab.
        slab: u64,
        /// Number of the device that the slab is on.
        device: u8,
    },
    /// A hold on a share: memory that several processes hold is charged to the share, not to the process.
    Share(LocalShare),
    /// One reference to a refcounted charge, by its number: see `refcounted_charge`.
    Refcounted(u32),
}

impl AllocationRecord {
    /// A charge of its own.
    #[inline]
    pub const fn of_bytes(bytes: u64, device: u8, context: usize) -> Self {
        Self { charge: RecordedCharge::Own { bytes, device }, context }
    }

    /// A hold on a share.
    pub fn of_share(share: LocalShare, context: usize) -> Self {
        Self { charge: RecordedCharge::Share(share), context }
    }

    /// The context that the charge belongs to.
    pub fn context_handle(&self) -> CUcontext {
        CUcontext(self.context as *mut _)
    }

    /// The bytes of its own, and the number of their device.
    #[inline]
    pub fn own_bytes(&self) -> Option<(u64, u8)> {
        match self.charge {
            RecordedCharge::Own { bytes, device } => Some((bytes, device)),
            _ => None,
        }
    }

    /// The share, if this is a hold on one.
    pub fn as_share(&self) -> Option<LocalShare> {
        match self.charge {
            RecordedCharge::Share(share) => Some(share),
            _ => None,
        }
    }
}

/// Hashes by multiplication with an odd constant: keys are addresses, aligned and dense.
#[derive(Default)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, key: u64) {
        let mixed = vgpu_core::mix::spread_key(self.0 ^ key);
        self.0 = mixed ^ (mixed >> 29);
    }
}

/// A map by address or handle.
pub type Map<V> = HashMap<u64, V, BuildHasherDefault<AddressHasher>>;
/// An empty map.
pub const fn empty_map<V>() -> Map<V> {
    HashMap::with_hasher(BuildHasherDefault::new())
}

const TABLE_SHARDS: usize = 16;

/// One shard of a table, on its own cache line.
#[repr(align(64))]
struct TableShard {
    map: Lock<Map<AllocationRecord>>,
    /// Charges taken out for frees so far; written by the holder of the lock.
    leaving: AtomicU64,
    /// How many of the frees in `leaving` have ended.
    left: AtomicU64,
    /// How often a charge was stored, or taken out otherwise; written by the holder of the lock.
    events: AtomicU64,
}

impl TableShard {
    const fn new() -> Self {
        Self {
            map: Lock::new(empty_map()),
            leaving: AtomicU64::new(0),
            left: AtomicU64::new(0),
            events: AtomicU64::new(0),
        }
    }

    /// Locks the shard for a change of `events` charges.
    #[inline(always)]
    fn lock_for_change(&self, events: u64) -> LockGuard<'_, Map<AllocationRecord>> {
        let map = self.map.lock();
        self.events.store(self.events.load(Relaxed).wrapping_add(events), Relaxed);
        map
    }
}

/// Charge records by address or handle.
pub struct RecordTable {
    shards: [TableShard; TABLE_SHARDS],
}

/// The result of storing a charge record.
pub enum PutOutcome {
    /// The record is stored, and its key was free.
    New,
    /// The record is stored and replaces one of the same key, whose memory was freed by a call that no hook saw.
    InPlaceOf(AllocationRecord),
    /// The record is not stored.
    Not,
}

/// A free in flight, whose charge was taken out. Drop it after the charge was released; that ends the free.
#[must_use]
pub struct FreeInProgress(&'static AtomicU64);

impl Drop for FreeInProgress {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_add(1, Release);
    }
}

/// Charges of device addresses: plain, pitched and managed allocations.
pub static ADDRESS_RECORDS: RecordTable = RecordTable::new();
/// Charges of arrays and mipmapped arrays.
pub static ARRAY_RECORDS: RecordTable = RecordTable::new();
/// Charges of memory that another API allocated.
pub static EXTERNAL_RECORDS: RecordTable = RecordTable::new();

impl RecordTable {
    const fn new() -> Self {
        Self { shards: [const { TableShard::new() }; TABLE_SHARDS] }
    }

    #[allow(clippy::cast_possible_truncation)] // masked
    fn shard_of(&self, key: u64) -> &TableShard {
        &self.shards[((key >> 9) ^ (key >> 21)) as usize % TABLE_SHARDS]
    }

    /// Stores a charge. A key that is already stored was freed by a call that no hook saw: its old charge is
    /// returned.
    pub fn insert_record(&self, key: u64, holding: AllocationRecord) -> Option<AllocationRecord> {
        self.shard_of(key).lock_for_change(1).insert(key, holding)
    }

    /// As [`RecordTable::insert_record`], if `lives` returns true while the shard is locked.
    #[inline(always)] // hot, and the crate is optimised for size
    pub fn put_if(&self, key: u64, holding: AllocationRecord, lives: impl FnOnce() -> bool) -> PutOutcome {
        let mut map = self.shard_of(key).lock_for_change(1);
        if !lives() {
            return PutOutcome::Not;
        }
        map.insert(key, holding).map_or(PutOutcome::New, PutOutcome::InPlaceOf)
    }

    /// Removes and returns the charge of `key`.
    pub fn take_record(&self, key: u64) -> Option<AllocationRecord> {
        self.shard_of(key).lock_for_change(1).remove(&key)
    }

    /// As [`RecordTable::take_record`], if the charge equals `seen`.
    pub fn take_if(&self, key: u64, seen: AllocationRecord) -> Option<AllocationRecord> {
        let mut map = self.shard_of(key).map.lock();
        if map.get(&key) == Some(&seen) { map.remove(&key) } else { None }
    }

    /// As [`RecordTable::take_record`], for a free that is about to call the driver. The free is in flight until the
    /// result is dropped; see [`is_quiet`].
    ///
    /// # Cost
    /// As [`RecordTable::take_record`]; the end takes one atomic addition.
    #[inline]
    pub fn take_to_free(&'static self, key: u64) -> Option<(AllocationRecord, FreeInProgress)> {
        let shard = self.shard_of(key);
        let mut map = shard.map.lock();
        let holding = map.remove(&key)?;
        shard.leaving.store(shard.leaving.load(Relaxed).wrapping_add(1), Relaxed);
        Some((holding, FreeInProgress(&shard.left)))
    }

    /// The charge of `key`.
    pub fn get(&self, key: u64) -> Option<AllocationRecord> {
        self.shard_of(key).map.lock().get(&key).copied()
    }

    /// Removes and returns all records of `context`.
    pub fn take_of_context(&self, context: CUcontext) -> Vec<(u64, AllocationRecord)> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            let before = taken.len();
            let mut map = shard.map.lock();
            map.retain(|&key, holding| {
                let stays = holding.context != context.0 as usize || holding.context == 0;
                if !stays {
                    taken.push((key, *holding));
                }
                stays
            });
            shard.events.fetch_add((taken.len() - before) as u64, Relaxed);
        }
        taken
    }
}

/// Whether no free that has taken its charge out of a table is in flight.
pub fn is_quiet() -> bool {
    // In this order: a free that begins and ends between the two loads is seen as in flight; the reverse order could
    // miss one.
    let quiet = |shard: &TableShard| {
        let left = shard.left.load(Acquire);
        shard.leaving.load(Acquire) == left
    };
    let tables = [&ADDRESS_RECORDS, &ARRAY_RECORDS, &EXTERNAL_RECORDS];
    tables.iter().all(|table| table.shards.iter().all(quiet))
}

/// Counts charges of addresses and arrays that were stored or taken out. The driver serves these from slabs, so each
/// change can make it take more or less memory than is charged.
pub fn record_events() -> u64 {
    let of = |table: &RecordTable| {
        table
            .shards
            .iter()
            .fold(0, |sum: u64, one| sum.wrapping_add(one.events.load(Acquire)).wrapping_add(one.leaving.load(Acquire)))
    };
    [&ADDRESS_RECORDS, &ARRAY_RECORDS, &EXTERNAL_RECORDS].into_iter().fold(0, |sum, table| sum.wrapping_add(of(table)))
}

/// Clears all records in a forked child: the allocations are the parent's.
pub fn reset_after_fork() {
    for table in [&ADDRESS_RECORDS, &ARRAY_RECORDS, &EXTERNAL_RECORDS] {
        for shard in &table.shards {
            // SAFETY: called in a forked child, which has only this thread.
            unsafe { shard.map.reset(empty_map()) };
            shard.left.store(0, Relaxed);
            shard.leaving.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_takes_no_more_room_than_three_words() {
        assert_eq!(size_of::<AllocationRecord>(), 24);
    }

    #[test]
    fn a_context_takes_its_own_holdings_with_it_and_no_others() {
        let table = RecordTable::new();
        for key in 0..1000u64 {
            let holding = AllocationRecord::of_bytes(512, 0, (key % 2) as usize + 1);
            assert_eq!(table.insert_record(key << 9, holding), None);
        }
        let one = CUcontext(core::ptr::without_provenance_mut(1));
        assert_eq!(table.take_of_context(one).len(), 500);
        assert_eq!(table.take_record(0), None);
        assert_eq!(table.take_record(1 << 9).map(|holding| holding.context), Some(2));
    }
}
