//! The daemon's part of the model: wake-ups by members, ticks, gates. The arbiter makes all decisions.

use crate::world::{Event, LINGER, Member, State, World};
use vgpu_core::time::arbiter::{Gate, MemberPages, MemberUsage, SlotId};

struct PagesOf<'m> {
    members: &'m [Member],
    by_slot: &'m [usize],
    now: u64,
}

impl MemberPages for PagesOf<'_> {
    fn read_usage(&mut self, slot: SlotId) -> MemberUsage {
        self.members[self.by_slot[slot.index()]].guest.usage(self.now)
    }
}

impl World {
    pub(crate) fn ring(&mut self, m: usize) {
        let Some(slot) = self.members[m].slot else { return };
        if !self.daemon_alive || !self.members[m].alive {
            return;
        }
        let usage = self.members[m].guest.usage(self.now);
        let Some(arbiter) = &mut self.arbiter else { return };
        arbiter.apply_report(slot, usage, self.now);
        if usage.wants {
            arbiter.request_launch(slot, self.now);
        }
        self.tick();
    }

    pub(crate) fn tick(&mut self) {
        if !self.daemon_alive || self.now < self.stalled_until {
            return;
        }
        self.ticks += 1;
        let Some(arbiter) = &mut self.arbiter else { return };
        let mut by_slot = vec![usize::MAX; self.members.len()];
        for (at, member) in self.members.iter().enumerate() {
            if let Some(slot) = member.slot.filter(|_| member.alive) {
                by_slot[slot.index()] = at;
            }
        }
        let mut out = std::mem::take(&mut self.out);
        let mut pages = PagesOf { members: &self.members, by_slot: &by_slot, now: self.now };
        arbiter.tick(self.now, &mut pages, &mut out);
        let deadline = arbiter.next_deadline();
        for decision in out.drain(..) {
            if let Some(log) = &mut self.log {
                log.push((self.now, decision));
            }
            self.apply(by_slot[decision.slot.index()], decision.gate);
        }
        self.out = out;
        self.daemon_turn += 1;
        if let Some(deadline) = deadline {
            let late = self.noise.late(self.profile.wake);
            let turn = self.daemon_turn;
            self.at(deadline + late, Event::Daemon(turn));
        }
    }

    pub(crate) fn apply(&mut self, m: usize, gate: Gate) {
        (self.members[m].board, self.members[m].is_lost) = (gate, false);
        self.members[m].guest.set_gate(gate, self.now);
        self.members[m].told = false;
        self.members[m].rung &= matches!(gate, Gate::Wait | Gate::Cap { .. });
        self.members[m].idle_since = None;
        if self.members[m].state == State::Gated {
            let late = self.noise.late(self.profile.wake);
            self.host_at(m, self.now + late);
        }
        if self.watched(m) && self.members[m].guest.keeper.in_flight() > 0 {
            let look = self.members[m].guest.keeper.next_look(self.now);
            self.look_at(m, look);
        } else if self.watched(m) && matches!(gate, Gate::Run { .. }) && !self.members[m].looking {
            self.look_at(m, self.now + 2 * LINGER);
        }
    }

    /// Reads every member's page, as the daemon does before it writes its record.
    pub fn report(&mut self) {
        for m in 0..self.members.len() {
            self.members[m].guest.reap();
            self.ring(m);
        }
    }
}
