//! The class of a tenant. It is a limit as any other: a variable or the daemon's configuration names it, the
//! scheduler of leases ([`crate::time::arbiter`]) reads it.

/// Priority classes. A class that is passed over for [`TimeConfig::ageing`](crate::time::config::TimeConfig::ageing)
/// gets one lease nevertheless.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Interactive work: its arrival ends a lease of another class at once; its own leases are short.
    Latency,
    /// All other work.
    #[default]
    Normal,
    /// Work that no user waits for.
    Batch,
}

impl Class {
    /// Number of classes.
    pub const COUNT: usize = 3;

    /// Position of the class in the order of leases; `0` is the first.
    #[must_use]
    pub const fn rank(self) -> usize {
        self as usize
    }
}
