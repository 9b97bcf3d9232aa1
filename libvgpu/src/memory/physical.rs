//! The lifetime of physical allocations (`cuMemCreate` and imports), however many handles, mappings and bindings
//! refer to them.
//!
//! An allocation has a number of its own, because the driver may reuse the handle of a released allocation that is
//! still mapped. It ends, and its charge with it, when no handle, mapping, tile of a sparse array or binding to a
//! multicast object refers to it. Contexts play no part in it.
//!
//! # Threads
//! No lock is held during a driver call, so another thread may do anything between the driver's answer and our record
//! of it. A call that adds a reference is therefore recorded *before* it is made ([`pin_handle`], [`pin_at`]) and
//! undone if the driver refuses. A call that removes a reference sets it aside before ([`begin_release`],
//! [`begin_unmap`]) and drops or restores it afterwards. In between, an allocation has one reference too many, never
//! one too few. So nothing ends too early when a map overtakes a release, or when another thread maps addresses again
//! during their unmap. A handle that is being released is still found until the driver reuses its number
//! ([`note_created`]).
//!
//! Not here: charges of addresses and arrays (`allocation_records`), memory that several processes hold
//! (`ledger/held_shares`).

use crate::ffi::lock::Lock;
use crate::memory::allocation_records::{AllocationRecord, Map, RecordedCharge, empty_map};
use std::collections::BTreeMap;

/// A physical allocation and the references that keep it alive.
struct PhysicalAllocation {
    /// The allocation's charge. `None`: host memory, a device without limits, or a multicast object.
    holding: Option<AllocationRecord>,
    /// Imported from another tenant without a share: its size becomes known, and is charged, when it is mapped.
    foreign: bool,
    /// Handles that the program holds.
    handles: u32,
    /// Mappings, tiles, bindings, and calls in flight.
    uses: u32,
    /// For a multicast object: the memory bound to it.
    bound: Vec<MulticastBinding>,
}

/// Memory bound to a multicast object.
struct MulticastBinding {
    /// Number of the device, if it has limits.
    device: Option<u8>,
    offset: u64,
    bytes: u64,
    /// Number of the bound allocation.
    number: u64,
}

/// Mapping of a range of addresses: its start, its length, and the number of its allocation.
type MappedRange = (u64, u64, u64);

/// A part of a sparse array: the array, and the part in the driver's own numbers.
type Tile = (usize, [u64; 5]);

struct PhysicalState {
    /// Handles that the program holds, to the numbers of their allocations.
    handles: Map<u64>,
    /// The physical allocations, by number.
    physical: Map<PhysicalAllocation>,
    /// Start of a mapping to its length and its allocation's number.
    mapped: BTreeMap<u64, (u64, u64)>,
    /// Mappings that the driver is being asked to end, with the number of the unmap. Few are in progress at once.
    leaving: Vec<(u64, Vec<MappedRange>)>,
    /// Parts of sparse arrays to the numbers of the allocations they map.
    tiles: BTreeMap<Tile, u64>,
    next: u64,
}

impl PhysicalState {
    const NO_ALLOCATIONS: PhysicalState = PhysicalState {
        handles: empty_map(),
        physical: empty_map(),
        mapped: BTreeMap::new(),
        leaving: Vec::new(),
        tiles: BTreeMap::new(),
        next: 0,
    };

    fn add(&mut self, handle: u64, physical: PhysicalAllocation) {
        let number = self.next;
        self.next += 1;
        self.handles.insert(handle, number);
        self.physical.insert(number, physical);
    }

    fn use_once(&mut self, number: u64) -> Option<PinnedAllocation> {
        self.physical.get_mut(&number)?.uses += 1;
        Some(PinnedAllocation { number })
    }

    /// Drops a reference, and the allocation with the last one. Its charges are added to `ended`.
    fn drop_name(&mut self, number: u64, ended: &mut EndedCharges) {
        if let Some(physical) = self.physical.get_mut(&number) {
            physical.uses = physical.uses.saturating_sub(1);
        }
        self.end_allocation(number, ended);
    }

    fn end_allocation(&mut self, number: u64, ended: &mut EndedCharges) {
        if !self.physical.get(&number).is_some_and(|physical| physical.handles == 0 && physical.uses == 0) {
            return;
        }
        let Some(physical) = self.physical.remove(&number) else { return };
        ended.extend(physical.holding);
        for bound in physical.bound {
            self.drop_name(bound.number, ended);
        }
    }

    /// Removes and returns the mappings of one unmap.
    fn take_leaving(&mut self, unmap: u64) -> Vec<MappedRange> {
        let at = self.leaving.iter().position(|(number, _)| *number == unmap);
        at.map(|at| self.leaving.swap_remove(at).1).unwrap_or_default()
    }

    fn mapped_at(&self, address: u64) -> Option<u64> {
        let mapping =
            self.mapped.range(..=address).next_back().map(|(start, (bytes, number))| (*start, *bytes, *number));
        // The mappings of one unmap lie in the order of their addresses.
        let leaving = self.leaving.iter().filter_map(|(_, mappings)| {
            mappings[..mappings.partition_point(|(start, ..)| *start <= address)].last().copied()
        });
        let mut candidates = mapping.into_iter().chain(leaving);
        candidates
            .find(|(start, bytes, _)| (*start..start.saturating_add(*bytes)).contains(&address))
            .map(|found| found.2)
    }
}

static PHYSICAL_STATE: Lock<PhysicalState> = Lock::new(PhysicalState::NO_ALLOCATIONS);

/// Charges that ended; the caller releases them.
pub type EndedCharges = Vec<AllocationRecord>;

/// Keeps an allocation alive during a call. Pass it to the function that records the call's result, or to
/// [`unpin_unused`].
#[must_use]
pub struct PinnedAllocation {
    number: u64,
}

/// Records a new allocation or multicast object: one handle, no mapping.
pub fn note_created(handle: u64, holding: Option<AllocationRecord>) {
    PHYSICAL_STATE
        .lock()
        .add(handle, PhysicalAllocation { holding, foreign: false, handles: 1, uses: 0, bound: Vec::new() });
}

/// Records an import. `foreign`: another tenant's memory; then `holding` only names the device, and nothing is
/// charged yet. A known handle is the same allocation again: `holding` is returned then.
pub fn note_imported(handle: u64, holding: Option<AllocationRecord>, foreign: bool) -> Option<AllocationRecord> {
    let mut all = PHYSICAL_STATE.lock();
    let known = all.handles.get(&handle).copied();
    if let Some(physical) = known.and_then(|number| all.physical.get_mut(&number))
        && physical.handles > 0
    {
        physical.handles += 1;
        return holding;
    }
    all.add(handle, PhysicalAllocation { holding, foreign, handles: 1, uses: 0, bound: Vec::new() });
    None
}

/// Pins the allocation of a handle for the length of a call.
pub fn pin_handle(handle: u64) -> Option<PinnedAllocation> {
    let mut all = PHYSICAL_STATE.lock();
    let number = *all.handles.get(&handle)?;
    all.use_once(number)
}

/// Pins the allocation mapped at `address`, which may be any address inside the mapping, for the length of a call.
pub fn pin_at(address: u64) -> Option<PinnedAllocation> {
    let mut all = PHYSICAL_STATE.lock();
    let number = all.mapped_at(address)?;
    all.use_once(number)
}

/// Unpins after a call that failed or added no reference.
pub fn unpin_unused(pin: PinnedAllocation) -> EndedCharges {
    let mut ended = EndedCharges::new();
    PHYSICAL_STATE.lock().drop_name(pin.number, &mut ended);
    ended
}

/// The allocation's charge.
pub fn record_of(pin: &PinnedAllocation) -> Option<AllocationRecord> {
    PHYSICAL_STATE.lock().physical.get(&pin.number)?.holding
}

/// Replaces the allocation's charge after an export.
pub fn set_holding(pin: &PinnedAllocation, holding: AllocationRecord) {
    if let Some(physical) = PHYSICAL_STATE.lock().physical.get_mut(&pin.number) {
        physical.holding = Some(holding);
        physical.foreign = false;
    }
}

/// The device number, and the bytes not charged yet that a mapping of `bytes` shows of another tenant's memory.
pub fn uncharged_part(pin: &PinnedAllocation, bytes: u64) -> Option<(u8, u64)> {
    let all = PHYSICAL_STATE.lock();
    let physical = all.physical.get(&pin.number).filter(|physical| physical.foreign)?;
    let holding = physical.holding?;
    let (charged, device) = holding.own_bytes()?;
    let more = bytes.saturating_sub(charged);
    (more > 0).then_some((device, more))
}

/// Records that `more` bytes were charged for a mapping of `bytes`. Returns how many of them another thread had
/// charged already.
pub fn note_charged(pin: &PinnedAllocation, bytes: u64, more: u64) -> u64 {
    let mut all = PHYSICAL_STATE.lock();
    // If it was exported meanwhile, its whole charge is in its share.
    let physical = all.physical.get_mut(&pin.number).filter(|physical| physical.foreign);
    let Some(AllocationRecord { charge: RecordedCharge::Own { bytes: charged, .. }, .. }) =
        physical.and_then(|physical| physical.holding.as_mut())
    else {
        return more;
    };
    let due = bytes.saturating_sub(*charged).min(more);
    *charged += due;
    more - due
}

/// Records that `bytes` at `address` map the allocation.
pub fn note_mapped(pin: PinnedAllocation, address: u64, bytes: u64) {
    PHYSICAL_STATE.lock().mapped.insert(address, (bytes, pin.number));
}

/// Records that the driver gave out another handle of it.
pub fn note_retained(pin: PinnedAllocation, handle: u64) -> EndedCharges {
    let mut all = PHYSICAL_STATE.lock();
    // A known handle identifies the allocation; the address may have been mapped again before the driver read it.
    let known = all.handles.get(&handle).copied().filter(|number| all.physical.contains_key(number));
    let number = known.unwrap_or(pin.number);
    if let Some(physical) = all.physical.get_mut(&number) {
        physical.handles += 1;
        all.handles.insert(handle, number);
    }
    let mut ended = EndedCharges::new();
    all.drop_name(pin.number, &mut ended);
    ended
}

/// A handle that is being released: [`ReleaseInProgress::finish`] or [`ReleaseInProgress::undo`] follows the driver's
/// answer.
#[must_use]
pub struct ReleaseInProgress {
    handle: u64,
    number: u64,
}

/// Counts a handle out before the driver releases it, because its number may be reused right after.
pub fn begin_release(handle: u64) -> Option<ReleaseInProgress> {
    let mut all = PHYSICAL_STATE.lock();
    let number = *all.handles.get(&handle)?;
    let physical = all.physical.get_mut(&number).filter(|physical| physical.handles > 0)?;
    physical.handles -= 1;
    physical.uses += 1;
    Some(ReleaseInProgress { handle, number })
}

impl ReleaseInProgress {
    /// The driver has released the handle.
    pub fn finish(self) -> EndedCharges {
        let mut all = PHYSICAL_STATE.lock();
        let last = all.physical.get(&self.number).is_some_and(|physical| physical.handles == 0);
        // The handle keeps its record if the driver has reused it for another allocation meanwhile.
        if last && all.handles.get(&self.handle) == Some(&self.number) {
            all.handles.remove(&self.handle);
        }
        let mut ended = EndedCharges::new();
        all.drop_name(self.number, &mut ended);
        ended
    }

    /// The driver refused to release it.
    pub fn undo(self) {
        if let Some(physical) = PHYSICAL_STATE.lock().physical.get_mut(&self.number) {
            physical.handles += 1;
            physical.uses -= 1;
        }
    }
}

/// Mappings that are being unmapped: [`UnmapInProgress::finish`] or [`UnmapInProgress::undo`] follows the driver's
/// answer.
#[must_use]
pub struct UnmapInProgress {
    unmap: u64,
}

/// Sets the mappings in a range aside before the driver ends them, because their addresses may be mapped again right
/// after.
///
/// The driver unmaps whole mappings only: one, or several adjacent ones. Elastic caches unmap a hundred thousand at
/// once, so the work grows with their number and not with its square.
pub fn begin_unmap(address: u64, bytes: u64) -> UnmapInProgress {
    let mut all = PHYSICAL_STATE.lock();
    let range = address..address.saturating_add(bytes);
    let mappings: Vec<_> = all.mapped.range(range).map(|(start, (bytes, number))| (*start, *bytes, *number)).collect();
    for (start, ..) in &mappings {
        all.mapped.remove(start);
    }
    let unmap = all.next;
    all.next += 1;
    all.leaving.push((unmap, mappings));
    UnmapInProgress { unmap }
}

impl UnmapInProgress {
    /// The driver has unmapped the mappings.
    pub fn finish(self) -> EndedCharges {
        let mut all = PHYSICAL_STATE.lock();
        let mut ended = EndedCharges::new();
        for (_, _, number) in all.take_leaving(self.unmap) {
            all.drop_name(number, &mut ended);
        }
        ended
    }

    /// The driver refused to unmap them.
    pub fn undo(self) {
        let mut all = PHYSICAL_STATE.lock();
        for (start, bytes, number) in all.take_leaving(self.unmap) {
            all.mapped.insert(start, (bytes, number));
        }
    }
}

/// Records that `bytes` of the allocation `memory` are bound to the multicast object `object` at `offset`.
pub fn note_bound(
    object: PinnedAllocation,
    memory: PinnedAllocation,
    device: Option<u8>,
    offset: u64,
    bytes: u64,
) -> EndedCharges {
    let mut all = PHYSICAL_STATE.lock();
    let mut ended = EndedCharges::new();
    match all.physical.get_mut(&object.number) {
        Some(physical) => physical.bound.push(MulticastBinding { device, offset, bytes, number: memory.number }),
        None => all.drop_name(memory.number, &mut ended),
    }
    all.drop_name(object.number, &mut ended);
    ended
}

/// Removes the bindings of the object in that range on that device.
pub fn note_unbound(object: &PinnedAllocation, device: Option<u8>, offset: u64, bytes: u64) -> EndedCharges {
    let mut all = PHYSICAL_STATE.lock();
    let mut ended = EndedCharges::new();
    let Some(physical) = all.physical.get_mut(&object.number) else { return ended };
    let range = offset..offset.saturating_add(bytes);
    let gone =
        |bound: &MulticastBinding| range.contains(&bound.offset) && bound.bytes <= bytes && bound.device == device;
    let (gone, stay) = core::mem::take(&mut physical.bound).into_iter().partition(gone);
    physical.bound = stay;
    let gone: Vec<MulticastBinding> = gone;
    for bound in gone {
        all.drop_name(bound.number, &mut ended);
    }
    ended
}

/// Records that a part of a sparse array maps the allocation; drops the allocation that the part mapped before.
pub fn tile_mapped(pin: PinnedAllocation, array: usize, part: [u64; 5]) -> EndedCharges {
    let mut all = PHYSICAL_STATE.lock();
    let mut ended = EndedCharges::new();
    if let Some(before) = all.tiles.insert((array, part), pin.number) {
        all.drop_name(before, &mut ended);
    }
    ended
}

/// Records that a part of a sparse array maps nothing. A part that was not mapped with these exact bounds is ignored:
/// its allocation stays until the array ends.
pub fn tile_unmapped(array: usize, part: [u64; 5]) -> EndedCharges {
    let mut all = PHYSICAL_STATE.lock();
    let mut ended = EndedCharges::new();
    if let Some(number) = all.tiles.remove(&(array, part)) {
        all.drop_name(number, &mut ended);
    }
    ended
}

/// Tiles of an array that is being destroyed, set aside before the driver destroys it because its handle may be
/// reused right after.
#[must_use]
pub struct TilesInProgress {
    array: usize,
    tiles: Vec<([u64; 5], u64)>,
}

/// Sets the tiles of an array aside.
///
/// # Cost
/// One lock and one search where no array has tiles.
pub fn array_ending(array: usize) -> TilesInProgress {
    let mut all = PHYSICAL_STATE.lock();
    let mut tiles = Vec::new();
    while let Some((&(of, part), _)) = all.tiles.range((array, [0; 5])..=(array, [u64::MAX; 5])).next() {
        tiles.extend(all.tiles.remove(&(of, part)).map(|number| (part, number)));
    }
    TilesInProgress { array, tiles }
}

impl TilesInProgress {
    /// The driver destroyed the array.
    pub fn finish(self) -> EndedCharges {
        let mut ended = EndedCharges::new();
        if !self.tiles.is_empty() {
            let mut all = PHYSICAL_STATE.lock();
            self.tiles.into_iter().for_each(|(_, number)| all.drop_name(number, &mut ended));
        }
        ended
    }

    /// The driver refused to destroy it.
    pub fn undo(self) {
        if !self.tiles.is_empty() {
            let tiles = &mut PHYSICAL_STATE.lock().tiles;
            tiles.extend(self.tiles.into_iter().map(|(part, number)| ((self.array, part), number)));
        }
    }
}

/// Clears everything in a forked child: the allocations are the parent's.
pub fn reset_after_fork() {
    // SAFETY: called by the child's settling thread, before any other thread continues.
    unsafe { PHYSICAL_STATE.reset(PhysicalState::NO_ALLOCATIONS) };
}

#[cfg(test)]
mod tests;
