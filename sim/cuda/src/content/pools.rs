//! Pools of stream-ordered memory: what they hold, when they grow, and what goes back when.
//!
//! A request is served by what its own stream has freed, by what another stream freed that it waited for by an event of
//! the same device, by what the device is done with, by more memory of the device, and last, when there is no more, by
//! what another stream is about to free: the stream then waits for it. Policies can turn all but the first and the fourth
//! off. Memory above the release threshold goes back at the next synchronisation.
//! An exported pool's chunks are shares. Lock order: engine, then tables; so the engine is asked outside the tables.
//!
//! Not here: the arithmetic (`pool_core`), handles of pools (`calls::pool`), graph memory.

use super::common::code;
use super::{Allocation, Inner, Kind, Memory, Tag};
use crate::driver::Driver;
use crate::pool_core::{Core, From, Mark, Numbers, Ticket};
use shim_sys::cuda::CUresult;
use std::collections::{BTreeMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use vgpu_sim::engine::{self, StreamId};
use vgpu_sim::memory::{Change, plus};
use vgpu_sim::share;

/// A pool of this process.
pub(super) struct Pool {
    core: Core,
    /// CUDA ordinal.
    device: i32,
    threshold: u64,
    /// Follow event dependencies, opportunistic, internal dependencies.
    reuse: [bool; 3],
    handle_types: u32,
    /// Its program has destroyed it: it ends with its last block.
    destroyed: bool,
    /// Its identity once exported, 0: it is not.
    share: u64,
    /// The shares that chunks are, by their beginning.
    common: BTreeMap<u64, u64>,
}

/// Where stream-ordered work stands.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// CUDA ordinal.
    pub(crate) device: i32,
    pub(crate) stream: StreamId,
}

/// What can be set about a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Setting {
    Threshold(u64),
    /// Which policy of three, and its value.
    Reuse(usize, bool),
    ResetReserved,
    ResetUsed,
}

impl Inner {
    /// The share of an exported pool, with the chunk that holds `at` and the chunk's share.
    pub(super) fn exported_chunk(&self, pool: u64, at: u64) -> Option<(u64, u64, u64)> {
        let p = self.pools.get(&pool).filter(|p| p.share != 0)?;
        let (base, _) = p.core.chunk_of(at)?;
        Some((p.share, base, *p.common.get(&base)?))
    }
}

fn block(bytes: u64) -> Option<Change> {
    let live = Core::rounded(bytes)?;
    Some(Change { allocations: 1, requested: plus(bytes), live: plus(live), ..Change::default() })
}

impl Memory {
    /// A new pool that may hold `max` bytes (0: any number); returns its number.
    pub(crate) fn new_pool(&self, device: i32, max: u64, handle_types: u32) -> u64 {
        let mut t = self.tables();
        let number = t.fresh();
        let pool = Pool {
            core: Core::new(max),
            device,
            threshold: 0,
            reuse: [true; 3],
            handle_types,
            destroyed: false,
            share: 0,
            common: BTreeMap::new(),
        };
        t.pools.insert(number, pool);
        self.any_pools.store(true, Ordering::Relaxed);
        number
    }

    /// The program has done with a pool: it ends now, or with its last block.
    pub(crate) fn destroy_pool(&self, d: &Driver, number: u64) {
        self.settle_pool(d, number);
        let mut t = self.tables();
        if let Some(p) = t.pools.get_mut(&number) {
            p.destroyed = true;
        }
        self.return_surplus(d, &mut t, number, 0, 0);
    }

    /// Allocates from a pool in the order of a stream.
    pub(crate) fn alloc_from_pool(
        &self,
        d: &Driver,
        number: u64,
        bytes: u64,
        tag: Tag,
        place: Place,
    ) -> Result<u64, CUresult> {
        if bytes == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let count = block(bytes).ok_or(CUresult::OUT_OF_MEMORY)?;
        let [follow_events, opportunistic, _] = self.pool_state(number).map(|s| s.2).unwrap_or_default();
        if opportunistic {
            self.settle_pool(d, number);
        }
        let behind = if follow_events { self.behind(d, number, place) } else { HashSet::new() };
        let mut t = self.tables();
        let p = t.pools.get_mut(&number).ok_or(CUresult::INVALID_VALUE)?;
        let (device, own) = (p.device, From::Stream(place.stream));
        let mut found = p.core.take_behind(bytes, own, &behind);
        if found.is_none() && self.grow(d, &mut t, number, bytes) {
            found = t.pools.get_mut(&number).and_then(|p| p.core.take(bytes, own));
        }
        if found.is_none() {
            let p = t.pools.get_mut(&number).filter(|p| p.reuse[2]);
            found = p.and_then(|p| p.core.take(bytes, From::AnyMarked));
        }
        let (at, wait) = found.ok_or(CUresult::OUT_OF_MEMORY)?;
        d.machine.adjust(d.device(device)?.index, &count).map_err(|_| CUresult::UNKNOWN)?;
        let fresh = t.fresh();
        let len = Core::rounded(bytes).unwrap_or(bytes);
        let kind = Kind::Async;
        t.live.insert(at, Allocation { bytes, len, device, tag, kind, number: fresh, pool: number, dirty: false });
        drop(t);
        if let Some(mark) = wait {
            follow(d, place, mark);
        }
        Ok(at)
    }

    /// Frees of other streams that the stream comes behind, by events it waited for.
    fn behind(&self, d: &Driver, number: u64, place: Place) -> HashSet<Ticket> {
        let late = self.tables().pools.get(&number).map(|p| p.core.elsewhere(place.stream)).unwrap_or_default();
        let Ok(device) = d.device(place.device) else { return HashSet::new() };
        late.into_iter().filter(|(_, s, n)| device.engine.is_behind(place.stream, *s, *n)).map(|(t, ..)| t).collect()
    }

    /// Adds a chunk to a pool: as usual, or what the request needs at the least.
    fn grow(&self, d: &Driver, t: &mut Inner, number: u64, bytes: u64) -> bool {
        let Some((p, (usual, least))) = t.pools.get(&number).and_then(|p| Some((p, p.core.growth(bytes)?))) else {
            return false;
        };
        let (device, exported) = (p.device, p.share != 0);
        // The usual chunk is a wish: nothing is given back for it.
        let wish = |t: &mut Inner| {
            let at = t.space.take(usual, super::GRANULARITY)?;
            let change = Change { large: plus(usual), ..Change::default() };
            let done = d.device(device).is_ok_and(|x| d.machine.adjust(x.index, &change).is_ok());
            if !done {
                t.space.give(at, usual);
            }
            done.then_some((at, usual))
        };
        let got = wish(t).or_else(|| Some((self.take_chunk(d, t, device, least).ok()?, least)));
        let Some((at, len)) = got else { return false };
        if exported {
            // The chunk is not in use yet: no effect can be at work in it.
            let Ok(share) = self.make_common(d, t, Some(device), (at, len, false)) else {
                self.return_chunk(d, t, device, at, len);
                return false;
            };
            t.pools.get_mut(&number).map(|p| p.common.insert(at, share));
        }
        t.pools.get_mut(&number).map(|p| p.core.grow(at, len)).is_some()
    }

    /// Frees a block, an imported one too, in the order of a stream. `None`: it is neither.
    pub(crate) fn free_async(&self, d: &'static Driver, at: u64, place: Place) -> Option<()> {
        let engine = &d.device(place.device).ok()?.engine;
        if self.begin_end_of_imported(at) {
            let end = move || d.memory.end_imported(d, at);
            engine.work(place.stream, 0, engine::Kind::Other, Some(end));
            return Some(());
        }
        let (a, ticket) = {
            let mut t = self.tables();
            let a = t.live.get(&at).copied().filter(|a| a.kind == Kind::Async)?;
            t.live.remove(&at);
            (a, t.pools.get_mut(&a.pool)?.core.give_late(at, place.stream)?)
        };
        let arrive = move || d.memory.arrive(d, &a, ticket);
        engine.work(place.stream, 0, engine::Kind::Other, Some(arrive));
        let behind = engine.place(place.stream);
        let event = engine.open_event(false);
        engine.record(place.stream, event);
        if let Some(p) = self.tables().pools.get_mut(&a.pool) {
            p.core.place(ticket, behind);
            p.core.mark(ticket, Mark { device: place.device, event });
        }
        Some(())
    }

    /// A stream's order has come to a free.
    fn arrive(&self, d: &Driver, a: &Allocation, ticket: Ticket) {
        let mut t = self.tables();
        if let Some(p) = t.pools.get_mut(&a.pool) {
            p.core.arrive(ticket);
        }
        uncount(d, a);
    }

    /// Frees a block now: its users are done.
    pub(super) fn to_pool(&self, d: &Driver, t: &mut Inner, at: u64, a: &Allocation) {
        if let Some(p) = t.pools.get_mut(&a.pool)
            && p.core.give(at)
        {
            uncount(d, a);
        }
        if t.pools.get(&a.pool).is_some_and(|p| p.destroyed) {
            self.return_surplus(d, t, a.pool, 0, 0);
        }
    }

    /// Takes notice of frees that the device has passed.
    fn settle_pool(&self, d: &Driver, number: u64) {
        let waiting = self.tables().pools.get(&number).map(|p| p.core.waiting()).unwrap_or_default();
        for (ticket, mark) in waiting {
            let Ok(device) = d.device(mark.device) else { continue };
            if !device.engine.event_done(mark.event) {
                continue;
            }
            // Of several threads that saw it one ends it.
            let mine = self.tables().pools.get_mut(&number).is_some_and(|p| p.core.end(ticket));
            if mine {
                device.engine.close_event(mark.event);
            }
        }
    }

    /// The program has synchronised: pools let go of what they hold above their thresholds.
    pub(crate) fn synchronised(&self, d: &Driver) {
        if !self.any_pools.load(Ordering::Relaxed) {
            return;
        }
        let all: Vec<u64> = self.tables().pools.keys().copied().collect();
        for number in all {
            self.settle_pool(d, number);
            let mut t = self.tables();
            let Some(threshold) = t.pools.get(&number).map(|p| if p.destroyed { 0 } else { p.threshold }) else {
                continue;
            };
            self.return_surplus(d, &mut t, number, threshold, 0);
        }
    }

    /// Lets a pool go of what nobody uses, as long as `keep` bytes remain.
    pub(crate) fn trim_pool(&self, d: &Driver, number: u64, keep: u64) {
        self.settle_pool(d, number);
        let mut t = self.tables();
        self.return_surplus(d, &mut t, number, keep, keep);
    }

    /// Pools of `device` give back what nobody uses, before a request for memory of another kind fails; false if that was
    /// nothing.
    pub(crate) fn give_back(&self, d: &Driver, device: i32) -> bool {
        self.give_back_unused(d, &mut self.tables(), device)
    }

    /// Pools of `device` give back what nobody uses; false if that was nothing.
    pub(super) fn give_back_unused(&self, d: &Driver, t: &mut Inner, device: i32) -> bool {
        let all: Vec<u64> = t.pools.iter().filter(|(_, p)| p.device == device).map(|(n, _)| *n).collect();
        let mut any = false;
        for number in all {
            any |= self.return_surplus(d, t, number, 0, 0);
        }
        any
    }

    fn return_surplus(&self, d: &Driver, t: &mut Inner, number: u64, above: u64, keep: u64) -> bool {
        let Some(p) = t.pools.get_mut(&number) else { return false };
        let device = p.device;
        let gone = p.core.surplus(above, keep);
        let shares: Vec<Option<u64>> = gone.iter().map(|(at, _)| p.common.remove(at)).collect();
        let ended = (p.destroyed && p.core.is_idle()).then_some(p.share);
        for ((at, len), share) in gone.iter().zip(shares) {
            match share {
                Some(share) => {
                    self.detach(*at, *len);
                    t.space.give(*at, *len);
                    self.let_share_go(d, t, share);
                }
                None => self.return_chunk(d, t, device, *at, *len),
            }
        }
        if let Some(share) = ended {
            t.pools.remove(&number);
            if share != 0 {
                self.let_share_go(d, t, share);
            }
        }
        !gone.is_empty()
    }

    /// A descriptor for a pool; from now on its chunks are shares. Nothing of its device may be at work.
    pub(crate) fn export_pool(&self, d: &Driver, number: u64, kind: u32) -> Result<OwnedFd, CUresult> {
        let mut t = self.tables();
        let p = t.pools.get(&number).filter(|p| p.handle_types & kind != 0).ok_or(CUresult::INVALID_VALUE)?;
        let (device, mut identity) = (p.device, p.share);
        if identity == 0 {
            let index = Some(d.device(device)?.index);
            let new = share::New { kind: share::Kind::Pool, device: index, bytes: 0, small: false, words: [0; 4] };
            let (info, _) = d.machine.share(&new).map_err(|e| code(&e, CUresult::UNKNOWN))?;
            Memory::hold_again(&mut t, &info);
            identity = info.id;
            if let Some(p) = t.pools.get_mut(&number) {
                p.share = identity;
            }
        }
        let chunks = t.pools.get(&number).map(|p| p.core.chunks()).unwrap_or_default();
        for (at, len) in chunks {
            if t.pools.get(&number).is_some_and(|p| p.common.contains_key(&at)) {
                continue;
            }
            let share = self.make_common(d, &mut t, Some(device), (at, len, false))?;
            t.pools.get_mut(&number).map(|p| p.common.insert(at, share));
        }
        d.machine.share_descriptor(identity).map_err(|e| code(&share::Trouble::File(e), CUresult::UNKNOWN))
    }

    /// Holds the pool that a descriptor names: its share, and its device here.
    pub(crate) fn import_pool(&self, d: &Driver, fd: i32) -> Result<(u64, i32), CUresult> {
        let invalid = CUresult::INVALID_VALUE;
        // The tables first: a thread that ends this process's last hold meanwhile would end ours with it.
        let mut t = self.tables();
        let (info, _) = d.machine.hold_descriptor(fd).map_err(|_| invalid)?;
        Memory::hold_again(&mut t, &info);
        let device = super::common::ordinal(d, &info).and_then(|dev| dev.ok_or(invalid));
        if !info.is(share::Kind::Pool) || device.is_err() {
            self.let_share_go(d, &mut t, info.id);
            return Err(device.err().unwrap_or(invalid));
        }
        Ok((info.id, device?))
    }

    /// Ends what [`Memory::import_pool`] began; blocks that were opened stay.
    pub(crate) fn forget_imported_pool(&self, d: &Driver, share: u64) {
        self.let_share_go(d, &mut self.tables(), share);
    }

    /// A pool's numbers, its threshold and its policies.
    pub(crate) fn pool_state(&self, number: u64) -> Option<(Numbers, u64, [bool; 3])> {
        self.tables().pools.get(&number).map(|p| (p.core.numbers(), p.threshold, p.reuse))
    }

    /// Changes something about a pool.
    pub(crate) fn set_pool(&self, number: u64, setting: Setting) {
        let mut t = self.tables();
        let Some(p) = t.pools.get_mut(&number) else { return };
        match setting {
            Setting::Threshold(bytes) => p.threshold = bytes,
            Setting::Reuse(which, on) => p.reuse[which] = on,
            Setting::ResetReserved => p.core.reset_reserved_high(),
            Setting::ResetUsed => p.core.reset_used_high(),
        }
    }
}

fn uncount(d: &Driver, a: &Allocation) {
    if let (Ok(device), Some(count)) = (d.device(a.device), block(a.bytes)) {
        let _ = d.machine.adjust(device.index, &count.undone());
    }
}

/// Lets a stream wait for an event of any device.
fn follow(d: &Driver, place: Place, mark: Mark) {
    let (Ok(here), Ok(there)) = (d.device(place.device), d.device(mark.device)) else { return };
    if place.device == mark.device {
        here.engine.wait_event(place.stream, mark.event);
    } else {
        let other = there.engine.clone();
        here.engine.gate(place.stream, move || other.event_done(mark.event));
    }
}
