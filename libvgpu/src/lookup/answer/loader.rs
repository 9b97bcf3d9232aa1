//! Hooks `dlopen` and `dlmopen` and decides lookups of the loader's own functions, so that no library binds past the
//! hooks.
//!
//! A library opened with RTLD_DEEPBIND finds its own dependencies before the preloaded libraries. A library in
//! another namespace finds no preloaded library at all. This module decides flags and namespace; then the naked
//! functions jump to the real loader function, which reads RPATH, $ORIGIN and the namespace from the return address.
//!
//! A lookup of `dlsym` itself gets our `dlsym`, with a version too, as preloaded tools ask. Otherwise a program could
//! find the driver through the C library's `dlsym`. Our export jumps to an interposer of these functions behind us,
//! so the interposer itself gets a variant that jumps to the C library.

use super::{LookupAnswer, answer_lookup};
use crate::ffi::arch::loader_functions;
use crate::ffi::loader::{LoaderFunction, NEXT_FUNCTIONS, REAL_FUNCTIONS, real_function};
use crate::ffi::search_order::{self, CallerPosition};
use crate::lookup::bypasses;
use crate::process::environment::decisive_variable;
use crate::process::limit_request;
use crate::process::strictness::is_strict;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use shim_sys::elf;
use std::os::unix::ffi::OsStrExt;

/// The last namespace there can be (glibc has 16). The loader refuses it as invalid, unless the program opened all of
/// them.
const LAST_NAMESPACE: c_long = 15;
/// The program's own namespace.
const BASE_NAMESPACE: c_long = 0;

loader_functions!(NEXT_FUNCTIONS, answer_lookup, open, open_in; #[unsafe(no_mangle)] dlsym dlvsym dlopen dlmopen);
loader_functions!(REAL_FUNCTIONS, answer_lookup, open, open_in; last_dlsym last_dlvsym last_dlopen last_dlmopen);

impl LoaderFunction {
    /// Our export; it jumps to an interposer behind us, if there is one.
    fn our_export(self) -> *mut c_void {
        match self {
            Self::Dlsym => dlsym as *mut c_void,
            Self::Dlvsym => dlvsym as *mut c_void,
            Self::Dlopen => dlopen as *mut c_void,
            Self::Dlmopen => dlmopen as *mut c_void,
        }
    }

    /// Our variant that replaces the C library's function: it skips any interposer and jumps to the C library.
    fn in_place(self) -> *mut c_void {
        match self {
            Self::Dlsym => last_dlsym as *mut c_void,
            Self::Dlvsym => last_dlvsym as *mut c_void,
            Self::Dlopen => last_dlopen as *mut c_void,
            Self::Dlmopen => last_dlmopen as *mut c_void,
        }
    }
}

/// Decides a lookup of one of the loader's functions in [`LoaderFunction`].
///
/// # Safety
/// As [`super::answer_lookup`]; the real `dlsym`, and with a version the real `dlvsym`, are known.
#[cold]
pub unsafe fn answer_loader_lookup(
    handle: *mut c_void,
    name: &CStr,
    version: *const c_char,
    caller: usize,
) -> LookupAnswer {
    let Some(function) = LoaderFunction::from_name(name) else { return LookupAnswer::JUMP };
    let found = match (search_order::caller_position(caller), handle == libc::RTLD_NEXT) {
        // Our exports have no version, so the loader's own search would skip them.
        (CallerPosition::Before, true) if !version.is_null() => return LookupAnswer::handled(function.our_export()),
        (CallerPosition::Before, true) => return LookupAnswer::JUMP,
        // Fall back to the C library's function: a library opened at run time has its own search order, so the walk
        // may miss it.
        (CallerPosition::Behind(index), true) => {
            elf::function_after(index, name).unwrap_or(real_function(function) as *mut c_void)
        }
        // SAFETY: upheld by the caller.
        (_, false) => unsafe { super::ask_loader(handle, name, version) },
    };
    let is_real = found as usize == real_function(function) && !found.is_null();
    LookupAnswer::handled(if is_real { function.in_place() } else { found })
}

/// Namespace and flags that the naked `dlmopen` passes to the real one.
#[repr(C)]
pub struct OpenRequest {
    namespace: c_long,
    flags: usize,
}

/// Decides the flags of a `dlopen`. The naked function calls this for RTLD_DEEPBIND, and once at the first `dlopen`.
///
/// # Safety
/// `file` is null or a C string.
pub unsafe extern "C" fn open(file: *const c_char, flags: c_int) -> usize {
    real_function(LoaderFunction::Dlopen);
    // SAFETY: upheld by the caller.
    flags_of(unsafe { bind_flags(file, flags) })
}

/// Decides namespace and flags of a `dlmopen`. The naked function calls this for RTLD_DEEPBIND, for another
/// namespace, and once at the first `dlmopen`.
///
/// # Safety
/// As [`open`].
pub unsafe extern "C" fn open_in(namespace: c_long, file: *const c_char, flags: c_int) -> OpenRequest {
    real_function(LoaderFunction::Dlmopen);
    if namespace == BASE_NAMESPACE {
        // SAFETY: upheld by the caller.
        return OpenRequest { namespace, flags: flags_of(unsafe { bind_flags(file, flags) }) };
    }
    if !limit_request::for_limits() {
        return OpenRequest { namespace, flags: flags_of(flags) };
    }
    // SAFETY: upheld by the caller.
    let name = format!("dlmopen of {}", unsafe { name_of(file) });
    let namespace = if bypasses::refuse_if_strict(&name, &name) { LAST_NAMESPACE } else { namespace };
    OpenRequest { namespace, flags: flags_of(flags) }
}

/// Widens the int to the register that holds it.
fn flags_of(flags: c_int) -> usize {
    flags.cast_unsigned() as usize
}

/// Clears RTLD_DEEPBIND where limits are asked for, unless `VGPU_DEEPBIND=keep` is set and lookups are not strict.
///
/// # Safety
/// As [`open`].
unsafe fn bind_flags(file: *const c_char, flags: c_int) -> c_int {
    if flags & libc::RTLD_DEEPBIND == 0 || !limit_request::for_limits() {
        return flags;
    }
    let keep = decisive_variable("VGPU_DEEPBIND").is_some_and(|value| value.as_bytes() == b"keep");
    if !keep || is_strict() {
        return flags & !libc::RTLD_DEEPBIND;
    }
    // SAFETY: upheld by the caller.
    let name = format!("dlopen with RTLD_DEEPBIND of {}", unsafe { name_of(file) });
    bypasses::count_bypass(&name, &name, "without VGPU_DEEPBIND=keep the flag is cleared");
    flags
}

/// The file's name without its directories.
///
/// # Safety
/// As [`open`].
unsafe fn name_of(file: *const c_char) -> String {
    if file.is_null() {
        return "the program".to_owned();
    }
    // SAFETY: upheld by the caller.
    let path = unsafe { CStr::from_ptr(file) }.to_bytes();
    String::from_utf8_lossy(path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)).into_owned()
}
