//! The exported hooks, derived from the table: one C function per hooked row, and their addresses by row number.
//!
//! Each passes the door once, is handed its own typed real function, and has nothing else in it.

use crate::door;
use crate::driver::{CUDA, NVML};
use crate::hooks;
use core::ffi::{c_char, c_void};
use shim_sys::cuda::*;
use shim_sys::nvml::*;
use shim_sys::table::{CudaHook, NvmlHook, cuda_fn, nvml_fn};

/// The address of an exported hook.
#[repr(transparent)]
pub struct Hook(pub *mut c_void);

// SAFETY: the address of code.
unsafe impl Sync for Hook {}

/// What a hook answers if its body panics, by subject: allocations, contexts and launches fail closed, everything else
/// goes to the driver.
macro_rules! after_panic {
    (charge $closed:expr, $real:expr) => {
        $closed
    };
    (context $closed:expr, $real:expr) => {
        $closed
    };
    (launch $closed:expr, $real:expr) => {
        $closed
    };
    (entry $closed:expr, $real:expr) => {
        $closed
    };
    (share $closed:expr, $real:expr) => {
        $closed
    };
    // The driver may have freed it already: a second free would be somebody else's memory.
    (release $closed:expr, $real:expr) => {
        $closed
    };
    (free $closed:expr, $real:expr) => {
        $closed
    };
    // The driver may have loaded it already: a second time would be code that nobody charges.
    (module $closed:expr, $real:expr) => {
        $closed
    };
    ($subject:ident $closed:expr, $real:expr) => {
        $real
    };
}

/// What a call holds while it is under way, by subject. A plain free is noted where its charge is: `holdings`.
macro_rules! under_way {
    (release) => {
        crate::quiet::enter()
    };
    (share) => {
        crate::quiet::enter()
    };
    (pool) => {
        crate::quiet::enter()
    };
    ($subject:ident) => {
        ()
    };
}

/// One exported function. Those of `kernel` go straight to the driver or the short way, which has no door since nothing in
/// it panics, and most often do; the rest is out of their way. Those of `ask` are told who asks and are written by hand, without a frame: `lookup::naked`. Those
/// of `copy` have one way for all of them: `hooks::copies`.
macro_rules! one {
    (ask $library:ident $numbers:ident $fns:ident $absent:expr, $closed:expr; $h:ident ( $($a:ident : $t:ty),* )) => {
        pub use crate::lookup::$h;
    };
    (copy $library:ident $numbers:ident $fns:ident $absent:expr, $closed:expr; $h:ident ( $($a:ident : $t:ty),* )) => {
        #[doc = concat!("Hook of `", stringify!($h), "`.")]
        ///
        /// # Safety
        /// As the driver's function.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $h($(_: $t),*) -> <$fns::$h as door::Signature>::Output {
            core::arch::naked_asm!(
                "mov eax, {row}",
                "jmp {copy}",
                row = const $numbers::$h as usize,
                copy = sym hooks::copy,
            )
        }
    };
    (kernel $library:ident $numbers:ident $fns:ident $absent:expr, $closed:expr; $h:ident ( $($a:ident : $t:ty),* )) => {
        #[doc = concat!("Hook of `", stringify!($h), "`.")]
        ///
        /// # Safety
        /// As the driver's function.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $h($($a: $t),*) -> <$fns::$h as door::Signature>::Output {
            /// Null (None), or what this hook calls.
            #[inline(always)]
            fn typed(real: *mut c_void) -> Option<$fns::$h> {
                // SAFETY: null or a function that the loader knows by this row's name, whose signature is the table's.
                unsafe { core::mem::transmute(real) }
            }
            // Both with the hook's own arguments, so that they are jumped to, and the hook has no frame.
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn long($($a: $t),*) -> <$fns::$h as door::Signature>::Output {
                let Some(real) = typed($library.call($numbers::$h as usize)) else { return $absent };
                if !crate::governor::active() {
                    // SAFETY: the program's own arguments, for the function it called.
                    return unsafe { real($($a),*) };
                }
                // SAFETY: as above.
                door::guard(|| unsafe { hooks::$h(real, $($a),*) }).unwrap_or($closed)
            }
            #[inline(never)]
            unsafe extern "C" fn under_ceiling($($a: $t),*) -> <$fns::$h as door::Signature>::Output {
                let Some(real) = typed($library.called($numbers::$h as usize)) else {
                    // SAFETY: the program's own arguments, for the function it called.
                    return unsafe { long($($a),*) };
                };
                // SAFETY: as above.
                let Some(passed) = (unsafe { hooks::short::$h($($a),*) }) else {
                    // SAFETY: as above.
                    return unsafe { long($($a),*) };
                };
                // SAFETY: as above.
                let result = unsafe { real($($a),*) };
                if !result.ok() {
                    passed.refused();
                }
                result
            }
            match typed($library.called($numbers::$h as usize)) {
                // SAFETY: the program's own arguments, for the function it called.
                Some(real) if !crate::governor::active() => unsafe { real($($a),*) },
                // SAFETY: as above.
                Some(_) => unsafe { under_ceiling($($a),*) },
                // SAFETY: as above.
                None => unsafe { long($($a),*) },
            }
        }
    };
    ($subject:ident $library:ident $numbers:ident $fns:ident $absent:expr, $closed:expr; $h:ident ( $($a:ident : $t:ty),* )) => {
        #[doc = concat!("Hook of `", stringify!($h), "`.")]
        ///
        /// # Safety
        /// As the driver's function.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $h($($a: $t),*) -> <$fns::$h as door::Signature>::Output {
            let real = $library.call($numbers::$h as usize);
            // SAFETY: null (None) or a function that the loader knows by this row's name, whose signature is the
            // table's.
            let Some(real) = (unsafe { core::mem::transmute::<*mut c_void, Option<$fns::$h>>(real) }) else {
                return $absent;
            };
            #[allow(clippy::let_unit_value)]
            let _under_way = under_way!($subject);
            // SAFETY: the program's own arguments, for the function it called.
            match door::guard(|| unsafe { hooks::$h(real, $($a),*) }) {
                Some(result) => result,
                // SAFETY: as above.
                #[allow(unused_unsafe)]
                None => after_panic!($subject $closed, unsafe { real($($a),*) }),
            }
        }
    };
}

macro_rules! export {
    (
        $library:ident $hooks:ident $numbers:ident $fns:ident $absent:expr, $closed:expr;
        hooks { $($subject:ident { $($h:ident ( $($a:ident : $t:ty),* $(,)? );)* })* }
        typed $typed:tt
        named $named:tt
    ) => {
        $($(one! { $subject $library $numbers $fns $absent, $closed; $h($($a: $t),*) })*)*

        #[doc = concat!("Addresses of the hooks of ", stringify!($library), " by row number.")]
        pub static $hooks: [Hook; $numbers::COUNT] = [$($(Hook($h as *mut c_void),)*)*];
    };
}

shim_sys::cuda_table!(export, CUDA CUDA_HOOKS CudaHook cuda_fn CUresult::NOT_SUPPORTED, CUresult::NOT_PERMITTED;);
shim_sys::nvml_table!(
    export,
    NVML NVML_HOOKS NvmlHook nvml_fn nvmlReturn_t::FUNCTION_NOT_FOUND, nvmlReturn_t::NO_PERMISSION;
);
