//! The arbiter's access to the pages: it writes changed gates before it reads a report again, so no launch in between
//! is missed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use shim_sys::futex;
use vgpu_core::protocol::page::{BoardPage, BoardSlot, ReportPage, Reports};
use vgpu_core::time::arbiter::{self, Decision, Gate, MemberUsage, SlotId};

use super::{MemberSlot, TenantState};

pub(super) struct BoardWriter<'l, B, R> {
    pub reports: &'l mut Reports<R>,
    pub houses: &'l mut BTreeMap<arbiter::TenantId, TenantState<B, R>>,
    pub stirred: &'l mut BTreeSet<arbiter::TenantId>,
    pub places: &'l [Option<MemberSlot>],
    pub now: u64,
}

impl<B: Deref<Target = BoardPage>, R: Deref<Target = ReportPage>> arbiter::MemberPages for BoardWriter<'_, B, R> {
    fn tell_decisions(&mut self, decisions: &[Decision]) {
        for decision in decisions {
            self.apply_decision(decision);
        }
    }

    fn read_usage(&mut self, slot: SlotId) -> MemberUsage {
        self.reports.read_usage(slot)
    }
}

impl<B: Deref<Target = BoardPage>, R> BoardWriter<'_, B, R> {
    fn apply_decision(&mut self, decision: &Decision) {
        let Some(Some(MemberSlot { tenant, index })) = self.places.get(decision.slot.index()) else { return };
        let Some(house) = self.houses.get_mut(tenant) else { return };
        self.stirred.insert(*tenant);
        let times = house.times.entry(decision.device).or_default();
        let Some(pages) = house.pages.as_mut() else { return };
        if let Some(slot) = pages.board.slots.get(*index) {
            slot.change_gate(&decision.gate);
            wake_sleepers(slot);
        }
        let Some(Some(slot)) = pages.slots.get_mut(*index) else { return };
        let held = lets_launch(&slot.gate);
        slot.gate = decision.gate;
        if lets_launch(&decision.gate) {
            slot.granted = self.now;
            let asked = slot.stands.take();
            slot.waited += asked.map_or(0, |since| self.now.saturating_sub(since));
            if !held {
                times.note_grant(asked, self.now);
            }
        } else if held {
            times.note_end(self.now);
        }
    }
}

/// True if the gate lets its member launch.
pub(super) fn lets_launch(gate: &Gate) -> bool {
    matches!(gate, Gate::Run { .. } | Gate::Open)
}

/// Wakes the threads that sleep on a slot.
///
/// # Cost
/// One system call.
pub(super) fn wake_sleepers(slot: &BoardSlot) {
    futex::wake(slot.futex_word(), u32::MAX);
}
