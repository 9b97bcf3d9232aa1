//! The page: header, slots and shares, as they lie in the file. Atomics only, so any bytes are valid.
//!
//! What the fields mean is told in [`crate::ledger`], [`crate::account`] and [`crate::turn`]; here is only where they
//! are.

use core::fmt;

use crate::sync::{Aside, AtomicU32, AtomicU64, Ordering};

/// First word of every ledger: `vgpuledg`, little-endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"vgpuledg");
/// Grows with every change of the layout or of the meaning of a field.
pub const VERSION: u32 = 3;
/// Members one tenant can have on one device at the same time.
pub const SLOTS: usize = 1024;
/// Bytes of a slot: two cache lines, the first one hot.
pub const SLOT_SIZE: usize = 128;
/// Bytes before the first slot.
pub const HEADER_SIZE: usize = 4096;
/// Exported allocations and pools one tenant can have on one device at the same time.
pub const SHARES: usize = 2048;
/// Bytes of a share: one cache line.
pub const SHARE_SIZE: usize = 64;
/// Bytes of the whole file.
pub const LEDGER_SIZE: usize = HEADER_SIZE + SLOTS * SLOT_SIZE + SHARES * SHARE_SIZE;
/// The byte of the file whose lock is the turn.
pub const TURN_LOCK_OFFSET: u64 = 0;

/// The byte of the file whose lock keeps slot `index` alive.
#[must_use]
pub const fn slot_lock_offset(index: usize) -> u64 {
    HEADER_SIZE as u64 + index as u64 * SLOT_SIZE as u64
}

/// The byte of the file whose read locks keep share `index` alive.
#[must_use]
pub const fn share_lock_offset(index: usize) -> u64 {
    slot_lock_offset(SLOTS) + index as u64 * SHARE_SIZE as u64
}

/// The byte of the file whose read locks keep share `index` alive for a descriptor.
#[must_use]
pub const fn kept_lock_offset(index: usize) -> u64 {
    share_lock_offset(index) + 1
}

#[cfg(not(loom))]
const PADDING: usize = HEADER_SIZE / 8 - 40;
#[cfg(loom)]
const PADDING: usize = 0;

/// The first page of a ledger: what it is, how far the slots are used, and the tenant's time account.
#[repr(C)]
pub struct Header {
    magic: AtomicU64,
    pub(super) version: AtomicU32,
    slot_size: AtomicU32,
    slot_count: AtomicU32,
    /// Slots `0..high_slot` were used at some time; the scan ends there.
    pub(crate) high_slot: AtomicU32,
    tenant: AtomicU64,
    device: AtomicU64,
    /// Shares `high_share..` are nobody's. It falls again: told in `shares.rs`.
    pub(super) high_share: AtomicU32,
    share_count: AtomicU32,
    /// Most bytes of the tenant at once since the file was made, beside `high_slot`, which every request reads. Not one of
    /// the words that the ledger's order is about, so no matter for the model checker. 0 in files of older libraries.
    pub(super) peak: Aside,
    identity_room: AtomicU64,
    /// The tenant's ceiling on device time, shared by its members; on a cache line of its own.
    pub(crate) account_zero: AtomicU64,
    pub(crate) account_latest: AtomicU64,
    pub(crate) account_forgotten: AtomicU64,
    /// Told in [`crate::account`]. 0 in files of older libraries, and not written by those.
    pub(crate) account_covered: AtomicU64,
    account_room: [AtomicU64; 4],
    /// What a first context takes, in bytes; 0: nobody has measured it.
    context_first: AtomicU64,
    /// What a further context of a process takes, in bytes; 0: nobody has measured it.
    context_more: AtomicU64,
    /// Lookups that found a way around the hooks.
    doors: AtomicU64,
    /// The first of them, zero-terminated unless it fills the field.
    door_name: [AtomicU64; DOOR_NAME / 8],
    /// What the first code of a process takes, in bytes, plus 1; 0: nobody has measured it.
    code_first: AtomicU64,
    /// Requests that a program was refused. 0 in files of older libraries, and not counted by those.
    pub(super) refused: AtomicU64,
    figures_room: [AtomicU64; 3],
    /// Whose turn it is at the device, told in [`crate::turn`]; on a cache line of its own.
    pub(crate) turn: AtomicU64,
    pub(crate) turn_contended: AtomicU64,
    pub(crate) turn_clock: AtomicU64,
    pub(crate) turn_bell: AtomicU32,
    turn_pad: AtomicU32,
    turn_room: [AtomicU64; 4],
    room: [AtomicU64; PADDING],
}

/// Bytes of the first open door's name.
const DOOR_NAME: usize = 64;

/// One member's part of the ledger. Only the holder of the slot's lock writes to it.
#[repr(C, align(128))]
pub struct Slot {
    pub(super) claimed: AtomicU64,
    pub(super) granted: AtomicU64,
    pub(super) committed: AtomicU64,
    pub(super) dropped: AtomicU64,
    /// Most bytes ever used at once.
    pub(super) high: AtomicU64,
    /// Part of `used` that is not the program's own: contexts, modules.
    pub(super) overhead: AtomicU64,
    hot_room: [AtomicU64; 2],
    /// In the pid namespace of the member; 0 is nobody.
    pub(super) pid: AtomicU32,
    cold_pad: AtomicU32,
    /// Whatever tells two processes with one pid apart; opaque here.
    pub(super) birth: AtomicU64,
    /// Device time measured for this member, in nanoseconds.
    pub(crate) busy: AtomicU64,
    /// This member's side of the turn at the device, told in [`crate::turn`].
    pub(crate) turn_wants: AtomicU64,
    pub(crate) turn_shift: AtomicU64,
    pub(crate) turn_taken: AtomicU64,
    pub(crate) turn_drained: AtomicU64,
    pub(crate) turn_due: AtomicU64,
}

/// An exported allocation or pool, charged once for all who hold it. Told in `shares.rs`.
#[repr(C, align(64))]
pub struct Share {
    /// Bytes that came.
    pub(super) gained: AtomicU64,
    /// Bytes that went.
    pub(super) lost: AtomicU64,
    /// By what name importers find it; 0: nobody's.
    pub(super) identity: AtomicU64,
    /// The slot of the member that answers for it in views.
    pub(super) owner: AtomicU32,
    /// That member's pid.
    pub(super) pid: AtomicU32,
    /// That member's birth.
    pub(super) birth: AtomicU64,
    /// Who keeps it for a descriptor, and with which of its own it can be seen whether that is open: see `Watched`.
    pub(super) keeper: AtomicU32,
    pub(super) watch: AtomicU32,
    pub(super) node: [AtomicU64; 2],
}

/// A whole ledger as it is mapped. 260 KiB; any content is valid to *read*, [`Header::check`] judges it.
#[repr(C)]
pub struct LedgerPage {
    /// What this is.
    pub header: Header,
    /// One per member.
    pub slots: [Slot; SLOTS],
    /// One per exported allocation.
    pub shares: [Share; SHARES],
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Header>() == HEADER_SIZE);
    assert!(size_of::<Slot>() == SLOT_SIZE);
    assert!(size_of::<Share>() == SHARE_SIZE);
    assert!(size_of::<LedgerPage>() == LEDGER_SIZE);
    assert!(core::mem::offset_of!(LedgerPage, shares) == HEADER_SIZE + SLOTS * SLOT_SIZE);
    assert!(core::mem::offset_of!(LedgerPage, slots) == HEADER_SIZE);
    assert!(core::mem::offset_of!(Header, peak) == 48);
    assert!(core::mem::offset_of!(Header, refused) == 224);
    assert!(core::mem::offset_of!(Header, account_zero) == 64);
    assert!(core::mem::offset_of!(Header, context_first) == 128);
    assert!(core::mem::offset_of!(Header, turn) == 256);
    assert!(core::mem::offset_of!(Slot, pid) == 64);
};

/// Whether these bytes begin as a ledger of this version does.
#[cfg(not(loom))]
pub(super) fn is_one(bytes: &[u8]) -> bool {
    let word = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()).copied().map(u64::from_le_bytes);
    let half = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied().map(u32::from_le_bytes);
    word(core::mem::offset_of!(Header, magic)) == Some(MAGIC)
        && half(core::mem::offset_of!(Header, version)) == Some(VERSION)
}

/// The first bytes of a new ledger, as [`Header::format`] leaves them; all others are zeros.
#[cfg(not(loom))]
#[must_use]
pub fn formatted(identity: Identity) -> [u8; HEADER_SIZE] {
    use core::mem::offset_of;
    let mut bytes = [0; HEADER_SIZE];
    let mut put = |at: usize, word: &[u8]| bytes[at..at + word.len()].copy_from_slice(word);
    put(offset_of!(Header, magic), &MAGIC.to_le_bytes());
    put(offset_of!(Header, version), &VERSION.to_le_bytes());
    put(offset_of!(Header, slot_size), &DIMENSIONS.0.to_le_bytes());
    put(offset_of!(Header, slot_count), &DIMENSIONS.1.to_le_bytes());
    put(offset_of!(Header, share_count), &DIMENSIONS.2.to_le_bytes());
    put(offset_of!(Header, tenant), &identity.tenant.to_le_bytes());
    put(offset_of!(Header, device), &identity.device.to_le_bytes());
    bytes
}

/// True if these bytes begin as a ledger of this version with this identity does.
#[cfg(not(loom))]
#[must_use]
pub fn is_formatted(bytes: &[u8], identity: Identity) -> bool {
    use core::mem::offset_of;
    let fresh = formatted(identity);
    // What members write lies between these two parts and behind them.
    let parts = [0..offset_of!(Header, high_slot), offset_of!(Header, tenant)..offset_of!(Header, high_share)];
    parts.into_iter().all(|part| bytes.get(part.clone()).is_some_and(|there| there == &fresh[part]))
}

/// Open doors in the bytes of a ledger's header, as [`Header::open_doors`]: for those who only read the file.
#[cfg(not(loom))]
#[must_use]
pub fn open_doors_in(bytes: &[u8]) -> Option<(u64, String)> {
    let word = |at: usize| bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_le_bytes);
    if !is_one(bytes) {
        return None;
    }
    let name = core::mem::offset_of!(Header, door_name);
    let name = bytes.get(name..name + DOOR_NAME)?;
    let name = &name[..name.iter().position(|byte| *byte == 0).unwrap_or(DOOR_NAME)];
    Some((word(core::mem::offset_of!(Header, doors))?, String::from_utf8_lossy(name).into_owned()))
}

/// Whose ledger it is: hashes of the tenant's key and of the device's UUID ([`crate::tenant::hash64`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Hash of the tenant's key.
    pub tenant: u64,
    /// Hash of the device's UUID.
    pub device: u64,
}

/// Why a file is not the ledger that was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// Fresh, or its creator died before it was done: format it, under the turn.
    NotFormatted,
    /// Something else altogether.
    NotALedger,
    /// Written by another version.
    Version {
        /// The file's.
        found: u32,
    },
    /// Same version, other dimensions.
    Dimensions,
    /// Another tenant's, or another device's.
    OtherOwner,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFormatted => f.write_str("the ledger is not formatted yet"),
            Self::NotALedger => f.write_str("the file is not a ledger"),
            Self::Version { found } => {
                write!(f, "the ledger has version {found}, this library writes version {VERSION}")
            }
            Self::Dimensions => f.write_str("the ledger has other dimensions than its version says"),
            Self::OtherOwner => f.write_str("the ledger belongs to another tenant or device"),
        }
    }
}

impl core::error::Error for LayoutError {}

#[expect(clippy::cast_possible_truncation, reason = "constants far below 2^32")]
const DIMENSIONS: (u32, u32, u32) = (SLOT_SIZE as u32, SLOTS as u32, SHARES as u32);

impl Header {
    /// Makes a zeroed file a ledger. Under the turn; may be repeated, the magic is written last.
    pub fn format(&self, identity: Identity) {
        self.version.store(VERSION, Ordering::SeqCst);
        self.slot_size.store(DIMENSIONS.0, Ordering::SeqCst);
        self.slot_count.store(DIMENSIONS.1, Ordering::SeqCst);
        self.share_count.store(DIMENSIONS.2, Ordering::SeqCst);
        self.tenant.store(identity.tenant, Ordering::SeqCst);
        self.device.store(identity.device, Ordering::SeqCst);
        self.magic.store(MAGIC, Ordering::SeqCst);
    }

    /// Whether [`Header::format`] ran and nothing wrote over its mark since.
    #[inline(always)]
    pub(super) fn is_formatted(&self) -> bool {
        self.magic.load(Ordering::Relaxed) == MAGIC
    }

    /// As if zeros were written over the mark.
    #[cfg(test)]
    pub(super) fn zero_magic(&self) {
        self.magic.store(0, Ordering::SeqCst);
    }

    /// Is this the ledger of `identity`, in a layout this code understands?
    ///
    /// # Errors
    /// [`LayoutError`]; only [`LayoutError::NotFormatted`] may be cured by [`Header::format`].
    pub fn check(&self, identity: Identity) -> Result<(), LayoutError> {
        match self.magic.load(Ordering::SeqCst) {
            MAGIC => {}
            0 => return Err(LayoutError::NotFormatted),
            _ => return Err(LayoutError::NotALedger),
        }
        let found = self.version.load(Ordering::SeqCst);
        if found != VERSION {
            return Err(LayoutError::Version { found });
        }
        let found = [&self.slot_size, &self.slot_count, &self.share_count].map(|word| word.load(Ordering::SeqCst));
        if found != <[u32; 3]>::from(DIMENSIONS) {
            return Err(LayoutError::Dimensions);
        }
        let owner = Identity { tenant: self.tenant.load(Ordering::SeqCst), device: self.device.load(Ordering::SeqCst) };
        if owner == identity { Ok(()) } else { Err(LayoutError::OtherOwner) }
    }

    /// Zeroed, as a fresh file is.
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
            account_room: zeros(),
            context_first: AtomicU64::new(0),
            context_more: AtomicU64::new(0),
            doors: AtomicU64::new(0),
            door_name: zeros(),
            code_first: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            figures_room: zeros(),
            turn: AtomicU64::new(0),
            turn_contended: AtomicU64::new(0),
            turn_clock: AtomicU64::new(0),
            turn_bell: AtomicU32::new(0),
            turn_pad: AtomicU32::new(0),
            turn_room: zeros(),
            room: zeros(),
        }
    }

    /// What a context takes in bytes: a process's first, and each further one; 0: not known.
    #[must_use]
    pub fn context_figures(&self) -> (u64, u64) {
        (self.context_first.load(Ordering::SeqCst), self.context_more.load(Ordering::SeqCst))
    }

    /// Notes what a process's first context took, for the members that come later.
    pub fn note_context_first(&self, bytes: u64) {
        self.context_first.store(bytes, Ordering::SeqCst);
    }

    /// Notes what a further context took.
    pub fn note_context_more(&self, bytes: u64) {
        self.context_more.store(bytes, Ordering::SeqCst);
    }

    /// What the first code of a process was found to take at least; `None`: nobody has measured it.
    #[must_use]
    pub fn first_code(&self) -> Option<u64> {
        self.code_first.load(Ordering::SeqCst).checked_sub(1)
    }

    /// Notes what the first code of a process took, for the members that come later.
    pub fn note_first_code(&self, bytes: u64) {
        self.code_first.store(bytes.saturating_add(1), Ordering::SeqCst);
    }

    /// Most bytes that the tenant was seen to hold at once: the sum that a request was granted by. It may contain what others
    /// had on the table at that moment, so it is never too small and never above their limits.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// The tenant holds `used` bytes now.
    ///
    /// # Cost
    /// One load; an exchange if it is more than ever.
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

    /// Counts a request that a program was refused.
    pub fn note_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests that programs were refused since the file was made.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Counts an open door; the first one's name is kept, as far as it fits. Says whether it was the first.
    ///
    /// A process that is killed between count and name leaves a count without a name.
    pub fn note_open_door(&self, name: &str) -> bool {
        let first = self.doors.fetch_add(1, Ordering::SeqCst) == 0;
        if first {
            let mut bytes = [0; DOOR_NAME];
            let kept = name.len().min(DOOR_NAME);
            bytes[..kept].copy_from_slice(&name.as_bytes()[..kept]);
            for (word, part) in self.door_name.iter().zip(bytes.as_chunks::<8>().0) {
                word.store(u64::from_le_bytes(*part), Ordering::SeqCst);
            }
        }
        first
    }

    /// How many doors were open, and the name of the first; bytes that are no text are replaced.
    #[must_use]
    pub fn open_doors(&self) -> (u64, String) {
        let bytes: Vec<u8> = self.door_name.iter().flat_map(|word| word.load(Ordering::SeqCst).to_le_bytes()).collect();
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        (self.doors.load(Ordering::SeqCst), String::from_utf8_lossy(&bytes[..length]).into_owned())
    }
}

impl Slot {
    /// Zeroed, as a fresh file is.
    #[must_use]
    pub fn zeroed() -> Self {
        Self {
            claimed: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            high: AtomicU64::new(0),
            overhead: AtomicU64::new(0),
            hot_room: zeros(),
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

impl Share {
    /// Zeroed, as a fresh file is.
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
            node: zeros(),
        }
    }
}

impl LedgerPage {
    /// A page in ordinary memory, as a fresh file is: for tests and for a tenant of one process.
    #[must_use]
    pub fn zeroed() -> Box<Self> {
        Box::new(Self {
            header: Header::zeroed(),
            slots: core::array::from_fn(|_| Slot::zeroed()),
            shares: core::array::from_fn(|_| Share::zeroed()),
        })
    }

    /// The ledger in this page.
    #[must_use]
    pub fn ledger(&self) -> super::Ledger<'_> {
        super::Ledger::new(&self.header, &self.slots, &self.shares)
    }
}

fn zeros<const N: usize>() -> [AtomicU64; N] {
    core::array::from_fn(|_| AtomicU64::new(0))
}
