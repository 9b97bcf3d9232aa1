//! `nvmlInit` and `nvmlShutdown`: counts users, and attaches to the machine.
//!
//! As in the real library, every `nvmlInit` without a device reports that the driver is not loaded, and a
//! shutdown without an init succeeds.

use crate::{
    door::{Answer, code},
    machine,
};
use parking_lot::Mutex;

static USERS: Mutex<u32> = Mutex::new(0);

fn users() -> parking_lot::MutexGuard<'static, u32> {
    USERS.lock()
}

/// True while `nvmlInit` succeeded more often than `nvmlShutdown` was called.
pub fn initialised() -> bool {
    *users() > 0
}

pub fn nvmlInit_v2() -> Answer {
    nvmlInitWithFlags(0)
}

pub fn nvmlInit() -> Answer {
    nvmlInitWithFlags(0)
}

/// Flag 1 allows a system without devices, flag 2 skips attaching. Neither has an effect when the driver is
/// loaded.
pub fn nvmlInitWithFlags(_flags: u32) -> Answer {
    let mut users = users();
    if *users == 0 && !machine::attach() {
        return Err(code::NO_DRIVER);
    }
    *users += 1;
    Ok(())
}

pub fn nvmlShutdown() -> Answer {
    let mut users = users();
    *users = users.saturating_sub(1);
    Ok(())
}
