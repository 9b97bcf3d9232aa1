//! Logs news from the ledgers: refused allocations, and bypasses of the library that programs found.
//!
//! Logs once for each increase, at most once for each reading. The first reading of a ledger sets the baseline for
//! refusals.

use std::collections::BTreeMap;

use tracing::{info, warn};

use super::RoomDevice;
use super::ledgers::HeldMemory;

/// Refusals and bypasses already logged, for each tenant and device.
#[derive(Debug, Default)]
pub struct ToldRefusals(BTreeMap<RoomDevice, (u64, u64)>);

impl ToldRefusals {
    /// Compares with the last counts, and logs every increase. Returns true if a tenant's name is not known yet.
    pub fn tell_new<'n>(
        &mut self,
        held: &BTreeMap<RoomDevice, HeldMemory>,
        name: impl Fn(&RoomDevice) -> Option<&'n str>,
    ) -> bool {
        let mut lacks_name = false;
        for (whose, now) in held {
            let Some(tenant) = name(whose) else {
                lacks_name = true;
                continue;
            };
            let bypasses = now.doors.as_ref().map_or(0, |(count, _)| *count);
            let before = match self.0.get_mut(whose) {
                Some(before) => Some(std::mem::replace(before, (now.refused, bypasses))),
                None => self.0.insert(whose.clone(), (now.refused, bypasses)),
            };
            let (refused_before, bypasses_before) = before.unwrap_or((now.refused, 0));
            let device = &whose.1;
            let refused = now.refused.saturating_sub(refused_before);
            if refused > 0 {
                info!(kind = "memory.refused", tenant, device, refused, "allocations beyond the limit were refused");
            }
            if bypasses > bypasses_before
                && let Some((_, first)) = &now.doors
            {
                warn!(
                    kind = "proof.bypass",
                    tenant,
                    device,
                    bypasses,
                    ?first,
                    "its programs found bypasses of the library; strict = true refuses them"
                );
            }
        }
        self.0.retain(|whose, _| held.contains_key(whose));
        lacks_name
    }
}
