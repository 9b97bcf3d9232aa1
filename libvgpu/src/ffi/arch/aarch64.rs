//! The AArch64 code (AAPCS64): arguments in x0 to x7 and on the stack, return address in x30; x9 to x17 are free.
//! Linkers' stubs and other programs' jumps use x16 and x17, so a row number travels in x9.

/// The first 20 bytes of every export: instructions that work at any address.
///
/// Some programs overwrite the beginning of a function with a jump of 8 to 20 bytes, and run the overwritten
/// instructions from a copy elsewhere (UCX, Detours, funchook). An instruction that depends on its own address cannot
/// be copied, and a shorter function would lose its neighbour's first bytes. All of those tools know this instruction.
/// Their jump back into the function uses a register that the copied instructions do not name.
macro_rules! relocatable_entry {
    ($row:literal) => {
        concat!("mov w9, ", $row, "\nmov w9, ", $row, "\nmov w9, ", $row, "\nmov w9, ", $row, "\nmov w9, ", $row)
    };
}
pub(crate) use relocatable_entry;

/// Loads the word at offset `$at` of the table `real` into x16.
macro_rules! load_real {
    ($at:literal) => {
        concat!("adrp x16, {real} + ", $at, "\nldr x16, [x16, :lo12:{real} + ", $at, "]\n")
    };
}
pub(crate) use load_real;

/// The beginning of `dlsym` and `dlvsym`, whose name argument is in x1. A foreign name jumps to the real function,
/// whose address is at offset `$at` of the table `real`, as if this library did not exist. Label 4 is reached by
/// names that begin like those of the table: `cu` and a capital, `nvml`, `dl` (`lookup::names` asserts that all of
/// them do). The first call also reaches it, because the address is not known yet.
macro_rules! foreign_names_pass {
    ($at:literal) => {
        concat!(
            "cbz x1, 3f\n",
            "ldrb w10, [x1]\n",
            "cmp w10, 'c'\n",
            "b.eq 7f\n",
            "cmp w10, 'n'\n",
            "b.eq 2f\n",
            "cmp w10, 'd'\n",
            "b.eq 6f\n",
            "3:\n",
            $crate::ffi::arch::load_real!($at),
            "cbz x16, 4f\n",
            "br x16\n",
            "7:\n", // cu, and a capital: not cudnn, curl, cublas
            "ldrb w10, [x1, 1]\n",
            "cmp w10, 'u'\n",
            "b.ne 3b\n",
            "ldrb w10, [x1, 2]\n",
            "sub w10, w10, 'A'\n",
            "cmp w10, 25\n",
            "b.hi 3b\n",
            "b 4f\n",
            "2:\n", // nvml: not nvrtc, nvtx, nvjpeg
            "ldrb w10, [x1, 1]\n",
            "cmp w10, 'v'\n",
            "b.ne 3b\n",
            "ldrb w10, [x1, 2]\n",
            "cmp w10, 'm'\n",
            "b.ne 3b\n",
            "ldrb w10, [x1, 3]\n",
            "cmp w10, 'l'\n",
            "b.ne 3b\n",
            "b 4f\n",
            "6:\n",
            "ldrb w10, [x1, 1]\n",
            "cmp w10, 'l'\n",
            "b.ne 3b\n",
            "4:",
        )
    };
}

pub(crate) use foreign_names_pass;

/// Our replacements of the loader's functions. `$real`: the table of the functions that they jump to. `$answer`,
/// `$open` and `$open_in` decide about the calls that do not pass.
macro_rules! loader_functions {
    ($real:path, $answer:path, $open:path, $open_in:path; $(#[$export:meta])? $dlsym:ident $dlvsym:ident $dlopen:ident $dlmopen:ident) => {
        /// `dlsym` as the program sees it: foreign names pass by a tail jump.
        ///
        /// # Safety
        /// As `dlsym`.
        ///
        /// # Cost
        /// A few compares and an indirect jump for a foreign name; a hash as well if it begins like a name of the
        /// table.
        #[unsafe(naked)]
        $(#[$export])?
        pub unsafe extern "C" fn $dlsym(_handle: *mut core::ffi::c_void, _name: *const core::ffi::c_char) -> *mut core::ffi::c_void {
            core::arch::naked_asm!(
                $crate::ffi::arch::relocatable_entry!("0"),
                $crate::ffi::arch::foreign_names_pass!("0"),
                "stp x29, x30, [sp, -32]!",
                "mov x29, sp",
                "stp x0, x1, [sp, 16]",
                "mov x2, xzr",
                "mov x3, x30",
                "bl {answer}",
                "mov x10, x0",
                "mov x11, x1",
                "ldp x0, x1, [sp, 16]",
                "ldp x29, x30, [sp], 32",
                "cbz x11, 5f",
                "mov x0, x10",
                "ret",
                "5:",
                $crate::ffi::arch::load_real!("0"),
                "br x16",
                real = sym $real,
                answer = sym $answer,
            )
        }

        /// `dlvsym` as the program sees it: foreign names pass by a tail jump.
        ///
        /// # Safety
        /// As `dlvsym`.
        #[unsafe(naked)]
        $(#[$export])?
        pub unsafe extern "C" fn $dlvsym(_handle: *mut core::ffi::c_void, _name: *const core::ffi::c_char, _version: *const core::ffi::c_char) -> *mut core::ffi::c_void {
            core::arch::naked_asm!(
                $crate::ffi::arch::relocatable_entry!("0"),
                $crate::ffi::arch::foreign_names_pass!("8"),
                "stp x29, x30, [sp, -48]!",
                "mov x29, sp",
                "stp x0, x1, [sp, 16]",
                "str x2, [sp, 32]",
                "adrp x10, {none}",
                "add x10, x10, :lo12:{none}",
                "cmp x2, 0",
                "csel x2, x10, x2, eq", // answer() tells the two functions apart by the version
                "mov x3, x30",
                "bl {answer}",
                "mov x10, x0",
                "mov x11, x1",
                "ldp x0, x1, [sp, 16]",
                "ldr x2, [sp, 32]",
                "ldp x29, x30, [sp], 48",
                "cbz x11, 5f",
                "mov x0, x10",
                "ret",
                "5:",
                $crate::ffi::arch::load_real!("8"),
                "br x16",
                real = sym $real,
                answer = sym $answer,
                none = sym $crate::ffi::arch::NO_VERSION,
            )
        }

        /// `dlopen` as the program sees it: a tail jump, with RTLD_DEEPBIND cleared where limits are asked for.
        ///
        /// # Safety
        /// As `dlopen`.
        ///
        /// # Cost
        /// A test and an indirect jump without that flag.
        #[unsafe(naked)]
        $(#[$export])?
        pub unsafe extern "C" fn $dlopen(_file: *const core::ffi::c_char, _flags: core::ffi::c_int) -> *mut core::ffi::c_void {
            core::arch::naked_asm!(
                $crate::ffi::arch::relocatable_entry!("0"),
                "tst w1, {deepbind}",
                "b.ne 7f",
                $crate::ffi::arch::load_real!("16"),
                "cbz x16, 7f",
                "br x16",
                "7:",
                "stp x29, x30, [sp, -32]!",
                "mov x29, sp",
                "str x0, [sp, 16]",
                "bl {open}",
                "mov w1, w0",
                "ldr x0, [sp, 16]",
                "ldp x29, x30, [sp], 32",
                $crate::ffi::arch::load_real!("16"),
                "cbz x16, 2f",
                "br x16",
                "2:", // a process without dlopen: no code can have called this
                "mov x0, xzr",
                "ret",
                deepbind = const libc::RTLD_DEEPBIND,
                real = sym $real,
                open = sym $open,
            )
        }

        /// `dlmopen` as the program sees it: a tail jump. A namespace other than the program's is a bypass.
        ///
        /// # Safety
        /// As `dlmopen`.
        #[unsafe(naked)]
        $(#[$export])?
        pub unsafe extern "C" fn $dlmopen(_namespace: core::ffi::c_long, _file: *const core::ffi::c_char, _flags: core::ffi::c_int) -> *mut core::ffi::c_void {
            core::arch::naked_asm!(
                $crate::ffi::arch::relocatable_entry!("0"),
                "stp x29, x30, [sp, -32]!",
                "mov x29, sp",
                "str x1, [sp, 16]",
                "bl {open}",
                "mov x2, x1",
                "ldr x1, [sp, 16]",
                "ldp x29, x30, [sp], 32",
                $crate::ffi::arch::load_real!("24"),
                "cbz x16, 2f",
                "br x16",
                "2:",
                "mov x0, xzr",
                "ret",
                real = sym $real,
                open = sym $open_in,
            )
        }
    };
}

pub(crate) use loader_functions;

/// Replaces a null version in `dlvsym`.
pub static NO_VERSION: u8 = 0;

/// The exports of the driver's own lookup, which add the caller's address to the arguments for `$ask` and `$ask_v2`.
macro_rules! driver_lookups {
    ($ask:path, $ask_v2:path) => {
        /// The driver's lookup of functions, which adds the caller's address to the arguments.
        ///
        /// # Safety
        /// As the driver's function.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn cuGetProcAddress(
            _symbol: *const core::ffi::c_char,
            _pfn: *mut *mut core::ffi::c_void,
            _version: core::ffi::c_int,
            _flags: u64,
        ) -> shim_sys::cuda::CUresult {
            core::arch::naked_asm!(
                $crate::ffi::arch::relocatable_entry!("0"),
                "mov x4, x30",
                "b {ask}",
                ask = sym $ask,
            )
        }

        /// As [`cuGetProcAddress`], with a status.
        ///
        /// # Safety
        /// As the driver's function.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn cuGetProcAddress_v2(
            _symbol: *const core::ffi::c_char,
            _pfn: *mut *mut core::ffi::c_void,
            _version: core::ffi::c_int,
            _flags: u64,
            _status: *mut u32,
        ) -> shim_sys::cuda::CUresult {
            core::arch::naked_asm!(
                $crate::ffi::arch::relocatable_entry!("0"),
                "mov x5, x30",
                "b {ask}",
                ask = sym $ask_v2,
            )
        }
    };
}
pub(crate) use driver_lookups;

/// The body of an export that passes its call on unchanged: loads its row number into w9 and jumps.
macro_rules! jump_to {
    ($row:expr, $target:path) => {
        core::arch::naked_asm!(
            $crate::ffi::arch::relocatable_entry!("{row}"),
            "b {target}",
            row = const $row,
            target = sym $target,
        )
    };
}
pub(crate) use jump_to;

/// A function that calls `$judge` with the number in x9 and the call's first argument. It then jumps to the function
/// that `$judge` returned, with the call's arguments unchanged. A result below [`FIRST_ADDRESS`] is returned as an
/// error code instead.
///
/// None of these functions has floating-point arguments or returns a structure, so only x0 to x7 are saved.
macro_rules! judged_jump {
    ($(#[$about:meta])* $name:ident $judge:path) => {
        $(#[$about])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "stp x29, x30, [sp, -80]!",
                "mov x29, sp",
                "stp x0, x1, [sp, 16]",
                "stp x2, x3, [sp, 32]",
                "stp x4, x5, [sp, 48]",
                "stp x6, x7, [sp, 64]",
                "mov x1, x0",
                "mov x0, x9",
                "bl {judge}",
                "mov x16, x0",
                "ldp x0, x1, [sp, 16]",
                "ldp x2, x3, [sp, 32]",
                "ldp x4, x5, [sp, 48]",
                "ldp x6, x7, [sp, 64]",
                "ldp x29, x30, [sp], 80",
                "cmp x16, {codes}",
                "b.lo 2f",
                "br x16",
                "2:",
                "mov x0, x16",
                "ret",
                judge = sym $judge,
                codes = const $crate::ffi::arch::FIRST_ADDRESS,
            )
        }
    };
}

pub(crate) use judged_jump;

/// Bytes of one entry in the table of [`in_place_table`].
pub const ENTRY_BYTES: usize = 24;

/// A table with one entry for each row, which begins as an export does and loads the row number into w9. The call goes
/// on to the function that `$find` returns for that number, with its arguments unchanged.
macro_rules! in_place_table {
    ($table:ident: $rows:expr, $enter:ident $find:path) => {
        $crate::ffi::arch::judged_jump!(
            /// The target of all entries of the table, with the row number in w9.
            ///
            /// # Safety
            /// Jumped to by the table's code, as the driver's function was called.
            $enter $find
        );

        core::arch::global_asm!(
            ".pushsection .text.vgpu_in_place,\"ax\",%progbits",
            ".balign 4",
            concat!(".globl ", stringify!($table)),
            concat!(".hidden ", stringify!($table)),
            concat!(stringify!($table), ":"),
            ".set vgpu_in_place_row, 0",
            ".rept {rows}",
            // mov w9, row
            ".rept 5",
            ".inst 0x52800009 | vgpu_in_place_row << 5",
            ".endr",
            "b {enter}",
            ".set vgpu_in_place_row, vgpu_in_place_row + 1",
            ".endr",
            ".popsection",
            rows = const $rows,
            enter = sym $enter,
        );

        unsafe extern "C" {
            static $table: [[u8; $crate::ffi::arch::ENTRY_BYTES]; $rows];
        }
    };
}
pub(crate) use in_place_table;

/// A result below this is an error code, not an address.
pub const FIRST_ADDRESS: usize = 4096;

/// Number of arguments passed in registers; further ones are on the stack, in order.
pub const REGISTER_ARGUMENTS: usize = 8;

/// The target of every export that may be charged, with its row number in w9. While the byte `$charged` is 0 and the
/// row's function is known, it jumps there: the addresses are `$called_at` bytes behind the beginning of `$found`.
/// Otherwise it calls `$decide` with the row, the arguments in registers, and the address of the further ones.
macro_rules! charged_jump {
    ($(#[$about:meta])* $name:ident $charged:path, $found:path, $called_at:path, $decide:path) => {
        $(#[$about])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "adrp x10, {charged}",
                "ldrb w10, [x10, :lo12:{charged}]",
                "cbnz w10, 2f",
                "adrp x10, {found} + {called_at}",
                "add x10, x10, :lo12:{found} + {called_at}",
                "ldr x16, [x10, x9, lsl 3]",
                "cbz x16, 2f",
                "br x16",
                "2:",
                "stp x29, x30, [sp, -80]!",
                "mov x29, sp",
                "stp x0, x1, [sp, 16]",
                "stp x2, x3, [sp, 32]",
                "stp x4, x5, [sp, 48]",
                "stp x6, x7, [sp, 64]",
                "mov x0, x9",
                "add x1, sp, 16",
                "add x2, sp, 80",
                "bl {decide}",
                "ldp x29, x30, [sp], 80",
                "ret",
                charged = sym $charged,
                found = sym $found,
                called_at = const $called_at,
                decide = sym $decide,
            )
        }
    };
}
pub(crate) use charged_jump;

/// The table of distances from itself to functions, by row.
macro_rules! distances {
    ($table:ident: $($function:ident)*) => {
        core::arch::global_asm!(
            ".pushsection .rodata.vgpu_hooks,\"a\",%progbits",
            ".balign 4",
            concat!(".globl ", stringify!($table)),
            concat!(".hidden ", stringify!($table)),
            concat!(stringify!($table), ":"),
            $(concat!(".long ", stringify!($function), " - ", stringify!($table)),)*
            ".popsection",
        );
    };
}
pub(crate) use distances;

/// The thread pointer: never 0, and unique among living threads.
#[inline(always)]
pub fn this_thread() -> usize {
    let block: usize;
    // SAFETY: reads a register that the C library sets for each thread.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) block, options(nomem, nostack, preserves_flags, pure));
    }
    block
}
