//! Order of the driver's calls for several processes, and the way back. No IO and no clock.
//!
//! Suspend locks every process before it moves the first one, and resume restores every process before it lets the
//! first one go on. So a refusal always meets processes whose calls wait, and the way back disturbs no program.

use std::time::Duration;

/// The driver's codes that have words of their own.
const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const ILLEGAL_STATE: u32 = 401;
const NOT_READY: u32 = 600;
const NOT_PERMITTED: u32 = 800;
const NOT_SUPPORTED: u32 = 801;

/// The change that the processes undergo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Operation {
    /// Memory goes to the host.
    Suspend,
    /// Memory comes back.
    Resume,
}

impl Operation {
    /// The verb of the command line.
    pub fn to_word(self) -> &'static str {
        match self {
            Self::Suspend => "suspend",
            Self::Resume => "resume",
        }
    }
}

/// State of a process, as the driver numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// Its calls are answered.
    Running,
    /// Its calls wait; its memory is on the device.
    Locked,
    /// Its calls wait; its memory is on the host.
    Checkpointed,
    /// A fault ended it for the driver.
    Failed,
    /// A call of another program moves it at this moment.
    Moving,
}

impl ProcessState {
    /// The state with a number of the driver.
    pub fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Running,
            1 => Self::Locked,
            2 => Self::Checkpointed,
            4 | 5 => Self::Moving,
            _ => Self::Failed,
        }
    }

    /// The state in one word.
    pub fn to_word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Locked => "locked",
            Self::Checkpointed => "checkpointed",
            Self::Failed => "failed",
            Self::Moving => "moving",
        }
    }
}

/// The driver's calls; an error is the driver's code.
pub trait CheckpointDriver {
    /// Returns the state of a process.
    ///
    /// # Errors
    /// The driver's code.
    fn state(&mut self, pid: u32) -> Result<ProcessState, u32>;
    /// Makes the calls of a process wait, and waits until its work has ended, for at most `timeout`.
    ///
    /// # Errors
    /// The driver's code.
    fn lock(&mut self, pid: u32, timeout: Duration) -> Result<(), u32>;
    /// Moves the memory of a locked process to the host.
    ///
    /// # Errors
    /// The driver's code.
    fn checkpoint(&mut self, pid: u32) -> Result<(), u32>;
    /// Moves the memory of a process back; it is locked then.
    ///
    /// # Errors
    /// The driver's code.
    fn restore(&mut self, pid: u32) -> Result<(), u32>;
    /// Lets the calls of a locked process go on.
    ///
    /// # Errors
    /// The driver's code.
    fn unlock(&mut self, pid: u32) -> Result<(), u32>;
}

/// A change that was refused.
#[derive(Debug, PartialEq, Eq)]
pub struct ChangeStopped {
    /// The process, the step and the reason.
    pub words: String,
    /// The processes that could not be led back, in words; empty if everything is as before.
    pub left_between: Vec<String>,
}

fn reason(code: u32) -> String {
    match code {
        INVALID_VALUE => "it uses no GPU, or has ended".into(),
        OUT_OF_MEMORY => "the device has too little free memory for it".into(),
        ILLEGAL_STATE => "another program changes its state at the same time".into(),
        NOT_READY => "its work on the device did not end in time".into(),
        NOT_PERMITTED => "this user may not do that; root may".into(),
        NOT_SUPPORTED => {
            "the driver cannot checkpoint what it holds, such as memory shared with other processes".into()
        }
        code => format!("the driver answers with error {code}"),
    }
}

fn refusal(pid: u32, step: &str, code: u32) -> String {
    format!("process {pid} cannot be {step}: {}", reason(code))
}

/// Returns the processes that `operation` has to change; those that are in its final state already are left out.
///
/// # Errors
/// A process uses no GPU, or is in a state from which the operation does not start.
pub fn select_processes(
    operation: Operation,
    pids: &[u32],
    driver: &mut impl CheckpointDriver,
) -> Result<Vec<u32>, String> {
    let mut to_change = Vec::new();
    for pid in pids {
        let state = driver.state(*pid).map_err(|code| refusal(*pid, &format!("{}d", participle(operation)), code))?;
        match (operation, state) {
            (Operation::Suspend, ProcessState::Checkpointed) | (Operation::Resume, ProcessState::Running) => {}
            (Operation::Suspend, ProcessState::Running)
            | (Operation::Resume, ProcessState::Checkpointed | ProcessState::Locked) => to_change.push(*pid),
            (Operation::Suspend, ProcessState::Locked) => {
                return Err(format!(
                    "process {pid} is locked by another program, or by one that was killed; nothing was changed; if \
                     nobody works on it, `vgpu-checkpoint resume {pid}` unlocks it"
                ));
            }
            (_, state) => return Err(format!("process {pid} is {}; nothing was changed", state.to_word())),
        }
    }
    Ok(to_change)
}

fn participle(operation: Operation) -> &'static str {
    match operation {
        Operation::Suspend => "suspende",
        Operation::Resume => "resume",
    }
}

/// Changes all of `pids`, or leads all of them back. `remaining` is the time that is left for waiting, and `pause`
/// waits a moment before a restore is tried again.
///
/// # Errors
/// A step was refused.
pub fn change_all(
    operation: Operation,
    pids: &[u32],
    driver: &mut impl CheckpointDriver,
    remaining: impl Fn() -> Duration,
    pause: impl Fn(),
) -> Result<(), ChangeStopped> {
    let taken = match operation {
        Operation::Suspend => pids
            .iter()
            .try_for_each(|pid| driver.lock(*pid, remaining()).map_err(|code| refusal(*pid, "locked", code)))
            .and_then(|()| {
                let mut each = pids.iter();
                each.try_for_each(|pid| {
                    driver.checkpoint(*pid).map_err(|code| refusal(*pid, "moved to the host", code))
                })
            }),
        Operation::Resume => {
            pids.iter().try_for_each(|pid| restore_in_time(*pid, driver, &remaining, &pause)).and_then(|()| {
                let mut each = pids.iter();
                each.try_for_each(|pid| driver.unlock(*pid).map_err(|code| refusal(*pid, "unlocked", code)))
            })
        }
    };
    let Err(words) = taken else { return Ok(()) };
    let left_between = settle(operation, pids, driver);
    // With all memory back, the way out of a resume is forward.
    let runs = |driver: &mut _, pid: &u32| CheckpointDriver::state(driver, *pid) == Ok(ProcessState::Running);
    if operation == Operation::Resume && pids.iter().all(|pid| runs(driver, pid)) {
        return Ok(());
    }
    Err(ChangeStopped { words, left_between })
}

/// Restores a process; a process that is only locked has its memory already.
fn restore_in_time(
    pid: u32,
    driver: &mut impl CheckpointDriver,
    remaining: &impl Fn() -> Duration,
    pause: &impl Fn(),
) -> Result<(), String> {
    loop {
        if driver.state(pid) == Ok(ProcessState::Locked) {
            return Ok(());
        }
        match driver.restore(pid) {
            Ok(()) => return Ok(()),
            Err(OUT_OF_MEMORY) if !remaining().is_zero() => pause(),
            Err(code) => return Err(refusal(pid, "moved back to its device", code)),
        }
    }
}

/// Leads processes out of the middle of `operation`. Returns what is still in the middle, in words.
///
/// A suspend goes back. A resume goes forward if every process has its memory, because only calls are missing then,
/// and else back to the host. A process that has ended needs nothing.
pub fn settle(operation: Operation, pids: &[u32], driver: &mut impl CheckpointDriver) -> Vec<String> {
    let states: Vec<(u32, ProcessState)> =
        pids.iter().filter_map(|pid| driver.state(*pid).ok().map(|state| (*pid, state))).collect();
    let is_forward = !states.iter().any(|(_, state)| *state == ProcessState::Checkpointed);
    let mut left = Vec::new();
    for (pid, state) in states {
        let settled = match (operation, state) {
            (Operation::Suspend, ProcessState::Checkpointed) => driver
                .restore(pid)
                .map_err(|code| refusal(pid, "moved back to its device", code))
                .and_then(|()| driver.unlock(pid).map_err(|code| refusal(pid, "unlocked", code))),
            (Operation::Suspend, ProcessState::Locked) => {
                driver.unlock(pid).map_err(|code| refusal(pid, "unlocked", code))
            }
            (Operation::Resume, ProcessState::Locked) if is_forward => {
                driver.unlock(pid).map_err(|code| refusal(pid, "unlocked", code))
            }
            (Operation::Resume, ProcessState::Locked) => {
                driver.checkpoint(pid).map_err(|code| refusal(pid, "moved to the host again", code))
            }
            (_, ProcessState::Moving) => Err(format!("process {pid} is still moving")),
            _ => Ok(()),
        };
        // A process that ended meanwhile is nobody's any more.
        left.extend(settled.err().filter(|_| driver.state(pid).is_ok()));
    }
    left
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
