//! Exported file descriptors: the memory that they name, and the memory that they keep alive in transit.

use crate::*;

#[test]
fn a_descriptor_passed_over_a_socket_names_the_same_charge() {
    let lab = lab("8GiB");
    let (mut exporter, mut importer) = (sharer(&lab), sharer(&lab));
    let nothing = agrees(&lab, &mut exporter);
    let (handle, descriptor) = exported(&mut exporter, PART);
    // Another exported allocation of the same size, so the size does not identify it.
    let (other, _) = exported(&mut exporter, PART);
    let taken = lab.pass_descriptor(&mut exporter, descriptor, &mut importer);
    let imported = number(&mut importer, &format!("import {taken}"));
    let again = number(&mut importer, &format!("import {taken}"));
    let at = mapped(&mut importer, imported, PART);
    assert_eq!(agrees(&lab, &mut importer), nothing + 2 * PART, "two allocations, each charged once");
    exporter.ok(&format!("release {handle}"));
    exporter.ok(&format!("close-descriptor {descriptor}"));
    importer.ok(&format!("close-descriptor {taken}"));
    for one in [imported, again] {
        importer.ok(&format!("release {one}"));
    }
    assert_eq!(agrees(&lab, &mut importer), nothing + 2 * PART, "it is mapped");
    importer.ok(&format!("unmap {at} {PART}"));
    assert_eq!(agrees(&lab, &mut importer), nothing + PART, "the other is not touched");
    exporter.ok(&format!("release {other}"));
    exporter.kill();
    assert!(agrees(&lab, &mut importer) < nothing);
}

#[test]
fn a_descriptor_under_way_keeps_its_charge_as_it_keeps_the_memory() {
    let lab = lab("8GiB");
    let (mut exporter, mut importer) = (sharer(&lab), sharer(&lab));
    let nothing = agrees(&lab, &mut exporter);
    let (handle, descriptor) = exported(&mut exporter, PART);
    let path = lab.path().join("under-way");
    importer.ok(&format!("serve {}", path.display()));
    exporter.ok(&format!("send {descriptor} {}", path.display()));
    exporter.ok(&format!("close-descriptor {descriptor}"));
    exporter.ok(&format!("release {handle}"));
    assert_eq!(agrees(&lab, &mut importer), nothing + PART, "it is in the socket");
    let taken = number(&mut importer, "take");
    let imported = number(&mut importer, &format!("import {taken}"));
    importer.ok(&format!("close-descriptor {taken}"));
    exporter.used();
    assert_eq!(agrees(&lab, &mut importer), nothing + PART, "it is imported");
    importer.ok(&format!("release {imported}"));
    assert_eq!(agrees(&lab, &mut exporter), nothing);
    // A descriptor that is closed without an import releases its memory.
    let (handle, descriptor) = exported(&mut exporter, PART);
    exporter.ok(&format!("release {handle}"));
    assert_eq!(agrees(&lab, &mut exporter), nothing + PART, "the descriptor keeps it");
    exporter.ok(&format!("close-descriptor {descriptor}"));
    let all = 8 * GIB - agrees(&lab, &mut exporter);
    exporter.alloc(all);
}

#[test]
fn a_request_is_not_refused_for_a_descriptor_that_was_closed() {
    let lab = lab("4GiB");
    let mut exporter = sharer(&lab);
    let room = 4 * GIB - exporter.used();
    let (handle, descriptor) = exported(&mut exporter, 2 * GIB);
    exporter.ok(&format!("release {handle}"));
    exporter.ok(&format!("close-descriptor {descriptor}"));
    // The released memory can be allocated immediately, without a memory query in between.
    exporter.alloc(room);
}

#[test]
fn a_descriptor_that_another_closes_stands_in_nobodys_way_while_its_exporter_does_nothing() {
    let lab = lab("4GiB");
    let (mut exporter, mut importer) = (sharer(&lab), sharer(&lab));
    let room = 4 * GIB - agrees(&lab, &mut importer);
    let (handle, descriptor) = exported(&mut exporter, 2 * GIB);
    let taken = lab.pass_descriptor(&mut exporter, descriptor, &mut importer);
    exporter.ok(&format!("close-descriptor {descriptor}"));
    exporter.ok(&format!("release {handle}"));
    assert_eq!(importer.code(&format!("alloc {}", room - 2 * GIB + 1)), OUT_OF_MEMORY, "the descriptor keeps it");
    importer.ok(&format!("close-descriptor {taken}"));
    importer.alloc(room);
    assert_eq!(agrees(&lab, &mut importer), 4 * GIB);
    // The exporter finds the memory gone and continues.
    assert_eq!(exporter.used(), 4 * GIB);
    assert_eq!(exporter.code("alloc 1"), OUT_OF_MEMORY);
}

#[test]
fn when_the_exporter_of_a_descriptor_is_killed_the_charge_stays_with_the_importer() {
    let lab = lab("8GiB");
    let (mut exporter, mut importer, mut third) = (sharer(&lab), sharer(&lab), sharer(&lab));
    let (_, descriptor) = exported(&mut exporter, PART);
    let taken = lab.pass_descriptor(&mut exporter, descriptor, &mut importer);
    let imported = number(&mut importer, &format!("import {taken}"));
    importer.ok(&format!("close-descriptor {taken}"));
    exporter.kill();
    let all = agrees(&lab, &mut third);
    importer.ok(&format!("release {imported}"));
    assert_eq!(agrees(&lab, &mut third), all - PART);
}
