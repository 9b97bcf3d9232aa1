//! The environment that counts: as the process was started with it, then as the program changed it.
//!
//! What stood there at the start was put there by whoever runs the program; a program that clears or changes it later
//! does not lift its own limits by that. (The kernel shows the start's environment where it lies in the process's
//! memory: that keeps honest programs honest, not a hostile one.) Read without the standard library's lock, which a
//! program's own `setenv` does not take either.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, Ordering::*};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// The environment at the start of the process, entries ended by zero bytes; leaked, null until it was read.
static START: AtomicPtr<Vec<u8>> = AtomicPtr::new(core::ptr::null_mut());

fn at_start() -> &'static [u8] {
    // SAFETY: null, or leaked below.
    if let Some(start) = unsafe { START.load(Acquire).as_ref() } {
        return start;
    }
    let read = Box::into_raw(Box::new(std::fs::read("/proc/self/environ").unwrap_or_default()));
    match START.compare_exchange(core::ptr::null_mut(), read, AcqRel, Acquire) {
        // SAFETY: leaked from here on.
        Ok(_) => unsafe { &*read },
        Err(theirs) => {
            // SAFETY: ours alone; theirs is leaked.
            unsafe {
                drop(Box::from_raw(read));
                &*theirs
            }
        }
    }
}

/// The value of a variable.
pub fn variable(name: &str) -> Option<OsString> {
    variables().find(|(n, _)| *n == name.as_bytes()).map(|(_, value)| OsString::from_vec(value.to_vec()))
}

/// All variables, as (name, value); of a name that occurs twice the first counts.
pub fn variables() -> impl Iterator<Item = (&'static [u8], &'static [u8])> {
    at_start().split(|&byte| byte == 0).chain(now()).filter_map(|entry| {
        let at = entry.iter().position(|&byte| byte == b'=')?;
        Some((&entry[..at], &entry[at + 1..]))
    })
}

/// The C library's environment, entry by entry, as it is now.
pub fn now() -> impl Iterator<Item = &'static [u8]> {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: a null-ended list of C strings, or null.
    let mut at = unsafe { environ };
    core::iter::from_fn(move || {
        if at.is_null() {
            return None;
        }
        // SAFETY: within the list; it is read up to its null.
        let entry = unsafe { *at };
        if entry.is_null() {
            return None;
        }
        // SAFETY: not at the end.
        at = unsafe { at.add(1) };
        // SAFETY: an entry is a C string that lives as long as nobody replaces it, which at initialisation is the
        // program's own risk with any getenv.
        Some(unsafe { CStr::from_ptr(entry) }.to_bytes())
    })
}
