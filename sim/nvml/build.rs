//! Sets the library's soname to the driver's file name, and writes a stub for every function that driver 535
//! exports and that is not implemented here.

use shim_sys::table::NVML_ROWS;
use std::{collections::HashSet, env, fmt::Write, fs, path::Path};

const EXPORTS: &str = include_str!("exports-535.txt");

fn main() {
    println!("cargo::rerun-if-changed=exports-535.txt");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");

    // Links the unwinder statically, so that the library works in an image without libgcc_s.
    let place = Path::new(&env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("link");
    fs::create_dir_all(&place).expect("OUT_DIR is writable");
    fs::write(place.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n").expect("OUT_DIR is writable");
    println!("cargo::rustc-link-search=native={}", place.display());

    let exported: HashSet<&str> = EXPORTS.lines().collect();
    let mut stubs = String::from("stubs! {\n");
    let mut number = 0;
    for row in NVML_ROWS.iter().filter(|row| exported.contains(row.name) && row.name != "nvmlErrorString") {
        if !row.typed {
            writeln!(stubs, "    {number} {}", row.name).expect("a string takes everything");
            number += 1;
        }
    }
    stubs.push_str("}\n");
    let missing: Vec<_> = exported.iter().filter(|name| !NVML_ROWS.iter().any(|row| row.name == **name)).collect();
    assert!(missing.is_empty(), "exported by the driver, absent from the table: {missing:?}");
    let extra: Vec<_> = NVML_ROWS
        .iter()
        .filter(|row| row.typed && !exported.contains(row.name) && row.name != "nvmlDeviceGetHandleByUUIDV")
        .collect();
    assert!(extra.is_empty(), "typed, so exported here, but not by the driver: {extra:?}");
    let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(Path::new(&out).join("stubs.rs"), stubs).expect("OUT_DIR is writable");
}
