//! Where a pool has room, told from the addresses that the driver gave: so that a request is known to fit inside before
//! the driver is asked, and known to have been served from inside when it has answered.
//!
//! The sum of what is free says little: a block lies in one piece, and in one chunk. This keeps the free pieces, joined
//! with their neighbours inside a chunk. A piece that was freed in stream order serves its own stream at once and the
//! others when the stream has come to the free. What is not known here (another thread's part of a growth, a chunk that
//! began elsewhere) is missing, which makes a request look as if it did not fit: it then reserves what it may take.
//!
//! What is known stays true until the pool gives memory back, which the caller says ([`Holes::trimmed`]): then chunks
//! without a block are forgotten, whatever is on its way back in them, since the driver may have noticed earlier than the
//! program that a stream has come to its frees. Too few is always right, and [`Holes::forget`] forgets everything.
//!
//! # Cost
//! Each act takes a few steps in ordered maps, by address and by size, whatever the number of pieces; [`Holes::arrived`]
//! as many for each piece that the stream has come to, [`Holes::trimmed`] one for each chunk.

use std::collections::{BTreeMap, BTreeSet};

/// A stream, by any number that tells it from others.
pub type Stream = u64;

/// No stream's number.
pub const NOBODY: Stream = Stream::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    end: u64,
    /// Freed in this stream's order, which has not come to it.
    late: Option<Stream>,
}

/// What the pool grew by at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunk {
    end: u64,
    /// Blocks in it: it stays with the pool while there are any.
    used: u32,
}

/// A block whose free is on its way through the driver, which may give it out again before the free has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it leaves, or it stays"]
pub struct Leaving {
    at: u64,
    end: u64,
    number: u64,
}

/// The free pieces of one pool.
#[derive(Clone, Debug, Default)]
pub struct Holes {
    chunks: BTreeMap<u64, Chunk>,
    /// Bytes of all chunks.
    known: u64,
    gaps: BTreeMap<u64, Gap>,
    /// The same pieces by whom they serve, length and address.
    sizes: BTreeSet<(Option<Stream>, u64, u64)>,
    /// Of them: those that lie in no chunk that is known.
    strays: BTreeSet<u64>,
    /// Blocks on their way out of which nothing has been given out again, by address.
    leaving: BTreeMap<u64, Leaving>,
    /// How many have ever been.
    left: u64,
}

impl Holes {
    /// No room known.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            chunks: BTreeMap::new(),
            known: 0,
            gaps: BTreeMap::new(),
            sizes: BTreeSet::new(),
            strays: BTreeSet::new(),
            leaving: BTreeMap::new(),
            left: 0,
        }
    }

    /// Whether a piece serves a request of `bytes` in `stream`.
    #[must_use]
    pub fn fits(&self, bytes: u64, stream: Stream) -> bool {
        let serves = |whom| self.sizes.range((whom, bytes, 0)..=(whom, u64::MAX, u64::MAX)).next().is_some();
        serves(None) || serves(Some(stream))
    }

    /// Whether `bytes` at `at` are free, as far as is known: a request that is served there makes the pool grow by
    /// nothing.
    #[must_use]
    pub fn has(&self, at: u64, bytes: u64) -> bool {
        let end = at.saturating_add(bytes);
        self.gaps.range(..=at).next_back().is_some_and(|(_, gap)| gap.end >= end)
    }

    /// Bytes of the chunks that are known; more than the pool holds: something was missed.
    #[must_use]
    pub fn known(&self) -> u64 {
        self.known
    }

    /// A request was served at `at`.
    pub fn placed(&mut self, at: u64, bytes: u64) {
        let end = at.saturating_add(bytes);
        self.cut(at, end);
        self.given_out(at, end);
        self.used(at, true);
    }

    /// The pool grew by `by` for a request that was served at `at`: the rest of the growth is room.
    pub fn grew(&mut self, at: u64, bytes: u64, by: u64) {
        let (end, last) = (at.saturating_add(by), self.chunks.range(..at.saturating_add(by)).next_back());
        if by >= bytes && last.is_none_or(|(_, chunk)| chunk.end <= at) {
            // What was thought to be free there was given back long ago.
            self.cut(at, end);
            self.chunks.insert(at, Chunk { end, used: 0 });
            self.known += end - at;
            self.put(at.saturating_add(bytes), end, None);
        }
    }

    /// A block is about to be freed, before the driver is asked. It keeps its chunk no longer.
    pub fn leaving(&mut self, at: u64, bytes: u64) -> Leaving {
        let end = at.saturating_add(bytes);
        self.given_out(at, end);
        self.used(at, false);
        self.left += 1;
        let leaving = Leaving { at, end, number: self.left };
        self.leaving.insert(at, leaving);
        leaving
    }

    /// It was freed, in the order of a stream or for everybody: it is room, unless some of it was given out again or may
    /// have been given back meanwhile.
    pub fn freed(&mut self, leaving: Leaving, stream: Option<Stream>) {
        if self.is_still(leaving) {
            self.put(leaving.at, leaving.end, stream);
        }
    }

    /// It was not freed.
    pub fn stays(&mut self, leaving: Leaving) {
        let _ = self.is_still(leaving);
        self.used(leaving.at, true);
    }

    /// A stream has come to all its frees; `None`: all streams have.
    pub fn arrived(&mut self, stream: Option<Stream>) {
        let (first, last) = (stream.unwrap_or(0), stream.unwrap_or(Stream::MAX));
        self.late_by(first, last, None);
    }

    /// A stream is gone that may still have to come to its frees, and its number may come again: only who waits for all
    /// streams has waited for those.
    pub fn nobodys(&mut self, stream: Stream) {
        self.late_by(stream, stream, Some(NOBODY));
    }

    /// The pool may have given memory back: chunks without a block, one cannot say which; and of chunks that are not known
    /// anything that is free.
    pub fn trimmed(&mut self) {
        self.leaving.clear();
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

    /// Something happened that nobody foresaw: no room is known any more.
    pub fn forget(&mut self) {
        // A number stands for one free for ever.
        *self = Self { left: self.left, ..Self::new() };
    }

    fn late_by(&mut self, first: Stream, last: Stream, now: Option<Stream>) {
        let there = (Some(first), 0, 0)..=(Some(last), u64::MAX, u64::MAX);
        let come: Vec<u64> = self.sizes.range(there).map(|(_, _, at)| *at).collect();
        for at in come {
            if let Some(gap) = self.remove(at) {
                self.put(at, gap.end, now);
            }
        }
    }

    fn is_still(&mut self, leaving: Leaving) -> bool {
        let is = self.leaving.get(&leaving.at) == Some(&leaving);
        if is {
            self.leaving.remove(&leaving.at);
        }
        is
    }

    /// What leaves and lies there has been given out again.
    fn given_out(&mut self, from: u64, to: u64) {
        while let Some((at, leaving)) = self.leaving.range(..to).next_back().map(|(at, leaving)| (*at, *leaving))
            && leaving.end > from
        {
            self.leaving.remove(&at);
        }
    }

    /// Counts a block in its chunk, or out.
    fn used(&mut self, at: u64, more: bool) {
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

    /// Takes a range out of every gap.
    fn cut(&mut self, from: u64, to: u64) {
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

    /// Adds a piece; one for anybody is joined with its neighbours in the same chunk.
    fn put(&mut self, mut from: u64, mut to: u64, late: Option<Stream>) {
        self.cut(from, to);
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
