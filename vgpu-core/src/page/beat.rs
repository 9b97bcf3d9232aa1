//! The host's page: the daemon lives, and in which epoch. One for all tenants, read-only in each.
//!
//! When a beat is overdue is [`crate::gate::loss`].

use super::sequenced::Sequenced;
use super::{Header, PageError, zeros};
use crate::sync::AtomicU64;

/// First word of the page: `vgpubeat`, little-endian.
const MAGIC: u64 = u64::from_le_bytes(*b"vgpubeat");

const WORDS: usize = 7;
const COUNT: usize = 0;
const TIME: usize = 1;
const EPOCH: usize = 2;

/// The page as it is mapped.
#[repr(C)]
pub struct BeatPage {
    header: Header,
    beat: Sequenced<WORDS>,
    room: [AtomicU64; ROOM],
}

#[cfg(not(loom))]
const ROOM: usize = (super::HEADER_SIZE - 2 * 64) / 8;
#[cfg(loom)]
const ROOM: usize = 0;

#[cfg(not(loom))]
const _: () = assert!(size_of::<BeatPage>() == super::HEADER_SIZE);

/// A beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beating {
    /// How many there were, this one included.
    pub count: u64,
    /// When, in nanoseconds of the host's monotonic clock.
    pub time: u64,
    /// The daemon's epoch; another one than the welcome's: say hello anew.
    pub epoch: u64,
}

impl BeatPage {
    /// In ordinary memory, as a fresh memory file is: for tests.
    #[must_use]
    pub fn zeroed() -> Box<Self> {
        Box::new(Self { header: Header::zeroed(), beat: Sequenced::zeroed(), room: zeros() })
    }

    /// Makes a fresh memory file the host's page. The first beat is the caller's to make.
    pub fn format(&self, epoch: u64) {
        self.header.format(MAGIC, epoch);
    }

    /// Is this a host's page of this version and of this epoch?
    ///
    /// # Errors
    /// [`PageError`].
    pub fn check(&self, epoch: u64) -> Result<(), PageError> {
        self.header.check(MAGIC, epoch)
    }

    /// One beat. With another epoch than before: the last one, which tells every member at once that this daemon goes.
    pub fn beat(&self, epoch: u64, now: u64) {
        self.beat.write(|_, words| {
            words[COUNT] += 1;
            words[TIME] = now;
            words[EPOCH] = epoch;
        });
    }

    /// The last beat; `None` if there was none, or if the daemon died while it made one.
    ///
    /// # Cost
    /// Six loads of one cache line, which each beat takes away from all readers once.
    #[must_use]
    pub fn last(&self) -> Option<Beating> {
        let state = self.beat.read::<3>().ok().filter(|state| state.words[COUNT] > 0)?;
        let [count, time, epoch] = state.words;
        Some(Beating { count, time, epoch })
    }
}
