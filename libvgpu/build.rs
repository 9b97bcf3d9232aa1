//! Links the unwinder into the library itself, so that it needs nothing but libc: an image without libgcc_s.so.1 would
//! otherwise lose every program to the preload.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros)] // they are about the guest; this runs in the build

use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // rustc asks the linker for libgcc_s by name; the first file of that name in the search path answers.
    fs::write(out.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n").expect("OUT_DIR is writable");
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libvgpu.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    // Our own uses of our exports stay ours, also where a program has data of the same name. Not -Bsymbolic: the loader
    // would then search us first when we pass on a program's RTLD_DEFAULT, before an interposer that stands before us.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    // Functions with the same code become one. Hooks of two rows never have it: each names its row.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--icf=all");
}
