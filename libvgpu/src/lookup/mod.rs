//! How a program's questions for symbols reach us, and the rule for the answer: the driver chooses, we substitute.
//!
//! `dlsym` and `dlvsym` are exported as naked functions. A foreign name is a tail jump into the real one, with the
//! caller's return address on top of the stack, because that address decides what RTLD_NEXT means; nothing is
//! allocated and nothing is remembered. A name of the table goes to [`answer`]: the real function is asked with the
//! caller's own handle, and what it returns is swapped if, and only if, it is the address of a function we hook.
//! `dlopen` and `dlmopen` are such jumps too ([`loader`]), and the driver's own lookup comes here by way of
//! [`swap`], which is told who asks.
//!
//! Nothing is remembered of who asked: an object may be gone, and another in its place, at the next question. Which names
//! are ours to decide is told by [`names`], a table that the compiler builds.
//!
//! RTLD_DEFAULT where the driver was loaded with RTLD_LOCAL: the main program finds nothing, as without us. A library
//! that was itself loaded with RTLD_LOCAL gets the hook, whether or not the driver is in its own scope: glibc tells
//! nobody what that scope is.

pub(crate) mod loader;
mod names;
mod next;

use loader::{Function, real_dlsym, real_dlvsym};
pub use names::is_guarded;
use names::{Name, Row, judge};
use next::Asker;
pub use next::{is_behind_us, next_after_us};

use crate::doors;
use crate::driver::{CUDA, NVML};
use crate::exports::{vgpu_cuda_hooks as CUDA_HOOKS, vgpu_nvml_hooks as NVML_HOOKS};
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use shim_sys::elf;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// Names of the loader's functions that are ours, by [`Function`].
const NAMES: [&CStr; 4] = [c"dlsym", c"dlvsym", c"dlopen", c"dlmopen"];
/// Addresses of the real ones, 0 until the first call.
pub(crate) static REAL: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

/// The next definition of a loader's function behind us in the loader's order: another preloaded library's, or the C
/// library's; 0: there is none.
fn real(function: Function) -> usize {
    match REAL[function as usize].load(Relaxed) {
        0 => find_real(function),
        at => at,
    }
}

#[cold]
fn find_real(function: Function) -> usize {
    let us = elf::object_of(find_real as fn(Function) -> usize as usize).map_or(0, |object| object.index);
    let found = elf::function_after(us, NAMES[function as usize]).map_or(0, |address| address as usize);
    REAL[function as usize].store(found, Relaxed);
    found
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
    fn hook(self) -> *mut c_void {
        match self {
            Row::Cuda(row) => CUDA_HOOKS.at(row),
            Row::Nvml(row) => NVML_HOOKS.at(row),
        }
    }

    /// Whether a real function stands behind the hook.
    fn has_real(self) -> bool {
        match self {
            Row::Cuda(row) => !CUDA.call(row).is_null(),
            Row::Nvml(row) => !NVML.call(row).is_null(),
        }
    }

    /// Our hook if `address` is what some hook of this library calls: an interposer's function.
    fn called(self, address: *mut c_void) -> Option<*mut c_void> {
        match self {
            Row::Cuda(_) => CUDA.row_called(address).map(|row| CUDA_HOOKS.at(row)),
            Row::Nvml(_) => NVML.row_called(address).map(|row| NVML_HOOKS.at(row)),
        }
    }

    fn soname(self) -> &'static CStr {
        match self {
            Row::Cuda(_) => CUDA.soname(),
            Row::Nvml(_) => NVML.soname(),
        }
    }

    /// Whether the code at `caller` certainly is neither of the row's library nor of an interposer of the row: nearly
    /// always so, and told without a walk over the loader's objects.
    #[inline]
    fn is_nothing_to(self, caller: usize) -> bool {
        elf::may_define(caller, self.hashes()) == Some(false)
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
        CUDA_HOOKS.at(row)
    } else if let Some(row) = NVML.row_at(address) {
        NVML_HOOKS.at(row)
    } else {
        address
    }
}

/// The driver's own answer to `name`, as code at `caller` gets it; `None`: it must not be handed out.
///
/// The driver itself gets what it asked for, and so does an interposer behind us: a hook would call it again.
///
/// # Safety
/// `name` is null or a C string.
///
/// # Cost
/// What the driver answered is judged first: a hooked function by its address, and then whether the caller is an ordinary
/// one; one of the driver's other functions by the name. The loader's objects are walked for the rest only.
#[inline]
pub unsafe fn swap(name: *const c_char, found: *mut c_void, caller: usize) -> Option<*mut c_void> {
    if let Some(row) = CUDA.row_at(found) {
        let hook = CUDA_HOOKS.at(row);
        return Some(if Row::Cuda(row).is_nothing_to(caller) || !keeps(row, caller) { hook } else { found });
    }
    if !CUDA.is_code(found as usize)
        && let Some(row) = CUDA.row_called(found)
    {
        return Some(if keeps(row, caller) { found } else { CUDA_HOOKS.at(row) });
    }
    // SAFETY: the caller's.
    match unsafe { doors::variant_text(name, found) } {
        Some(true) => None,
        _ => Some(found),
    }
}

/// Whether code at `caller` gets the function that our hook of `row` calls, and not the hook.
#[cold]
fn keeps(row: usize, caller: usize) -> bool {
    matches!(next::asker(caller, CUDA.name(row), Some(CUDA.soname())), Asker::Library | Asker::Interposer)
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
    if handle == libc::RTLD_NEXT || !row.is_nothing_to(caller) {
        match (next::asker(caller, name, Some(row.soname())), handle == libc::RTLD_NEXT) {
            (Asker::Library, _) => return Answer::JUMP, // the driver looks for its own functions
            // The loader would answer our own export, but there is no driver behind it: as below.
            (Asker::Before, true) if next::meets(row.hook(), caller, name) && !row.has_real() => {
                return Answer::is(next_after_us(name));
            }
            (Asker::Interposer, _) | (Asker::Before, true) => return Answer::JUMP,
            (Asker::Behind(index), true) => return next::hook_behind(index, name).map_or(Answer::JUMP, Answer::is),
            (_, false) => {}
        }
    }
    // SAFETY: the program's own handle, name and version, passed on as they came.
    let found = unsafe { ask(handle, name, version) };
    if found == row.hook() && (!row.has_real() || next::sees_what_we_see(handle, caller)) {
        // Our own export answered a search of the global scope. The program asks whether there is a driver: if none is
        // behind us in that scope, `dlerror` then has the loader's own words.
        let behind = next_after_us(name);
        return Answer::is(if behind.is_null() { behind } else { found });
    }
    let answer = substitute(found);
    if answer == found && row.library_holds(found as usize) && doors::second_copy(name) == Some(true) {
        return refused(handle);
    }
    if answer == found
        && let Some(called) = row.called(found)
    {
        return Answer::is(called); // an interposer behind us, asked for by its handle: it is called by our hook
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
    let found = match (handle == libc::RTLD_NEXT, next::asker(caller, name, None)) {
        (true, Asker::Behind(index)) => elf::function_after(index, name).unwrap_or(core::ptr::null_mut()),
        (true, _) => next_after_us(name),
        // SAFETY: the caller's.
        (false, _) => unsafe { ask(handle, name, version) },
    };
    match CUDA.holds(found as usize).then(|| doors::variant(name, found)).flatten() {
        Some(true) => refused(handle),
        // Asked once more by the loader, from the caller's own place.
        _ => Answer::JUMP,
    }
}
