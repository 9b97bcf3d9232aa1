//! The arithmetic of what fits on a device: memory limits against its size, floors against its time.
//!
//! Pure integers: what is said about a refusal, and where in the file, is [`super::resolve`]'s.

use vgpu_core::bytes::Bytes;
use vgpu_core::share::Share;

/// What a device has to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Its memory; `None`: not known, so that memory cannot be refused.
    pub memory: Option<Bytes>,
    /// How much of it may be promised, in thousandths.
    pub overcommit: u32,
}

/// What a tenant asks of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Its memory limit; `None` is none, which counts as the whole device.
    pub memory: Option<Bytes>,
    /// Its floor.
    pub floor: Option<Share>,
    /// Its ceiling.
    pub ceiling: Option<Share>,
}

/// Why the asks do not fit. `at` is the index of the ask at which it shows: the first one beyond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// One limit is more than the device has.
    Alone {
        /// The ask.
        at: usize,
    },
    /// All limits together are more than may be promised.
    Memory {
        /// The first ask beyond.
        at: usize,
        /// The sum of all.
        asked: u128,
        /// What may be promised.
        promised: u128,
    },
    /// A floor is above its own ceiling.
    FloorAboveCeiling {
        /// The ask.
        at: usize,
    },
    /// All floors together are more than the device's time.
    Floors {
        /// The first ask beyond.
        at: usize,
        /// The sum of all, in thousandths.
        asked: u64,
    },
}

impl Capacity {
    /// How many bytes may be promised, rounded down; `None`: not known.
    #[must_use]
    pub fn promised(&self) -> Option<u128> {
        self.memory.map(|memory| u128::from(memory.get()) * u128::from(self.overcommit) / 1000)
    }

    /// The least ratio, in thousandths, with which so much could be promised; `None` if the size is not known.
    #[must_use]
    pub fn ratio_for(&self, asked: u128) -> Option<u128> {
        self.memory.filter(|memory| memory.get() > 0).map(|memory| (asked * 1000).div_ceil(u128::from(memory.get())))
    }
}

/// Everything that does not fit; nothing, if all can be kept at once.
///
/// The order of the asks changes where a refusal shows, never whether there is one.
#[must_use]
pub fn refusals(capacity: &Capacity, asks: &[Ask]) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for (at, ask) in asks.iter().enumerate() {
        if let (Some(limit), Some(total)) = (ask.memory, capacity.memory)
            && limit > total
        {
            refusals.push(Refusal::Alone { at });
        }
        if let (Some(floor), Some(ceiling)) = (ask.floor, ask.ceiling)
            && floor > ceiling
        {
            refusals.push(Refusal::FloorAboveCeiling { at });
        }
    }
    if let (Some(total), Some(promised)) = (capacity.memory, capacity.promised()) {
        let limits = asks.iter().map(|ask| u128::from(ask.memory.unwrap_or(total).get()));
        let (asked, at) = sum(limits, promised);
        refusals.extend(at.map(|at| Refusal::Memory { at, asked, promised }));
    }
    let floors = asks.iter().map(|ask| u128::from(ask.floor.map_or(0, Share::permille)));
    let (asked, at) = sum(floors, u128::from(Share::ALL.permille()));
    refusals.extend(at.map(|at| Refusal::Floors { at, asked: u64::try_from(asked).unwrap_or(u64::MAX) }));
    refusals
}

/// The sum, and the index with which it first exceeds what there is.
fn sum(parts: impl Iterator<Item = u128>, most: u128) -> (u128, Option<usize>) {
    let (mut sum, mut beyond) = (0_u128, None);
    for (at, part) in parts.enumerate() {
        sum += part;
        if sum > most && beyond.is_none() {
            beyond = Some(at);
        }
    }
    (sum, beyond)
}
