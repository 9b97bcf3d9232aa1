//! RTLD_NEXT for this library's own lookups and for callers.
//!
//! The loader starts that search after the *caller's* object, so the result depends on the caller; see
//! [`CallerPosition`].

use super::loader::real_dlsym;
use core::ffi::{CStr, c_void};
use shim_sys::elf;

fn our_index() -> usize {
    elf::object_of(our_index as fn() -> usize as usize).map_or(0, |object| object.index)
}

/// The next definition of `name` behind this library in the loader's search order, or null.
pub fn next_after_us(name: &CStr) -> *mut c_void {
    match real_dlsym() {
        // SAFETY: RTLD_NEXT with a C string. This library makes the call, so the search starts behind it.
        Some(dlsym) => core::hint::black_box(unsafe { dlsym(libc::RTLD_NEXT, name.as_ptr()) }),
        None => core::ptr::null_mut(),
    }
}

/// The caller's position relative to this library, as far as the meaning of RTLD_NEXT depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallerPosition {
    /// Before this library: a search from there finds our export without help.
    Before,
    /// Behind this library, at this object index: the program's library, or an interposer of the driver or the
    /// loader.
    Behind(usize),
}

/// Finds the position of the code at address `caller` among the loader's objects.
///
/// # Cost
/// One walk over the objects.
pub fn caller_position(caller: usize) -> CallerPosition {
    let (ours, mut behind) = (our_index as fn() -> usize as usize, false);
    let found = elf::for_each_object(|object| {
        if object.contains_address(caller) {
            return Some(if behind { CallerPosition::Behind(object.index) } else { CallerPosition::Before });
        }
        behind |= object.contains_address(ours);
        None
    });
    found.unwrap_or(CallerPosition::Before) // code generated at run time belongs to no object
}

/// Whether a global search with `handle` by code at `caller` has the same scope as this library's own search. True
/// for a search by the main program or with the main program's handle.
pub fn sees_what_we_see(handle: *mut c_void, caller: usize) -> bool {
    handle != libc::RTLD_DEFAULT || elf::object_of(caller).is_none_or(|object| object.index == 0)
}

/// Whether RTLD_NEXT by code at `caller`, before this library, finds `hook` first.
pub fn meets_hook_first(hook: *mut c_void, caller: usize, name: &CStr) -> bool {
    let from = elf::object_of(caller).map_or(0, |object| object.index);
    elf::function_after(from, name) == Some(hook)
}
