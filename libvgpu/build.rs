//! Links the unwinder into the library itself, so that it needs only libc. Otherwise no program could start with the
//! preload in an image without libgcc_s.so.1.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros)] // they are for the library; this runs at build time

use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // rustc makes the linker search for libgcc_s by name, so the first file of that name in the search path is used.
    fs::write(out.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n").expect("OUT_DIR is writable");
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libvgpu.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    // Calls to our own exports stay in this library, even if the program has data of the same name. Not -Bsymbolic:
    // then the loader would search this library first for a program's RTLD_DEFAULT lookup that we pass on, before an
    // interposer that precedes it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    // Merges functions with identical code. Hooks of two rows never have identical code: each has its row number. rustc
    // links for this machine with lld; elsewhere with the system's linker, which does not know the option.
    if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|machine| machine == "x86_64") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--icf=all");
    }
}
