//! `nvmlInit` and `nvmlShutdown`: counts users, and attaches to the machine.
//!
//! As in the real library, every `nvmlInit` without a device reports that the driver is not loaded, and a
//! shutdown without an init succeeds.

use crate::{
    arguments::{NvmlAnswer, code},
    machine,
};
use parking_lot::Mutex;

static INIT_COUNT: Mutex<u32> = Mutex::new(0);

fn lock_users() -> parking_lot::MutexGuard<'static, u32> {
    INIT_COUNT.lock()
}

/// True while `nvmlInit` succeeded more often than `nvmlShutdown` was called.
pub fn is_initialised() -> bool {
    *lock_users() > 0
}

pub fn nvmlInit_v2() -> NvmlAnswer {
    nvmlInitWithFlags(0)
}

pub fn nvmlInit() -> NvmlAnswer {
    nvmlInitWithFlags(0)
}

/// Flag 1 allows a system without devices, flag 2 skips attaching. Neither has an effect when the driver is
/// loaded.
pub fn nvmlInitWithFlags(_flags: u32) -> NvmlAnswer {
    let mut users = lock_users();
    if *users == 0 && !machine::attach_machine() {
        return Err(code::NO_DRIVER);
    }
    *users += 1;
    Ok(())
}

pub fn nvmlShutdown() -> NvmlAnswer {
    let mut users = lock_users();
    *users = users.saturating_sub(1);
    Ok(())
}
