//! Lookup paths to the driver that differ from program to program. Constructors, threads, forks, RTLD_DEEPBIND, other
//! linker namespaces; other interposers of the driver, of the loader and of malloc; code that is patched in place; a
//! second copy of the driver.
//!
//! Every function through every ordinary lookup path: `doors.rs`; the meaning of RTLD_NEXT: `lookup.rs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use vgpu_tests::artefacts::sim_dir;
use vgpu_tests::program::{Kind, compile, compile_with};
use vgpu_tests::{GIB, Lab, MIB, Member, OUT_OF_MEMORY, optional, run, text};

fn host() -> PathBuf {
    compile_with("host", Kind::Program, &[], &["-rdynamic"])
}

/// A library that uses the device: linked with the driver, or with lookups of its own.
fn guests() -> [(&'static str, PathBuf); 2] {
    [
        ("linked", compile("guest", Kind::LinkedLibrary, &[])),
        ("by its own dlsym", compile("guest", Kind::Library, &["OWN"])),
    ]
}

fn one_gib() -> Lab {
    Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB")
}

/// Runs the host program with these arguments. Returns its output lines and its stderr.
fn ask(command: &mut Command, words: &[&str]) -> (Vec<String>, String) {
    let out: Output = command.args(words).output().unwrap();
    assert!(out.status.success(), "{words:?}: {}", text(&out));
    let lines = String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect();
    (lines, String::from_utf8(out.stderr).unwrap())
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_library_that_is_opened_in_any_way_is_limited() {
    let (much, little) = (GIB.to_string(), MIB.to_string());
    for (kind, guest) in guests() {
        for way in ["open", "deep", "base"] {
            let lab = one_gib();
            let (said, errors) = ask(&mut lab.command(host()), &[way, path(&guest), "alloc", &much, "alloc", &little]);
            assert_eq!(said, [OUT_OF_MEMORY.to_string(), "0".into()], "{kind}, {way}: {errors}");
            assert_eq!(errors, "", "{kind}, {way}: no door is open");
        }
    }
}

#[test]
fn deepbind_is_cleared_only_where_limits_are_asked_for() {
    let (_, guest) = &guests()[0];
    let bound = |lab: &Lab| ask(&mut lab.command(host()), &["deep", path(guest), "bound"]).0;
    let bare = Lab::new("h200");
    assert_eq!(ask(&mut bare.bare(host()), &["deep", path(guest), "bound"]).0, ["1"], "without the library: its own");
    assert_eq!(bound(&bare), ["1"], "without limits: its own");
    assert_eq!(bound(&Lab::new("h200").with("VGPU_MEMORY_LIMIT", "unlimited")), ["1"], "no limit is none");
    assert_eq!(bound(&one_gib()), ["2"], "cleared: the program's");
    assert_eq!(bound(&Lab::new("h200").with("CUDA_DEVICE_SM_LIMIT", "30")), ["2"], "by HAMi's names too");
    assert_eq!(bound(&one_gib().with("VGPU_DEEPBIND", "keep")), ["1"], "kept");
    assert_eq!(bound(&one_gib().with("VGPU_DEEPBIND", "keep").with("VGPU_STRICT", "1")), ["2"], "strict wins");
    assert_eq!(bound(&one_gib().with("VGPU_DEEPBIND", "clear")), ["2"]);
}

#[test]
fn deepbind_that_is_kept_is_an_open_door_and_told_once() {
    let much = GIB.to_string();
    for (kind, guest) in guests() {
        let lab = one_gib().with("VGPU_DEEPBIND", "keep");
        let words = ["deep", path(&guest), "alloc", &much, "deep", path(&guest), "alloc", &much];
        let (said, errors) = ask(&mut lab.command(host()), &words);
        assert_eq!(said, ["0", "0"], "{kind}: it binds past us");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains("RTLD_DEEPBIND") && errors.contains("VGPU_DEEPBIND"), "{errors}");
        assert!(errors.contains(guest.file_name().unwrap().to_str().unwrap()), "{errors}");
    }
}

#[test]
fn another_namespace_is_an_open_door_and_refused_by_the_loader_under_strict() {
    let much = GIB.to_string();
    let (_, guest) = &guests()[0];
    let words = ["new", path(guest), "alloc", &much];
    let (said, errors) = ask(&mut one_gib().command(host()), &words);
    assert_eq!(said, ["0"], "nobody is preloaded there");
    assert!(errors.starts_with("vgpu: dlmopen of guest") && errors.lines().count() == 1, "{errors}");
    let (said, errors) = ask(&mut one_gib().with("VGPU_STRICT", "1").command(host()), &words);
    assert!(said.len() == 1 && said[0].starts_with("refused: ") && said[0].contains("namespace"), "{said:?}");
    assert!(errors.contains("VGPU_STRICT"), "{errors}");
    let (said, errors) = ask(&mut Lab::new("h200").with("VGPU_STRICT", "1").command(host()), &words);
    assert_eq!((said, errors.as_str()), (vec!["0".to_owned()], ""), "without limits nothing is refused or said");
    let (_, errors) = ask(&mut one_gib().with("VGPU_LOG", "off").command(host()), &words);
    assert_eq!(errors, "");
}

/// The loader uses the search path of the calling library. A call frame of ours in between would lose it.
#[test]
fn a_library_finds_others_by_its_own_search_path() {
    let lab = one_gib();
    let dir = lab.path().join("nest/inner");
    fs::create_dir_all(&dir).unwrap();
    let outer = compile_with("guest", Kind::Library, &["OWN"], &["-Wl,-rpath,$ORIGIN/inner"]);
    let here = lab.path().join("nest/libouter.so");
    fs::copy(outer, &here).unwrap();
    fs::copy(compile("empty", Kind::Library, &[]), dir.join("libonly-there.so")).unwrap();
    for way in ["open", "deep"] {
        let words = [way, path(&here), "inner", "libonly-there.so"];
        assert_eq!(ask(&mut lab.command(host()), &words).0, ["opened"], "{way}");
        assert_eq!(ask(&mut lab.bare(host()), &words).0, ["opened"], "{way}, alone");
    }
}

#[test]
fn a_librarys_constructor_is_limited_whenever_it_runs() {
    for kind in [Kind::LinkedLibrary, Kind::Library] {
        let defines: &[&str] = if kind == Kind::Library { &["CONSTRUCTOR", "OWN"] } else { &["CONSTRUCTOR"] };
        let guest = compile("guest", kind, defines);
        for (bytes, code) in [(GIB, OUT_OF_MEMORY), (MIB, 0)] {
            let mut lab = one_gib().with("GUEST_BYTES", bytes.to_string());
            let expected = [code.to_string()];
            assert_eq!(ask(&mut lab.command(host()), &["open", path(&guest), "made"]).0, expected, "{kind:?}, opened");
            let us = lab.lib().to_owned();
            for we_are_first in [true, false] {
                lab.preload(&if we_are_first { [us.as_path(), &guest] } else { [guest.as_path(), &us] });
                let said = ask(&mut lab.command(host()), &["made"]).0;
                assert_eq!(said, expected, "{kind:?}, preloaded, we are first: {we_are_first}");
            }
        }
    }
}

/// Threads allocate 8 MiB at a time until the limit of 1 GiB, context included, is used to the last piece.
#[track_caller]
fn share_one_limit(lab: &Lab, words: &str) {
    let mut m = Member::start_silent(lab.command(host()).args([words, &(8 * MIB).to_string()]));
    let line = m.line();
    let said: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
    let truth = lab.process(0, u32::try_from(said[2]).unwrap());
    assert_eq!(said[1], 0, "every thread ended with out of memory: {line}");
    assert_eq!(truth.requested_bytes, said[0]);
    let held = truth.overhead_bytes + said[0];
    assert!(held <= GIB, "{} bytes over the limit: {truth:?}", held - GIB);
    assert!(GIB - held < 8 * MIB, "{} bytes were left: {truth:?}", GIB - held);
    m.tell("");
    assert!(m.finish().success());
}

#[test]
fn threads_that_look_up_and_initialise_at_once_share_one_limit() {
    share_one_limit(&one_gib(), "threads");
}

/// The driver hands a context that one thread is still creating to all other threads, before the creating thread could
/// measure it.
#[test]
fn a_context_that_one_thread_still_makes_is_handed_to_others_when_it_is_charged() {
    let mut lab = one_gib();
    let ours = lab.lib().to_owned();
    lab.preload(&[&ours, &compile("late", Kind::LinkedLibrary, &["RETAIN"])]);
    share_one_limit(&lab, "one-first");
}

/// A context that does not fit is destroyed. If another library holds it, it stays, and nothing else fits.
#[test]
fn a_context_that_did_not_fit_and_cannot_be_taken_back_is_charged() {
    let mut lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "100MiB");
    let ours = lab.lib().to_owned();
    lab.preload(&[&ours, &compile("late", Kind::LinkedLibrary, &["HOLD"])]);
    let mut m = Member::start_silent(lab.command(host()).args(["twice", &MIB.to_string()]));
    let line = m.line();
    let said: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
    let truth = lab.process(0, u32::try_from(said[2]).unwrap());
    assert!(truth.overhead_bytes > 100 * MIB, "it is there: {truth:?}");
    assert_eq!((said[0], said[1], truth.requested_bytes), (0, 0, 0), "out of memory, and nothing else: {truth:?}");
    m.tell("");
    assert!(m.finish().success());
}

/// The fork must not happen during lookups of other threads: the C library's loader lock would stay held in the child.
#[test]
fn forked_children_that_look_up_for_themselves_are_limited() {
    let (_, guest) = &guests()[1];
    let lab = one_gib();
    let mut m = Member::start_silent(lab.command(host()).args(["forks", "40", path(guest)]));
    assert_eq!(m.line(), "0", "children that were not limited");
}

/// Another interposer of the driver's function, loaded before and behind libvgpu. It finds the next function in each
/// possible way and calls it on the same thread, on a new thread, or on a worker thread.
#[test]
fn another_interposer_reaches_the_driver_once_from_any_thread() {
    let lookups: [&[&str]; 4] = [&["BY_LOOKUP"], &["DRIVER"], &["DRIVER", "BY_HANDLE"], &["DRIVER", "BY_DLVSYM"]];
    for lookup in lookups {
        for thread in [None, Some("THREAD"), Some("WORKER")] {
            let defines: Vec<&str> = lookup.iter().copied().chain(thread).collect();
            let other = compile("interposer", Kind::Library, &defines);
            for door in ["linked", "default", "dlsym", "get1", "get2"] {
                // A search by RTLD_NEXT finds only a driver in the global scope.
                if lookup[0] == "DRIVER" && !lookup.contains(&"BY_HANDLE") && !["linked", "default"].contains(&door) {
                    continue;
                }
                // By the driver's own handle or lookup a program finds the driver's function, as without libvgpu.
                let met = u64::from(["linked", "default"].contains(&door));
                for we_are_first in [true, false] {
                    let mut lab = one_gib();
                    let us = lab.lib().to_owned();
                    lab.preload(&if we_are_first { [us.as_path(), &other] } else { [other.as_path(), &us] });
                    let what = format!("{defines:?}, {door}, we are first: {we_are_first}");
                    let mut m = lab.member_by(door);
                    m.begin();
                    let free = m.info().0;
                    assert_eq!(m.code(&format!("alloc {}", 100 * MIB)), 0, "{what}");
                    assert_eq!(m.info().0, free - 100 * MIB, "charged once: {what}");
                    assert_eq!(m.code(&format!("alloc {GIB}")), OUT_OF_MEMORY, "{what}");
                    assert_eq!(m.ok("interposed").numbers(), [2 * met, met], "calls and depth: {what}");
                }
            }
        }
    }
}

/// A library's exported names do not tell how it uses the answer: it may call the function from anywhere.
#[test]
fn a_library_that_exports_the_drivers_names_and_asks_for_them_is_limited() {
    let (much, little) = (GIB.to_string(), MIB.to_string());
    for way in ["BY_HANDLE", "BY_NEXT", "BY_GET", "BY_DLSYM"] {
        // Linked with the driver, so that RTLD_NEXT finds the driver behind the library.
        let guest = compile("guest", Kind::LinkedLibrary, &["OWN", "NAMED", way]);
        let mut lab = one_gib();
        let us = lab.lib().to_owned();
        for order in [vec![us.as_path(), &guest], vec![guest.as_path(), &us], vec![us.as_path()]] {
            lab.preload(&order);
            let (said, errors) =
                ask(&mut lab.command(host()), &["open", path(&guest), "alloc", &much, "alloc", &little]);
            assert_eq!(said, [OUT_OF_MEMORY.to_string(), "0".into()], "{way}, {order:?}: {errors}");
            assert_eq!(errors, "", "{way}, {order:?}: no door is open");
        }
    }
}

/// Generated wrappers of the driver, as frameworks contain them: each function looks up the driver's function at its
/// first call.
#[test]
fn wrappers_that_open_the_driver_at_their_first_call_are_limited_in_both_orders() {
    let (much, little) = (GIB.to_string(), MIB.to_string());
    let wrappers = compile("interposer", Kind::Library, &["LAZY"]);
    let guest = compile("guest", Kind::Library, &["BY_GLOBAL_NAMES"]);
    for we_are_first in [true, false] {
        let mut lab = one_gib();
        let us = lab.lib().to_owned();
        lab.preload(&if we_are_first { [us.as_path(), &wrappers] } else { [wrappers.as_path(), &us] });
        let words = ["open", path(&guest), "alloc", &little, "alloc", &much, "interposed"];
        let (said, errors) = ask(&mut lab.command(host()), &words);
        assert_eq!(said[..2], ["0".to_owned(), OUT_OF_MEMORY.to_string()], "we are first: {we_are_first}: {errors}");
        // Calls: initialise, retain, set current, allocate; free after the allocation that succeeds.
        assert_eq!(said[2], "9 1", "calls and depth, we are first: {we_are_first}");
        assert_eq!(errors, "", "we are first: {we_are_first}");
    }
}

#[test]
fn another_hook_of_the_loader_itself_does_not_hide_the_driver() {
    let other = compile("interposer", Kind::Library, &["LOADER"]);
    for door in ["dlsym", "get2"] {
        for we_are_first in [true, false] {
            let mut lab = one_gib();
            let us = lab.lib().to_owned();
            lab.preload(&if we_are_first { [us.as_path(), &other] } else { [other.as_path(), &us] });
            let mut m = lab.member_by(door);
            m.begin();
            let what = format!("{door}, we are first: {we_are_first}");
            assert_eq!(m.info().1, GIB, "{what}");
            assert_eq!(m.code(&format!("alloc {GIB}")), OUT_OF_MEMORY, "{what}");
            assert!(m.ok("interposed").number(0) > 0, "it was asked: {what}");
        }
    }
}

#[test]
fn the_loaders_functions_by_a_handle_of_the_c_library_are_ours() {
    let said = ask(&mut one_gib().command(host()), &["loaders"]).0;
    assert_eq!(said, ["libvgpu.so libvgpu.so libc.so.6"]);
}

/// The driver was loaded with RTLD_LOCAL: the program's search of the global scope finds nothing, as without libvgpu.
#[test]
fn a_driver_that_was_loaded_for_its_opener_alone_is_not_found_by_everybody() {
    for name in ["cuMemAlloc_v2", "cuInit", "cuNoSuchFunction"] {
        let words = ["open", "libcuda.so.1", "default", name, "in", "cuMemAlloc_v2"];
        let (said, _) = ask(&mut one_gib().command(host()), &words);
        assert_eq!(said, ["null words", "libvgpu.so -"], "{name}");
        let (said, _) = ask(&mut one_gib().bare(host()), &words);
        assert_eq!(said, ["null words", "libcuda.so.1 -"], "{name}, alone");
    }
}

#[test]
fn a_second_copy_of_the_driver_is_an_open_door_and_shut_under_strict() {
    let mut lab = one_gib();
    let copy = lab.path().join("libcuda-copy.so.1");
    fs::copy(sim_dir().join("libcuda.so.1"), &copy).unwrap();
    let words = ["open", "libcuda.so.1", "in", "cuMemAlloc_v2", "open", path(&copy), "in", "cuMemAlloc_v2"];
    let (said, errors) = ask(&mut lab.command(host()), &words);
    assert_eq!(said, ["libvgpu.so -", "libcuda-copy.so.1 -"]);
    assert!(errors.contains("cuMemAlloc_v2") && errors.contains("second copy"), "{errors}");
    lab.set("VGPU_STRICT", "1");
    let (said, _) = ask(&mut lab.command(host()), &words);
    assert_eq!(said[0], "libvgpu.so -");
    assert!(said[1].starts_with("null ") && said[1].len() > "null -".len(), "with words: {said:?}");
    lab.unset("VGPU_STRICT");
    lab.unset("VGPU_MEMORY_LIMIT");
    assert_eq!(ask(&mut lab.command(host()), &words).1, "", "without limits nothing is said");
}

#[test]
fn a_function_whose_code_was_replaced_in_place_is_still_charged() {
    let guest = compile("guest", Kind::Library, &["OWN"]);
    let symbols =
        run(Command::new("readelf").args(["-W", "--dyn-syms"]).arg(sim_dir().join("libcuda.so.1")).env("LC_ALL", "C"));
    let line = symbols.lines().find(|line| line.split_whitespace().nth(7) == Some("cuMemAlloc_v2")).unwrap();
    let offset = line.split_whitespace().nth(1).unwrap();
    let (much, little) = (GIB.to_string(), MIB.to_string());
    let work = ["open", path(&guest), "alloc", &much, "alloc", &little, "detours"];
    for (patch, detours) in [(&["patch-driver", offset][..], "1"), (&["patch-found"], "2")] {
        let words = [patch, &work].concat();
        let (said, _) = ask(&mut one_gib().command(host()), &words);
        // A patch in the driver's code sees only the calls that we let through. A patch in our code, taken for the
        // driver's, sees every call.
        assert_eq!(said, [OUT_OF_MEMORY.to_string(), "0".into(), detours.into()], "{patch:?}");
        let (said, _) = ask(&mut one_gib().bare(host()), &words);
        assert_eq!(said, ["0", "0", "2"], "{patch:?}, alone");
    }
}

fn is_limited(lab: &Lab, what: &str) {
    for door in ["linked", "dlsym", "get2"] {
        let mut m = lab.member_by(door);
        m.begin();
        assert_eq!(m.info().1, GIB, "{what}, {door}");
        assert_eq!(m.code(&format!("alloc {GIB}")), OUT_OF_MEMORY, "{what}, {door}");
        m.alloc(MIB);
        assert_eq!(m.errors(), "", "{what}, {door}");
    }
}

#[test]
fn an_allocator_that_looks_up_names_at_its_first_allocation_works_in_both_orders() {
    let allocator = compile("interposer", Kind::Library, &["ALLOCATOR"]);
    for we_are_first in [true, false] {
        let mut lab = one_gib();
        let us = lab.lib().to_owned();
        lab.preload(&if we_are_first { [us.as_path(), &allocator] } else { [allocator.as_path(), &us] });
        is_limited(&lab, &format!("we are first: {we_are_first}"));
    }
}

/// Client: jemalloc
/// Client: tcmalloc
#[test]
fn well_known_allocators_work_in_both_orders() {
    for (variable, name) in [("VGPU_JEMALLOC", "Debian's jemalloc"), ("VGPU_TCMALLOC", "Debian's tcmalloc")] {
        let Some(allocator) = optional::part(variable, name) else { continue };
        for we_are_first in [true, false] {
            let mut lab = one_gib();
            let us = lab.lib().to_owned();
            lab.preload(&if we_are_first { [us.as_path(), &allocator] } else { [allocator.as_path(), &us] });
            is_limited(&lab, &format!("{name}, we are first: {we_are_first}"));
        }
    }
}

#[test]
fn threads_may_look_up_names_before_main_in_both_orders() {
    let early = compile("guest", Kind::Library, &["OWN", "EARLY"]);
    for we_are_first in [true, false] {
        let mut lab = one_gib();
        let us = lab.lib().to_owned();
        lab.preload(&if we_are_first { [us.as_path(), &early] } else { [early.as_path(), &us] });
        assert_eq!(ask(&mut lab.command(host()), &["made"]), (vec!["0".to_owned()], String::new()), "{we_are_first}");
    }
}

#[test]
fn an_openmp_program_runs_as_ever() {
    let program = compile_with("openmp", Kind::Program, &[], &["-fopenmp"]);
    let lab = one_gib();
    let alone = ask(&mut lab.bare(&program), &[]);
    assert_eq!(alone.0, ["4799685 by 8 threads, 0 device(s)"]);
    assert_eq!(ask(&mut lab.command(&program), &[]), alone);
}

/// PyTorch for the CPU: hundreds of libraries, OpenMP, lookups of many names, none of which belong to a GPU.
///
/// Client: PyTorch for the CPU
#[test]
fn torch_without_a_gpu_runs_as_ever_and_hears_nothing_of_us() {
    let Some(root) = optional::part("VGPU_TORCH", "Debian's python3-torch") else { return };
    let script = "
import torch
torch.manual_seed(1)
a = torch.arange(128 * 128, dtype=torch.float64).reshape(128, 128) / 128
print(torch.__version__, (a @ a).sum().item(), torch.rand(3).tolist(), torch.cuda.is_available())";
    let usr = root.join("usr/lib");
    let machine = format!("{}-linux-gnu", std::env::consts::ARCH);
    let parts =
        [&machine, ".", &format!("{machine}/blas"), &format!("{machine}/lapack"), &format!("../../lib/{machine}")];
    let search = |lab: &Lab, bare: bool| {
        let mut c = if bare { lab.bare("/usr/bin/python3") } else { lab.command("/usr/bin/python3") };
        let libraries: Vec<PathBuf> = parts.iter().map(|part| usr.join(part)).collect();
        c.args(["-c", script]).env("LD_LIBRARY_PATH", std::env::join_paths(libraries).unwrap());
        c.env("PYTHONPATH", usr.join("python3/dist-packages")).env("PYTHONDONTWRITEBYTECODE", "1");
        ask(&mut c, &[])
    };
    let lab = one_gib();
    let alone = search(&lab, true);
    assert!(alone.0[0].ends_with("False"), "{alone:?}");
    assert_eq!(search(&lab, false), alone);
    assert_eq!(fs::read_dir(lab.state()).unwrap().count(), 0, "no account was opened");
}
