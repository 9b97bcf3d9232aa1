//! Shared memory without a clear owner: another tenant's, that of a process without limits, that of an exporter that
//! died while the descriptor was in transit.

use crate::*;

#[test]
fn a_strangers_memory_is_charged_to_whoever_opens_it() {
    let mut lab = lab("3GiB");
    let mut exporter = sharer(&lab);
    let mut other = stranger(&mut lab);
    let (mine, theirs) = (exporter.used(), other.used());
    let address = exporter.alloc(GIB);
    let name = name(&mut exporter, address);
    let there = number(&mut other, &format!("open {name}"));
    assert_eq!((exporter.used(), other.used()), (mine + GIB, theirs + GIB));
    other.ok(&format!("close {there}"));
    assert_eq!((exporter.used(), other.used()), (mine + GIB, theirs));
    let full = other.alloc(2 * GIB);
    assert_eq!(other.code(&format!("open {name}")), OUT_OF_MEMORY, "3 GiB and a context");
    assert_eq!(other.used(), theirs + 2 * GIB, "a refused import costs nothing");
    exporter.ok(&format!("free {address}"));
    other.ok(&format!("free {full}"));
    assert_eq!(on_device(&lab), mine + theirs, "what was refused was closed again");
}

#[test]
fn memory_of_a_process_without_limits_is_charged_to_whoever_opens_it() {
    let lab = lab("3GiB");
    let mut bare = Member::start(&mut lab.bare(compile("share", Kind::Program, &[])));
    bare.ok("init");
    bare.ok("retain 0");
    let mut member = sharer(&lab);
    let begin = member.used();
    let address = bare.alloc(GIB);
    let name = name(&mut bare, address);
    let there = number(&mut member, &format!("open {name}"));
    assert_eq!(member.used(), begin + GIB);
    bare.kill();
    assert_eq!(agrees(&lab, &mut member), begin + GIB);
    member.ok(&format!("close {there}"));
    assert_eq!(agrees(&lab, &mut member), begin);
}

#[test]
fn a_strangers_descriptor_is_charged_when_it_is_mapped() {
    let mut lab = lab("3GiB");
    let mut exporter = sharer(&lab);
    let mut other = stranger(&mut lab);
    let (mine, theirs) = (exporter.used(), other.used());
    let (_, descriptor) = exported(&mut exporter, GIB);
    let taken = lab.pass_descriptor(&mut exporter, descriptor, &mut other);
    let imported = number(&mut other, &format!("import {taken}"));
    let (first, second) = (mapped(&mut other, imported, GIB), mapped(&mut other, imported, GIB));
    assert_eq!((exporter.used(), other.used()), (mine + GIB, theirs + GIB), "mapped twice, charged once");
    other.ok(&format!("release {imported}"));
    other.ok(&format!("unmap {first} {GIB}"));
    assert_eq!(other.used(), theirs + GIB);
    other.ok(&format!("unmap {second} {GIB}"));
    assert_eq!(other.used(), theirs);
    let imported = number(&mut other, &format!("import {taken}"));
    other.alloc(2 * GIB);
    assert_eq!(other.code(&format!("map {first} {GIB} {imported}")), OUT_OF_MEMORY, "3 GiB and a context");
    assert_eq!(other.used(), theirs + 2 * GIB, "a refused map costs nothing");
    other.ok(&format!("release {imported}"));
}

/// A tenant that uses its whole limit and has another tenant's memory open.
fn full(lab: &mut Lab) -> (Member, Member, String, u64) {
    let mut exporter = sharer(lab);
    let mut other = stranger(lab);
    let address = exporter.alloc(GIB);
    let name = name(&mut exporter, address);
    let there = number(&mut other, &format!("open {name}"));
    let rest = 3 * GIB - other.used();
    other.alloc(rest);
    assert_eq!((other.used(), other.code("alloc 1")), (3 * GIB, OUT_OF_MEMORY));
    (exporter, other, name, there)
}

#[test]
fn what_is_open_can_be_opened_again_however_little_is_left() {
    let mut lab = lab("3GiB");
    let (_exporter, mut other, name, there) = full(&mut lab);
    assert_eq!(number(&mut other, &format!("open {name}")), there, "the same memory");
    assert_eq!(other.used(), 3 * GIB, "charged once");
    other.ok(&format!("close {there}"));
    assert_eq!(other.used(), 3 * GIB, "it is open");
    other.ok(&format!("close {there}"));
    assert_eq!(other.used(), 2 * GIB);
    assert_eq!(number(&mut other, &format!("open {name}")), there, "it fits again");
}

#[test]
fn threads_that_open_and_close_one_name_are_never_refused_for_each_other() {
    let mut lab = lab("3GiB");
    let (_exporter, mut other, name, there) = full(&mut lab);
    other.ok(&format!("opens {name} 4 500"));
    other.ok(&format!("close {there}"));
    // Now all threads have closed it from time to time. A thread that opens it must not be refused because of room that
    // a closing thread has not released yet.
    other.ok(&format!("opens {name} 4 500"));
    assert_eq!(other.used(), 2 * GIB, "nothing is left open");
}

#[test]
fn a_strangers_memory_is_charged_to_the_tenant_once_however_many_of_it_open_it() {
    let mut lab = lab("3GiB");
    let mut exporter = sharer(&lab);
    let (mut first, mut second) = (stranger(&mut lab), stranger(&mut lab));
    let before = first.used();
    let address = exporter.alloc(GIB);
    let name = name(&mut exporter, address);
    first.ok(&format!("open {name}"));
    let there = number(&mut second, &format!("open {name}"));
    assert_eq!(second.used(), before + GIB, "once for both");
    first.kill();
    std::thread::sleep(Duration::from_millis(100));
    let held = second.used();
    assert!(held > GIB && held < before + GIB, "{held}: the dead's context is gone, what the living has open is not");
    second.ok(&format!("close {there}"));
    assert_eq!(second.used(), held - GIB);
}

#[test]
fn what_its_dead_exporter_sent_to_several_is_charged_once() {
    let lab = lab("3GiB");
    let (mut exporter, mut first, mut second) = (sharer(&lab), sharer(&lab), sharer(&lab));
    let (_, descriptor) = exported(&mut exporter, GIB);
    let taken = lab.pass_descriptor(&mut exporter, descriptor, &mut first);
    let other = lab.pass_descriptor(&mut exporter, descriptor, &mut second);
    exporter.kill();
    // The library looks for dead members in this query: now no process holds the memory.
    first.used();
    std::thread::sleep(Duration::from_millis(60));
    let before = first.used();
    assert_eq!(on_device(&lab), before + GIB, "under way it is nobody's");
    let imported = number(&mut first, &format!("import {taken}"));
    let at = mapped(&mut first, imported, GIB);
    assert_eq!(agrees(&lab, &mut first), before + GIB);
    let again = number(&mut second, &format!("import {other}"));
    let there = mapped(&mut second, again, GIB);
    assert_eq!(agrees(&lab, &mut first), before + GIB, "mapped by two, charged once");
    first.ok(&format!("unmap {at} {GIB}"));
    first.ok(&format!("release {imported}"));
    assert_eq!(agrees(&lab, &mut first), before + GIB, "the second holds it");
    second.ok(&format!("unmap {there} {GIB}"));
    second.ok(&format!("release {again}"));
    first.ok(&format!("close-descriptor {taken}"));
    second.ok(&format!("close-descriptor {other}"));
    assert_eq!(agrees(&lab, &mut first), before);
}

#[test]
fn a_strangers_pool_memory_is_charged_to_the_tenant_once_however_many_of_it_import_it() {
    let mut lab = lab("8GiB");
    let mut exporter = sharer(&lab);
    let (mut first, mut second) = (stranger(&mut lab), stranger(&mut lab));
    let before = first.used();
    let pool = number(&mut exporter, &format!("pool 0 {DESCRIPTOR}"));
    let address = number(&mut exporter, &format!("from-pool {GIB} {pool}"));
    let descriptor = number(&mut exporter, &format!("pool-export {pool}"));
    let name = exporter.ok(&format!("pointer-export {address}")).words[0].clone();
    let mut imports = Vec::new();
    for other in [&mut first, &mut second] {
        let taken = lab.pass_descriptor(&mut exporter, descriptor, other);
        let theirs = number(other, &format!("pool-import {taken}"));
        imports.push(number(other, &format!("pointer-import {theirs} {name}")));
        assert_eq!(other.used(), before + GIB, "once for both");
        assert_ne!(other.code(&format!("pointer-import {theirs} {name}")), OUT_OF_MEMORY, "again it needs nothing");
    }
    first.ok(&format!("free {}", imports[0]));
    assert_eq!(second.used(), before + GIB, "the second has it");
    second.ok(&format!("free {}", imports[1]));
    assert_eq!(first.used(), before);
}
