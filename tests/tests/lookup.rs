//! Lookups. Whichever way a program finds the driver's functions, it gets the hooks; for every other name it gets the
//! answer that it would get without the library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, Lab, MIB, OUT_OF_MEMORY, run};

const DOORS: [&str; 5] = ["linked", "dlsym", "default", "get1", "get2"];

fn hooks() -> impl Iterator<Item = &'static str> {
    shim_sys::table::CUDA_HOOK_NAMES.iter().map(|name| name.to_str().unwrap())
}

#[test]
fn every_door_ends_in_the_hooks() {
    for door in DOORS {
        ends_in_the_hooks(Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB"), door);
    }
}

/// A lookup with a version succeeds only in a library without symbol versions; the real driver has none either.
#[test]
fn dlvsym_ends_in_the_hooks_where_it_finds_the_driver_and_nowhere_else() {
    let mut lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
    for name in ["cuInit", "cuMemAlloc_v2", "cuMyOwn"] {
        let script = format!(
            "import ctypes; c = ctypes.CDLL(None); f = c.dlvsym; f.restype = ctypes.c_void_p\n\
             print(f(ctypes.c_void_p(ctypes.CDLL('libcuda.so.1')._handle), b'{name}', b'GLIBC_2.2.5'))"
        );
        assert_eq!(run(lab.command("python3").args(["-c", &script])).trim(), "None");
    }
    let dir = driver_without_versions(&lab);
    lab.with_driver(&dir);
    ends_in_the_hooks(lab, "dlvsym");
}

fn ends_in_the_hooks(lab: Lab, door: &str) {
    let mut m = lab.member_by(door);
    m.begin();
    let (free, total) = m.info();
    assert_eq!(total, GIB, "{door}");
    for (call, end) in [("alloc", "free"), ("async", "free-async"), ("async-own", "free-async-own")] {
        assert_eq!(m.code(&format!("{call} {GIB}")), OUT_OF_MEMORY, "{door}: {call}");
        let p = m.ok(&format!("{call} {free}")).number(0);
        assert_eq!(m.info().0, 0, "{door}: {call} is charged");
        m.ok(&format!("{end} {p}"));
        assert_eq!(m.info().0, free, "{door}: {end}");
    }
    assert_eq!(m.code(&format!("create {GIB} 1 0")), OUT_OF_MEMORY, "{door}");
    assert_eq!(m.code("pitch 1048576 1024"), OUT_OF_MEMORY, "{door}");
    for name in ["cuMemAlloc_v2", "cuMemAllocAsync_ptsz", "cuLaunchKernel", "cuLaunchKernel_ptsz"] {
        assert_eq!(m.ok(&format!("where {name}")).words, ["libvgpu.so"], "{door}: {name}");
    }
    for name in ["cuDeviceGetAttribute", "cuMemAddressReserve"] {
        assert_eq!(m.ok(&format!("where {name}")).words, ["libcuda.so.1"], "{door}: {name} is not ours");
    }
}

#[test]
fn the_null_control_is_not_limited_through_any_door() {
    for door in DOORS {
        let mut lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
        lab.preload(&[]);
        let mut m = lab.member_by(door);
        m.begin();
        m.alloc(2 * GIB);
        assert_eq!(m.ok("where cuMemAlloc_v2").words, ["libcuda.so.1"], "{door}");
    }
}

/// Python's ctypes: dlsym on a handle, from an interpreter that does not know the library.
#[test]
fn a_python_program_is_limited() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
    let script = "
import ctypes
cuda = ctypes.CDLL('libcuda.so.1')
context, address, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
print(total.value, cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 30)),
      cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 28)))
";
    let printed = run(lab.command("python3").args(["-c", script]));
    assert_eq!(printed.trim(), format!("{GIB} {OUT_OF_MEMORY} 0"));
}

/// cuGetProcAddress in both forms, with all flags and several versions. The answer is the hook of exactly the function
/// that the driver chose, which the driver's own answer shows.
#[test]
fn cu_get_proc_address_leads_to_the_variant_the_driver_chose() {
    let script = "
import ctypes
cuda = ctypes.CDLL('libcuda.so.1')
class Info(ctypes.Structure):
    _fields_ = [('file', ctypes.c_char_p), ('base', ctypes.c_void_p), ('name', ctypes.c_char_p), ('at', ctypes.c_void_p)]
dladdr = ctypes.CDLL(None).dladdr
dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Info)]
for name in b'cuMemAlloc cuMemAllocAsync cuMemFreeAsync cuLaunchKernel cuLaunchKernelEx cuCtxCreate cuMemGetInfo cuMemAllocFromPoolAsync cuGetProcAddress cuInit cuMemcpyAsync cuMemAlloc_v2 cuNoSuch cudnnCreate'.split():
    for version in 2000, 3020, 7000, 11000, 11020, 11040, 12000, 12020, 13000, 1000000:
        for flags in 0, 1, 2, 8:
            for call in 'cuGetProcAddress', 'cuGetProcAddress_v2':
                at, status, info = ctypes.c_void_p(), ctypes.c_int(-1), Info()
                args = [name, ctypes.byref(at), version, ctypes.c_uint64(flags)]
                if call.endswith('_v2'): args.append(ctypes.byref(status))
                code = getattr(cuda, call)(*args)
                found = '-'
                if at.value:
                    dladdr(at, ctypes.byref(info))
                    found = info.name.decode() + ' ' + info.file.decode().rsplit('/', 1)[1]
                print(name.decode(), version, flags, call, code, status.value, found)
";
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
    let alone = run(lab.bare("python3").args(["-c", script]));
    let with = run(lab.command("python3").args(["-c", script]));
    let hooked: Vec<&str> = hooks().collect();
    let (mut swapped, mut passed) = (0, 0);
    for (a, w) in alone.lines().zip(with.lines()) {
        let expected = match a.split(' ').collect::<Vec<_>>()[..] {
            [.., name, "libcuda.so.1"] if hooked.contains(&name) => {
                swapped += 1;
                a.replace("libcuda.so.1", "libvgpu.so")
            }
            _ => {
                passed += 1;
                a.to_owned()
            }
        };
        assert_eq!(w, expected);
    }
    assert_eq!(alone.lines().count(), with.lines().count());
    assert!(swapped > 100 && passed > 100, "{swapped} swapped, {passed} passed");
}

/// Each hooked function of the driver fails with a code of its own. A hook that called another function's original
/// would return the wrong code.
#[test]
fn every_hook_calls_its_own_original() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "4GiB").with("VGPU_SM_LIMIT", "50");
    let lab = lab.with("VGPU_SIM_DRIVER", "580"); // driver 580 has the newest functions too
    let spared = ["cuInit", "cuGetProcAddress", "cuGetProcAddress_v2"];
    let names: Vec<&str> = hooks().filter(|name| !spared.contains(name)).collect();
    // The context's creation makes the first call of these functions, so their fault begins at the second.
    let early = ["cuDevicePrimaryCtxRetain", "cuDeviceTotalMem_v2"];
    let after = |name: &&str| if early.contains(name) { ":after=1" } else { "" };
    let faults: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(at, name)| format!("{name}:every=1:code={}{}", 3000 + at, after(name)))
        .collect();
    let mut c = lab.command(compile("every", Kind::Program, &[]));
    let printed = run(c.arg("context").args(&names).env("VGPU_SIM_FAULTS", faults.join(",")));
    let mut lines = printed.lines();
    assert_eq!(lines.next(), Some("context 0 0"));
    let mut met = 0;
    for (at, (name, line)) in names.iter().zip(lines).enumerate() {
        // Functions newer than the simulated driver are not found, or by RTLD_DEFAULT only.
        if line != format!("{name} absent") {
            assert_eq!(line, format!("{name} {}", 3000 + at));
            met += 1;
        }
    }
    assert!(met >= 50, "{met} of {}", names.len());
}

/// Calls the hooked functions with null for every argument, with and without the library. Nothing crashes, and the
/// codes are the driver's, except for functions that are denied to tenants.
#[test]
fn null_for_every_argument_gets_the_drivers_own_code() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "4GiB").with("VGPU_SM_LIMIT", "50");
    let nvml = shim_sys::table::NVML_HOOK_NAMES.iter().map(|name| name.to_str().unwrap());
    // A successful call of these ends the context or NVML for the calls after it.
    let ends = ["cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxRelease", "nvmlShutdown"];
    let names: Vec<&str> = hooks().chain(nvml).filter(|name| !ends.iter().any(|e| name.starts_with(e))).collect();
    for context in [&["context"][..], &[]] {
        let program = compile("every", Kind::Program, &[]);
        let alone = run(lab.bare(&program).args(context).args(&names));
        let with = run(lab.command(&program).args(context).args(&names));
        let mut denied = 0;
        for (a, w) in alone.lines().zip(with.lines()) {
            match w.strip_suffix(" 4") {
                // A denied function is denied with null arguments too.
                Some(name) if denies(name) => denied += 1,
                _ => assert_eq!(w, a, "context: {context:?}"),
            }
        }
        assert_eq!(alone.lines().count(), with.lines().count());
        assert!(denied > 40, "{denied}");
    }
}

/// True if the table denies the NVML function of that name to tenants.
fn denies(name: &str) -> bool {
    let row = shim_sys::table::NVML_ROWS.iter().find(|row| row.name == name);
    row.is_some_and(|row| matches!(row.action, shim_sys::table::RowAction::Deny(_)))
}

fn ask(lab: &Lab, arguments: &[&str]) -> Vec<String> {
    run(lab.command(compile("ask", Kind::Program, &[])).args(arguments)).lines().map(str::to_owned).collect()
}

#[test]
fn foreign_names_are_untouched_even_if_they_begin_like_the_drivers() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
    let library = compile("foreign", Kind::Library, &[]);
    let said = ask(&lab, &["foreign", library.to_str().unwrap()]);
    assert_eq!(said, ["1 2 3 4 5 6 7 8 9 10 11 12 none named"]);
}

#[test]
fn without_a_driver_a_program_is_told_that_there_is_none() {
    let lab = Lab::new("h200");
    let said =
        ask(&lab, &["default", "cuInit", "default", "cuMemAlloc_v2", "default", "nvmlInit_v2", "next", "cuInit"]);
    assert_eq!(said, ["null words", "null words", "null words", "null same"]);
    let said = ask(&lab, &["default", "cuInit", "load", "libcuda.so.1", "default", "cuInit", "default", "nvmlInit_v2"]);
    assert_eq!(said, ["null words", "libvgpu.so silent", "null words"], "there is one when it was loaded");
}

#[test]
fn rtld_next_means_what_it_means_for_other_preloaded_libraries_in_every_order() {
    let (one, two) = (
        compile("interposer", Kind::Library, &["STEP=1000000"]),
        compile("interposer", Kind::Library, &["STEP=2000000"]),
    );
    let mut lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
    let us = lab.lib().to_owned();
    let parent: i64 = i64::from(std::process::id());
    let all: [&Path; 3] = [&us, &one, &two];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        lab.preload(&order.map(|at| all[at]));
        let said = ask(&lab, &["getppid", "getppid"]);
        let expected = (parent + 3_000_000).to_string();
        assert_eq!(said, [expected.clone(), expected], "order {order:?}");
    }
}

/// Another interposer of cuMemAlloc_v2, before and after libvgpu: both are called once each, and the limit holds.
#[test]
fn rtld_next_for_the_drivers_names_works_beside_another_interposer() {
    let other = compile("interposer", Kind::Library, &["DRIVER"]);
    for door in ["linked", "default"] {
        for we_are_first in [true, false] {
            let mut lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
            let us = lab.lib().to_owned();
            lab.preload(&if we_are_first { [us.as_path(), &other] } else { [other.as_path(), &us] });
            let what = format!("{door}, we are first: {we_are_first}");
            let mut m = lab.member_by(door);
            m.begin();
            let (free, total) = m.info();
            assert_eq!(total, GIB, "{what}");
            m.alloc(100 * MIB);
            assert_eq!(m.info().0, free - 100 * MIB, "charged once: {what}");
            assert_eq!(m.code(&format!("alloc {GIB}")), OUT_OF_MEMORY, "{what}");
            assert_eq!(m.ok("interposed").numbers(), [2, 1], "calls and depth: {what}");
        }
    }
}

/// Two interposers behind libvgpu: the first calls the second, and the second calls the hook.
#[test]
fn two_interposers_behind_us_are_called_once_each_and_an_allocation_is_charged_once() {
    let (one, two) = (
        compile("interposer", Kind::Library, &["DRIVER", "NUMBER=1"]),
        compile("interposer", Kind::Library, &["DRIVER", "NUMBER=2"]),
    );
    for door in ["linked", "default"] {
        let mut lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
        let us = lab.lib().to_owned();
        lab.preload(&[us.as_path(), &one, &two]);
        let mut m = lab.member_by(door);
        m.begin();
        let free = m.info().0;
        m.alloc(100 * MIB);
        assert_eq!(m.info().0, free - 100 * MIB, "charged once: {door}");
        // If our hook calls the other preload, or the other way round, both increment the same counter.
        assert_eq!(m.ok("interposed").numbers(), [2, 2], "calls and depth: {door}");
        assert_eq!(m.code(&format!("alloc {GIB}")), OUT_OF_MEMORY, "{door}");
        assert_eq!(m.ok("interposed").numbers(), [4, 2], "calls and depth: {door}");
    }
}

#[test]
fn a_program_that_asks_rtld_next_itself_is_limited_and_gets_the_same_answer_twice() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
    let said = ask(&lab, &["load", "libcuda.so.1", "next", "cuMemAlloc_v2", "next", "cuInit", "next", "getpid"]);
    assert_eq!(said[..2], ["libvgpu.so same", "libvgpu.so same"]);
    assert!(said[2].starts_with("libc.so") && said[2].ends_with(" same"), "{said:?}");
}

#[test]
fn a_constructor_may_look_up_names_before_main_in_both_orders() {
    let early = compile("interposer", Kind::Library, &["MADE_EARLY"]);
    for we_are_first in [true, false] {
        let mut lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
        let us = lab.lib().to_owned();
        lab.preload(&if we_are_first { [us.as_path(), &early] } else { [early.as_path(), &us] });
        assert_eq!(ask(&lab, &["early"]), ["7"], "we are first: {we_are_first}");
    }
}

#[test]
fn threads_may_look_up_names_while_libraries_come_and_go() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
    let foreign = compile("foreign", Kind::Library, &[]);
    let mut c = lab.command("timeout");
    c.args(["60"]).arg(compile("ask", Kind::Program, &[])).args(["hammer", "1500"]).arg(foreign);
    assert_eq!(run(&mut c).trim(), "right many");
}

#[test]
fn a_driver_that_is_closed_and_opened_again_is_still_hooked() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
    let foreign = compile("foreign", Kind::Library, &[]);
    assert_eq!(ask(&lab, &["reload", foreign.to_str().unwrap()]), [format!("libvgpu.so libvgpu.so 0 {GIB}")]);
}

/// A driver whose cuGetProcAddress returns a function that is in no table. The function's nature is unknown, so it
/// passes; under `strict` it is refused as not found.
#[test]
fn an_unknown_variant_passes_and_is_refused_under_strict() {
    let mut lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
    let dir = lab.driver_without(&["cuMemAlloc_v2"]);
    lab.with_driver(&dir);
    let script = "
import ctypes
cuda = ctypes.CDLL('libcuda.so.1')
assert cuda.cuInit(0) == 0
for name in b'cuMemAlloc', b'cuMemFree', b'cuCtxSynchronize':
    at, status = ctypes.c_void_p(), ctypes.c_int(-1)
    second = cuda.cuGetProcAddress_v2(name, ctypes.byref(at), 12020, ctypes.c_uint64(0), ctypes.byref(status))
    print(second, bool(at.value), status.value, end=' ')
    print(cuda.cuGetProcAddress(name, ctypes.byref(at), 12020, ctypes.c_uint64(0)))
";
    let run_it = |lab: &Lab| run(lab.command("python3").args(["-c", script]));
    assert_eq!(run_it(&lab), "0 True 0 0\n0 True 0 0\n0 True 0 0\n");
    lab.set("VGPU_STRICT", "1");
    assert_eq!(run_it(&lab), "0 False 1 500\n0 True 0 0\n0 True 0 0\n");
}

/// A copy of the simulated driver without symbol versions. Their entries in the dynamic section become DT_DEBUG
/// entries, which nobody reads in a library.
fn driver_without_versions(lab: &Lab) -> PathBuf {
    const VERSION_TAGS: [u64; 5] = [0x6fff_fff0, 0x6fff_fffc, 0x6fff_fffd, 0x6fff_fffe, 0x6fff_ffff];
    let dir = lab.driver_without(&[]);
    let path = dir.join("libcuda.so.1");
    let mut bytes = fs::read(&path).unwrap();
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let number = |value: u64| usize::try_from(value).unwrap();
    let headers = number(word(&bytes, 32));
    let count = usize::from(u16::from_le_bytes([bytes[56], bytes[57]]));
    let dynamic = (0..count).map(|i| headers + 56 * i).find(|&at| bytes[at..at + 4] == [2, 0, 0, 0]).unwrap();
    let mut at = number(word(&bytes, dynamic + 8));
    while word(&bytes, at) != 0 {
        if VERSION_TAGS.contains(&word(&bytes, at)) {
            bytes[at..at + 8].copy_from_slice(&21u64.to_le_bytes());
        }
        at += 16;
    }
    fs::write(path, bytes).unwrap();
    dir
}

#[test]
fn a_driver_without_an_old_function_is_hooked_everywhere_else() {
    let mut lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
    let dir = lab.driver_without(&["cuArrayCreate", "cuMemAllocPitch"]);
    lab.with_driver(&dir);
    let mut m = lab.member();
    assert_ne!(m.code("where cuArrayCreate"), 0, "it is not there");
    m.begin();
    assert_eq!(m.info().1, GIB);
    assert_eq!(m.code(&format!("alloc {GIB}")), OUT_OF_MEMORY);
    assert_eq!(m.code("pitch 1048576 1024"), OUT_OF_MEMORY);
    m.alloc(MIB);
}

#[test]
fn a_program_that_never_meets_a_driver_runs_as_before() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "nonsense");
    let printed = run(lab.command("python3").args(["-c", "import ctypes, ssl; print(ctypes.CDLL(None).getpid() > 0)"]));
    assert_eq!(printed.trim(), "True");
    let mut plain = Command::new("/bin/echo");
    assert_eq!(run(plain.env("LD_PRELOAD", lab.lib()).arg("hello")).trim(), "hello");
}
