//! `nvmlInit` and `nvmlShutdown`: a count of users, and the attachment to the machine.
//!
//! As the real library does: without a device `nvmlInit` says that the driver is not loaded, every time; shutdown
//! without init succeeds.

use crate::{
    door::{Answer, code},
    machine,
};
use parking_lot::Mutex;

static USERS: Mutex<u32> = Mutex::new(0);

fn users() -> parking_lot::MutexGuard<'static, u32> {
    USERS.lock()
}

/// Whether `nvmlInit` has succeeded more often than `nvmlShutdown` was called.
pub fn initialised() -> bool {
    *users() > 0
}

pub fn nvmlInit_v2() -> Answer {
    nvmlInitWithFlags(0)
}

pub fn nvmlInit() -> Answer {
    nvmlInitWithFlags(0)
}

/// Flag 1 allows no device, flag 2 skips attaching; neither changes anything where the driver is loaded.
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
