//! Prior usage: device time of members before this daemon started, by the cumulative counters that they send when
//! they join again.
//!
//! A process that only changes its connection brings usage that is already known. So the last known counter of each
//! process is kept. Present members are refreshed at each join, so if there are too many, those that left first are
//! forgotten. Measured time is only shown. The time in which a process held the device goes to the audit, which
//! compares it with the driver's samples. Usage of processes that ended before is not here; only a record has it.

use std::collections::BTreeMap;

use vgpu_core::protocol::page::PAGE_SLOTS;
use vgpu_core::time::arbiter::audit::HeldTime;

/// Processes remembered for each tenant and device: twice as many as can be present.
const MAX_PROCESSES_KEPT: usize = 2 * PAGE_SLOTS;

/// Prior usage that a process itself reports when it joins a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClaimedPast {
    /// Process ID from the kernel, or the process's own if the kernel cannot see it. 0: not known.
    pub process: u32,
    /// Device time that the process measured on the device since it started, in ns. 0: it has just started.
    pub busy: u64,
}

impl ClaimedPast {
    /// Limits the time to that since boot: no process can have worked longer.
    pub fn clamp_to_possible(self, now: u64) -> Self {
        Self { busy: self.busy.min(now), ..self }
    }
}

/// Prior usage of a tenant on a device.
#[derive(Debug, Clone, Default)]
pub struct PriorUsage {
    busy: u64,
    known: BTreeMap<u32, KnownProcess>,
    /// Number of updates so far; serves as the clock for forgetting the process that was seen longest ago.
    looks: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct KnownProcess {
    busy: u64,
    /// Time of the slots that the process left.
    had: HeldTime,
    /// Number of the update that saw the process last.
    seen: u64,
}

impl PriorUsage {
    /// Prior usage, in ns of device time.
    pub fn busy_ns(&self) -> u64 {
        self.busy
    }

    /// Adds a process that joins. Usage that was not known before counts.
    pub fn add_process(&mut self, past: ClaimedPast) {
        if past.busy == 0 {
            // The process ID is used again. The held time stays: the proof compares differences, and another program
            // in the same process must not start below an earlier value.
            self.known.entry(past.process).and_modify(|known| known.busy = 0);
            return;
        }
        let known = self.known.get(&past.process).map_or(0, |known| known.busy);
        self.busy = self.busy.saturating_add(past.busy.saturating_sub(known));
        self.note_measured(past, 0);
    }

    /// Updates a process that joined with this past and has measured `busy` ns since.
    ///
    /// # Cost
    /// If another must be forgotten, looks at all known processes.
    pub fn note_measured(&mut self, past: ClaimedPast, busy: u64) {
        if self.known.len() >= MAX_PROCESSES_KEPT && !self.known.contains_key(&past.process) {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.seen).map(|(process, _)| *process);
            oldest.map(|process| self.known.remove(&process));
        }
        self.looks += 1;
        let known = self.known.entry(past.process).or_default();
        known.busy = past.busy.saturating_add(busy).max(known.busy);
        known.seen = self.looks;
    }

    /// A process left the slot in which it had measured `busy` ns and held the device for `had`.
    pub fn left(&mut self, past: ClaimedPast, busy: u64, had: HeldTime) {
        self.note_measured(past, busy);
        self.known.entry(past.process).and_modify(|known| known.had = known.had.plus(had));
    }

    /// Each process's time on the device in slots that it left.
    pub fn had(&self) -> impl Iterator<Item = (u32, HeldTime)> {
        self.known.iter().filter(|(_, known)| known.had.held > 0).map(|(process, known)| (*process, known.had))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_before_counts_once_however_often_its_process_joins() {
        let mut former = PriorUsage::default();
        let past = |process, busy| ClaimedPast { process, busy };
        former.add_process(past(7, 1_000));
        former.add_process(past(7, 1_000));
        assert_eq!(former.busy_ns(), 1_000);
        // The process measures 500 ns more under this daemon, then connects again: that is not prior usage.
        former.note_measured(past(7, 1_000), 500);
        former.add_process(past(7, 1_500));
        assert_eq!(former.busy_ns(), 1_000);
        // The process measured 200 ns more while it was not connected.
        former.add_process(past(7, 1_700));
        assert_eq!(former.busy_ns(), 1_200);
        former.add_process(past(8, 10));
        assert_eq!(former.busy_ns(), 1_210);
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let mut former = PriorUsage::default();
        let past = |busy| ClaimedPast { process: 7, busy };
        former.add_process(past(1_000));
        former.add_process(past(0));
        former.note_measured(past(0), 30);
        former.add_process(past(50));
        assert_eq!(former.busy_ns(), 1_020);
    }

    #[test]
    fn of_too_many_processes_those_that_are_there_are_not_forgotten_whatever_their_numbers() {
        let mut former = PriorUsage::default();
        let there: Vec<ClaimedPast> = (1..1_000).map(|process| ClaimedPast { process, busy: 1_000 }).collect();
        there.iter().for_each(|past| former.add_process(*past));
        for process in 10_000..15_000 {
            // As at each join: present members are refreshed.
            there.iter().step_by(200).for_each(|past| former.note_measured(*past, 500));
            former.add_process(ClaimedPast { process, busy: 7 });
        }
        let before = former.busy_ns();
        there.iter().step_by(200).for_each(|past| former.add_process(ClaimedPast { busy: 1_500, ..*past }));
        assert_eq!(former.busy_ns(), before, "it was known already");
    }

    #[test]
    fn a_tenant_of_endless_processes_is_remembered_in_so_much_and_no_more() {
        let mut former = PriorUsage::default();
        (0..5_000).for_each(|process| former.note_measured(ClaimedPast { process, busy: 1 }, 0));
        assert_eq!(former.known.len(), MAX_PROCESSES_KEPT);
        assert_eq!(ClaimedPast { process: 1, busy: u64::MAX }.clamp_to_possible(5).busy, 5);
    }
}
