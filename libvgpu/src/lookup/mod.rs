//! How a program's questions for symbols reach us, and the rule for the answer: the driver chooses, we substitute.
//!
//! `dlsym` and `dlvsym` are exported as naked functions. A foreign name is a tail jump into the real one, with the
//! caller's return address on top of the stack, because that address decides what RTLD_NEXT means; nothing is
//! allocated and nothing is remembered. A name of the table goes to [`answer`]: the real function is asked with the
//! caller's own handle, and what it returns is swapped if, and only if, it is the address of a function we hook.
//! `dlopen` and `dlmopen` are such jumps too ([`loader`]), and the driver's own lookup comes here by way of
//! [`swap`], which is told who asks.
//!
//! Every caller gets a hook, also a library that exports a function of that name itself: it may call the answer from
//! anywhere. Only the driver gets its own functions. A name that an interposer behind us has too has two hooks. The
//! export calls the interposer, by the loader's order. The hook in place of the driver's own function charges and calls
//! the driver. A lookup that finds the driver's function gets that one: an interposer may call it on any thread and
//! never meets itself. Both are limited, so that it does not matter who asks. Nothing is remembered of callers: an
//! object may be gone, and another in its place, at the next question. [`names`] is a table of the names that are
//! decided here; the compiler builds it.
//!
//! RTLD_DEFAULT where the driver was loaded with RTLD_LOCAL: the main program finds nothing, as without us. A library
//! that was itself loaded with RTLD_LOCAL gets the hook, whether or not the driver is in its own scope: glibc tells
//! nobody what that scope is.

pub(crate) mod loader;
mod names;
mod next;

use loader::{Function, real_dlsym, real_dlvsym};
pub(crate) use names::Row;
pub use names::is_guarded;
use names::{Name, judge};
use next::Asker;
pub use next::next_after_us;

use crate::driver::{CUDA, NVML, first_number};
use crate::exports::{vgpu_cuda_hooks as CUDA_HOOKS, vgpu_nvml_hooks as NVML_HOOKS};
use crate::{arch, doors};
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use shim_sys::elf;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// Names of the loader's functions that are ours, by [`Function`].
const NAMES: [&CStr; 4] = [c"dlsym", c"dlvsym", c"dlopen", c"dlmopen"];
/// Where our exports of the loader's functions jump to: the next definition behind us, which may be another preloaded
/// library's. 0 until the first call.
pub(crate) static NEXT: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
/// The C library's own functions, 0 until the first call.
pub(crate) static REAL: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

/// The C library's own function, or the next one behind us where there is no C library; 0: there is neither. Both tables
/// know it then.
fn real(function: Function) -> usize {
    match REAL[function as usize].load(Relaxed) {
        0 => find_real(function),
        at => at,
    }
}

#[cold]
fn find_real(function: Function) -> usize {
    let name = NAMES[function as usize];
    let us = elf::object_of(find_real as fn(Function) -> usize as usize).map_or(0, |object| object.index);
    let next = elf::function_after(us, name);
    // Before glibc 2.34 these functions are in a library of their own.
    let is_c_library = |object: &elf::Object| object.has_soname(c"libc.so.6") || object.has_soname(c"libdl.so.2");
    let own = elf::walk(|object| is_c_library(&object).then(|| object.function(name)).flatten());
    let [next, own] = [next.or(own), own.or(next)].map(|found| found.map_or(0, |address| address as usize));
    NEXT[function as usize].store(next, Relaxed);
    REAL[function as usize].store(own, Relaxed);
    own
}

/// What the naked functions do next: return `address` (`handled` != 0) or jump to the real function.
#[repr(C)]
pub struct Answer {
    address: *mut c_void,
    handled: usize,
}

impl Answer {
    const JUMP: Answer = Answer { address: core::ptr::null_mut(), handled: 0 };

    fn is(address: *mut c_void) -> Self {
        Self { address, handled: 1 }
    }
}

impl Row {
    /// The row of that number among the rows of both libraries.
    pub fn numbered(number: usize) -> Self {
        number.checked_sub(first_number::NVML).map_or(Row::Cuda(number), Row::Nvml)
    }

    /// The export.
    pub fn hook(self) -> *mut c_void {
        match self {
            Row::Cuda(row) => CUDA_HOOKS.at(row),
            Row::Nvml(row) => NVML_HOOKS.at(row),
        }
    }

    /// Our function in place of the driver's own: the export, or where that calls an interposer, one that does not.
    #[inline(never)] // hot, and short: a call is cheaper than a copy for each caller
    fn in_place(self) -> *mut c_void {
        let (is_interposed, number) = match self {
            Row::Cuda(row) => (CUDA.is_interposed(row), first_number::CUDA + row),
            Row::Nvml(row) => (NVML.is_interposed(row), first_number::NVML + row),
        };
        if is_interposed { arch::in_place(number) } else { self.hook() }
    }

    /// Whether a function stands behind the hook.
    fn has_function(self) -> bool {
        match self {
            Row::Cuda(row) => CUDA.has_function(row),
            Row::Nvml(row) => NVML.has_function(row),
        }
    }

    /// Whether the hooked library is loaded and has the function.
    fn is_in_the_driver(self) -> bool {
        match self {
            Row::Cuda(row) => CUDA.has_real(row),
            Row::Nvml(row) => NVML.has_real(row),
        }
    }

    /// Whether the code at `caller` is the hooked library's.
    fn library_asks(self, caller: usize) -> bool {
        match self {
            Row::Cuda(_) => CUDA.asks(caller),
            Row::Nvml(_) => NVML.asks(caller),
        }
    }

    /// Whether `address` is code of the library that the row belongs to.
    fn library_holds(self, address: usize) -> bool {
        match self {
            Row::Cuda(_) => CUDA.holds(address),
            Row::Nvml(_) => NVML.holds(address),
        }
    }
}

/// Our hook for a real function, or the address itself: the one place where substitution happens.
pub fn substitute(address: *mut c_void) -> *mut c_void {
    if let Some(row) = CUDA.row_at(address) {
        Row::Cuda(row).in_place()
    } else if let Some(row) = NVML.row_at(address) {
        Row::Nvml(row).in_place()
    } else {
        address
    }
}

/// The driver's own answer to `name`, as code at `caller` gets it; `None`: it must not be handed out.
///
/// # Safety
/// `name` is null or a C string.
///
/// # Cost
/// The driver's answer is judged first: a hooked function by its address, one of the driver's other functions by the name.
#[inline]
pub unsafe fn swap(name: *const c_char, found: *mut c_void, caller: usize) -> Option<*mut c_void> {
    if let Some(row) = CUDA.row_at(found) {
        return Some(if CUDA.asks(caller) { found } else { Row::Cuda(row).in_place() });
    }
    // SAFETY: the caller's.
    match unsafe { doors::variant_text(name, found) } {
        Some(true) => None,
        _ => Some(found),
    }
}

/// Asks the real function, from here.
///
/// # Safety
/// The program's own handle, name and version; the real function is known.
unsafe fn ask(handle: *mut c_void, name: &CStr, version: *const c_char) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe {
        match (version.is_null(), real_dlsym(), real_dlvsym()) {
            (true, Some(dlsym), _) => dlsym(handle, name.as_ptr()),
            (false, _, Some(dlvsym)) => dlvsym(handle, name.as_ptr(), version),
            _ => core::ptr::null_mut(),
        }
    }
}

/// Nothing, with words for `dlerror`, of a symbol that is there.
fn refused(handle: *mut c_void) -> Answer {
    // SAFETY: a name that nothing has; the loader's words for it are the ones a missing symbol gets.
    Answer::is(unsafe { ask(handle, c"(refused by VGPU_STRICT=1)", core::ptr::null()) })
}

/// Decides a `dlsym` whose name begins like one of ours. `version` is null for `dlsym`.
///
/// # Safety
/// `name` is a C string; `handle` and `version` are what the program passed.
pub(crate) unsafe extern "C" fn answer(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> Answer {
    // The naked functions jump through these: whatever is decided, they must be known.
    if real_dlsym().is_none() || (!version.is_null() && real_dlvsym().is_none()) {
        return Answer::is(core::ptr::null_mut());
    }
    if name.is_null() {
        return Answer::JUMP;
    }
    // SAFETY: the caller's.
    let name = unsafe { CStr::from_ptr(name) };
    match judge(name.to_bytes()) {
        Name::Foreign => Answer::JUMP,
        // SAFETY: the caller's.
        Name::Hooked(row) => unsafe { hooked(row, handle, name, version, caller) },
        // SAFETY: the caller's.
        Name::Variant => unsafe { variant(handle, name, version, caller) },
        // SAFETY: the caller's.
        Name::Loader => unsafe { loader::answer(handle, name, version, caller) },
    }
}

/// A name that has a hook.
///
/// # Safety
/// As [`answer`].
#[inline(never)]
unsafe fn hooked(row: Row, handle: *mut c_void, name: &CStr, version: *const c_char, caller: usize) -> Answer {
    if row.library_asks(caller) {
        return Answer::JUMP;
    }
    if handle == libc::RTLD_NEXT {
        return match next::asker(caller) {
            // The loader would answer our own export, but there is no driver behind it: as below.
            Asker::Before if next::meets(row.hook(), caller, name) && !row.has_function() => {
                Answer::is(next_after_us(name))
            }
            Asker::Before => Answer::JUMP,
            // Never the loader's own answer: a library that was opened has a scope whose order is not this one, and the
            // driver may be in it.
            Asker::Behind(index) => match elf::function_after(index, name) {
                Some(found) => Answer::is(substitute(found)),
                None if row.is_in_the_driver() => Answer::is(row.in_place()),
                None => Answer::JUMP,
            },
        };
    }
    // SAFETY: the program's own handle, name and version, passed on as they came.
    let found = unsafe { ask(handle, name, version) };
    if found == row.hook() && (!row.has_function() || next::sees_what_we_see(handle, caller)) {
        // Our own export answered a search of the global scope. The program asks whether there is a driver: if none is
        // behind us in that scope, `dlerror` then has the loader's own words.
        let behind = next_after_us(name);
        return Answer::is(if behind.is_null() { behind } else { found });
    }
    let answer = substitute(found);
    if answer == found && row.library_holds(found as usize) && doors::second_copy(name) == Some(true) {
        return refused(handle);
    }
    Answer::is(answer)
}

/// A name without a hook whose base is that of functions that charge or launch: a new variant, perhaps.
///
/// # Safety
/// As [`answer`].
#[cold]
unsafe fn variant(handle: *mut c_void, name: &CStr, version: *const c_char, caller: usize) -> Answer {
    if doors::passes(name) || CUDA.holds(caller) {
        return Answer::JUMP;
    }
    let found = if handle != libc::RTLD_NEXT {
        // SAFETY: the caller's.
        unsafe { ask(handle, name, version) }
    } else if let Asker::Behind(index) = next::asker(caller) {
        elf::function_after(index, name).unwrap_or(core::ptr::null_mut())
    } else {
        next_after_us(name)
    };
    match CUDA.holds(found as usize).then(|| doors::variant(name, found)).flatten() {
        Some(true) => refused(handle),
        // Asked once more by the loader, from the caller's own place.
        _ => Answer::JUMP,
    }
}
