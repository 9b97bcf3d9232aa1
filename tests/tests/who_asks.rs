//! Who asks decides what is found, and is found out anew each time: libraries come and go, and others take their place.
//! An ordinary caller is told without the loader's lock. What is found through which door: `doors.rs`, `lookup.rs`.

use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{Lab, optional, run};

fn one_gib() -> Lab {
    Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB")
}

/// A library that stands in front of the driver's function gets the driver's, or the hook would call it again. What
/// takes its place when it was closed, another library or code made at run time, gets the hook.
#[test]
fn what_stands_where_another_library_stood_is_not_taken_for_it() {
    let stands_in_front = compile("who", Kind::Library, &["GUEST", "DEFINES"]);
    let ordinary = compile("who", Kind::Library, &["GUEST"]);
    let (front, plain) = (stands_in_front.to_str().unwrap(), ordinary.to_str().unwrap());
    let (its_own, the_hook) = ("libcuda.so.1 libcuda.so.1 there", "libvgpu.so libvgpu.so there");
    let program = compile("who", Kind::Program, &[]);
    for first in [front, plain] {
        let order = [first, front, plain, "-", front, "-", plain, plain, front, front, plain];
        let said = run(one_gib().command(&program).arg("places").args(order));
        let expected: Vec<&str> = order.iter().map(|&who| if who == front { its_own } else { the_hook }).collect();
        assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{order:?}");
    }
}

#[test]
fn an_ordinary_lookup_does_not_wait_for_a_walk_over_the_loaders_objects() {
    // SAFETY: a static C string.
    let libc = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) }.to_str().unwrap();
    if libc.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok()).is_none_or(|minor| minor < 35) {
        return optional::skipped("lookups without the loader's lock: glibc 2.35");
    }
    let program = compile("who", Kind::Program, &[]);
    let bare = run(one_gib().bare(&program).arg("walk"));
    assert!(bare.starts_with("8 libcuda.so.1 libcuda.so.1 libcuda.so.1 libcuda.so.1 null"), "{bare}");
    for lab in [one_gib(), Lab::new("h200")] {
        let said = run(lab.command(&program).arg("walk"));
        let words: Vec<&str> = said.split_whitespace().collect();
        assert_eq!(words[0], "8", "lookups came back during the walk: {said}");
        let hooked = |name: &str| shim_sys::table::CUDA_HOOK_NAMES.iter().any(|row| row.to_str() == Ok(name));
        let expected = |name| if hooked(name) { "libvgpu.so" } else { "libcuda.so.1" };
        let names = ["cuMemAlloc_v2", "cuDeviceGetAttribute", "cuCtxSynchronize", "cuMemAlloc_v2"];
        assert_eq!(words[1..5], names.map(expected), "{said}");
        assert_eq!(words[5..], ["null"; 4], "{said}");
    }
}
