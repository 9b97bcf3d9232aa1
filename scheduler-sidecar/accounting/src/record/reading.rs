//! A tenant's ledgers as the record read them, for the proof, which compares them with the driver's word.

use std::time::Instant;

/// What a tenant's ledgers of a device said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerReading {
    /// Bytes that count against the limit.
    pub used: u64,
    /// Of it: not the programs' own.
    pub overhead: u64,
    /// Bytes that programs ever asked for, modulo 2^64.
    pub claimed: u64,
    /// When that was read, at the earliest.
    pub read: Instant,
}
