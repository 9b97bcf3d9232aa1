//! A reading of a tenant's ledgers, which the proof compares with the driver's numbers.

use std::time::Instant;

/// Numbers from a tenant's ledgers on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerReading {
    /// Bytes that count against the limit.
    pub used: u64,
    /// Part of `used` that the programs did not allocate themselves.
    pub overhead: u64,
    /// Bytes that the programs ever requested, modulo 2^64.
    pub claimed: u64,
    /// Start of the oldest of the readings; the numbers are no older than that.
    pub read: Instant,
}
