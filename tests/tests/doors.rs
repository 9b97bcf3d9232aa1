//! Every function of the table through every lookup path, generated from the table. The paths are linking, `dlsym` by
//! handle, RTLD_DEFAULT and RTLD_NEXT, `dlvsym`, and cuGetProcAddress in both forms, with every version at which an
//! answer changes and every flag.
//!
//! The rule under test: the answer is our hook exactly if the bare driver answers the same question with the address of
//! a hooked row. Otherwise the answer is the driver's own address, bit for bit. Three drivers are tested: the simulated
//! one, a stand-in that has every row, and NVIDIA's own if it is installed.
//!
//! Lookups that differ from program to program are in `doors_more.rs` and `lookup.rs`.

#[path = "doors/generated.rs"]
mod generated;

use shim_sys::table::{CUDA_HOOK_NAMES, CUDA_ROWS, NVML_HOOK_NAMES, NVML_ROWS, Row, RowAction};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use vgpu_tests::artefacts::{libvgpu, sim_dir};
use vgpu_tests::{Lab, optional, run};

const LIMITED: &[(&str, &str)] = &[("VGPU_MEMORY_LIMIT", "1GiB")];

fn asker() -> &'static Path {
    static ASKER: OnceLock<PathBuf> = OnceLock::new();
    ASKER.get_or_init(generated::asker)
}

/// Name and offset of each exported function.
fn exports(library: &Path) -> Vec<(String, u64)> {
    let out = run(Command::new("readelf").args(["-W", "--dyn-syms"]).arg(library).env("LC_ALL", "C"));
    let function = |line: &str| {
        // Columns: Num: Value Size Type Bind Vis Ndx Name
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_one = words.len() >= 8 && words[3] == "FUNC" && words[6] != "UND";
        is_one.then(|| (words[7].split('@').next().unwrap().to_owned(), u64::from_str_radix(words[1], 16).unwrap()))
    };
    out.lines().filter_map(function).collect()
}

fn hooked() -> BTreeSet<&'static str> {
    CUDA_HOOK_NAMES.iter().chain(NVML_HOOK_NAMES).map(|name| name.to_str().unwrap()).collect()
}

/// Maps `object+offset` of each hooked function of the driver to that of its hook.
fn substitutions(driver: &Path) -> HashMap<String, String> {
    let hooks: BTreeMap<String, u64> = exports(&libvgpu()).into_iter().collect();
    let hooked = hooked();
    let mut map = HashMap::new();
    for object in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        let found = exports(&driver.join(object));
        let addresses: BTreeSet<u64> = found.iter().map(|(_, at)| *at).collect();
        assert_eq!(addresses.len(), found.len(), "{object}: one address per function, or an answer says too little");
        for (name, at) in found.iter().filter(|(name, _)| hooked.contains(name.as_str())) {
            map.insert(format!("{object}+{at:x}"), format!("libvgpu.so+{:x}", hooks[name]));
        }
    }
    map
}

/// Versions at which the driver's answers change, with versions just before, long before and long after.
fn versions(lab: &Lab) -> Vec<String> {
    let breaks = run(lab.bare(asker()).arg("breaks"));
    let mut all: BTreeSet<i64> = [-1, 0, 1, 12_020, i64::from(i32::MAX)].into();
    for version in breaks.lines().map(|line| line.parse::<i64>().unwrap()) {
        all.extend([version - 1, version]);
    }
    all.iter().map(i64::to_string).collect()
}

/// Compares the answers with and without the library and returns the number of questions. Each hooked function of the
/// driver must occur on each lookup path that can return it.
fn every_answer_follows_the_rule(driver: &Path, variables: &[(&str, &str)]) -> u64 {
    let mut lab = Lab::new("h200");
    lab.with_driver(driver);
    variables.iter().for_each(|(name, value)| lab.set(name, value));
    let (versions, map) = (versions(&lab), substitutions(driver));
    let bare = run(lab.bare(asker()).arg("ask").args(&versions));
    let with = run(lab.command(asker()).arg("ask").args(&versions));
    let (hooked, mut wrong) = (hooked(), Vec::new());
    let mut met: HashMap<&str, BTreeSet<&str>> = map.keys().map(|at| (at.as_str(), BTreeSet::new())).collect();
    for (bare, with) in bare.lines().zip(with.lines()) {
        let (question, answer) = bare.rsplit_once(' ').unwrap();
        let expected = match map.get(answer) {
            Some(hook) => format!("{question} {hook}"),
            None => bare.to_owned(),
        };
        // If the driver lacks a name, the loader binds a linked program to our export.
        let name = question.split(' ').nth(1).unwrap_or_default();
        let absent = answer == "null" && question.starts_with("linked ") && hooked.contains(name);
        if let Some(doors) = met.get_mut(answer) {
            doors.insert(question.split(' ').next().unwrap());
        }
        if with != expected && !absent {
            wrong.push(format!("bare: {bare}\nwith: {with}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong answers:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
    assert_eq!(bare.lines().count(), with.lines().count());
    let mut unknown = 0;
    for (at, doors) in &met {
        let missing: Vec<&str> =
            ["linked", "handle", "default", "next"].into_iter().filter(|door| !doors.contains(door)).collect();
        assert!(missing.is_empty(), "{at} was not met by {missing:?}");
        unknown += usize::from(at.starts_with("libcuda") && !(doors.contains("get1") && doors.contains("get2")));
    }
    // The simulated driver 535 exports functions that 580 introduced, and its own lookup does not know them.
    assert!(unknown * 10 <= met.len(), "{unknown} of {} hooks were not met by the driver's own lookup", met.len());
    let asked = with.lines().last().unwrap().strip_prefix("asked ").unwrap().parse().unwrap();
    println!("{}: {} versions, {asked} questions, {} hooks", driver.display(), versions.len(), map.len());
    asked
}

#[test]
fn the_simulated_drivers_functions_are_hooked_through_every_door() {
    let asked = every_answer_follows_the_rule(&sim_dir(), LIMITED);
    assert!(asked > 100_000, "{asked}");
}

#[test]
fn a_driver_with_every_function_of_the_table_is_hooked_through_every_door() {
    let dir = tempfile::TempDir::new().unwrap();
    generated::stand_in(dir.path(), &[], false);
    let asked = every_answer_follows_the_rule(dir.path(), LIMITED);
    assert!(asked > 30_000, "{asked}");
}

#[test]
fn the_real_drivers_functions_are_hooked_through_every_door() {
    let Some(real) = optional::part("VGPU_ORACLE_LIBCUDA", "Debian's libcuda1 535 to ask through every door") else {
        return;
    };
    let asked = every_answer_follows_the_rule(real.parent().unwrap(), LIMITED);
    assert!(asked > 100_000, "{asked}");
}

/// Also the functions that a newer driver introduced.
#[test]
fn without_limits_the_answers_are_the_same() {
    every_answer_follows_the_rule(&sim_dir(), &[("VGPU_SIM_DRIVER", "580")]);
}

/// Each hook, called with null arguments through each lookup path, calls the function that the bare driver would have
/// returned: never a twin, never another version.
#[test]
fn through_every_door_a_hook_calls_its_own_original() {
    let dir = tempfile::TempDir::new().unwrap();
    generated::stand_in(dir.path(), &[], false);
    let mut lab = Lab::new("h200");
    lab.with_driver(dir.path());
    let versions = versions(&lab);
    let bare = run(lab.bare(asker()).arg("call").args(&versions));
    let with = run(lab.command(asker()).arg("call").args(&versions));
    for (bare, with) in bare.lines().zip(with.lines()) {
        assert_eq!(with, bare);
    }
    assert_eq!(bare.lines().count(), with.lines().count());
    // Each row was reached by its own name through the four lookup paths that use full names, and by version.
    for row in CUDA_ROWS.iter().chain(NVML_ROWS) {
        let reached = bare
            .lines()
            .filter(|line| line.split(' ').nth(1) == Some(row.name) && line.contains(&format!(" {} ", row.name)));
        let doors: BTreeSet<&str> = reached.map(|line| line.split(' ').next().unwrap()).collect();
        assert!(
            ["linked", "handle", "default", "next", "dlvsym"].iter().all(|door| doors.contains(door)),
            "{}: {doors:?}",
            row.name
        );
    }
}

/// An interposer of every function, loaded behind libvgpu. Its export is called, finds a hook, and the driver is called
/// once. A program that looks a function up by the driver's handle calls no interposer, as without libvgpu.
#[test]
fn every_function_that_an_interposer_behind_us_passes_on_reaches_the_driver_once() {
    let dir = tempfile::TempDir::new().unwrap();
    let other = generated::interposer(dir.path());
    let program = vgpu_tests::program::compile("every", vgpu_tests::program::Kind::Program, &[]);
    let mut lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "4GiB").with("VGPU_SM_LIMIT", "50");
    lab.set("VGPU_SIM_DRIVER", "580");
    let ours = lab.lib().to_owned();
    // A successful call of these ends the context or NVML for the calls after it.
    let ends = ["cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxRelease", "nvmlShutdown"];
    let names: Vec<&str> = hooked().into_iter().filter(|name| !ends.iter().any(|end| name.starts_with(end))).collect();
    // Each function of the driver returns a code of its own. Functions that create the context do so from their second
    // call on.
    let driver_names: Vec<&str> = names.iter().copied().filter(|name| name.starts_with("cu")).collect();
    let early = ["cuInit", "cuDevicePrimaryCtxRetain", "cuDeviceTotalMem_v2"];
    let spared = ["cuInit", "cuGetProcAddress", "cuGetProcAddress_v2"];
    let faults: Vec<String> = driver_names
        .iter()
        .enumerate()
        .filter(|(_, name)| !spared.contains(name))
        .map(|(at, name)| {
            let after = if early.contains(name) { ":after=1" } else { "" };
            format!("{name}:every=1:code={}{after}", 3000 + at)
        })
        .collect();
    let is_shut = |row: &&Row| !matches!(row.action, RowAction::Hook(_));
    let shut: BTreeSet<&str> = NVML_ROWS.iter().filter(is_shut).map(|row| row.name).collect();
    for copies in ["0", "1"] {
        lab.set("VGPU_CHARGE_COPIES", copies);
        let mut ask = |preload: &[&Path], way: &[&str]| {
            lab.preload(preload);
            let mut command = lab.command(&program);
            run(command.args(way).args(&names).env("VGPU_SIM_FAULTS", faults.join(",")))
        };
        let (alone, behind, before) =
            (ask(&[&ours], &["context"]), ask(&[&ours, &other], &["context"]), ask(&[&other, &ours], &["context"]));
        let by_handle = ask(&[&ours, &other], &["context", "by-handle"]);
        for (by_handle, alone) in by_handle.lines().zip(alone.lines()).skip(1) {
            let (answer, counts) = by_handle.split_once(" called ").unwrap_or((by_handle, "0 deep 0"));
            assert_eq!((answer, counts), (alone, "0 deep 0"), "by handle");
        }
        assert_eq!(by_handle.lines().count(), names.len() + 1);
        let (mut passed, mut absent, mut refused) = (0, 0, 0);
        for ((alone, behind), before) in alone.lines().zip(behind.lines()).zip(before.lines()).skip(1) {
            let name = alone.split(' ').next().unwrap();
            let (answer, counts) = behind.split_once(" called ").unwrap_or((behind, ""));
            assert_eq!(answer, alone, "behind us");
            assert_eq!(before.split(" called ").next(), Some(alone), "before us");
            if alone.ends_with(" absent") {
                absent += 1;
                continue;
            }
            // A function that is refused under limits is refused before the interposer is called.
            if shut.contains(&name) && counts == "0 deep 0" {
                assert!(alone.ends_with(" 3") || alone.ends_with(" 4"), "{alone}");
                refused += 1;
                continue;
            }
            let (calls, deep) = counts.split_once(" deep ").unwrap_or_else(|| panic!("{behind}"));
            let calls: u32 = calls.parse().unwrap();
            assert_eq!(deep, "1", "it never meets itself: {behind}");
            assert!(calls == 1 || calls > 1 && (early.contains(&name) || name.starts_with("nvmlInit")), "{behind}");
            passed += 1;
        }
        assert_eq!((behind.lines().count(), before.lines().count()), (names.len() + 1, names.len() + 1));
        // Of 342 functions the simulated driver lacks 38, and 51 are refused.
        assert!(passed >= 250, "{passed} passed, {absent} absent, {refused} refused of {}", names.len());
    }
}

#[test]
fn a_driver_that_lacks_old_functions_has_all_others_hooked() {
    let dir = tempfile::TempDir::new().unwrap();
    let old: Vec<&str> = hooked().into_iter().filter(|name| name.starts_with("cu")).step_by(3).collect();
    let spared = ["cuInit", "cuGetProcAddress", "cuGetProcAddress_v2"];
    let old: Vec<&str> = old.into_iter().filter(|name| !spared.contains(name)).collect();
    generated::stand_in(dir.path(), &old, false);
    every_answer_follows_the_rule(dir.path(), LIMITED);
}

/// A driver newer than the table. A charging function under an unknown name passes and is reported as a bypass; under
/// `strict` it is refused as not found. Functions that charge nothing pass without a report.
#[test]
fn a_new_variant_of_a_charging_function_is_an_open_door_and_shut_under_strict() {
    let dir = tempfile::TempDir::new().unwrap();
    generated::stand_in(dir.path(), &[], true);
    let [charges, shows] = generated::NEWER;
    let script = format!(
        "
import ctypes
cuda = ctypes.CDLL('libcuda.so.1')
for name in '{charges}', '{shows}':
    try: print(bool(ctypes.cast(getattr(cuda, name), ctypes.c_void_p).value), end=' ')
    except AttributeError as e: print(str(e).split(': ')[-1], end=' ')
for name in b'cuMemAlloc', b'cuMemGetInfo':
    at, status = ctypes.c_void_p(), ctypes.c_int(-1)
    code = cuda.cuGetProcAddress_v2(name, ctypes.byref(at), 12000, ctypes.c_uint64(0), ctypes.byref(status))
    print(code, bool(at.value), status.value, end=' ')
    print(cuda.cuGetProcAddress(name, ctypes.byref(at), 12000, ctypes.c_uint64(0)), bool(at.value), end=' ')
"
    );
    let ask = |variables: &[(&str, &str)]| {
        let mut lab = Lab::new("h200");
        lab.with_driver(dir.path());
        variables.iter().for_each(|(name, value)| lab.set(name, value));
        let out = lab.command("python3").args(["-c", &script]).output().unwrap();
        assert!(out.status.success(), "{}", vgpu_tests::text(&out));
        (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let passed = "True True 0 True 0 0 True 0 True 0 0 True ";
    assert_eq!(ask(&[]), (passed.to_owned(), String::new()), "without limits nothing is said");
    assert_eq!(ask(&[("VGPU_STRICT", "1")]), (passed.to_owned(), String::new()), "nor refused");
    let (said, errors) = ask(&[("VGPU_MEMORY_LIMIT", "1GiB")]);
    assert_eq!(said, passed);
    assert!(errors.starts_with(&format!("vgpu: {charges}, a variant ")) && errors.lines().count() == 1, "{errors}");
    assert!(errors.contains("VGPU_STRICT=1"), "{errors}");
    let (said, errors) = ask(&[("VGPU_MEMORY_LIMIT", "1GiB"), ("VGPU_STRICT", "1")]);
    assert_eq!(said, "(refused by VGPU_STRICT=1) True 0 False 1 500 False 0 True 0 0 True ");
    assert!(errors.contains(charges) && errors.contains("refused") && errors.lines().count() == 1, "{errors}");
}
