//! The x86-64 System V code: arguments in rdi, rsi, rdx, rcx, r8, r9 and on the stack, return address at `[rsp]`; rax
//! and r11 are free.

/// The first 15 bytes of every export: instructions that work at any address.
///
/// Some programs overwrite the beginning of a function with a jump of 5 to 14 bytes, and run the overwritten
/// instructions from a copy elsewhere (UCX, Detours, funchook). An instruction that depends on its own address cannot
/// be copied, and a shorter function would lose its neighbour's first bytes. All of those tools know this instruction,
/// and eax is free at a call. Test: `the_first_14_bytes_of_every_export_can_be_moved_and_overwritten`.
macro_rules! relocatable_entry {
    ($row:literal) => {
        concat!("mov eax, ", $row, "\nmov eax, ", $row, "\nmov eax, ", $row)
    };
}
pub(crate) use relocatable_entry;

/// The beginning of `dlsym` and `dlvsym`, whose name argument is in rsi. A foreign name jumps to the real function,
/// whose address is at offset `$at` of the table `real`, as if this library did not exist. Label 4 is reached by
/// names that begin like those of the table: `cu` and a capital, `nvml`, `dl` (`lookup::names` asserts that all of
/// them do). The first call also reaches it, because the address is not known yet.
macro_rules! foreign_names_pass {
    ($at:literal) => {
        concat!(
            "test rsi, rsi\n",
            "jz 3f\n",
            "movzx eax, byte ptr [rsi]\n",
            "cmp al, 'c'\n",
            "je 1f\n",
            "cmp al, 'n'\n",
            "je 2f\n",
            "cmp al, 'd'\n",
            "je 6f\n",
            "3:\n",
            "mov rax, qword ptr [rip + {real} + ",
            $at,
            "]\n",
            "test rax, rax\n",
            "jz 4f\n",
            "jmp rax\n",
            "1:\n", // cu, and a capital: not cudnn, curl, cublas
            "cmp byte ptr [rsi + 1], 'u'\n",
            "jne 3b\n",
            "movzx eax, byte ptr [rsi + 2]\n",
            "sub eax, 'A'\n",
            "cmp eax, 25\n",
            "ja 3b\n",
            "jmp 4f\n",
            "2:\n", // nvml: not nvrtc, nvtx, nvjpeg
            "cmp byte ptr [rsi + 1], 'v'\n",
            "jne 3b\n",
            "cmp byte ptr [rsi + 2], 'm'\n",
            "jne 3b\n",
            "cmp byte ptr [rsi + 3], 'l'\n",
            "jne 3b\n",
            "jmp 4f\n",
            "6:\n",
            "cmp byte ptr [rsi + 1], 'l'\n",
            "jne 3b\n",
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
                "sub rsp, 24",
                "mov qword ptr [rsp + 8], rdi",
                "mov qword ptr [rsp + 16], rsi",
                "xor edx, edx",
                "mov rcx, qword ptr [rsp + 24]",
                "call {answer}",
                "mov rdi, qword ptr [rsp + 8]",
                "mov rsi, qword ptr [rsp + 16]",
                "add rsp, 24",
                "test rdx, rdx",
                "jz 5f",
                "ret",
                "5:",
                "mov rax, qword ptr [rip + {real}]",
                "jmp rax",
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
                "sub rsp, 40",
                "mov qword ptr [rsp + 8], rdi",
                "mov qword ptr [rsp + 16], rsi",
                "mov qword ptr [rsp + 24], rdx",
                "lea rax, [rip + {none}]",
                "test rdx, rdx",
                "cmovz rdx, rax", // answer() tells the two functions apart by the version
                "mov rcx, qword ptr [rsp + 40]",
                "call {answer}",
                "mov rcx, rdx",
                "mov rdi, qword ptr [rsp + 8]",
                "mov rsi, qword ptr [rsp + 16]",
                "mov rdx, qword ptr [rsp + 24]",
                "add rsp, 40",
                "test rcx, rcx",
                "jz 5f",
                "ret",
                "5:",
                "mov rax, qword ptr [rip + {real} + 8]",
                "jmp rax",
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
                "test esi, {deepbind}",
                "jnz 1f",
                "mov rax, qword ptr [rip + {real} + 16]",
                "test rax, rax",
                "jz 1f",
                "jmp rax",
                "1:",
                "sub rsp, 24",
                "mov qword ptr [rsp + 8], rdi",
                "call {open}",
                "mov rdi, qword ptr [rsp + 8]",
                "mov esi, eax",
                "add rsp, 24",
                "mov rax, qword ptr [rip + {real} + 16]",
                "test rax, rax",
                "jz 2f",
                "jmp rax",
                "2:", // a process without dlopen: no code can have called this
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
                "sub rsp, 24",
                "mov qword ptr [rsp + 8], rsi",
                "call {open}",
                "mov rsi, qword ptr [rsp + 8]",
                "mov rdi, rax",
                "add rsp, 24",
                "mov rax, qword ptr [rip + {real} + 24]",
                "test rax, rax",
                "jz 2f",
                "jmp rax",
                "2:",
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
                "mov r8, qword ptr [rsp]",
                "jmp {ask}",
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
                "mov r9, qword ptr [rsp]",
                "jmp {ask}",
                ask = sym $ask_v2,
            )
        }
    };
}
pub(crate) use driver_lookups;

/// The body of an export that passes its call on unchanged: loads its row number into eax and jumps.
macro_rules! jump_to {
    ($row:expr, $target:path) => {
        core::arch::naked_asm!(
            $crate::ffi::arch::relocatable_entry!("{row}"),
            "jmp {target}",
            row = const $row,
            target = sym $target,
        )
    };
}
pub(crate) use jump_to;

/// A function without a frame that calls `$judge` with the number in eax and the call's first argument. It then jumps
/// to the function that `$judge` returned, with the call's arguments unchanged. A result below [`FIRST_ADDRESS`] is
/// returned as an error code instead.
///
/// None of these functions has floating-point arguments, so only the integer registers are saved.
macro_rules! judged_jump {
    ($(#[$about:meta])* $name:ident $judge:path $(, $first:literal)?) => {
        $(#[$about])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                $($first,)?
                "push rbp",
                "mov rbp, rsp",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "push rdi",
                "mov rsi, rdi",
                "mov rdi, rax",
                "call {judge}",
                "pop rdi",
                "pop rsi",
                "pop rdx",
                "pop rcx",
                "pop r8",
                "pop r9",
                "pop rbp",
                "cmp rax, {codes}",
                "jb 2f",
                "jmp rax",
                "2:",
                "ret",
                judge = sym $judge,
                codes = const $crate::ffi::arch::FIRST_ADDRESS,
            )
        }
    };
}

pub(crate) use judged_jump;

/// Bytes of one entry in the table of [`in_place_table`].
pub const ENTRY_BYTES: usize = 20;

/// A table with one entry for each row, which begins as an export does and loads the row number into eax. The call goes
/// on to the function that `$find` returns for that number, with its arguments unchanged.
macro_rules! in_place_table {
    ($table:ident: $rows:expr, $enter:ident $find:path) => {
        $crate::ffi::arch::judged_jump!(
            /// The target of all entries of the table, with the row number in eax.
            ///
            /// # Safety
            /// Jumped to by the table's code, as the driver's function was called.
            $enter $find
        );

        core::arch::global_asm!(
            ".pushsection .text.vgpu_in_place,\"ax\",@progbits",
            concat!(".globl ", stringify!($table)),
            concat!(".hidden ", stringify!($table)),
            concat!(stringify!($table), ":"),
            ".set vgpu_in_place_row, 0",
            ".rept {rows}",
            // mov eax, row: the assembler would take a symbol for an address in memory.
            ".rept 3",
            ".byte 0xb8",
            ".long vgpu_in_place_row",
            ".endr",
            "jmp {enter}",
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
pub const REGISTER_ARGUMENTS: usize = 6;

/// The target of every export that may be charged, with its row number in eax. While the byte `$charged` is 0 and the
/// row's function is known, it jumps there: the addresses are `$called_at` bytes behind the beginning of `$found`.
/// Otherwise it calls `$decide` with the row, the arguments in registers, and the address of the further ones.
macro_rules! charged_jump {
    ($(#[$about:meta])* $name:ident $charged:path, $found:path, $called_at:path, $decide:path) => {
        $(#[$about])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "cmp byte ptr [rip + {charged}], 0",
                "jne 2f",
                "lea r11, [rip + {found} + {called_at}]",
                "mov r11, qword ptr [r11 + 8 * rax]",
                "test r11, r11",
                "jz 2f",
                "jmp r11",
                "2:",
                "push rbp",
                "mov rbp, rsp",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "push rdi",
                "mov edi, eax",
                "mov rsi, rsp",
                "lea rdx, [rbp + 16]",
                "call {decide}",
                "leave",
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
            ".pushsection .rodata.vgpu_hooks,\"a\",@progbits",
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

/// The address of this thread's control block: never 0, and unique among living threads.
#[inline(always)]
pub fn this_thread() -> usize {
    let block: usize;
    // SAFETY: the first word of the control block is its own address, by this machine's ABI of thread-local storage.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) block, options(nostack, preserves_flags, pure, readonly));
    }
    block
}
