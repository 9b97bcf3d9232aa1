//! What ledgers say that somebody should know: refused allocations, and ways around the library that programs found.
//!
//! Told once for each growth, and not more often than ledgers are read. A ledger that was there before is where it begins.

use std::collections::BTreeMap;

use tracing::{info, warn};

use super::Whose;
use super::ledgers::Held;

/// What was told of each tenant and device.
#[derive(Debug, Default)]
pub struct Told(BTreeMap<Whose, (u64, u64)>);

impl Told {
    /// Compares with what was there, and tells what is more.
    pub fn hears(&mut self, held: &BTreeMap<Whose, Held>, name: impl Fn(&Whose) -> Option<String>) {
        for (whose, now) in held {
            let Some(tenant) = name(whose) else { continue };
            let doors = now.doors.as_ref().map_or(0, |(count, _)| *count);
            let before = self.0.insert(whose.clone(), (now.refused, doors));
            let (refused_before, doors_before) = before.unwrap_or((now.refused, 0));
            let device = &whose.1;
            let refused = now.refused.saturating_sub(refused_before);
            if refused > 0 {
                info!(kind = "memory.refused", tenant, device, refused, "allocations beyond the limit were refused");
            }
            if doors > doors_before
                && let Some((_, first)) = &now.doors
            {
                warn!(
                    kind = "proof.door",
                    tenant,
                    device,
                    doors,
                    ?first,
                    "its programs found ways around the library; strict = true shuts them"
                );
            }
        }
        self.0.retain(|whose, _| held.contains_key(whose));
    }
}
