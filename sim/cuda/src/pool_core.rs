//! The arithmetic of a memory pool: its chunks, the blocks allocated from them, and stream-ordered frees that are
//! pending.
//!
//! It works on addresses and lengths only, without the engine or the machine. A stream-ordered free has three
//! stages:
//! - The call: the freeing stream may reuse the block at once, in its own order.
//! - The arrival: the stream's order reaches the free, and the block is no longer in use.
//! - The end: the device has passed the free, anyone may reuse the block, and it is joined with its neighbours.
//!
//! Chunks are returned whole. Used by stream-ordered pools (`pools`) and by graph memory.

use std::collections::{BTreeMap, HashMap, HashSet};
use vgpu_sim::engine::{EventId, StreamId};

/// Usual growth of a pool, bytes. A larger request grows it by more; if this does not fit, the request alone counts.
pub(crate) const CHUNK_BYTES: u64 = 32 << 20;
/// Granularity of physical memory, bytes.
const PHYSICAL_PAGE_BYTES: u64 = 2 << 20;
/// Block sizes are multiples of this, bytes.
const BLOCK_ALIGN_BYTES: u64 = 512;

/// Bytes of a pool, and their highest values since the last reset.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct PoolNumbers {
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
    pub(crate) used: u64,
    pub(crate) used_high: u64,
}

/// Number of a pending free: one in stream order that the stream has not reached yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct FreeTicket(u64);

/// The event after which a pending free is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FreeMark {
    /// CUDA ordinal of the device whose stream has the free.
    pub(crate) device: i32,
    pub(crate) event: EventId,
}

#[derive(Clone, Copy, Debug)]
struct LateFree {
    stream: StreamId,
    /// Bytes of the pending free that still count as used.
    counted: u64,
    mark: Option<FreeMark>,
    /// Operations of the stream up to and including the free.
    place: u64,
}

#[derive(Clone, Copy, Debug)]
struct FreeGap {
    len: u64,
    /// The pending free that the gap belongs to; `None`: available to anyone.
    late: Option<FreeTicket>,
}

/// Pending frees that a request may reuse, in addition to finished ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FreeSource {
    /// No pending free: only memory whose free is finished.
    #[allow(dead_code)] // for graph memory
    Nobody,
    /// Pending frees in this stream.
    Stream(StreamId),
    /// Any free with an event: the requesting stream then waits for it.
    AnyMarked,
}

/// The blocks and chunks of one pool.
#[derive(Default, Debug)]
pub(crate) struct PoolCore {
    chunks: BTreeMap<u64, u64>,
    gaps: BTreeMap<u64, FreeGap>,
    taken: BTreeMap<u64, u64>,
    late: HashMap<FreeTicket, LateFree>,
    /// Most bytes that the pool may hold; 0: unlimited.
    max: u64,
    next: u64,
    numbers: PoolNumbers,
}

impl PoolCore {
    /// An empty pool that may hold `max` bytes (0: unlimited).
    pub(crate) fn new(max: u64) -> PoolCore {
        PoolCore { max, ..PoolCore::default() }
    }

    /// Bytes of the pool now, and their highest values.
    pub(crate) fn pool_numbers(&self) -> PoolNumbers {
        self.numbers
    }

    /// Resets the highest reserved value to the present one.
    pub(crate) fn reset_reserved_high(&mut self) {
        self.numbers.reserved_high = self.numbers.reserved;
    }

    /// Resets the highest used value to the present one.
    pub(crate) fn reset_used_high(&mut self) {
        self.numbers.used_high = self.numbers.used;
    }

    /// Size of a block for `bytes`.
    pub(crate) fn block_bytes(bytes: u64) -> Option<u64> {
        bytes.checked_next_multiple_of(BLOCK_ALIGN_BYTES)
    }

    /// Allocates a block of at least `bytes` from the pool: returns its address, and the event to wait for first, if
    /// any.
    pub(crate) fn take_block(&mut self, bytes: u64, from: FreeSource) -> Option<(u64, Option<FreeMark>)> {
        self.take_behind(bytes, from, &HashSet::new())
    }

    /// As [`PoolCore::take_block`]; may also reuse the frees in `behind`, which the request follows.
    pub(crate) fn take_behind(
        &mut self,
        bytes: u64,
        from: FreeSource,
        behind: &HashSet<FreeTicket>,
    ) -> Option<(u64, Option<FreeMark>)> {
        let need = PoolCore::block_bytes(bytes)?;
        let allowed = |gap: &FreeGap| match (gap.late, from) {
            (None, _) => true,
            (Some(t), _) if behind.contains(&t) => true,
            (Some(t), FreeSource::Stream(s)) => self.late.get(&t).is_some_and(|l| l.stream == s),
            (Some(t), FreeSource::AnyMarked) => self.late.get(&t).is_some_and(|l| l.mark.is_some()),
            (Some(_), FreeSource::Nobody) => false,
        };
        let best = self.gaps.iter().filter(|(_, g)| g.len >= need && allowed(g)).min_by_key(|(at, g)| (g.len, **at));
        let (at, gap) = best.map(|(at, g)| (*at, *g))?;
        self.gaps.remove(&at);
        if gap.len > need {
            self.gaps.insert(at + need, FreeGap { len: gap.len - need, ..gap });
        }
        let mut wait = None;
        if let Some(l) = gap.late.and_then(|ticket| self.late.get_mut(&ticket)) {
            // Bytes of a pending free are not counted twice: the part that is reused no longer counts for the previous
            // user.
            let part = l.counted.min(need);
            l.counted -= part;
            self.numbers.used -= part;
            wait = l.mark.filter(|_| from == FreeSource::AnyMarked);
        }
        self.taken.insert(at, need);
        self.numbers.used += need;
        self.numbers.used_high = self.numbers.used_high.max(self.numbers.used);
        Some((at, wait))
    }

    /// The growth needed for `bytes`: the usual size and the least one. `None`: the maximum forbids it.
    pub(crate) fn growth_for(&self, bytes: u64) -> Option<(u64, u64)> {
        let least = bytes.checked_next_multiple_of(PHYSICAL_PAGE_BYTES)?;
        let room = if self.max == 0 { u64::MAX } else { self.max.saturating_sub(self.numbers.reserved) };
        (least <= room).then(|| (least.max(CHUNK_BYTES.min(room / PHYSICAL_PAGE_BYTES * PHYSICAL_PAGE_BYTES)), least))
    }

    /// Adds a chunk of `len` bytes at `at`, all of it free.
    pub(crate) fn add_chunk(&mut self, at: u64, len: u64) {
        self.chunks.insert(at, len);
        self.gaps.insert(at, FreeGap { len, late: None });
        self.numbers.reserved += len;
        self.numbers.reserved_high = self.numbers.reserved_high.max(self.numbers.reserved);
    }

    /// Frees a block at once; anyone may reuse it.
    pub(crate) fn free_block(&mut self, at: u64) -> bool {
        let Some(len) = self.taken.remove(&at) else { return false };
        self.numbers.used -= len;
        self.join(at, len);
        true
    }

    /// Frees a block in the order of `stream`.
    pub(crate) fn give_late(&mut self, at: u64, stream: StreamId) -> Option<FreeTicket> {
        let len = self.taken.remove(&at)?;
        self.next += 1;
        let ticket = FreeTicket(self.next);
        self.late.insert(ticket, LateFree { stream, counted: len, mark: None, place: u64::MAX });
        self.gaps.insert(at, FreeGap { len, late: Some(ticket) });
        Some(ticket)
    }

    /// The stream's order has reached the free: the part not reused yet is no longer in use.
    pub(crate) fn arrive_at_free(&mut self, ticket: FreeTicket) {
        if let Some(l) = self.late.get_mut(&ticket) {
            self.numbers.used -= std::mem::take(&mut l.counted);
        }
    }

    /// Sets the event after which the free is done.
    pub(crate) fn set_mark(&mut self, ticket: FreeTicket, mark: FreeMark) {
        if let Some(l) = self.late.get_mut(&ticket) {
            l.mark = Some(mark);
        }
    }

    /// Sets the free's position in its stream.
    pub(crate) fn set_place(&mut self, ticket: FreeTicket, place: u64) {
        if let Some(l) = self.late.get_mut(&ticket) {
            l.place = place;
        }
    }

    /// Pending frees of other streams, with their positions.
    pub(crate) fn frees_elsewhere(&self, stream: StreamId) -> Vec<(FreeTicket, StreamId, u64)> {
        self.late.iter().filter(|(_, l)| l.stream != stream).map(|(t, l)| (*t, l.stream, l.place)).collect()
    }

    /// Pending frees with an event that can be queried.
    pub(crate) fn waiting_frees(&self) -> Vec<(FreeTicket, FreeMark)> {
        self.late.iter().filter_map(|(t, l)| Some((*t, l.mark?))).collect()
    }

    /// The device has passed the free: anyone may reuse the rest. False: that was known already.
    pub(crate) fn finish_free(&mut self, ticket: FreeTicket) -> bool {
        self.arrive_at_free(ticket);
        let known = self.late.remove(&ticket).is_none();
        let mine: Vec<(u64, u64)> =
            self.gaps.iter().filter(|(_, g)| g.late == Some(ticket)).map(|(at, g)| (*at, g.len)).collect();
        for (at, len) in mine {
            self.gaps.remove(&at);
            self.join(at, len);
        }
        !known
    }

    /// Joins a free range with the free neighbours inside its chunk.
    fn join(&mut self, mut at: u64, mut len: u64) {
        let Some((&base, &size)) = self.chunks.range(..=at).next_back() else { return };
        if at + len < base + size
            && let Some(next) = self.gaps.get(&(at + len)).filter(|g| g.late.is_none()).copied()
        {
            self.gaps.remove(&(at + len));
            len += next.len;
        }
        if let Some((&before, gap)) = self.gaps.range(base..at).next_back()
            && gap.late.is_none()
            && before + gap.len == at
        {
            len += gap.len;
            at = before;
        }
        self.gaps.insert(at, FreeGap { len, late: None });
    }

    /// Removes unused whole chunks from the pool while it holds more than `above` bytes and at least `keep` remain.
    /// The caller returns them to the device.
    pub(crate) fn take_surplus(&mut self, above: u64, keep: u64) -> Vec<(u64, u64)> {
        let idle: Vec<(u64, u64)> = self
            .chunks
            .iter()
            .filter(|(at, len)| self.gaps.get(at).is_some_and(|g| g.late.is_none() && g.len == **len))
            .map(|(at, len)| (*at, *len))
            .collect();
        let mut gone = Vec::new();
        for (at, len) in idle.into_iter().rev() {
            if self.numbers.reserved > above && self.numbers.reserved - len >= keep {
                self.chunks.remove(&at);
                self.gaps.remove(&at);
                self.numbers.reserved -= len;
                gone.push((at, len));
            }
        }
        gone
    }

    /// The chunk that includes `at`, with its length.
    pub(crate) fn chunk_of(&self, at: u64) -> Option<(u64, u64)> {
        self.chunks.range(..=at).next_back().map(|(b, l)| (*b, *l)).filter(|(b, l)| at < b + l)
    }

    /// All chunks of the pool: address and length.
    pub(crate) fn all_chunks(&self) -> Vec<(u64, u64)> {
        self.chunks.iter().map(|(at, len)| (*at, *len)).collect()
    }

    /// True if no block is allocated and no free is pending.
    pub(crate) fn is_idle(&self) -> bool {
        self.taken.is_empty() && self.late.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_sim::MachineView;
    use vgpu_sim::engine::DeviceEngine;

    const MIB: u64 = 1 << 20;

    /// Streams and an event of a real engine, because they cannot be made otherwise.
    fn streams() -> (StreamId, StreamId, EventId) {
        let dir = tempfile::tempdir().unwrap();
        let m = std::sync::Arc::new(MachineView::open_at(dir.path(), Some("t4")).unwrap());
        let e = DeviceEngine::new(m, 0);
        let g = e.open_group();
        (e.open_stream(g, false), e.open_stream(g, false), e.open_event(false))
    }

    fn one_chunk() -> PoolCore {
        let mut c = PoolCore::new(0);
        assert_eq!(c.growth_for(1), Some((CHUNK_BYTES, 2 * MIB)));
        c.add_chunk(1 << 40, CHUNK_BYTES);
        c
    }

    #[test]
    fn growth_is_a_chunk_or_the_request_and_never_beyond_the_maximum() {
        let mut c = PoolCore::new(40 * MIB);
        assert_eq!(c.growth_for(33 * MIB), Some((34 * MIB, 34 * MIB)));
        c.add_chunk(0, CHUNK_BYTES);
        assert_eq!(c.growth_for(MIB), Some((8 * MIB, 2 * MIB)));
        assert_eq!(c.growth_for(9 * MIB), None);
    }

    #[test]
    fn blocks_fit_their_chunk_and_join_again() {
        let mut c = one_chunk();
        c.add_chunk((1 << 40) + CHUNK_BYTES, CHUNK_BYTES);
        assert_eq!(c.take_block(CHUNK_BYTES + 1, FreeSource::Nobody), None, "no block spans two chunks");
        let blocks: Vec<u64> = (0..64).map(|_| c.take_block(MIB - 100, FreeSource::Nobody).unwrap().0).collect();
        assert!(c.take_block(1, FreeSource::Nobody).is_none());
        assert_eq!(c.pool_numbers().used, 64 * MIB);
        for b in &blocks {
            assert!(c.free_block(*b) && !c.free_block(*b));
        }
        assert_eq!(c.take_surplus(0, 0).len(), 2);
        assert_eq!(
            c.pool_numbers(),
            PoolNumbers { reserved_high: 64 * MIB, used_high: 64 * MIB, ..PoolNumbers::default() }
        );
    }

    #[test]
    fn a_free_serves_its_own_stream_first_and_everybody_at_the_end() {
        let (s, other, event) = streams();
        let mut c = one_chunk();
        let (a, _) = c.take_block(CHUNK_BYTES, FreeSource::Stream(s)).unwrap();
        let t = c.give_late(a, s).unwrap();
        assert_eq!(c.pool_numbers().used, CHUNK_BYTES, "in use until the stream comes to it");
        assert!(
            c.take_block(1, FreeSource::Stream(other)).is_none() && c.take_block(1, FreeSource::AnyMarked).is_none()
        );
        assert_eq!(c.take_block(MIB, FreeSource::Stream(s)), Some((a, None)));
        assert_eq!(c.pool_numbers().used, CHUNK_BYTES);
        c.arrive_at_free(t);
        assert_eq!(c.pool_numbers().used, MIB);
        assert!(c.waiting_frees().is_empty());
        c.set_mark(t, FreeMark { device: 0, event });
        assert!(c.take_surplus(0, 0).is_empty());
        let (b, wait) = c.take_block(MIB, FreeSource::AnyMarked).unwrap();
        assert_eq!(wait, Some(FreeMark { device: 0, event }));
        assert!(c.finish_free(t) && !c.finish_free(t));
        assert!(c.take_block(29 * MIB, FreeSource::Nobody).is_some());
        assert!(c.free_block(a) && c.free_block(b) && !c.is_idle());
    }

    #[test]
    fn surplus_keeps_what_it_is_told_to() {
        let mut c = PoolCore::new(0);
        (0..4).for_each(|k| c.add_chunk(k * CHUNK_BYTES, CHUNK_BYTES));
        assert_eq!(c.take_surplus(3 * CHUNK_BYTES, 0).len(), 1, "down to the threshold");
        assert_eq!(c.take_surplus(0, CHUNK_BYTES + 1).len(), 1, "never below what is to be kept");
        c.take_block(1, FreeSource::Nobody).unwrap();
        assert_eq!(c.take_surplus(0, 0).len(), 1, "a chunk in use stays");
        c.reset_reserved_high();
        c.reset_used_high();
        assert_eq!(
            c.pool_numbers(),
            PoolNumbers { reserved: CHUNK_BYTES, reserved_high: CHUNK_BYTES, used: 512, used_high: 512 }
        );
    }
}
