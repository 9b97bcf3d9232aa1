//! Conversion of C arguments: the only place where raw pointers become [`CallerPlace`] values and strings.
//!
//! A function body receives safe arguments and returns an [`NvmlAnswer`]; [`export`](crate::export) turns it into the
//! result code. Device handles are resolved in [`machine`](crate::machine), so a body never sees an invalid one.

use core::ffi::{CStr, c_char, c_void};
use shim_sys::nvml::nvmlReturn_t;

/// Result of a function body; the error is the code that the caller gets.
pub type NvmlAnswer<T = ()> = Result<T, nvmlReturn_t>;

/// Short names of the codes that bodies use.
pub mod code {
    use shim_sys::nvml::nvmlReturn_t;
    pub const ERROR_UNINITIALIZED: nvmlReturn_t = nvmlReturn_t::UNINITIALIZED;
    pub const ERROR_INVALID: nvmlReturn_t = nvmlReturn_t::INVALID_ARGUMENT;
    pub const ERROR_UNSUPPORTED: nvmlReturn_t = nvmlReturn_t::NOT_SUPPORTED;
    pub const NOT_FOUND: nvmlReturn_t = nvmlReturn_t::NOT_FOUND;
    pub const ERROR_TOO_SMALL: nvmlReturn_t = nvmlReturn_t::INSUFFICIENT_SIZE;
    pub const NO_DRIVER: nvmlReturn_t = nvmlReturn_t::DRIVER_NOT_LOADED;
    pub const GPU_IS_LOST: nvmlReturn_t = nvmlReturn_t(15);
    pub const TIMEOUT: nvmlReturn_t = nvmlReturn_t::TIMEOUT;
    pub const ERROR_VERSION: nvmlReturn_t = nvmlReturn_t::ARGUMENT_VERSION_MISMATCH;
    pub const UNKNOWN: nvmlReturn_t = nvmlReturn_t::UNKNOWN;
}

/// A pointer from the caller to read from or write to; may be null.
///
/// Only [`IntoSafe`] makes one, and its contract makes the methods safe. The pointer is null or valid for one
/// `T`; where the function takes a count, it is valid for as many as the caller's count says.
pub struct CallerPlace<T>(*mut T);

impl<T> Clone for CallerPlace<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for CallerPlace<T> {}

impl<T> CallerPlace<T> {
    /// True if the pointer is null.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The address itself, for opaque values.
    pub fn as_address(self) -> *mut T {
        self.0
    }
}

impl<T: Copy> CallerPlace<T> {
    /// Writes one value; a null pointer is an invalid argument.
    pub fn put_value(self, value: T) -> NvmlAnswer {
        self.put_at(0, value)
    }

    /// Reads one value; a null pointer is an invalid argument.
    pub fn get(self) -> NvmlAnswer<T> {
        if self.0.is_null() {
            return Err(code::ERROR_INVALID);
        }
        // SAFETY: not null, so good for one T by the contract of `IntoSafe`.
        Ok(unsafe { self.0.read() })
    }

    /// Writes element `at`, which must be below the caller's count.
    fn put_at(self, at: usize, value: T) -> NvmlAnswer {
        if self.0.is_null() {
            return Err(code::ERROR_INVALID);
        }
        // SAFETY: not null and below the caller's count, so good for writes by the contract of `IntoSafe`.
        unsafe { self.0.add(at).write(value) };
        Ok(())
    }

    /// Edits `count` elements in place; `count` is the one the caller passed.
    pub fn edit_each(self, count: usize, mut edit: impl FnMut(&mut T)) -> NvmlAnswer {
        if self.0.is_null() {
            return Err(code::ERROR_INVALID);
        }
        for at in 0..count {
            // SAFETY: not null and below the caller's count, so a valid T of the caller's by the contract of
            // `IntoSafe`.
            edit(unsafe { &mut *self.0.add(at) });
        }
        Ok(())
    }

    /// Writes a list by NVML's protocol: `count` is the capacity on entry and the length afterwards. If the capacity
    /// is too small, only the length is written.
    pub fn put_list(self, count: CallerPlace<u32>, all: &[T]) -> NvmlAnswer {
        let room = count.get()?;
        let needed = u32::try_from(all.len()).map_err(|_| code::UNKNOWN)?;
        if room < needed {
            count.put_value(needed)?;
            return Err(code::ERROR_TOO_SMALL);
        }
        if self.is_null() && room > 0 {
            return Err(code::ERROR_INVALID);
        }
        for (at, value) in all.iter().enumerate() {
            self.put_at(at, *value)?;
        }
        count.put_value(needed)
    }

    /// Wraps a pointer from a struct of the caller. The struct itself says how many elements it is valid for.
    pub fn of_struct(place: *mut T) -> Self {
        Self(place)
    }

    /// Writes every element of `all`; the caller has checked that they fit.
    pub fn fill_all(self, all: &[T]) -> NvmlAnswer {
        for (at, value) in all.iter().enumerate() {
            self.put_at(at, *value)?;
        }
        Ok(())
    }

    /// Writes the elements of `all` that fit into `room` elements, and `zero` into the rest. For bit sets.
    pub fn put_padded(self, room: u32, all: &[T], zero: T) -> NvmlAnswer {
        if room == 0 || self.is_null() {
            return Err(code::ERROR_INVALID);
        }
        for at in 0..room as usize {
            self.put_at(at, all.get(at).copied().unwrap_or(zero))?;
        }
        Ok(())
    }
}

impl CallerPlace<c_char> {
    /// Writes text and its terminating zero into `room` bytes.
    pub fn put_text(self, room: u32, text: &str) -> NvmlAnswer {
        if self.is_null() {
            return Err(code::ERROR_INVALID);
        }
        if text.len() >= room as usize {
            return Err(code::ERROR_TOO_SMALL);
        }
        for (at, byte) in text.bytes().chain([0]).enumerate() {
            self.put_at(at, c_char::from_ne_bytes([byte]))?;
        }
        Ok(())
    }
}

/// A C text array with `text`, cut to fit.
pub fn text_array<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    out
}

/// Conversion of a C argument into a safe value.
pub trait IntoSafe {
    /// Type that the body receives.
    type Safe;
    /// # Safety
    /// A pointer is null or valid for reads and writes of its type for the length of the call: for one element, or as
    /// many as the count next to it says. Text ends with a zero byte. That is NVML's own contract with its callers.
    unsafe fn into_safe(self) -> NvmlAnswer<Self::Safe>;
}

macro_rules! plain {
    ($($t:ty)*) => { $(impl IntoSafe for $t {
        type Safe = $t;
        unsafe fn into_safe(self) -> NvmlAnswer<$t> { Ok(self) }
    })* };
}
plain! { u32 i32 u64 }

impl<T> IntoSafe for *mut T {
    type Safe = CallerPlace<T>;
    unsafe fn into_safe(self) -> NvmlAnswer<CallerPlace<T>> {
        Ok(CallerPlace(self))
    }
}

impl IntoSafe for *const c_char {
    type Safe = String;
    unsafe fn into_safe(self) -> NvmlAnswer<String> {
        if self.is_null() {
            return Err(code::ERROR_INVALID);
        }
        // SAFETY: not null, so zero-terminated text by the contract above.
        Ok(unsafe { CStr::from_ptr(self) }.to_string_lossy().into_owned())
    }
}

impl IntoSafe for *const c_void {
    type Safe = [u8; 16];
    unsafe fn into_safe(self) -> NvmlAnswer<[u8; 16]> {
        if self.is_null() {
            return Err(code::ERROR_INVALID);
        }
        // SAFETY: the only such argument of the table is the 16-byte id of a private table.
        Ok(unsafe { self.cast::<[u8; 16]>().read_unaligned() })
    }
}
