//! The host's page: shows that the daemon lives, and its epoch. One for all tenants, read-only in each.
//!
//! [`crate::time::gate::loss`] decides when a beat is overdue.

use super::sequenced::Sequenced;
use super::{PageError, PageHeader, zeroed_words};
use crate::sync::AtomicU64;

/// First word of the page: `vgpubeat`, little-endian.
const BEAT_MAGIC: u64 = u64::from_le_bytes(*b"vgpubeat");

const BEAT_WORDS: usize = 7;
const COUNT_WORD: usize = 0;
const TIME_WORD: usize = 1;
const EPOCH_WORD: usize = 2;

/// The page as it is mapped.
#[repr(C)]
pub struct BeatPage {
    header: PageHeader,
    beat: Sequenced<BEAT_WORDS>,
    room: [AtomicU64; BEAT_PADDING_WORDS],
}

#[cfg(not(loom))]
const BEAT_PADDING_WORDS: usize = (super::PAGE_HEADER_BYTES - 2 * 64) / 8;
#[cfg(loom)]
const BEAT_PADDING_WORDS: usize = 0;

#[cfg(not(loom))]
const _: () = assert!(size_of::<BeatPage>() == super::PAGE_HEADER_BYTES);

/// One heartbeat of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
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
        Box::new(Self { header: PageHeader::zeroed(), beat: Sequenced::zeroed(), room: zeroed_words() })
    }

    /// Turns a new memory file into the host's page. The caller makes the first beat.
    pub fn format_page(&self, epoch: u64) {
        self.header.format_header(BEAT_MAGIC, epoch);
    }

    /// Checks that this is a host's page of this version and of this epoch.
    ///
    /// # Errors
    /// [`PageError`].
    pub fn check(&self, epoch: u64) -> Result<(), PageError> {
        self.header.check(BEAT_MAGIC, epoch)
    }

    /// Writes one beat. A new epoch marks the last beat: it tells all members that this daemon exits.
    pub fn make_beat(&self, epoch: u64, now: u64) {
        self.beat.write(|_, words| {
            words[COUNT_WORD] += 1;
            words[TIME_WORD] = now;
            words[EPOCH_WORD] = epoch;
        });
    }

    /// The last beat; `None`: there was none, or the daemon died while it wrote one.
    ///
    /// # Cost
    /// Six loads of one cache line. Each beat invalidates that line once for every reader.
    #[must_use]
    pub fn last_beat(&self) -> Option<Beat> {
        let state = self.beat.read::<3>().ok().filter(|state| state.words[COUNT_WORD] > 0)?;
        let [count, time, epoch] = state.words;
        Some(Beat { count, time, epoch })
    }
}
