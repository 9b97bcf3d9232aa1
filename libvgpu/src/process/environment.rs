//! Reads the environment variables that apply. The process's initial environment decides; later changes by the
//! program can only tighten.
//!
//! The operator sets the initial environment, so a program that clears or changes a variable does not lift its own
//! limits. If the initial environment asks for nothing, a variable that the program adds counts as if it had been
//! there from the start.
//!
//! The kernel shows the initial environment in /proc/self/environ, as it lies in the process's memory when first read
//! here, before the first CUDA or NVML call. That keeps honest programs honest, but does not stop a hostile one.
//! Where the kernel shows nothing (a process that is not dumpable, no /proc), only the current environment counts.
//! Reads take no standard-library lock, which the program's own `setenv` does not take either.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering::*};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use vgpu_core::limits::{LimitError, RawLimits};

/// Beginnings of all variables that ask for a limit.
const LIMIT_PREFIXES: [&[u8]; 8] = [
    b"VGPU_MEMORY_LIMIT",
    b"VGPU_SM_LIMIT",
    b"VGPU_SM_REQUEST",
    b"VGPU_SOCKET=",
    b"CUDA_DEVICE_MEMORY_LIMIT",
    b"CUDA_DEVICE_SM_LIMIT",
    b"NVIDIA_GPU_MEMORY_LIMIT=",
    b"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=",
];
/// The initial environment, entries ended by zero bytes; leaked, null until read.
static START_ENTRIES: AtomicPtr<Vec<u8>> = AtomicPtr::new(core::ptr::null_mut());

/// Whether the initial environment asks for anything: one of the three values below.
static START_DECIDES: AtomicU8 = AtomicU8::new(START_UNREAD);
const START_UNREAD: u8 = 0;
const START_ASKS_NOTHING: u8 = 1;
const START_ASKS_SOMETHING: u8 = 2;

/// A variable: its name and its value.
type NameAndValue = (&'static [u8], &'static [u8]);

fn at_start() -> &'static [u8] {
    // SAFETY: null, or leaked below.
    if let Some(start) = unsafe { START_ENTRIES.load(Acquire).as_ref() } {
        return start;
    }
    let read = Box::into_raw(Box::new(std::fs::read("/proc/self/environ").unwrap_or_default()));
    match START_ENTRIES.compare_exchange(core::ptr::null_mut(), read, AcqRel, Acquire) {
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

/// The limits that apply, as written.
///
/// # Errors
/// [`LimitError`]; the flag is true if the program's own change of a limiting environment caused it.
pub fn read_limits() -> Result<RawLimits, (LimitError, bool)> {
    let decides = start_decides();
    if decides && !is_changed() {
        return read(&mut start()).map_err(|error| (error, false));
    }
    let changed = read(&mut now().chain(start())).map_err(|error| (error, decides));
    if !decides {
        return changed;
    }
    Ok(read(&mut start()).map_err(|error| (error, false))?.tightened_by(changed?))
}

/// Whether this entry of an environment may ask for a limit.
pub fn has_limit_prefix(entry: &[u8]) -> bool {
    LIMIT_PREFIXES.iter().any(|beginning| entry.starts_with(beginning))
}

/// Whether the program added or changed a variable that can tighten. HAMi's other names can only loosen.
fn is_changed() -> bool {
    let tightens = |entry: &&[u8]| entry.starts_with(b"VGPU_") || has_limit_prefix(entry);
    now().filter(tightens).any(|entry| !start().any(|known| known == entry))
}

/// Whether the initial environment asks for anything. A value that is not understood counts as yes, because it leads
/// to an error.
fn start_decides() -> bool {
    if START_DECIDES.load(Relaxed) == START_UNREAD {
        let decides = read(&mut start()).map_or(true, |limits| limits.asks_for_enforcement());
        START_DECIDES.store(if decides { START_ASKS_SOMETHING } else { START_ASKS_NOTHING }, Relaxed);
    }
    START_DECIDES.load(Relaxed) == START_ASKS_SOMETHING
}

/// The value of a variable that could loosen a limit: from the initial environment. If that asks for nothing, a value
/// the program added counts too.
pub fn decisive_variable(name: &str) -> Option<OsString> {
    let later = || if start_decides() { None } else { find(&mut now(), name) };
    find(&mut start(), name).or_else(later).map(|value| OsString::from_vec(value.to_vec()))
}

/// Whether a switch that only tightens is on, initially or now.
pub fn is_on(name: &str) -> bool {
    [find(&mut start(), name), find(&mut now(), name)].contains(&Some(b"1"))
}

/// Some entries of an environment. Not generic: code for each kind of iterator would be most of this file's machine
/// code.
type EntryIterator<'a> = &'a mut dyn Iterator<Item = &'static [u8]>;

fn read(entries: EntryIterator<'_>) -> Result<RawLimits, LimitError> {
    RawLimits::from_vars(entries.filter_map(split_entry))
}

#[inline(never)]
fn find(entries: EntryIterator<'_>, name: &str) -> Option<&'static [u8]> {
    entries.filter_map(split_entry).find(|(n, _)| *n == name.as_bytes()).map(|(_, value)| value)
}

fn split_entry(entry: &'static [u8]) -> Option<NameAndValue> {
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
        // SAFETY: within the list, which is read up to its null.
        let entry = unsafe { *at };
        if entry.is_null() {
            return None;
        }
        // SAFETY: not at the end.
        at = unsafe { at.add(1) };
        // SAFETY: an entry is a C string that is valid until the program replaces it. At initialisation the program
        // takes that risk with any getenv.
        Some(unsafe { CStr::from_ptr(entry) }.to_bytes())
    })
}
