//! Imported addresses that are open. The driver returns the same address for each open of one import, and counts.

use super::allocation_records::{ADDRESS_RECORDS, AllocationRecord};
use super::release::release_record;
use crate::ffi::lock::Lock;
use crate::ffi::sorted_map::SortedMap;

/// How often each imported address is open: the driver returns the same address again and counts.
static OPEN_IMPORTS: Lock<SortedMap<u64, u32>> = Lock::new(SortedMap::new());

/// Records the address at which an import was opened. Returns a record that is not needed: the new one if the address
/// was already open, or a stale one.
pub fn note_opened(address: u64, holding: AllocationRecord) -> Option<AllocationRecord> {
    let mut all = OPEN_IMPORTS.lock();
    let times = all.or_default(address);
    // A context that ended has closed the addresses opened in it and removed their records.
    if *times > 0 && ADDRESS_RECORDS.get(address).is_some() {
        *times += 1;
        return Some(holding);
    }
    *times = 1;
    ADDRESS_RECORDS.insert_record(address, holding)
}

/// An import that is being closed: [`CloseInProgress::finish`] or [`CloseInProgress::undo`] follows the driver's
/// answer.
#[must_use]
pub struct CloseInProgress {
    address: u64,
    last: Option<AllocationRecord>,
}

/// Counts an import out before the driver closes it, because the address may be given out again right after.
pub fn begin_close(address: u64) -> Option<CloseInProgress> {
    let mut all = OPEN_IMPORTS.lock();
    let times = all.get_mut(&address)?;
    *times -= 1;
    let last = if *times == 0 {
        all.remove(&address);
        ADDRESS_RECORDS.take_record(address)
    } else {
        None
    };
    Some(CloseInProgress { address, last })
}

impl CloseInProgress {
    /// The driver closed it. Returns the record, if this was the last open.
    pub fn finish(self) -> Option<AllocationRecord> {
        self.last
    }

    /// The driver refused to close it.
    pub fn undo(self) {
        let mut all = OPEN_IMPORTS.lock();
        *all.or_default(self.address) += 1;
        // Another thread may have opened the memory meanwhile and stored its own record.
        let spare = self.last.and_then(|holding| ADDRESS_RECORDS.insert_record(self.address, holding));
        drop(all);
        spare.into_iter().for_each(release_record);
    }
}

/// Clears the parent's imports in a forked child.
pub fn reset_after_fork() {
    // SAFETY: called by the child's settling thread, before any other thread continues.
    unsafe { OPEN_IMPORTS.reset(SortedMap::new()) };
}
