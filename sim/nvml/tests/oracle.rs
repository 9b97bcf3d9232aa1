//! Tests that without a GPU the simulated library gives the same results as the real one from Debian: codes
//! before `nvmlInit` and of `nvmlInit` itself, and texts of errors. Needs `tests/setup/all`.

mod common;

use libloading::Library;
use std::ffi::{CStr, c_char};

const NAMES: &str = include_str!("../exports-535.txt");
const ZERO: usize = 0;

/// Result of a function called with zeroes; before init it can only be a code.
fn code(lib: &Library, name: &str) -> u32 {
    type Any = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize) -> u32;
    // SAFETY: every function but nvmlErrorString returns a code; zero is a null pointer or an empty count, and the
    // function checks no further before init (measured on 535.309.01: none crashes).
    unsafe { lib.get::<Any>(name.as_bytes()).unwrap()(ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO) }
}

fn with_u32(lib: &Library, name: &str, argument: u32) -> u32 {
    // SAFETY: the functions used with it take one unsigned int.
    unsafe { lib.get::<unsafe extern "C" fn(u32) -> u32>(name.as_bytes()).unwrap()(argument) }
}

fn error_text(lib: &Library, code: u32) -> String {
    // SAFETY: as NVML declares it; the text is static.
    unsafe {
        let f = lib.get::<unsafe extern "C" fn(u32) -> *const c_char>(b"nvmlErrorString").unwrap();
        CStr::from_ptr(f(code)).to_string_lossy().into_owned()
    }
}

fn version(lib: &Library, room: u32) -> (u32, String) {
    let mut buffer = [0 as c_char; 100];
    // SAFETY: as NVML declares it; room is at most the buffer's.
    unsafe {
        let f = lib.get::<unsafe extern "C" fn(*mut c_char, u32) -> u32>(b"nvmlSystemGetNVMLVersion").unwrap();
        let rc = f(buffer.as_mut_ptr(), room);
        (rc, CStr::from_ptr(buffer.as_ptr()).to_string_lossy().into_owned())
    }
}

/// The result code, and the first word of the table if there is one.
fn private_table(lib: &Library, id: [u8; 16]) -> (u32, Option<usize>) {
    let mut table: *const usize = std::ptr::null();
    // SAFETY: as nvidia-smi calls it; a table begins with its size.
    unsafe {
        let f = lib
            .get::<unsafe extern "C" fn(*mut *const usize, *const u8) -> u32>(b"nvmlInternalGetExportTable")
            .unwrap();
        (f(&raw mut table, id.as_ptr()), table.as_ref().copied())
    }
}

#[test]
fn without_a_gpu_every_answer_is_the_real_librarys() {
    let Some(real) = common::part("VGPU_ORACLE_LIBNVML", "Debian's libnvidia-ml1 535 to compare with") else { return };
    if std::path::Path::new("/proc/driver/nvidia/version").exists() {
        println!("SKIPPED: this machine has a GPU driver; the comparison is with a machine that has none");
        return;
    }
    common::lab_of_this_process("none");
    // SAFETY: libraries whose initialisers do nothing to this process.
    let (real, ours) = unsafe { (Library::new(real).unwrap(), Library::new(common::library()).unwrap()) };

    let mut different = Vec::new();
    let mut compared = 0;
    let mut compare = |what: String, real: String, ours: String| {
        compared += 1;
        if real != ours {
            different.push(format!("{what}: real {real}, simulated {ours}"));
        }
    };
    // Two rounds: a failed init changes nothing.
    for round in ["before init", "after a failed init"] {
        for name in NAMES.lines().filter(|n| *n != "nvmlErrorString") {
            compare(format!("{name} {round}"), code(&real, name).to_string(), code(&ours, name).to_string());
        }
        for flags in [0, 1, 2, 3, 4, u32::MAX] {
            let init = |lib| with_u32(lib, "nvmlInitWithFlags", flags).to_string();
            compare(format!("nvmlInitWithFlags({flags}) {round}"), init(&real), init(&ours));
        }
    }
    for code in (0..40).chain([997, 998, 999, 1000, u32::MAX]) {
        compare(format!("nvmlErrorString({code})"), error_text(&real, code), error_text(&ours, code));
    }
    for room in [0, 1, 2, 13, 14, 15, 80] {
        let answer = |lib| format!("{:?}", version(lib, room));
        compare(format!("nvmlSystemGetNVMLVersion with room for {room}"), answer(&real), answer(&ours));
    }
    let known = *b"\xc4\xfe\x3e\x6c\xc9\x8f\x6c\x4e\xa3\x27\xee\x69\x6e\x12\xf7\xc4";
    for id in [known, [0; 16], [0x55; 16]] {
        let answer = |lib| format!("{:?}", private_table(lib, id));
        compare(format!("private table {id:x?}"), answer(&real), answer(&ours));
    }
    assert!(different.is_empty(), "{} of {compared} differ:\n{}", different.len(), different.join("\n"));
    println!("{compared} answers compared");
}
