//! Memory that the driver holds for a tenant and that no charge explains. With the daemon it counts against the limit.

#[path = "leases/world.rs"]
mod world;

use serde_json::Value;
use std::time::{Duration, Instant};
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, KIB, MIB, Member, OUT_OF_MEMORY};
use world::{World, eventually, tenant};

/// A world with a tenant of 2 GiB, checked at the daemon's default interval.
fn served() -> World {
    World::start(&tenant("a", "memory_limit = \"2GiB\""))
}

/// A program of the tenant that can call the driver past the library.
fn escaping(world: &mut World) -> Member {
    world.lab.set("VGPU_SOCKET", world.socket("a"));
    let mut m = Member::start(&mut world.lab.command(compile("escape", Kind::Program, &[])));
    m.ok("begin");
    m
}

fn status(world: &World) -> Value {
    serde_json::from_str(&world.status()).unwrap_or(Value::Null)
}

/// Time until the condition holds.
fn takes(what: &str, is: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    eventually(what, is);
    begin.elapsed()
}

#[test]
fn memory_that_no_charge_explains_counts_within_a_second_and_no_longer_than_the_driver_holds_it() {
    let mut world = served();
    let mut honest = world.plain("a");
    honest.begin();
    honest.ok("nvinit");
    let mut other = escaping(&mut world);
    other.ok(&format!("alloc {}", 4 * MIB));
    let (before, total) = honest.info();
    // The daemon must read the ledger before it can compare anything with it.
    let known = |world: &World| status(world)["tenants"][0]["devices"][0]["memory_used"].as_u64();
    eventually("the ledger is read", || known(&world) == Some(total - before));
    // The fastest of four counts, because other tests keep the processors busy.
    let counted = (1..=4).map(|round| {
        other.ok(&format!("read {}", 128 * MIB));
        takes("it counts", || honest.info().0 == before - round * 128 * MIB)
    });
    let counted: Vec<Duration> = counted.collect();
    eprintln!("memory past the library counts after {counted:?}");
    assert!(counted.iter().min() < Some(&Duration::from_secs(1)), "within a second: {counted:?}");
    assert_eq!(honest.code(&format!("alloc {}", before - 512 * MIB + 1)), OUT_OF_MEMORY);
    assert_eq!(other.code(&format!("alloc {}", before - 512 * MIB + 1)), OUT_OF_MEMORY);
    let used = total - (before - 512 * MIB);
    assert_eq!(honest.ok("nvmem 0").numbers(), [total, total - used, used], "NVML agrees");
    let listed: u64 = honest.ok("nvprocs 0").numbers().chunks(2).map(|entry| entry[1]).sum();
    assert_eq!(listed, used, "and its processes add up");
    eventually("the daemon says the same", || known(&world) == Some(used));
    let rest = honest.alloc(before - 512 * MIB);
    assert_eq!(world.lab.device(0).used, 2 * GIB, "what is left is the tenant's, to the last byte");
    honest.ok(&format!("free {rest}"));
    other.kill();
    let context = world.lab.process(0, honest.pid).overhead_bytes;
    let fell = takes("it counts no more", || honest.info() == (total - context, total));
    eprintln!("and no longer after {fell:?}");
    honest.alloc(total - context);
}

/// The driver's list and the ledger are read at different moments. Memory that is allocated or freed in between must
/// not count as uncharged.
#[test]
fn a_program_that_allocates_and_frees_all_the_time_is_never_refused_what_is_its_own() {
    let mut world = World::start(&format!("[proof]\ninterval = \"100ms\"\n{}", tenant("a", "memory_limit = \"2GiB\"")));
    let (mut m, mut beside) = (world.plain("a"), world.plain("a"));
    m.begin();
    let (free, _) = m.info();
    let end = Instant::now() + Duration::from_secs(4);
    let mut rounds = 0;
    while Instant::now() < end {
        let pieces: Vec<u64> = [free / 2, 256 * KIB, free / 4].iter().map(|bytes| m.alloc(*bytes)).collect();
        std::thread::sleep(Duration::from_millis(rounds % 40));
        pieces.iter().for_each(|piece| _ = m.ok(&format!("free {piece}")));
        std::thread::sleep(Duration::from_millis(rounds % 7));
        rounds += 1;
    }
    // A context is charged after the driver has taken its memory.
    for _ in 0..4 {
        beside.begin();
        let context = world.lab.process(0, beside.pid).overhead_bytes;
        let piece = m.alloc(free - context);
        m.ok(&format!("free {piece}"));
        beside.kill();
        beside = world.plain("a");
    }
    assert!(rounds > 30, "{rounds} rounds");
}

/// Pieces whose slabs stay with the driver although most pieces were freed.
#[test]
fn a_program_that_cuts_its_memory_into_pieces_is_held_to_its_limit_and_not_accused() {
    let mut world = World::start(&format!(
        "[proof]\ninterval = \"100ms\"\nslack = \"4MiB\"\n{}",
        tenant("a", "memory_limit = \"2GiB\"")
    ));
    for first in [MIB, 256 * KIB] {
        let mut m = world.plain("a");
        m.begin();
        let mut fill = |bytes: u64, keep: usize| {
            let mut pieces: Vec<u64> = Vec::new();
            loop {
                let answer = m.ask(&format!("alloc {bytes}"));
                if answer.code != 0 {
                    assert_eq!(answer.code, OUT_OF_MEMORY);
                    break;
                }
                pieces.push(answer.number(0));
            }
            let freed = pieces.iter().enumerate().filter(|(at, _)| at % keep != 0);
            freed.for_each(|(_, piece)| _ = m.ok(&format!("free {piece}")));
        };
        fill(first, if first < MIB { 8 } else { 2 });
        fill(MIB, 2);
        let end = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end {
            assert_eq!(status(&world)["findings"], serde_json::json!([]), "pieces of {first} bytes");
            let used = world.lab.device(0).used;
            assert!(used <= 2 * GIB, "pieces of {first} bytes: the device holds {} MiB", used / MIB);
        }
        m.kill();
        eventually("it is gone", || world.lab.device(0).used == 0);
    }
}
