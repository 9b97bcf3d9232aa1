//! The lifetime of physical allocations: `cuMemCreate` and imports, however many handles, mappings and bindings name them.
//!
//! An allocation has numbers of our own, because the driver may give a released handle's number to another one while the
//! first is still mapped. It ends, and its charge with it, when nothing names it any more: no handle, no mapping, no tile
//! of a sparse array, no binding to a multicast object. Contexts have no part in it.
//!
//! # Threads
//! No lock is held while the driver works, so that between its answer and our note another thread may do anything. What
//! names an allocation is therefore noted *before* a call that adds a name ([`pin`], [`pin_at`]), and taken back when the
//! driver declines; what a call removes is set aside before ([`releasing`], [`unmapping`]) and given up, or put back,
//! after it. Between the two an allocation counts a name too many, never one too few: a map that overtakes a release, or
//! an unmap whose addresses another thread maps again at once, ends nothing too early. A handle on its way out is still
//! found, until the driver hands its number out again ([`created`]).
//!
//! What lives elsewhere: charges of addresses and arrays (`holdings`), what several processes hold (`share`).

use crate::holdings::{Holding, Map, empty};
use crate::lock::Lock;
use std::collections::BTreeMap;

/// A physical allocation and what keeps it alive.
struct Physical {
    /// What it is charged; `None`: host memory, a device without limits, a multicast object.
    holding: Option<Holding>,
    /// From another tenant, without a share: its size is known when it is mapped, and charged then.
    foreign: bool,
    handles: u32,
    /// Mappings, tiles, bindings, and calls under way.
    uses: u32,
    /// Of a multicast object: what is bound to it.
    bound: Vec<Bound>,
}

struct Bound {
    /// Number of the device, if it has limits.
    device: Option<u8>,
    offset: u64,
    bytes: u64,
    number: u64,
}

/// A part of a sparse array: the array, and which part as the driver's own words.
type Tile = (usize, [u64; 5]);

struct All {
    /// Handles that the program holds, to allocations.
    handles: Map<u64>,
    physical: Map<Physical>,
    /// Start of a mapping to its length and the allocation behind it.
    mapped: BTreeMap<u64, (u64, u64)>,
    /// Mappings that the driver is asked to end, with the number of the call.
    leaving: Vec<(u64, u64, u64)>,
    tiles: BTreeMap<Tile, u64>,
    next: u64,
}

impl All {
    const EMPTY: All = All {
        handles: empty(),
        physical: empty(),
        mapped: BTreeMap::new(),
        leaving: Vec::new(),
        tiles: BTreeMap::new(),
        next: 0,
    };

    fn add(&mut self, handle: u64, physical: Physical) {
        let number = self.next;
        self.next += 1;
        self.handles.insert(handle, number);
        self.physical.insert(number, physical);
    }

    fn use_once(&mut self, number: u64) -> Option<Pin> {
        self.physical.get_mut(&number)?.uses += 1;
        Some(Pin { number })
    }

    /// Takes a name away, and the allocation with the last one. What ends with it goes to `ended`.
    fn unuse(&mut self, number: u64, ended: &mut Ended) {
        if let Some(physical) = self.physical.get_mut(&number) {
            physical.uses = physical.uses.saturating_sub(1);
        }
        self.end(number, ended);
    }

    fn end(&mut self, number: u64, ended: &mut Ended) {
        if !self.physical.get(&number).is_some_and(|physical| physical.handles == 0 && physical.uses == 0) {
            return;
        }
        let Some(physical) = self.physical.remove(&number) else { return };
        ended.extend(physical.holding);
        for bound in physical.bound {
            self.unuse(bound.number, ended);
        }
    }

    fn behind(&self, address: u64) -> Option<u64> {
        let mapping =
            self.mapped.range(..=address).next_back().map(|(start, (bytes, number))| (*start, *bytes, *number));
        let mut candidates = mapping.into_iter().chain(self.leaving.iter().copied());
        candidates
            .find(|(start, bytes, _)| (*start..start.saturating_add(*bytes)).contains(&address))
            .map(|found| found.2)
    }
}

static ALL: Lock<All> = Lock::new(All::EMPTY);

/// Charges that ended, to be released by the caller.
pub type Ended = Vec<Holding>;

/// A name that an allocation has for the length of a call: it cannot end meanwhile. To be given to the function that
/// notes what the driver did, or to [`unpin`].
#[must_use]
pub struct Pin {
    number: u64,
}

/// Notes a new allocation or multicast object: one handle, no mapping.
pub fn created(handle: u64, holding: Option<Holding>) {
    ALL.lock().add(handle, Physical { holding, foreign: false, handles: 1, uses: 0, bound: Vec::new() });
}

/// Notes an import. `foreign`: the memory of another tenant, in which case `holding` says on which device it is, and
/// nothing is charged yet. A handle that is known is the same allocation once more: the holding comes back then.
pub fn imported(handle: u64, holding: Option<Holding>, foreign: bool) -> Option<Holding> {
    let mut all = ALL.lock();
    let known = all.handles.get(&handle).copied();
    if let Some(physical) = known.and_then(|number| all.physical.get_mut(&number))
        && physical.handles > 0
    {
        physical.handles += 1;
        return holding;
    }
    all.add(handle, Physical { holding, foreign, handles: 1, uses: 0, bound: Vec::new() });
    None
}

/// The allocation of that handle, for the length of a call.
pub fn pin(handle: u64) -> Option<Pin> {
    let mut all = ALL.lock();
    let number = *all.handles.get(&handle)?;
    all.use_once(number)
}

/// The allocation that is mapped at that address, for the length of a call; any address inside will do.
pub fn pin_at(address: u64) -> Option<Pin> {
    let mut all = ALL.lock();
    let number = all.behind(address)?;
    all.use_once(number)
}

/// Nothing came of the call, or it left no name.
pub fn unpin(pin: Pin) -> Ended {
    let mut ended = Ended::new();
    ALL.lock().unuse(pin.number, &mut ended);
    ended
}

/// What the allocation is charged.
pub fn holding(pin: &Pin) -> Option<Holding> {
    ALL.lock().physical.get(&pin.number)?.holding
}

/// Replaces what the allocation is charged: it was exported.
pub fn set_holding(pin: &Pin, holding: Holding) {
    if let Some(physical) = ALL.lock().physical.get_mut(&pin.number) {
        physical.holding = Some(holding);
        physical.foreign = false;
    }
}

/// Number of the device, and bytes that a mapping of `bytes` shows of another tenant's memory and that are not charged.
pub fn owed(pin: &Pin, bytes: u64) -> Option<(u8, u64)> {
    let all = ALL.lock();
    let physical = all.physical.get(&pin.number).filter(|physical| physical.foreign)?;
    let holding = physical.holding?;
    let more = bytes.saturating_sub(holding.bytes);
    (more > 0).then_some((holding.device, more))
}

/// `more` bytes of it were charged for a mapping of `bytes`; says how many of them another thread had charged already.
pub fn paid(pin: &Pin, bytes: u64, more: u64) -> u64 {
    let mut all = ALL.lock();
    // Exported meanwhile: all that was charged then stands in its share.
    let physical = all.physical.get_mut(&pin.number).filter(|physical| physical.foreign);
    let Some(holding) = physical.and_then(|physical| physical.holding.as_mut()) else { return more };
    let due = bytes.saturating_sub(holding.bytes).min(more);
    holding.bytes += due;
    more - due
}

/// `bytes` at `address` now show the allocation.
pub fn mapped(pin: Pin, address: u64, bytes: u64) {
    ALL.lock().mapped.insert(address, (bytes, pin.number));
}

/// Another handle of it was handed out.
pub fn retained(pin: Pin, handle: u64) -> Ended {
    let mut all = ALL.lock();
    // A handle that is known says what it is; the address may have been mapped anew before the driver looked.
    let known = all.handles.get(&handle).copied().filter(|number| all.physical.contains_key(number));
    let number = known.unwrap_or(pin.number);
    if let Some(physical) = all.physical.get_mut(&number) {
        physical.handles += 1;
        all.handles.insert(handle, number);
    }
    let mut ended = Ended::new();
    all.unuse(pin.number, &mut ended);
    ended
}

/// A handle on its way out: [`Releasing::done`] or [`Releasing::failed`], after the driver's answer.
#[must_use]
pub struct Releasing {
    handle: u64,
    number: u64,
}

/// Counts a handle out before the driver releases it: afterwards its number may come again at once.
pub fn releasing(handle: u64) -> Option<Releasing> {
    let mut all = ALL.lock();
    let number = *all.handles.get(&handle)?;
    let physical = all.physical.get_mut(&number).filter(|physical| physical.handles > 0)?;
    physical.handles -= 1;
    physical.uses += 1;
    Some(Releasing { handle, number })
}

impl Releasing {
    /// The driver released it.
    pub fn done(self) -> Ended {
        let mut all = ALL.lock();
        let last = all.physical.get(&self.number).is_some_and(|physical| physical.handles == 0);
        // Unless its number has come again meanwhile.
        if last && all.handles.get(&self.handle) == Some(&self.number) {
            all.handles.remove(&self.handle);
        }
        let mut ended = Ended::new();
        all.unuse(self.number, &mut ended);
        ended
    }

    /// The driver did not.
    pub fn failed(self) {
        if let Some(physical) = ALL.lock().physical.get_mut(&self.number) {
            physical.handles += 1;
            physical.uses -= 1;
        }
    }
}

/// Mappings on their way out: [`Unmapping::done`] or [`Unmapping::failed`], after the driver's answer.
#[must_use]
pub struct Unmapping {
    mappings: Vec<(u64, u64, u64)>,
}

/// Sets the mappings in a range aside before the driver ends them: afterwards their addresses may be mapped again at once.
///
/// The driver unmaps whole mappings only, one or several side by side.
pub fn unmapping(address: u64, bytes: u64) -> Unmapping {
    let mut all = ALL.lock();
    let range = address..address.saturating_add(bytes);
    let mappings: Vec<_> = all.mapped.range(range).map(|(start, (bytes, number))| (*start, *bytes, *number)).collect();
    for mapping in &mappings {
        all.mapped.remove(&mapping.0);
    }
    all.leaving.extend(&mappings);
    Unmapping { mappings }
}

impl Unmapping {
    fn take(&self, all: &mut All) {
        for mapping in &self.mappings {
            if let Some(at) = all.leaving.iter().position(|leaving| leaving == mapping) {
                all.leaving.swap_remove(at);
            }
        }
    }

    /// The driver unmapped them.
    pub fn done(self) -> Ended {
        let mut all = ALL.lock();
        self.take(&mut all);
        let mut ended = Ended::new();
        for (_, _, number) in self.mappings {
            all.unuse(number, &mut ended);
        }
        ended
    }

    /// The driver did not.
    pub fn failed(self) {
        let mut all = ALL.lock();
        self.take(&mut all);
        for (start, bytes, number) in self.mappings {
            all.mapped.insert(start, (bytes, number));
        }
    }
}

/// `bytes` of the allocation `memory` are bound to the multicast object `object` at `offset`.
pub fn bound(object: Pin, memory: Pin, device: Option<u8>, offset: u64, bytes: u64) -> Ended {
    let mut all = ALL.lock();
    let mut ended = Ended::new();
    match all.physical.get_mut(&object.number) {
        Some(physical) => physical.bound.push(Bound { device, offset, bytes, number: memory.number }),
        None => all.unuse(memory.number, &mut ended),
    }
    all.unuse(object.number, &mut ended);
    ended
}

/// What was bound to the object in that range, on that device, is not any more.
pub fn unbound(object: &Pin, device: Option<u8>, offset: u64, bytes: u64) -> Ended {
    let mut all = ALL.lock();
    let mut ended = Ended::new();
    let Some(physical) = all.physical.get_mut(&object.number) else { return ended };
    let range = offset..offset.saturating_add(bytes);
    let gone = |bound: &Bound| range.contains(&bound.offset) && bound.bytes <= bytes && bound.device == device;
    let (gone, stay) = core::mem::take(&mut physical.bound).into_iter().partition(gone);
    physical.bound = stay;
    let gone: Vec<Bound> = gone;
    for bound in gone {
        all.unuse(bound.number, &mut ended);
    }
    ended
}

/// A part of a sparse array shows the allocation now, and what it showed before no longer.
pub fn tile_mapped(pin: Pin, array: usize, part: [u64; 5]) -> Ended {
    let mut all = ALL.lock();
    let mut ended = Ended::new();
    if let Some(before) = all.tiles.insert((array, part), pin.number) {
        all.unuse(before, &mut ended);
    }
    ended
}

/// A part of a sparse array shows nothing any more. A part that was never mapped as such is left alone: the allocation
/// behind it stays until the array ends.
pub fn tile_unmapped(array: usize, part: [u64; 5]) -> Ended {
    let mut all = ALL.lock();
    let mut ended = Ended::new();
    if let Some(number) = all.tiles.remove(&(array, part)) {
        all.unuse(number, &mut ended);
    }
    ended
}

/// Tiles of an array on its way out, set aside before the driver ends it: its handle may come again at once.
#[must_use]
pub struct Tiles {
    array: usize,
    tiles: Vec<([u64; 5], u64)>,
}

/// Sets the tiles of an array aside.
///
/// # Cost
/// One lock and one look where no array has tiles.
pub fn array_ending(array: usize) -> Tiles {
    let mut all = ALL.lock();
    let mut tiles = Vec::new();
    while let Some((&(of, part), _)) = all.tiles.range((array, [0; 5])..=(array, [u64::MAX; 5])).next() {
        tiles.extend(all.tiles.remove(&(of, part)).map(|number| (part, number)));
    }
    Tiles { array, tiles }
}

impl Tiles {
    /// The driver ended the array.
    pub fn done(self) -> Ended {
        let mut ended = Ended::new();
        if !self.tiles.is_empty() {
            let mut all = ALL.lock();
            self.tiles.into_iter().for_each(|(_, number)| all.unuse(number, &mut ended));
        }
        ended
    }

    /// The driver did not.
    pub fn failed(self) {
        if !self.tiles.is_empty() {
            let tiles = &mut ALL.lock().tiles;
            tiles.extend(self.tiles.into_iter().map(|(part, number)| ((self.array, part), number)));
        }
    }
}

/// Forgets everything, in a forked child: what the parent holds is the parent's.
pub fn forget() {
    // SAFETY: the child's thread that settles it, before any other goes on.
    unsafe { ALL.reset(All::EMPTY) };
}

#[cfg(test)]
mod tests;
