//! Makes the library's exports from the table `cuda_table!`: one C function per name of driver 535.309.01, and
//! one per newer name (`src/newer.rs`), which 535 does not have.
//!
//! A typed row gets the function of its name in `src/calls/` as its body. `_ptsz` and `_ptds` variants share the
//! body of the plain name and tell it which default stream the caller means. Every other name returns "not
//! supported" at an address of its own. A body without a row in the table is a build error.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

#[path = "src/versions.rs"]
#[allow(dead_code)]
mod versions;

#[path = "src/newer.rs"]
mod newer;

struct Row {
    name: &'static str,
    args: &'static [(&'static str, &'static str)],
}

macro_rules! collect {
    (
        hooks { $($subject:ident { $($h:ident ( $($ha:ident : $ht:ty),* $(,)? );)* })* }
        typed { $($td:ident $tw:literal { $($t:ident ( $($ta:ident : $tt:ty),* $(,)? );)* })* }
        named { $($nd:ident $nw:literal { $($n:ident)* })* }
    ) => {
        const TYPED: &[Row] = &[
            $($(Row { name: stringify!($h), args: &[$((stringify!($ha), stringify!($ht))),*] },)*)*
            $($(Row { name: stringify!($t), args: &[$((stringify!($ta), stringify!($tt))),*] },)*)*
        ];
        const NAMED: &[&str] = &[$($(stringify!($n),)*)*];
    };
}

shim_sys::cuda_table!(collect);

/// Functions that a program may call before `cuInit`.
const EARLY: &[&str] =
    &["cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetProcAddress", "cuGetProcAddress_v2"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/versions.rs");
    println!("cargo:rerun-if-changed=src/newer.rs");
    println!("cargo:rerun-if-changed=src/calls");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");

    // Links the unwinder statically, so that the library works in an image without libgcc_s.
    let place = Path::new(&std::env::var_os("OUT_DIR").unwrap()).join("link");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::write(place.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n").unwrap();
    println!("cargo:rustc-link-search=native={}", place.display());

    let mut exported: BTreeSet<&str> = versions::ALSO_EXPORTED.iter().copied().collect();
    for family in versions::NAME_FAMILIES.iter().chain(newer::NEWER_FAMILIES) {
        let both = family.plain.iter().chain(family.per_thread.unwrap_or(&[]));
        exported.extend(both.map(|(_, symbol)| *symbol));
    }
    let all = |families: &'static [versions::NameFamily]| {
        families.iter().flat_map(|f| f.plain.iter().chain(f.per_thread.unwrap_or(&[]))).map(|(_, symbol)| *symbol)
    };
    let newer: BTreeSet<&str> = all(newer::NEWER_FAMILIES).collect();
    let typed: BTreeMap<&str, &Row> = TYPED.iter().map(|r| (r.name, r)).collect();
    for name in &exported {
        assert!(
            typed.contains_key(name) || NAMED.contains(name),
            "{name} is exported by a driver, and not in the table"
        );
    }
    let mut bodies = BTreeMap::new();
    find_bodies(Path::new("src/calls"), "", &mut bodies);
    for (body, file) in &bodies {
        assert!(typed.contains_key(body.as_str()), "{file}: {body} has no typed row in the table");
        assert!(exported.contains(body.as_str()), "{file}: neither driver 535 nor a newer one exports {body}");
    }

    let mut out = String::new();
    let mut addresses = String::from("pub(crate) static EXPORTS: ExportTable = &[\n");
    let (mut done, mut absent) = (0, 0);
    for (number, name) in exported.iter().enumerate() {
        let plain = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds"));
        let per_thread = plain.is_some();
        let body = [Some(*name), plain].into_iter().flatten().find(|n| bodies.contains_key(*n));
        if let (Some(row), Some(body)) = (typed.get(name), body) {
            let list = |f: fn(&(&str, &str)) -> String| row.args.iter().map(f).collect::<Vec<_>>().join(", ");
            let args = list(|(a, t)| format!("{a}: {t}"));
            let pass = list(|(a, _)| (*a).to_owned());
            let types = list(|(_, t)| (*t).to_owned());
            let early = EARLY.contains(name);
            let module = &bodies[body];
            let enter = if newer.contains(name) { "enter_newer" } else { "enter_call" };
            writeln!(
                out,
                "#[unsafe(no_mangle)]\nunsafe extern \"C\" fn {name}({args}) -> CUresult {{\n    \
                 static STAND_IN: StandIn = StandIn::new();\n    \
                 if let Some((function, _inside)) = STAND_IN.enter_stand_in(c\"{name}\", {name} as *const c_void) {{\n        \
                 // SAFETY: the test library that answered has a function of this signature.\n        \
                 let function: unsafe extern \"C\" fn({types}) -> CUresult = unsafe {{ core::mem::transmute(function) }};\n        \
                 // SAFETY: as below.\n        \
                 return unsafe {{ function({pass}) }};\n    }}\n    \
                 // SAFETY: the C caller keeps to the signature and the promises of the driver's interface.\n    \
                 {enter}(EXPORTS, \"{name}\", {early}, {per_thread}, |d| unsafe {{ calls::{module}::{body}(d, {pass}) }})\n}}"
            )
            .unwrap();
            done += 1;
        } else {
            writeln!(
                out,
                "#[unsafe(no_mangle)]\nextern \"C\" fn {name}() -> CUresult {{\n    answer_absent(EXPORTS, \"{name}\", {number})\n}}"
            )
            .unwrap();
            absent += 1;
        }
        writeln!(addresses, "    (\"{name}\", ExportAddress({name} as *const c_void)),").unwrap();
    }
    addresses.push_str("];\n");
    writeln!(out, "{addresses}").unwrap();
    writeln!(out, "/// Exports with a body, and exports that answer \"not supported\".").unwrap();
    writeln!(out, "#[allow(dead_code)]\npub(crate) const COVERAGE: (usize, usize) = ({done}, {absent});").unwrap();
    let target = Path::new(&std::env::var_os("OUT_DIR").unwrap()).join("exports.rs");
    std::fs::write(target, out).unwrap();
}

/// Names of the functions in `dir` and its subdirectories, each with the path of its module (`outer` ends in
/// `::`).
fn find_bodies(dir: &Path, outer: &str, found: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        if path.is_dir() {
            find_bodies(&path, &format!("{outer}{stem}::"), found);
            continue;
        }
        let module = if stem == "mod" { outer.trim_end_matches(':').to_owned() } else { format!("{outer}{stem}") };
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            if let Some(rest) = line.strip_prefix("pub(crate) unsafe fn cu") {
                let name = format!("cu{}", rest.split('(').next().unwrap());
                assert!(found.insert(name.clone(), module.clone()).is_none(), "{name} is written twice");
            }
        }
    }
}
