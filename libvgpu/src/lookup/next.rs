//! RTLD_NEXT, for ourselves and for others.
//!
//! The search starts after the *caller's* object, so who asks decides; see [`Asker`].

use super::loader::real_dlsym;
use super::substitute;
use core::ffi::{CStr, c_void};
use shim_sys::elf;

fn us() -> usize {
    elf::object_of(us as fn() -> usize as usize).map_or(0, |object| object.index)
}

/// Whether an object stands behind this library in the loader's order.
pub fn is_behind_us(object: elf::Object) -> bool {
    object.index > us()
}

/// The next definition of `name` behind this library in the loader's search order, or null.
pub fn next_after_us(name: &CStr) -> *mut c_void {
    match real_dlsym() {
        // SAFETY: RTLD_NEXT with a C string; the call is made from this library, so the search starts behind it.
        Some(dlsym) => core::hint::black_box(unsafe { dlsym(libc::RTLD_NEXT, name.as_ptr()) }),
        None => core::ptr::null_mut(),
    }
}

/// Who asks, as far as the answer depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asker {
    /// The library itself whose function is asked for, wherever it stands.
    Library,
    /// Stands before us: a search from there meets our export by itself.
    Before,
    /// Stands behind us and defines the function itself: an interposer that we call, or that is called past us. It must
    /// get what it asks for, or it would call us again.
    Interposer,
    /// Stands behind us at this place: a program or library that looks up the driver.
    Behind(usize),
}

/// Places the code at address `caller` among the loader's objects, where function `name` is asked for, which belongs to
/// `library` if that is one of the two we hook.
///
/// # Cost
/// One walk over the objects.
pub fn asker(caller: usize, name: &CStr, library: Option<&CStr>) -> Asker {
    let (ours, mut behind) = (us as fn() -> usize as usize, false);
    let found = elf::walk(|object| {
        if object.holds(caller) {
            return Some(match behind {
                _ if library.is_some_and(|soname| object.has_soname(soname)) => Asker::Library,
                false => Asker::Before,
                true if object.function(name).is_some() => Asker::Interposer,
                true => Asker::Behind(object.index),
            });
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

/// The hook that RTLD_NEXT must answer to an object at place `index`; `None`: the loader's own answer is right.
pub fn hook_behind(index: usize, name: &CStr) -> Option<*mut c_void> {
    let found = elf::function_after(index, name)?;
    let hook = substitute(found);
    (hook != found).then_some(hook)
}
