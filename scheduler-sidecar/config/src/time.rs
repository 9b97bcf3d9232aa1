//! The constants of device time, each declared once with its key, default, range and meaning.
//!
//! [`vgpu_core::time::arbiter`] documents their effect on a lease. Defaults that exist there or in
//! [`vgpu_core::time::gate`] are taken from there.

use std::ops::RangeInclusive;

use serde::Serialize;
use vgpu_core::time::arbiter;

use super::problem::At;

/// Former keys of `[time]`, each with the reason why a file cannot set it.
pub const REMOVED_KEYS: &[(&str, &str)] = &[
    ("marker", "is a constant of the library and cannot be set: an event marker follows 250us of estimated work"),
    ("spin", "is a constant of the library and cannot be set"),
    ("credit", "is a constant of the arbiter and cannot be set"),
    ("burst", "is a constant of the library and cannot be set: a ceiling keeps 50ms of unused time, times the ceiling"),
    (
        "gone",
        "is a constant of the library and cannot be set: after 250ms without a heartbeat the daemon counts as \
         gone",
    ),
];

/// A configurable constant: a duration in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct TimeConstant {
    /// Key of the constant in `[time]`.
    pub name: &'static str,
    /// Accepted range in nanoseconds.
    pub range: (u64, u64),
    /// Meaning of the constant, for the reference.
    pub what: &'static str,
}

macro_rules! constants {
    ($($name:ident, $default:expr, $min:literal, $max:literal, $what:literal;)*) => {
        /// The constants of device time, in nanoseconds.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize)]
        pub struct Time {
            $(#[doc = $what] pub $name: u64,)*
        }

        impl Default for Time {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        /// Section `[time]` as written; `None`: the file does not give the key.
        #[derive(Debug, Default)]
        pub struct RawTime {
            $(#[doc = $what] pub $name: Option<At<u64>>,)*
        }

        /// All configurable constants.
        pub const CONSTANTS: &[TimeConstant] = &[$(TimeConstant { name: stringify!($name), range: ($min, $max), what: $what }),*];

        impl RawTime {
            /// Reads each constant with a function that takes its key and its accepted range.
            pub(super) fn read(mut read: impl FnMut(&'static str, RangeInclusive<u64>) -> Option<At<u64>>) -> Self {
                Self { $($name: read(stringify!($name), $min..=$max),)* }
            }

            /// Returns the written values, with defaults for the others.
            #[must_use]
            pub(super) fn or_default(&self) -> Time {
                let default = Time::default();
                Time { $($name: self.$name.as_ref().map_or(default.$name, |at| at.value),)* }
            }
        }
    };
}

constants! {
    quantum, arbiter::ArbiterConfig::default().quantum, 1_000_000, 50_000_000,
        "Length of a lease.";
    latency_quantum, arbiter::ArbiterConfig::default().latency_quantum, 500_000, 50_000_000,
        "Length of a lease of class `latency`.";
    in_flight, 2_000_000, 100_000, 25_000_000,
        "Most estimated work in flight while a ceiling or a neighbour counts; at most half of `quantum`, which is also the default where that is less than 2ms.";
    overlap, arbiter::ArbiterConfig::default().overlap, 0, 1_000_000,
        "Less than this in flight does not keep the next tenant waiting.";
    drain, arbiter::ArbiterConfig::default().drain, 1_000_000, 1_000_000_000,
        "Longest drain before the next tenant gets the device at the same time; at least two leases.";
    longest, arbiter::ArbiterConfig::default().longest, 10_000_000, 60_000_000_000,
        "Longest time that a launch in flight is estimated to take.";
    stuck, arbiter::ArbiterConfig::default().stuck, 10_000_000, 60_000_000_000,
        "Time after its allowance at which work that never ends starts to delay other members of its own tenant.";
    patience, arbiter::ArbiterConfig::default().patience, 1_000_000, 10_000_000_000,
        "Time behind its request at which a tenant goes before every class.";
    ageing, arbiter::ArbiterConfig::default().ageing, 10_000_000, 60_000_000_000,
        "Time after which a class that is passed over gets a lease.";
    alone, arbiter::ArbiterConfig::default().alone, 10_000_000, 60_000_000_000,
        "Time alone after which a tenant gets a wider lease, up to 250 ms in flight; with record.exact = false it \
         needs no lease.";
    heartbeat, 10_000_000, 1_000_000, 125_000_000,
        "Interval of the daemon's heartbeat; after 250ms without one, members count the daemon as gone.";
}

/// A member misses at least two beats before it counts the daemon as gone.
const _: () = assert!(2 * 125_000_000 <= vgpu_core::time::gate::loss::DAEMON_GONE_NS);

impl Time {
    /// Returns the constants that the arbiter uses.
    #[must_use]
    pub fn arbiter_config(&self) -> arbiter::ArbiterConfig {
        arbiter::ArbiterConfig {
            quantum: self.quantum,
            latency_quantum: self.latency_quantum,
            overlap: self.overlap,
            drain: self.drain,
            longest: self.longest,
            stuck: self.stuck,
            patience: self.patience,
            ageing: self.ageing,
            measures_all: false,
            alone: self.alone,
        }
    }
}
