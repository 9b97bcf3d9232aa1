//! The pages between the daemon and its members: what lies where, and what is believed of it.
//!
//! A tenant has two of them, shared memory that the daemon creates and hands out with its welcome
//! ([`crate::wire::two`]); a slot in both belongs to one member on one device. A third one is the host's.
//!
//! | page | written by | says |
//! |---|---|---|
//! | [`BoardPage`] | the daemon; mapped read-only and sealed in the tenant | per slot: the gate, the lease, its end, the account at the grant, what the tenant may use; the epoch |
//! | [`ReportPage`] | the members; **never trusted** | per slot: wants, in flight, device time measured, estimates of what was submitted and finished |
//! | [`BeatPage`] | the daemon; read-only in every tenant | that it lives: a count, the time, the epoch |
//!
//! *Nothing is torn.* A slot of the board is a [`Sequenced`] record: its counter is odd while it is written, and a reader
//! that saw the same even counter before and after has read one state. That counter is also the futex word for which a
//! member sleeps, which needs no more than a mapping to read, and the one word that a launch looks at:
//! [`BoardSlot::stands`]. The report has no such counter, since a hostile tenant could keep the daemon waiting for it:
//! each of its words stands for itself, and is written and read in an order that makes "nothing in flight" imply "all
//! measured time is there".
//!
//! *Nothing is believed.* Whatever bytes a report holds, what [`Witness`] makes of it is possible: sums never shrink and
//! never outrun time; it costs the daemon the same few loads. Every tenant writes to its own page only.
//!
//! *Nothing is missed.* A member announces a launch before it looks at the board a last time, and the daemon shuts a gate
//! before it looks at the report a last time: one of the two sees the other. A wish is written before the bell rings, and
//! the bell is taken down before wishes are read. Both are checked by loom.
//!
//! *An epoch ends.* Every slot and every page carries the epoch of the daemon that wrote it. A daemon that leaves, or
//! hands out new pages, ends the old ones ([`BoardSlot::end`], which wakes whoever sleeps there); pages of a daemon that
//! was killed simply beat no more ([`crate::gate::loss`]). A member that meets another epoch than it was welcomed with
//! says hello anew.
//!
//! In reading order: the record (`sequenced`), the daemon's page (`board`), the members' (`report`), what of that is
//! possible (`witness`), the host's page (`beat`), how often a bell is heard ([`bell`]).
//!
//! Who uses it: `vgpud` writes boards and the beat and reads reports through [`Reports`], which is what the arbiter calls
//! [`crate::arbiter::Pages`]; libvgpu's governor reads the board and writes its slot of the report. Not here: memory
//! files, seals and descriptors (shim-sys: `memfd`, `descriptors`), futexes, eventfds and clocks.

mod beat;
pub mod bell;
mod board;
#[cfg(all(test, loom))]
mod loom_tests;
mod report;
mod sequenced;
#[cfg(all(test, not(loom)))]
mod tests;
mod witness;

pub use beat::{BeatPage, Beating};
pub use board::{Allowed, BoardPage, BoardSlot, Grant, Uncharged, Unread};
pub use report::{ReportPage, ReportSlot, Said};
pub use sequenced::Sequenced;
pub use witness::{Faults, Reports, Witness};

use core::fmt;

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Grows with every change of a layout or of the meaning of a field. Daemon and library must have the same one; the
/// hello says it, so that a mismatch is words and not a misreading.
pub const VERSION: u32 = 1;

/// Slots of a tenant: members times the devices they use time of. One that finds none left is refused.
#[cfg(not(loom))]
pub const SLOTS: usize = 1024;
/// Few, for the model checker.
#[cfg(loom)]
pub const SLOTS: usize = 2;

/// Bytes before the first slot, and of the host's page: what the smallest mapping takes anyhow.
pub const HEADER_SIZE: usize = 4096;
/// Bytes of a slot: two cache lines, the first one hot.
pub const SLOT_SIZE: usize = 128;

/// The epoch that comes after a daemon's own when no other follows. No daemon's own; neither is 0.
pub const GONE: u64 = u64::MAX;

/// The first bytes of each page: what it is, and whose epoch it belongs to.
#[repr(C)]
pub struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    slots: AtomicU32,
    epoch: AtomicU64,
}

/// Why a page is not what was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageError {
    /// Something else altogether.
    Other,
    /// Another version wrote it.
    Version {
        /// The page's; ours is [`VERSION`].
        found: u32,
    },
    /// Same version, another number of slots.
    Dimensions {
        /// The page's.
        found: u32,
    },
    /// The daemon that handed it out has ended it, or never was the one that is meant.
    Epoch {
        /// The page's.
        found: u64,
    },
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other => f.write_str("the page is not one of vgpud's"),
            Self::Version { found } => write!(f, "the page has version {found}; this side reads version {VERSION}"),
            Self::Dimensions { found } => write!(f, "the page has room for {found}; its version has room for {SLOTS}"),
            Self::Epoch { found } => write!(f, "the page belongs to epoch {found}, which is not the daemon's"),
        }
    }
}

impl core::error::Error for PageError {}

#[expect(clippy::cast_possible_truncation, reason = "a constant far below 2^32")]
const ROOM: u32 = SLOTS as u32;

impl Header {
    /// Zeroed, as a fresh memory file is.
    #[must_use]
    pub fn zeroed() -> Self {
        Self { magic: zero(), version: AtomicU32::new(0), slots: AtomicU32::new(0), epoch: zero() }
    }

    /// Makes a zeroed page one of ours; the magic is written last.
    fn format(&self, magic: u64, epoch: u64) {
        self.version.store(VERSION, Ordering::Relaxed);
        self.slots.store(ROOM, Ordering::Relaxed);
        self.epoch.store(epoch, Ordering::Relaxed);
        self.magic.store(magic, Ordering::Release);
    }

    /// Is this page what it should be, and of this epoch?
    fn check(&self, magic: u64, epoch: u64) -> Result<(), PageError> {
        // Relaxed loads only: the page may be mapped read-only.
        if self.magic.load(Ordering::Relaxed) != magic {
            return Err(PageError::Other);
        }
        fence(Ordering::Acquire);
        match self.version.load(Ordering::Relaxed) {
            VERSION => {}
            found => return Err(PageError::Version { found }),
        }
        match self.slots.load(Ordering::Relaxed) {
            ROOM => {}
            found => return Err(PageError::Dimensions { found }),
        }
        match self.epoch.load(Ordering::Relaxed) {
            found if found == epoch => Ok(()),
            found => Err(PageError::Epoch { found }),
        }
    }
}

fn zero() -> AtomicU64 {
    AtomicU64::new(0)
}

fn zeros<const N: usize>() -> [AtomicU64; N] {
    core::array::from_fn(|_| zero())
}
