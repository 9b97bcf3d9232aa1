//! `dlopen` and `dlmopen`, and lookups of the loader's own functions: so that no library binds past us.
//!
//! A library opened with RTLD_DEEPBIND finds its own dependencies before the preloaded ones, a library of another
//! namespace finds no preloaded one at all. Both are decided here and carried out by the loader, to which the naked
//! functions jump: it reads RPATH, $ORIGIN and the namespace from the return address. A lookup of `dlsym` itself, with a
//! version as preloaded tools do, gets ours, or the driver would be found through the C library's. An interposer of these
//! functions behind us gets one that jumps to the C library's, since our export jumps to the interposer.

use super::{Answer, NAMES, next, real};
use super::{Dlsym, Dlvsym};
use crate::arch;
use crate::environment::variable;
use crate::{asked, doors};
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use next::Asker;
use shim_sys::elf;
use std::os::unix::ffi::OsStrExt;

/// The last namespace there can be (glibc has 16): the loader refuses it as invalid unless a program opened them all.
const NO_NAMESPACE: c_long = 15;
/// The namespace of the program.
const BASE: c_long = 0;

/// The loader's functions that are ours.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Function {
    Dlsym = 0,
    Dlvsym = 1,
    Dlopen = 2,
    Dlmopen = 3,
}

impl Function {
    fn named(name: &CStr) -> Option<Self> {
        [Self::Dlsym, Self::Dlvsym, Self::Dlopen, Self::Dlmopen].into_iter().find(|f| NAMES[*f as usize] == name)
    }

    /// Our export, which an interposer behind us sees called.
    fn ours(self) -> *mut c_void {
        match self {
            Self::Dlsym => arch::dlsym as *mut c_void,
            Self::Dlvsym => arch::dlvsym as *mut c_void,
            Self::Dlopen => arch::dlopen as *mut c_void,
            Self::Dlmopen => arch::dlmopen as *mut c_void,
        }
    }

    /// Our function in place of the C library's: as the export, and no interposer sees it called.
    fn in_place(self) -> *mut c_void {
        match self {
            Self::Dlsym => arch::last_dlsym as *mut c_void,
            Self::Dlvsym => arch::last_dlvsym as *mut c_void,
            Self::Dlopen => arch::last_dlopen as *mut c_void,
            Self::Dlmopen => arch::last_dlmopen as *mut c_void,
        }
    }
}

/// Decides a lookup of one of the loader's functions that are ours.
///
/// # Safety
/// As [`super::answer`]; the real `dlsym`, and with a version the real `dlvsym`, are known.
#[cold]
pub unsafe fn answer(handle: *mut c_void, name: &CStr, version: *const c_char, caller: usize) -> Answer {
    let Some(function) = Function::named(name) else { return Answer::JUMP };
    let found = match (next::asker(caller), handle == libc::RTLD_NEXT) {
        // The loader would pass us by: our names have no version.
        (Asker::Before, true) if !version.is_null() => return Answer::is(function.ours()),
        (Asker::Before, true) => return Answer::JUMP,
        // The C library is there, wherever the loader has it: a library that was opened has an order of its own.
        (Asker::Behind(index), true) => elf::function_after(index, name).unwrap_or(real(function) as *mut c_void),
        // SAFETY: the caller's.
        (_, false) => unsafe { super::ask(handle, name, version) },
    };
    let is_real = found as usize == real(function) && !found.is_null();
    Answer::is(if is_real { function.in_place() } else { found })
}

/// What the naked functions hand on: a namespace and flags.
#[repr(C)]
pub struct Opening {
    namespace: c_long,
    flags: usize,
}

/// Decides the flags of a `dlopen` that has RTLD_DEEPBIND, or is the first of all.
///
/// # Safety
/// `file` is null or a C string.
pub unsafe extern "C" fn open(file: *const c_char, flags: c_int) -> usize {
    real(Function::Dlopen);
    // SAFETY: the caller's.
    flags_of(unsafe { bound(file, flags) })
}

/// Decides namespace and flags of a `dlmopen` that has RTLD_DEEPBIND or names another namespace, or is the first of all.
///
/// # Safety
/// As [`open`].
pub unsafe extern "C" fn open_in(namespace: c_long, file: *const c_char, flags: c_int) -> Opening {
    real(Function::Dlmopen);
    if namespace == BASE {
        // SAFETY: the caller's.
        return Opening { namespace, flags: flags_of(unsafe { bound(file, flags) }) };
    }
    if !asked::for_limits() {
        return Opening { namespace, flags: flags_of(flags) };
    }
    // SAFETY: the caller's.
    let name = format!("dlmopen of {}", unsafe { name_of(file) });
    let namespace = if doors::judged(&name, &name) { NO_NAMESPACE } else { namespace };
    Opening { namespace, flags: flags_of(flags) }
}

/// An int as the register that holds it.
fn flags_of(flags: c_int) -> usize {
    flags.cast_unsigned() as usize
}

/// The flags with or without RTLD_DEEPBIND.
///
/// # Safety
/// As [`open`].
unsafe fn bound(file: *const c_char, flags: c_int) -> c_int {
    if flags & libc::RTLD_DEEPBIND == 0 || !asked::for_limits() {
        return flags;
    }
    let keep = variable("VGPU_DEEPBIND").is_some_and(|value| value.as_bytes() == b"keep");
    if !keep || doors::strict() {
        return flags & !libc::RTLD_DEEPBIND;
    }
    // SAFETY: the caller's.
    let name = format!("dlopen with RTLD_DEEPBIND of {}", unsafe { name_of(file) });
    doors::met(&name, &name, "without VGPU_DEEPBIND=keep the flag is cleared");
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
    // SAFETY: the caller's.
    let path = unsafe { CStr::from_ptr(file) }.to_bytes();
    String::from_utf8_lossy(path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)).into_owned()
}

/// The real `dlsym`, if there is one.
pub fn real_dlsym() -> Option<Dlsym> {
    // SAFETY: 0 (None) or the address of a function that the loader's objects export as `dlsym`.
    unsafe { core::mem::transmute::<usize, Option<Dlsym>>(real(Function::Dlsym)) }
}

/// The real `dlvsym`, if there is one.
pub fn real_dlvsym() -> Option<Dlvsym> {
    // SAFETY: as for `real_dlsym`.
    unsafe { core::mem::transmute::<usize, Option<Dlvsym>>(real(Function::Dlvsym)) }
}
