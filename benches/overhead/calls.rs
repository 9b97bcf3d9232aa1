//! Two addresses of the same function: the driver's own, and the one that a program finds.
//!
//! The driver's own address is read from the loader's objects, past any `dlsym`; the program's is the answer of
//! `dlsym`. With the library preloaded the two differ. Without it they are the same, which is the null control.

use core::ffi::{CStr, c_char, c_int, c_void};
use shim_sys::elf;

/// A handle of the driver, loaded as every CUDA program loads it.
pub fn driver_handle() -> *mut c_void {
    // SAFETY: this is the driver's soname; the library stays loaded.
    let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "libcuda.so.1 is not found: LD_LIBRARY_PATH must name the simulated driver");
    handle
}

/// Address of the function in the object with that soname.
pub fn bare_function(soname: &CStr, name: &CStr) -> usize {
    elf::for_each_object(|object| object.has_soname(soname).then(|| object.find_function(name)))
        .flatten()
        .unwrap_or_else(|| panic!("{soname:?} has no {name:?}")) as usize
}

/// Address of the function as a program gets it.
pub fn found_function(driver: *mut c_void, name: &CStr) -> usize {
    // SAFETY: a handle of the loader and a C string.
    unsafe { libc::dlsym(driver, name.as_ptr()) as usize }
}

/// Address of the `dlsym` that this program is linked to.
pub fn linked_dlsym() -> usize {
    // Read from the global offset table, where the loader stores the first definition.
    std::hint::black_box(libc::dlsym as unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void) as usize
}

/// Names for the driver's own lookup: a function with a hook, and one without.
pub const ASKED_NAMES: [(&str, &CStr); 2] = [("hooked", c"cuMemAlloc"), ("not hooked", c"cuDeviceGetAttribute")];

/// Names without a hook, and the handles in which they are looked up. Two are of the C library, found by RTLD_DEFAULT.
/// Some begin like names of the driver and NVML, and `driver` does not have them.
pub fn foreign_names(driver: *mut c_void) -> [(*mut c_void, &'static CStr); 6] {
    let all = libc::RTLD_DEFAULT;
    [
        (all, c"getpid"),
        (all, c"cuserid"),
        (driver, c"cudnnCreate"),
        (driver, c"nvrtcVersion"),
        (driver, c"cuMyOwn"),
        (driver, c"an_unknown_name"),
    ]
}

macro_rules! signatures {
    ($($name:ident($($arg:ty),*) -> $ret:ty;)*) => {$(
        pub type $name = unsafe extern "C" fn($($arg),*) -> $ret;
    )*};
}

signatures! {
    Init(u32) -> c_int;
    Retain(*mut *mut c_void, c_int) -> c_int;
    SetCurrent(*mut c_void) -> c_int;
    Synchronize() -> c_int;
    Alloc(*mut u64, usize) -> c_int;
    Free(u64) -> c_int;
    AllocAsync(*mut u64, usize, *mut c_void) -> c_int;
    FreeAsync(u64, *mut c_void) -> c_int;
    MemInfo(*mut usize, *mut usize) -> c_int;
    LoadData(*mut *mut c_void, *const c_char) -> c_int;
    GetFunction(*mut *mut c_void, *mut c_void, *const c_char) -> c_int;
    Launch(*mut c_void, u32, u32, u32, u32, u32, u32, u32, *mut c_void, *mut *mut c_void, *mut *mut c_void) -> c_int;
    ProcAddress(*const c_char, *mut *mut c_void, c_int, u64, *mut u32) -> c_int;
    Dlsym(*mut c_void, *const c_char) -> *mut c_void;
}

/// The function at an address, as type `F`.
///
/// # Safety
/// The address is that of a function with the signature `F`.
pub unsafe fn typed_function<F: Copy>(address: usize) -> F {
    assert_eq!(size_of::<F>(), size_of::<usize>());
    assert_ne!(address, 0, "a function that must be there is missing");
    // SAFETY: the caller guarantees the signature; the sizes were compared.
    unsafe { std::mem::transmute_copy(&address) }
}
