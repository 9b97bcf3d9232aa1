//! Small programs with the call patterns of well-known ones. At every point of comparison the charges equal the
//! simulated device's record.
//!
//! The programs are `programs/patterns.c`, `launcher.c` and `runtime.c`. Each point compares the program's own account,
//! its cuMemGetInfo, NVML seen from another process, and the device's record. Not here: unmodified clients
//! (clients.rs), a library that patches the driver's code (lookup.rs).

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::Stdio;
use vgpu_tests::lab::{charged, short};
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, Lab, MIB, Member, OUT_OF_MEMORY, run};

/// A point of comparison in a program: its name, the bytes the program counts itself, and the values of cuMemGetInfo.
#[derive(Debug)]
struct Point {
    label: String,
    held: u64,
    used: u64,
    total: u64,
}

/// A program that stops at points of comparison, and a member that observes it through NVML.
struct Pattern {
    lab: Lab,
    program: Member,
    observer: Member,
    limit: u64,
    /// True if the program's numbers are whole slabs: it uses pools, or memory whose maker may be dead.
    whole: bool,
    last: Vec<String>,
}

impl Pattern {
    fn start(lab: Lab, name: &str, limit: u64) -> Pattern {
        let program = Member::start_silent(lab.command(compile("patterns", Kind::Program, &[])).arg(name));
        let mut observer = lab.member();
        observer.ok("nvinit");
        Pattern { lab, program, observer, limit, whole: name.starts_with("pool") || name == "ranks", last: Vec::new() }
    }

    fn under(name: &str, limit: u64) -> Pattern {
        Pattern::start(Lab::new("h200").with("VGPU_MEMORY_LIMIT", format!("{limit}B")), name, limit)
    }

    /// Reads the program's next point and compares it with the device; `None` at the end. Other lines are kept in
    /// `last`.
    fn point(&mut self) -> Option<Point> {
        loop {
            let line = self.program.line();
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["at", label, held, free, total] => {
                    let number = |word: &str| word.parse::<u64>().unwrap();
                    let (free, total) = (number(free), number(total));
                    let point = Point { label: label.to_owned(), held: number(held), used: total - free, total };
                    self.compare(&point);
                    return Some(point);
                }
                ["end"] => return None,
                ["!", ..] => panic!("{line}; {}", self.program.errors()),
                _ => self.last = words.into_iter().map(str::to_owned).collect(),
            }
        }
    }

    fn go_on(&mut self) {
        self.program.tell("");
    }

    fn compare(&mut self, point: &Point) {
        let truth = self.lab.device(0);
        let overhead: u64 = truth.processes.iter().map(|p| p.overhead_bytes).sum();
        assert_eq!(point.total, self.limit, "{point:?}: the limit is the total");
        assert!(point.used <= self.limit, "{point:?}: over the limit: {}", short(&truth));
        if self.whole {
            assert_eq!(point.used, truth.used, "{point:?}: the device agrees: {}", short(&truth));
        } else {
            assert_eq!(point.used, charged(&truth), "{point:?}: the device agrees: {}", short(&truth));
        }
        let nvml = self.observer.ok("nvmem 0").numbers();
        assert_eq!(nvml, [self.limit, self.limit - point.used, point.used], "{point:?}: NVML agrees");
        let others: u64 = self.others(&truth);
        // Each allocation takes whole slabs.
        let slabs = 2 * MIB * truth.processes.iter().map(|p| p.allocations).sum::<u64>();
        let asked = point.used - others - overhead;
        assert!(
            (point.held..=point.held + slabs).contains(&asked),
            "{point:?}: charged is what it asked for, in slabs: {}",
            short(&truth)
        );
    }

    /// Bytes held by members other than the program.
    fn others(&self, truth: &vgpu_sim::truth::DeviceTruth) -> u64 {
        let others = truth.processes.iter().filter(|p| p.name.contains("/member-"));
        others.map(|p| p.slab_bytes).sum()
    }

    /// Runs to the end and returns the labels of the points.
    fn labels(&mut self) -> Vec<String> {
        let mut labels = Vec::new();
        while let Some(point) = self.point() {
            labels.push(point.label);
            self.go_on();
        }
        labels
    }
}

#[test]
fn a_pool_that_releases_what_it_has_mapped_is_held_to_the_limit() {
    let mut p = Pattern::under("release-after-map", 2 * GIB);
    let (mut grown, mut full) = (0, 0);
    while let Some(point) = p.point() {
        grown += u32::from(point.label == "grown");
        if point.label == "full" {
            full += 1;
            // The refused growth was 1.5 times the last one.
            assert!(point.used <= 2 * GIB && point.held > GIB / 2, "{point:?}");
        }
        p.go_on();
    }
    assert!(grown > 15 && full == 3, "{grown} {full}");
}

#[test]
fn expandable_segments_grow_to_the_limit_and_give_room_back() {
    let mut p = Pattern::under("expandable-segments", 3 * GIB);
    let mut full = 0;
    while let Some(point) = p.point() {
        if point.label == "full" {
            full += 1;
            assert!(3 * GIB - point.used < 20 * MIB, "it got all that there is: {point:?}");
        }
        p.go_on();
    }
    assert_eq!(full, 4);
}

#[test]
fn a_sleeping_program_gives_its_room_to_others_and_wakes_when_there_is_some() {
    let limit = 2 * GIB;
    let mut p = Pattern::under("sleep-mode", limit);
    let mut other = p.lab.member();
    let awake = p.point().unwrap();
    assert_eq!((awake.label.as_str(), awake.held), ("awake", 384 * MIB));
    other.begin();
    let room = other.info().0;
    assert_eq!(other.code(&format!("alloc {}", room + 64 * MIB)), OUT_OF_MEMORY, "what is awake is not given away");
    p.go_on();
    for round in 0..3 {
        let asleep = p.point().unwrap();
        assert_eq!(asleep.label, "asleep", "round {round}");
        // In the first round the other member takes so much that two pieces no longer fit.
        let taken = (round == 0).then(|| other.alloc(room + 128 * MIB));
        p.go_on();
        let woken = p.point().unwrap();
        if let Some(taken) = taken {
            assert_eq!((woken.label.as_str(), woken.held), ("partly", 256 * MIB));
            other.ok(&format!("free {taken}"));
        } else {
            assert_eq!((woken.label.as_str(), woken.held), ("awake", 384 * MIB));
        }
        p.go_on();
        assert_eq!(p.point().unwrap().label, "awake", "with the content it had");
        p.go_on();
    }
    assert!(p.point().is_none());
}

#[test]
fn a_pool_allocator_of_several_threads_is_charged_what_its_pool_holds() {
    let mut p = Pattern::under("pool-allocator", 2 * GIB);
    let labels = p.labels();
    assert_eq!(labels, ["made", "primed", "kept", "quiet", "quiet", "quiet", "trimmed", "emptied", "destroyed"]);
    assert!(p.last[1].parse::<u64>().unwrap() > 2000, "granted: {:?}", p.last);
}

/// There is less room than the threads need: they get out of memory and no other error.
#[test]
fn a_pool_allocator_without_room_is_refused_and_goes_on() {
    let mut p = Pattern::under("pool-allocator", 800 * MIB);
    p.labels();
    let (granted, refused) = (p.last[1].parse::<u64>().unwrap(), p.last[2].parse::<u64>().unwrap());
    assert!(granted > 100 && refused > 50, "{:?}", p.last);
}

#[test]
fn a_buffer_of_two_ranks_is_charged_once_and_passes_to_the_one_who_lives() {
    let mut p = Pattern::under("ranks", 3 * GIB);
    let mut labels = Vec::new();
    while let Some(point) = p.point() {
        if point.label == "alone" {
            let rank_1: u32 = p.last[2].parse().unwrap();
            let truth = p.lab.device(0);
            assert_eq!(truth.processes.len(), 1, "rank 0 is dead: {}", short(&truth));
            assert_eq!(truth.processes[0].pid, rank_1);
            assert_eq!(truth.used - truth.processes[0].overhead_bytes, 32 * MIB, "and the buffer lives");
        }
        labels.push(point.label);
        p.go_on();
    }
    assert_eq!(labels, ["flags", "exported", "both", "alone", "freed"]);
}

#[test]
fn most_of_the_total_can_be_taken_at_the_start() {
    let mut p = Pattern::under("preallocation", 16 * GIB);
    assert_eq!(p.labels(), ["arena", "of-free"]);
}

/// A launcher that is compiled at the kernel's first use, queries each pointer, and launches by the results. It gets
/// the same answers as without the library, and every launch runs once, with any limits.
#[test]
fn a_launcher_compiled_at_run_time_launches_and_gets_the_drivers_answers() {
    let program = compile("launcher", Kind::Program, &[]);
    let mut seen = BTreeSet::new();
    for (sm_limit, preloaded) in [(None, false), (None, true), (Some("90"), true)] {
        let mut lab = Lab::new("h200");
        if preloaded {
            lab.set("VGPU_MEMORY_LIMIT", "4GiB");
        }
        if let Some(limit) = sm_limit {
            lab.set("VGPU_SM_LIMIT", limit);
        }
        let mut c = if preloaded { lab.command(&program) } else { lab.bare(&program) };
        let mut m = Member::start_silent(c.arg("cc").arg(lab.path()).arg("2000"));
        seen.insert(m.line());
        assert_eq!(m.line(), "2000", "launches that went well; {}", m.errors());
        let truth = lab.process(0, m.pid);
        assert_eq!(truth.kernels, 2000, "launches that the device has seen: {truth:?}");
        assert_eq!(truth.requested_bytes, 4 * MIB);
        m.tell("");
        assert!(m.finish().success());
    }
    assert_eq!(seen.len(), 1, "the same answers about pointers: {seen:?}");
    assert!(seen.first().unwrap().starts_with("0 1 "), "of which the first is good: {seen:?}");
}

/// Looks up every name in the headers in three versions, some with per-thread streams, as a runtime library does. The
/// answer is the driver's choice or the hook of exactly that function.
#[test]
fn a_runtime_that_looks_up_every_name_gets_the_drivers_choice_or_its_hook() {
    let names: BTreeSet<&str> = shim_sys::table::CUDA_ROWS.iter().map(shim_sys::table::Row::base_name).collect();
    let twins: BTreeSet<&str> = shim_sys::table::CUDA_ROWS
        .iter()
        .filter(|row| row.name.ends_with("_ptsz") || row.name.ends_with("_ptds"))
        .map(shim_sys::table::Row::base_name)
        .collect();
    assert!(names.len() > 450 && twins.len() > 60, "{} names, {} twins", names.len(), twins.len());
    let hooks: BTreeSet<&str> = shim_sys::table::CUDA_HOOK_NAMES.iter().map(|name| name.to_str().unwrap()).collect();
    let questions: String =
        names.iter().map(|name| format!("{name} 0\n")).chain(twins.iter().map(|name| format!("{name} 2\n"))).collect();
    let program = compile("runtime", Kind::Program, &[]);
    let ask = |command: &mut std::process::Command, version: &str| {
        let mut child = command.arg(version).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let text = questions.clone();
        let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
        let out = child.wait_with_output().unwrap();
        writer.join().unwrap();
        assert!(out.status.success(), "{}", vgpu_tests::text(&out));
        String::from_utf8(out.stdout).unwrap()
    };
    for version in ["12000", "12090", "13000"] {
        let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
        let (alone, with) = (ask(&mut lab.bare(&program), version), ask(&mut lab.command(&program), version));
        let (mut swapped, mut passed) = (0, 0);
        let answers = names.len() + twins.len();
        for (a, w) in alone.lines().zip(with.lines()).take(answers) {
            let expected = match a.rsplit(' ').next() {
                Some(symbol) if hooks.contains(symbol) => {
                    swapped += 1;
                    a.replace("libcuda.so.1", "libvgpu.so")
                }
                _ => {
                    passed += 1;
                    a.to_owned()
                }
            };
            assert_eq!(w, expected, "version {version}");
        }
        assert_eq!((alone.lines().count(), with.lines().count()), (answers + 1, answers + 1));
        assert!(swapped > 40 && passed > 300, "{swapped} swapped, {passed} passed");
        assert!(alone.lines().last().unwrap().starts_with("0 "), "bare it gets the memory");
        assert_eq!(with.lines().last().unwrap(), format!("{OUT_OF_MEMORY} {GIB}"), "and here the limit");
    }
}

/// cuMemGetInfo with null for one output or both, before and after a context exists: the driver's own codes.
#[test]
fn memory_questions_with_null_get_the_drivers_own_answers() {
    let script = "
import ctypes
cuda = ctypes.CDLL('libcuda.so.1')
free, total, context = ctypes.c_size_t(7), ctypes.c_size_t(7), ctypes.c_void_p()
def ask(word):
    for f in None, ctypes.byref(free):
        for t in None, ctypes.byref(total):
            free.value = total.value = 7
            code = cuda.cuMemGetInfo_v2(f, t)
            print(word, code, free.value != 7, total.value != 7)
    print(word, cuda.cuDeviceTotalMem_v2(None, 0))
ask('before')
cuda.cuInit(0)
ask('without')
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
ask('with')
";
    for limit in [None, Some("1GiB")] {
        let mut lab = Lab::new("h200");
        if let Some(limit) = limit {
            lab.set("VGPU_MEMORY_LIMIT", limit);
        }
        let alone = run(lab.bare("python3").args(["-c", script]));
        assert_eq!(run(lab.command("python3").args(["-c", script])), alone, "limit {limit:?}");
        assert!(alone.contains("with 0 True True"), "{alone}");
    }
}
