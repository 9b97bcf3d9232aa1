//! The constants of device time, each declared once with its key, default, range and meaning.
//!
//! The values and their defaults are those of [`TimeConfig`].

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

pub use vgpu_core::time::config::TimeConfig;

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
    ($($name:ident, $min:literal, $max:literal, $what:literal;)*) => {
        /// Section `[time]` as written; `None`: the file does not give the key.
        #[derive(Debug, Default)]
        pub struct RawTime {
            $(#[doc = $what] pub $name: Option<At<u64>>,)*
        }

        /// All configurable constants.
        pub const CONSTANTS: &[TimeConstant] = &[$(TimeConstant { name: stringify!($name), range: ($min, $max), what: $what }),*];

        /// Returns the value of each configurable constant in nanoseconds, with its key.
        #[must_use]
        pub fn values_of(time: &TimeConfig) -> BTreeMap<&'static str, u64> {
            BTreeMap::from([$((stringify!($name), time.$name)),*])
        }

        impl RawTime {
            /// Reads each constant with a function that takes its key and its accepted range.
            pub(super) fn read(mut read: impl FnMut(&'static str, RangeInclusive<u64>) -> Option<At<u64>>) -> Self {
                Self { $($name: read(stringify!($name), $min..=$max),)* }
            }

            /// Returns the written values, with defaults for the others.
            #[must_use]
            pub(super) fn or_default(&self) -> TimeConfig {
                let default = TimeConfig::DEFAULT;
                TimeConfig { $($name: self.$name.as_ref().map_or(default.$name, |at| at.value),)* }
            }
        }
    };
}

constants! {
    quantum, 1_000_000, 50_000_000,
        "Length of a lease; of class `latency`, a quarter of it.";
    in_flight, 100_000, 25_000_000,
        "Most estimated work in flight while a ceiling or a neighbour counts; at most half of `quantum`, which is also the default where that is less than 2ms.";
    handover, 0, 1_000_000,
        "Less than this in flight does not keep the next tenant waiting.";
    drain, 1_000_000, 1_000_000_000,
        "Time beyond one and a half times its estimate after which work in flight no longer keeps the next tenant waiting.";
    stuck, 10_000_000, 60_000_000_000,
        "Longest time that a launch in flight is estimated to take, and that work which never ends delays other members of its own tenant.";
    ageing, 10_000_000, 60_000_000_000,
        "Time after which a class that is passed over gets a lease.";
    alone, 10_000_000, 60_000_000_000,
        "Time alone after which a tenant gets a wider lease, up to 250 ms in flight; with record.exact = false it \
         needs no lease.";
    heartbeat, 1_000_000, 125_000_000,
        "Interval of the daemon's heartbeat; after 250ms without one, members count the daemon as gone. While no member \
         works or waits, it is five times as long, at most 125ms.";
}

/// A member misses at least two beats before it counts the daemon as gone.
const _: () = assert!(2 * 125_000_000 <= vgpu_core::time::config::DAEMON_GONE_NS);
