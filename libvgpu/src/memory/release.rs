//! The end of a record: its charge is released.

use super::allocation_records::{AllocationRecord, RecordedCharge};
use super::{refcounted_charge, slabs};
use crate::device::table;
use crate::ledger::held_shares;
use vgpu_core::memory::charging;

/// Releases an allocation record's charge on its device, or its hold on a share or refcounted charge.
#[inline(always)]
pub fn release_record(holding: AllocationRecord) {
    match holding.charge {
        RecordedCharge::Own { bytes, device } => {
            if let Some(device) = table::by_index(usize::from(device)) {
                device.release(bytes);
            }
        }
        other => release_hold(other),
    }
}

fn release_hold(charge: RecordedCharge) {
    match charge {
        RecordedCharge::InSlab { slab, device } => {
            if slabs::leave_slab(slab)
                && let Some(device) = table::by_index(usize::from(device))
            {
                device.release(charging::SLAB_BYTES);
            }
        }
        RecordedCharge::Share(share) => held_shares::let_go(share),
        RecordedCharge::Refcounted(number) => {
            refcounted_charge::drop_name(number).into_iter().for_each(release_record);
        }
        RecordedCharge::Own { .. } => {}
    }
}
