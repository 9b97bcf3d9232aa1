//! Exports one C function per row of the table of driver 535's exports.
//!
//! A row with a signature calls the body of the same name in the module of its subject; a row without a body does
//! not compile. The other functions are stubs, each with a body, and so an address, of its own.

use crate::arguments::{IntoSafe, NvmlAnswer, code};
use core::ffi::{c_char, c_void};
use once_cell::race::OnceBool;
use shim_sys::nvml::*;

/// The function bodies, by their C names.
mod body {
    pub use crate::{
        accounting::*, device::*, entry::*, event::*, field::*, identity::*, memory::*, mode::*, private_table::*,
        process::*, system::*, telemetry::*, topology::*, utilization::*,
    };
}

/// Functions that work without `nvmlInit`, as in the real library; all others return "uninitialised" then.
fn works_before_init(name: &str) -> bool {
    name.starts_with("nvmlInit")
        || matches!(name, "nvmlShutdown" | "nvmlSystemGetNVMLVersion" | "nvmlInternalGetExportTable")
}

fn answer_call(name: &'static str, body: impl FnOnce() -> NvmlAnswer) -> nvmlReturn_t {
    let result = if !works_before_init(name) && !crate::entry::is_initialised() {
        code::ERROR_UNINITIALIZED
    } else {
        // A panic must not unwind into C.
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
            Ok(Ok(())) => nvmlReturn_t::SUCCESS,
            Ok(Err(code)) => code,
            Err(_) => code::UNKNOWN,
        }
    };
    if is_traced() {
        eprintln!("vgpu-sim: {name} = {}", result.0);
    }
    result
}

/// `VGPU_SIM_TRACE=1` prints each call and its result code on standard error.
fn is_traced() -> bool {
    static TRACE_CALLS: OnceBool = OnceBool::new();
    TRACE_CALLS.get_or_init(|| std::env::var_os("VGPU_SIM_TRACE").is_some())
}

macro_rules! exports {
    (
        hooks { $($subject:ident { $($h:ident ( $($ha:ident : $ht:ty),* $(,)? );)* })* }
        shut { $($sd:ident $sw:literal { $($s:ident $(( $($sa:ident : $st:ty),* $(,)? ))? ;)* })* }
        typed { $($td:ident $tw:literal { $($t:ident ( $($ta:ident : $tt:ty),* $(,)? );)* })* }
        named { $($nd:ident $nw:literal { $($n:ident)* })* }
    ) => {
        $($(exports!(one $h ( $($ha : $ht),* ));)*)*
        $($($(exports!(one $s ( $($sa : $st),* ));)?)*)*
        $($(exports!(one $t ( $($ta : $tt),* ));)*)*
    };
    // Newer than 535; its signature is in the table only for libraries that hook it.
    (one nvmlDeviceGetHandleByUUIDV $args:tt) => {};
    (one $name:ident ( $($arg:ident : $ty:ty),* )) => {
        /// As NVML declares it.
        ///
        /// # Safety
        /// Pointers are null or valid as NVML requires.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> nvmlReturn_t {
            answer_call(stringify!($name), move || {
                // SAFETY: the caller keeps NVML's contract, which is that of `into_safe`.
                $(let $arg = unsafe { $arg.into_safe() }?;)*
                body::$name($($arg),*)
            })
        }
    };
}
shim_sys::nvml_table!(exports);

/// Result of stub `number`; the number also keeps the compiler from merging stubs into one address.
#[inline(never)]
fn not_here(number: u32, name: &'static str) -> nvmlReturn_t {
    if is_traced() {
        eprintln!("vgpu-sim: {name} is not simulated (stub {number})");
    }
    answer_call(name, || Err(code::ERROR_UNSUPPORTED))
}

macro_rules! stubs {
    ($($number:literal $name:ident)*) => {
        $(
            /// Not simulated.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case)]
            pub extern "C" fn $name() -> nvmlReturn_t {
                not_here($number, stringify!($name))
            }
        )*
    };
}
include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
