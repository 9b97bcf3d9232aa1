//! Links the unwinder into the programs, so that `vgpu doctor` runs in images without libgcc_s.so.1 too.

use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=../build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    // rustc asks the linker for libgcc_s by name; the first file of that name in the search path answers.
    if fs::write(out.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n").is_ok() {
        println!("cargo:rustc-link-search=native={}", out.display());
    }
}
