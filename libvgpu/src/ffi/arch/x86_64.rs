//! The x86-64 System V code: arguments in rdi, rsi, rdx, rcx, r8, r9 and on the stack, return address at [rsp]; rax
//! and r11 are free. The decisions are made in [`crate::lookup::answer`] and in `hooks`.

use crate::driver::library::{CUDA_CALLED_AT, CUDA_FOUND, begin_in_place, find_detour, first_number};
use crate::ffi::loader::{NEXT_FUNCTIONS, REAL_FUNCTIONS};
use crate::hooks::{COPIES_CHARGED, ask_driver, ask_driver_v2, decide_copy, judge_shut};
use crate::lookup::answer::{answer_lookup, loader};
use crate::lookup::names::HookRow;
use core::ffi::{c_char, c_int, c_long, c_void};
use shim_sys::cuda::CUresult;

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

/// Our replacements of the loader's functions. `$real`: the table of the functions that they jump to.
macro_rules! loaders {
    ($real:ident, $(#[$export:meta])? $dlsym:ident $dlvsym:ident $dlopen:ident $dlmopen:ident) => {
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
        pub unsafe extern "C" fn $dlsym(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
            core::arch::naked_asm!(
                foreign_names_pass!("0"),
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
                answer = sym answer_lookup,
            )
        }

        /// `dlvsym` as the program sees it: foreign names pass by a tail jump.
        ///
        /// # Safety
        /// As `dlvsym`.
        #[unsafe(naked)]
        $(#[$export])?
        pub unsafe extern "C" fn $dlvsym(_handle: *mut c_void, _name: *const c_char, _version: *const c_char) -> *mut c_void {
            core::arch::naked_asm!(
                foreign_names_pass!("8"),
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
                answer = sym answer_lookup,
                none = sym NO_VERSION,
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
        pub unsafe extern "C" fn $dlopen(_file: *const c_char, _flags: c_int) -> *mut c_void {
            core::arch::naked_asm!(
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
                open = sym loader::open,
            )
        }

        /// `dlmopen` as the program sees it: a tail jump. A namespace other than the program's is a bypass.
        ///
        /// # Safety
        /// As `dlmopen`.
        #[unsafe(naked)]
        $(#[$export])?
        pub unsafe extern "C" fn $dlmopen(_namespace: c_long, _file: *const c_char, _flags: c_int) -> *mut c_void {
            core::arch::naked_asm!(
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
                open = sym loader::open_in,
            )
        }
    };
}

loaders!(NEXT_FUNCTIONS, #[unsafe(no_mangle)] dlsym dlvsym dlopen dlmopen);
loaders!(REAL_FUNCTIONS, last_dlsym last_dlvsym last_dlopen last_dlmopen);

/// Replaces a null version in `dlvsym`.
static NO_VERSION: u8 = 0;

/// The driver's lookup of functions, which adds the caller's address to the arguments.
///
/// # Safety
/// As the driver's function.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn cuGetProcAddress(
    _symbol: *const c_char,
    _pfn: *mut *mut c_void,
    _version: c_int,
    _flags: u64,
) -> CUresult {
    core::arch::naked_asm!("mov r8, qword ptr [rsp]", "jmp {ask}", ask = sym ask_driver)
}

/// As [`cuGetProcAddress`], with a status.
///
/// # Safety
/// As the driver's function.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    _symbol: *const c_char,
    _pfn: *mut *mut c_void,
    _version: c_int,
    _flags: u64,
    _status: *mut u32,
) -> CUresult {
    core::arch::naked_asm!("mov r9, qword ptr [rsp]", "jmp {ask}", ask = sym ask_driver_v2)
}

/// The body of an export that passes its call on unchanged: loads its row number into eax and jumps.
macro_rules! jump_to {
    ($row:expr, $target:path) => {
        core::arch::naked_asm!(
            "mov eax, {row}",
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
macro_rules! judged {
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
                codes = const FIRST_ADDRESS,
            )
        }
    };
}

judged!(
    /// The target of a hook without a driver function: jumps to the interposer behind us, or returns an error code
    /// where no library has the function.
    ///
    /// # Safety
    /// Jumped to by an export, as the driver's function was called.
    detour find_detour
);

judged!(
    /// The target of every export that is shut, with its row number in eax: returns the code from [`judge_shut`], or
    /// jumps to the driver's function.
    ///
    /// # Safety
    /// Jumped to by the export of a row that is shut, as the driver's function was called.
    shut judge_shut
);

judged!(
    /// The target of each hook that replaces a driver function whose name an interposer also has: jumps to the
    /// export, which calls the driver this time.
    ///
    /// # Safety
    /// Called by [`in_place`]'s code, as the driver's function was called.
    enter_in_place find_in_place, "pop rax"
);

/// Bytes of one call instruction in the table of [`in_place`].
const CALL_BYTES: usize = 5;

// One call instruction for each row: its return address identifies the row.
core::arch::global_asm!(
    ".pushsection .text.vgpu_in_place,\"ax\",@progbits",
    ".globl vgpu_in_place",
    ".hidden vgpu_in_place",
    "vgpu_in_place:",
    ".rept {rows}",
    "call {enter}",
    ".endr",
    ".popsection",
    rows = const first_number::ROWS,
    enter = sym enter_in_place,
);

unsafe extern "C" {
    static vgpu_in_place: [[u8; CALL_BYTES]; first_number::ROWS];
}

/// The hook that replaces the driver's own function of row `number`: it acts like the export, but skips any
/// interposer.
pub fn in_place(number: usize) -> *mut c_void {
    (&raw const vgpu_in_place).cast::<[u8; CALL_BYTES]>().wrapping_add(number).cast_mut().cast()
}

/// The export of the row whose call instruction ends at `after`. The row's next call on this thread calls the driver.
extern "C" fn find_in_place(after: usize) -> usize {
    let number = after.wrapping_sub(in_place(1) as usize) / CALL_BYTES;
    begin_in_place(number);
    HookRow::of_number(number).hook_address() as usize
}

/// A result below this is an error code, not an address.
const FIRST_ADDRESS: usize = 4096;

/// Number of arguments passed in registers; further ones are on the stack, in order.
pub const REGISTER_ARGUMENTS: usize = 6;

/// The target of every copy, with its row number in eax: jumps to the function that the hook calls, or calls
/// [`decide_copy`].
///
/// # Safety
/// Jumped to by the export of a row of copies, as the driver's function was called.
#[unsafe(naked)]
pub unsafe extern "C" fn enter_copy() {
    core::arch::naked_asm!(
        "cmp byte ptr [rip + {charged}], 0",
        "jne 2f",
        "lea r11, [rip + {cuda} + {called_at}]",
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
        charged = sym COPIES_CHARGED,
        cuda = sym CUDA_FOUND,
        called_at = const CUDA_CALLED_AT,
        decide = sym decide_copy,
    )
}

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
