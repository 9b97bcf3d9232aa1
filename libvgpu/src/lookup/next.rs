//! RTLD_NEXT, for ourselves and for others.
//!
//! The search starts after the *caller's* object, so who asks decides; see [`Asker`].

use super::loader::real_dlsym;
use core::ffi::{CStr, c_void};
use shim_sys::elf;

fn us() -> usize {
    elf::object_of(us as fn() -> usize as usize).map_or(0, |object| object.index)
}

/// The next definition of `name` behind this library in the loader's search order, or null.
pub fn next_after_us(name: &CStr) -> *mut c_void {
    match real_dlsym() {
        // SAFETY: RTLD_NEXT with a C string; the call is made from this library, so the search starts behind it.
        Some(dlsym) => core::hint::black_box(unsafe { dlsym(libc::RTLD_NEXT, name.as_ptr()) }),
        None => core::ptr::null_mut(),
    }
}

/// Where the caller stands, as far as the meaning of RTLD_NEXT depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asker {
    /// Before us: a search from there meets our export by itself.
    Before,
    /// Behind us, at this place: a program's library, or an interposer of the driver or of the loader.
    Behind(usize),
}

/// Places the code at address `caller` among the loader's objects.
///
/// # Cost
/// One walk over the objects.
pub fn asker(caller: usize) -> Asker {
    let (ours, mut behind) = (us as fn() -> usize as usize, false);
    let found = elf::walk(|object| {
        if object.holds(caller) {
            return Some(if behind { Asker::Behind(object.index) } else { Asker::Before });
        }
        behind |= object.holds(ours);
        None
    });
    found.unwrap_or(Asker::Before) // code made at run time: no object to start behind
}

/// Whether a search of the global scope, asked with `handle` by code at `caller`, sees just what a search of ours sees:
/// one by the main program, or by the main program's handle.
pub fn sees_what_we_see(handle: *mut c_void, caller: usize) -> bool {
    handle != libc::RTLD_DEFAULT || elf::object_of(caller).is_none_or(|object| object.index == 0)
}

/// Whether RTLD_NEXT, asked by code at `caller` before us, meets `hook` first.
pub fn meets(hook: *mut c_void, caller: usize, name: &CStr) -> bool {
    let from = elf::object_of(caller).map_or(0, |object| object.index);
    elf::function_after(from, name) == Some(hook)
}
