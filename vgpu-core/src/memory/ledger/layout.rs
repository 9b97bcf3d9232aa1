//! File layout of the ledger: header, slots and shares. All fields are atomics, so any bytes in the file are valid
//! values.
//!
//! This file defines only positions. [`crate::memory::ledger`], [`crate::time::account`] and [`crate::time::turn`]
//! explain the fields.

use core::fmt;

use crate::sync::{Aside, AtomicU32, AtomicU64, Ordering};

/// First word of every ledger: `vgpuledg`, little-endian.
pub const LEDGER_MAGIC: u64 = u64::from_le_bytes(*b"vgpuledg");
/// Increased with every change of the layout or of the meaning of a field.
pub const LEDGER_VERSION: u32 = 3;
/// Most members that one tenant can have on one device at the same time.
pub const LEDGER_SLOTS: usize = 1024;
/// Bytes of a slot: two cache lines. The first one holds the counters that every reservation touches.
pub const LEDGER_SLOT_BYTES: usize = 128;
/// Bytes before the first slot.
pub const LEDGER_HEADER_BYTES: usize = 4096;
/// Most exported allocations and pools that one tenant can have on one device at the same time.
pub const SHARED_CHARGES: usize = 2048;
/// Bytes of a share: one cache line.
pub const SHARED_CHARGE_BYTES: usize = 64;
/// Bytes of the whole file.
pub const LEDGER_BYTES: usize =
    LEDGER_HEADER_BYTES + LEDGER_SLOTS * LEDGER_SLOT_BYTES + SHARED_CHARGES * SHARED_CHARGE_BYTES;
/// Offset of the byte whose file lock is the turn lock.
pub const TURN_LOCK_OFFSET: u64 = 0;

/// Offset of the byte whose file lock the member in slot `index` holds while it lives.
#[must_use]
pub const fn slot_lock_offset(index: usize) -> u64 {
    LEDGER_HEADER_BYTES as u64 + index as u64 * LEDGER_SLOT_BYTES as u64
}

/// Offset of the byte on which every holder of share `index` has a read lock.
#[must_use]
pub const fn share_lock_offset(index: usize) -> u64 {
    slot_lock_offset(LEDGER_SLOTS) + index as u64 * SHARED_CHARGE_BYTES as u64
}

/// Offset of the byte whose read lock keeps share `index` alive for an open descriptor.
#[must_use]
pub const fn kept_lock_offset(index: usize) -> u64 {
    share_lock_offset(index) + 1
}

#[cfg(not(loom))]
const HEADER_PADDING_WORDS: usize = LEDGER_HEADER_BYTES / 8 - 40;
#[cfg(loom)]
const HEADER_PADDING_WORDS: usize = 0;

/// The first page of a ledger: identity, layout, upper bounds of the used slots and shares, and the tenant's time
/// account.
#[repr(C)]
pub struct LedgerHeader {
    magic: AtomicU64,
    pub(super) version: AtomicU32,
    slot_size: AtomicU32,
    slot_count: AtomicU32,
    /// Slots `0..high_slot` were used at some time; scans end there.
    pub(crate) high_slot: AtomicU32,
    tenant: AtomicU64,
    device: AtomicU64,
    /// Shares from `high_share` on are free. The mark is lowered when the last shares end: see `shares.rs`.
    pub(super) high_share: AtomicU32,
    share_count: AtomicU32,
    /// Most bytes the tenant ever held at once since the file was made; 0 in files of older libraries. It lies next
    /// to `high_slot` because every request reads that word. The ledger's ordering does not depend on it, so the
    /// model checker leaves it out.
    pub(super) peak: Aside,
    identity_room: AtomicU64,
    /// The tenant's budget of device time, shared by its members; on a cache line of its own.
    pub(crate) account_zero: AtomicU64,
    pub(crate) account_latest: AtomicU64,
    pub(crate) account_forgotten: AtomicU64,
    /// See [`crate::time::account`]. Older libraries do not write it: 0 in their files.
    pub(crate) account_covered: AtomicU64,
    account_room: [AtomicU64; 4],
    /// Bytes that the first context of a process takes; 0: not measured yet.
    context_first: AtomicU64,
    /// Bytes that each further context of a process takes; 0: not measured yet.
    context_more: AtomicU64,
    /// Symbol lookups that bypassed the hooks.
    doors: AtomicU64,
    /// Name of the first bypass, zero-terminated unless it fills the field.
    door_name: [AtomicU64; BYPASS_NAME_BYTES / 8],
    /// Bytes that the first code of a process takes, plus 1; 0: not measured yet.
    code_first: AtomicU64,
    /// Requests refused to programs. Older libraries do not count them: 0 in their files.
    pub(super) refused: AtomicU64,
    figures_room: [AtomicU64; 3],
    /// The turn at the device among the members ([`crate::time::turn`]); on a cache line of its own.
    pub(crate) turn: AtomicU64,
    pub(crate) turn_contended: AtomicU64,
    pub(crate) turn_clock: AtomicU64,
    pub(crate) turn_bell: AtomicU32,
    turn_pad: AtomicU32,
    turn_room: [AtomicU64; 4],
    room: [AtomicU64; HEADER_PADDING_WORDS],
}

/// Bytes of the field for the first bypass's name.
const BYPASS_NAME_BYTES: usize = 64;

/// One member's part of the ledger. Only the holder of the slot's lock writes to it.
#[repr(C, align(128))]
pub struct LedgerSlot {
    pub(super) claimed: AtomicU64,
    pub(super) granted: AtomicU64,
    pub(super) committed: AtomicU64,
    pub(super) dropped: AtomicU64,
    /// Most bytes the member ever held at once.
    pub(super) high: AtomicU64,
    /// Part of `used` that the program did not allocate itself: contexts, modules.
    pub(super) overhead: AtomicU64,
    hot_room: [AtomicU64; 2],
    /// Process id in the member's own pid namespace; 0: no member.
    pub(super) pid: AtomicU32,
    cold_pad: AtomicU32,
    /// Tells two processes with the same pid apart; opaque to the ledger.
    pub(super) birth: AtomicU64,
    /// Device time measured for this member, in nanoseconds.
    pub(crate) busy: AtomicU64,
    /// This member's part of the device turn: see [`crate::time::turn`].
    pub(crate) turn_wants: AtomicU64,
    pub(crate) turn_shift: AtomicU64,
    pub(crate) turn_taken: AtomicU64,
    pub(crate) turn_drained: AtomicU64,
    pub(crate) turn_due: AtomicU64,
}

/// An exported allocation or pool, charged once for all its holders: see `shares.rs`.
#[repr(C, align(64))]
pub struct SharedCharge {
    /// Bytes ever added.
    pub(super) gained: AtomicU64,
    /// Bytes ever removed.
    pub(super) lost: AtomicU64,
    /// Key by which importers find the share; 0: free.
    pub(super) identity: AtomicU64,
    /// Slot of the member that reports these bytes as its own in views.
    pub(super) owner: AtomicU32,
    /// That member's pid.
    pub(super) pid: AtomicU32,
    /// That member's birth.
    pub(super) birth: AtomicU64,
    /// Pid of the process that keeps the share for an open descriptor. `watch` and `node` name the descriptor of that
    /// process through which others see if one is still open: see `Watched`.
    pub(super) keeper: AtomicU32,
    pub(super) watch: AtomicU32,
    pub(super) node: [AtomicU64; 2],
}

/// A whole ledger as it is mapped: 260 KiB. Any content can be *read*; [`LedgerHeader::check`] decides if it is a
/// ledger.
#[repr(C)]
pub struct LedgerPage {
    /// Identity, layout and tenant-wide fields.
    pub header: LedgerHeader,
    /// One per member.
    pub slots: [LedgerSlot; LEDGER_SLOTS],
    /// One per exported allocation.
    pub shares: [SharedCharge; SHARED_CHARGES],
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<LedgerHeader>() == LEDGER_HEADER_BYTES);
    assert!(size_of::<LedgerSlot>() == LEDGER_SLOT_BYTES);
    assert!(size_of::<SharedCharge>() == SHARED_CHARGE_BYTES);
    assert!(size_of::<LedgerPage>() == LEDGER_BYTES);
    assert!(core::mem::offset_of!(LedgerPage, shares) == LEDGER_HEADER_BYTES + LEDGER_SLOTS * LEDGER_SLOT_BYTES);
    assert!(core::mem::offset_of!(LedgerPage, slots) == LEDGER_HEADER_BYTES);
    assert!(core::mem::offset_of!(LedgerHeader, peak) == 48);
    assert!(core::mem::offset_of!(LedgerHeader, refused) == 224);
    assert!(core::mem::offset_of!(LedgerHeader, account_zero) == 64);
    assert!(core::mem::offset_of!(LedgerHeader, context_first) == 128);
    assert!(core::mem::offset_of!(LedgerHeader, turn) == 256);
    assert!(core::mem::offset_of!(LedgerSlot, pid) == 64);
};

/// True if these bytes begin with the magic and version of a ledger.
#[cfg(not(loom))]
pub(super) fn is_one(bytes: &[u8]) -> bool {
    ledger_version(bytes) == Some(LEDGER_VERSION)
}

/// The version of the ledger that begins with these bytes; `None`: no ledger of any version begins so.
#[cfg(not(loom))]
#[must_use]
pub fn ledger_version(bytes: &[u8]) -> Option<u32> {
    let word = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()).copied().map(u64::from_le_bytes);
    let half = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied().map(u32::from_le_bytes);
    let is_ledger = word(core::mem::offset_of!(LedgerHeader, magic)) == Some(LEDGER_MAGIC);
    half(core::mem::offset_of!(LedgerHeader, version)).filter(|_| is_ledger)
}

/// The first bytes of a new ledger, as [`LedgerHeader::format_header`] leaves them; all further bytes are zero.
#[cfg(not(loom))]
#[must_use]
pub fn formatted(identity: LedgerIdentity) -> [u8; LEDGER_HEADER_BYTES] {
    use core::mem::offset_of;
    let mut bytes = [0; LEDGER_HEADER_BYTES];
    let mut put = |at: usize, word: &[u8]| bytes[at..at + word.len()].copy_from_slice(word);
    put(offset_of!(LedgerHeader, magic), &LEDGER_MAGIC.to_le_bytes());
    put(offset_of!(LedgerHeader, version), &LEDGER_VERSION.to_le_bytes());
    put(offset_of!(LedgerHeader, slot_size), &DIMENSIONS.0.to_le_bytes());
    put(offset_of!(LedgerHeader, slot_count), &DIMENSIONS.1.to_le_bytes());
    put(offset_of!(LedgerHeader, share_count), &DIMENSIONS.2.to_le_bytes());
    put(offset_of!(LedgerHeader, tenant), &identity.tenant.to_le_bytes());
    put(offset_of!(LedgerHeader, device), &identity.device.to_le_bytes());
    bytes
}

/// True if these bytes begin as a ledger of this version with this identity does.
#[cfg(not(loom))]
#[must_use]
pub fn is_formatted(bytes: &[u8], identity: LedgerIdentity) -> bool {
    use core::mem::offset_of;
    let fresh = formatted(identity);
    // Members write the bytes between these two parts and after them, so only the two parts are compared.
    let parts = [
        0..offset_of!(LedgerHeader, high_slot),
        offset_of!(LedgerHeader, tenant)..offset_of!(LedgerHeader, high_share),
    ];
    parts.into_iter().all(|part| bytes.get(part.clone()).is_some_and(|there| there == &fresh[part]))
}

/// Reads [`LedgerHeader::open_doors`] from the bytes of a ledger's header, for a caller that does not map the file.
/// `None`: not a ledger of this version.
#[cfg(not(loom))]
#[must_use]
pub fn open_doors_in(bytes: &[u8]) -> Option<(u64, String)> {
    let word = |at: usize| bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_le_bytes);
    if !is_one(bytes) {
        return None;
    }
    let name = core::mem::offset_of!(LedgerHeader, door_name);
    let name = bytes.get(name..name + BYPASS_NAME_BYTES)?;
    let name = &name[..name.iter().position(|byte| *byte == 0).unwrap_or(BYPASS_NAME_BYTES)];
    Some((word(core::mem::offset_of!(LedgerHeader, doors))?, String::from_utf8_lossy(name).into_owned()))
}

/// Owner of a ledger: hashes of the tenant's key and of the device's UUID ([`crate::limits::tenant::hash64`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerIdentity {
    /// Hash of the tenant's key.
    pub tenant: u64,
    /// Hash of the device's UUID.
    pub device: u64,
}

/// Reasons why a file is not the expected ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// New, or its creator died before it finished: format it under the turn lock.
    NotFormatted,
    /// No ledger at all.
    NotALedger,
    /// Written by another version.
    Version {
        /// Version in the file.
        found: u32,
    },
    /// Same version, but other sizes or counts.
    Dimensions,
    /// Belongs to another tenant or device.
    OtherOwner,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFormatted => f.write_str("the ledger is not formatted yet"),
            Self::NotALedger => f.write_str("the file is not a ledger"),
            Self::Version { found } => {
                write!(f, "the ledger has version {found}, this library writes version {LEDGER_VERSION}")
            }
            Self::Dimensions => f.write_str("the ledger has other dimensions than its version says"),
            Self::OtherOwner => f.write_str("the ledger belongs to another tenant or device"),
        }
    }
}

impl core::error::Error for LayoutError {}

#[expect(clippy::cast_possible_truncation, reason = "constants far below 2^32")]
const DIMENSIONS: (u32, u32, u32) = (LEDGER_SLOT_BYTES as u32, LEDGER_SLOTS as u32, SHARED_CHARGES as u32);

impl LedgerHeader {
    /// Turns a zeroed file into a ledger. The caller holds the turn lock. Safe to repeat, since the magic is written
    /// last.
    pub fn format_header(&self, identity: LedgerIdentity) {
        self.version.store(LEDGER_VERSION, Ordering::SeqCst);
        self.slot_size.store(DIMENSIONS.0, Ordering::SeqCst);
        self.slot_count.store(DIMENSIONS.1, Ordering::SeqCst);
        self.share_count.store(DIMENSIONS.2, Ordering::SeqCst);
        self.tenant.store(identity.tenant, Ordering::SeqCst);
        self.device.store(identity.device, Ordering::SeqCst);
        self.magic.store(LEDGER_MAGIC, Ordering::SeqCst);
    }

    /// True if [`LedgerHeader::format_header`] ran and nothing overwrote the magic since.
    #[inline(always)]
    pub(super) fn is_formatted(&self) -> bool {
        self.magic.load(Ordering::Relaxed) == LEDGER_MAGIC
    }

    /// Simulates that somebody overwrote the magic with zeros.
    #[cfg(all(test, not(loom)))]
    pub(super) fn zero_magic(&self) {
        self.magic.store(0, Ordering::SeqCst);
    }

    /// Checks that this is the ledger of `identity`, in a layout this code understands.
    ///
    /// # Errors
    /// [`LayoutError`]. [`LedgerHeader::format_header`] can repair only [`LayoutError::NotFormatted`].
    pub fn check(&self, identity: LedgerIdentity) -> Result<(), LayoutError> {
        match self.magic.load(Ordering::SeqCst) {
            LEDGER_MAGIC => {}
            0 => return Err(LayoutError::NotFormatted),
            _ => return Err(LayoutError::NotALedger),
        }
        let found = self.version.load(Ordering::SeqCst);
        if found != LEDGER_VERSION {
            return Err(LayoutError::Version { found });
        }
        let found = [&self.slot_size, &self.slot_count, &self.share_count].map(|word| word.load(Ordering::SeqCst));
        if found != <[u32; 3]>::from(DIMENSIONS) {
            return Err(LayoutError::Dimensions);
        }
        let owner =
            LedgerIdentity { tenant: self.tenant.load(Ordering::SeqCst), device: self.device.load(Ordering::SeqCst) };
        if owner == identity { Ok(()) } else { Err(LayoutError::OtherOwner) }
    }

    /// A header of zeros, as in a new file.
    #[must_use]
    pub fn zeroed() -> Self {
        Self {
            magic: AtomicU64::new(0),
            version: AtomicU32::new(0),
            slot_size: AtomicU32::new(0),
            slot_count: AtomicU32::new(0),
            high_slot: AtomicU32::new(0),
            tenant: AtomicU64::new(0),
            device: AtomicU64::new(0),
            high_share: AtomicU32::new(0),
            share_count: AtomicU32::new(0),
            peak: Aside::new(0),
            identity_room: AtomicU64::new(0),
            account_zero: AtomicU64::new(0),
            account_latest: AtomicU64::new(0),
            account_forgotten: AtomicU64::new(0),
            account_covered: AtomicU64::new(0),
            account_room: zeroed_words(),
            context_first: AtomicU64::new(0),
            context_more: AtomicU64::new(0),
            doors: AtomicU64::new(0),
            door_name: zeroed_words(),
            code_first: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            figures_room: zeroed_words(),
            turn: AtomicU64::new(0),
            turn_contended: AtomicU64::new(0),
            turn_clock: AtomicU64::new(0),
            turn_bell: AtomicU32::new(0),
            turn_pad: AtomicU32::new(0),
            turn_room: zeroed_words(),
            room: zeroed_words(),
        }
    }

    /// Bytes that a process's first context takes, and those of each further one; 0: not known.
    #[must_use]
    pub fn context_figures(&self) -> (u64, u64) {
        (self.context_first.load(Ordering::SeqCst), self.context_more.load(Ordering::SeqCst))
    }

    /// Stores the bytes that a process's first context took, for members that join later.
    pub fn note_context_first(&self, bytes: u64) {
        self.context_first.store(bytes, Ordering::SeqCst);
    }

    /// Stores the bytes that a further context took.
    pub fn note_context_more(&self, bytes: u64) {
        self.context_more.store(bytes, Ordering::SeqCst);
    }

    /// Lower bound for the bytes that the first code of a process takes; `None`: not measured yet.
    #[must_use]
    pub fn first_code(&self) -> Option<u64> {
        self.code_first.load(Ordering::SeqCst).checked_sub(1)
    }

    /// Stores the bytes that the first code of a process took, for members that join later.
    pub fn note_first_code(&self, bytes: u64) {
        self.code_first.store(bytes.saturating_add(1), Ordering::SeqCst);
    }

    /// Most bytes the tenant ever held at once: the largest sum under which a request was granted. The sum may
    /// include undecided claims of other members. So it is never too small, and never above the limits of the members
    /// that were granted.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Raises the peak if `used`, the bytes the tenant holds now, exceed it.
    ///
    /// # Cost
    /// One load; an atomic maximum if the peak rises.
    #[inline(always)]
    pub(super) fn note_peak(&self, used: u64) {
        if used > self.peak.load(Ordering::Relaxed) {
            self.raise_peak(used);
        }
    }

    #[cold]
    fn raise_peak(&self, used: u64) {
        self.peak.fetch_max(used, Ordering::Relaxed);
    }

    /// Counts a request that was refused to a program.
    pub fn note_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests refused to programs since the file was made.
    #[must_use]
    pub fn refused_requests(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Counts a bypass of the hooks and stores the name of the first one, cut to the field. Returns true for the
    /// first one.
    ///
    /// A process killed between the two steps leaves a count without a name.
    pub fn note_open_door(&self, name: &str) -> bool {
        let first = self.doors.fetch_add(1, Ordering::SeqCst) == 0;
        if first {
            let mut bytes = [0; BYPASS_NAME_BYTES];
            let kept = name.len().min(BYPASS_NAME_BYTES);
            bytes[..kept].copy_from_slice(&name.as_bytes()[..kept]);
            for (word, part) in self.door_name.iter().zip(bytes.as_chunks::<8>().0) {
                word.store(u64::from_le_bytes(*part), Ordering::SeqCst);
            }
        }
        first
    }

    /// Number of bypasses, and the name of the first; invalid UTF-8 is replaced.
    #[must_use]
    pub fn open_doors(&self) -> (u64, String) {
        let bytes: Vec<u8> = self.door_name.iter().flat_map(|word| word.load(Ordering::SeqCst).to_le_bytes()).collect();
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        (self.doors.load(Ordering::SeqCst), String::from_utf8_lossy(&bytes[..length]).into_owned())
    }
}

impl LedgerSlot {
    /// A slot of zeros, as in a new file.
    #[must_use]
    pub fn zeroed() -> Self {
        Self {
            claimed: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            high: AtomicU64::new(0),
            overhead: AtomicU64::new(0),
            hot_room: zeroed_words(),
            pid: AtomicU32::new(0),
            cold_pad: AtomicU32::new(0),
            birth: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            turn_wants: AtomicU64::new(0),
            turn_shift: AtomicU64::new(0),
            turn_taken: AtomicU64::new(0),
            turn_drained: AtomicU64::new(0),
            turn_due: AtomicU64::new(0),
        }
    }
}

impl SharedCharge {
    /// A share of zeros, as in a new file.
    #[must_use]
    pub fn zeroed() -> Self {
        Self {
            gained: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            identity: AtomicU64::new(0),
            owner: AtomicU32::new(0),
            pid: AtomicU32::new(0),
            birth: AtomicU64::new(0),
            keeper: AtomicU32::new(0),
            watch: AtomicU32::new(0),
            node: zeroed_words(),
        }
    }
}

impl LedgerPage {
    /// A zeroed page in ordinary memory, for tests and for a tenant of one process.
    #[must_use]
    pub fn zeroed() -> Box<Self> {
        Box::new(Self {
            header: LedgerHeader::zeroed(),
            slots: core::array::from_fn(|_| LedgerSlot::zeroed()),
            shares: core::array::from_fn(|_| SharedCharge::zeroed()),
        })
    }

    /// A view of this page as a ledger.
    #[must_use]
    pub fn as_ledger(&self) -> super::Ledger<'_> {
        super::Ledger::new(&self.header, &self.slots, &self.shares)
    }
}

fn zeroed_words<const N: usize>() -> [AtomicU64; N] {
    core::array::from_fn(|_| AtomicU64::new(0))
}
