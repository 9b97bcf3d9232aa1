//! Stream-ordered memory: a pool is charged its size for as long as it holds the memory. The judges are the simulated
//! device's record and cuMemGetInfo after every step. Graph memory: graph_memory.rs; random acts of many threads:
//! families.

use std::time::{Duration, Instant};
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, Lab, MIB, Member, OUT_OF_MEMORY};

/// Smallest growth of the simulated driver's pools.
const STEP: u64 = 32 * MIB;
/// Kernel length in nanoseconds that no test waits out by chance.
const LONG_SPIN: u64 = 2_000_000_000;
/// Kernel length in nanoseconds that a free and the end of its pool do not outlast by chance.
const SHORT_SPIN: u64 = 300_000_000;

fn lab(limit: &str) -> Lab {
    Lab::new("h200").with("VGPU_MEMORY_LIMIT", limit)
}

fn member(lab: &Lab) -> Member {
    let mut m = Member::start(&mut lab.command(compile("pooled", Kind::Program, &[])));
    m.ok("begin 0");
    m
}

fn under(limit: &str) -> (Lab, Member) {
    let lab = lab(limit);
    let m = member(&lab);
    (lab, m)
}

/// Bytes that the device gave to all processes: contexts, whole pages of plain memory, and pools.
fn given(lab: &Lab) -> u64 {
    lab.device(0).processes.iter().map(|p| p.physical_bytes).sum()
}

/// Bytes shown as used, which must equal the bytes that the device gave. The device's pages are 2 MiB, and these tests
/// hold one plain allocation at a time, so only its last page may be partly used.
#[track_caller]
fn used(lab: &Lab, m: &mut Member) -> u64 {
    let (shown, given) = (m.used(), given(lab));
    assert!(
        (0..2 * MIB).contains(&given.wrapping_sub(shown)),
        "{shown} are shown, given are {given}: {:?}",
        lab.device(0)
    );
    shown
}

/// Makes an allocation that must be granted.
#[track_caller]
fn get(m: &mut Member, command: &str) -> u64 {
    m.ok(command).number(0)
}

#[test]
fn a_pool_is_charged_what_it_holds() {
    let (lab, mut m) = under("4GiB");
    let begin = used(&lab, &mut m);
    let pool = get(&mut m, "default-pool 0");
    let first = get(&mut m, &format!("async {MIB} 0"));
    assert_eq!(used(&lab, &mut m), begin + STEP, "it grew by a step");
    let second = get(&mut m, &format!("async {} 0", 10 * MIB));
    assert_eq!(used(&lab, &mut m), begin + STEP, "there was room inside");
    assert_eq!(m.ok(&format!("held {pool}")).numbers(), [STEP, 11 * MIB], "the driver's number");
    let third = get(&mut m, &format!("async {} 0", 100 * MIB + 1));
    assert_eq!(used(&lab, &mut m), begin + STEP + 102 * MIB);
    for p in [first, second, third] {
        m.ok(&format!("free-async {p} 0"));
    }
    m.ok("sync-stream 0");
    assert_eq!(used(&lab, &mut m), begin, "everything came back");
}

/// A fault makes the query fail after `QUESTIONS` calls. Every query of the library would bring that failure nearer.
#[test]
fn requests_inside_a_pool_and_frees_in_stream_order_ask_the_driver_nothing() {
    const QUESTIONS: u64 = 400;
    let lab = lab("4GiB")
        .with("VGPU_SIM_FAULTS", format!("cuMemPoolGetAttribute:after={QUESTIONS}:every=1:times=1:code=719"));
    let mut m = member(&lab);
    let pool = get(&mut m, "default-pool 0");
    let stream = get(&mut m, "stream");
    let mut live = Vec::new();
    for round in 0..30 {
        live.push(get(&mut m, &format!("async {MIB} {stream}")));
        let p = get(&mut m, &format!("async {MIB} {stream}"));
        m.ok(&format!("free-async {p} {stream}"));
        assert_eq!(m.ok("info").number(1), 4 * GIB, "round {round}");
    }
    let mut own = 0;
    loop {
        let answer = m.ask(&format!("held {pool}"));
        own += 1;
        if answer.code != 0 {
            assert_eq!(answer.code, 719);
            break;
        }
        own += 1;
    }
    let ours = QUESTIONS + 1 - own;
    assert!(ours <= 4, "{ours} questions: its threshold and its growth are to be asked for, and no more");
    for p in live {
        m.ok(&format!("free-async {p} {stream}"));
    }
    m.ok(&format!("sync-stream {stream}"));
    used(&lab, &mut m);
}

#[test]
fn every_synchronising_call_is_noticed() {
    let (lab, mut m) = under("4GiB");
    let begin = used(&lab, &mut m);
    for wait in ["sync-stream 0", "sync-own 0", "sync-context", "sync-event 0"] {
        let p = get(&mut m, &format!("async {} 0", 100 * MIB));
        m.ok(&format!("free-async {p} 0"));
        assert_eq!(used(&lab, &mut m), begin + 100 * MIB, "kept until somebody waits");
        m.ok(wait);
        assert_eq!(used(&lab, &mut m), begin, "{wait}");
    }
}

#[test]
fn every_way_to_allocate_and_free_in_stream_order_counts() {
    let (lab, mut m) = under("4GiB");
    let begin = used(&lab, &mut m);
    let (stream, pool) = (get(&mut m, "stream"), get(&mut m, "pool 0"));
    for allocate in [
        format!("async {} {stream}", 64 * MIB),
        format!("async-own {} {stream}", 64 * MIB),
        format!("async-own {} 0", 64 * MIB),
        format!("from-pool {} {pool} {stream}", 64 * MIB),
        format!("from-pool-own {} {pool} 0", 64 * MIB),
    ] {
        for free in ["free-async {} 0", "free-async-own {} 0", "free {}"] {
            let p = get(&mut m, &allocate);
            assert_eq!(used(&lab, &mut m), begin + 64 * MIB, "{allocate}");
            m.ok(&free.replace("{}", &p.to_string()));
            m.ok("sync-context");
            assert_eq!(used(&lab, &mut m), begin, "{allocate}, {free}");
        }
    }
}

#[test]
fn a_full_tenant_can_use_what_its_pools_hold_and_not_a_byte_more() {
    let (lab, mut m) = under("2GiB");
    let p = get(&mut m, &format!("async {MIB} 0"));
    let (free, _) = m.info();
    get(&mut m, &format!("alloc {free}"));
    assert_eq!(m.info().0, 0);
    let inside = get(&mut m, &format!("async {} 0", 31 * MIB));
    assert_eq!(m.code(&format!("async {MIB} 0")), OUT_OF_MEMORY, "the pool is full");
    assert_eq!(m.code("alloc 1"), OUT_OF_MEMORY);
    assert_eq!(used(&lab, &mut m), 2 * GIB);
    m.ok(&format!("free-async {inside} 0"));
    let again = get(&mut m, &format!("async {} 0", 20 * MIB));
    assert_eq!(used(&lab, &mut m), 2 * GIB, "what was given back served again");
    for p in [p, again] {
        m.ok(&format!("free-async {p} 0"));
    }
    m.ok("sync-stream 0");
    assert_eq!(used(&lab, &mut m), 2 * GIB - STEP);
}

#[test]
fn the_last_page_can_be_had_by_a_pool_and_the_next_cannot() {
    let (lab, mut m) = under("2GiB");
    let (free, _) = m.info();
    let most = free / (2 * MIB) * 2 * MIB;
    assert_eq!(m.code(&format!("async {} 0", most + 1)), OUT_OF_MEMORY, "a byte too many");
    let p = get(&mut m, &format!("async {most} 0"));
    assert_eq!(m.info().0, free - most);
    assert_eq!(m.code(&format!("async {} 0", 2 * MIB)), OUT_OF_MEMORY);
    used(&lab, &mut m);
    m.ok(&format!("free-async {p} 0"));
    m.ok("sync-stream 0");
    assert_eq!(m.info().0, free);
}

#[test]
fn a_step_that_does_not_fit_is_refused_and_costs_nothing() {
    let (lab, mut m) = under("2GiB");
    let begin = used(&lab, &mut m);
    let (free, _) = m.info();
    let plain = get(&mut m, &format!("alloc {}", free - 10 * MIB));
    for round in 0..3 {
        assert_eq!(m.code(&format!("async {MIB} 0")), OUT_OF_MEMORY, "a pool takes {STEP} at once: round {round}");
        m.ok("sync-stream 0");
        assert_eq!(used(&lab, &mut m), 2 * GIB - 10 * MIB, "round {round}");
    }
    m.ok(&format!("free {plain}"));
    get(&mut m, &format!("async {MIB} 0"));
    assert_eq!(used(&lab, &mut m), begin + STEP);
}

#[test]
fn what_a_threshold_keeps_is_charged_until_the_threshold_is_lowered() {
    let (lab, mut m) = under("4GiB");
    let begin = used(&lab, &mut m);
    let pool = get(&mut m, "default-pool 0");
    m.ok(&format!("threshold {pool} {GIB}"));
    let p = get(&mut m, &format!("async {} 0", 256 * MIB));
    m.ok(&format!("free-async {p} 0"));
    m.ok("sync-context");
    assert_eq!(used(&lab, &mut m), begin + 256 * MIB, "kept");
    let again = get(&mut m, &format!("async {} 0", 200 * MIB));
    assert_eq!(used(&lab, &mut m), begin + 256 * MIB, "and used again");
    m.ok(&format!("free-async {again} 0"));
    m.ok(&format!("threshold {pool} 0"));
    used(&lab, &mut m);
    m.ok("sync-stream 0");
    assert_eq!(used(&lab, &mut m), begin);
}

#[test]
fn a_trim_returns_what_is_not_in_use() {
    let (lab, mut m) = under("4GiB");
    let begin = used(&lab, &mut m);
    let pool = get(&mut m, "pool 0");
    m.ok(&format!("threshold {pool} {GIB}"));
    let kept = get(&mut m, &format!("from-pool {} {pool} 0", 64 * MIB));
    let p = get(&mut m, &format!("from-pool {} {pool} 0", 128 * MIB));
    m.ok(&format!("free-async {p} 0"));
    m.ok("sync-stream 0");
    assert_eq!(used(&lab, &mut m), begin + 192 * MIB);
    m.ok(&format!("trim {pool} {}", 192 * MIB));
    assert_eq!(used(&lab, &mut m), begin + 192 * MIB, "it was told to keep that much");
    m.ok(&format!("trim {pool} 0"));
    assert_eq!(used(&lab, &mut m), begin + 64 * MIB, "what is in use stays");
    m.ok(&format!("free-async {kept} 0"));
    m.ok("sync-stream 0");
    m.ok(&format!("trim {pool} 0"));
    assert_eq!(used(&lab, &mut m), begin);
}

#[test]
fn memory_on_its_way_back_is_charged_until_the_stream_has_come_to_it() {
    let (lab, mut m) = under("4GiB");
    let stream = get(&mut m, "stream");
    m.ok(&format!("spin {stream} 1000"));
    m.ok("sync-context");
    let begin = used(&lab, &mut m);
    // Memory of a pool stays charged until the stream has reached its free.
    let p = get(&mut m, &format!("async {} {stream}", 512 * MIB));
    m.ok(&format!("spin {stream} {LONG_SPIN}"));
    m.ok(&format!("free-async {p} {stream}"));
    m.ok("sync-stream 0");
    assert_eq!(used(&lab, &mut m), begin + 512 * MIB);
    m.ok(&format!("sync-stream {stream}"));
    assert_eq!(used(&lab, &mut m), begin);
    // Plain memory that is freed in stream order stays charged until the stream has reached the free, too.
    let p = get(&mut m, &format!("alloc {}", 512 * MIB));
    m.ok(&format!("spin {stream} {LONG_SPIN}"));
    m.ok(&format!("free-async {p} {stream}"));
    assert_eq!(m.used(), begin + 512 * MIB, "the device may still read it");
    assert_eq!(m.code(&format!("alloc {}", 4 * GIB - begin - 511 * MIB)), OUT_OF_MEMORY, "it is still there");
    m.ok(&format!("sync-stream {stream}"));
    assert_eq!(used(&lab, &mut m), begin);
}

#[test]
fn a_destroyed_pool_is_charged_until_its_last_allocation_is_gone() {
    let (lab, mut m) = under("4GiB");
    let stream = get(&mut m, "stream");
    m.ok(&format!("spin {stream} 1000"));
    m.ok("sync-context");
    let begin = used(&lab, &mut m);
    let pool = get(&mut m, "pool 0");
    m.ok(&format!("threshold {pool} {GIB}"));
    let two = [(); 2].map(|()| get(&mut m, &format!("from-pool {} {pool} {stream}", 100 * MIB)));
    let slack = get(&mut m, &format!("from-pool {} {pool} {stream}", 300 * MIB));
    m.ok(&format!("free-async {slack} {stream}"));
    m.ok("sync-context");
    assert_eq!(used(&lab, &mut m), begin + 500 * MIB);
    m.ok(&format!("pool-destroy {pool}"));
    assert_eq!(used(&lab, &mut m), begin + 200 * MIB, "two allocations live");
    m.ok(&format!("free-async {} {stream}", two[0]));
    m.ok("sync-context");
    assert!(m.used() >= given(&lab), "one lives");
    m.ok(&format!("spin {stream} {LONG_SPIN}"));
    m.ok(&format!("free-async {} {stream}", two[1]));
    let shown = m.used();
    assert!(shown >= given(&lab) && given(&lab) > begin, "the stream has not come to it");
    m.ok("sync-context");
    assert_eq!(used(&lab, &mut m), begin, "nothing lives");
    // Destroys a pool when none of its memory is alive, and while a free is pending.
    for live in [false, true] {
        let pool = get(&mut m, "pool 0");
        let p = get(&mut m, &format!("from-pool {} {pool} {stream}", 100 * MIB));
        if live {
            m.ok(&format!("spin {stream} {LONG_SPIN}"));
        }
        m.ok(&format!("free-async {p} {stream}"));
        if !live {
            m.ok("sync-context");
        }
        m.ok(&format!("pool-destroy {pool}"));
        assert!(m.used() >= given(&lab), "never less than the device has given");
        m.ok("sync-context");
        assert_eq!(used(&lab, &mut m), begin, "destroyed with a free on its way: {live}");
    }
}

#[test]
fn before_a_refusal_pools_give_back_what_they_do_not_use() {
    let (lab, mut m) = under("4GiB");
    let begin = used(&lab, &mut m);
    let pools = [get(&mut m, "default-pool 0"), get(&mut m, "pool 0")];
    for pool in pools {
        m.ok(&format!("threshold {pool} {}", 8 * GIB));
    }
    let fill = |m: &mut Member| {
        let kept = get(m, &format!("from-pool {} {} 0", 100 * MIB, pools[0]));
        for pool in pools {
            let p = get(m, &format!("from-pool {GIB} {pool} 0"));
            m.ok(&format!("free-async {p} 0"));
        }
        m.ok("sync-context");
        assert_eq!(m.used(), begin + 2 * GIB + 100 * MIB);
        kept
    };
    let room = 4 * GIB - begin - 100 * MIB;
    for big in [format!("alloc {room}"), format!("from-pool {} {} 0", room / (2 * MIB) * 2 * MIB, pools[1])] {
        let kept = fill(&mut m);
        let p = get(&mut m, &big);
        used(&lab, &mut m);
        assert_eq!(m.code("alloc 2097152"), OUT_OF_MEMORY, "what is in use stays");
        for p in [p, kept] {
            m.ok(&format!("free {p}"));
        }
        for pool in pools {
            m.ok(&format!("trim {pool} 0"));
        }
        assert_eq!(used(&lab, &mut m), begin, "{big}");
    }
}

#[test]
fn a_neighbours_pool_is_its_own_and_counts_for_both() {
    let lab = lab("4GiB");
    let (mut a, mut b) = (member(&lab), member(&lab));
    let begin = used(&lab, &mut a);
    let pool = get(&mut a, "default-pool 0");
    a.ok(&format!("threshold {pool} {}", 8 * GIB));
    let p = get(&mut a, &format!("async {} 0", 2 * GIB));
    a.ok(&format!("free-async {p} 0"));
    a.ok("sync-context");
    assert_eq!(used(&lab, &mut b), begin + 2 * GIB);
    let too_many = 4 * GIB - begin - GIB;
    assert_eq!(b.code(&format!("async {too_many} 0")), OUT_OF_MEMORY, "the neighbour holds it");
    a.ok(&format!("trim {pool} 0"));
    let q = get(&mut b, &format!("async {too_many} 0"));
    used(&lab, &mut a);
    a.kill();
    std::thread::sleep(Duration::from_millis(100)); // a memory query looks for dead members every 50 ms
    b.ok(&format!("free-async {q} 0"));
    b.ok("sync-context");
    used(&lab, &mut b);
}

/// Threads of several processes, in the device's default pool and in other pools.
#[test]
fn crowds_at_the_limit_are_held_to_it_and_leave_nothing() {
    let lab = lab("3GiB");
    let mut members: Vec<Member> = (0..3).map(|_| member(&lab)).collect();
    let begin = used(&lab, &mut members[0]);
    for m in &mut members {
        m.tell(&format!("crowd 4 60 {}", 300 * MIB));
    }
    let since = Instant::now();
    let mut most = 0;
    while since.elapsed() < Duration::from_millis(300) {
        most = most.max(given(&lab));
    }
    let (mut granted, mut refused) = (0, 0);
    for m in &mut members {
        let [some, no, wrong] = m.answer().numbers()[..] else { panic!("three numbers") };
        assert_eq!(wrong, 0, "only out of memory may be the answer");
        granted += some;
        refused += no;
    }
    // The bound is for all processes together: a single one may find all memory held by others whenever it asks.
    assert!(granted > 300, "{granted} were granted");
    assert!(refused > 0, "the limit was reached");
    // A request that found room inside a pool may lose it to another thread's wait before the driver serves it. The
    // pool then grows after all. So the possible growth stays charged until the call has ended.
    assert!(most <= 3 * GIB, "{} bytes over", most - 3 * GIB);
    for m in &mut members {
        m.ok("sync-context");
    }
    assert_eq!(used(&lab, &mut members[0]), begin, "everything came back");
}

/// Threads of a full tenant free their blocks at the same moment, and each must get its block again. The streams are
/// busy, so that the room of a lost free cannot be had by a trim.
#[test]
fn frees_that_end_at_the_same_moment_all_leave_their_room() {
    let (lab, mut m) = under("2GiB");
    let pool = get(&mut m, "default-pool 0");
    m.ok(&format!("threshold {pool} {}", 8 * GIB));
    m.ok("spin 0 1000"); // loads the kernel
    m.ok("sync-context");
    let begin = used(&lab, &mut m);
    let answer = m.ok(&format!("renewals {STEP} {}", LONG_SPIN / 5));
    let [rounds, refused, wrong] = answer.numbers()[..] else { panic!("three numbers") };
    assert!(rounds > 0 && (refused, wrong) == (0, 0), "{answer:?}");
    m.ok("sync-context");
    m.ok(&format!("trim {pool} 0"));
    assert_eq!(used(&lab, &mut m), begin, "nothing is left charged");
}

#[test]
fn pools_that_are_destroyed_while_others_ask_for_them_leave_nothing() {
    let (lab, mut m) = under("4GiB");
    let stream = get(&mut m, "stream");
    m.ok(&format!("sync-stream {stream}"));
    let begin = used(&lab, &mut m);
    assert_eq!(get(&mut m, "churn 60000"), 0, "no call failed");
    assert_eq!(used(&lab, &mut m), begin);
}

#[test]
fn addresses_that_were_a_pools_before_a_reset_are_charged_as_what_they_are() {
    let (lab, mut m) = under("4GiB");
    let begin = used(&lab, &mut m);
    let before: Vec<u64> = (0..8).map(|_| get(&mut m, &format!("async {STEP} 0"))).collect();
    m.ok("primary-reset");
    m.ok("begin 0");
    assert_eq!(used(&lab, &mut m), begin);
    let after: Vec<u64> = (0..8).map(|_| get(&mut m, &format!("alloc {STEP}"))).collect();
    assert!(after.iter().any(|p| before.contains(p)), "addresses come again");
    for p in after {
        m.ok(&format!("free {p}"));
    }
    assert_eq!(used(&lab, &mut m), begin);
}

/// A failed query counts as a completed free and would end the charge of memory that is still held. The fault allows
/// three queries per free, so the library may only ask for the oldest free.
#[test]
fn of_many_frees_that_a_stream_has_still_to_come_to_the_oldest_is_asked_for() {
    const FREES: u64 = 60;
    let lab = lab("4GiB").with("VGPU_SIM_FAULTS", format!("cuEventQuery:after={}:every=1:code=719", 3 * FREES));
    let mut m = member(&lab);
    let stream = get(&mut m, "stream");
    m.ok(&format!("spin {stream} 1000"));
    m.ok("sync-context");
    let begin = used(&lab, &mut m);
    let all: Vec<u64> = (0..FREES).map(|_| get(&mut m, &format!("alloc {}", 4 * MIB))).collect();
    m.ok(&format!("spin {stream} {LONG_SPIN}"));
    for p in all {
        m.ok(&format!("free-async {p} {stream}"));
    }
    assert_eq!(m.used(), begin + FREES * 4 * MIB, "the stream has come to none of them");
    m.ok(&format!("sync-stream {stream}"));
    assert_eq!(used(&lab, &mut m), begin, "and now to all");
}

/// The memory stays charged until the right wait. Neither another stream nor another context proves the end of the
/// free.
#[test]
fn the_end_of_another_context_is_no_end_of_what_departs() {
    let (lab, mut m) = under("4GiB");
    let stream = get(&mut m, "stream");
    m.ok(&format!("spin {stream} 1000"));
    m.ok("sync-context");
    let begin = used(&lab, &mut m);
    let other = get(&mut m, "context 0");
    m.ok("use-context 0");
    let p = get(&mut m, &format!("alloc {}", 512 * MIB));
    m.ok(&format!("spin {stream} {LONG_SPIN}"));
    m.ok(&format!("free-async {p} {stream}"));
    m.ok(&format!("context-destroy {other}"));
    assert_eq!(m.used(), begin + 512 * MIB, "the device may still read it");
    m.ok(&format!("sync-stream {stream}"));
    assert_eq!(used(&lab, &mut m), begin);
}

#[test]
fn the_end_of_its_own_context_is_the_end_of_what_departs() {
    let (lab, mut m) = under("4GiB");
    let begin = used(&lab, &mut m);
    for _ in 0..3 {
        let own = get(&mut m, "context 0");
        let stream = get(&mut m, "stream");
        let pool = get(&mut m, "pool 0");
        let p = get(&mut m, &format!("alloc {}", 512 * MIB));
        let q = get(&mut m, &format!("from-pool {} {pool} {stream}", 512 * MIB));
        m.ok(&format!("spin-anew {stream} 300000000"));
        m.ok(&format!("free-async {p} {stream}"));
        m.ok(&format!("free-async {q} {stream}"));
        m.ok(&format!("pool-destroy {pool}"));
        assert!(m.used() >= given(&lab), "never less than the device has given");
        m.ok("use-context 0");
        m.ok(&format!("context-destroy {own}"));
        assert_eq!(used(&lab, &mut m), begin);
    }
}

#[test]
fn memory_that_another_contexts_stream_frees_waits_for_that_stream() {
    let (lab, mut m) = under("4GiB");
    let idle = get(&mut m, "stream");
    let other = get(&mut m, "context 0");
    let stream = get(&mut m, "stream");
    m.ok(&format!("spin {stream} 1000"));
    m.ok("sync-context");
    let begin = used(&lab, &mut m);
    let p = get(&mut m, &format!("alloc {}", 512 * MIB));
    m.ok(&format!("spin {stream} 800000000"));
    m.ok("use-context 0");
    m.ok(&format!("free-async {p} {stream}"));
    m.ok(&format!("sync-stream {idle}"));
    assert_eq!(m.used(), begin + 512 * MIB, "that stream was idle anyway");
    // No call waits for the stream; only an event recorded in it shows the end.
    let since = Instant::now();
    while m.used() > begin {
        assert!(since.elapsed() < Duration::from_secs(60), "the stream has long come to it");
    }
    assert_eq!(used(&lab, &mut m), begin);
    m.ok(&format!("context-destroy {other}"));
}

#[test]
fn a_destroyed_pool_is_charged_for_a_block_that_was_served_from_inside() {
    let (lab, mut m) = under("4GiB");
    let begin = used(&lab, &mut m);
    let pool = get(&mut m, "pool 0");
    m.ok(&format!("threshold {pool} {GIB}"));
    let from_pool = format!("from-pool {} {pool} 0", 100 * MIB);
    let first = get(&mut m, &from_pool);
    m.ok(&format!("free-async {first} 0"));
    m.ok("sync-context");
    let inside = get(&mut m, &from_pool);
    m.ok(&format!("pool-destroy {pool}"));
    assert_eq!(used(&lab, &mut m), begin + 100 * MIB, "the block is alive");
    m.ok(&format!("free-async {inside} 0"));
    m.ok("sync-context");
    assert_eq!(used(&lab, &mut m), begin);
}

#[test]
fn a_destroyed_pool_is_charged_until_each_stream_has_come_to_its_frees() {
    let (lab, mut m) = under("4GiB");
    let [busy, idle] = [(); 2].map(|()| get(&mut m, "stream"));
    m.ok(&format!("spin {busy} 1000"));
    m.ok("sync-context");
    let begin = used(&lab, &mut m);
    for last in [busy, idle] {
        let pool = get(&mut m, "pool 0");
        let p = get(&mut m, &format!("from-pool {} {pool} {busy}", 512 * MIB));
        let q = get(&mut m, &format!("from-pool {} {pool} {idle}", 512 * MIB));
        m.ok("sync-context");
        m.ok(&format!("spin {busy} {LONG_SPIN}"));
        m.ok(&format!("free-async {p} {busy}"));
        if last == busy {
            m.ok(&format!("free-async {q} {idle}"));
        }
        m.ok(&format!("pool-destroy {pool}"));
        if last == idle {
            m.ok(&format!("free-async {q} {idle}"));
        }
        m.ok(&format!("sync-stream {idle}"));
        let shown = m.used();
        assert!(shown >= begin + 512 * MIB, "{shown}, given are {}: one stream has not come to it", given(&lab));
        m.ok(&format!("sync-stream {busy}"));
        assert_eq!(used(&lab, &mut m), begin);
    }
}

/// A member with a library between ours and the driver that counts the requests to the driver.
fn watched(limit: &str) -> (Lab, Member) {
    let mut lab = lab(limit);
    let (us, between) = (lab.lib().to_owned(), compile("between", Kind::Library, &[]));
    lab.preload(&[&us, &between]);
    let m = member(&lab);
    (lab, m)
}

/// Fills all remaining room with plain memory.
#[track_caller]
fn fill(m: &mut Member) -> u64 {
    let (free, _) = m.info();
    let p = get(m, &format!("alloc {free}"));
    assert_eq!(m.info().0, 0);
    p
}

/// Checks that the library refuses a request that would grow the pool, before it asks the driver.
#[track_caller]
fn refused_by_us(lab: &Lab, m: &mut Member, command: &str) {
    let before = get(m, "asked");
    assert_eq!(m.code(command), OUT_OF_MEMORY, "{command}");
    assert_eq!(get(m, "asked"), before, "the driver was asked: {command}");
    used(lab, m);
}

/// Destroys a busy stream and creates one that gets the same handle.
fn renewed(m: &mut Member, stream: u64, destroy: &str) {
    m.ok(&format!("{destroy} {stream}"));
    assert_eq!(get(m, "stream"), stream, "handles come again");
}

#[test]
fn what_is_given_out_again_before_its_free_has_returned_is_no_room() {
    let (lab, mut m) = watched("4GiB");
    let pool = get(&mut m, "default-pool 0");
    m.ok(&format!("threshold {pool} {}", 8 * GIB));
    let stream = get(&mut m, "stream");
    let mut blocks = [16, 8, 8, 8, 8, 8, 8].map(|size| get(&mut m, &format!("async {} {stream}", size * MIB)));
    assert_eq!(m.ok(&format!("held {pool}")).number(0), 2 * STEP, "and all of it in use");
    let again = get(&mut m, &format!("free-beside {} {} {stream}", blocks[0], 16 * MIB));
    assert_eq!(again, blocks[0], "the driver gives out at once what the same stream has freed");
    blocks[0] = 0;
    for p in [blocks[3], blocks[5]] {
        m.ok(&format!("free-async {p} {stream}"));
    }
    let plain = fill(&mut m);
    refused_by_us(&lab, &mut m, &format!("async {} {stream}", 16 * MIB));
    get(&mut m, &format!("async {} {stream}", 8 * MIB));
    used(&lab, &mut m);
    m.ok(&format!("free {plain}"));
    get(&mut m, &format!("async {} {stream}", 16 * MIB));
    used(&lab, &mut m);
}

#[test]
fn a_wait_for_a_stream_is_no_wait_for_the_one_that_had_its_handle_before() {
    let (lab, mut m) = under("4GiB");
    let stream = get(&mut m, "stream");
    m.ok(&format!("spin {stream} 1000"));
    m.ok("sync-context");
    let begin = used(&lab, &mut m);
    for (destroy, pool_first) in [("stream-destroy", true), ("stream-destroy", false), ("stream-destroy-old", true)] {
        let pool = get(&mut m, "pool 0");
        let p = get(&mut m, &format!("from-pool {} {pool} {stream}", 256 * MIB));
        m.ok(&format!("spin {stream} {LONG_SPIN}"));
        m.ok(&format!("free-async {p} {stream}"));
        if pool_first {
            m.ok(&format!("pool-destroy {pool}"));
        }
        renewed(&mut m, stream, destroy);
        m.ok(&format!("sync-stream {stream}"));
        if !pool_first {
            m.ok(&format!("pool-destroy {pool}"));
        }
        m.ok(&format!("sync-stream {stream}"));
        let shown = m.used();
        assert!(shown >= begin + 256 * MIB && shown >= given(&lab), "{shown} of {}: {destroy}", given(&lab));
        m.ok("sync-context");
        assert_eq!(used(&lab, &mut m), begin, "{destroy}");
    }
}

#[test]
fn what_a_stream_freed_does_not_serve_the_one_that_has_its_handle_next() {
    let (lab, mut m) = watched("4GiB");
    let stream = get(&mut m, "stream");
    let p = get(&mut m, &format!("async {STEP} {stream}"));
    m.ok(&format!("spin {stream} 1000"));
    m.ok("sync-context");
    fill(&mut m);
    m.ok(&format!("spin {stream} {LONG_SPIN}"));
    m.ok(&format!("free-async {p} {stream}"));
    renewed(&mut m, stream, "stream-destroy");
    refused_by_us(&lab, &mut m, &format!("async {STEP} {stream}"));
    m.ok("sync-context");
    get(&mut m, &format!("async {STEP} {stream}"));
    used(&lab, &mut m);
}

#[test]
fn a_pool_that_grew_although_there_was_room_inside_is_not_relied_on_again() {
    let (lab, mut m) = watched("4GiB");
    let pool = get(&mut m, "default-pool 0");
    m.ok(&format!("threshold {pool} {}", 8 * GIB));
    let stream = get(&mut m, "stream");
    let [first, second] = [16, 8].map(|size| get(&mut m, &format!("async {} {stream}", size * MIB)));
    m.ok(&format!("free-async {first} {stream}"));
    m.ok("sync-context");
    let plain = fill(&mut m);
    // The driver keeps that memory for a reason that the library does not know, so its forecast is wrong.
    m.ok("take-before 1");
    let before = get(&mut m, "asked");
    assert_eq!(m.code(&format!("async {} {stream}", 16 * MIB)), OUT_OF_MEMORY, "it does not fit after all");
    assert_eq!(get(&mut m, "asked"), before + 1, "it was to fit inside");
    m.ok("sync-context");
    assert_eq!(used(&lab, &mut m), 4 * GIB);
    m.ok(&format!("free-async {second} {stream}"));
    m.ok("sync-context");
    refused_by_us(&lab, &mut m, &format!("async {} {stream}", 8 * MIB));
    m.ok(&format!("free {plain}"));
    get(&mut m, &format!("async {} {stream}", 8 * MIB));
    used(&lab, &mut m);
}

#[test]
fn a_failed_call_leaves_the_ledger_as_it_was() {
    let lab = lab("2GiB").with("VGPU_SIM_FAULTS", "cuMemAllocAsync:every=2:code=719,cuMemFreeAsync:every=3:code=719");
    let mut m = member(&lab);
    let begin = used(&lab, &mut m);
    let mut held = Vec::new();
    for _ in 0..20 {
        let answer = m.ask(&format!("async {} 0", 10 * MIB));
        match answer.code {
            0 => held.push(answer.number(0)),
            code => assert_eq!(code, 719, "the driver's code"),
        }
        used(&lab, &mut m);
    }
    assert_eq!(held.len(), 10);
    while let Some(p) = held.pop() {
        if m.code(&format!("free-async {p} 0")) != 0 {
            held.push(p);
        }
    }
    m.ok("sync-context");
    assert_eq!(used(&lab, &mut m), begin);
}

#[test]
fn the_pool_that_is_current_is_the_one_that_is_charged() {
    let (lab, mut m) = under("4GiB");
    let begin = used(&lab, &mut m);
    let (pool, default) = (get(&mut m, "pool 0"), get(&mut m, "default-pool 0"));
    m.ok(&format!("use-pool 0 {pool}"));
    let p = get(&mut m, &format!("async {} 0", 64 * MIB));
    assert_eq!(used(&lab, &mut m), begin + 64 * MIB);
    assert_eq!(m.ok(&format!("held {pool}")).number(0), 64 * MIB);
    assert_eq!(m.ok(&format!("held {default}")).number(0), 0);
    m.ok(&format!("pool-destroy {pool}"));
    let q = get(&mut m, &format!("async {MIB} 0"));
    assert_eq!(m.ok(&format!("held {default}")).number(0), STEP, "the device's own is current again");
    for p in [p, q] {
        m.ok(&format!("free-async {p} 0"));
    }
    m.ok("sync-context");
    assert_eq!(used(&lab, &mut m), begin);
    // The default pool was used meanwhile; another one that is current is charged all the same.
    let pool = get(&mut m, "pool 0");
    m.ok(&format!("use-pool 0 {pool}"));
    get(&mut m, &format!("async {} 0", 64 * MIB));
    assert_eq!(used(&lab, &mut m), begin + 64 * MIB);
    assert_eq!(m.ok(&format!("held {pool}")).number(0), 64 * MIB);
}

/// A look-up by address has one place for slabs that are 32 GiB apart, so these blocks share it.
#[test]
fn blocks_of_two_pools_far_apart_are_freed_to_their_own() {
    let (lab, mut m) = under("100GiB");
    let stream = get(&mut m, "stream");
    m.ok(&format!("spin {stream} 1"));
    m.ok("sync-context");
    let begin = used(&lab, &mut m);
    let pools = [get(&mut m, "pool 0"), get(&mut m, "pool 0")];
    // Of one pool 33 in a row, so that blocks of both meet.
    let mut get_from = |pool: usize| (pool, get(&mut m, &format!("from-pool {GIB} {} 0", pools[pool])));
    let blocks: Vec<(usize, u64)> = (0..60).map(|at| get_from(usize::from(at > 32 || at % 8 == 3))).collect();
    let place = |block: u64| block / (2 * MIB) % (1 << 14);
    let meets = |one: &(usize, u64)| blocks.iter().any(|two| two.0 != one.0 && place(two.1) == place(one.1));
    assert!(blocks.iter().filter(|one| meets(one)).count() > 30, "{blocks:x?}");
    assert_eq!(used(&lab, &mut m), begin + 60 * GIB);
    m.ok(&format!("spin {stream} {SHORT_SPIN}"));
    for (_, block) in blocks {
        m.ok(&format!("free-async {block} {stream}"));
    }
    for pool in pools {
        m.ok(&format!("pool-destroy {pool}"));
    }
    m.ok(&format!("sync-stream {stream}"));
    assert_eq!(used(&lab, &mut m), begin, "no destroyed pool waits for a block");
}

/// The library never saw the free, so the second pool gets an address at which the first one has a record.
#[test]
fn an_address_that_passed_from_pool_to_pool_unseen_is_freed_to_the_last() {
    let (lab, mut m) = under("4GiB");
    let stream = get(&mut m, "stream");
    m.ok(&format!("spin {stream} 1"));
    m.ok("sync-context");
    let begin = used(&lab, &mut m);
    let pools = [get(&mut m, "pool 0"), get(&mut m, "pool 0")];
    let first = get(&mut m, &format!("from-pool {GIB} {} 0", pools[0]));
    m.ok(&format!("free-past {first} 0"));
    m.ok("sync-context");
    let second = get(&mut m, &format!("from-pool {GIB} {} 0", pools[1]));
    assert_eq!(second, first, "the address comes again");
    m.ok(&format!("spin {stream} {SHORT_SPIN}"));
    m.ok(&format!("free-async {second} {stream}"));
    for pool in pools {
        m.ok(&format!("pool-destroy {pool}"));
    }
    m.ok(&format!("sync-stream {stream}"));
    assert_eq!(used(&lab, &mut m), begin, "no destroyed pool waits for a block");
}

#[test]
fn without_a_context_the_drivers_error_is_the_answer_however_full_the_tenant_is() {
    let (lab, mut m) = under("4GiB");
    get(&mut m, &format!("async {STEP} 0"));
    let plain = fill(&mut m);
    m.ok("no-context");
    let code = m.code(&format!("async {} 0", 2 * STEP));
    m.ok("use-context 0");
    m.ok(&format!("free {plain}"));
    m.ok("no-context");
    assert_eq!(m.code(&format!("async {} 0", 2 * STEP)), code, "not that there is no memory");
    assert_ne!(code, OUT_OF_MEMORY);
    m.ok("use-context 0");
    used(&lab, &mut m);
}

/// The driver's functions were called past every hook, so the library never saw the pool that is current now.
#[test]
fn a_pool_that_was_made_unseen_is_charged_from_its_first_request_on() {
    let (lab, mut m) = under("4GiB");
    let default = get(&mut m, "default-pool 0");
    let first = get(&mut m, &format!("async {STEP} 0"));
    let begin = used(&lab, &mut m);
    let pool = get(&mut m, "pool-past 0");
    m.ok(&format!("use-pool 0 {pool}"));
    let blocks: Vec<u64> = (0..4).map(|_| get(&mut m, &format!("async {} 0", 512 * MIB))).collect();
    assert_eq!(m.ok(&format!("held {default}")).number(0), STEP);
    assert_eq!(used(&lab, &mut m), begin + 2 * GIB);
    assert_eq!(m.code(&format!("async {} 0", 3 * GIB)), OUT_OF_MEMORY);
    for block in blocks.into_iter().chain([first]) {
        m.ok(&format!("free-async {block} 0"));
    }
    m.ok(&format!("pool-destroy {pool}"));
    m.ok("sync-context");
    assert_eq!(used(&lab, &mut m), begin - STEP);
}

/// A device's current pool must be its own: the driver refuses another device's pool. An allocation that names a pool
/// is charged to that pool's device.
#[test]
fn streams_of_a_device_without_a_limit_use_a_limited_pool_only_by_its_name() {
    let lab = Lab::new("h200,h200").with("VGPU_MEMORY_LIMIT_0", "4GiB");
    let mut m = member(&lab);
    let (pool, default) = (get(&mut m, "pool 0"), get(&mut m, "default-pool 0"));
    let first = get(&mut m, &format!("async {MIB} 0"));
    m.ok(&format!("free-async {first} 0"));
    m.ok("sync-context");
    let begin = used(&lab, &mut m);
    for other in [pool, default] {
        assert_eq!(m.code(&format!("use-pool 1 {other}")), 1, "not a pool of that device");
    }
    get(&mut m, "context 1");
    let stream = get(&mut m, "stream");
    let free = |lab: &Lab| given(lab) - begin;
    for pool in [pool, default] {
        let p = get(&mut m, &format!("from-pool {} {pool} {stream}", 64 * MIB));
        assert_eq!(free(&lab), 64 * MIB);
        assert_eq!(
            m.code(&format!("from-pool {} {pool} {stream}", 4 * GIB)),
            OUT_OF_MEMORY,
            "it is the limited device's"
        );
        m.ok(&format!("free-async {p} {stream}"));
        m.ok("sync-context");
    }
    let own = get(&mut m, &format!("async {} {stream}", 8 * GIB));
    m.ok(&format!("free-async {own} {stream}"));
    m.ok("use-context 0");
    assert_eq!(used(&lab, &mut m), begin);
}

#[test]
fn without_a_limit_pools_are_the_drivers() {
    let lab = Lab::new("h200");
    let mut bare = Member::start(&mut lab.bare(compile("pooled", Kind::Program, &[])));
    bare.ok("begin 0");
    let mut m = member(&lab);
    let pool = get(&mut m, "default-pool 0");
    let other = get(&mut bare, "default-pool 0");
    for line in [format!("async {} 0", 100 * MIB), "sync-context".to_owned(), "async 0 0".to_owned()] {
        assert_eq!(m.code(&line), bare.code(&line), "{line}");
        assert_eq!(m.ok(&format!("held {pool}")), bare.ok(&format!("held {other}")), "{line}");
    }
}

#[test]
fn a_forked_child_has_no_pools_and_changes_nothing() {
    let lab = lab("4GiB");
    let (mut m, mut other) = (member(&lab), member(&lab));
    get(&mut m, &format!("async {} 0", 64 * MIB));
    let before = used(&lab, &mut other);
    m.ok("fork");
    m.ask("sync-context");
    m.ask(&format!("async {} 0", 64 * MIB));
    assert_eq!(used(&lab, &mut other), before);
    m.tell("exit");
    m.answer();
    assert_eq!(used(&lab, &mut m), before, "the parent goes on");
}
