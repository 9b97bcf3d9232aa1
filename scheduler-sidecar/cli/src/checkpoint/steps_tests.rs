//! Tests of the order of the driver's calls, on a driver in memory.

use super::*;
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeMap;

/// A driver with a device of `room` units, of which each process holds one.
#[derive(Clone, Debug, Default)]
struct Memory {
    states: BTreeMap<u32, ProcessState>,
    room: usize,
    /// Calls until one is refused, and its code; the processes of all others behave.
    refuse: Option<(usize, u32)>,
    calls: usize,
}

impl Memory {
    fn with(pids: &[u32], state: ProcessState) -> Self {
        Self { states: pids.iter().map(|pid| (*pid, state)).collect(), room: usize::MAX, ..Self::default() }
    }

    fn step(&mut self, pid: u32, from: ProcessState, to: ProcessState) -> Result<(), u32> {
        self.calls += 1;
        if let Some((at, code)) = self.refuse
            && self.calls == at
        {
            return Err(code);
        }
        let state = self.states.get(&pid).copied().ok_or(INVALID_VALUE)?;
        if state != from {
            return Err(ILLEGAL_STATE);
        }
        let held = self.states.values().filter(|state| **state != ProcessState::Checkpointed).count();
        if from == ProcessState::Checkpointed && held >= self.room {
            return Err(OUT_OF_MEMORY);
        }
        self.states.insert(pid, to);
        Ok(())
    }
}

impl CheckpointDriver for Memory {
    fn state(&mut self, pid: u32) -> Result<ProcessState, u32> {
        self.states.get(&pid).copied().ok_or(INVALID_VALUE)
    }
    fn lock(&mut self, pid: u32, _: Duration) -> Result<(), u32> {
        self.step(pid, ProcessState::Running, ProcessState::Locked)
    }
    fn checkpoint(&mut self, pid: u32) -> Result<(), u32> {
        self.step(pid, ProcessState::Locked, ProcessState::Checkpointed)
    }
    fn restore(&mut self, pid: u32) -> Result<(), u32> {
        self.step(pid, ProcessState::Checkpointed, ProcessState::Locked)
    }
    fn unlock(&mut self, pid: u32) -> Result<(), u32> {
        self.step(pid, ProcessState::Locked, ProcessState::Running)
    }
}

fn change(operation: Operation, driver: &mut Memory, pids: &[u32]) -> Result<(), ChangeStopped> {
    change_all(operation, pids, driver, || Duration::ZERO, || {})
}

proptest! {
    /// If any one call is refused, all processes change or none.
    #[test]
    fn all_processes_change_or_none(count in 1_u32..6, at in 1_usize..16, resume: bool) {
        let pids: Vec<u32> = (1..=count).collect();
        let (operation, from, to) = if resume {
            (Operation::Resume, ProcessState::Checkpointed, ProcessState::Running)
        } else {
            (Operation::Suspend, ProcessState::Running, ProcessState::Checkpointed)
        };
        let mut driver = Memory { refuse: Some((at, NOT_SUPPORTED)), ..Memory::with(&pids, from) };
        let changed = change(operation, &mut driver, &pids);
        let end = if changed.is_ok() { to } else { from };
        prop_assert!(driver.states.values().all(|state| *state == end), "{:?} {changed:?}", driver.states);
        if let Err(stopped) = changed {
            prop_assert_eq!(stopped.left_between, Vec::<String>::new());
        }
    }

    /// A program that is killed before any of its calls leaves nothing that its guard does not settle.
    #[test]
    fn a_guard_settles_whatever_a_killed_program_left(count in 1_u32..6, killed in 0_usize..12, resume: bool) {
        let pids: Vec<u32> = (1..=count).collect();
        let (operation, from) = if resume {
            (Operation::Resume, ProcessState::Checkpointed)
        } else {
            (Operation::Suspend, ProcessState::Running)
        };
        let mut driver = Memory::with(&pids, from);
        let calls = usize::try_from(2 * count).unwrap();
        for call in 0..killed.min(calls) {
            let pid = pids[call % pids.len()];
            let second = call >= pids.len();
            let done = match (operation, second) {
                (Operation::Suspend, false) => driver.lock(pid, Duration::ZERO),
                (Operation::Suspend, true) => driver.checkpoint(pid),
                (Operation::Resume, false) => driver.restore(pid),
                (Operation::Resume, true) => driver.unlock(pid),
            };
            prop_assert_eq!(done, Ok(()));
        }
        prop_assert_eq!(settle(operation, &pids, &mut driver), Vec::<String>::new());
        let states: Vec<ProcessState> = driver.states.values().copied().collect();
        prop_assert!(states.iter().all(|state| *state == states[0] && *state != ProcessState::Locked), "{:?}", states);
        if !resume {
            prop_assert_eq!(states[0], ProcessState::Running);
        }
    }
}

#[test]
fn memory_that_does_not_fit_is_waited_for_as_long_as_was_asked() {
    let pids = [1, 2];
    let mut driver = Memory { room: 1, ..Memory::with(&pids, ProcessState::Checkpointed) };
    let stopped = change(Operation::Resume, &mut driver, &pids).unwrap_err();
    assert!(stopped.words.contains("process 2 cannot be moved back to its device: the device has too little"));
    assert_eq!(driver.states, Memory::with(&pids, ProcessState::Checkpointed).states, "the first one went back");
    let tries = Cell::new(0_u64);
    let remaining = || Duration::from_secs(3_u64.saturating_sub(tries.get()));
    let waited = change_all(Operation::Resume, &pids, &mut driver, remaining, || tries.set(tries.get() + 1));
    assert_eq!((waited.is_err(), tries.get()), (true, 3));
}

#[test]
fn what_is_in_its_final_state_is_left_alone_and_what_another_holds_is_refused() {
    let mut driver = Memory::with(&[1, 2], ProcessState::Running);
    driver.states.insert(2, ProcessState::Checkpointed);
    assert_eq!(select_processes(Operation::Suspend, &[1, 2], &mut driver), Ok(vec![1]));
    assert_eq!(select_processes(Operation::Resume, &[1, 2], &mut driver), Ok(vec![2]));
    let unknown = select_processes(Operation::Suspend, &[1, 9], &mut driver).unwrap_err();
    assert_eq!(unknown, "process 9 cannot be suspended: it uses no GPU, or has ended");
    driver.states.insert(1, ProcessState::Locked);
    assert!(select_processes(Operation::Suspend, &[1], &mut driver).unwrap_err().contains("is locked by another"));
    assert_eq!(select_processes(Operation::Resume, &[1], &mut driver), Ok(vec![1]), "left by a killed program");
    assert_eq!(change(Operation::Resume, &mut driver, &[1]), Ok(()));
    assert_eq!(driver.states[&1], ProcessState::Running);
}
