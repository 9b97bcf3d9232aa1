//! Tests that the library looks like driver 535's from outside: soname, exported functions, a distinct address
//! for each.

mod common;

use std::{
    collections::{BTreeSet, HashMap},
    ffi::c_void,
    process::Command,
};

const NAMES: &str = include_str!("../exports-535.txt");

fn exports(file: &std::path::Path) -> BTreeSet<String> {
    let out = common::run(Command::new("nm").args(["-D", "--defined-only"]).arg(file));
    out.lines()
        .filter_map(|l| l.split_whitespace().nth(2))
        .filter(|n| n.starts_with("nvml"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn it_exports_what_driver_535_exports_and_nothing_else() {
    let wanted: BTreeSet<String> = NAMES.lines().map(str::to_owned).collect();
    assert_eq!(wanted.len(), 332);
    assert_eq!(exports(&common::library()), wanted);
}

#[test]
fn the_list_of_exports_is_that_of_the_real_library() {
    let Some(real) = common::part("VGPU_ORACLE_LIBNVML", "Debian's libnvidia-ml1 535") else { return };
    let wanted: BTreeSet<String> = NAMES.lines().map(str::to_owned).collect();
    assert_eq!(exports(&real), wanted);
}

#[test]
fn every_function_has_an_address_of_its_own() {
    // SAFETY: a library of ours without initialisers of its own.
    let lib = unsafe { libloading::Library::new(common::library()) }.unwrap();
    let mut seen: HashMap<*const c_void, &str> = HashMap::new();
    for name in NAMES.lines() {
        // SAFETY: only the address is taken.
        let symbol = unsafe { lib.get::<unsafe extern "C" fn()>(name.as_bytes()) }.unwrap();
        let address = *symbol as *const c_void;
        if let Some(other) = seen.insert(address, name) {
            panic!("{name} and {other} share an address");
        }
    }
}

#[test]
fn its_name_inside_is_the_drivers() {
    let out = common::run(Command::new("readelf").arg("-d").arg(common::library()));
    assert!(out.contains("Library soname: [libnvidia-ml.so.1]"), "{out}");
}
