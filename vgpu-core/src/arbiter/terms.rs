//! What the arbiter is told about tenants, and its constants. Not here: where these are written (the daemon's
//! configuration), and what follows from them ([`super::order`], [`super::device`]).

use crate::account::BURST_NS;
use crate::share::Share;

/// A tenant, by the number its owner gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(pub u32);

/// A device, by its place in the arbiter: 0, 1, ... The order in which a tenant gets leases on several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

/// One member on one device: who has a gate of its own. Given by [`super::Arbiter::join`], used again after
/// [`super::Arbiter::leaves`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub(super) u32);

impl SlotId {
    /// A small number, for a table of the caller's.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Who comes first. A class that is passed over for [`Config::ageing`] gets one lease nevertheless.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Answers somebody who waits: its arrival ends a lease of another class at once, its own leases are short.
    Latency,
    /// Everybody else.
    #[default]
    Normal,
    /// What nobody waits for.
    Batch,
}

impl Class {
    /// How many there are.
    pub const COUNT: usize = 3;

    /// `0` is the first.
    #[must_use]
    pub const fn rank(self) -> usize {
        self as usize
    }
}

/// What a tenant may have of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Who comes first.
    pub class: Class,
    /// sm request: guaranteed when wanted. The caller sees to it that a device's floors are at most the whole.
    pub floor: Option<Share>,
    /// sm limit: never exceeded, also alone on the device.
    pub ceiling: Option<Share>,
    /// Its part of what floors leave, against others of its class. 0 counts as 1.
    pub weight: u32,
    /// Length of its leases; `None`: as configured for its class.
    pub quantum: Option<u64>,
}

impl Default for Terms {
    fn default() -> Self {
        Self { class: Class::Normal, floor: None, ceiling: None, weight: 1, quantum: None }
    }
}

impl Terms {
    /// The ceiling, if it is below the whole device.
    #[must_use]
    pub fn limit(&self) -> Option<Share> {
        self.ceiling.filter(|ceiling| !ceiling.is_all())
    }
}

/// Durations, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Length of a lease.
    pub quantum: u64,
    /// Length of a lease of class latency.
    pub latency_quantum: u64,
    /// Less than this in flight does not keep the next one waiting: about the time until that launches. More of it
    /// costs exactness: the device may turn to the next one first, and come back a slice later.
    pub overlap: u64,
    /// How long a drain may take before the next one is let in beside it; at least two quanta.
    pub drain: u64,
    /// A launch in flight is believed to take at most so long; beyond it comes the allowance.
    pub longest: u64,
    /// So long after its allowance a member holds up its own tenant no more: it was stopped, it waits for just them, or it
    /// says what is not so.
    pub stuck: u64,
    /// A tenant so far behind its floor goes before every class.
    pub patience: u64,
    /// A class that is passed over for so long gets a lease.
    pub ageing: u64,
    /// A tenant that was alone for so long needs no lease at all.
    pub alone: u64,
    /// Or does it need one all the same, since only under a lease its device time is measured? Then it is a wide one.
    pub measures_all: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            quantum: 4_000_000,
            latency_quantum: 1_000_000,
            overlap: 40_000,
            drain: 10_000_000,
            longest: 2_000_000_000,
            stuck: 2_000_000_000,
            patience: BURST_NS,
            ageing: 1_000_000_000,
            alone: 1_000_000_000,
            measures_all: false,
        }
    }
}

/// Shortest and longest lease that terms can ask for.
pub const QUANTUM: core::ops::RangeInclusive<u64> = 500_000..=50_000_000;

impl Config {
    /// How long a lease of a tenant with these terms is.
    #[must_use]
    pub fn quantum_of(&self, terms: &Terms) -> u64 {
        let asked = terms.quantum.unwrap_or(match terms.class {
            Class::Latency => self.latency_quantum,
            Class::Normal | Class::Batch => self.quantum,
        });
        asked.clamp(*QUANTUM.start(), *QUANTUM.end())
    }

    /// How long a drain after such a lease may take.
    #[must_use]
    pub fn drain_of(&self, terms: &Terms) -> u64 {
        self.drain.max(2 * self.quantum_of(terms))
    }
}
