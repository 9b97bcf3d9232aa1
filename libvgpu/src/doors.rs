//! Open doors: ways to the driver around the hooks. They are counted, told once, and shut where that was asked for.
//!
//! The driver chooses and we substitute what we know; a newer driver may have a variant of a charging function that the
//! table does not know. A second copy of the driver, another namespace of the loader and a library that binds to its
//! own dependencies first (RTLD_DEEPBIND) are others. A door counts only where limits are asked for; names that neither
//! charge nor launch never count. `VGPU_STRICT=1` shuts those that can be shut: such a lookup finds nothing; what
//! is shut is said too, and not counted.
//!
//! Not here: where the doors are met (`lookup`, `hooks/entry`).

use crate::driver::CUDA;

use crate::environment::is_on;
use crate::lookup::is_guarded;
use crate::{asked, device, say, words};
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};
use shim_sys::elf;
use shim_sys::table::base_length;

/// Doors met in this process.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Those of them that stand in the tenant's ledgers; there are none before the first initialisation.
static TOLD: AtomicU64 = AtomicU64::new(0);
/// Name of the first, leaked; null until there is one.
static FIRST: AtomicPtr<String> = AtomicPtr::new(core::ptr::null_mut());
/// Whether the process was searched for further copies of the driver.
static SEARCHED: AtomicBool = AtomicBool::new(false);

/// What can be done about a lookup.
const CURE: &str = "VGPU_STRICT=1 refuses it";

/// Whether one was left open that strictness would have shut.
static PASSED: AtomicBool = AtomicBool::new(false);

/// Whether the daemon wants them refused.
static SHUT: AtomicBool = AtomicBool::new(false);

/// The daemon wants them refused.
pub fn shut() {
    SHUT.store(true, Relaxed);
}

/// The first way around the library that was left open in this process and would not be now. Lookups come before the first
/// call, and the daemon is asked at that.
pub fn passed() -> Option<&'static str> {
    // SAFETY: null, or leaked by `met`.
    PASSED.load(Relaxed).then(|| unsafe { FIRST.load(Acquire).as_ref() }.map_or("", String::as_str))
}

/// Whether lookups of unknown variants, and other namespaces, are refused.
pub fn strict() -> bool {
    SHUT.load(Relaxed) || is_on("VGPU_STRICT")
}

/// Counts a door that is open and says so, once per process. `words`: what it is; `cure`: what can be done.
#[cold]
pub fn met(name: &str, words: &str, cure: &str) {
    COUNT.fetch_add(1, Relaxed);
    if FIRST.load(Acquire).is_null() {
        let ours = Box::into_raw(Box::new(name.to_owned()));
        if FIRST.compare_exchange(core::ptr::null_mut(), ours, AcqRel, Acquire).is_err() {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(ours) });
        }
    }
    tell();
    say::once(&format!("{words} leads around the limits that were asked for; {cure}; vgpu doctor shows them all"));
}

/// Under `VGPU_STRICT=1` a door is shut: that is said, and not counted. Says whether it is. `words`: what it is.
pub fn judged(name: &str, words: &str) -> bool {
    if strict() {
        say::once(&format!(
            "{words} leads around the limits that were asked for and is refused (VGPU_STRICT=1, or the daemon's strict)"
        ));
        return true;
    }
    PASSED.store(true, Relaxed);
    met(name, words, CURE);
    false
}

/// Writes what was counted into the ledgers, where there are any yet.
fn tell() {
    if device::all().next().is_none() {
        return;
    }
    let (count, told) = (COUNT.load(Relaxed), TOLD.load(Relaxed));
    if count <= told || TOLD.compare_exchange(told, count, Relaxed, Relaxed).is_err() {
        return; // nothing new, or another thread writes it
    }
    // SAFETY: null, or leaked above.
    let name = unsafe { FIRST.load(Acquire).as_ref() }.map_or("", String::as_str);
    for device in device::all() {
        if let Ok(joined) = device.ledger.joined() {
            for _ in told..count {
                joined.member().ledger().header().note_open_door(name);
            }
        }
    }
}

/// After an initialisation under limits: the ledgers learn of doors met before, and the process is searched, once, for
/// a second copy of the driver.
pub fn settled() {
    if !SEARCHED.swap(true, Relaxed) {
        for name in further_drivers() {
            met(name, &format!("{name}, a second copy of the driver,"), "nobody counts its calls");
        }
    }
    tell();
}

/// Copies of the driver beside the one that is hooked: mapped code of a libcuda.so.1 that the loader's own list lacks
/// belongs to another namespace, a second entry of that list was loaded by its path.
fn further_drivers() -> Vec<&'static str> {
    let mut listed: usize = 0;
    elf::walk(|object| {
        listed += usize::from(object.has_soname(c"libcuda.so.1"));
        None::<()>
    });
    let mut found = vec!["libcuda.so.1 by another path"; listed.saturating_sub(1)];
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    let (mut base, mut known) = (0, true);
    for line in maps.split(|&byte| byte == b'\n') {
        // address perms offset device inode path
        let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
        let (Some(addresses), Some(perms), Some(offset)) = (words.next(), words.next(), words.next()) else { continue };
        let path = words.nth(2).unwrap_or_default();
        if !path.rsplit(|&byte| byte == b'/').next().unwrap_or(path).starts_with(b"libcuda.so") {
            continue;
        }
        // A loaded copy begins with the file's first page; one that was only mapped to be read has no code.
        if offset.iter().all(|&digit| digit == b'0') {
            let start = addresses.split(|&byte| byte == b'-').next().and_then(|hex| str::from_utf8(hex).ok());
            base = start.and_then(|hex| usize::from_str_radix(hex, 16).ok()).unwrap_or(0);
            known = elf::object_of(base).is_some();
        }
        if perms.contains(&b'x') && !known && base != 0 {
            found.push("libcuda.so.1 of another namespace");
            known = true;
        }
    }
    found
}

/// Whether `found`, the driver's answer to a question for `name`, leads around a hook: a variant that the table does not
/// know of a function that charges or launches. Counts it; `Some(true)`: it must not be handed out.
#[inline]
pub fn variant(name: &CStr, found: *mut c_void) -> Option<bool> {
    // The name first: a stranger's (`curl_easy_init`, `cudnnCreate`) must not make us look at the environment.
    if found.is_null() || !guards(name) {
        return None;
    }
    unknown(name, found)
}

#[cold]
fn unknown(name: &CStr, found: *mut c_void) -> Option<bool> {
    let text = name.to_str().ok()?;
    if is_known(text, found) || !asked::for_limits() {
        return None;
    }
    Some(judged(text, &format!("{text}, a variant that this version does not know,")))
}

/// As [`variant`], for a name that the driver has just read.
///
/// # Safety
/// `name` is null or a C string.
#[inline]
pub unsafe fn variant_text(name: *const c_char, found: *mut c_void) -> Option<bool> {
    // SAFETY: the caller's.
    if name.is_null() { None } else { variant(unsafe { CStr::from_ptr(name) }, found) }
}

/// Counts a hooked function of a copy of the driver that is not the one we know. `Some(true)`: not to be handed out.
pub fn second_copy(name: &CStr) -> Option<bool> {
    let text = name.to_str().ok()?;
    if !guards(name) || !asked::for_limits() {
        return None;
    }
    Some(judged(text, &format!("{text} of a second copy of the driver")))
}

/// Whether the table knows a function of exactly that name and leaves it alone.
pub fn passes(name: &CStr) -> bool {
    words::passed().any(|row| row == name)
}

/// Whether functions of the name's base charge or launch.
#[inline]
fn guards(name: &CStr) -> bool {
    let name = name.to_bytes();
    name.get(..base_length(name)).is_some_and(is_guarded)
}

/// Whether `found` is a function that the table knows and leaves alone, by its reason.
fn is_known(name: &str, found: *mut c_void) -> bool {
    let length = base_length(name.as_bytes());
    words::passed().any(|row| {
        let text = row.to_bytes();
        base_length(text) == length && text[..length] == name.as_bytes()[..length] && CUDA.function(row) == found
    })
}
