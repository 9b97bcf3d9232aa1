//! Every caller that looks up a driver function gets the hook, even while libraries are loaded and closed and others
//! take their addresses. An ordinary lookup gets its answer without the loader's lock. The lookup paths: `doors.rs`,
//! `lookup.rs`.

use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{Lab, optional, run};

fn one_gib() -> Lab {
    Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB")
}

/// A library that exports a function with the driver's name is no exception. Neither are the library and the generated
/// code that take its addresses after it was closed.
#[test]
fn whoever_asks_gets_the_hook_whatever_it_exports_and_wherever_it_stands() {
    let exports_the_name = compile("who", Kind::Library, &["GUEST", "DEFINES"]);
    let ordinary = compile("who", Kind::Library, &["GUEST"]);
    let (named, plain) = (exports_the_name.to_str().unwrap(), ordinary.to_str().unwrap());
    let program = compile("who", Kind::Program, &[]);
    for first in [named, plain] {
        let order = [first, named, plain, "-", named, "-", plain, plain, named, named, plain];
        let said = run(one_gib().command(&program).arg("places").args(order));
        assert_eq!(said.lines().collect::<Vec<_>>(), ["libvgpu.so libvgpu.so there"; 11], "{order:?}");
    }
}

#[test]
fn an_ordinary_lookup_does_not_wait_for_a_walk_over_the_loaders_objects() {
    // SAFETY: the function returns a static C string.
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
