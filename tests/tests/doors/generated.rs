//! Sources generated from the table: the program that asks through every lookup path, and a stand-in for both libraries
//! in which every function records its own name.
//!
//! The stand-in exports every row, whichever driver introduced it. It has no symbol versions, so `dlvsym` finds it. Its
//! cuGetProcAddress chooses variants by a rule of its own: `_v2` came with 3020, `_v3` with 11040, and so on.

use shim_sys::table::{CUDA_HOOK_NAMES, CUDA_ROWS, NVML_HOOK_NAMES, NVML_ROWS, base_name};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_tests::artefacts::{checkout, scratch};

/// First CUDA version with each variant, from variant 1 on.
const SINCE: [u32; 6] = [2000, 3020, 11040, 12050, 13000, 13010];

/// Functions that the newer stand-in exports and no table lists: a variant of a charging function, and one of a
/// function that reports memory.
pub const NEWER: [&str; 2] = ["cuMemAlloc_v3", "cuMemGetInfo_v3"];

fn is_per_thread(name: &str) -> bool {
    name.ends_with("_ptsz") || name.ends_with("_ptds")
}

fn since(name: &str) -> u32 {
    let name = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")).unwrap_or(name);
    let number = name.strip_prefix(base_name(name)).and_then(|rest| rest.strip_prefix("_v")).unwrap_or("1");
    SINCE[number.parse::<usize>().unwrap() - 1]
}

/// Every name that cuGetProcAddress is asked for: base names, and full names, which it does not know.
fn bases() -> BTreeSet<&'static str> {
    CUDA_ROWS.iter().flat_map(|row| [row.base_name(), row.name]).collect()
}

fn compile(source: &str, to: &Path, flags: &[&str]) {
    let file = to.with_extension("c");
    fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    let out = cc.args(["-std=gnu11", "-O1", "-w", "-o"]).arg(to).arg(&file).args(flags).output().unwrap();
    assert!(out.status.success(), "{}", vgpu_tests::text(&out));
}

/// Builds the stand-in libraries in `dir`, without the functions `lacking`, and with [`NEWER`] if `is_newer`.
pub fn stand_in(dir: &Path, lacking: &[&str], is_newer: bool) {
    fs::create_dir_all(dir).unwrap();
    let lookups = ["cuGetProcAddress", "cuGetProcAddress_v2"];
    let mut names: Vec<&str> = CUDA_ROWS.iter().map(|row| row.name).filter(|name| !lacking.contains(name)).collect();
    names.extend(NEWER.iter().filter(|_| is_newer));
    let mut text = noting(&names, &lookups);
    let mut families: BTreeMap<(&str, bool), Vec<(u32, &str)>> = BTreeMap::new();
    for name in &names {
        families.entry((base_name(name), is_per_thread(name))).or_default().push((since(name), name));
    }
    text.push_str("typedef struct { const char *base; int per_thread, since; int (*at)(); } variant;\nstatic const variant variants[] = {\n");
    for ((base, per_thread), variants) in &mut families {
        variants.sort_unstable();
        for (since, name) in variants {
            writeln!(text, "{{ \"{base}\", {}, {since}, {name} }},", i32::from(*per_thread)).unwrap();
        }
    }
    text.push_str(
        "};
        static int same(const char *a, const char *b) { while (*a && *a == *b) a++, b++; return *a == *b; }
        static int look(const char *name, void **out, int version, unsigned long flags, int *status) {
            int known = 0, threads = 0;
            *out = 0;
            for (unsigned i = 0; i < sizeof variants / sizeof *variants; i++)
                if (variants[i].per_thread && same(variants[i].base, name)) threads = flags == 2;
            for (unsigned i = 0; i < sizeof variants / sizeof *variants; i++)
                if (variants[i].per_thread == threads && same(variants[i].base, name)) {
                    known = 1;
                    if (variants[i].since <= version) *out = variants[i].at;
                }
            *status = *out ? 0 : known ? 2 : 1;
            return *out != 0;
        }
        int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long flags, int *status) {
            int said;
            stand_in_noted = \"cuGetProcAddress_v2\";
            if (!name || !out) return 1;
            look(name, out, version, flags, status ? status : &said);
            return 0;
        }
        int cuGetProcAddress(const char *name, void **out, int version, unsigned long flags) {
            int said;
            stand_in_noted = \"cuGetProcAddress\";
            if (!name || !out) return 1;
            return look(name, out, version, flags, &said) ? 0 : 500;
        }\n",
    );
    let flags = |soname| ["-shared", "-fPIC", "-nostdlib", "-Wl,-Bsymbolic", soname];
    compile(&text, &dir.join("libcuda.so.1"), &flags("-Wl,-soname,libcuda.so.1"));
    let names: Vec<&str> = NVML_ROWS.iter().map(|row| row.name).collect();
    compile(&noting(&names, &[]), &dir.join("libnvidia-ml.so.1"), &flags("-Wl,-soname,libnvidia-ml.so.1"));
    for (link, to) in [("libcuda.so", "libcuda.so.1"), ("libnvidia-ml.so", "libnvidia-ml.so.1")] {
        let _ = std::os::unix::fs::symlink(to, dir.join(link));
    }
}

/// One C function per name: it records the name and returns a code that no other code uses.
fn noting(names: &[&str], by_hand: &[&str]) -> String {
    let mut text = String::from("const char *stand_in_noted;\n");
    for (number, name) in names.iter().enumerate() {
        if by_hand.contains(name) {
            writeln!(text, "int {name}();").unwrap();
        } else {
            writeln!(text, "int {name}(void) {{ stand_in_noted = \"{name}\"; return {}; }}", 5000 + number).unwrap();
        }
    }
    text
}

/// Builds a library that exports every hooked function. Each function counts its calls and calls the next one, found by
/// RTLD_NEXT.
pub fn interposer(dir: &Path) -> PathBuf {
    let words = |with: &str| (0..11).map(|at| format!("{with}a{at}")).collect::<Vec<_>>().join(", ");
    let hooked: Vec<&str> = CUDA_HOOK_NAMES.iter().chain(NVML_HOOK_NAMES).map(|name| name.to_str().unwrap()).collect();
    let (taken, passed, count) = (words("long "), words(""), hooked.len());
    let mut text = format!(
        "#define _GNU_SOURCE
        #include <dlfcn.h>
        #include <string.h>
        static const char *names[{count}] = {{ \"{}\" }};
        static int counts[{count}][3];
        int *interposer_counts(const char *name) {{
            for (int at = 0; at < {count}; at++) if (!strcmp(names[at], name)) return counts[at];
            return 0;
        }}
        static int pass(int at, {taken}) {{
            int (*next)() = (int (*)())dlsym(RTLD_NEXT, names[at]);
            int *count = counts[at];
            count[0]++;
            if (++count[1] > count[2]) count[2] = count[1];
            int code = next && count[1] < 50 ? next({passed}) : 9999;
            count[1]--;
            return code;
        }}\n",
        hooked.join("\", \"")
    );
    for (at, name) in hooked.iter().enumerate() {
        writeln!(text, "int {name}({taken}) {{ return pass({at}, {passed}); }}").unwrap();
    }
    let library = dir.join("libinterposer.so");
    compile(&text, &library, &["-shared", "-fPIC", "-ldl"]);
    library
}

/// Compiles `programs/doors.c` with the table in front, linked with both libraries.
pub fn asker() -> PathBuf {
    let body = fs::read_to_string(checkout().join("tests/programs/doors.c")).unwrap();
    let mut text = String::from("#define ROWS(F) \\\n");
    for (library, rows) in [CUDA_ROWS, NVML_ROWS].into_iter().enumerate() {
        rows.iter().for_each(|row| writeln!(text, "F({library}, {}) \\", row.name).unwrap());
    }
    text.push_str("\n#define BASES(F) \\\n");
    for name in bases() {
        writeln!(text, "F({name}, {}) \\", i32::from(base_name(name) == name)).unwrap();
    }
    text.push('\n');
    text.push_str(&body);
    let dir = tempfile::TempDir::new_in(scratch()).unwrap();
    stand_in(dir.path(), &[], false);
    let here = format!("-L{}", dir.path().display());
    let program = dir.path().join("asker");
    compile(&text, &program, &[&here, "-Wl,--no-as-needed", "-lcuda", "-lnvidia-ml", "-ldl"]);
    let kept = scratch().join(format!("doors-{}", std::process::id()));
    fs::rename(program, &kept).unwrap();
    kept
}
