//! A tenant's ledgers as the record read them, for the proof, which compares them with the driver's word.

use std::time::Instant;

/// What a tenant's ledgers of a device say, read by the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerWord {
    /// Bytes that count against the limit.
    pub used: u64,
    /// Of them: contexts and code.
    pub overhead: u64,
    /// When that was read.
    pub read: Instant,
    /// Why one of the ledgers, which was read before, cannot be read any more.
    pub broken: Option<&'static str>,
}

/// What a tenant's ledgers of a device said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Bytes that count against the limit.
    pub used: u64,
    /// Of it: not the programs' own.
    pub overhead: u64,
    /// Bytes that programs ever asked for, modulo 2^64.
    pub claimed: u64,
    /// When that was read, at the earliest.
    pub at: Instant,
}
