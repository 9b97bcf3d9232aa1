//! What the daemon says to a tenant's members: one slot for each member on each device.
//!
//! Read-only in the tenant. What cannot be decoded (another version's word, a bug) is never a guess: it is [`Unread`],
//! and a member treats that as a gate that is shut, until the heartbeat says that nobody is there to open it.

use core::fmt;

use super::sequenced::{Sequenced, State};
use super::{Header, PageError, SLOTS, zeros};
use crate::account::Account;
use crate::arbiter::{Class, Gate, Terms};
use crate::bytes::Bytes;
use crate::gate::ALONE_NS;
use crate::gate::loss::OnLoss;
use crate::limits::Mode;
use crate::share::Share;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// First word of a board: `vgpubord`, little-endian.
const MAGIC: u64 = u64::from_le_bytes(*b"vgpubord");

const WORDS: usize = 15;
/// Words of the hot cache line, beside the counter and the head.
const HOT: usize = 7;

// Places of the words. The first HOT are what a launch needs.
const LEASE: usize = 0;
const UNTIL: usize = 1;
const ZERO: usize = 2;
const LATEST: usize = 3;
const EPOCH: usize = 4;
/// Length of a lease, and bound of what is in flight: 32 bits of nanoseconds each.
const BOUNDS: usize = 5;
/// Mode, what holds without the daemon, class: a byte each; and one of the gate, in which not 0 is wide: an older library
/// does not read it, and keeps the narrower bound.
const WAYS: usize = 6;
const WIDE: usize = 3;
const DEVICE: usize = 7;
const MEMBER: usize = 8;
const MEMORY: usize = 9;
/// Ceiling and floor, 16 bits of thousandths each, and weight.
const SHARES: usize = 10;
/// [`Uncharged`]: its bytes, and the overhead of the ledger that it was compared with.
const UNCHARGED: usize = 11;
const UNCHARGED_OVERHEAD: usize = 12;

// The head: gate in the low byte, a bit for exclusive, the ceiling's thousandths in the upper half.
const NOBODY: u32 = 0;
const OPEN: u32 = 1;
const RUN: u32 = 2;
const WAIT: u32 = 3;
const CAP: u32 = 4;
const EXCLUSIVE: u32 = 1 << 8;

/// No memory limit. 0 is what was never written, and must not mean that.
const UNLIMITED: u64 = u64::MAX;
/// No ceiling, no floor. 0 as above.
const NO_SHARE: u16 = u16::MAX;

/// What holds for one member on one device.
#[repr(transparent)]
pub struct BoardSlot(Sequenced<WORDS>);

/// The page as it is mapped: 132 KiB, of which only what is touched takes memory.
#[repr(C)]
pub struct BoardPage {
    header: Header,
    room: [AtomicU64; ROOM],
    /// One per member and device.
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

/// What a launch asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The counter of this state: what to sleep for, and what [`BoardSlot::stands`] takes.
    pub sequence: u32,
    /// What may be done.
    pub gate: Gate,
    /// q: length of a lease in nanoseconds.
    pub quantum: u64,
    /// D: estimated work that may be before the device, in nanoseconds.
    pub in_flight: u64,
    /// What is done about limits.
    pub mode: Mode,
    /// What holds when the daemon is gone.
    pub on_loss: OnLoss,
}

/// Bytes that the driver holds for a tenant's processes on a device and that its ledger does not explain.
///
/// The daemon compares the driver's list of processes with the ledger. A member that charges overhead afterwards explains
/// that part of it: a context is measured and charged some milliseconds after the driver has taken it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uncharged {
    /// The driver's figure, less the ledger.
    pub bytes: u64,
    /// Overhead in the ledger at that moment.
    pub overhead: u64,
}

impl Uncharged {
    /// What of it is still unexplained, when the ledger's overhead is `overhead`.
    #[inline]
    #[must_use]
    pub const fn beside(&self, overhead: u64) -> u64 {
        self.bytes.saturating_sub(overhead.saturating_sub(self.overhead))
    }
}

/// What a tenant may use of a device, beside its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Hash of the device's UUID ([`crate::tenant::hash64`]).
    pub device: u64,
    /// Whose slot it is: the number of the welcome.
    pub member: u64,
    /// Hard memory limit; `None` = no limit.
    pub memory: Option<Bytes>,
    /// Memory that counts against it beside the ledger.
    pub uncharged: Uncharged,
    /// Class, floor, ceiling, weight, and the quantum in force: never `None` when read.
    pub terms: Terms,
    /// D in nanoseconds.
    pub in_flight: u64,
    /// What is done about limits.
    pub mode: Mode,
    /// What holds when the daemon is gone.
    pub on_loss: OnLoss,
}

/// Why there is nothing to act on in a slot. All but the last: sleep while `sequence` stands, then look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It is being written, or its writer died while it did.
    Busy {
        /// To sleep for.
        sequence: u32,
    },
    /// It is nobody's.
    Nobody {
        /// To sleep for.
        sequence: u32,
    },
    /// It holds something that this version does not know.
    Unknown {
        /// To sleep for.
        sequence: u32,
    },
    /// Its epoch is over, or it belongs to another: say hello anew.
    Ended {
        /// The slot's.
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
    /// Nobody's, as in a fresh memory file.
    #[must_use]
    pub fn zeroed() -> Self {
        Self(Sequenced::zeroed())
    }

    // The daemon's side.

    /// Gives the slot to a member: everything anew, with a gate that says [`Gate::Wait`], as the arbiter has it.
    pub fn take(&self, allowed: &Allowed, epoch: u64) {
        self.0.write(|head, words| {
            *words = [0; WORDS];
            words[EPOCH] = epoch;
            encode_allowed(allowed, words);
            encode_gate(&Gate::Wait, head, words);
        });
    }

    /// Changes what the tenant may use; the gate stays. Wake whoever sleeps afterwards: some of it holds a member back.
    pub fn allow(&self, allowed: &Allowed) {
        self.0.write(|_, words| encode_allowed(allowed, words));
    }

    /// Changes the gate; wake whoever sleeps afterwards. What [`Witness::look`](super::Witness::look) reads next, it
    /// reads after this: either that says that something is in flight, or the member sees the gate before it launches.
    ///
    /// # Cost
    /// Some thirty stores and loads of two cache lines.
    pub fn tell(&self, gate: &Gate) {
        self.0.write(|head, words| encode_gate(gate, head, words));
    }

    /// Nobody's again.
    pub fn leave(&self) {
        self.0.write(|head, words| {
            *head = NOBODY;
            *words = [0; WORDS];
        });
    }

    /// Ends the slot's epoch: who reads it then is told `epoch`, the next one or [`super::GONE`]. Wake whoever sleeps
    /// afterwards.
    pub fn end(&self, epoch: u64) {
        self.0.write(|head, words| {
            *head = NOBODY;
            words[EPOCH] = epoch;
        });
    }

    /// Any bits.
    #[cfg(all(test, not(loom)))]
    pub(super) fn scribble(&self, bits: u32, others: [u64; WORDS]) {
        self.0.write(|head, words| (*head, *words) = (bits, others));
    }

    // The member's side.

    /// The word to sleep for: while it has the sequence that was read, nothing has changed.
    pub fn futex(&self) -> &AtomicU32 {
        self.0.futex()
    }

    /// Does what was read with this sequence still hold? If this is true after
    /// [`ReportSlot::launches`](super::ReportSlot::launches), whoever shuts the gate later sees the launch.
    ///
    /// # Cost
    /// One relaxed load: all that a launch inside a lease pays for the daemon.
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
    /// Ten loads of one cache line. To be called when [`Self::stands`] says no.
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

    /// What the tenant may use, if the slot belongs to `epoch`, with the sequence at which it was read.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn allowed(&self, epoch: u64) -> Result<(u32, Allowed), Unread> {
        let sequence = self.grant(epoch)?.sequence;
        let state = self.0.read::<WORDS>().map_err(|busy| Unread::Busy { sequence: busy.sequence })?;
        if state.sequence != sequence {
            // The former one: what stands there now was not read whole, and nobody may sleep for it.
            return Err(Unread::Busy { sequence });
        }
        decode_allowed(&state).map(|allowed| (sequence, allowed)).ok_or(Unread::Unknown { sequence })
    }
}

impl BoardPage {
    /// In ordinary memory, as a fresh memory file is: for tests.
    #[must_use]
    pub fn zeroed() -> Box<Self> {
        let slots = core::array::from_fn(|_| BoardSlot::zeroed());
        Box::new(Self { header: Header::zeroed(), room: zeros(), slots })
    }

    /// Makes a fresh memory file a board.
    pub fn format(&self, epoch: u64) {
        self.header.format(MAGIC, epoch);
    }

    /// Is this a board of this version and of this epoch?
    ///
    /// # Errors
    /// [`PageError`].
    pub fn check(&self, epoch: u64) -> Result<(), PageError> {
        self.header.check(MAGIC, epoch)
    }

    /// Ends the page's epoch in all its slots: the daemon leaves, or has handed out other pages. Wake whoever sleeps for
    /// any of them afterwards. Touches the whole page.
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
    // The gate's own stays.
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
