//! Bypasses: ways to reach the driver around the hooks. They are counted, reported once, and refused on request.
//!
//! A newer driver may have a variant of a charging function that the table does not know. Other bypasses are a second
//! copy of the driver, another namespace of the loader, and a library that binds to its own dependencies first
//! (RTLD_DEEPBIND). A bypass counts only where limits are asked for. Names that neither charge nor launch never
//! count. `VGPU_STRICT=1` refuses those that can be refused: the lookup finds nothing. A refusal is reported, but not
//! counted.
//!
//! Not here: the places that detect bypasses (`lookup`, `hooks/entry`).

use crate::driver::library::CUDA;

use crate::device::table;
use crate::ffi::name_text;
use crate::lookup::names::is_guarded;
use crate::process::strictness::is_strict;
use crate::process::{limit_request, message};
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};
use shim_sys::elf;
use shim_sys::table::base_length;

/// Bypasses detected in this process.
static BYPASS_COUNT: AtomicU64 = AtomicU64::new(0);
/// How many of [`BYPASS_COUNT`] are recorded in the tenant's ledgers, which exist only after the first initialisation.
static RECORDED_COUNT: AtomicU64 = AtomicU64::new(0);
/// Name of the first bypass, leaked; null until there is one.
static FIRST_BYPASS: AtomicPtr<String> = AtomicPtr::new(core::ptr::null_mut());
/// Whether the process was searched for further copies of the driver.
static SEARCHED_FOR_COPIES: AtomicBool = AtomicBool::new(false);

/// Advice for the message about a lookup.
const STRICT_REMEDY: &str = "VGPU_STRICT=1 refuses it";

/// Whether a bypass was allowed that strict mode would have refused.
static PASSED_BEFORE_STRICT: AtomicBool = AtomicBool::new(false);

/// The first bypass detected, if strict mode would have refused one that this process allowed. Lookups happen before
/// the first CUDA call, and only that call asks the daemon whether it is strict.
pub fn passed_bypass() -> Option<&'static str> {
    // SAFETY: null, or leaked by `met`.
    PASSED_BEFORE_STRICT
        .load(Relaxed)
        .then(|| unsafe { FIRST_BYPASS.load(Acquire).as_ref() }.map_or("", String::as_str))
}

/// Counts an allowed bypass and reports it, once per process. `words` describes the bypass, `cure` the remedy.
#[cold]
pub fn count_bypass(name: &str, words: &str, cure: &str) {
    BYPASS_COUNT.fetch_add(1, Relaxed);
    if FIRST_BYPASS.load(Acquire).is_null() {
        let ours = Box::into_raw(Box::new(name.to_owned()));
        if FIRST_BYPASS.compare_exchange(core::ptr::null_mut(), ours, AcqRel, Acquire).is_err() {
            // SAFETY: no other thread has seen it.
            drop(unsafe { Box::from_raw(ours) });
        }
    }
    record_bypasses();
    message::warn_once(&format!("{words} bypasses the limits; {cure}; vgpu doctor shows all bypasses"));
}

/// Refuses a bypass in strict mode and reports it; otherwise counts it. Returns whether it is refused. `words`
/// describes it.
pub fn refuse_if_strict(name: &str, words: &str) -> bool {
    if is_strict() {
        message::warn_once(&format!(
            "{words} bypasses the limits and is refused (VGPU_STRICT=1, or the daemon's strict)"
        ));
        return true;
    }
    PASSED_BEFORE_STRICT.store(true, Relaxed);
    count_bypass(name, words, STRICT_REMEDY);
    false
}

/// Writes the new count into the ledgers, if there are any yet.
fn record_bypasses() {
    if table::all().next().is_none() {
        return;
    }
    let (count, told) = (BYPASS_COUNT.load(Relaxed), RECORDED_COUNT.load(Relaxed));
    if count <= told || RECORDED_COUNT.compare_exchange(told, count, Relaxed, Relaxed).is_err() {
        return; // nothing new, or another thread writes it
    }
    // SAFETY: null, or leaked above.
    let name = unsafe { FIRST_BYPASS.load(Acquire).as_ref() }.map_or("", String::as_str);
    for device in table::all() {
        if let Ok(joined) = device.ledger.membership() {
            for _ in told..count {
                joined.joined_member().member_ledger().header().note_open_door(name);
            }
        }
    }
}

/// After an initialisation under limits: records earlier bypasses in the ledgers, and searches the process once for a
/// second copy of the driver.
pub fn search_and_record() {
    if !SEARCHED_FOR_COPIES.swap(true, Relaxed) {
        for name in further_drivers() {
            count_bypass(name, &format!("{name}, a second copy of the driver,"), "nobody counts its calls");
        }
    }
    record_bypasses();
}

/// Copies of the driver besides the hooked one. Mapped code of a libcuda.so.1 that the loader's list lacks belongs to
/// another namespace. A second entry in that list was loaded by its path.
fn further_drivers() -> Vec<&'static str> {
    let mut listed: usize = 0;
    elf::for_each_object(|object| {
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
        // A loaded copy begins with the file's first page. A copy that was mapped only for reading has no executable
        // page.
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

/// Checks whether `found`, the driver's answer for `name`, bypasses the hooks: an unknown variant of a function that
/// charges or launches. Counts it if so. `Some(true)`: it must not be handed out.
#[inline]
pub fn judge_variant(name: &CStr, found: *mut c_void) -> Option<bool> {
    // The name first: a foreign name (`curl_easy_init`, `cudnnCreate`) must not cause a read of the environment.
    if found.is_null() || !guards_base(name) {
        return None;
    }
    judge_unknown(name, found)
}

#[cold]
fn judge_unknown(name: &CStr, found: *mut c_void) -> Option<bool> {
    let text = name.to_str().ok()?;
    if is_known(text, found) || !limit_request::for_limits() {
        return None;
    }
    Some(refuse_if_strict(text, &format!("{text}, a variant that this version does not know,")))
}

/// As [`judge_variant`], for a name that the driver has just read.
///
/// # Safety
/// `name` is null or a C string.
#[inline]
pub unsafe fn judge_variant_name(name: *const c_char, found: *mut c_void) -> Option<bool> {
    // SAFETY: upheld by the caller.
    if name.is_null() { None } else { judge_variant(unsafe { CStr::from_ptr(name) }, found) }
}

/// Counts a hooked function that was found in another copy of the driver. `Some(true)`: it must not be handed out.
pub fn judge_second_copy(name: &CStr) -> Option<bool> {
    let text = name.to_str().ok()?;
    if !guards_base(name) || !limit_request::for_limits() {
        return None;
    }
    Some(refuse_if_strict(text, &format!("{text} of a second copy of the driver")))
}

/// Whether the table lists exactly this function as one to leave unhooked.
pub fn is_passed_row(name: &CStr) -> bool {
    name_text::passed_names().any(|row| row == name)
}

/// Whether functions of the name's base charge or launch.
#[inline]
fn guards_base(name: &CStr) -> bool {
    let name = name.to_bytes();
    name.get(..base_length(name)).is_some_and(is_guarded)
}

/// Whether `found` is a variant that the table lists, with a reason, as one to leave unhooked.
fn is_known(name: &str, found: *mut c_void) -> bool {
    let length = base_length(name.as_bytes());
    name_text::passed_names().any(|row| {
        let text = row.to_bytes();
        base_length(text) == length && text[..length] == name.as_bytes()[..length] && CUDA.function_named(row) == found
    })
}
