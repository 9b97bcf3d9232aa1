//! Code that is overwritten in place, as ComfyUI's allocator (funchook), UCX and Detours do.

use std::path::Path;
use vgpu_tests::artefacts::sim_dir;
use vgpu_tests::lab::{charged, short};
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, KIB, Lab, MIB, Member, run};

/// The functions that tools patch begin with 14 bytes that run anywhere else as well, and nothing else begins there.
///
/// Calls of: Detours, funchook and UCX (code overwritten in place)
#[test]
fn the_first_14_bytes_of_every_export_can_be_moved_and_overwritten() {
    let lab = Lab::new("h200");
    let said = run(lab.bare(compile("patched", Kind::Program, &[])).arg("entries").arg(lab.lib()));
    let (faults, count) = said.trim().rsplit_once('\n').unwrap_or(("", said.trim()));
    assert_eq!(faults, "");
    let hooks = shim_sys::table::CUDA_HOOK_NAMES.len() + shim_sys::table::NVML_HOOK_NAMES.len();
    let loaders = ["dlsym", "dlvsym", "dlopen", "dlmopen"].len();
    assert_eq!(count, format!("functions {}", hooks + loaders));
    // Control: the simulated driver's functions are ordinary code, and some use data next to them.
    let driver = sim_dir().join("libcuda.so.1").canonicalize().unwrap();
    let said = run(lab.bare(compile("patched", Kind::Program, &[])).arg("entries").arg(driver));
    assert!(said.contains("relative to its own address"), "{said}");
}

/// The numbers that a run printed.
struct Run {
    held: u64,
    met: [u64; 2],
    granted: u64,
    refused: u64,
    freed: u64,
}

/// How one run patches: where it finds the functions, bytes of the jump, and which instructions it moves.
#[derive(Clone, Copy, Debug)]
struct Patch {
    found: &'static str,
    jump: u64,
    moved: &'static str,
}

const REQUEST_BYTES: u64 = 5 * MIB + 3 * KIB;

fn start(lab: &Lab, patch: Patch) -> (Member, Run) {
    let Patch { found, jump, moved } = patch;
    let mut program = lab.command(compile("patched", Kind::Program, &[]));
    program.args(["run", found, &jump.to_string(), moved, "8", "400", &REQUEST_BYTES.to_string()]);
    let mut member = Member::start_silent(&mut program);
    let mut numbers = |name: &str| -> Vec<u64> {
        let line = member.line();
        let words = line.strip_prefix(name).unwrap_or_else(|| panic!("{patch:?}: {line}"));
        words.split_whitespace().map(|word| word.parse().unwrap()).collect()
    };
    // A lookup by the driver's handle finds the patched function, and the four calls by it are the replacement's.
    assert_eq!(numbers("again "), [6, 6, 0, 4], "{patch:?}");
    let (held, met, said) = (numbers("held "), numbers("met "), numbers("said "));
    assert_eq!(said[2], 0, "no code but the driver's and ours: {patch:?}");
    (member, Run { held: held[0], met: [met[0], met[1]], granted: said[0], refused: said[1], freed: said[3] })
}

/// Ends a run: everything is freed, the code is restored, and the functions work as before.
fn restore(member: &mut Member, patch: Patch) {
    member.tell("");
    assert_eq!(member.line(), "restored 0 0 0", "codes, and calls of the replacement: {patch:?}");
}

const PATCHED_LIMIT: u64 = GIB;

fn limited(preload: &[&Path]) -> Lab {
    let mut lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", PATCHED_LIMIT.to_string() + "B");
    let us = lab.lib().to_owned();
    lab.preload(&[&[us.as_path()], preload].concat());
    lab
}

/// Checks a run with any patch: the device never held more than the limit, and the ledger has what the device has.
fn limits_held(lab: &Lab, member: &Member, run: &Run, patch: Patch) {
    let truth = lab.process(0, member.pid);
    assert!(truth.peak_bytes <= PATCHED_LIMIT, "{patch:?}: {truth:?}");
    assert!(truth.peak_bytes > PATCHED_LIMIT - 100 * MIB, "the limit was met: {patch:?}: {truth:?}");
    assert!(run.refused > 0 && run.granted > run.refused / 100, "{patch:?}");
    assert!(truth.live_bytes >= run.held, "{patch:?}: {truth:?}");
    let mut observer = lab.member();
    observer.ok("nvinit");
    let device = lab.device(0);
    assert_eq!(observer.ok("nvmem 0").number(2), charged(&device), "one charge each: {patch:?}: {}", short(&device));
}

fn patches(found: &'static [&str], moved: &'static str) -> Vec<Patch> {
    found.iter().flat_map(|found| [5, 12, 14].map(|jump| Patch { found, jump, moved })).collect()
}

/// The allocator of ComfyUI replaces six functions by the addresses that it looked up, and calls the moved originals.
///
/// Calls of: ComfyUI (its allocator, by funchook)
#[test]
fn a_program_that_overwrites_the_functions_it_found_is_limited_and_may_restore_them() {
    for patch in patches(&["dlsym", "get"], "plain") {
        let lab = limited(&[]);
        let (mut member, run) = start(&lab, patch);
        assert_eq!(run.met, [run.granted + run.refused, run.freed], "every call was the replacement's: {patch:?}");
        limits_held(&lab, &member, &run, patch);
        restore(&mut member, patch);
        let left = lab.process(0, member.pid);
        assert_eq!((left.allocations, left.slab_bytes), (0, 0), "{patch:?}: {left:?}");
        assert!(member.finish().success(), "{patch:?}");
    }
}

/// A value that is not understood is never "no limit", whatever the program patches.
#[test]
fn a_bad_limit_of_the_toolkit_stops_a_program_that_overwrites_functions_with_one_line() {
    for value in ["4Gi", "4096MiB", "unlimited", "1.5", "0", "-1", "100%", ""] {
        let lab = Lab::new("h200").with("NVIDIA_GPU_MEMORY_LIMIT", value);
        let mut program = lab.command(compile("patched", Kind::Program, &[]));
        program.args(["run", "dlsym", "14", "plain", "1", "1", &REQUEST_BYTES.to_string()]);
        let out = program.output().unwrap();
        let (printed, said) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert_eq!((out.status.code(), &*printed), (Some(1), "begin 800\n"), "{value:?}: {said}");
        let begin = format!("vgpu: NVIDIA_GPU_MEMORY_LIMIT={value:?} ");
        assert!(said.starts_with(&begin) && said.lines().count() == 1, "{value:?}: {said}");
        assert!(said.contains("; accepted: ") && said.contains("whole number of MiB"), "{value:?}: {said}");
        assert_eq!(lab.device(0).used, 0, "{value:?}: the device gave nothing");
    }
    // Control: a value that is understood holds.
    let patch = Patch { found: "dlsym", jump: 14, moved: "plain" };
    let lab = Lab::new("h200").with("NVIDIA_GPU_MEMORY_LIMIT", "1024");
    let (mut member, run) = start(&lab, patch);
    limits_held(&lab, &member, &run, patch);
    restore(&mut member, patch);
}

/// The same without the library: the program works on the driver alone, and nothing refuses it.
#[test]
fn the_same_program_on_the_driver_alone_is_not_refused() {
    for patch in patches(&["dlsym", "get", "driver"], "any") {
        let mut lab = Lab::new("h200");
        lab.preload(&[]);
        let (mut member, run) = start(&lab, patch);
        assert_eq!((run.met, run.refused), ([run.granted, run.freed], 0), "{patch:?}");
        assert!(lab.process(0, member.pid).peak_bytes > PATCHED_LIMIT, "{patch:?}");
        restore(&mut member, patch);
        assert!(member.finish().success(), "{patch:?}");
    }
}

/// UCX replaces functions in the driver's own code after the library was loaded.
///
/// Calls of: UCX (patches of the driver's own code)
#[test]
fn a_patch_of_the_drivers_own_code_is_called_once_for_each_charge() {
    for patch in patches(&["driver"], "any") {
        let lab = limited(&[]);
        let (mut member, run) = start(&lab, patch);
        assert_eq!(run.met, [run.granted, run.freed], "a refused request never gets there: {patch:?}");
        limits_held(&lab, &member, &run, patch);
        restore(&mut member, patch);
        assert!(member.finish().success(), "{patch:?}");
    }
}

/// Next to an interposer behind the library, a lookup returns the entry that skips it. That one is patched.
///
/// Calls of: ComfyUI (its allocator, by funchook)
#[test]
fn the_entry_that_skips_an_interposer_may_be_overwritten_too() {
    let interposer = compile("interposer", Kind::Library, &["DRIVER"]);
    for patch in patches(&["dlsym", "get"], "plain") {
        let lab = limited(&[&interposer]);
        let (mut member, run) = start(&lab, patch);
        assert_eq!(run.met, [run.granted + run.refused, run.freed], "{patch:?}");
        limits_held(&lab, &member, &run, patch);
        restore(&mut member, patch);
        assert!(member.finish().success(), "{patch:?}");
    }
}
