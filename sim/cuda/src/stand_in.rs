//! Lets a test library replace one of the driver's functions, for tests that need a slow or an observed driver.
//!
//! A preloaded library exports `void *vgpu_sim_stand_in(const char *name, void *function)`. It returns the
//! function to call instead of `function`, or null. The replacement may call `function`, which then works as
//! usual. No hook is involved: the replacement acts as a part of the driver.

use core::cell::Cell;
use core::ffi::{CStr, c_char, c_void};
use core::ptr::NonNull;
use std::sync::OnceLock;

type StandInLookup = unsafe extern "C" fn(*const c_char, *const c_void) -> *mut c_void;

thread_local!(
    /// True while this thread is in a function of the test library.
    static INSIDE_STAND_IN: Cell<bool> = const { Cell::new(false) };
);

/// Function that replaces one export in this process.
pub(crate) struct StandIn(OnceLock<Option<StandInFunction>>);

#[derive(Clone, Copy)]
struct StandInFunction(NonNull<c_void>);

// SAFETY: the address of a function; never dereferenced as data.
unsafe impl Send for StandInFunction {}
// SAFETY: as above.
unsafe impl Sync for StandInFunction {}

/// Marks a call of the replacement; dropping it ends that call.
pub(crate) struct StandInCall(());

impl Drop for StandInCall {
    fn drop(&mut self) {
        INSIDE_STAND_IN.set(false);
    }
}

impl StandIn {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// The function to call instead of `function`, the export `name`; `None` inside a replacement or without one.
    pub(crate) fn enter_stand_in(&self, name: &CStr, function: *const c_void) -> Option<(*const c_void, StandInCall)> {
        let found = self.0.get_or_init(|| {
            // SAFETY: a C string.
            let ask = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"vgpu_sim_stand_in".as_ptr()) };
            // SAFETY: null (None), or the test library's function of that name.
            let ask = unsafe { core::mem::transmute::<*mut c_void, Option<StandInLookup>>(ask) }?;
            // SAFETY: as the test library promises.
            NonNull::new(unsafe { ask(name.as_ptr(), function) }).map(StandInFunction)
        });
        let found = (*found)?;
        (!INSIDE_STAND_IN.replace(true)).then(|| (found.0.as_ptr().cast_const(), StandInCall(())))
    }
}
