//! The loader's own functions behind this library's exports of the same names: `dlsym`, `dlvsym`, `dlopen`, `dlmopen`.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use shim_sys::elf;

/// The signature of `dlsym`.
pub type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
/// The signature of `dlvsym`.
pub type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// The loader's functions that this library exports.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum LoaderFunction {
    /// `dlsym`.
    Dlsym = 0,
    /// `dlvsym`.
    Dlvsym = 1,
    /// `dlopen`.
    Dlopen = 2,
    /// `dlmopen`.
    Dlmopen = 3,
}

impl LoaderFunction {
    /// The function of that name.
    pub fn from_name(name: &CStr) -> Option<Self> {
        [Self::Dlsym, Self::Dlvsym, Self::Dlopen, Self::Dlmopen].into_iter().find(|f| LOADER_NAMES[*f as usize] == name)
    }
}

/// Names of the loader's functions that this library exports, indexed by [`LoaderFunction`].
pub const LOADER_NAMES: [&CStr; 4] = [c"dlsym", c"dlvsym", c"dlopen", c"dlmopen"];
/// Addresses to which our exports of the loader's functions jump: the next definition behind us, which may be another
/// preloaded library's. 0 until the first call.
pub static NEXT_FUNCTIONS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
/// The C library's own functions, 0 until the first call.
pub static REAL_FUNCTIONS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

/// The C library's own function. Without a C library, the next definition behind us; 0 if there is neither. Fills
/// both [`NEXT_FUNCTIONS`] and [`REAL_FUNCTIONS`] at the first call.
pub fn real_function(function: LoaderFunction) -> usize {
    match REAL_FUNCTIONS[function as usize].load(Relaxed) {
        0 => find_real(function),
        at => at,
    }
}

#[cold]
fn find_real(function: LoaderFunction) -> usize {
    let name = LOADER_NAMES[function as usize];
    let us = elf::object_of(find_real as fn(LoaderFunction) -> usize as usize).map_or(0, |object| object.index);
    let next = elf::function_after(us, name);
    // Before glibc 2.34 these functions are in libdl, a separate library.
    let is_c_library = |object: &elf::LoadedObject| object.has_soname(c"libc.so.6") || object.has_soname(c"libdl.so.2");
    let own = elf::for_each_object(|object| is_c_library(&object).then(|| object.find_function(name)).flatten());
    let [next, own] = [next.or(own), own.or(next)].map(|found| found.map_or(0, |address| address as usize));
    NEXT_FUNCTIONS[function as usize].store(next, Relaxed);
    REAL_FUNCTIONS[function as usize].store(own, Relaxed);
    own
}

/// The real `dlsym`, if there is one.
pub fn real_dlsym() -> Option<Dlsym> {
    // SAFETY: 0 (None) or the address of a function that the loader's objects export as `dlsym`.
    unsafe { core::mem::transmute::<usize, Option<Dlsym>>(real_function(LoaderFunction::Dlsym)) }
}

/// The real `dlvsym`, if there is one.
pub fn real_dlvsym() -> Option<Dlvsym> {
    // SAFETY: as for `real_dlsym`.
    unsafe { core::mem::transmute::<usize, Option<Dlvsym>>(real_function(LoaderFunction::Dlvsym)) }
}
