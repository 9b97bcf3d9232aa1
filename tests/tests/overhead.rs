//! Device memory that the driver takes beyond the requests: contexts, code, and limits of a context. Each is charged
//! once when it appears and released when it ends, whatever happens meanwhile. The device's record is the judge.

use std::time::Duration;
use vgpu_tests::lab::{charged, shown};
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, KIB, Lab, MIB, Member, OUT_OF_MEMORY};

/// CUDA's answer to a handle that is not a context, or not one that this call can end.
const INVALID_CONTEXT: i64 = 201;
const STACK: u64 = 0;
const PRINTF: u64 = 1;
const HEAP: u64 = 2;

fn limited(limit: u64) -> Lab {
    Lab::new("t4").with("VGPU_MEMORY_LIMIT", limit.to_string()).with("VGPU_TENANT", "team")
}

fn contexts(lab: &Lab) -> Member {
    Member::start(&mut lab.command(compile("contexts", Kind::Program, &[])))
}

/// A member with the primary context of device 0, current.
fn begun(lab: &Lab) -> Member {
    let mut member = contexts(lab);
    member.begin();
    member
}

/// Bytes of contexts, code and context limits of all processes on the device.
fn overhead(lab: &Lab) -> u64 {
    lab.device(0).processes.iter().map(|p| p.overhead_bytes).sum()
}

/// Kills a member and waits until the ledger notices; it looks for dead members from time to time.
fn kill(mut member: Member) {
    member.kill();
    std::thread::sleep(Duration::from_millis(60));
}

/// Checks that ledger and device record agree to the byte.
#[track_caller]
fn agrees(lab: &Lab, member: &mut Member, when: &str) {
    let (_, limit) = member.info();
    let real = shown(limit, charged(&lab.device(0)));
    assert_eq!(member.used(), real, "{when}: the ledger, the device; {}", member.errors());
}

#[test]
fn code_is_charged_when_it_is_loaded_and_returned_when_it_is_unloaded() {
    let lab = limited(4 * GIB);
    let mut m = begun(&lab);
    m.alloc(5 * MIB + 1);
    for way in 0..4 {
        for (code, globals) in [(1000, 0), (3 * MIB, 0), (MIB, 40 * MIB), (7 * MIB + 3, 100)] {
            let before = (m.used(), overhead(&lab));
            let module = m.ok(&format!("module {code} {globals} {way}")).number(0);
            let when = format!("{code} and {globals} bytes, way {way}");
            assert!(overhead(&lab) >= before.1 + code / 4 + globals, "{when}: the positive control");
            agrees(&lab, &mut m, &when);
            m.ok(&format!("unload {module}"));
            assert_eq!((m.used(), overhead(&lab)), before, "{when}: unloaded");
        }
    }
}

/// Small modules share memory. The share that the first one brought stays until the last one is unloaded.
#[test]
fn modules_that_lie_together_return_what_they_took_with_the_last_of_them() {
    let lab = limited(4 * GIB);
    let mut m = begun(&lab);
    let base = m.used();
    let all: Vec<u64> = (0..10).map(|_| m.ok("module 300000 0 0").number(0)).collect();
    assert!(overhead(&lab) > base, "the positive control");
    agrees(&lab, &mut m, "all loaded");
    for module in all {
        m.ok(&format!("unload {module}"));
        agrees(&lab, &mut m, "one less");
    }
    assert_eq!(m.used(), base);
}

#[test]
fn code_that_does_not_fit_is_refused_and_leaves_nothing() {
    let mut lab = limited(GIB);
    let mut m = begun(&lab);
    let (free, _) = m.info();
    m.alloc(free - 5 * MIB);
    for way in 0..4 {
        assert_eq!(m.code(&format!("module {} 0 {way}", 7 * MIB)), OUT_OF_MEMORY, "way {way}");
        agrees(&lab, &mut m, "refused");
        let module = m.ok(&format!("module {} 0 {way}", 3 * MIB)).number(0);
        agrees(&lab, &mut m, "what fits is loaded");
        m.ok(&format!("unload {module}"));
    }
    // Without a limit the same module loads, so the limit was the reason for the refusal.
    lab.unset("VGPU_MEMORY_LIMIT");
    begun(&lab).ok(&format!("module {} 0 0", 7 * MIB));
}

#[test]
fn the_code_of_a_library_counts_from_the_call_that_brings_it() {
    let lab = limited(4 * GIB).with("VGPU_SIM_DRIVER", "580");
    for bring in ["library-module", "library-function"] {
        let mut m = begun(&lab);
        let base = m.used();
        let library = m.ok(&format!("library {} {}", 5 * MIB, 9 * MIB)).number(0);
        agrees(&lab, &mut m, "loaded");
        m.ok(&format!("{bring} {library}"));
        assert!(m.used() >= base + 9 * MIB, "{bring}: the positive control");
        agrees(&lab, &mut m, bring);
        m.ok(&format!("{bring} {library}"));
        agrees(&lab, &mut m, "it is there already");
        let own = m.ok("create2 0").number(0);
        m.ok(&format!("{bring} {library}"));
        agrees(&lab, &mut m, "in a second context");
        m.ok(&format!("library-unload {library}"));
        agrees(&lab, &mut m, "unloaded from both");
        m.ok(&format!("destroy2 {own}"));
        m.ok("retain 0");
        assert_eq!(m.used(), base);
    }
}

#[test]
fn a_librarys_code_that_does_not_fit_is_refused() {
    let lab = limited(GIB);
    let mut m = begun(&lab);
    let (free, _) = m.info();
    m.alloc(free - 5 * MIB);
    let library = m.ok(&format!("library {} 0", 9 * MIB)).number(0);
    assert_eq!(m.code(&format!("library-module {library}")), OUT_OF_MEMORY);
    assert_eq!(m.info().0, 0, "the driver keeps it, so it is charged");
    m.ok(&format!("library-unload {library}"));
    agrees(&lab, &mut m, "unloaded");
}

/// With eager loading the load itself brings the code. Code that does not fit is unloaded again.
#[test]
fn a_library_loaded_at_once_that_does_not_fit_is_refused_and_leaves_nothing() {
    let lab = limited(GIB).with("CUDA_MODULE_LOADING", "EAGER");
    let mut m = begun(&lab);
    let (free, _) = m.info();
    m.alloc(free - 5 * MIB);
    let before = (m.used(), overhead(&lab));
    for _ in 0..3 {
        assert_eq!(m.code(&format!("library {} 0", 9 * MIB)), OUT_OF_MEMORY);
        assert_eq!((m.used(), overhead(&lab)), before, "refused: nothing is charged, nothing is on the device");
    }
    let library = m.ok(&format!("library {} 0", 3 * MIB)).number(0);
    assert!(overhead(&lab) > before.1, "the positive control");
    agrees(&lab, &mut m, "what fits is loaded");
    m.ok(&format!("library-module {library}"));
    agrees(&lab, &mut m, "and is there");
    m.ok(&format!("library-unload {library}"));
    assert_eq!((m.used(), overhead(&lab)), before, "unloaded");
}

#[test]
fn limits_of_a_context_are_charged_as_far_as_they_grow_and_returned_when_they_shrink() {
    let lab = limited(8 * GIB);
    let mut m = begun(&lab);
    let base = m.used();
    for (limit, small, large, larger) in [
        (STACK, 1024, 4 * KIB, 16 * KIB),
        (PRINTF, MIB, 64 * MIB, 100 * MIB + 7),
        (HEAP, 8 * MIB, 200 * MIB + 100, GIB),
    ] {
        for value in [large, larger, large, small, larger, small] {
            m.ok(&format!("limit {limit} {value}"));
            agrees(&lab, &mut m, &format!("limit {limit} is {value}"));
            assert_eq!(m.used() > base, value > small, "limit {limit}: the positive control");
        }
    }
    assert_eq!(m.used(), base);
    m.ok(&format!("limit 3 {}", 4));
    agrees(&lab, &mut m, "a limit that takes nothing");
}

#[test]
fn a_limit_that_does_not_fit_is_refused_and_stays_as_it_was() {
    let lab = limited(GIB);
    let mut m = begun(&lab);
    for (limit, value) in [(STACK, 64 * KIB), (PRINTF, GIB), (HEAP, GIB), (HEAP, u64::MAX / 4)] {
        let old = m.ok(&format!("limit-now {limit}"));
        assert_eq!(m.code(&format!("limit {limit} {value}")), OUT_OF_MEMORY, "limit {limit} to {value}");
        assert_eq!(m.ok(&format!("limit-now {limit}")), old);
        agrees(&lab, &mut m, "refused");
    }
    let (free, _) = m.info();
    m.ok(&format!("limit {HEAP} {}", 8 * MIB + free));
    assert_eq!(m.info().0, 0, "to the last byte");
    agrees(&lab, &mut m, "to the last byte");
}

/// Fills the current context with every kind of object.
fn fill(m: &mut Member) {
    m.alloc(3 * MIB + 5);
    m.ok("managed 70000");
    m.ok("pitch 1000 2000");
    m.ok("array 512 600");
    m.ok(&format!("module {} {} 0", 4 * MIB, MIB));
    m.ok("module 5000 0 1");
    m.ok(&format!("limit {HEAP} {}", 50 * MIB));
    m.ok(&format!("limit {STACK} 4096"));
}

#[test]
fn a_context_that_ends_returns_all_it_held() {
    let lab = limited(8 * GIB);
    let mut m = begun(&lab);
    m.alloc(MIB);
    let base = m.used();
    for create in ["create1", "create2", "create3"] {
        for end in ["destroy1", "destroy2", "detach"] {
            let own = m.ok(&format!("{create} 0")).number(0);
            fill(&mut m);
            agrees(&lab, &mut m, &format!("{create}, full"));
            assert!(m.used() > base + 64 * MIB, "the positive control");
            m.ok(&format!("{end} {own}"));
            m.ok("retain 0");
            agrees(&lab, &mut m, &format!("{create}, {end}"));
            assert_eq!(m.used(), base, "{create}, {end}");
            m.ok("release2 0");
        }
    }
}

#[test]
fn a_primary_context_returns_all_it_held_with_its_last_release_and_not_before() {
    let lab = limited(8 * GIB);
    for release in ["release1", "release2"] {
        let mut m = begun(&lab);
        let mut other = begun(&lab);
        let base = other.used();
        m.ok("retain 0");
        m.ok("retain 0");
        fill(&mut m);
        let full = m.used();
        for _ in 0..2 {
            m.ok(&format!("{release} 0"));
            assert_eq!(other.used(), full, "still held");
            agrees(&lab, &mut other, "still held");
        }
        m.ok(&format!("{release} 0"));
        agrees(&lab, &mut other, "the last release");
        assert!(other.used() < base, "its context, too");
        assert_eq!(m.code(&format!("{release} 0")), INVALID_CONTEXT, "nobody holds it");
        agrees(&lab, &mut other, "one release too many");
        m.begin();
        agrees(&lab, &mut m, "held again");
    }
}

#[test]
fn a_reset_returns_all_a_primary_context_held_though_it_is_retained() {
    let lab = limited(8 * GIB);
    for reset in ["reset1", "reset2"] {
        let mut m = begun(&lab);
        let mut other = begun(&lab);
        m.ok("retain 0");
        fill(&mut m);
        m.ok(&format!("{reset} 0"));
        agrees(&lab, &mut other, "reset");
        m.ok("retain 0");
        fill(&mut m);
        agrees(&lab, &mut other, "retained again");
        for left in 0..3 {
            m.ok("release2 0");
            agrees(&lab, &mut other, &format!("released, {left}"));
        }
        m.ok(&format!("{reset} 0"));
        agrees(&lab, &mut other, "reset though nobody holds it");
    }
}

#[test]
fn an_end_that_fails_changes_nothing() {
    let lab = limited(8 * GIB);
    let mut m = contexts(&lab);
    m.ok("init");
    let primary = m.ok("retain 0").number(0);
    fill(&mut m);
    let full = m.used();
    for end in ["destroy1", "destroy2", "detach"] {
        assert_eq!(m.code(&format!("{end} {primary}")), INVALID_CONTEXT, "{end}");
        assert_eq!(m.used(), full, "{end}");
        agrees(&lab, &mut m, end);
    }
    let own = m.ok("create2 0").number(0);
    fill(&mut m);
    let fuller = m.used();
    assert_eq!(m.ok("attach").number(0), own);
    m.ok(&format!("detach {own}"));
    assert_eq!(m.used(), fuller, "attached to twice, detached from once");
    agrees(&lab, &mut m, "attached");
    m.ok(&format!("detach {own}"));
    m.ok("retain 0");
    assert_eq!(m.used(), full);
    agrees(&lab, &mut m, "detached");
}

/// Contexts of one device share the memory of small modules.
#[test]
fn contexts_that_share_a_place_of_code_end_one_by_one() {
    let lab = limited(8 * GIB);
    let mut m = begun(&lab);
    let base = m.used();
    let first = m.ok("create2 0").number(0);
    m.ok("module 4000 0 0");
    let second = m.ok("create2 0").number(0);
    m.ok("module 4000 0 0");
    agrees(&lab, &mut m, "both");
    m.ok(&format!("destroy2 {first}"));
    agrees(&lab, &mut m, "the one that brought the place has ended");
    m.ok(&format!("destroy2 {second}"));
    m.ok("retain 0");
    assert_eq!(m.used(), base);
}

#[test]
fn a_context_destroyed_under_threads_that_allocate_in_it_leaves_no_trace() {
    for round in 0..20 {
        let lab = limited(8 * GIB);
        let mut m = begun(&lab);
        let base = m.used();
        let own = m.ok("create2 0").number(0);
        m.ok("churn 4");
        if round % 2 == 1 {
            // The driver reuses the handle while threads still call with the old context. Some of their frees release
            // memory of the new context at the same address. Ledger and device then agree except for calls in progress.
            m.ok(&format!("destroy2 {own}"));
            let next = m.ok("create2 0").number(0);
            m.alloc(MIB);
            m.ok("calm");
            let (seen, real) = (m.used(), charged(&lab.device(0)));
            assert!(seen.abs_diff(real) <= 4 * 4 * MIB, "round {round}: the next one holds its own: {seen}, {real}");
            m.ok(&format!("destroy2 {next}"));
        } else {
            m.ok(&format!("destroy2 {own}"));
            m.ok("calm");
        }
        m.ok("retain 0");
        agrees(&lab, &mut m, &format!("round {round}: destroyed"));
        assert_eq!(m.used(), base);
    }
}

#[test]
fn threads_that_load_at_once_are_charged_once_for_each_byte() {
    for round in 0..6 {
        let lab = limited(8 * GIB);
        let mut m = begun(&lab);
        let base = m.used();
        let kind = if round % 2 == 0 { "load-crowd" } else { "load-growing" };
        assert_eq!(m.ok(&format!("{kind} 8 6 {}", 3 * MIB)).number(0), 0, "none fails");
        assert!(overhead(&lab) >= base + 48 * 3 * MIB, "the positive control");
        agrees(&lab, &mut m, kind);
        m.ok("unload-crowd");
        agrees(&lab, &mut m, "unloaded");
        assert_eq!(m.used(), base);
    }
}

/// Threads load more than fits. Some loads are refused, and all loaded code is charged.
#[test]
fn threads_that_load_more_than_fits_stay_within_the_limit() {
    for _ in 0..4 {
        let lab = limited(256 * MIB);
        let mut m = begun(&lab);
        let refused = m.ok(&format!("load-crowd 6 8 {}", 6 * MIB)).number(0);
        assert!(refused > 0, "48 modules do not fit");
        agrees(&lab, &mut m, "some refused");
        assert!(m.info().1 == 256 * MIB && m.used() <= 256 * MIB);
        m.ok("unload-crowd");
        agrees(&lab, &mut m, "unloaded");
    }
}

/// A lab with a library behind ours that delays calls of all threads but the first.
fn late(limit: u64) -> Lab {
    let mut lab = limited(limit);
    let ours = lab.lib().to_owned();
    lab.preload(&[&ours, &compile("late", Kind::LinkedLibrary, &[])]);
    lab
}

/// Of two overlapping loads, the first to end is charged for both. Its unload must not release the charge for the
/// other's code.
#[test]
fn an_unload_gives_back_its_own_code_and_not_what_another_thread_loaded_beside_it() {
    let lab = late(2 * GIB);
    let mut m = begun(&lab);
    let base = m.used();
    for (large, small) in [(1000 * MIB, 4 * MIB), (40 * MIB, 300 * MIB), (9 * MIB, 1)] {
        m.ok(&format!("other-load 100 {large}"));
        let one = m.ok(&format!("module 100 {small} 0")).number(0);
        let third = m.ok(&format!("module 100 {} 0", 3 * MIB)).number(0);
        let other = m.ok("join").number(0);
        agrees(&lab, &mut m, "all loaded");
        m.ok(&format!("unload {one}"));
        assert!(m.used() >= base + large, "{large} beside {small}: still loaded, {}", m.used());
        agrees(&lab, &mut m, "one is gone");
        m.ok(&format!("unload {other}"));
        agrees(&lab, &mut m, "the other is gone");
        m.ok(&format!("unload {third}"));
        assert_eq!(m.used(), base);
    }
}

/// The driver has freed the context before the load begins, and its charge is released only after the load has ended.
#[test]
fn a_context_whose_end_has_not_returned_is_not_charged_to_code_loaded_meanwhile() {
    let lab = late(4 * GIB);
    let mut m = contexts(&lab);
    m.ok("init");
    let primary = m.ok("retain 0").number(0);
    let context = m.ok("create2 0").number(0);
    m.ok(&format!("current {primary}"));
    let held = overhead(&lab);
    m.ok(&format!("other-destroy {context}"));
    assert!(overhead(&lab) < held, "the positive control: the driver has ended it");
    let module = m.ok(&format!("module 100 {} 0", 40 * MIB)).number(0);
    m.ok("join");
    agrees(&lab, &mut m, "the context is gone, the code is loaded");
    m.ok(&format!("unload {module}"));
    agrees(&lab, &mut m, "both are gone");
}

/// A free that waits for kernels, and a slow allocation, leave no moment without concurrent calls for a measurement.
#[test]
fn code_loaded_while_another_thread_is_inside_a_free_or_an_allocation_is_charged() {
    let lab = late(2 * GIB);
    for (other, doubt) in [("free", 8 * MIB), ("alloc", 6 * MIB), ("alloc", 302 * MIB)] {
        let mut m = begun(&lab);
        let bytes = if doubt > 200 * MIB { 300 * MIB } else { 4 * MIB };
        let what = if other == "free" { m.alloc(bytes) } else { bytes };
        m.ok(&format!("other-{other} {what}"));
        let mut loaded = Vec::new();
        for size in [256, 100, 256, 7, 300, 256, 256, 256, 256, 256, 256].map(|mib| mib * MIB) {
            let answer = m.ask(&format!("module 100 {size} 0"));
            if answer.code == 0 {
                loaded.push((answer.number(0), size));
            }
        }
        let when = format!("{other} of {bytes}, {} loaded", loaded.len());
        let real = charged(&lab.device(0));
        assert!(loaded.len() > 3, "{when}: the positive control");
        assert!(real <= 2 * GIB + doubt, "{when}: {real} on the device");
        assert!(m.used() + doubt + MIB >= real, "{when}: {} is charged of {real}", m.used());
        m.ok("join");
        let (first, size) = loaded.remove(0);
        let before = m.used();
        m.ok(&format!("unload {first}"));
        assert!(before - m.used() <= size + 2 * MIB, "{when}: one unloaded");
        let real = charged(&lab.device(0));
        assert!(m.used() + doubt + MIB >= real, "{when}: {} is charged of {real} when one is gone", m.used());
        for (module, _) in loaded {
            m.ok(&format!("unload {module}"));
        }
        agrees(&lab, &mut m, &format!("{when}: all gone"));
        kill(m);
    }
}

/// The second member reserves the size of the first one's context before it asks the driver.
#[test]
fn a_context_that_does_not_fit_is_not_even_made_where_its_size_is_known() {
    let context = {
        let lab = limited(GIB);
        begun(&lab);
        lab.device(0).finished.first().map_or(0, |p| p.overhead_bytes)
    };
    let context = if context == 0 { 104 * MIB } else { context };
    let mut lab = limited(2 * context - 1);
    let mut first = begun(&lab);
    let mut second = contexts(&lab);
    second.ok("init");
    assert_eq!(second.code("retain 0"), OUT_OF_MEMORY);
    assert_eq!(second.code("create2 0"), OUT_OF_MEMORY);
    let truth = lab.truth();
    let made = truth.living_process(0, second.pid).map_or(0, |p| p.peak_bytes);
    assert_eq!(made, 0, "the driver was not asked");
    agrees(&lab, &mut first, "refused");
    // A limit that is one byte higher admits the second context.
    lab.set("VGPU_MEMORY_LIMIT", (2 * context).to_string());
    let mut third = begun(&lab);
    assert_eq!(third.info().0, 0, "to the last byte");
    agrees(&lab, &mut third, "two contexts");
}

#[test]
fn a_limit_below_a_context_says_so() {
    let lab = limited(50 * MIB);
    let mut m = contexts(&lab);
    m.ok("init");
    for command in ["retain 0", "create2 0"] {
        assert_eq!(m.code(command), OUT_OF_MEMORY);
    }
    let said = m.errors();
    assert_eq!(said.lines().count(), 1, "{said}");
    for word in ["a context takes", "104MiB", "50MiB"] {
        assert!(said.replace(' ', "").contains(&word.replace(' ', "")), "{word:?} in {said}");
    }
    assert_eq!(overhead(&lab), 0, "it was undone");
}

#[test]
fn members_are_charged_each_for_its_own_code() {
    let lab = limited(4 * GIB);
    let (mut one, mut other) = (begun(&lab), begun(&lab));
    one.ok(&format!("module {} 0 0", 3 * MIB));
    other.ok(&format!("module {} 0 0", 11 * MIB));
    other.ok(&format!("limit {HEAP} {}", 100 * MIB));
    agrees(&lab, &mut one, "both");
    assert_eq!(one.info(), other.info());
    kill(other);
    agrees(&lab, &mut one, "one is dead");
}

#[test]
fn a_member_killed_while_it_loads_leaves_nothing_behind() {
    let lab = limited(8 * GIB);
    let mut witness = begun(&lab);
    let base = witness.used();
    for round in 0..15 {
        let mut victim = begun(&lab);
        victim.tell(&format!("load-growing 4 40 {}", 2 * MIB));
        std::thread::sleep(Duration::from_micros(500 + 1700 * round));
        kill(victim);
        agrees(&lab, &mut witness, "killed");
        assert_eq!(witness.used(), base);
    }
}

/// The library uses NVML too, and the program does not notice: its own init and shutdown of NVML work as always.
#[test]
fn the_programs_nvml_ends_with_its_own_shutdown() {
    const UNINITIALIZED: i64 = 1;
    let lab = limited(4 * GIB);
    let mut m = lab.member();
    m.begin();
    m.ok("nvinit");
    m.ok("launch 1000");
    m.ok("nvcount");
    m.ok("nvshutdown");
    assert_eq!(m.code("nvcount"), UNINITIALIZED);
    agrees(&lab, &mut m, "shut down");
    m.ok("nvinit");
    m.ok("nvinit");
    m.ok("nvshutdown");
    m.ok("nvcount");
    m.ok("nvshutdown");
    assert_eq!(m.code("nvcount"), UNINITIALIZED);
}
