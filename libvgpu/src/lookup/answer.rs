//! Answers the program's symbol lookups: the driver chooses the function, this library substitutes its hook.
//!
//! `dlsym` and `dlvsym` are exported as naked functions. For a foreign name they jump into the real function with the
//! caller's return address on top of the stack, because that address decides the meaning of RTLD_NEXT. Nothing is
//! allocated or stored. A name of the table is passed to [`answer_lookup`]. It calls the real function with the
//! caller's own handle, and replaces the result only if that is the address of a hooked function. `dlopen` and
//! `dlmopen` jump in the same way ([`loader`]). The driver's own lookup (`cuGetProcAddress`) uses [`swap`], with the
//! address of the code that asks.
//!
//! Every caller gets a hook, even a library that exports a function of that name, because it may call the result from
//! anywhere. Only the driver gets its own functions. A name that an interposer behind us exports too has two hooks.
//! The export calls the interposer, as the loader's order demands. The other hook replaces the driver's function: it
//! charges, then calls the driver. A lookup that finds the driver's function gets this second hook, so an interposer
//! can call it on any thread without calling itself. Both enforce limits, so it does not matter which caller asks.
//! Nothing about callers is cached: by the next lookup an object may be unloaded and another mapped in its place.
//! [`super::names`] is the table of names decided here; the compiler builds it.
//!
//! RTLD_DEFAULT where the driver was loaded with RTLD_LOCAL: the main program finds nothing, as without this library.
//! A library that was itself loaded with RTLD_LOCAL gets the hook, whether or not the driver is in its own scope,
//! because glibc does not expose that scope.

pub(crate) mod loader;

use super::in_place;
use super::names::{HookRow, NameKind, classify_name};
use crate::ffi::loader::{real_dlsym, real_dlvsym};
use crate::ffi::search_order::{self, CallerPosition, next_after_us};

use crate::driver::library::{CUDA, NVML, first_number};
use crate::lookup::bypasses;
use core::ffi::{CStr, c_char, c_void};
use shim_sys::elf;

/// Tells a naked function its next step: return `address` (`handled` != 0), or jump to the real function (`handled` =
/// 0).
#[repr(C)]
pub struct LookupAnswer {
    address: *mut c_void,
    handled: usize,
}

impl LookupAnswer {
    const JUMP: LookupAnswer = LookupAnswer { address: core::ptr::null_mut(), handled: 0 };

    fn handled(address: *mut c_void) -> Self {
        Self { address, handled: 1 }
    }
}

impl HookRow {
    /// The hook that replaces the driver's own function: the export, or, where the export calls an interposer, a
    /// variant that does not.
    #[inline(never)] // hot and short: a call is cheaper than a copy for each caller
    fn in_place(self) -> *mut c_void {
        let (is_interposed, number) = match self {
            HookRow::Cuda(row) => (CUDA.is_interposed(row), first_number::CUDA + row),
            HookRow::Nvml(row) => (NVML.is_interposed(row), first_number::NVML + row),
        };
        if is_interposed { in_place::hook_in_place(number) } else { self.hook_address() }
    }

    /// Whether the hook has a function to call behind it.
    fn has_function(self) -> bool {
        match self {
            HookRow::Cuda(row) => CUDA.has_function(row),
            HookRow::Nvml(row) => NVML.has_function(row),
        }
    }

    /// Whether the hooked library is loaded and has the function.
    fn is_in_the_driver(self) -> bool {
        match self {
            HookRow::Cuda(row) => CUDA.has_real(row),
            HookRow::Nvml(row) => NVML.has_real(row),
        }
    }

    /// Whether the code at `caller` is the hooked library's.
    fn library_asks(self, caller: usize) -> bool {
        match self {
            HookRow::Cuda(_) => CUDA.is_caller(caller),
            HookRow::Nvml(_) => NVML.is_caller(caller),
        }
    }

    /// Whether `address` is code of the library that the row belongs to.
    fn library_holds(self, address: usize) -> bool {
        match self {
            HookRow::Cuda(_) => CUDA.contains_address(address),
            HookRow::Nvml(_) => NVML.contains_address(address),
        }
    }
}

/// Our hook for a real function, or the address itself. Substitution happens only here.
pub fn substitute_hook(address: *mut c_void) -> *mut c_void {
    if let Some(row) = CUDA.row_at(address) {
        HookRow::Cuda(row).in_place()
    } else if let Some(row) = NVML.row_at(address) {
        HookRow::Nvml(row).in_place()
    } else {
        address
    }
}

/// Turns the driver's own answer to `name` into the address for code at `caller`. `None`: the address must not be
/// handed out.
///
/// # Safety
/// `name` is null or a C string.
///
/// # Cost
/// A lookup by address for a hooked function; for another function of the driver, also a lookup by name.
#[inline]
pub unsafe fn swap(name: *const c_char, found: *mut c_void, caller: usize) -> Option<*mut c_void> {
    let forwarded = || {
        let is_elsewhere = !name.is_null() && !found.is_null() && !CUDA.is_code(found as usize);
        // SAFETY: upheld by the caller.
        is_elsewhere.then(|| CUDA.forwarded_row(unsafe { CStr::from_ptr(name) }.to_bytes(), found)).flatten()
    };
    if let Some(row) = CUDA.row_at(found).or_else(forwarded) {
        return Some(if CUDA.is_caller(caller) { found } else { HookRow::Cuda(row).in_place() });
    }
    // SAFETY: upheld by the caller.
    match unsafe { bypasses::judge_variant_name(name, found) } {
        Some(true) => None,
        _ => Some(found),
    }
}

/// Calls the real `dlsym` or `dlvsym` from this library.
///
/// # Safety
/// The program's own handle, name and version; the real function is known.
unsafe fn ask_loader(handle: *mut c_void, name: &CStr, version: *const c_char) -> *mut c_void {
    // SAFETY: upheld by the caller.
    unsafe {
        match (version.is_null(), real_dlsym(), real_dlvsym()) {
            (true, Some(dlsym), _) => dlsym(handle, name.as_ptr()),
            (false, _, Some(dlvsym)) => dlvsym(handle, name.as_ptr(), version),
            _ => core::ptr::null_mut(),
        }
    }
}

/// Refuses an existing symbol: returns null and sets the `dlerror` text of a missing symbol.
fn refuse_lookup(handle: *mut c_void) -> LookupAnswer {
    // SAFETY: a C string. No object exports this name, so the loader sets its text for a missing symbol.
    LookupAnswer::handled(unsafe { ask_loader(handle, c"(refused by VGPU_STRICT=1)", core::ptr::null()) })
}

/// Decides a `dlsym` or `dlvsym` whose name begins like one of the table. `version` is null for `dlsym`.
///
/// # Safety
/// `name` is a C string; `handle` and `version` are what the program passed.
pub(crate) unsafe extern "C" fn answer_lookup(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> LookupAnswer {
    // The naked functions may jump through these addresses after any answer, so both must be known.
    if real_dlsym().is_none() || (!version.is_null() && real_dlvsym().is_none()) {
        return LookupAnswer::handled(core::ptr::null_mut());
    }
    if name.is_null() {
        return LookupAnswer::JUMP;
    }
    // SAFETY: upheld by the caller.
    let name = unsafe { CStr::from_ptr(name) };
    match classify_name(name.to_bytes()) {
        NameKind::Foreign => LookupAnswer::JUMP,
        // SAFETY: upheld by the caller.
        NameKind::Hooked(row) => unsafe { answer_hooked(row, handle, name, version, caller) },
        // SAFETY: upheld by the caller.
        NameKind::Variant => unsafe { answer_variant(handle, name, version, caller) },
        // SAFETY: upheld by the caller.
        NameKind::Loader => unsafe { loader::answer_loader_lookup(handle, name, version, caller) },
    }
}

/// Decides a name that has a hook.
///
/// # Safety
/// As [`answer_lookup`].
#[inline(never)]
unsafe fn answer_hooked(
    row: HookRow,
    handle: *mut c_void,
    name: &CStr,
    version: *const c_char,
    caller: usize,
) -> LookupAnswer {
    if row.library_asks(caller) {
        return LookupAnswer::JUMP;
    }
    if handle == libc::RTLD_NEXT {
        return match search_order::caller_position(caller) {
            // The loader would answer with our own export, but no driver is behind it: answer as at the end of this
            // function.
            CallerPosition::Before
                if search_order::meets_hook_first(row.hook_address(), caller, name) && !row.has_function() =>
            {
                LookupAnswer::handled(next_after_us(name))
            }
            CallerPosition::Before => LookupAnswer::JUMP,
            // The loader's own answer is not used: a library opened at run time has a scope in another order, and the
            // driver may be in it.
            CallerPosition::Behind(index) => match elf::function_after(index, name) {
                Some(found) => LookupAnswer::handled(substitute_hook(found)),
                None if row.is_in_the_driver() => LookupAnswer::handled(row.in_place()),
                None => LookupAnswer::JUMP,
            },
        };
    }
    // SAFETY: the program's own handle, name and version, passed on unchanged.
    let found = unsafe { ask_loader(handle, name, version) };
    if found == row.hook_address() && (!row.has_function() || search_order::sees_what_we_see(handle, caller)) {
        // Our own export answered a search of the global scope. The program wants to know whether there is a driver.
        // If none is behind us in that scope, `dlerror` then has the loader's own text.
        let behind = next_after_us(name);
        return LookupAnswer::handled(if behind.is_null() { behind } else { found });
    }
    let answer = substitute_hook(found);
    if answer == found && row.library_holds(found as usize) && bypasses::judge_second_copy(name) == Some(true) {
        return refuse_lookup(handle);
    }
    LookupAnswer::handled(answer)
}

/// Decides a name that has no hook but shares its base with functions that charge or launch: perhaps a new variant.
///
/// # Safety
/// As [`answer_lookup`].
#[cold]
unsafe fn answer_variant(handle: *mut c_void, name: &CStr, version: *const c_char, caller: usize) -> LookupAnswer {
    if bypasses::is_passed_row(name) || CUDA.contains_address(caller) {
        return LookupAnswer::JUMP;
    }
    let found = if handle != libc::RTLD_NEXT {
        // SAFETY: upheld by the caller.
        unsafe { ask_loader(handle, name, version) }
    } else if let CallerPosition::Behind(index) = search_order::caller_position(caller) {
        elf::function_after(index, name).unwrap_or(core::ptr::null_mut())
    } else {
        next_after_us(name)
    };
    match CUDA.contains_address(found as usize).then(|| bypasses::judge_variant(name, found)).flatten() {
        Some(true) => refuse_lookup(handle),
        // The real function asks again, with the caller's own return address.
        _ => LookupAnswer::JUMP,
    }
}
