//! The page that the daemon writes for a tenant: one slot for each member on each device, with its gate and limits.
//!
//! Read-only in the tenant. A value that cannot be decoded (another version wrote it, or a bug) is never guessed: it
//! is [`UnreadSlot`]. A member treats that as a shut gate, until the heartbeat shows that no daemon is left to open it.

use core::fmt;

use super::sequenced::{RecordState, Sequenced};
use super::{PAGE_SLOTS, PageError, PageHeader, zeroed_words};
use crate::limits::Mode;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::time::account::Account;
use crate::time::arbiter::{Class, Gate, Terms};
use crate::time::config::ALONE_IN_FLIGHT_NS;
use crate::time::gate::loss::OnLoss;
use crate::units::bytes::Bytes;
use crate::units::share::Share;

/// First word of a board: `vgpubord`, little-endian.
const BOARD_MAGIC: u64 = u64::from_le_bytes(*b"vgpubord");

const BOARD_WORDS: usize = 15;
/// Words in the first cache line, next to the counter and the head.
const HOT_WORDS: usize = 7;

// Index of each word. The first `HOT_WORDS` words are those that a launch needs.
const LEASE_WORD: usize = 0;
const UNTIL_WORD: usize = 1;
const ACCOUNT_ZERO_WORD: usize = 2;
const ACCOUNT_LATEST_WORD: usize = 3;
const EPOCH_WORD: usize = 4;
/// Length of a lease (low half) and limit of the work in flight (high half), 32 bits of nanoseconds each.
const BOUNDS_WORD: usize = 5;
/// One byte each: mode, policy after the loss of the daemon, class, and a flag for a wide gate (not 0: wide). An
/// older library ignores the flag and keeps the narrower limit.
const MODES_WORD: usize = 6;
const WIDE_BYTE: usize = 3;
const DEVICE_WORD: usize = 7;
const MEMBER_WORD: usize = 8;
const MEMORY_WORD: usize = 9;
/// Ceiling and floor, 16 bits of thousandths each, and weight in the high half.
const SHARES_WORD: usize = 10;
/// [`Uncharged::bytes`]; the next word is [`Uncharged::overhead`].
const UNCHARGED_WORD: usize = 11;
const UNCHARGED_OVERHEAD_WORD: usize = 12;

// The head: gate in the low byte, a bit for an exclusive lease, the ceiling's thousandths in the upper half.
const GATE_NOBODY: u32 = 0;
const GATE_OPEN: u32 = 1;
const GATE_RUN: u32 = 2;
const GATE_WAIT: u32 = 3;
const GATE_CAPPED: u32 = 4;
const GATE_EXCLUSIVE_BIT: u32 = 1 << 8;

/// No memory limit. 0 is an unwritten word, so it cannot mean this.
const NO_MEMORY_LIMIT: u64 = u64::MAX;
/// No ceiling or no floor. 0 is an unwritten word here, too.
const NO_SHARE: u16 = u16::MAX;

/// Gate and limits of one member on one device.
#[repr(transparent)]
pub struct BoardSlot(Sequenced<BOARD_WORDS>);

/// The page as it is mapped: 132 KiB. Only touched parts take memory.
#[repr(C)]
pub struct BoardPage {
    header: PageHeader,
    room: [AtomicU64; BOARD_PADDING_WORDS],
    /// One slot per member and device.
    pub slots: [BoardSlot; PAGE_SLOTS],
}

#[cfg(not(loom))]
const BOARD_PADDING_WORDS: usize = (super::PAGE_HEADER_BYTES - size_of::<PageHeader>()) / 8;
#[cfg(loom)]
const BOARD_PADDING_WORDS: usize = 0;

#[cfg(not(loom))]
const _: () = {
    use super::{PAGE_HEADER_BYTES, PAGE_SLOT_BYTES};
    assert!(size_of::<BoardSlot>() == PAGE_SLOT_BYTES);
    assert!(core::mem::offset_of!(BoardPage, slots) == PAGE_HEADER_BYTES);
    assert!(size_of::<BoardPage>() == PAGE_HEADER_BYTES + PAGE_SLOTS * PAGE_SLOT_BYTES);
};

/// Values that a launch reads from its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchGrant {
    /// Counter of this state: the futex value to sleep on, and the argument of [`BoardSlot::is_unchanged`].
    pub sequence: u32,
    /// The gate: the permission to launch.
    pub gate: Gate,
    /// D: limit of estimated work queued on the device, in nanoseconds.
    pub in_flight: u64,
    /// Enforcement mode of the tenant.
    pub mode: Mode,
    /// Policy after the loss of the daemon.
    pub on_loss: OnLoss,
}

/// Bytes that the driver holds for a tenant's processes on a device and that the tenant's ledger does not explain.
///
/// The daemon compares the driver's list of processes with the ledger. A context is measured and charged some
/// milliseconds after the driver has taken its memory. So overhead that members charge after the comparison explains
/// part of these bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uncharged {
    /// The driver's figure minus the ledger's.
    pub bytes: u64,
    /// Overhead in the ledger when the figures were compared.
    pub overhead: u64,
}

impl Uncharged {
    /// Bytes still unexplained, when the ledger's overhead is now `overhead`.
    #[inline]
    #[must_use]
    pub const fn unexplained_bytes(&self, overhead: u64) -> u64 {
        self.bytes.saturating_sub(overhead.saturating_sub(self.overhead))
    }
}

/// A tenant's limits on a device: everything in a slot except the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedUse {
    /// Hash of the device's UUID ([`crate::limits::tenant::hash64`]).
    pub device: u64,
    /// Member that owns the slot: its number in the welcome.
    pub member: u64,
    /// Hard memory limit; `None`: no limit.
    pub memory: Option<Bytes>,
    /// Memory that counts against the limit although the ledger does not have it.
    pub uncharged: Uncharged,
    /// Class, floor, ceiling, weight, and the quantum in force, which is never `None` when read.
    pub terms: Terms,
    /// D: limit of estimated work in flight, in nanoseconds.
    pub in_flight: u64,
    /// Enforcement mode of the tenant.
    pub mode: Mode,
    /// Policy after the loss of the daemon.
    pub on_loss: OnLoss,
}

/// Reasons why a slot gives no gate. Except for `Ended`, the member sleeps until `sequence` changes and reads again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreadSlot {
    /// The slot is being written, or its writer died during the write.
    Busy {
        /// Futex value to sleep on.
        sequence: u32,
    },
    /// No member has the slot.
    Nobody {
        /// Futex value to sleep on.
        sequence: u32,
    },
    /// The slot holds a value that this version does not know.
    Unknown {
        /// Futex value to sleep on.
        sequence: u32,
    },
    /// The slot's epoch has ended, or it belongs to another daemon: send a new hello.
    Ended {
        /// Epoch (lifetime of one daemon) in the slot.
        epoch: u64,
    },
}

impl fmt::Display for UnreadSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { .. } => f.write_str("the slot is being written"),
            Self::Nobody { .. } => f.write_str("the slot is nobody's"),
            Self::Unknown { .. } => f.write_str("the slot holds what this version does not know"),
            Self::Ended { epoch } => write!(f, "the slot belongs to epoch {epoch}, which is not the daemon's"),
        }
    }
}

impl core::error::Error for UnreadSlot {}

impl BoardSlot {
    /// A free slot, as in a new memory file.
    #[must_use]
    pub fn zeroed() -> Self {
        Self(Sequenced::zeroed())
    }

    // Called by the daemon.

    /// Gives the slot to a member: overwrites every word, and sets [`Gate::Wait`], the gate with which the arbiter
    /// starts.
    pub fn take_slot(&self, allowed: &AllowedUse, epoch: u64) {
        self.0.write(|head, words| {
            *words = [0; BOARD_WORDS];
            words[EPOCH_WORD] = epoch;
            encode_allowed(allowed, words);
            encode_gate(&Gate::Wait, head, words);
        });
    }

    /// Changes the tenant's limits; the gate stays. The caller then wakes the sleepers, since a limit may be the
    /// reason why a member waits.
    pub fn change_allowed(&self, allowed: &AllowedUse) {
        self.0.write(|_, words| encode_allowed(allowed, words));
    }

    /// Changes the gate; the caller then wakes the sleepers. Reads of
    /// [`ReportHistory::read_report`](super::ReportHistory::read_report) that follow are ordered after this write. So
    /// either the daemon sees that something is in flight, or the member sees the new gate before it launches.
    ///
    /// # Cost
    /// About thirty stores and loads in two cache lines.
    pub fn change_gate(&self, gate: &Gate) {
        self.0.write(|head, words| encode_gate(gate, head, words));
    }

    /// Frees the slot of a member that left.
    pub fn leave_slot(&self) {
        self.0.write(|head, words| {
            *head = GATE_NOBODY;
            *words = [0; BOARD_WORDS];
        });
    }

    /// Ends the slot's epoch: its readers get `epoch`, the next one or [`super::GONE_EPOCH`]. The caller then wakes the
    /// sleepers.
    pub fn end_epoch(&self, epoch: u64) {
        self.0.write(|head, words| {
            *head = GATE_NOBODY;
            words[EPOCH_WORD] = epoch;
        });
    }

    /// Writes arbitrary bits.
    #[cfg(all(test, not(loom)))]
    pub(super) fn write_any_bits(&self, bits: u32, others: [u64; BOARD_WORDS]) {
        self.0.write(|head, words| (*head, *words) = (bits, others));
    }

    // Called by a member.

    /// The futex word: while it equals the sequence that was read, nothing has changed.
    pub fn futex_word(&self) -> &AtomicU32 {
        self.0.futex_word()
    }

    /// True if the state read with this sequence is still current. If it is true after
    /// [`ReportSlot::report_launch`](super::ReportSlot::report_launch), a daemon that shuts the gate later sees the
    /// launch.
    ///
    /// # Cost
    /// One relaxed load: the whole cost of the daemon for a launch inside a lease.
    #[inline(always)]
    #[must_use]
    pub fn is_unchanged(&self, sequence: u32) -> bool {
        self.0.is_unchanged(sequence)
    }

    /// The gate, if the slot belongs to `epoch`.
    ///
    /// # Errors
    /// [`UnreadSlot`].
    ///
    /// # Cost
    /// Ten loads of one cache line. Call it when [`Self::is_unchanged`] returns false.
    pub fn read_grant(&self, epoch: u64) -> Result<LaunchGrant, UnreadSlot> {
        let state = self.0.read::<HOT_WORDS>().map_err(|busy| UnreadSlot::Busy { sequence: busy.sequence })?;
        let sequence = state.sequence;
        if state.words[EPOCH_WORD] != epoch && (state.words[EPOCH_WORD] != 0 || state.head != GATE_NOBODY) {
            return Err(UnreadSlot::Ended { epoch: state.words[EPOCH_WORD] });
        }
        if state.head == GATE_NOBODY {
            return Err(UnreadSlot::Nobody { sequence });
        }
        decode_grant(&state).ok_or(UnreadSlot::Unknown { sequence })
    }

    /// The tenant's limits, if the slot belongs to `epoch`, and the sequence at which they were read.
    ///
    /// # Errors
    /// [`UnreadSlot`].
    pub fn read_allowed(&self, epoch: u64) -> Result<(u32, AllowedUse), UnreadSlot> {
        let sequence = self.read_grant(epoch)?.sequence;
        let state = self.0.read::<BOARD_WORDS>().map_err(|busy| UnreadSlot::Busy { sequence: busy.sequence })?;
        if state.sequence != sequence {
            // Return the earlier sequence. The newer state was not fully read, so nobody may sleep on its sequence.
            return Err(UnreadSlot::Busy { sequence });
        }
        decode_allowed(&state).map(|allowed| (sequence, allowed)).ok_or(UnreadSlot::Unknown { sequence })
    }
}

impl BoardPage {
    /// A zeroed page in ordinary memory, for tests.
    #[must_use]
    pub fn zeroed() -> Box<Self> {
        let slots = core::array::from_fn(|_| BoardSlot::zeroed());
        Box::new(Self { header: PageHeader::zeroed(), room: zeroed_words(), slots })
    }

    /// Turns a new memory file into a board.
    pub fn format_page(&self, epoch: u64) {
        self.header.format_header(BOARD_MAGIC, epoch);
    }

    /// Checks that this is a board of this version and of this epoch.
    ///
    /// # Errors
    /// [`PageError`].
    pub fn check(&self, epoch: u64) -> Result<(), PageError> {
        self.header.check(BOARD_MAGIC, epoch)
    }

    /// Ends the epoch of the page and all its slots, when the daemon exits or has handed out other pages. The caller
    /// then wakes the sleepers of every slot. Touches the whole page.
    pub fn end_epoch_of_all(&self, epoch: u64) {
        self.header.epoch.store(epoch, Ordering::Release);
        for slot in &self.slots {
            slot.end_epoch(epoch);
        }
    }
}

fn encode_gate(gate: &Gate, head: &mut u32, words: &mut [u64; BOARD_WORDS]) {
    let mut ways = words[MODES_WORD].to_le_bytes();
    ways[WIDE_BYTE] = u8::from(matches!(gate, Gate::Run { wide: true, .. }));
    words[MODES_WORD] = u64::from_le_bytes(ways);
    let (kind, until) = match *gate {
        Gate::Open => (GATE_OPEN, 0),
        Gate::Wait => (GATE_WAIT, 0),
        Gate::Cap { until } => (GATE_CAPPED, until),
        Gate::Run { lease, until, exclusive, ceiling, .. } => {
            words[LEASE_WORD] = lease;
            let permille = ceiling.map_or(0, |(share, _)| u32::from(share.as_permille()));
            [words[ACCOUNT_ZERO_WORD], words[ACCOUNT_LATEST_WORD]] =
                ceiling.map_or([0; 2], |(_, account)| account.as_words());
            (GATE_RUN | if exclusive { GATE_EXCLUSIVE_BIT } else { 0 } | permille << 16, until)
        }
    };
    *head = kind;
    words[UNTIL_WORD] = until;
}

fn decode_grant(state: &RecordState<HOT_WORDS>) -> Option<LaunchGrant> {
    let RecordState { sequence, head, words } = *state;
    let until = words[UNTIL_WORD];
    let (exclusive, permille) = (head & GATE_EXCLUSIVE_BIT != 0, head >> 16);
    let ways = words[MODES_WORD].to_le_bytes();
    let wide = ways[WIDE_BYTE] != 0;
    let gate = match head & 0xff {
        GATE_RUN if head & 0xfe00 == 0 => {
            let ceiling = match permille {
                0 => None,
                permille => Some((
                    Share::from_permille(permille)?,
                    Account::from_words([words[ACCOUNT_ZERO_WORD], words[ACCOUNT_LATEST_WORD]]),
                )),
            };
            Gate::Run { lease: words[LEASE_WORD], until, exclusive, ceiling, wide }
        }
        GATE_OPEN if head == GATE_OPEN => Gate::Open,
        GATE_WAIT if head == GATE_WAIT => Gate::Wait,
        GATE_CAPPED if head == GATE_CAPPED => Gate::Cap { until },
        _ => return None,
    };
    let (_, in_flight) = split_halves(words[BOUNDS_WORD]);
    let [mode, on_loss, ..] = ways;
    let is_wide = matches!(gate, Gate::Run { wide: true, .. });
    let in_flight = if is_wide { ALONE_IN_FLIGHT_NS } else { u64::from(in_flight) };
    Some(LaunchGrant { sequence, gate, in_flight, mode: mode_of(mode)?, on_loss: loss_of(on_loss)? })
}

fn encode_allowed(allowed: &AllowedUse, words: &mut [u64; BOARD_WORDS]) {
    let ns = |ns: u64| u32::try_from(ns).unwrap_or(u32::MAX);
    let terms = &allowed.terms;
    words[BOUNDS_WORD] = join_halves(ns(terms.quantum.unwrap_or(0)), ns(allowed.in_flight));
    let mode = match allowed.mode {
        Mode::Enforce => 1,
        Mode::Observe => 2,
        Mode::Off => 3,
    };
    let on_loss = match allowed.on_loss {
        OnLoss::Local => 1,
        OnLoss::Open => 2,
        OnLoss::Block => 3,
    };
    let class = match terms.class {
        Class::Latency => 1,
        Class::Normal => 2,
        Class::Batch => 3,
    };
    // The wide flag (more may be in flight) belongs to the gate: keep it.
    let wide = words[MODES_WORD].to_le_bytes()[WIDE_BYTE];
    words[MODES_WORD] = u64::from_le_bytes([mode, on_loss, class, wide, 0, 0, 0, 0]);
    words[DEVICE_WORD] = allowed.device;
    words[MEMBER_WORD] = allowed.member;
    words[MEMORY_WORD] = allowed.memory.map_or(NO_MEMORY_LIMIT, Bytes::get);
    (words[UNCHARGED_WORD], words[UNCHARGED_OVERHEAD_WORD]) = (allowed.uncharged.bytes, allowed.uncharged.overhead);
    let share = |share: Option<Share>| u32::from(share.map_or(NO_SHARE, Share::as_permille));
    words[SHARES_WORD] = join_halves(share(terms.ceiling) | share(terms.floor) << 16, terms.weight);
}

fn decode_allowed(state: &RecordState<BOARD_WORDS>) -> Option<AllowedUse> {
    let words = &state.words;
    let (quantum, in_flight) = split_halves(words[BOUNDS_WORD]);
    let [mode, on_loss, class, ..] = words[MODES_WORD].to_le_bytes();
    let (shares, weight) = split_halves(words[SHARES_WORD]);
    let (ceiling, floor) = (share_of(shares & 0xffff)?, share_of(shares >> 16)?);
    let class = match class {
        1 => Class::Latency,
        2 => Class::Normal,
        3 => Class::Batch,
        _ => return None,
    };
    let memory = match words[MEMORY_WORD] {
        0 => return None,
        NO_MEMORY_LIMIT => None,
        bytes => Some(Bytes(bytes)),
    };
    let terms = Terms { class, floor, ceiling, weight, quantum: Some(u64::from(quantum)) };
    let (mode, on_loss, in_flight) = (mode_of(mode)?, loss_of(on_loss)?, u64::from(in_flight));
    let (device, member) = (words[DEVICE_WORD], words[MEMBER_WORD]);
    let uncharged = Uncharged { bytes: words[UNCHARGED_WORD], overhead: words[UNCHARGED_OVERHEAD_WORD] };
    Some(AllowedUse { device, member, memory, uncharged, terms, in_flight, mode, on_loss })
}

fn mode_of(code: u8) -> Option<Mode> {
    [Mode::Enforce, Mode::Observe, Mode::Off].get(usize::from(code).checked_sub(1)?).copied()
}

fn loss_of(code: u8) -> Option<OnLoss> {
    [OnLoss::Local, OnLoss::Open, OnLoss::Block].get(usize::from(code).checked_sub(1)?).copied()
}

fn share_of(code: u32) -> Option<Option<Share>> {
    if code == u32::from(NO_SHARE) { Some(None) } else { Share::from_permille(code).map(Some) }
}

fn join_halves(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn split_halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}
