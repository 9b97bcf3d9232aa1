//! A driver that is a thin library in front of the real one, as on WSL2. It looks every function up by `dlsym` while it
//! loads, and `cuInit` again when it is called.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use vgpu_tests::artefacts::sim_dir;
use vgpu_tests::{GIB, Lab, MIB, OUT_OF_MEMORY};

/// Builds the thin library, and the driver behind it under another name. Its constructor ends the program with code 7
/// if a lookup returns anything but the driver's own function.
fn build_driver(lab: &Lab) -> PathBuf {
    let dir = lab.path().join("wsl");
    fs::create_dir(&dir).unwrap();
    let mut bytes = fs::read(sim_dir().join("libcuda.so.1")).unwrap();
    let soname = b"\0libcuda.so.1\0";
    let places: Vec<usize> = (0..bytes.len() - soname.len()).filter(|at| bytes[*at..].starts_with(soname)).collect();
    assert!(!places.is_empty(), "the driver has its soname");
    places.iter().for_each(|at| bytes[at + 1..][..soname.len() - 2].copy_from_slice(b"libcuda_in.1"));
    let inner = dir.join("libcuda_in.1");
    fs::write(&inner, bytes).unwrap();
    fs::copy(sim_dir().join("libnvidia-ml.so.1"), dir.join("libnvidia-ml.so.1")).unwrap();
    let mut text = String::from(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <string.h>\n#include <unistd.h>\n__attribute__((visibility(\"hidden\"), used)) void *slots[2000];\nstatic void *inner;\n",
    );
    let mut load = String::new();
    for (number, row) in shim_sys::table::CUDA_ROWS.iter().filter(|row| row.name != "cuInit").enumerate() {
        let name = row.name;
        writeln!(text, "__attribute__((naked)) void {name}(void) {{ asm(\"jmp *slots+{}(%rip)\"); }}", 8 * number)
            .unwrap();
        writeln!(load, "slots[{number}] = own(\"{name}\");").unwrap();
    }
    write!(
        text,
        "static void *own(const char *name) {{
    Dl_info in;
    void *found = dlsym(inner, name);
    if (found && !(dladdr(found, &in) && strstr(in.dli_fname, \"libcuda_in\"))) _exit(7);
    return found;
}}
__attribute__((constructor)) static void load(void) {{
    inner = dlopen(\"{}\", RTLD_NOW);
    if (!inner || !own(\"cuInit\")) _exit(8);
    {load}
}}
int cuInit(unsigned flags) {{ return ((int (*)(unsigned))own(\"cuInit\"))(flags); }}
",
        inner.display()
    )
    .unwrap();
    let source = dir.join("thin.c");
    fs::write(&source, text).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]);
    vgpu_tests::run(cc.arg(dir.join("libcuda.so.1")).arg(source).arg("-ldl"));
    dir
}

/// Calls of: WSL2 (its thin library in front of the driver)
#[test]
fn a_driver_that_looks_itself_up_while_it_loads_gets_its_own_functions_and_is_limited() {
    for door in ["dlsym", "default", "linked", "get1", "get2"] {
        let mut lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
        let dir = build_driver(&lab);
        lab.with_driver(&dir);
        let mut member = lab.member_by(door);
        member.begin();
        assert_eq!(member.info().1, GIB, "{door}");
        member.alloc(MIB);
        assert_eq!(member.code(&format!("alloc {GIB}")), OUT_OF_MEMORY, "{door}");
        assert_eq!(member.used(), vgpu_tests::lab::charged(&lab.device(0)), "{door}");
        assert_eq!(member.errors(), "", "{door}");
        assert!(member.finish().success(), "{door}");
        // Control: the same driver without the library.
        lab.preload(&[]);
        let mut member = lab.member_by(door);
        member.begin();
        member.alloc(2 * GIB);
    }
}
