//! Checkpoint and restore of processes by pid: the caller or another process on the machine. Only in drivers
//! newer than 535.
//!
//! A step in the wrong state is `ILLEGAL_STATE`, a pid without a process `INVALID_VALUE`. Memory that does not
//! fit at a restore is `OUT_OF_MEMORY`, and the process stays checkpointed. Not supported: shared memory, a
//! restore to other devices, and storage provided by the program.
//! Not here: the memory itself (vgpu-sim's `checkpoint`).

use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use shim_sys::cuda::*;
use std::time::Duration;
use vgpu_sim::checkpoint::CheckpointRefusal;

fn pid_of(pid: i32) -> Result<u32, CUresult> {
    u32::try_from(pid).ok().filter(|p| *p > 0).ok_or(CUresult::INVALID_VALUE)
}

fn refusal_code(r: CheckpointRefusal) -> CUresult {
    match r {
        CheckpointRefusal::Unknown => CUresult::INVALID_VALUE,
        CheckpointRefusal::WrongState => CUresult::ILLEGAL_STATE,
        CheckpointRefusal::NotInTime => CUresult::NOT_READY,
        CheckpointRefusal::Shared => CUresult::NOT_SUPPORTED,
        CheckpointRefusal::Full(_) => CUresult::OUT_OF_MEMORY,
    }
}

/// Optional arguments, all of which must be zero.
fn check_reserved(words: Option<[u64; 8]>) -> CallResult {
    if words.is_some_and(|w| w != [0; 8]) { Err(CUresult::NOT_SUPPORTED) } else { Ok(()) }
}

pub(crate) unsafe fn cuCheckpointProcessGetState(d: &CallFrame, pid: i32, state: *mut u32) -> CallResult {
    let found = d.initialised_driver()?.devices.machine.checkpoint_state(pid_of(pid)?).map_err(refusal_code)?;
    unsafe { write_output(state, found) }
}

/// The restoring thread is the process's main thread.
pub(crate) unsafe fn cuCheckpointProcessGetRestoreThreadId(d: &CallFrame, pid: i32, tid: *mut i32) -> CallResult {
    d.initialised_driver()?.devices.machine.checkpoint_state(pid_of(pid)?).map_err(refusal_code)?;
    unsafe { write_output(tid, pid) }
}

pub(crate) unsafe fn cuCheckpointProcessLock(d: &CallFrame, pid: i32, args: *mut CUcheckpointLockArgs) -> CallResult {
    let words = unsafe { args.as_ref() }.map_or([0; 8], |a| a.words);
    // The timeout in ms, and words that must be zero.
    let limit = words[0] & 0xFFFF_FFFF;
    if words[0] != limit || words[1..] != [0; 7] {
        return Err(CUresult::INVALID_VALUE);
    }
    let limit = (limit > 0).then(|| Duration::from_millis(limit));
    d.initialised_driver()?.devices.machine.checkpoint_lock(pid_of(pid)?, limit).map_err(refusal_code)
}

pub(crate) unsafe fn cuCheckpointProcessCheckpoint(
    d: &CallFrame,
    pid: i32,
    args: *mut CUcheckpointCheckpointArgs,
) -> CallResult {
    check_reserved(unsafe { args.as_ref() }.map(|a| a.words))?;
    d.initialised_driver()?.devices.machine.checkpoint_process(pid_of(pid)?).map_err(refusal_code)
}

pub(crate) unsafe fn cuCheckpointProcessRestore(
    d: &CallFrame,
    pid: i32,
    args: *mut CUcheckpointRestoreArgs,
) -> CallResult {
    check_reserved(unsafe { args.as_ref() }.map(|a| a.words))?;
    d.initialised_driver()?.devices.machine.checkpoint_restore(pid_of(pid)?).map_err(refusal_code)
}

pub(crate) unsafe fn cuCheckpointProcessUnlock(
    d: &CallFrame,
    pid: i32,
    args: *mut CUcheckpointUnlockArgs,
) -> CallResult {
    check_reserved(unsafe { args.as_ref() }.map(|a| a.words))?;
    d.initialised_driver()?.devices.machine.checkpoint_unlock(pid_of(pid)?).map_err(refusal_code)
}
