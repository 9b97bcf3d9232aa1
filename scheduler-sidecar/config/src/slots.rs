//! A file that is read again with another number of slots (`replicas`): the slots that change now, and those that wait.
//!
//! A slot with members keeps its memory limit and its floor until its last member has left, whether the file has it or
//! not. A free slot appears, changes or goes at once, as far as it fits next to the kept ones. Pure functions; the
//! daemon asks again when a tenant's last member has left.

use super::live::{check_tenant_fits, find_misfits};
use super::plan::{DevicePlan, TenantPlan};

/// Number of slots of a kept tenant, if the number that it was made for is not known.
const UNKNOWN_REPLICAS: u32 = 0;

/// The tenants that can be served now, and what is still to come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SettledSlots {
    /// Tenants in the order of the file.
    pub tenants: Vec<TenantPlan>,
    /// A sentence for each slot that is not yet as the file says.
    pub notes: Vec<String>,
}

/// A slot whose number or size the file changes.
enum SlotState {
    /// It has members, and keeps these terms.
    Kept(TenantPlan),
    /// It is there without members, with these terms.
    Free(TenantPlan),
    /// It is not there.
    New,
}

/// Returns the tenants to serve now. `wanted` are all tenants of the file and of commands, `before` those in force, and
/// `busy` the terms in force of all tenants with members, removed ones too.
///
/// # Errors
/// A message: another tenant of the file does not fit next to the slots that keep their terms.
pub fn settle_slots(
    devices: &[DevicePlan],
    wanted: &[TenantPlan],
    before: &[TenantPlan],
    busy: &[TenantPlan],
) -> Result<SettledSlots, String> {
    let find = |tenants: &[TenantPlan], name: &str| tenants.iter().find(|tenant| tenant.name == name).cloned();
    let leaving: Vec<TenantPlan> = busy.iter().filter(|tenant| find(wanted, &tenant.name).is_none()).cloned().collect();
    let states: Vec<Option<SlotState>> = wanted
        .iter()
        .map(|slot| {
            slot.replicas?;
            let was = find(before, &slot.name);
            let members = find(busy, &slot.name);
            match (was, members) {
                (Some(was), _) if was.replicas == slot.replicas => None,
                (was, Some(members)) => Some(SlotState::Kept(keep_terms(slot, &members, was.as_ref()))),
                (Some(was), None) => Some(SlotState::Free(keep_terms(slot, &was, Some(&was)))),
                (None, None) => Some(SlotState::New),
            }
        })
        .collect();
    // The slots that are there begin with their terms of before. Those that only shrink fit in any case.
    let there = wanted.iter().zip(&states).filter_map(|(slot, state)| match state {
        Some(SlotState::Kept(kept)) if is_within(slot, kept) && is_within(kept, slot) => Some(slot.clone()),
        Some(SlotState::Kept(kept)) => Some(kept.clone()),
        Some(SlotState::Free(was)) if !is_within(slot, was) => Some(was.clone()),
        Some(SlotState::New) => None,
        Some(SlotState::Free(_)) | None => Some(slot.clone()),
    });
    let mut now: Vec<TenantPlan> = there.collect();
    let is_slot = |tenant: &&TenantPlan| find(before, &tenant.name).is_some_and(|was| was.replicas.is_some());
    let leaving_slots = leaving.iter().filter(is_slot).cloned();
    if states.iter().any(|state| matches!(state, Some(SlotState::Kept(_)))) || leaving.iter().any(|slot| is_slot(&slot))
    {
        let promised: Vec<TenantPlan> = now.iter().cloned().chain(leaving_slots).collect();
        let misfits = find_misfits(devices, &promised);
        if !misfits.is_empty() {
            let why = misfits.join("; and ");
            return Err(format!("slots keep their terms until their last members have left: {why}"));
        }
    }
    let mut notes = Vec::new();
    for (slot, state) in wanted.iter().zip(&states) {
        let index = now.iter().position(|tenant| tenant.name == slot.name);
        match state {
            Some(SlotState::Kept(kept)) if index.is_some_and(|at| now[at] == *kept) => notes.push(format!(
                "tenant {} keeps its memory limit and its floor until its last member has left; then the file decides",
                slot.name
            )),
            Some(SlotState::Free(_) | SlotState::New) if index.is_none_or(|at| now[at] != *slot) => {
                let others: Vec<TenantPlan> = now.iter().chain(&leaving).cloned().collect();
                match (check_tenant_fits(devices, &others, slot), index) {
                    (Ok(()), Some(at)) => now[at] = slot.clone(),
                    (Ok(()), None) => now.push(slot.clone()),
                    (Err(_), Some(_)) => notes.push(format!(
                        "tenant {} is smaller than the file says; it grows when members of other slots have left",
                        slot.name
                    )),
                    (Err(_), None) => notes.push(format!(
                        "tenant {} does not fit yet; it is served when members of other slots have left",
                        slot.name
                    )),
                }
            }
            _ => {}
        }
    }
    let place = |tenant: &TenantPlan| wanted.iter().position(|slot| slot.name == tenant.name);
    now.sort_by_key(place);
    Ok(SettledSlots { tenants: now, notes })
}

/// Returns the slot of the file with the memory limits and floors that it had.
fn keep_terms(slot: &TenantPlan, had: &TenantPlan, was: Option<&TenantPlan>) -> TenantPlan {
    let mut kept = slot.clone();
    for terms in &mut kept.terms {
        if let Some(had) = had.terms.iter().find(|had| had.device == terms.device) {
            (terms.memory, terms.floor) = (had.memory, had.floor);
        }
    }
    kept.replicas = Some(was.and_then(|was| was.replicas).unwrap_or(UNKNOWN_REPLICAS));
    kept
}

/// Returns true if no memory limit and no floor of `slot` is above that of `other`.
fn is_within(slot: &TenantPlan, other: &TenantPlan) -> bool {
    slot.terms.iter().all(|terms| {
        let Some(other) = other.terms.iter().find(|other| other.device == terms.device) else { return false };
        let is_memory_within = other.memory.is_none_or(|most| terms.memory.is_some_and(|memory| memory <= most));
        is_memory_within && terms.floor <= other.floor
    })
}
