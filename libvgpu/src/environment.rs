//! The environment that counts. The start's decides: what the program changes in it later only tightens.
//!
//! What stood there at the start was put there by whoever runs the program; a program that clears or changes it later
//! does not lift its own limits by that. Where the start asks for nothing, a variable that the program adds counts as if
//! it had been there.
//!
//! The kernel shows the start's environment where it lies in the process's memory, as it is when it is first read here:
//! before the first call of CUDA or NVML. That keeps honest programs honest, not a hostile one. Where nothing is shown (a process that is not dumpable, no /proc) the environment of now counts alone. Read
//! without the standard library's lock, which a program's own `setenv` does not take either.

use crate::asked;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering::*};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use vgpu_core::limits::{LimitError, RawLimits};

/// The environment at the start of the process, entries ended by zero bytes; leaked, null until it was read.
static START: AtomicPtr<Vec<u8>> = AtomicPtr::new(core::ptr::null_mut());

/// Whether the start asks for anything: one of the three below.
static DECIDES: AtomicU8 = AtomicU8::new(UNREAD);
const UNREAD: u8 = 0;
const NOTHING: u8 = 1;
const SOMETHING: u8 = 2;

/// A variable: its name and its value.
type Pair = (&'static [u8], &'static [u8]);

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

/// The limits that count, as written.
///
/// # Errors
/// [`LimitError`], and whether it is the program's own change of an environment that asked for something.
pub fn limits() -> Result<RawLimits, (LimitError, bool)> {
    let decides = decides();
    if decides && !is_changed() {
        return read(&mut start()).map_err(|error| (error, false));
    }
    let changed = read(&mut now().chain(start())).map_err(|error| (error, decides));
    if !decides {
        return changed;
    }
    Ok(read(&mut start()).map_err(|error| (error, false))?.tightened(changed?))
}

/// Whether the program added or changed a variable that can tighten. HAMi's other names can only loosen.
fn is_changed() -> bool {
    let tightens = |entry: &&[u8]| entry.starts_with(b"VGPU_") || asked::begins(entry);
    now().filter(tightens).any(|entry| !start().any(|known| known == entry))
}

/// Whether the start asks for anything. What is not understood will be an error, and asks.
fn decides() -> bool {
    if DECIDES.load(Relaxed) == UNREAD {
        let decides = read(&mut start()).map_or(true, |limits| limits.decides());
        DECIDES.store(if decides { SOMETHING } else { NOTHING }, Relaxed);
    }
    DECIDES.load(Relaxed) == SOMETHING
}

/// The value of a variable that could loosen something: the start's. Where that asks for nothing the program's counts too.
pub fn variable(name: &str) -> Option<OsString> {
    let later = || if decides() { None } else { find(&mut now(), name) };
    find(&mut start(), name).or_else(later).map(|value| OsString::from_vec(value.to_vec()))
}

/// Whether a switch that only tightens is on, at the start or later.
pub fn is_on(name: &str) -> bool {
    [find(&mut start(), name), find(&mut now(), name)].contains(&Some(b"1"))
}

/// Some entries of an environment. Not generic: code for each kind of iterator would be most of this file.
type Entries<'a> = &'a mut dyn Iterator<Item = &'static [u8]>;

fn read(entries: Entries<'_>) -> Result<RawLimits, LimitError> {
    RawLimits::from_vars(entries.filter_map(pair))
}

#[inline(never)]
fn find(entries: Entries<'_>, name: &str) -> Option<&'static [u8]> {
    entries.filter_map(pair).find(|(n, _)| *n == name.as_bytes()).map(|(_, value)| value)
}

fn pair(entry: &'static [u8]) -> Option<Pair> {
    let at = entry.iter().position(|&byte| byte == b'=')?;
    Some((&entry[..at], &entry[at + 1..]))
}

fn start() -> impl Iterator<Item = &'static [u8]> {
    at_start().split(|&byte| byte == 0)
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
