//! The host's page: shows that the daemon lives, and its epoch. One for all tenants, read-only in each.
//!
//! [`crate::time::gate::loss`] decides when a beat is overdue.

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

/// One heartbeat of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beating {
    /// Beats so far, including this one.
    pub count: u64,
    /// When the daemon wrote the heartbeat, in nanoseconds of the host's monotonic clock.
    pub time: u64,
    /// Epoch of the daemon. If it is not the welcome's: send a new hello.
    pub epoch: u64,
}

impl BeatPage {
    /// A zeroed page in ordinary memory, for tests.
    #[must_use]
    pub fn zeroed() -> Box<Self> {
        Box::new(Self { header: Header::zeroed(), beat: Sequenced::zeroed(), room: zeros() })
    }

    /// Turns a new memory file into the host's page. The caller makes the first beat.
    pub fn format(&self, epoch: u64) {
        self.header.format(MAGIC, epoch);
    }

    /// Checks that this is a host's page of this version and of this epoch.
    ///
    /// # Errors
    /// [`PageError`].
    pub fn check(&self, epoch: u64) -> Result<(), PageError> {
        self.header.check(MAGIC, epoch)
    }

    /// Writes one beat. A new epoch marks the last beat: it tells all members that this daemon exits.
    pub fn beat(&self, epoch: u64, now: u64) {
        self.beat.write(|_, words| {
            words[COUNT] += 1;
            words[TIME] = now;
            words[EPOCH] = epoch;
        });
    }

    /// The last beat; `None`: there was none, or the daemon died while it wrote one.
    ///
    /// # Cost
    /// Six loads of one cache line. Each beat invalidates that line once for every reader.
    #[must_use]
    pub fn last(&self) -> Option<Beating> {
        let state = self.beat.read::<3>().ok().filter(|state| state.words[COUNT] > 0)?;
        let [count, time, epoch] = state.words;
        Some(Beating { count, time, epoch })
    }
}
