//! The table: each function of the CUDA and NVML headers, declared and classified once.
//!
//! Pass a macro's name to [`cuda_table!`](crate::cuda_table) or [`nvml_table!`](crate::nvml_table) to derive code
//! from all rows: libvgpu's exports and substitution map, the typed accessors of real functions, the simulated
//! driver's exports, the coverage tests. The macro gets
//!
//! ```text
//! hooks { subject { name(arg: Type, ...); ... } ... }
//! shut { deny "why" { name; ... }  hide "why" { name(arg: Type, ...); name; ... } }     (NVML only)
//! typed { pass "why" { name(arg: Type, ...); ... } ... }
//! named { pass "why" { name name ... } ... }
//! ```
//!
//! A function under `shut` needs no hook function: under limits it returns a fixed error, otherwise the real function
//! runs.
//!
//! The types are those of [`crate::cuda`] and [`crate::nvml`]; the user of the table imports them. The table has no
//! versions: the driver decides which variant of a function a caller gets.

mod cuda;
mod nvml;

/// How the library treats a driver function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowAction {
    /// libvgpu hooks it; the subject of the hook.
    Hook(&'static str),
    /// The function needs no hook, for this reason.
    Pass(&'static str),
    /// Under limits it returns "no permission", as the driver does to a caller that is not an administrator; the
    /// reason.
    Deny(&'static str),
    /// Under limits it returns "not supported by the device"; the reason.
    Hide(&'static str),
}

/// One function of the headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Name of the exported symbol.
    pub name: &'static str,
    /// Treatment of the function.
    pub action: RowAction,
    /// True if its signature is declared.
    pub typed: bool,
}

impl Row {
    /// The name without version and stream suffix, as passed to `cuGetProcAddress`.
    ///
    /// `cuMemAllocAsync_ptsz` and `cuMemAlloc_v2` become `cuMemAllocAsync` and `cuMemAlloc`.
    pub fn base_name(&self) -> &'static str {
        base_name(self.name)
    }
}

/// See [`Row::base_name`].
pub fn base_name(name: &str) -> &str {
    &name[..base_length(name.as_bytes())]
}

/// Length of the base name of `name`; the removed suffix is ASCII. See [`Row::base_name`].
#[inline]
pub const fn base_length(name: &[u8]) -> usize {
    match name {
        [.., b'0'..=b'9' | b'z' | b's'] => base_length_of_suffixed(name),
        _ => name.len(),
    }
}

const fn base_length_of_suffixed(name: &[u8]) -> usize {
    let stem = match name {
        [stem @ .., b'_', b'p', b't', b's', b'z'] | [stem @ .., b'_', b'p', b't', b'd', b's'] => stem,
        _ => name,
    };
    let mut rest = stem;
    while let [shorter @ .., b'0'..=b'9'] = rest {
        rest = shorter;
    }
    match rest {
        [base @ .., b'_', b'v'] if rest.len() < stem.len() => base.len(),
        _ => stem.len(),
    }
}

macro_rules! action {
    (pass $why:literal) => {
        RowAction::Pass($why)
    };
    (deny $why:literal) => {
        RowAction::Deny($why)
    };
    (hide $why:literal) => {
        RowAction::Hide($why)
    };
}

/// True if there is a list of arguments.
const fn is_typed(arguments: &[&str]) -> bool {
    !arguments.is_empty()
}

macro_rules! derive_rows {
    (
        $rows:ident $hook:ident $names:ident $fns:ident $ret:ident $lib:literal
        hooks { $($subject:ident { $($h:ident ( $($ha:ident : $ht:ty),* $(,)? );)* })* }
        $(shut { $($sd:ident $sw:literal { $($s:ident $(( $($sa:ident : $st:ty),* $(,)? ))? ;)* })* })?
        typed { $($td:ident $tw:literal { $($t:ident ( $($ta:ident : $tt:ty),* $(,)? );)* })* }
        named { $($nd:ident $nw:literal { $($n:ident)* })* }
    ) => {
        #[doc = concat!("Every function of ", $lib, ", hooks first, then what is shut, in the order of the hooks' numbers.")]
        pub const $rows: &[Row] = &[
            $($(Row { name: stringify!($h), action: RowAction::Hook(stringify!($subject)), typed: true },)*)*
            $($($(Row {
                name: stringify!($s),
                action: action!($sd $sw),
                typed: is_typed(&[$(stringify!($($sa)*))?]),
            },)*)*)?
            $($(Row { name: stringify!($t), action: action!($td $tw), typed: true },)*)*
            $($(Row { name: stringify!($n), action: action!($nd $nw), typed: false },)*)*
        ];

        #[doc = concat!("The functions of ", $lib, " that are hooked or shut, by number.")]
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u16)]
        pub enum $hook {
            $($(#[doc = concat!("`", stringify!($h), "`")] $h,)*)*
            $($($(#[doc = concat!("`", stringify!($s), "`")] $s,)*)*)?
        }

        impl $hook {
            /// Number of these functions.
            pub const COUNT: usize = $names.len();
        }

        #[doc = concat!("The names of the functions of ", $lib, " that are hooked or shut, by number, each ended by a zero byte.")]
        pub const $names: &[&core::ffi::CStr] = &[
            $($(match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($h), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name holds no zero byte"),
            },)*)*
            $($($(match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($s), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name holds no zero byte"),
            },)*)*)?
        ];

        #[doc = concat!("The C signature of every typed function of ", $lib, ", under the function's own name.")]
        #[allow(non_camel_case_types)]
        pub mod $fns {
            use crate::{cuda::*, nvml::*};
            use core::ffi::{c_char, c_void};
            $($(#[doc = concat!("Signature of `", stringify!($h), "`.")] pub type $h = unsafe extern "C" fn($($ht),*) -> $ret;)*)*
            $($($($(
                #[doc = concat!("Signature of `", stringify!($s), "`.")] pub type $s = unsafe extern "C" fn($($st),*) -> $ret;
            )?)*)*)?
            $($(#[doc = concat!("Signature of `", stringify!($t), "`.")] pub type $t = unsafe extern "C" fn($($tt),*) -> $ret;)*)*
            #[allow(unused)]
            type Unused = (*const c_char, *const c_void, CUresult, nvmlReturn_t);
        }
    };
}

crate::cuda_table!(derive_rows, CUDA_ROWS CudaHook CUDA_HOOK_NAMES cuda_fn CUresult "the CUDA driver");
crate::nvml_table!(derive_rows, NVML_ROWS NvmlHook NVML_HOOK_NAMES nvml_fn nvmlReturn_t "NVML");

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_function_is_declared_twice() {
        for rows in [CUDA_ROWS, NVML_ROWS] {
            let mut seen = HashSet::new();
            for row in rows {
                assert!(seen.insert(row.name), "{} stands in the table twice", row.name);
            }
        }
    }

    #[test]
    fn hooks_come_first_then_what_is_shut_in_the_order_of_their_numbers() {
        for (rows, names) in [(CUDA_ROWS, CUDA_HOOK_NAMES), (NVML_ROWS, NVML_HOOK_NAMES)] {
            for (row, name) in rows.iter().zip(names) {
                assert_eq!(row.name, name.to_str().unwrap());
            }
            assert!(rows[names.len()..].iter().all(|row| matches!(row.action, RowAction::Pass(_))));
            // The number of a function shows its kind, since the kinds are sorted.
            let kind = |row: &Row| match row.action {
                RowAction::Hook(_) => 0,
                RowAction::Deny(_) => 1,
                RowAction::Hide(_) => 2,
                RowAction::Pass(_) => 3,
            };
            assert!(rows.is_sorted_by_key(kind));
        }
    }

    #[test]
    fn base_names_lose_version_and_stream_suffix_and_nothing_else() {
        for (name, base) in [
            ("cuMemAlloc_v2", "cuMemAlloc"),
            ("cuMemAllocAsync_ptsz", "cuMemAllocAsync"),
            ("cuMemcpyHtoD_v2_ptds", "cuMemcpyHtoD"),
            ("cuStreamGetCaptureInfo_v3_ptsz", "cuStreamGetCaptureInfo"),
            ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"),
            ("cuLaunchKernel", "cuLaunchKernel"),
            ("x_vector", "x_vector"),
            ("x_v", "x_v"),
            ("_v1", ""),
            ("v1", "v1"),
            ("12", "12"),
            ("", ""),
            ("_ptsz", ""),
            ("a_v2_v3", "a_v2"),
            ("a_v2x", "a_v2x"),
            ("\u{e9}_v2", "\u{e9}"),
            ("x_ptsz_v2", "x_ptsz"),
        ] {
            assert_eq!(base_name(name), base);
        }
    }
}
