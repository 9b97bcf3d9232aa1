//! Exported and imported memory of this process's devices, as shares in their ledgers: see
//! [`crate::ledger::held_shares`].

use crate::device::table::{self, Device};
use crate::ledger::held_shares::{self, LocalShare};

/// Moves `bytes` of this process's charge on the device to a new share. `None`: the charge has not moved.
pub fn export_charge(device: &'static Device, identity: u64, bytes: u64) -> Option<LocalShare> {
    if device.has_beside() {
        return None; // it is unknown whether these bytes are in the ledger
    }
    held_shares::begin_share(device.index, device.ledger.membership().ok()?, identity, bytes)
}

/// Holds the share of that identity once more, on whichever device it is and whichever process created it.
pub fn import_share(identity: u64) -> Option<LocalShare> {
    let joined = |device: &'static Device| Some((device.index, device.ledger.membership().ok()?));
    held_shares::hold_share(identity, &mut table::all().filter_map(joined))
}

/// Founds a share on the device for imported memory of that identity, or holds one that another importer has founded
/// meanwhile. `None`: all places for shares are taken.
pub fn hold_or_begin(device: &'static Device, identity: u64) -> Option<LocalShare> {
    held_shares::hold_or_found(device.index, device.ledger.membership().ok(), identity)
}

/// The device, and the bytes still missing from the charge of a share that is to hold `whole`.
pub fn uncharged_part(share: LocalShare, whole: u64) -> Option<(&'static Device, u64)> {
    let (device, lack) = held_shares::lacking_bytes(share, whole)?;
    Some((table::by_index(usize::from(device))?, lack))
}

/// As [`import_share`], with the identity that `descriptor` is marked with.
pub fn import_descriptor(descriptor: i32, identity: u64) -> Option<LocalShare> {
    let share = import_share(identity)?;
    held_shares::watch_descriptor(share, descriptor);
    Some(share)
}
