//! The page that the daemon writes for a tenant: one slot for each member on each device, with its gate and limits.
//!
//! Read-only in the tenant. A value that cannot be decoded (another version wrote it, or a bug) is never guessed: it
//! is [`Unread`]. A member treats that as a shut gate, until the heartbeat shows that no daemon is left to open it.

use core::fmt;

use super::sequenced::{Sequenced, State};
use super::{Header, PageError, SLOTS, zeros};
use crate::limits::Mode;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::time::account::Account;
use crate::time::arbiter::{Class, Gate, Terms};
use crate::time::gate::ALONE_NS;
use crate::time::gate::loss::OnLoss;
use crate::units::bytes::Bytes;
use crate::units::share::Share;

/// First word of a board: `vgpubord`, little-endian.
const MAGIC: u64 = u64::from_le_bytes(*b"vgpubord");

const WORDS: usize = 15;
/// Words in the first cache line, next to the counter and the head.
const HOT: usize = 7;

// Index of each word. The first `HOT` words are those that a launch needs.
const LEASE: usize = 0;
const UNTIL: usize = 1;
const ZERO: usize = 2;
const LATEST: usize = 3;
const EPOCH: usize = 4;
/// Length of a lease (low half) and limit of the work in flight (high half), 32 bits of nanoseconds each.
const BOUNDS: usize = 5;
/// One byte each: mode, policy after the loss of the daemon, class, and a flag for a wide gate (not 0: wide). An
/// older library ignores the flag and keeps the narrower limit.
const WAYS: usize = 6;
const WIDE: usize = 3;
const DEVICE: usize = 7;
const MEMBER: usize = 8;
const MEMORY: usize = 9;
/// Ceiling and floor, 16 bits of thousandths each, and weight in the high half.
const SHARES: usize = 10;
/// [`Uncharged::bytes`]; the next word is [`Uncharged::overhead`].
const UNCHARGED: usize = 11;
const UNCHARGED_OVERHEAD: usize = 12;

// The head: gate in the low byte, a bit for an exclusive lease, the ceiling's thousandths in the upper half.
const NOBODY: u32 = 0;
const OPEN: u32 = 1;
const RUN: u32 = 2;
const WAIT: u32 = 3;
const CAP: u32 = 4;
const EXCLUSIVE: u32 = 1 << 8;

/// No memory limit. 0 is an unwritten word, so it cannot mean this.
const UNLIMITED: u64 = u64::MAX;
/// No ceiling or no floor. 0 is an unwritten word here, too.
const NO_SHARE: u16 = u16::MAX;

/// Gate and limits of one member on one device.
#[repr(transparent)]
pub struct BoardSlot(Sequenced<WORDS>);

/// The page as it is mapped: 132 KiB. Only touched parts take memory.
#[repr(C)]
pub struct BoardPage {
    header: Header,
    room: [AtomicU64; ROOM],
    /// One slot per member and device.
    pub slots: [BoardSlot; SLOTS],
}

#[cfg(not(loom))]
const ROOM: usize = (super::HEADER_SIZE - size_of::<Header>()) / 8;
#[cfg(loom)]
const ROOM: usize = 0;

#[cfg(not(loom))]
const _: () = {
    use super::{HEADER_SIZE, SLOT_SIZE};
    assert!(size_of::<BoardSlot>() == SLOT_SIZE);
    assert!(core::mem::offset_of!(BoardPage, slots) == HEADER_SIZE);
    assert!(size_of::<BoardPage>() == HEADER_SIZE + SLOTS * SLOT_SIZE);
};

/// Values that a launch reads from its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Counter of this state: the futex value to sleep on, and the argument of [`BoardSlot::stands`].
    pub sequence: u32,
    /// The gate: the permission to launch.
    pub gate: Gate,
    /// q: length of a lease, in nanoseconds.
    pub quantum: u64,
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
    pub const fn beside(&self, overhead: u64) -> u64 {
        self.bytes.saturating_sub(overhead.saturating_sub(self.overhead))
    }
}

/// A tenant's limits on a device: everything in a slot except the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
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
pub enum Unread {
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

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { .. } => f.write_str("the slot is being written"),
            Self::Nobody { .. } => f.write_str("the slot is nobody's"),
            Self::Unknown { .. } => f.write_str("the slot holds what this version does not know"),
            Self::Ended { epoch } => write!(f, "the slot belongs to epoch {epoch}, which is not the daemon's"),
        }
    }
}

impl core::error::Error for Unread {}

impl BoardSlot {
    /// A free slot, as in a new memory file.
    #[must_use]
    pub fn zeroed() -> Self {
        Self(Sequenced::zeroed())
    }

    // Called by the daemon.

    /// Gives the slot to a member: overwrites every word, and sets [`Gate::Wait`], the gate with which the arbiter
    /// starts.
    pub fn take(&self, allowed: &Allowed, epoch: u64) {
        self.0.write(|head, words| {
            *words = [0; WORDS];
            words[EPOCH] = epoch;
            encode_allowed(allowed, words);
            encode_gate(&Gate::Wait, head, words);
        });
    }

    /// Changes the tenant's limits; the gate stays. The caller then wakes the sleepers, since a limit may be the
    /// reason why a member waits.
    pub fn allow(&self, allowed: &Allowed) {
        self.0.write(|_, words| encode_allowed(allowed, words));
    }

    /// Changes the gate; the caller then wakes the sleepers. Reads of [`Witness::look`](super::Witness::look) that
    /// follow are ordered after this write. So either the daemon sees that something is in flight, or the member sees
    /// the new gate before it launches.
    ///
    /// # Cost
    /// About thirty stores and loads in two cache lines.
    pub fn tell(&self, gate: &Gate) {
        self.0.write(|head, words| encode_gate(gate, head, words));
    }

    /// Frees the slot of a member that left.
    pub fn leave(&self) {
        self.0.write(|head, words| {
            *head = NOBODY;
            *words = [0; WORDS];
        });
    }

    /// Ends the slot's epoch: its readers get `epoch`, the next one or [`super::GONE`]. The caller then wakes the
    /// sleepers.
    pub fn end(&self, epoch: u64) {
        self.0.write(|head, words| {
            *head = NOBODY;
            words[EPOCH] = epoch;
        });
    }

    /// Writes arbitrary bits.
    #[cfg(all(test, not(loom)))]
    pub(super) fn scribble(&self, bits: u32, others: [u64; WORDS]) {
        self.0.write(|head, words| (*head, *words) = (bits, others));
    }

    // Called by a member.

    /// The futex word: while it equals the sequence that was read, nothing has changed.
    pub fn futex(&self) -> &AtomicU32 {
        self.0.futex()
    }

    /// True if the state read with this sequence is still current. If it is true after
    /// [`ReportSlot::launches`](super::ReportSlot::launches), a daemon that shuts the gate later sees the launch.
    ///
    /// # Cost
    /// One relaxed load: the whole cost of the daemon for a launch inside a lease.
    #[inline(always)]
    #[must_use]
    pub fn stands(&self, sequence: u32) -> bool {
        self.0.stands(sequence)
    }

    /// The gate, if the slot belongs to `epoch`.
    ///
    /// # Errors
    /// [`Unread`].
    ///
    /// # Cost
    /// Ten loads of one cache line. Call it when [`Self::stands`] returns false.
    pub fn grant(&self, epoch: u64) -> Result<Grant, Unread> {
        let state = self.0.read::<HOT>().map_err(|busy| Unread::Busy { sequence: busy.sequence })?;
        let sequence = state.sequence;
        if state.words[EPOCH] != epoch && (state.words[EPOCH] != 0 || state.head != NOBODY) {
            return Err(Unread::Ended { epoch: state.words[EPOCH] });
        }
        if state.head == NOBODY {
            return Err(Unread::Nobody { sequence });
        }
        decode_grant(&state).ok_or(Unread::Unknown { sequence })
    }

    /// The tenant's limits, if the slot belongs to `epoch`, and the sequence at which they were read.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn allowed(&self, epoch: u64) -> Result<(u32, Allowed), Unread> {
        let sequence = self.grant(epoch)?.sequence;
        let state = self.0.read::<WORDS>().map_err(|busy| Unread::Busy { sequence: busy.sequence })?;
        if state.sequence != sequence {
            // Return the earlier sequence. The newer state was not fully read, so nobody may sleep on its sequence.
            return Err(Unread::Busy { sequence });
        }
        decode_allowed(&state).map(|allowed| (sequence, allowed)).ok_or(Unread::Unknown { sequence })
    }
}

impl BoardPage {
    /// A zeroed page in ordinary memory, for tests.
    #[must_use]
    pub fn zeroed() -> Box<Self> {
        let slots = core::array::from_fn(|_| BoardSlot::zeroed());
        Box::new(Self { header: Header::zeroed(), room: zeros(), slots })
    }

    /// Turns a new memory file into a board.
    pub fn format(&self, epoch: u64) {
        self.header.format(MAGIC, epoch);
    }

    /// Checks that this is a board of this version and of this epoch.
    ///
    /// # Errors
    /// [`PageError`].
    pub fn check(&self, epoch: u64) -> Result<(), PageError> {
        self.header.check(MAGIC, epoch)
    }

    /// Ends the epoch of the page and all its slots, when the daemon exits or has handed out other pages. The caller
    /// then wakes the sleepers of every slot. Touches the whole page.
    pub fn end(&self, epoch: u64) {
        self.header.epoch.store(epoch, Ordering::Release);
        for slot in &self.slots {
            slot.end(epoch);
        }
    }
}

fn encode_gate(gate: &Gate, head: &mut u32, words: &mut [u64; WORDS]) {
    let mut ways = words[WAYS].to_le_bytes();
    ways[WIDE] = u8::from(matches!(gate, Gate::Run { wide: true, .. }));
    words[WAYS] = u64::from_le_bytes(ways);
    let (kind, until) = match *gate {
        Gate::Open => (OPEN, 0),
        Gate::Wait => (WAIT, 0),
        Gate::Cap { until } => (CAP, until),
        Gate::Run { lease, until, exclusive, ceiling, .. } => {
            words[LEASE] = lease;
            let permille = ceiling.map_or(0, |(share, _)| u32::from(share.permille()));
            [words[ZERO], words[LATEST]] = ceiling.map_or([0; 2], |(_, account)| account.words());
            (RUN | if exclusive { EXCLUSIVE } else { 0 } | permille << 16, until)
        }
    };
    *head = kind;
    words[UNTIL] = until;
}

fn decode_grant(state: &State<HOT>) -> Option<Grant> {
    let State { sequence, head, words } = *state;
    let until = words[UNTIL];
    let (exclusive, permille) = (head & EXCLUSIVE != 0, head >> 16);
    let ways = words[WAYS].to_le_bytes();
    let wide = ways[WIDE] != 0;
    let gate = match head & 0xff {
        RUN if head & 0xfe00 == 0 => {
            let ceiling = match permille {
                0 => None,
                permille => Some((Share::from_permille(permille)?, Account::of_words([words[ZERO], words[LATEST]]))),
            };
            Gate::Run { lease: words[LEASE], until, exclusive, ceiling, wide }
        }
        OPEN if head == OPEN => Gate::Open,
        WAIT if head == WAIT => Gate::Wait,
        CAP if head == CAP => Gate::Cap { until },
        _ => return None,
    };
    let (quantum, in_flight) = halves(words[BOUNDS]);
    let [mode, on_loss, ..] = ways;
    let is_wide = matches!(gate, Gate::Run { wide: true, .. });
    let (quantum, in_flight) = (u64::from(quantum), if is_wide { ALONE_NS } else { u64::from(in_flight) });
    Some(Grant { sequence, gate, quantum, in_flight, mode: mode_of(mode)?, on_loss: loss_of(on_loss)? })
}

fn encode_allowed(allowed: &Allowed, words: &mut [u64; WORDS]) {
    let ns = |ns: u64| u32::try_from(ns).unwrap_or(u32::MAX);
    let terms = &allowed.terms;
    words[BOUNDS] = pair(ns(terms.quantum.unwrap_or(0)), ns(allowed.in_flight));
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
    let wide = words[WAYS].to_le_bytes()[WIDE];
    words[WAYS] = u64::from_le_bytes([mode, on_loss, class, wide, 0, 0, 0, 0]);
    words[DEVICE] = allowed.device;
    words[MEMBER] = allowed.member;
    words[MEMORY] = allowed.memory.map_or(UNLIMITED, Bytes::get);
    (words[UNCHARGED], words[UNCHARGED_OVERHEAD]) = (allowed.uncharged.bytes, allowed.uncharged.overhead);
    let share = |share: Option<Share>| u32::from(share.map_or(NO_SHARE, Share::permille));
    words[SHARES] = pair(share(terms.ceiling) | share(terms.floor) << 16, terms.weight);
}

fn decode_allowed(state: &State<WORDS>) -> Option<Allowed> {
    let words = &state.words;
    let (quantum, in_flight) = halves(words[BOUNDS]);
    let [mode, on_loss, class, ..] = words[WAYS].to_le_bytes();
    let (shares, weight) = halves(words[SHARES]);
    let (ceiling, floor) = (share_of(shares & 0xffff)?, share_of(shares >> 16)?);
    let class = match class {
        1 => Class::Latency,
        2 => Class::Normal,
        3 => Class::Batch,
        _ => return None,
    };
    let memory = match words[MEMORY] {
        0 => return None,
        UNLIMITED => None,
        bytes => Some(Bytes(bytes)),
    };
    let terms = Terms { class, floor, ceiling, weight, quantum: Some(u64::from(quantum)) };
    let (mode, on_loss, in_flight) = (mode_of(mode)?, loss_of(on_loss)?, u64::from(in_flight));
    let (device, member) = (words[DEVICE], words[MEMBER]);
    let uncharged = Uncharged { bytes: words[UNCHARGED], overhead: words[UNCHARGED_OVERHEAD] };
    Some(Allowed { device, member, memory, uncharged, terms, in_flight, mode, on_loss })
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

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}
