//! Compares the simulated driver with the real one, driver 535.309.01 loaded without a GPU.
//!
//! `VGPU_ORACLE_LIBCUDA` names the real library (tests/setup/all). Each comparison runs in a separate child,
//! because the libraries change their process.

mod common;

use common::{in_child, open};
use libloading::os::unix::Library;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_char, c_void};
use std::path::PathBuf;

#[path = "../src/versions.rs"]
#[allow(dead_code)]
mod versions;

type GetV1 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64) -> u32;
type GetV2 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut u32) -> u32;
type Words = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u32;

/// The real library, if it is available.
fn oracle() -> Option<PathBuf> {
    common::part("VGPU_ORACLE_LIBCUDA", "Debian's libcuda1 535 to compare with")
}

/// Every name of the driver: all exports and all base names.
fn names() -> BTreeSet<String> {
    let mut all: BTreeSet<String> = versions::ALSO_EXPORTED.iter().map(|n| (*n).to_owned()).collect();
    for f in versions::NAME_FAMILIES {
        all.insert(f.base.to_owned());
        all.extend(f.plain.iter().chain(f.per_thread.unwrap_or(&[])).map(|(_, n)| (*n).to_owned()));
    }
    all
}

fn exports(library: &Library) -> BTreeMap<usize, String> {
    let mut by_address = BTreeMap::new();
    for name in names() {
        // SAFETY: the symbol's address only.
        if let Ok(s) = unsafe { library.get::<*const c_void>(name.as_bytes()) } {
            by_address.insert(s.into_raw() as usize, name);
        }
    }
    by_address
}

/// A lookup: name, version, flags.
type Question = (String, i32, u64);
/// Result of a lookup. New call: code, export name of the output, status. Old call: code, export name of the
/// output.
type Said = (u32, String, u32, u32, String);

/// Results of both forms of `cuGetProcAddress` for all names, versions and flags.
fn answers(library: &Library, versions: &[i32]) -> BTreeMap<Question, Said> {
    let by_address = exports(library);
    let name_of = |p: *mut c_void| match p as usize {
        0 => "null".to_owned(),
        7 => "untouched".to_owned(),
        a => by_address.get(&a).cloned().unwrap_or_else(|| "a stranger".to_owned()),
    };
    // SAFETY: both have these signatures in every driver.
    let (v1, v2) = unsafe {
        (library.get::<GetV1>(b"cuGetProcAddress").unwrap(), library.get::<GetV2>(b"cuGetProcAddress_v2").unwrap())
    };
    let mut asked: BTreeSet<String> = names();
    asked.extend(["", "cu", "cuInit ", "cuNothing", "cuMemAlloc_v3", "cudbgMain", "cuinit"].map(str::to_owned));
    let mut all = BTreeMap::new();
    for name in asked {
        let c = CString::new(name.as_str()).unwrap();
        for &version in versions {
            for flags in [0, 1, 2, 3, 4, 8, 1 << 40] {
                let (mut p, mut old, mut status) = (7 as *mut c_void, 7 as *mut c_void, 99);
                // SAFETY: live outputs and a zero-terminated name.
                let codes = unsafe {
                    (v2(c.as_ptr(), &mut p, version, flags, &mut status), v1(c.as_ptr(), &mut old, version, flags))
                };
                all.insert((name.clone(), version, flags), (codes.0, name_of(p), status, codes.1, name_of(old)));
            }
        }
    }
    all
}

#[test]
fn every_lookup_is_answered_as_the_real_driver_does() {
    let mut breakpoints: BTreeSet<i32> = [-1, 0, 1, 999, 12_020, 12_030, 13_000, i32::MAX, i32::MIN].into();
    for f in versions::NAME_FAMILIES {
        for (v, _) in f.plain.iter().chain(f.per_thread.unwrap_or(&[])) {
            breakpoints.extend([v - 1, *v, v + 1]);
        }
    }
    let breakpoints: Vec<i32> = breakpoints.into_iter().collect();
    let Some(real) = oracle() else { return };
    let lines = in_child(&[], |sim| {
        let (real, sim) = (answers(&open(&real), &breakpoints), answers(sim, &breakpoints));
        let mut lines = vec![format!("{}", real.len())];
        lines.extend(
            real.iter().filter(|(k, v)| sim[*k] != **v).map(|(k, v)| format!("{k:?}: {v:?}, here {:?}", sim[k])),
        );
        lines
    });
    let compared: usize = lines[0].parse().unwrap();
    println!("{compared} questions compared in both forms of the call");
    assert!(compared > 100_000, "{compared}");
    assert!(lines.len() == 1, "{} differences:\n{}", lines.len() - 1, lines[1..lines.len().min(30)].join("\n"));
}

#[test]
fn names_of_errors_are_the_real_ones() {
    let Some(real) = oracle() else { return };
    let lines = in_child(&[], |sim| {
        type Name = unsafe extern "C" fn(u32, *mut *const c_char) -> u32;
        let ask = |library: &Library| -> Vec<(u32, Option<String>)> {
            // SAFETY: the signature in every driver; a live output; texts are zero-terminated and constant.
            unsafe {
                let f = library.get::<Name>(b"cuGetErrorName").unwrap();
                (0..1200)
                    .map(|code| {
                        let mut p = std::ptr::dangling::<c_char>();
                        let rc = f(code, &mut p);
                        (rc, (!p.is_null()).then(|| std::ffi::CStr::from_ptr(p).to_str().unwrap().to_owned()))
                    })
                    .collect()
            }
        };
        let (real, sim) = (ask(&open(&real)), ask(sim));
        (0..1200).filter(|i| real[*i] != sim[*i]).map(|i| format!("{i}: {:?}, here {:?}", real[i], sim[i])).collect()
    });
    assert!(lines.is_empty(), "{lines:#?}");
}

/// Code of a call with twelve zero arguments, in a child; `None` if the call crashes.
fn zero_call(library: &Library, name: &str, init: bool) -> Option<u32> {
    // SAFETY: a crash only ends the child. The C calling convention ignores extra arguments.
    unsafe {
        let f = *library.get::<Words>(name.as_bytes()).unwrap();
        let cu_init = *library.get::<unsafe extern "C" fn(u32) -> u32>(b"cuInit").unwrap();
        let mut pipe = [0; 2];
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let pid = libc::fork();
        if pid == 0 {
            if init {
                cu_init(0);
            }
            let code = f(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            libc::write(pipe[1], (&raw const code).cast(), 4);
            libc::_exit(0);
        }
        libc::close(pipe[1]);
        let mut code = 0u32;
        let n = libc::read(pipe[0], (&raw mut code).cast(), 4);
        libc::close(pipe[0]);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
        (n == 4).then_some(code)
    }
}

#[test]
fn without_a_gpu_calls_fail_as_on_the_real_driver() {
    let Some(real) = oracle() else { return };
    let dir = tempfile::tempdir().unwrap();
    let machine = [("VGPU_SIM_DIR", dir.path().to_str().unwrap()), ("VGPU_SIM_PROFILE", "none")];
    let lines = in_child(&machine, |sim| {
        let real = open(&real);
        let mut lines = Vec::new();
        let (mut same, mut arguments) = (0, 0);
        for init in [false, true] {
            for name in names() {
                // A base name without an export of the same name.
                // SAFETY: only the symbol's address is read.
                if unsafe { real.get::<*const c_void>(name.as_bytes()) }.is_err() {
                    continue;
                }
                let (r, s) = (zero_call(&real, &name, init), zero_call(sim, &name, init));
                match r {
                    _ if r == s => same += 1,
                    // The real driver checks some arguments first (null pointers, null handles), and even crashes on
                    // some. Here initialisation is always checked first. Callers with proper arguments get 3 from both.
                    None | Some(0 | 1 | 400 | 801) if s == Some(3) => arguments += 1,
                    // Before initialisation the real driver crashes on null; here null is an invalid value.
                    None if s == Some(1) => arguments += 1,
                    _ => lines.push(format!("{name} (init tried: {init}): {r:?}, here {s:?}")),
                }
            }
        }
        lines.push(format!("{same} {arguments}"));
        lines
    });
    let (last, differences) = lines.split_last().unwrap();
    println!("codes without a GPU: {last} (the same; arguments looked at first)");
    assert!(differences.is_empty(), "{differences:#?}");
    let same: u32 = last.split(' ').next().unwrap().parse().unwrap();
    assert!(same > 850, "{last}");
}

#[test]
fn the_exports_are_the_real_drivers_each_at_an_address_of_its_own() {
    let sim = open(common::library());
    let found = exports(&sim);
    let all: BTreeSet<String> = found.values().cloned().collect();
    assert_eq!(all.len(), 592, "distinct addresses");
    let Some(real) = oracle() else { return };
    let real: BTreeSet<String> = exports(&open(&real)).into_values().collect();
    assert_eq!(real, all);
}
