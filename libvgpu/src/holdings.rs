//! Which address or handle holds which charge, so that its end returns exactly what its beginning took.
//!
//! Kinds that cannot be confused because each has its own table: device addresses, allocations of pools, arrays, memory of
//! other APIs; physical allocations of the virtual-memory calls are `physical`. A charge belongs to the context that made it and goes with it. Tables are split so that
//! threads do not queue; a lock is held for one table operation.

use crate::lock::{Held, Lock};
use crate::share::{self, Share};
use crate::{counted, physical, slabs};
use core::hash::{BuildHasherDefault, Hasher};
use core::sync::atomic::{AtomicU64, Ordering::*};
use shim_sys::cuda::CUcontext;
use std::collections::HashMap;

/// A charge and who made it, or a hold on a share ([`Holding::of_share`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holding {
    /// Bytes charged.
    pub bytes: u64,
    /// Number of the device.
    pub device: u8,
    /// The context, as a word; 0: none, such as for physical allocations, which outlive contexts.
    pub context: usize,
}

/// In place of a device's number: the bytes are the number of a share.
const SHARED: u8 = u8::MAX;
/// In place of a device's number: the bytes are the number of a charge with several names in this process.
const COUNTED: u8 = u8::MAX - 1;
/// In place of a device's number: the bytes are the number of a slab, with the device's in the upper byte.
const IN_SLAB: u8 = u8::MAX - 2;
/// Where the number of the device stands beside that of a slab.
const SLAB_DEVICE_SHIFT: u32 = 56;

impl Holding {
    /// A hold on a share: what several processes hold is charged in a place of its own.
    pub fn of_share(share: Share, context: usize) -> Self {
        Self { bytes: u64::from(share.number()), device: SHARED, context }
    }

    /// A name of a charge that has several: `counted`.
    pub fn of_counted(number: u32, context: usize) -> Self {
        Self { bytes: u64::from(number), device: COUNTED, context }
    }

    /// A place in a slab that several allocations share: `slabs`.
    pub fn in_slab(slab: u64, device: u8, context: usize) -> Self {
        Self { bytes: slab | u64::from(device) << SLAB_DEVICE_SHIFT, device: IN_SLAB, context }
    }

    /// The number of the device and that of the slab, if it is a place in one.
    #[inline]
    pub fn slab(&self) -> Option<(u8, u64)> {
        let [.., device] = self.bytes.to_le_bytes();
        (self.device == IN_SLAB).then_some((device, self.bytes & ((1 << SLAB_DEVICE_SHIFT) - 1)))
    }

    /// The context.
    pub fn context_handle(&self) -> CUcontext {
        CUcontext(self.context as *mut _)
    }

    /// The number of the charge, if this is one of several names of it.
    pub fn counted(&self) -> Option<u32> {
        u32::try_from(self.bytes).ok().filter(|_| self.device == COUNTED)
    }

    /// The share, if it is a hold on one.
    pub fn share(&self) -> Option<Share> {
        u32::try_from(self.bytes).ok().filter(|_| self.device == SHARED).and_then(Share::numbered)
    }
}

/// Multiplication by an odd constant: keys are addresses, aligned and dense.
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
        let mixed = vgpu_core::mix::spread(self.0 ^ key);
        self.0 = mixed ^ (mixed >> 29);
    }
}

/// A map by address or handle.
pub type Map<V> = HashMap<u64, V, BuildHasherDefault<AddressHasher>>;
/// An empty one.
pub const fn empty<V>() -> Map<V> {
    HashMap::with_hasher(BuildHasherDefault::new())
}

const SHARDS: usize = 16;

/// A part of a table, on a cache line of its own.
#[repr(align(64))]
struct Shard {
    map: Lock<Map<Holding>>,
    /// Charges taken out for frees; written by the holder of the lock.
    leaving: AtomicU64,
    /// Of these frees, how many have ended.
    left: AtomicU64,
    /// How often a charge was noted, or taken out otherwise; written by the holder of the lock.
    events: AtomicU64,
}

impl Shard {
    const fn new() -> Self {
        Self { map: Lock::new(empty()), leaving: AtomicU64::new(0), left: AtomicU64::new(0), events: AtomicU64::new(0) }
    }

    /// Locks it for a change of so many charges.
    #[inline(always)]
    fn change(&self, events: u64) -> Held<'_, Map<Holding>> {
        let map = self.map.lock();
        self.events.store(self.events.load(Relaxed).wrapping_add(events), Relaxed);
        map
    }
}

/// Charges by address or handle.
pub struct Table {
    shards: [Shard; SHARDS],
}

/// What became of a charge that was to be noted.
pub enum Put {
    /// It is noted.
    New,
    /// It is noted; one of the same key was there, which was freed behind our back.
    InPlaceOf(Holding),
    /// It is not noted.
    Not,
}

/// A free under way, whose charge was taken out; it ends when this is dropped, after the charge was released.
#[must_use]
pub struct Leaving(&'static AtomicU64);

impl Drop for Leaving {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_add(1, Release);
    }
}

/// Charges of device addresses: plain, pitched and managed allocations.
pub static ADDRESSES: Table = Table::new();
/// Allocations of pools: the pool is charged, not they. For the context stands the number of the pool.
pub static POOLED: Table = Table::new();
/// Charges of arrays and mipmapped arrays.
pub static ARRAYS: Table = Table::new();
/// Charges of memory that another API allocated.
pub static EXTERNALS: Table = Table::new();

impl Table {
    const fn new() -> Self {
        Self { shards: [const { Shard::new() }; SHARDS] }
    }

    #[allow(clippy::cast_possible_truncation)] // masked
    fn shard(&self, key: u64) -> &Shard {
        &self.shards[((key >> 9) ^ (key >> 21)) as usize % SHARDS]
    }

    /// Notes a charge. A key that is noted already was freed behind our back: its old charge comes back to the caller.
    pub fn put(&self, key: u64, holding: Holding) -> Option<Holding> {
        self.shard(key).change(1).insert(key, holding)
    }

    /// As [`Table::put`], if `lives` says so while the place is locked.
    #[inline(always)] // hot, and the library is made for size
    pub fn put_if(&self, key: u64, holding: Holding, lives: impl FnOnce() -> bool) -> Put {
        let mut map = self.shard(key).change(1);
        if !lives() {
            return Put::Not;
        }
        map.insert(key, holding).map_or(Put::New, Put::InPlaceOf)
    }

    /// Takes the charge of `key` out.
    pub fn take(&self, key: u64) -> Option<Holding> {
        self.shard(key).change(1).remove(&key)
    }

    /// As [`Table::take`], if the charge is the one that was `seen`.
    pub fn take_if(&self, key: u64, seen: Holding) -> Option<Holding> {
        let mut map = self.shard(key).map.lock();
        if map.get(&key) == Some(&seen) { map.remove(&key) } else { None }
    }

    /// As [`Table::take`], for a free that is about to ask the driver: until its end it is under way, see [`is_quiet`].
    ///
    /// # Cost
    /// That of [`Table::take`]; the end is one atomic addition.
    #[inline]
    pub fn take_to_free(&'static self, key: u64) -> Option<(Holding, Leaving)> {
        let shard = self.shard(key);
        let mut map = shard.map.lock();
        let holding = map.remove(&key)?;
        shard.leaving.store(shard.leaving.load(Relaxed).wrapping_add(1), Relaxed);
        Some((holding, Leaving(&shard.left)))
    }

    /// The charge of `key`.
    pub fn get(&self, key: u64) -> Option<Holding> {
        self.shard(key).map.lock().get(&key).copied()
    }

    /// Takes out everything that `context` held.
    pub fn take_of_context(&self, context: CUcontext) -> Vec<(u64, Holding)> {
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

/// Whether no free that has taken its charge out of a table is under way.
pub fn is_quiet() -> bool {
    // In this order: a free that begins and ends in between is seen as one that is under way, never the other way round.
    let quiet = |shard: &Shard| {
        let left = shard.left.load(Acquire);
        shard.leaving.load(Acquire) == left
    };
    [&ADDRESSES, &ARRAYS, &EXTERNALS].iter().all(|table| table.shards.iter().all(quiet))
}

/// A number that grows with every charge of an address or array that is noted or taken out: what the driver serves from
/// slabs, so that it takes more or less than what is charged.
pub fn events() -> u64 {
    let of = |table: &Table| {
        table
            .shards
            .iter()
            .fold(0, |sum: u64, one| sum.wrapping_add(one.events.load(Acquire)).wrapping_add(one.leaving.load(Acquire)))
    };
    [&ADDRESSES, &ARRAYS, &EXTERNALS].into_iter().fold(0, |sum, table| sum.wrapping_add(of(table)))
}

/// Forgets everything, in a forked child: what the parent holds is the parent's.
pub fn forget() {
    for table in [&ADDRESSES, &POOLED, &ARRAYS, &EXTERNALS] {
        for shard in &table.shards {
            // SAFETY: called in a forked child, whose only thread this is.
            unsafe { shard.map.reset(empty()) };
            shard.left.store(0, Relaxed);
            shard.leaving.store(0, Relaxed);
        }
    }
    physical::forget();
    slabs::forget();
    counted::forget();
    share::forget();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_slab_is_told_from_a_charge_of_its_own() {
        let place = Holding::in_slab((1 << 26) - 1, 63, 7);
        assert_eq!((place.slab(), place.context), (Some((63, (1 << 26) - 1)), 7));
        assert_eq!(Holding { bytes: (2 << 20), device: 63, context: 7 }.slab(), None);
        assert_eq!((place.share(), place.counted()), (None, None));
    }

    #[test]
    fn a_context_takes_its_own_holdings_with_it_and_no_others() {
        let table = Table::new();
        for key in 0..1000u64 {
            let holding = Holding { bytes: 512, device: 0, context: (key % 2) as usize + 1 };
            assert_eq!(table.put(key << 9, holding), None);
        }
        let one = CUcontext(core::ptr::without_provenance_mut(1));
        assert_eq!(table.take_of_context(one).len(), 500);
        assert_eq!(table.take(0), None);
        assert_eq!(table.take(1 << 9).map(|holding| holding.context), Some(2));
    }
}
