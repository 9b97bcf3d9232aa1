//! Device memory: the limit is exact, every kind of memory counts, every free and every end releases its charge, and
//! all numbers agree. The simulated device's record is the judge.

use vgpu_tests::lab::charged;
use vgpu_tests::{GIB, KIB, Lab, MIB, Member, OUT_OF_MEMORY};

/// A lab under `limit`, and a member with a context.
fn under(limit: &str) -> (Lab, Member) {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", limit);
    let mut member = lab.member();
    member.begin();
    (lab, member)
}

/// Waits until a death is noticed: a memory query looks for dead members every 50 ms only.
fn after_a_death() {
    std::thread::sleep(std::time::Duration::from_millis(100));
}

/// Bytes of the process's contexts in the device's record.
fn overhead(lab: &Lab, member: &Member) -> u64 {
    lab.process(0, member.pid).overhead_bytes
}

#[test]
fn the_last_byte_can_be_allocated_and_one_more_cannot() {
    let (lab, mut m) = under("4GiB");
    let (free, total) = m.info();
    assert_eq!(total, 4 * GIB);
    assert_eq!(free, 4 * GIB - overhead(&lab, &m), "the context is charged, nothing else is");
    let p = m.alloc(free);
    assert_eq!(m.info(), (0, 4 * GIB));
    assert_eq!(m.code("alloc 1"), OUT_OF_MEMORY, "one byte more");
    assert_eq!(lab.process(0, m.pid).requested_bytes, free, "the device agrees");
    m.ok(&format!("free {p}"));
    assert_eq!(m.code(&format!("alloc {}", free + 1)), OUT_OF_MEMORY, "one byte too many at once");
    assert_eq!(lab.process(0, m.pid).requested_bytes, 0, "a refused request reached nobody");
    assert_eq!(m.info(), (free, 4 * GIB), "a refused request costs nothing");
}

#[test]
fn small_requests_count_by_the_slab_that_they_lie_in() {
    let (lab, mut m) = under("4GiB");
    let (free, _) = m.info();
    for bytes in [1, 511, 512, 513, 100_000] {
        m.alloc(bytes);
    }
    let truth = lab.process(0, m.pid);
    assert_eq!(truth.requested_bytes, 1 + 511 + 512 + 513 + 100_000);
    assert_eq!((free - m.info().0, truth.slab_bytes), (2 * MIB, 2 * MIB), "all of them lie in one");
    m.alloc(2 * MIB - 100_000);
    assert_eq!((free - m.info().0, lab.process(0, m.pid).slab_bytes), (4 * MIB, 4 * MIB), "this one has no room there");
}

#[test]
fn without_a_limit_nothing_is_changed() {
    let lab = Lab::new("t4");
    let (mut with, mut bare) = (lab.member(), lab.bare_member());
    with.begin();
    bare.begin();
    assert_eq!(with.ok("total 0"), bare.ok("total 0"));
    assert_eq!(with.info(), bare.info());
    with.alloc(8 * GIB);
    assert_eq!(with.info(), bare.info());
    assert_eq!(with.errors(), "");
    assert_eq!(std::fs::read_dir(lab.state()).unwrap().count(), 0, "no ledger without a limit");
}

/// Fills the limit with `allocate` until it is refused. Every grant must be charged as the device records it, and
/// `free` must release all of it.
fn family(allocate: &str, bytes: u64, free: impl Fn(&[u64]) -> String) {
    let (lab, mut m) = under("3GiB");
    let begin = m.info().0;
    let mut held = Vec::new();
    loop {
        let a = m.ask(allocate);
        if a.code != 0 {
            assert_eq!(a.code, OUT_OF_MEMORY, "{allocate}: {a:?}");
            break;
        }
        held.push(a.numbers());
        let truth = lab.device(0);
        assert!(charged(&truth) <= 3 * GIB, "{allocate}: over the limit: {truth:?}");
        assert_eq!(3 * GIB - m.info().0, charged(&truth), "{allocate}: what is shown is what the device has");
        assert!(held.len() < 100, "{allocate} is never refused");
    }
    assert_eq!(held.len() as u64, begin / bytes, "{allocate}: everything that fits is served");
    for one in &held {
        m.ok(&free(one));
    }
    m.ok("sync"); // until then a pool may keep its memory
    assert_eq!(m.info().0, begin, "{allocate}: everything came back");
    assert_eq!(lab.process(0, m.pid).live_bytes, 0);
}

#[test]
fn plain_memory_counts() {
    family(&format!("alloc {}", 100 * MIB + 7), 102 * MIB, |a| format!("free {}", a[0]));
}

#[test]
fn pitched_memory_counts_by_the_pitch_returned() {
    family("pitch 1000 102400", 1024 * 102_400, |a| format!("free {}", a[0]));
}

#[test]
fn stream_ordered_memory_counts() {
    family(&format!("async {}", 96 * MIB), 96 * MIB, |a| format!("free-async {}", a[0]));
}

#[test]
fn stream_ordered_memory_may_be_freed_plainly_and_the_other_way_round() {
    family(&format!("async {}", 96 * MIB), 96 * MIB, |a| format!("free {}", a[0]));
    family(&format!("alloc {}", 96 * MIB), 96 * MIB, |a| format!("free-async {}", a[0]));
}

#[test]
fn memory_of_a_pool_counts() {
    let (lab, mut m) = under("2GiB");
    let begin = m.info().0;
    let pool = m.ok("pool 0").number(0);
    let p = m.ok(&format!("from-pool {} {pool}", GIB)).number(0);
    assert_eq!(m.info().0, begin - GIB);
    assert_eq!(lab.process(0, m.pid).live_bytes, GIB);
    assert_eq!(m.code(&format!("from-pool {} {pool}", GIB)), OUT_OF_MEMORY);
    m.ok(&format!("free-async {p}"));
    assert_eq!(m.info().0, begin);
}

#[test]
fn physical_memory_counts_from_its_creation_to_its_last_handle_and_mapping() {
    let (lab, mut m) = under("4GiB");
    let begin = m.info().0;
    let chunk = 256 * MIB;
    let at = m.ok(&format!("reserve {}", 32 * GIB)).number(0);
    assert_eq!(m.info().0, begin, "addresses cost nothing");

    let h = m.ok(&format!("create {chunk} 1 0")).number(0);
    assert_eq!(m.info().0, begin - chunk, "charged when created");
    m.ok(&format!("map {at} {chunk} {h}"));
    m.ok(&format!("allow {at} {chunk} 0"));
    m.ok(&format!("release {h}"));
    assert_eq!(m.info().0, begin - chunk, "released while mapped: still there");
    assert_eq!(lab.process(0, m.pid).live_bytes, chunk);
    m.ok(&format!("unmap {at} {chunk}"));
    assert_eq!(m.info().0, begin, "unmapped: the charge ends");
    assert_eq!(lab.process(0, m.pid).live_bytes, 0);

    let h = m.ok(&format!("create {chunk} 1 0")).number(0);
    m.ok(&format!("map {at} {chunk} {h}"));
    m.ok(&format!("unmap {at} {chunk}"));
    assert_eq!(m.info().0, begin - chunk, "the handle still holds it");
    m.ok(&format!("release {h}"));
    assert_eq!(m.info().0, begin);

    let h = m.ok(&format!("create {chunk} 1 0")).number(0);
    m.ok(&format!("map {at} {chunk} {h}"));
    let again = m.ok(&format!("retain-handle {at}")).number(0);
    m.ok(&format!("release {h}"));
    m.ok(&format!("unmap {at} {chunk}"));
    assert_eq!(m.info().0, begin - chunk, "the retained handle holds it");
    m.ok(&format!("release {again}"));
    assert_eq!(m.info().0, begin);
    assert_eq!(lab.process(0, m.pid).live_bytes, 0);
}

#[test]
fn a_loop_of_create_map_release_is_held_to_the_limit() {
    let (lab, mut m) = under("1GiB");
    let chunk = 64 * MIB;
    let at = m.ok(&format!("reserve {}", 32 * GIB)).number(0);
    let mut granted = 0;
    for i in 0..64 {
        let a = m.ask(&format!("create {chunk} 1 0"));
        if a.code != 0 {
            assert_eq!(a.code, OUT_OF_MEMORY);
            break;
        }
        m.ok(&format!("map {} {chunk} {}", at + i * chunk, a.number(0)));
        m.ok(&format!("release {}", a.number(0)));
        granted += chunk;
    }
    let truth = lab.process(0, m.pid);
    assert_eq!(truth.live_bytes, granted);
    assert!(truth.slab_bytes + truth.overhead_bytes <= GIB, "{truth:?}");
    m.ok(&format!("unmap {at} {granted}"));
    assert_eq!(m.used(), overhead(&lab, &m), "one unmap ends all of them");
}

#[test]
fn physical_memory_is_rounded_to_its_granularity_before_it_is_refused() {
    let (_lab, mut m) = under("1GiB");
    let begin = m.info().0;
    let fits = begin / (2 * MIB) * 2 * MIB;
    let h = m.ok(&format!("create {fits} 1 0")).number(0);
    m.ok(&format!("release {h}"));
    let more = fits + 2 * MIB;
    assert_eq!(m.code(&format!("create {more} 1 0")), OUT_OF_MEMORY);
    assert_eq!(m.info().0, begin);
}

#[test]
fn memory_of_the_host_is_not_charged() {
    let (_lab, mut m) = under("1GiB");
    let begin = m.info().0;
    let p = m.ok(&format!("host {}", 2 * MIB)).number(0);
    assert_eq!(m.info().0, begin);
    m.ok(&format!("host-free {p}"));
    let answer = m.ask(&format!("create {} 2 0", 2 * GIB));
    assert_ne!(answer.code, OUT_OF_MEMORY, "the driver decides, not the limit");
    assert_eq!(m.info().0, begin);
}

#[test]
fn a_free_of_an_unknown_pointer_reaches_the_driver() {
    let (lab, mut m) = under("1GiB");
    let mut bare = lab.bare_member();
    bare.begin();
    let begin = m.info().0;
    for nonsense in [12345, 0x7fff_0000_0000, u64::MAX, 0] {
        for call in ["free", "free-async", "release"] {
            let line = format!("{call} {nonsense}");
            assert_eq!(m.code(&line), bare.code(&line), "{line}: the driver's own code");
        }
    }
    let p = m.alloc(MIB);
    m.ok(&format!("free {p}"));
    assert_ne!(m.code(&format!("free {p}")), 0, "a second free");
    assert_eq!(m.info().0, begin);
}

#[test]
fn a_failed_driver_call_leaves_the_ledger_as_it_was() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
    for (name, call) in [
        ("cuMemAlloc_v2", "alloc 1048576".to_owned()),
        ("cuMemAllocPitch_v2", "pitch 1000 1000".to_owned()),
        ("cuMemAllocAsync", "async 1048576".to_owned()),
        ("cuMemAllocAsync_ptsz", "async-own 1048576".to_owned()),
        ("cuMemCreate", "create 2097152 1 0".to_owned()),
    ] {
        let mut m = Member::start(
            lab.command(vgpu_tests::program::compile("member", vgpu_tests::program::Kind::Program, &[]))
                .arg("dlsym")
                .env("VGPU_SIM_FAULTS", format!("{name}:every=2:code=719")),
        );
        m.begin();
        let before = m.info();
        for round in 0..50 {
            let a = m.ask(&call);
            if round % 2 == 1 {
                assert_eq!(a.code, 719, "{name}: the driver's code");
            } else {
                assert_eq!(a.code, 0, "{name}");
                let end = if name == "cuMemCreate" { "release" } else { "free" };
                m.ok(&format!("{end} {}", a.number(0)));
            }
        }
        m.ok("sync");
        assert_eq!(m.info(), before, "{name}");
    }
}

#[test]
fn a_failed_free_keeps_the_charge() {
    let lab = Lab::new("h200")
        .with("VGPU_MEMORY_LIMIT", "1GiB")
        .with("VGPU_SIM_FAULTS", "cuMemFree_v2:every=1:times=1:code=719,cuMemRelease:every=1:times=1:code=719");
    let mut m = lab.member();
    m.begin();
    let begin = m.info().0;
    let p = m.alloc(100 * MIB);
    assert_eq!(m.code(&format!("free {p}")), 719);
    assert_eq!(m.info().0, begin - 100 * MIB, "it is still there");
    assert_eq!(lab.process(0, m.pid).live_bytes, 100 * MIB);
    m.ok(&format!("free {p}"));
    assert_eq!(m.info().0, begin);
    let h = m.ok(&format!("create {} 1 0", 2 * MIB)).number(0);
    assert_eq!(m.code(&format!("release {h}")), 719);
    assert_eq!(m.info().0, begin - 2 * MIB);
    m.ok(&format!("release {h}"));
    assert_eq!(m.info().0, begin);
}

#[test]
fn the_end_of_a_context_returns_what_it_held() {
    let (lab, mut m) = under("8GiB");
    let begin = m.used();
    let context = m.ok("create-context 0").number(0);
    let with_two = m.used();
    assert_eq!(with_two, overhead(&lab, &m), "both contexts are charged");
    assert!(with_two > begin);
    let mut third = lab.member();
    third.begin();
    assert_eq!(m.used(), charged(&lab.device(0)), "another process's first context is not a further one");
    third.kill();
    after_a_death();
    m.alloc(GIB);
    m.ok("async 1048576");
    m.ok("pitch 1000 1000");
    m.ok(&format!("destroy-context {context}"));
    m.ok("retain 0");
    assert_eq!(m.used(), begin);
    assert_eq!(charged(&lab.device(0)), begin, "the device agrees");
    let context = m.ok("create-context 0").number(0);
    m.ok("primary-release 0");
    m.ok("primary-release 0");
    m.ok(&format!("current {context}"));
    assert_eq!(m.used(), charged(&lab.device(0)), "the first context ends before the second");
}

#[test]
fn a_reset_of_the_primary_context_returns_what_it_held() {
    let (lab, mut m) = under("8GiB");
    let begin = m.used();
    m.alloc(GIB);
    m.ok("primary-reset 0");
    m.ok("retain 0");
    assert_eq!(m.used(), begin);
    assert_eq!(charged(&lab.device(0)), begin, "the device agrees");
}

#[test]
fn the_last_release_of_the_primary_context_returns_what_it_held() {
    let (lab, mut m) = under("8GiB");
    let begin = m.used();
    m.ok("retain 0");
    m.alloc(GIB);
    m.ok("primary-release 0");
    assert_eq!(m.used(), begin + GIB, "one holder is left");
    m.ok("primary-release 0");
    assert_eq!(charged(&lab.device(0)), 0);
    m.ok("retain 0");
    assert_eq!(m.used(), begin);
}

#[test]
fn a_context_that_does_not_fit_is_refused_as_out_of_memory_with_words() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "64MiB");
    let mut m = lab.member();
    m.ok("init");
    assert_eq!(m.code("retain 0"), OUT_OF_MEMORY);
    assert_eq!(m.code("create-context 0"), OUT_OF_MEMORY);
    let said = m.errors();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("a context takes") && said.contains("64 MiB"), "{said}");
    assert_eq!(lab.device(0).used, 0, "nothing stays behind");
}

#[test]
fn all_numbers_agree_and_show_the_limit() {
    let (lab, mut m) = under("6GiB");
    m.ok("nvinit");
    for step in 0..3 {
        let (free, total) = m.info();
        assert_eq!((total, m.ok("total 0").number(0)), (6 * GIB, 6 * GIB));
        assert_eq!(m.ok("nvmem 0").numbers(), [total, free, total - free], "NVML, first version");
        assert_eq!(m.ok("nvmem2 0").numbers(), [total, free, total - free, 0], "NVML, second version");
        assert_eq!(total - free, charged(&lab.device(0)), "and the device agrees");
        assert_eq!(m.ok("nvprocs 0").numbers(), [u64::from(m.pid), total - free], "the list of processes");
        m.alloc(GIB + step);
    }
}

#[test]
fn a_monitor_sees_the_tenant_and_nobody_else() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "6GiB");
    let (mut m, mut stranger, mut monitor) = (lab.member(), lab.bare_member(), lab.member());
    m.begin();
    stranger.begin();
    stranger.alloc(20 * GIB);
    m.alloc(GIB);
    monitor.ok("nvinit");
    let used = m.used();
    assert_eq!(monitor.ok("nvmem 0").numbers(), [6 * GIB, 6 * GIB - used, used]);
    assert_eq!(monitor.ok("nvprocs 0").numbers(), [u64::from(m.pid), used]);
}

#[test]
fn the_limit_is_the_tenants_not_the_processes() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "5GiB");
    let (mut a, mut b) = (lab.member(), lab.member());
    a.begin();
    b.begin();
    a.alloc(3 * GIB);
    assert_eq!(b.code(&format!("alloc {}", 2 * GIB)), OUT_OF_MEMORY);
    assert_eq!(a.info(), b.info());
    a.kill();
    b.alloc(2 * GIB);
    assert_eq!(b.used(), charged(&lab.device(0)), "a dead member's charges come back");
}

#[test]
fn more_than_the_device_has_is_the_device() {
    let lab = Lab::new("t4").with("VGPU_MEMORY_LIMIT", "500GiB");
    let (mut m, mut bare) = (lab.member(), lab.bare_member());
    m.begin();
    bare.ok("init");
    let physical = bare.ok("total 0").number(0);
    let total = m.ok("total 0").number(0);
    assert_eq!(total, physical);
    assert_eq!(m.code(&format!("alloc {physical}")), OUT_OF_MEMORY);
}

#[test]
fn null_arguments_are_safe() {
    let (lab, mut m) = under("2GiB");
    let mut bare = lab.bare_member();
    bare.begin();
    for which in 1..4 {
        let (ours, its) = (m.ask(&format!("info-null {which}")), bare.ask(&format!("info-null {which}")));
        assert_eq!(ours.code, its.code);
        if ours.code == 0 && which == 1 {
            assert_eq!(ours.number(1), 2 * GIB, "the output that is there is the limit");
        }
    }
}

/// Two devices. The one that the program uses first must not matter.
#[test]
fn a_limit_belongs_to_the_device_whatever_cuda_calls_it() {
    for (order, visible, first) in [("PCI_BUS_ID", "1", 1), ("PCI_BUS_ID", "1,0", 1), ("PCI_BUS_ID", "0,1", 0)] {
        for nvml_first in [false, true] {
            let lab = Lab::new("2xt4")
                .with("VGPU_MEMORY_LIMIT_0", "2GiB")
                .with("VGPU_MEMORY_LIMIT_1", "3GiB")
                .with("CUDA_DEVICE_ORDER", order)
                .with("CUDA_VISIBLE_DEVICES", visible);
            let mut m = lab.member();
            if nvml_first {
                m.ok("nvinit");
            }
            m.begin();
            let what = format!("{visible} nvml_first={nvml_first}");
            let limit = [2 * GIB, 3 * GIB][first];
            assert_eq!(m.ok("total 0").number(0), limit, "{what}");
            assert_eq!(m.code(&format!("alloc {limit}")), OUT_OF_MEMORY, "{what}");
            let (free, _) = m.info();
            m.alloc(free);
            let truth = lab.truth();
            assert_eq!(charged(&truth.devices[first]), limit, "{what}");
            assert_eq!(charged(&truth.devices[1 - first]), 0, "{what}");
            if !nvml_first {
                m.ok("nvinit");
            }
            assert_eq!(m.ok("nvmem 0").number(0), 2 * GIB, "NVML counts by the bus: {what}");
            assert_eq!(m.ok("nvmem 1").number(0), 3 * GIB, "NVML counts by the bus: {what}");
        }
    }
}

#[test]
fn ordinals_follow_the_bus_also_where_cuda_puts_the_fastest_first() {
    // NVML's order is t4, h200; CUDA's order is h200, t4.
    let lab = Lab::new("t4,h200").with("VGPU_MEMORY_LIMIT_1", "5GiB");
    let (mut m, mut bare) = (lab.member(), lab.bare_member());
    m.begin();
    bare.ok("init");
    assert_eq!(m.ok("total 0").number(0), 5 * GIB, "the H200");
    assert_eq!(m.ok("total 1"), bare.ok("total 1"), "the T4 has no limit");
    assert_eq!(m.code(&format!("alloc {}", 5 * GIB)), OUT_OF_MEMORY);
}

#[test]
fn a_devices_own_limit_stands_before_the_one_for_all() {
    let lab = Lab::new("2xt4").with("VGPU_MEMORY_LIMIT", "2GiB").with("VGPU_MEMORY_LIMIT_1", "3GiB");
    let mut m = lab.member();
    m.ok("init");
    assert_eq!((m.ok("total 0").number(0), m.ok("total 1").number(0)), (2 * GIB, 3 * GIB));
}

#[test]
fn percentages_are_of_the_device() {
    let lab = Lab::new("t4,h200").with("VGPU_MEMORY_LIMIT", "25%");
    let mut m = lab.member();
    m.ok("nvinit");
    let truth = lab.truth();
    for (index, device) in truth.devices.iter().enumerate() {
        let shown = m.ok(&format!("nvmem {index}")).number(0);
        assert_eq!(shown, device.cuda_total / 4, "of the memory that programs can have");
    }
}

#[test]
fn a_forked_child_has_a_slot_of_its_own_and_the_parents_charge_stays() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "8GiB");
    let (mut m, mut other) = (lab.member(), lab.member());
    m.begin();
    other.begin();
    m.alloc(GIB);
    let before = other.used();
    // The child of an initialised process cannot use the driver, as with the real one. Its calls must not change the
    // parent's charges.
    let child = m.ok("fork").number(0);
    assert_ne!(child, u64::from(m.pid));
    assert_ne!(m.code("alloc 1048576"), 0);
    m.ask("info");
    assert_eq!(other.used(), before, "a child that asks changes nothing");
    assert_eq!(m.ask("exit 0").words.len(), 1, "the parent answers again");
    assert_eq!(other.used(), before, "nor does its end");
    m.alloc(GIB);
    assert_eq!(other.used(), before + GIB);
    assert_eq!(other.used(), charged(&lab.device(0)));
}

#[test]
fn a_child_forked_before_the_first_call_is_a_member_of_its_own() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "8GiB");
    let mut other = lab.member();
    other.begin();
    let before = other.used();
    let mut m = lab.member();
    m.ok("where cuInit");
    let child = m.ok("fork").number(0);
    m.begin();
    m.alloc(GIB);
    let truth = lab.process(0, u32::try_from(child).unwrap());
    assert_eq!(other.used(), before + truth.slab_bytes + truth.overhead_bytes);
    m.ask("exit 0");
    m.begin();
    m.alloc(2 * GIB);
    assert_eq!(other.used(), charged(&lab.device(0)), "the child's charges went, the parent's came");
}

#[test]
fn a_child_that_outlives_its_parent_does_not_keep_its_charges() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "8GiB");
    let (mut m, mut other) = (lab.member(), lab.member());
    m.begin();
    other.begin();
    let alone = other.used() - lab.process(0, m.pid).overhead_bytes;
    m.alloc(GIB);
    m.ok("fork-leave");
    m.ask("info"); // at its first call the child releases its inherited state
    after_a_death();
    assert_eq!(other.used(), alone);
    assert_eq!(other.used(), charged(&lab.device(0)));
}

#[test]
fn managed_memory_and_arrays_count() {
    let (lab, mut m) = under("1GiB");
    let before = m.info().0;
    let p = m.ok(&format!("managed {MIB}")).number(0);
    let array = m.ok("array 1024 1024").number(0);
    assert_eq!(m.info().0, before - 2 * MIB - 4 * MIB, "in full, wherever its pages are; in bytes, not in bits");
    assert_eq!(m.used(), charged(&lab.device(0)), "the device agrees");
    m.ok(&format!("free {p}"));
    m.ok(&format!("array-destroy {array}"));
    assert_eq!(m.info().0, before);
    for too_large in [format!("managed {before}0"), "array 65536 32768".to_owned()] {
        assert_eq!(m.code(&too_large), OUT_OF_MEMORY, "{too_large}");
        assert_eq!(m.info().0, before, "{too_large}");
    }
}

#[test]
fn memory_belongs_to_its_device_wherever_it_is_freed() {
    let lab = Lab::new("2xt4").with("VGPU_MEMORY_LIMIT_0", "2GiB").with("VGPU_MEMORY_LIMIT_1", "3GiB");
    let mut m = lab.member();
    m.ok("init");
    let first = m.ok("retain 0").number(0);
    let on_first = m.used();
    let p = m.alloc(500 * MIB);
    let second = m.ok("retain 1").number(0);
    assert_eq!(m.info().1, 3 * GIB);
    let on_second = m.used();
    let h = m.ok(&format!("create {} 1 0", 64 * MIB)).number(0);
    assert_eq!(m.used(), on_second, "created for the other device");
    m.ok(&format!("free {p}"));
    assert_eq!(m.used(), on_second);
    m.ok(&format!("current {first}"));
    assert_eq!(m.used(), on_first + 64 * MIB);
    m.ok(&format!("current {second}"));
    m.ok(&format!("release {h}"));
    m.ok(&format!("current {first}"));
    assert_eq!(m.used(), on_first);
    let truth = lab.truth();
    assert_eq!((charged(&truth.devices[0]), charged(&truth.devices[1])), (on_first, on_second));
}

/// Requests that no limit concerns get the driver's own code, with and without the library.
#[test]
fn odd_requests_get_the_drivers_own_code() {
    let (lab, mut m) = under("64GiB");
    let mut bare = lab.bare_member();
    bare.begin();
    let before = m.info();
    for call in [
        "alloc 0",
        "async 0",
        "pitch 0 4",
        "pitch 4 0",
        "create 0 1 0",
        "create 4096 1 0",
        "create 2097152 1 7",
        "create 2097152 9 0",
        "map 4096 2097152 12345",
        "unmap 4096 2097152",
        "retain-handle 4096",
        "retain 7",
        "primary-release 7",
        "destroy-context 12345",
        "total 7",
        "from-pool 4096 12345",
        "pool-destroy 12345",
        "init 1",
    ] {
        let (ours, its) = (m.ask(call), bare.ask(call));
        assert_eq!(ours.code, its.code, "{call}");
        assert_ne!(ours.code, 0, "{call} is odd");
        assert_eq!(m.info(), before, "{call} costs nothing");
    }
    // No device has that much memory; the code is out of memory with and without a limit.
    for bytes in [u64::MAX, u64::MAX - 511, 1 << 63, (1 << 63) - 1, 1 << 62] {
        for call in ["alloc", "async"] {
            let call = format!("{call} {bytes}");
            assert_eq!(m.code(&call), bare.code(&call), "{call}");
            assert_eq!(m.info(), before, "{call} costs nothing");
        }
    }
}

#[test]
fn a_forked_child_may_ask_nvml_and_sees_the_same() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "8GiB");
    let (mut m, mut other) = (lab.member(), lab.member());
    other.begin();
    other.alloc(GIB);
    m.ok("nvinit");
    let seen = m.ok("nvmem 0");
    let used = other.used();
    m.ok("fork");
    m.ok("nvinit");
    assert_eq!(m.ok("nvmem 0"), seen);
    assert_eq!(m.ok("nvprocs 0").numbers(), [u64::from(other.pid), used]);
    m.ask("exit 0");
    assert_eq!(m.ok("nvmem 0"), seen, "the parent goes on");
    assert_eq!(other.used(), used);
}

/// Allocates pieces of `bytes` until one is refused.
fn fill(m: &mut Member, bytes: u64) -> Vec<u64> {
    let mut pieces = Vec::new();
    loop {
        let answer = m.ask(&format!("alloc {bytes}"));
        if answer.code != 0 {
            assert_eq!(answer.code, OUT_OF_MEMORY, "{answer:?}");
            return pieces;
        }
        pieces.push(answer.number(0));
    }
}

/// Frees the pieces whose number `which` accepts.
fn free_some(m: &mut Member, pieces: &mut Vec<u64>, which: impl Fn(usize) -> bool) {
    let (gone, left): (Vec<_>, Vec<_>) = pieces.iter().copied().enumerate().partition(|(at, _)| which(*at));
    gone.iter().for_each(|(_, piece)| _ = m.ok(&format!("free {piece}")));
    *pieces = left.into_iter().map(|(_, piece)| piece).collect();
}

/// The driver serves requests below 2 MiB from slabs and returns a slab to the device only as a whole.
#[test]
fn the_device_holds_no_more_than_the_limit_however_memory_is_cut_and_freed() {
    for first in [MIB, 256 * KIB, 3 * MIB / 2 + 1, 2 * MIB + 1] {
        let (lab, mut m) = under("2GiB");
        let begin = m.info().0;
        let mut pieces = fill(&mut m, first);
        assert!(pieces.len() as u64 >= begin / first.next_multiple_of(2 * MIB), "{first}: {} pieces", pieces.len());
        let held = |when: &str| {
            let used = lab.device(0).used;
            assert!(used <= 2 * GIB, "pieces of {first} bytes, {when}: the device holds {} MiB", used / MIB);
            used
        };
        held("full");
        // Keeps one piece of each slab, or every second piece if each has slabs of its own.
        let keep = if first < MIB { usize::try_from(2 * MIB / first).unwrap() } else { 2 };
        free_some(&mut m, &mut pieces, |at| at % keep != 0);
        let mut more = fill(&mut m, MIB);
        let used = held("every second one freed, and filled again");
        eprintln!("pieces of {first} bytes, then of {MIB}: {} MiB ahead", used.saturating_sub(2 * GIB) / MIB);
        assert_eq!(2 * GIB - m.info().0, lab.device(0).used, "and what is shown is what it holds");
        free_some(&mut m, &mut more, |_| true);
        free_some(&mut m, &mut pieces, |_| true);
        assert_eq!(m.info().0, begin, "pieces of {first} bytes: everything came back");
    }
}

/// An array's address does not tell its slab. The simulated device puts small arrays and small requests into the same
/// slabs.
#[test]
fn the_device_runs_ahead_of_the_charges_by_a_slab_for_each_small_array_and_no_more() {
    let (lab, mut m) = under("2GiB");
    let begin = m.info().0;
    let mut arrays = Vec::new();
    while let answer = m.ask("array 256 256")
        && answer.code == 0
    {
        arrays.push(answer.number(0));
    }
    assert_eq!(arrays.len() as u64, begin / (256 * KIB), "everything that fits is served");
    let (kept, gone): (Vec<_>, Vec<_>) = arrays.into_iter().enumerate().partition(|(at, _)| at % 8 == 0);
    gone.iter().for_each(|(_, array)| _ = m.ok(&format!("array-destroy {array}")));
    let mut pieces = fill(&mut m, MIB);
    let ahead = lab.device(0).used.saturating_sub(2 * GIB);
    eprintln!("arrays of 256 KiB, seven of eight freed, then pieces of 1 MiB: {} MiB ahead", ahead / MIB);
    assert!(ahead <= 2 * MIB * kept.len() as u64, "{ahead} bytes for {} arrays", kept.len());
    free_some(&mut m, &mut pieces, |_| true);
    kept.iter().for_each(|(_, array)| _ = m.ok(&format!("array-destroy {array}")));
    assert_eq!(m.info().0, begin, "everything came back");
}

/// A request that fits into a charged slab takes nothing from the device, so it is granted even when nothing is left.
#[test]
fn what_fits_into_a_slab_that_is_charged_is_granted_at_the_limit() {
    const PIECE: u64 = 64 * KIB;
    let (lab, mut m) = under("1GiB");
    let (free, _) = m.info();
    let first = m.alloc(PIECE);
    assert_eq!(m.info().0, free - 2 * MIB, "a slab");
    m.alloc(free - 2 * MIB);
    assert_eq!(m.info().0, 0);
    let mut pieces: Vec<u64> = (1..2 * MIB / PIECE).map(|_| m.alloc(PIECE)).collect();
    assert_eq!((m.info().0, lab.device(0).used), (0, GIB));
    assert_eq!(m.code(&format!("alloc {PIECE}")), OUT_OF_MEMORY, "the slab is full, and another one does not fit");
    assert_eq!(lab.device(0).used, GIB, "what was refused left nothing behind");
    m.ok(&format!("free {first}"));
    pieces.push(m.alloc(PIECE));
    assert_eq!(m.code("alloc 1"), OUT_OF_MEMORY);
    free_some(&mut m, &mut pieces, |_| true);
    assert_eq!(m.info().0, 2 * MIB, "the last piece takes the slab's charge away");
}
