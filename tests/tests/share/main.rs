//! Memory shared between processes. It is charged once for all members of a tenant, and once to each other tenant that
//! holds it, as long as any process holds it. The simulated device's record is the judge.
//!
//! Here: IPC handles of 64 bytes, pools, memory of other APIs, contexts, kills. [`descriptors`], [`strangers`],
//! [`physical`]: the rest.

mod descriptors;
mod physical;
mod strangers;

use std::time::{Duration, Instant};
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, Lab, MIB, Member, OUT_OF_MEMORY};

/// Every request here is a multiple of 2 MiB, so the device gives exactly the requested bytes.
const PART: u64 = 64 * MIB;
/// Time limit for a wait. A memory query looks for dead members every 50 ms.
const PATIENCE: Duration = Duration::from_secs(15);
/// Handle type of an exported allocation: a POSIX file descriptor.
const DESCRIPTOR: u64 = 1;

fn lab(limit: &str) -> Lab {
    Lab::new("h200").with("VGPU_MEMORY_LIMIT", limit).with("VGPU_TENANT", "one")
}

fn sharer(lab: &Lab) -> Member {
    let mut member = Member::start(&mut lab.command(compile("share", Kind::Program, &[])));
    member.ok("init");
    member.ok("retain 0");
    member
}

/// A member of another tenant on the same machine, under the same limit.
fn stranger(lab: &mut Lab) -> Member {
    lab.set("VGPU_TENANT", "two");
    let member = sharer(lab);
    lab.set("VGPU_TENANT", "one");
    member
}

/// Bytes that the device gave to all processes.
fn on_device(lab: &Lab) -> u64 {
    lab.device(0).used
}

/// Waits until the shown bytes equal those on the device: a memory query looks for dead members every 50 ms only.
#[track_caller]
fn agrees(lab: &Lab, member: &mut Member) -> u64 {
    let begin = Instant::now();
    loop {
        let (shown, there) = (member.used(), on_device(lab));
        if shown == there {
            return shown;
        }
        assert!(begin.elapsed() < PATIENCE, "shown {shown}, on the device {there}: {:?}", lab.device(0));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
fn name(member: &mut Member, address: u64) -> String {
    member.ok(&format!("name {address}")).words[0].clone()
}

#[track_caller]
fn number(member: &mut Member, command: &str) -> u64 {
    member.ok(command).number(0)
}

/// Creates a physical allocation that can be exported, and a descriptor of it.
#[track_caller]
fn exported(member: &mut Member, bytes: u64) -> (u64, u64) {
    let handle = number(member, &format!("create {bytes} 0 {DESCRIPTOR}"));
    let descriptor = number(member, &format!("export {handle}"));
    (handle, descriptor)
}

/// Maps a handle at newly reserved addresses.
#[track_caller]
fn mapped(member: &mut Member, handle: u64, bytes: u64) -> u64 {
    let at = number(member, &format!("reserve {bytes}"));
    member.ok(&format!("map {at} {bytes} {handle}"));
    at
}

#[test]
fn an_exported_allocation_is_charged_once_however_many_open_it() {
    let lab = lab("8GiB");
    let (mut exporter, mut importers) = (sharer(&lab), Vec::new());
    let address = exporter.alloc(GIB);
    let name = name(&mut exporter, address);
    for _ in 0..10 {
        let mut importer = sharer(&lab);
        let before = importer.used();
        let there = number(&mut importer, &format!("open {name}"));
        assert_eq!(importer.used(), before, "an import takes nothing");
        importers.push((importer, there));
    }
    let all = agrees(&lab, &mut exporter);
    assert_eq!(exporter.code(&format!("alloc {}", 8 * GIB - all + 1)), OUT_OF_MEMORY);
    let rest = exporter.alloc(8 * GIB - all);
    assert_eq!(importers[3].0.code("alloc 1"), OUT_OF_MEMORY, "the limit is full");
    exporter.ok(&format!("free {rest}"));
    for (importer, there) in &mut importers {
        importer.ok(&format!("close {there}"));
    }
    assert_eq!(agrees(&lab, &mut exporter), all, "the exporter holds it");
    exporter.ok(&format!("free {address}"));
    assert_eq!(agrees(&lab, &mut exporter), all - GIB);
}

/// Importers hold the exported bytes, and the exporter's slab may end earlier. So an exported piece is charged by
/// itself, no longer with its slab.
#[test]
fn the_device_runs_ahead_of_the_charges_by_a_slab_for_each_small_export_and_no_more() {
    const PIECE: u64 = MIB / 4;
    const SLAB: u64 = 2 * MIB;
    let lab = lab("2GiB");
    let mut exporter = sharer(&lab);
    let begin = exporter.used();
    let pieces: Vec<u64> = (0..GIB / PIECE).map(|_| exporter.alloc(PIECE)).collect();
    let (kept, gone): (Vec<_>, Vec<_>) = pieces.into_iter().enumerate().partition(|(at, _)| at % 8 == 0);
    for (_, address) in &kept {
        name(&mut exporter, *address);
    }
    gone.iter().for_each(|(_, address)| _ = exporter.ok(&format!("free {address}")));
    let count = kept.len() as u64;
    assert_eq!(exporter.used() - begin, count * PIECE, "an export is charged by its own bytes");
    let mut slabs = Vec::new();
    while let answer = exporter.ask(&format!("alloc {SLAB}"))
        && answer.code == 0
    {
        slabs.push(answer.number(0));
    }
    let ahead = on_device(&lab).saturating_sub(2 * GIB);
    eprintln!("{count} exports of 256 KiB, their neighbours freed, then pieces of 2 MiB: {} MiB ahead", ahead / MIB);
    assert!(ahead <= count * (SLAB - PIECE), "{ahead} bytes for {count} exports");
    slabs.iter().for_each(|address| _ = exporter.ok(&format!("free {address}")));
    kept.iter().for_each(|(_, address)| _ = exporter.ok(&format!("free {address}")));
    assert_eq!(exporter.used(), begin, "everything came back");
}

#[test]
fn what_an_exporter_frees_stays_charged_while_an_importer_holds_it() {
    let lab = lab("8GiB");
    let (mut exporter, mut importer) = (sharer(&lab), sharer(&lab));
    let nothing = agrees(&lab, &mut exporter);
    let address = exporter.alloc(GIB);
    let name = name(&mut exporter, address);
    let there = number(&mut importer, &format!("open {name}"));
    exporter.ok(&format!("free {address}"));
    assert_eq!(agrees(&lab, &mut exporter), nothing + GIB);
    importer.ok(&format!("close {there}"));
    assert_eq!(agrees(&lab, &mut exporter), nothing);
    assert_ne!(importer.code(&format!("close {there}")), 0, "the driver's own answer");
    assert_eq!(agrees(&lab, &mut exporter), nothing, "and it changes nothing");
}

#[test]
fn an_allocation_that_was_exported_and_never_imported_is_freed_as_any_other() {
    let lab = lab("8GiB");
    let mut exporter = sharer(&lab);
    let nothing = agrees(&lab, &mut exporter);
    for _ in 0..3 {
        let address = exporter.alloc(GIB);
        let (first, second) = (name(&mut exporter, address), name(&mut exporter, address));
        assert_eq!(first, second, "an allocation has one name");
        assert_eq!(agrees(&lab, &mut exporter), nothing + GIB, "charged once");
        exporter.ok(&format!("free {address}"));
        assert_eq!(agrees(&lab, &mut exporter), nothing);
    }
}

#[test]
fn what_was_opened_twice_is_held_until_it_is_closed_twice() {
    let lab = lab("8GiB");
    let (mut exporter, mut importer) = (sharer(&lab), sharer(&lab));
    let nothing = agrees(&lab, &mut exporter);
    let address = exporter.alloc(GIB);
    let name = name(&mut exporter, address);
    let there = number(&mut importer, &format!("open {name}"));
    let again = importer.ask(&format!("open {name}"));
    exporter.ok(&format!("free {address}"));
    importer.ok(&format!("close {there}"));
    if again.code == 0 {
        assert_eq!(agrees(&lab, &mut exporter), nothing + GIB, "open once more");
        importer.ok(&format!("close {}", again.number(0)));
    }
    assert_eq!(agrees(&lab, &mut exporter), nothing);
}

#[test]
fn when_the_exporter_is_killed_the_charge_stays_with_the_importer() {
    let lab = lab("8GiB");
    let (mut exporter, mut importer, mut third) = (sharer(&lab), sharer(&lab), sharer(&lab));
    let address = exporter.alloc(GIB);
    let kept = name(&mut exporter, address);
    let there = number(&mut importer, &format!("open {kept}"));
    let lost = exporter.alloc(GIB);
    name(&mut exporter, lost);
    exporter.kill();
    let all = agrees(&lab, &mut third);
    assert_eq!(third.code(&format!("alloc {}", 8 * GIB - all + 1)), OUT_OF_MEMORY, "one GiB is still there");
    let rest = third.alloc(8 * GIB - all);
    third.ok(&format!("free {rest}"));
    importer.ok(&format!("close {there}"));
    assert_eq!(agrees(&lab, &mut third), all - GIB);
}

#[test]
fn when_importers_are_killed_nothing_changes_and_when_all_are_nothing_is_left() {
    let lab = lab("8GiB");
    let (mut exporter, mut first, mut second, mut third) = (sharer(&lab), sharer(&lab), sharer(&lab), sharer(&lab));
    let address = exporter.alloc(GIB);
    let name = name(&mut exporter, address);
    for importer in [&mut first, &mut second] {
        importer.ok(&format!("open {name}"));
    }
    first.kill();
    assert_eq!(agrees(&lab, &mut exporter), agrees(&lab, &mut third));
    assert!(exporter.used() > GIB);
    exporter.kill();
    second.kill();
    assert!(agrees(&lab, &mut third) < GIB);
    let whole = 8 * GIB - third.used();
    third.alloc(whole);
}

#[test]
fn imported_handles_outlive_contexts() {
    let lab = lab("8GiB");
    let (mut exporter, mut importer) = (sharer(&lab), sharer(&lab));
    let (handle, descriptor) = exported(&mut exporter, PART);
    let taken = lab.pass_descriptor(&mut exporter, descriptor, &mut importer);
    let context = number(&mut importer, "create-context 0");
    let imported = number(&mut importer, &format!("import {taken}"));
    let address = exporter.alloc(GIB);
    let name = name(&mut exporter, address);
    importer.ok(&format!("open {name}"));
    importer.ok("retain 0");
    let all = agrees(&lab, &mut importer);
    importer.ok(&format!("destroy-context {context}"));
    exporter.ok(&format!("free {address}"));
    exporter.ok(&format!("release {handle}"));
    exporter.ok(&format!("close-descriptor {descriptor}"));
    importer.ok(&format!("close-descriptor {taken}"));
    let left = agrees(&lab, &mut importer);
    assert!(left <= all - GIB, "the context closed what was open in it");
    importer.ok(&format!("release {imported}"));
    assert_eq!(agrees(&lab, &mut importer), left - PART, "the handle was there");
}

#[test]
fn memory_is_charged_on_the_device_it_is_on_wherever_it_is_named() {
    let lab = Lab::new("2xh200").with("VGPU_MEMORY_LIMIT", "8GiB").with("VGPU_TENANT", "one");
    let (mut exporter, mut importer) = (sharer(&lab), sharer(&lab));
    let handle = number(&mut exporter, &format!("create {PART} 1 {DESCRIPTOR}"));
    let descriptor = number(&mut exporter, &format!("export {handle}"));
    let taken = lab.pass_descriptor(&mut exporter, descriptor, &mut importer);
    let first = agrees(&lab, &mut importer);
    let imported = number(&mut importer, &format!("import {taken}"));
    exporter.ok(&format!("release {handle}"));
    exporter.ok(&format!("close-descriptor {descriptor}"));
    importer.ok(&format!("close-descriptor {taken}"));
    assert_eq!(agrees(&lab, &mut importer), first, "device 0 has nothing of it");
    importer.ok("retain 1");
    let second = importer.used();
    assert_eq!(second, lab.device(1).used);
    importer.ok(&format!("release {imported}"));
    assert_eq!((importer.used(), lab.device(1).used), (second - PART, second - PART));
}

#[test]
fn memory_that_is_there_before_a_context_is_not_taken_for_the_contexts() {
    let lab = Lab::new("2xh200").with("VGPU_MEMORY_LIMIT", "8GiB").with("VGPU_TENANT", "one");
    let mut member = sharer(&lab);
    let handle = number(&mut member, &format!("create {PART} 1 0"));
    member.ok("retain 1");
    assert_eq!(member.used(), lab.device(1).used);
    member.ok(&format!("release {handle}"));
    assert_eq!(member.used(), lab.device(1).used);
}

#[test]
fn an_exported_pool_grows_and_shrinks_where_importers_hold_it() {
    let lab = lab("8GiB");
    let (mut exporter, mut importer, mut third) = (sharer(&lab), sharer(&lab), sharer(&lab));
    let nothing = agrees(&lab, &mut third);
    let pool = number(&mut exporter, &format!("pool 0 {DESCRIPTOR}"));
    let before = number(&mut exporter, &format!("from-pool {PART} {pool}"));
    let descriptor = number(&mut exporter, &format!("pool-export {pool}"));
    let taken = lab.pass_descriptor(&mut exporter, descriptor, &mut importer);
    let imported = number(&mut importer, &format!("pool-import {taken}"));
    let pointer = exporter.ok(&format!("pointer-export {before}")).words[0].clone();
    let there = number(&mut importer, &format!("pointer-import {imported} {pointer}"));
    assert_eq!(agrees(&lab, &mut third), nothing + PART, "charged once");
    let after = number(&mut exporter, &format!("from-pool {PART} {pool}"));
    assert_eq!(agrees(&lab, &mut third), nothing + 2 * PART, "it has grown");
    exporter.ok(&format!("free-async {after}"));
    exporter.ok(&format!("trim {pool} 0"));
    assert_eq!(agrees(&lab, &mut third), nothing + PART, "and shrunk");
    exporter.kill();
    let kept = agrees(&lab, &mut third);
    importer.ok(&format!("close-descriptor {taken}"));
    importer.ok(&format!("free-async {there}"));
    importer.ok(&format!("pool-destroy {imported}"));
    assert_eq!(agrees(&lab, &mut third), kept - PART, "the importer had it to the end");
}

#[test]
fn an_imported_pool_of_which_nothing_is_imported_holds_nothing_when_its_exporter_is_gone() {
    let lab = lab("8GiB");
    let (mut exporter, mut importer, mut third) = (sharer(&lab), sharer(&lab), sharer(&lab));
    let pool = number(&mut exporter, &format!("pool 0 {DESCRIPTOR}"));
    number(&mut exporter, &format!("from-pool {PART} {pool}"));
    let descriptor = number(&mut exporter, &format!("pool-export {pool}"));
    let taken = lab.pass_descriptor(&mut exporter, descriptor, &mut importer);
    let imported = number(&mut importer, &format!("pool-import {taken}"));
    let before = agrees(&lab, &mut third);
    exporter.kill();
    assert!(agrees(&lab, &mut third) < before - PART, "its context and its pool are gone");
    importer.ok(&format!("pool-destroy {imported}"));
    agrees(&lab, &mut third);
}

#[test]
fn memory_of_another_api_is_charged_by_the_size_it_is_imported_with() {
    let lab = lab("3GiB");
    let mut member = sharer(&lab);
    let begin = member.used();
    let path = lab.path().join("foreign");
    std::fs::File::create(&path).unwrap().set_len(GIB).unwrap();
    let descriptor = number(&mut member, &format!("open-file {}", path.display()));
    let imported = number(&mut member, &format!("external {descriptor} {GIB}"));
    assert_eq!(member.used(), begin + GIB);
    // The driver has closed the first descriptor.
    let second = number(&mut member, &format!("open-file {}", path.display()));
    let room = 3 * GIB - member.used();
    assert_eq!(member.code(&format!("external {second} {}", room + 1)), OUT_OF_MEMORY);
    let buffer = number(&mut member, &format!("external-buffer {imported} {}", 2 * MIB));
    member.ok(&format!("external-destroy {imported}"));
    assert_eq!(agrees(&lab, &mut member), begin + GIB, "a buffer shows it");
    member.ok(&format!("free {buffer}"));
    assert_eq!(agrees(&lab, &mut member), begin);
    // Memory of another process of the tenant, passed by a descriptor.
    let mut exporter = sharer(&lab);
    let (handle, descriptor) = exported(&mut exporter, PART);
    let taken = lab.pass_descriptor(&mut exporter, descriptor, &mut member);
    let before = agrees(&lab, &mut member);
    let imported = number(&mut member, &format!("external {taken} {PART}"));
    exporter.ok(&format!("release {handle}"));
    exporter.ok(&format!("close-descriptor {descriptor}"));
    assert_eq!(agrees(&lab, &mut member), before, "charged once");
    member.ok(&format!("external-destroy {imported}"));
    assert_eq!(agrees(&lab, &mut member), before - PART);
}

#[test]
fn exporters_and_importers_killed_at_any_moment_leave_nothing_and_exceed_nothing() {
    let lab = lab("6GiB");
    let mut watcher = sharer(&lab);
    let nothing = agrees(&lab, &mut watcher);
    for round in 0..12_u64 {
        let (mut exporter, mut importer) = (sharer(&lab), sharer(&lab));
        let address = exporter.alloc(GIB);
        let kept = name(&mut exporter, address);
        let (_, descriptor) = exported(&mut exporter, PART);
        let taken = lab.pass_descriptor(&mut exporter, descriptor, &mut importer);
        // Both get commands and are killed while they may be executing them.
        importer.tell(&format!("open {kept}"));
        importer.tell(&format!("import {taken}"));
        exporter.tell(&format!("export {address}"));
        exporter.tell(&format!("free {address}"));
        std::thread::sleep(Duration::from_micros(round * 300));
        if round % 3 != 0 {
            exporter.kill();
        }
        if round % 3 != 1 {
            importer.kill();
        }
        assert!(on_device(&lab) <= 6 * GIB);
        let filler = watcher.ask(&format!("alloc {GIB}"));
        if filler.code == 0 {
            watcher.ok(&format!("free {}", filler.number(0)));
        }
        drop((exporter, importer));
        assert_eq!(agrees(&lab, &mut watcher), nothing, "round {round}");
    }
}
