//! Shared-memory pages through which the daemon and a tenant's members exchange device-time state.
//!
//! A tenant has two pages, shared memory that the daemon creates and passes with its welcome
//! ([`crate::protocol::wire`]). One member on one device has the same slot in both. A third page belongs to the
//! host.
//!
//! | page | written by | content |
//! |---|---|---|
//! | [`BoardPage`] | the daemon; mapped read-only and sealed in the tenant | per slot: the gate, the lease and its end,
//! the account at the grant, the tenant's limits, the epoch | | [`ReportPage`] | the members; **never trusted** | per
//! slot: launch requests, work in flight, device time measured, estimates of submitted and finished work |
//! | [`BeatPage`] | the daemon; read-only in every tenant | heartbeat: a count, the time, the epoch |
//!
//! *No torn reads.* A slot of the board is a [`Sequenced`] record: its counter is odd while it is written. A
//! reader that sees the same even counter before and after has read one state. The counter is also the futex word on
//! which a member sleeps; that needs only a readable mapping. It is the one word that a launch checks:
//! [`BoardSlot::is_unchanged`]. The report has no such counter, since a hostile tenant could keep the daemon waiting
//! for it. Each of its words is independent. The order of writes and reads guarantees: a reader that sees nothing in
//! flight also sees all measured time.
//!
//! *No trust.* [`ReportHistory`] turns any bytes of a report into possible values: sums never shrink and never exceed
//! elapsed time. That always costs the daemon the same few loads. Every tenant can write only to its own page.
//!
//! *No lost events.* A member announces a launch before it checks the board a last time. The daemon shuts a gate
//! before it checks the report a last time. So one of the two sees the other. A member writes its launch request
//! before it rings the bell; the daemon clears the bell before it reads requests. Loom checks both.
//!
//! *Epochs end.* Every slot and every page carries the epoch of the daemon that wrote it. A daemon that exits or
//! hands out new pages ends the old ones ([`BoardSlot::end_epoch`], which wakes the sleepers there). After a daemon is
//! killed its heartbeat stops ([`crate::time::gate::loss`]). A member that sees another epoch than its welcome's
//! sends a new hello.
//!
//! In reading order: the record (`sequenced`), the daemon's page (`board`), the members' page (`report`), its checks
//! (`witness`), the host's page (`beat`), the rate limit of the bell ([`bell`]).
//!
//! Users: `vgpud` writes boards and heartbeat, and reads reports through [`Reports`], the arbiter's
//! [`crate::time::arbiter::MemberPages`]. libvgpu's governor reads the board and writes its slot of the report. Not
//! here: memory files, seals and descriptors (shim-sys: `memfd`, `descriptors`), futexes, eventfds and clocks.

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

pub use beat::{Beat, BeatPage};
pub use board::{AllowedUse, BoardPage, BoardSlot, LaunchGrant, Uncharged, UnreadSlot};
pub use report::{ContextSharing, MemberReport, ReportPage, ReportSlot};
pub use sequenced::Sequenced;
pub use witness::{ReportFaults, ReportHistory, Reports};

use core::fmt;

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Increased with every change of a layout or of the meaning of a field. Daemon and library must have the same
/// version. The hello carries it, so a mismatch is an error message and not a misread page.
pub const PAGE_VERSION: u32 = 1;

/// Slots of a tenant: one per member and device it uses. A member that finds none free is refused.
#[cfg(not(loom))]
pub const PAGE_SLOTS: usize = 1024;
/// Two slots keep the model checker's search small.
#[cfg(loom)]
pub const PAGE_SLOTS: usize = 2;

/// Bytes before the first slot, and of the host's page: one memory page, the smallest possible mapping.
pub const PAGE_HEADER_BYTES: usize = 4096;
/// Bytes of a slot: two cache lines. The first holds the words that a launch reads.
pub const PAGE_SLOT_BYTES: usize = 128;

/// In place of the next epoch when no daemon follows. No daemon has it as its own epoch; nor 0.
pub const GONE_EPOCH: u64 = u64::MAX;

/// The first bytes of each page: kind, version, number of slots and epoch.
#[repr(C)]
pub struct PageHeader {
    magic: AtomicU64,
    version: AtomicU32,
    slots: AtomicU32,
    epoch: AtomicU64,
}

/// Reasons why a page is not the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageError {
    /// No page of this kind.
    Other,
    /// The page has another version.
    Version {
        /// Version of the page; this side reads [`PAGE_VERSION`].
        found: u32,
    },
    /// The page has the same version, but another number of slots.
    Dimensions {
        /// Number of slots of the page.
        found: u32,
    },
    /// The page's daemon has ended it, or it belongs to another daemon.
    Epoch {
        /// Epoch in the page.
        found: u64,
    },
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other => f.write_str("the page is not one of vgpud's"),
            Self::Version { found } => {
                write!(f, "the page has version {found}; this side reads version {PAGE_VERSION}")
            }
            Self::Dimensions { found } => {
                write!(f, "the page has room for {found}; its version has room for {PAGE_SLOTS}")
            }
            Self::Epoch { found } => write!(f, "the page belongs to epoch {found}, which is not the daemon's"),
        }
    }
}

impl core::error::Error for PageError {}

#[expect(clippy::cast_possible_truncation, reason = "a constant far below 2^32")]
const SLOTS_IN_HEADER: u32 = PAGE_SLOTS as u32;

impl PageHeader {
    /// A header of zeros, as in a new memory file.
    #[must_use]
    pub fn zeroed() -> Self {
        Self { magic: zeroed_word(), version: AtomicU32::new(0), slots: AtomicU32::new(0), epoch: zeroed_word() }
    }

    /// Turns a zeroed page into a page of this kind; writes the magic last.
    fn format_header(&self, magic: u64, epoch: u64) {
        self.version.store(PAGE_VERSION, Ordering::Relaxed);
        self.slots.store(SLOTS_IN_HEADER, Ordering::Relaxed);
        self.epoch.store(epoch, Ordering::Relaxed);
        self.magic.store(magic, Ordering::Release);
    }

    /// Checks that the page has this magic and epoch, and the version and number of slots of this code.
    fn check(&self, magic: u64, epoch: u64) -> Result<(), PageError> {
        // Relaxed loads only: the page may be mapped read-only.
        if self.magic.load(Ordering::Relaxed) != magic {
            return Err(PageError::Other);
        }
        fence(Ordering::Acquire);
        match self.version.load(Ordering::Relaxed) {
            PAGE_VERSION => {}
            found => return Err(PageError::Version { found }),
        }
        match self.slots.load(Ordering::Relaxed) {
            SLOTS_IN_HEADER => {}
            found => return Err(PageError::Dimensions { found }),
        }
        match self.epoch.load(Ordering::Relaxed) {
            found if found == epoch => Ok(()),
            found => Err(PageError::Epoch { found }),
        }
    }
}

fn zeroed_word() -> AtomicU64 {
    AtomicU64::new(0)
}

fn zeroed_words<const N: usize>() -> [AtomicU64; N] {
    core::array::from_fn(|_| zeroed_word())
}
