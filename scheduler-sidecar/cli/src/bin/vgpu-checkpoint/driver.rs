//! The driver's checkpoint calls, looked up by name, because older drivers lack them.

#![allow(unsafe_code)]

use core::ffi::c_int;
use std::time::Duration;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use shim_sys::cuda::{
    CUcheckpointCheckpointArgs, CUcheckpointLockArgs, CUcheckpointRestoreArgs, CUcheckpointUnlockArgs, CUresult,
};
use vgpu_cli::checkpoint::steps::{CheckpointDriver, ProcessState};
use vgpu_output::say::{EXIT_UNKNOWN, Failure};

const DRIVER: &str = "libcuda.so.1";

type InitFn = unsafe extern "C" fn(u32) -> CUresult;
type StateFn = unsafe extern "C" fn(c_int, *mut u32) -> CUresult;
/// The four steps differ in the type of their optional arguments only.
type StepFn<Arguments> = unsafe extern "C" fn(c_int, *mut Arguments) -> CUresult;

/// The functions of a driver that is loaded and initialised.
#[derive(Debug)]
pub struct LoadedDriver {
    state: StateFn,
    lock: StepFn<CUcheckpointLockArgs>,
    checkpoint: StepFn<CUcheckpointCheckpointArgs>,
    restore: StepFn<CUcheckpointRestoreArgs>,
    unlock: StepFn<CUcheckpointUnlockArgs>,
    /// Keeps the functions mapped.
    _library: Library,
}

/// Looks up a function of the driver.
fn find<T: Copy>(library: &Library, name: &str) -> Result<T, Failure> {
    let too_old =
        |_| Failure::new(EXIT_UNKNOWN, format!("{DRIVER} has no {name}: checkpoints need driver 570 or newer"));
    // SAFETY: each caller names a function together with the signature that the driver's documentation gives it.
    unsafe { library.get::<T>(name.as_bytes()) }.map(|symbol| *symbol).map_err(too_old)
}

impl LoadedDriver {
    /// Loads and initialises the driver. No context is made, so nothing is taken on a device.
    ///
    /// # Errors
    /// There is no driver, it is too old, or it finds no device.
    pub fn load() -> Result<Self, Failure> {
        // SAFETY: the driver's own library, as every program opens it.
        let library = unsafe { Library::open(Some(DRIVER), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|why| Failure::new(EXIT_UNKNOWN, format!("there is no driver of CUDA: {why}")))?;
        let driver = Self {
            state: find(&library, "cuCheckpointProcessGetState")?,
            lock: find(&library, "cuCheckpointProcessLock")?,
            checkpoint: find(&library, "cuCheckpointProcessCheckpoint")?,
            restore: find(&library, "cuCheckpointProcessRestore")?,
            unlock: find(&library, "cuCheckpointProcessUnlock")?,
            _library: library,
        };
        let init: InitFn = find(&driver._library, "cuInit")?;
        // SAFETY: as its documentation says; flags are zero.
        match unsafe { init(0) } {
            CUresult::SUCCESS => Ok(driver),
            why => Err(Failure::new(EXIT_UNKNOWN, format!("the driver of CUDA does not start: error {}", why.0))),
        }
    }
}

fn number(pid: u32) -> c_int {
    c_int::try_from(pid).unwrap_or(c_int::MAX)
}

fn check(code: CUresult) -> Result<(), u32> {
    if code == CUresult::SUCCESS { Ok(()) } else { Err(code.0) }
}

impl CheckpointDriver for LoadedDriver {
    fn state(&mut self, pid: u32) -> Result<ProcessState, u32> {
        let mut state = 0;
        // SAFETY: `state` outlives the call.
        check(unsafe { (self.state)(number(pid), &mut state) })?;
        Ok(ProcessState::from_number(state))
    }

    fn lock(&mut self, pid: u32, timeout: Duration) -> Result<(), u32> {
        // 0 would be no limit.
        let milliseconds = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1);
        let mut arguments = CUcheckpointLockArgs::default();
        arguments.words[0] = u64::from(milliseconds);
        // SAFETY: `arguments` has the documented layout and outlives the call.
        check(unsafe { (self.lock)(number(pid), &mut arguments) })
    }

    fn checkpoint(&mut self, pid: u32) -> Result<(), u32> {
        let mut arguments = CUcheckpointCheckpointArgs::default();
        // SAFETY: as above.
        check(unsafe { (self.checkpoint)(number(pid), &mut arguments) })
    }

    fn restore(&mut self, pid: u32) -> Result<(), u32> {
        let mut arguments = CUcheckpointRestoreArgs::default();
        // SAFETY: as above.
        check(unsafe { (self.restore)(number(pid), &mut arguments) })
    }

    fn unlock(&mut self, pid: u32) -> Result<(), u32> {
        let mut arguments = CUcheckpointUnlockArgs::default();
        // SAFETY: as above.
        check(unsafe { (self.unlock)(number(pid), &mut arguments) })
    }
}
