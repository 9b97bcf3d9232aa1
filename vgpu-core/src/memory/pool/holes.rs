//! Tracks the free memory inside a pool by the addresses that the driver returned. It shows before a driver call that
//! a request fits inside the pool, and afterwards that it was served from inside.
//!
//! The sum of the free bytes is not enough: a block needs one contiguous piece, within one chunk. So this map keeps
//! the free pieces, and merges neighbours inside a chunk. A piece freed in stream order is usable by its own stream
//! immediately, and by others once the stream has executed the free. Some room is unknown here: another thread's part
//! of a growth, or a chunk that began elsewhere. A request then seems not to fit, and reserves all it may take.
//!
//! The map stays true until the pool gives memory back, which the caller reports ([`FreeRanges::note_trim`]). Then
//! chunks without a block are forgotten, including frees in progress inside them: the driver may have noticed earlier
//! than the program that a stream has executed its frees. Knowing too little room is always correct;
//! [`FreeRanges::forget_all`] forgets all of it.
//!
//! A program that frees a block and soon allocates another of its size gets the same block again. So the blocks freed
//! last in stream order are kept in a short list, and reach the map only when the list is full or another operation
//! needs them there. A block of the list still counts as a block of its chunk. Blocks freed in stream order are never
//! merged with their neighbours, so the list shows the same room as the map would.
//!
//! # Cost
//! A block that is freed and soon handed out again: a few looks at a list of some [`MAX_RECENT`] blocks. Any other
//! operation takes a few steps in ordered maps, by address and by size, whatever the number of pieces.
//! [`FreeRanges::pass_frees`] takes as many for each piece that the stream has freed, [`FreeRanges::note_trim`] one
//! for each chunk.

use std::collections::{BTreeMap, BTreeSet};

/// Number of recent frees that are kept out of the map, and also the number that each request looks at.
const MAX_RECENT: usize = 8;

/// A stream, as any number that identifies it.
pub type StreamKey = u64;

/// A number that no stream has.
pub const NO_STREAM: StreamKey = StreamKey::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    end: u64,
    /// The stream in whose order the piece was freed, if it has not executed the free yet.
    late: Option<StreamKey>,
}

/// Memory that the pool grew by at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunk {
    end: u64,
    /// Blocks in it, with those of recent frees: the pool keeps the chunk while it has any.
    used: u32,
}

/// A block whose free is in progress in the driver, which may hand the block out again before the free returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "it leaves, or it stays"]
pub struct PendingFree {
    at: u64,
    end: u64,
    number: u64,
}

impl PendingFree {
    /// The block's address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.at
    }

    /// The block's bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.end - self.at
    }

    #[inline]
    fn overlaps(&self, from: u64, to: u64) -> bool {
        self.at < to && self.end > from
    }
}

/// A free that is not in the map yet. Its chunk still counts its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecentFree {
    block: PendingFree,
    /// The stream in whose order the block was freed; `None`: the free is in progress.
    stream: Option<StreamKey>,
}

/// The free pieces of one pool. The fields that an ordinary request and its free touch come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FreeRanges {
    /// Frees in progress, and the last ones that ended. No two overlap, and none lies in a piece of `gaps`. Each is
    /// removed when some of its bytes are handed out again.
    recent: Vec<RecentFree>,
    /// Number of frees begun so far; it numbers them.
    left: u64,
    chunks: BTreeMap<u64, Chunk>,
    /// Total bytes of all chunks.
    known: u64,
    gaps: BTreeMap<u64, Gap>,
    /// The pieces of `gaps`, ordered by the stream that can use them (`None`: all), length and address.
    sizes: BTreeSet<(Option<StreamKey>, u64, u64)>,
    /// Pieces that lie in no known chunk.
    strays: BTreeSet<u64>,
}

impl FreeRanges {
    /// A map without any known room.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            recent: Vec::new(),
            left: 0,
            chunks: BTreeMap::new(),
            known: 0,
            gaps: BTreeMap::new(),
            sizes: BTreeSet::new(),
            strays: BTreeSet::new(),
        }
    }

    /// True if a free piece can serve a request of `bytes` in `stream`.
    #[must_use]
    #[inline]
    pub fn fits_request(&self, bytes: u64, stream: StreamKey) -> bool {
        if self.recent.iter().any(|free| free.stream == Some(stream) && free.block.bytes() >= bytes) {
            return true;
        }
        self.has_gap(bytes, stream)
    }

    #[inline(never)]
    fn has_gap(&self, bytes: u64, stream: StreamKey) -> bool {
        let serves = |whom| self.sizes.range((whom, bytes, 0)..=(whom, u64::MAX, u64::MAX)).next().is_some();
        serves(None) || serves(Some(stream))
    }

    /// True if `bytes` at `at` are known to be free: a request served there does not make the pool grow.
    #[must_use]
    pub fn is_free(&self, at: u64, bytes: u64) -> bool {
        let end = at.saturating_add(bytes);
        if self.recent.iter().any(|free| free.stream.is_some() && free.block.at <= at && free.block.end >= end) {
            return true;
        }
        self.gaps.range(..=at).next_back().is_some_and(|(_, gap)| gap.end >= end)
    }

    /// Total bytes of the known chunks. If that is more than the pool holds, a change was missed.
    #[must_use]
    pub fn known_bytes(&self) -> u64 {
        self.known
    }

    /// A request was served at `at`. Returns true if its memory was known to be free ([`FreeRanges::is_free`]); else
    /// the request is not noted.
    #[must_use]
    pub fn note_placed_inside(&mut self, at: u64, bytes: u64) -> bool {
        let end = at.saturating_add(bytes);
        let same = |free: &RecentFree| free.stream.is_some() && (free.block.at, free.block.end) == (at, end);
        if let Some(index) = self.recent.iter().rposition(same) {
            // The chunk counts the block all the time.
            self.recent.swap_remove(index);
            return true;
        }
        let inside = self.is_free(at, bytes);
        if inside {
            self.note_placed(at, bytes);
        }
        inside
    }

    /// A request was served at `at`.
    pub fn note_placed(&mut self, at: u64, bytes: u64) {
        let end = at.saturating_add(bytes);
        self.settle_recent(|free| free.block.overlaps(at, end));
        self.cut_range(at, end);
        self.count_block(at, true);
    }

    /// The pool grew by `by` bytes for a request of `bytes` served at `at`: the rest of the growth is free.
    pub fn note_growth(&mut self, at: u64, bytes: u64, by: u64) {
        let (end, last) = (at.saturating_add(by), self.chunks.range(..at.saturating_add(by)).next_back());
        if by >= bytes && last.is_none_or(|(_, chunk)| chunk.end <= at) {
            // Pieces recorded as free there left the pool long ago.
            self.settle_recent(|free| free.block.overlaps(at, end));
            self.cut_range(at, end);
            self.chunks.insert(at, Chunk { end, used: 0 });
            self.known += end - at;
            self.add_range(at.saturating_add(bytes), end, None);
        }
    }

    /// A block is about to be freed; call this before the driver. From then on the block does not keep its chunk if
    /// the pool gives memory back.
    #[inline]
    pub fn begin_free(&mut self, at: u64, bytes: u64) -> PendingFree {
        let end = at.saturating_add(bytes);
        if self.recent.iter().any(|free| free.block.overlaps(at, end)) {
            self.settle_recent(|free| free.block.overlaps(at, end));
        }
        self.left += 1;
        let block = PendingFree { at, end, number: self.left };
        self.recent.push(RecentFree { block, stream: None });
        block
    }

    /// The block was freed, in the order of a stream, or (`None`) for all streams. It becomes free room, unless some
    /// of it was handed out again or may have left the pool meanwhile.
    pub fn finish_free(&mut self, leaving: PendingFree, stream: Option<StreamKey>) {
        let Some(index) = self.find_recent(leaving) else { return };
        if stream.is_some() {
            self.recent[index].stream = stream;
            if self.recent.len() > MAX_RECENT {
                self.settle_finished();
            }
        } else {
            self.recent.swap_remove(index);
            self.count_block(leaving.at, false);
            self.add_range(leaving.at, leaving.end, None);
        }
    }

    /// The free failed: the block stays in use.
    pub fn cancel_free(&mut self, leaving: PendingFree) {
        match self.find_recent(leaving) {
            Some(index) => _ = self.recent.swap_remove(index),
            None => self.count_block(leaving.at, true),
        }
    }

    /// A stream has executed all its frees; `None`: all streams have.
    pub fn pass_frees(&mut self, stream: Option<StreamKey>) {
        let (first, last) = (stream.unwrap_or(0), stream.unwrap_or(StreamKey::MAX));
        self.settle_finished();
        self.late_by(first, last, None);
    }

    /// A stream was destroyed that may not have executed its frees, and its number may be reused. Its pieces become
    /// usable only after a wait for all streams.
    pub fn forget_stream(&mut self, stream: StreamKey) {
        self.settle_finished();
        self.late_by(stream, stream, Some(NO_STREAM));
    }

    /// The pool may have given memory back: any chunk without a block, and any free memory outside the known chunks.
    pub fn note_trim(&mut self) {
        self.settle_recent(|_| true);
        let mut gone = core::mem::take(&mut self.strays);
        let (gaps, known) = (&self.gaps, &mut self.known);
        self.chunks.retain(|&at, chunk| {
            if chunk.used == 0 {
                gone.extend(gaps.range(at..chunk.end).map(|(at, _)| *at));
                *known -= chunk.end - at;
            }
            chunk.used > 0
        });
        gone.into_iter().for_each(|at| _ = self.remove(at));
    }

    /// An unforeseen event: no room is known any more.
    pub fn forget_all(&mut self) {
        // Keep the counter, since the number of a free is never reused.
        *self = Self { left: self.left, ..Self::new() };
    }

    fn late_by(&mut self, first: StreamKey, last: StreamKey, now: Option<StreamKey>) {
        let there = (Some(first), 0, 0)..=(Some(last), u64::MAX, u64::MAX);
        let come: Vec<u64> = self.sizes.range(there).map(|(_, _, at)| *at).collect();
        for at in come {
            if let Some(gap) = self.remove(at) {
                self.add_range(at, gap.end, now);
            }
        }
    }

    /// The index of a free in `recent`, if it is still there.
    fn find_recent(&self, leaving: PendingFree) -> Option<usize> {
        self.recent.iter().rposition(|free| free.block == leaving)
    }

    /// Removes the selected frees from `recent`. Those that ended become pieces of the map; those in progress are
    /// forgotten.
    fn settle_recent(&mut self, selected: impl Fn(&RecentFree) -> bool) {
        let mut index = 0;
        while let Some(free) = self.recent.get(index).copied() {
            if !selected(&free) {
                index += 1;
                continue;
            }
            self.recent.swap_remove(index);
            self.count_block(free.block.at, false);
            if free.stream.is_some() {
                self.add_range(free.block.at, free.block.end, free.stream);
            }
        }
    }

    /// Moves the frees that ended into the map.
    fn settle_finished(&mut self) {
        self.settle_recent(|free| free.stream.is_some());
    }

    /// Adds a block to the count of its chunk, or removes one.
    fn count_block(&mut self, at: u64, more: bool) {
        if let Some(chunk) = self.chunks.range_mut(..=at).next_back().map(|(_, chunk)| chunk)
            && at < chunk.end
        {
            chunk.used = if more { chunk.used.saturating_add(1) } else { chunk.used.saturating_sub(1) };
        }
    }

    fn chunk_of(&self, at: u64) -> Option<(u64, u64)> {
        let (begin, chunk) = self.chunks.range(..=at).next_back()?;
        (at < chunk.end).then_some((*begin, chunk.end))
    }

    fn insert(&mut self, at: u64, gap: Gap) {
        self.gaps.insert(at, gap);
        self.sizes.insert((gap.late, gap.end - at, at));
        if self.chunk_of(at).is_none() {
            self.strays.insert(at);
        }
    }

    fn remove(&mut self, at: u64) -> Option<Gap> {
        let gap = self.gaps.remove(&at)?;
        self.sizes.remove(&(gap.late, gap.end - at, at));
        self.strays.remove(&at);
        Some(gap)
    }

    /// Removes a range from every free piece.
    fn cut_range(&mut self, from: u64, to: u64) {
        while let Some((at, end)) = self.gaps.range(..to).next_back().map(|(at, gap)| (*at, gap.end))
            && end > from
            && let Some(gap) = self.remove(at)
        {
            if at < from {
                self.insert(at, Gap { end: from, ..gap });
            }
            if end > to {
                self.insert(to, gap);
            }
        }
    }

    /// Adds a free piece. A piece that all streams can use is merged with its neighbours in the same chunk.
    fn add_range(&mut self, mut from: u64, mut to: u64, late: Option<StreamKey>) {
        self.cut_range(from, to);
        if from >= to {
            return;
        }
        if let (None, Some((begin, end))) = (late, self.chunk_of(from)) {
            let before = self.gaps.range(begin..from).next_back().map(|(at, gap)| (*at, *gap));
            if let Some((at, _)) = before.filter(|(_, gap)| *gap == Gap { end: from, late: None }) {
                self.remove(at);
                from = at;
            }
            let after = self.gaps.get(&to).copied().filter(|gap| to < end && gap.late.is_none());
            if let Some(gap) = after {
                self.remove(to);
                to = gap.end;
            }
        }
        self.insert(from, Gap { end: to, late });
    }
}

#[cfg(test)]
mod tests;
