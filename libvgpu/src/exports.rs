//! The exported hooks, derived from the table: one C function per hooked row, and their addresses by row number.
//!
//! Each export is a few instructions that a program may overwrite with a jump of its own (`arch::relocatable_entry!`),
//! and a jump to a function without a name. That function gets its typed real function and runs the hook in the FFI
//! guard; it has no other code.

use crate::driver::library::{CUDA, NVML};
use crate::ffi::arch;
use crate::ffi::guard;
use crate::hooks;
use core::ffi::{c_char, c_void};
use shim_sys::cuda::*;
use shim_sys::nvml::*;
use shim_sys::table::{CudaHook, NvmlHook, cuda_fn, nvml_fn};

/// The result of a hook whose body panicked, by subject. The subjects listed here fail closed; all others call the
/// driver.
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
    // The driver may have freed it already: a second free could free another allocation.
    (release $closed:expr, $real:expr) => {
        $closed
    };
    (free $closed:expr, $real:expr) => {
        $closed
    };
    // The driver may have loaded it already: a second load would be code without a charge.
    (module $closed:expr, $real:expr) => {
        $closed
    };
    // The driver's own function would show other tenants' processes.
    (processes $closed:expr, $real:expr) => {
        $closed
    };
    (devices $closed:expr, $real:expr) => {
        $closed
    };
    ($subject:ident $closed:expr, $real:expr) => {
        $real
    };
}

/// The guard that a call holds while it is in flight, by subject. Frees of an address are counted next to their
/// charges: `memory/allocation_records`.
macro_rules! under_way {
    (release) => {
        crate::memory::in_flight_frees::enter_free()
    };
    (share) => {
        crate::memory::in_flight_frees::enter_free()
    };
    (pool) => {
        crate::memory::in_flight_frees::enter_free()
    };
    ($subject:ident) => {
        ()
    };
}

/// Calls `driver::library::detour` as the row's function, after [`crate::driver::library::Library::call_target`]
/// returned null.
macro_rules! detour {
    ($fns:ident $h:ident ( $($a:ident),* )) => {{
        let at = crate::driver::library::detour as *const () as *mut c_void;
        // SAFETY: it passes the program's own arguments on, as a function of the row's signature gets them.
        unsafe { core::mem::transmute::<*mut c_void, $fns::$h>(at)($($a),*) }
    }};
}

/// One exported function. Those of `kernel` usually jump straight to the driver or take the fast path; neither can
/// panic, so neither has a guard. Their slow path is out of line. Those of `ask` need the caller's address and are
/// written without a frame in `ffi/arch`. Those of `copy` share one stub: `hooks::copies`.
macro_rules! one {
    (ask $library:ident $numbers:ident $fns:ident $closed:expr; $h:ident ( $($a:ident : $t:ty),* )) => {
    };
    (copy $library:ident $numbers:ident $fns:ident $closed:expr; $h:ident ( $($a:ident : $t:ty),* )) => {
        #[doc = concat!("Hook of `", stringify!($h), "`.")]
        ///
        /// # Safety
        /// As the driver's function.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $h($(_: $t),*) -> <$fns::$h as guard::CFunction>::Output {
            arch::jump_to!($numbers::$h as usize, hooks::enter_copy)
        }
    };
    (kernel $library:ident $numbers:ident $fns:ident $closed:expr; $h:ident ( $($a:ident : $t:ty),* )) => {
        #[doc = concat!("Hook of `", stringify!($h), "`.")]
        ///
        /// # Safety
        /// As the driver's function.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $h($(_: $t),*) -> <$fns::$h as guard::CFunction>::Output {
            /// Null (None), or the function that this hook calls.
            #[inline(always)]
            fn typed_function(real: *mut c_void) -> Option<$fns::$h> {
                // SAFETY: null or a function that the loader knows by this row's name, whose signature is the table's.
                unsafe { core::mem::transmute(real) }
            }
            // Both have the hook's own arguments, so the hook jumps to them and needs no frame.
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn launch_long_way($($a: $t),*) -> <$fns::$h as guard::CFunction>::Output {
                let Some(real) = typed_function($library.call_target($numbers::$h as usize)) else {
                    return detour!($fns $h ($($a),*));
                };
                if !crate::time::governor::is_active() {
                    // SAFETY: the program's own arguments, for the function it called.
                    return unsafe { real($($a),*) };
                }
                // SAFETY: as above.
                guard::catch_panic(|| unsafe { hooks::$h(real, $($a),*) }).unwrap_or($closed)
            }
            #[inline(never)]
            unsafe extern "C" fn under_ceiling($($a: $t),*) -> <$fns::$h as guard::CFunction>::Output {
                let Some(real) = typed_function($library.known_target($numbers::$h as usize)) else {
                    // SAFETY: the program's own arguments, for the function it called.
                    return unsafe { launch_long_way($($a),*) };
                };
                // SAFETY: as above.
                let Some(passed) = (unsafe { hooks::short::$h($($a),*) }) else {
                    // SAFETY: as above.
                    return unsafe { launch_long_way($($a),*) };
                };
                // SAFETY: as above.
                let result = unsafe { real($($a),*) };
                if !result.ok() {
                    hooks::undo_launch(&passed);
                }
                result
            }
            unsafe extern "C" fn launch($($a: $t),*) -> <$fns::$h as guard::CFunction>::Output {
                match typed_function($library.known_target($numbers::$h as usize)) {
                    // SAFETY: the program's own arguments, for the function it called.
                    Some(real) if !crate::time::governor::is_active() => unsafe { real($($a),*) },
                    // SAFETY: as above.
                    Some(_) => unsafe { under_ceiling($($a),*) },
                    // SAFETY: as above.
                    None => unsafe { launch_long_way($($a),*) },
                }
            }
            arch::jump_to!($numbers::$h as usize, launch)
        }
    };
    ($subject:ident $library:ident $numbers:ident $fns:ident $closed:expr; $h:ident ( $($a:ident : $t:ty),* )) => {
        #[doc = concat!("Hook of `", stringify!($h), "`.")]
        ///
        /// # Safety
        /// As the driver's function.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $h($(_: $t),*) -> <$fns::$h as guard::CFunction>::Output {
            unsafe extern "C" fn run_hook($($a: $t),*) -> <$fns::$h as guard::CFunction>::Output {
                let real = $library.call_target($numbers::$h as usize);
                // SAFETY: null (None) or a function that the loader knows by this row's name, whose signature is the
                // table's.
                let Some(real) = (unsafe { core::mem::transmute::<*mut c_void, Option<$fns::$h>>(real) }) else {
                    return detour!($fns $h ($($a),*));
                };
                #[allow(clippy::let_unit_value)]
                let _under_way = under_way!($subject);
                // SAFETY: the program's own arguments, for the function it called.
                match guard::catch_panic(|| unsafe { hooks::$h(real, $($a),*) }) {
                    Some(result) => result,
                    // SAFETY: as above.
                    #[allow(unused_unsafe)]
                    None => after_panic!($subject $closed, unsafe { real($($a),*) }),
                }
            }
            arch::jump_to!($numbers::$h as usize, run_hook)
        }
    };
}

macro_rules! export {
    (
        $library:ident $hooks:ident $numbers:ident $fns:ident $closed:expr;
        hooks { $($subject:ident { $($h:ident ( $($a:ident : $t:ty),* $(,)? );)* })* }
        $(shut { $($kind:ident $why:literal { $($s:ident $(( $($arguments:tt)* ))? ;)* })* })?
        typed $typed:tt
        named $named:tt
    ) => {
        $($(one! { $subject $library $numbers $fns $closed; $h($($a: $t),*) })*)*

        $($($(
            #[doc = concat!("`", stringify!($s), "`, which is shut under limits.")]
            ///
            /// # Safety
            /// As the driver's function.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            #[allow(non_snake_case)]
            pub unsafe extern "C" fn $s() {
                arch::jump_to!($numbers::$s as usize, hooks::shut)
            }
        )*)*)?

        arch::distances!($hooks: $($($h)*)* $($($($s)*)*)?);
    };
}

shim_sys::cuda_table!(export, CUDA vgpu_cuda_hooks CudaHook cuda_fn CUresult::NOT_PERMITTED;);
shim_sys::nvml_table!(
    export,
    NVML vgpu_nvml_hooks NvmlHook nvml_fn nvmlReturn_t::NO_PERMISSION;
);
