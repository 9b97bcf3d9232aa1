//! The end of a record: its charge is released.

use super::allocation_records::AllocationRecord;
use super::{refcounted_charge, slabs};
use crate::device::table;
use crate::ledger::held_shares;
use vgpu_core::memory::charging;

/// Releases an allocation record's charge on its device, or its hold on a share or refcounted charge.
#[inline(always)]
pub fn release_record(holding: AllocationRecord) {
    match (holding.as_slab(), table::by_index(usize::from(holding.device))) {
        (Some((device, slab)), _) => {
            if slabs::leave_slab(slab)
                && let Some(device) = table::by_index(usize::from(device))
            {
                device.release(charging::SLAB_BYTES);
            }
        }
        (None, Some(device)) => device.release(holding.bytes),
        (None, None) => release_hold(holding),
    }
}

#[cold]
fn release_hold(holding: AllocationRecord) {
    holding.as_share().into_iter().for_each(held_shares::let_go);
    holding.as_refcounted().and_then(refcounted_charge::drop_name).into_iter().for_each(release_record);
}
