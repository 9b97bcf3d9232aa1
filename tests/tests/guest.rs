//! The library as a guest in a process: its needs, the names it exposes, and the things it leaves alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use vgpu_tests::artefacts::{libvgpu, libvgpu_dist};
use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, Lab, MIB, Member, NO_PERMISSION, NOT_PERMITTED, optional, run};

/// Allowed libraries: libc, the loader, and the older companions of libc.
const ALLOWED: [&str; 4] = ["libc.so.6", "ld-linux-x86-64.so.2", "libdl.so.2", "libpthread.so.0"];

fn readelf(what: &str, library: &Path) -> String {
    run(Command::new("readelf").arg("-W").arg(what).arg(library).env("LC_ALL", "C"))
}

fn needed(library: &Path) -> Vec<String> {
    let dynamic = readelf("-d", library);
    let lines = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    lines.map(|line| line.split(['[', ']']).nth(1).unwrap().to_owned()).collect()
}

fn only_libc_is_needed(library: &Path) {
    let needed = needed(library);
    assert!(needed.contains(&"libc.so.6".to_owned()), "{needed:?}");
    assert!(needed.iter().all(|name| ALLOWED.contains(&name.as_str())), "{needed:?}");
}

fn exports_are_the_tables(library: &Path) {
    let table = shim_sys::table::CUDA_HOOK_NAMES.iter().chain(shim_sys::table::NVML_HOOK_NAMES);
    let mut expected: BTreeSet<&str> = table.map(|name| name.to_str().unwrap()).collect();
    expected.extend(["dlsym", "dlvsym", "dlopen", "dlmopen"]);
    let symbols = readelf("--dyn-syms", library);
    let exported: BTreeSet<&str> = symbols
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            // Columns: Num: Value Size Type Bind Vis Ndx Name
            let defined = words.len() >= 8 && words[6] != "UND" && matches!(words[4], "GLOBAL" | "WEAK" | "UNIQUE");
            defined.then(|| words[7].split('@').next().unwrap())
        })
        .collect();
    assert_eq!(exported, expected);
}

#[test]
fn it_needs_nothing_but_libc() {
    only_libc_is_needed(&libvgpu());
    only_libc_is_needed(&libvgpu_dist());
}

#[test]
fn it_exports_the_tables_functions_and_four_of_the_loaders_and_nothing_else() {
    exports_are_the_tables(&libvgpu());
    exports_are_the_tables(&libvgpu_dist());
}

#[test]
fn it_is_smaller_than_a_megabyte_as_shipped() {
    let size = fs::metadata(libvgpu_dist()).unwrap().len();
    assert!(size < 1_000_000, "{size} bytes");
    assert!(!readelf("-S", &libvgpu_dist()).contains(".symtab"), "stripped");
}

#[test]
fn it_has_no_constructor_of_its_own() {
    let dynamic = readelf("-d", &libvgpu_dist());
    let size_of = |tag: &str| {
        let line = dynamic.lines().find(|line| line.contains(tag));
        line.map_or(0, |line| line.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap())
    };
    // Two initialisers are allowed: the compiler's frame_dummy, and the standard library's, which only saves argc and
    // argv. One finaliser is allowed: the compiler's __do_global_dtors_aux.
    assert!(size_of("(INIT_ARRAYSZ)") <= 16, "{dynamic}");
    assert!(size_of("(FINI_ARRAYSZ)") <= 8, "{dynamic}");
}

/// System calls of a program and the files it opens, from exec to exit; `None` if tracing is not permitted.
fn trace(preload: &str, program: &[&str]) -> Option<(BTreeMap<u64, i64>, BTreeSet<String>)> {
    let mut c = Command::new(compile("trace", Kind::Program, &[]));
    let out = c.arg(preload).args(program).env_remove("LD_PRELOAD").output().unwrap();
    if out.status.code() == Some(77) {
        optional::skipped("system calls of a preloaded program: tracing is refused here");
        return None;
    }
    assert!(out.status.success(), "{}", vgpu_tests::text(&out));
    let (mut calls, mut files) = (BTreeMap::new(), BTreeSet::new());
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let (number, path) = line.split_once(' ').unwrap();
        *calls.entry(number.parse().unwrap()).or_insert(0) += 1;
        if !path.is_empty() {
            files.insert(path.to_owned());
        }
    }
    Some((calls, files))
}

/// System calls that the loader makes for any library, whatever its contents.
const MAPPING: [libc::c_long; 10] = [
    libc::SYS_openat,
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_close,
    libc::SYS_open,
];

#[test]
fn a_program_that_uses_no_gpu_makes_no_system_call_of_ours() {
    // The reference run preloads an empty library. All calls beyond it are this library's.
    let empty = compile("empty", Kind::Library, &[]);
    // A program that looks up names with prefixes like the driver's: cudnn's and curl's.
    let (asking, foreign) = (compile("ask", Kind::Program, &[]), compile("foreign", Kind::Library, &[]));
    let foreign = foreign.display();
    let asking = format!("exec {} in {foreign} cudnnCreate in {foreign} curl_easy_init > /dev/null", asking.display());
    for library in [libvgpu(), libvgpu_dist()] {
        for program in [&["/bin/true"][..], &["/bin/sh", "-c", "exit 0"], &["/bin/sh", "-c", &asking]] {
            let Some((calls, files)) = trace(library.to_str().unwrap(), program) else { return };
            let Some((reference, known)) = trace(empty.to_str().unwrap(), program) else { return };
            let mut ours: BTreeSet<String> = files.difference(&known).cloned().collect();
            assert!(ours.remove(library.to_str().unwrap()), "it is mapped: {files:?}");
            let companions = |path: &String| needed(&library).iter().any(|name| path.ends_with(name.as_str()));
            assert!(ours.iter().all(companions), "files opened for it: {ours:?}");
            // Each program image maps one library and its companions more, with at most a dozen loader calls each.
            let images = 1 + calls.get(&libc::SYS_execve.cast_unsigned()).unwrap_or(&0);
            for number in calls.keys().chain(reference.keys()).collect::<BTreeSet<_>>() {
                let more = calls.get(number).unwrap_or(&0) - reference.get(number).unwrap_or(&0);
                if MAPPING.contains(&(*number).cast_signed()) {
                    assert!(more.abs() <= 12 * images, "system call {number}: {more} more than the empty library");
                } else {
                    assert_eq!(more, 0, "system call {number} of {program:?}");
                }
            }
        }
    }
}

/// A member at work: it makes contexts and allocations, launches under a ceiling, and queries NVML.
fn at_work(lab: &Lab) -> Member {
    let mut m = lab.member();
    m.ok("self");
    m
}

fn work(m: &mut Member) {
    m.begin();
    m.ok("nvinit");
    for _ in 0..20 {
        let p = m.alloc(MIB);
        m.ok("launch 100000");
        m.ok(&format!("free {p}"));
    }
    m.alloc(GIB);
    m.ok("nvmem 0");
    m.ok("nvprocs 0");
}

fn limited() -> Lab {
    Lab::new("h200").with("VGPU_MEMORY_LIMIT", "4GiB").with("VGPU_SM_LIMIT", "50")
}

#[test]
fn umask_signals_environment_locale_and_directory_stay_as_they_were() {
    let lab = limited();
    let mut m = at_work(&lab);
    let before = m.ok("self").words;
    assert!(before.iter().any(|word| word == "locale=C"), "{before:?}");
    work(&mut m);
    assert_eq!(m.ok("self").words, before);
    assert_eq!(m.errors(), "");
}

#[test]
fn nothing_of_it_is_inherited_by_an_exec() {
    let lab = limited();
    let mut m = at_work(&lab);
    let before = m.ok("descriptors");
    work(&mut m);
    let after = m.ok("descriptors");
    assert!(after.number(0) > before.number(0), "something is open: {after:?}");
    assert_eq!(after.number(1), before.number(1), "not closed on exec: {after:?}");
}

#[test]
fn no_thread_is_made() {
    let lab = limited();
    let mut m = at_work(&lab);
    work(&mut m);
    let mut bare = lab.bare_member();
    work(&mut bare);
    assert_eq!(m.ok("threads"), bare.ok("threads"), "as many as without the library");
}

/// The only file that the library opens beyond the driver's own is the ledger, and only if there is a limit.
#[test]
fn descriptors_do_not_pile_up() {
    let lab = limited();
    let mut m = at_work(&lab);
    work(&mut m);
    let after = m.ok("descriptors").number(0);
    for _ in 0..20 {
        m.ok("nvinit");
        m.ok("nvshutdown");
        m.ok("init");
        let context = m.ok("create-context 0").number(0);
        m.ok(&format!("destroy-context {context}"));
    }
    assert_eq!(m.ok("descriptors").number(0), after);
}

#[test]
fn the_programs_own_exit_code_and_output_are_its_own() {
    let lab = limited();
    let out = lab.command("/bin/sh").args(["-c", "echo out; echo err >&2; exit 7"]).output().unwrap();
    assert_eq!(out.status.code(), Some(7));
    assert_eq!((&out.stdout[..], &out.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
}

/// Starts the program through a shell that changes the descriptors it inherits.
fn born_with(lab: &Lab, shell: &str) -> Member {
    let member = compile("member", Kind::Program, &[]);
    Member::start(lab.command("/bin/sh").args(["-c", shell, "sh"]).arg(member))
}

/// A closed stderr stays closed. If a file of the library took its number, every error message of the program would be
/// written to that file.
#[test]
fn closed_standard_descriptors_stay_closed() {
    let lab = limited();
    let mut m = born_with(&lab, "exec \"$1\" dlsym 2>&-");
    assert_eq!(m.ok("standard").words, ["pipe", "pipe", "closed"]);
    work(&mut m);
    assert_eq!(m.ok("standard").words, ["pipe", "pipe", "closed"]);
    // The error line of a failed initialisation cannot be printed, and must not be written anywhere else.
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "abc");
    let mut m = born_with(&lab, "exec \"$1\" dlsym 2>&-");
    assert_eq!(m.code("init"), vgpu_tests::NOT_PERMITTED);
}

#[test]
fn few_descriptors_are_enough() {
    let lab = limited();
    let mut m = born_with(&lab, "ulimit -n 16; exec \"$1\" dlsym");
    work(&mut m);
    assert_eq!(m.info().1, 4 * GIB);
}

/// Size of a ledger's file in bytes.
const LEDGER: u64 = vgpu_core::memory::ledger::LEDGER_BYTES as u64;

/// A member, with or without the library, whose files may have at most `bytes` bytes.
fn with_file_limit(lab: &Lab, preloaded: bool, bytes: u64) -> Member {
    let program = compile("member", Kind::Program, &[]);
    let mut c = if preloaded { lab.command(program) } else { lab.bare(program) };
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the child makes one system call and nothing else.
    unsafe {
        c.pre_exec(move || match libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    Member::start(c.arg("dlsym"))
}

/// The kernel sends SIGXFSZ when a process grows a file beyond RLIMIT_FSIZE. The signal ends a program that does not
/// expect it.
#[test]
fn a_program_whose_files_may_not_grow_is_told_so_and_gets_no_signal() {
    for bytes in [0, 4096, LEDGER - 1] {
        let lab = limited();
        with_file_limit(&lab, false, bytes).begin(); // the program runs without the library
        let mut m = with_file_limit(&lab, true, bytes);
        let before = m.ok("self").words;
        assert_eq!((m.code("init"), m.code("nvinit")), (NOT_PERMITTED, NO_PERMISSION), "{bytes}");
        assert_eq!(m.ok("self").words, before, "{bytes}");
        let said = m.errors();
        if bytes == 0 {
            assert_eq!(said, "", "its standard error is a file that may not grow");
        } else {
            let words = [format!("RLIMIT_FSIZE is {bytes} bytes"), format!("{LEDGER} are needed"), "ulimit -f".into()];
            assert!(words.iter().all(|word| said.contains(word)) && said.lines().count() == 1, "{said}");
        }
        assert_eq!(fs::read_dir(lab.state()).unwrap().count(), 0, "no empty file is left");
    }
    // A file limit of exactly the ledger's size is enough. If another member made the ledger, any file limit is.
    let lab = limited();
    let mut first = with_file_limit(&lab, true, LEDGER);
    first.begin();
    let mut m = with_file_limit(&lab, true, 0);
    m.begin();
    assert_eq!(m.info(), first.info());
    assert_eq!((first.errors(), m.errors()), (String::new(), String::new()));
    // The log file obeys the process's limit on file sizes (RLIMIT_FSIZE) too: with 0 no message is written.
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "abc");
    let log = lab.path().join("log");
    let lab = lab.with("VGPU_LOG_FILE", &log);
    assert_eq!(with_file_limit(&lab, true, 0).code("init"), NOT_PERMITTED);
    assert_eq!(fs::read(&log).unwrap(), b"");
    assert_eq!(with_file_limit(&lab, true, 4096).code("init"), NOT_PERMITTED);
    assert!(fs::read_to_string(&log).unwrap().contains("VGPU_MEMORY_LIMIT"));
}

/// Makes the first calls in a thread with a stack of `bytes` bytes and returns the number of stack bytes used.
#[track_caller]
fn used_of_a_stack(lab: &Lab, preloaded: bool, bytes: usize) -> usize {
    let program = compile("stack", Kind::Program, &[]);
    let mut c = if preloaded { lab.command(program) } else { lab.bare(program) };
    let out = c.arg(bytes.to_string()).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let all_went = text.lines().count() == 6 && text.lines().all(|line| line.starts_with("0 "));
    assert!(out.status.success() && all_went, "{bytes} bytes, preloaded {preloaded}: {}", vgpu_tests::text(&out));
    text.split_whitespace().last().unwrap().parse().unwrap()
}

/// Language runtimes use thread stacks as small as 64 KiB, and the C library allows 16 KiB. The driver needs most of
/// that, so the library may use little more than the driver alone.
#[test]
fn a_thread_with_a_small_stack_can_begin() {
    const SMALLEST: usize = 16 << 10;
    const MORE: usize = 4 << 10;
    let daemons = Lab::new("h200");
    let tenants = vec![("a".to_owned(), "memory_limit = \"4GiB\"\nsm_limit = 50".to_owned())];
    let plan = Plan { device: daemons.device(0).uuid, time: String::new(), tenants };
    let daemon = Daemon::start(daemons.path(), &plan);
    let by_nvml = Lab::new("h200").with("VGPU_MEMORY_LIMIT_0", "25%").with("VGPU_SM_LIMIT", "50");
    let observed = Lab::new("h200").with("VGPU_MODE", "observe");
    for lab in [limited(), by_nvml, observed, daemons.with("VGPU_SOCKET", daemon.socket("a"))] {
        let alone = used_of_a_stack(&lab, false, 64 << 10);
        let used = used_of_a_stack(&lab, true, 64 << 10);
        println!("bytes of stack, of the simulated driver alone {alone}, with the library {used}");
        assert!(used <= alone + MORE, "{used} bytes, {alone} without the library");
        used_of_a_stack(&lab, true, SMALLEST.max((alone + MORE).next_multiple_of(4096)));
    }
}

#[test]
fn a_program_that_closes_every_descriptor_keeps_its_charges_until_it_dies() {
    let lab = limited();
    let (mut m, mut other) = (lab.member(), lab.member());
    other.begin();
    let alone = other.used();
    m.begin();
    m.alloc(GIB);
    let together = other.used();
    assert!(together > alone + GIB);
    m.ok("close-all");
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(60));
        assert_eq!(other.used(), together, "it lives, and so do its charges");
    }
    m.kill();
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(other.used(), alone);
}

#[test]
fn signals_at_any_moment_do_no_harm() {
    let lab = limited();
    let mut m = at_work(&lab);
    m.ok("alarms 300");
    work(&mut m);
    let p = m.ok(&format!("alloc {GIB}")).number(0);
    m.ok(&format!("free {p}"));
    assert!(m.ok("alarmed").number(0) > 10, "signals came");
}
