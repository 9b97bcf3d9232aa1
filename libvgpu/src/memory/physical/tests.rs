//! The lifetime of physical allocations, in every order that threads can bring about between our records and the
//! driver's calls.

use super::*;

const A: AllocationRecord = AllocationRecord::of_bytes(2 << 20, 0, 0);
const MIB: u64 = 1 << 20;

fn release(handle: u64) -> EndedCharges {
    begin_release(handle).map(ReleaseInProgress::finish).unwrap_or_default()
}

fn map(handle: u64, address: u64, bytes: u64) {
    note_mapped(pin_handle(handle).unwrap(), address, bytes);
}

fn unmap(address: u64, bytes: u64) -> EndedCharges {
    begin_unmap(address, bytes).finish()
}

const NOTHING: EndedCharges = EndedCharges::new();

#[test]
fn a_physical_allocation_ends_with_its_last_mapping_after_its_handle() {
    note_created(0x101, Some(A));
    map(0x101, 0x1000_0000, MIB);
    map(0x101, 0x1010_0000, MIB);
    assert_eq!(release(0x101), NOTHING, "still mapped");
    assert_eq!(unmap(0x1000_0000, MIB), NOTHING, "half of it is mapped");
    assert_eq!(unmap(0x1010_0000, MIB), [A]);
}

#[test]
fn a_physical_allocation_ends_with_its_last_handle_after_its_mappings() {
    note_created(0x102, Some(A));
    map(0x102, 0x2000_0000, 2 * MIB);
    assert_eq!(note_retained(pin_at(0x201f_ffff).unwrap(), 0x102), NOTHING);
    assert!(pin_at(0x2020_0000).is_none(), "one byte too far");
    assert_eq!(unmap(0x2000_0000, 2 * MIB), NOTHING);
    assert_eq!(release(0x102), NOTHING);
    assert_eq!(release(0x102), [A]);
    assert_eq!(release(0x102), NOTHING, "it ends once");
}

#[test]
fn one_unmap_ends_every_mapping_in_its_range() {
    for (handle, at) in [(0x103, 0x3000_0000), (0x104, 0x3020_0000), (0x105, 0x3040_0000)] {
        note_created(handle, Some(A));
        map(handle, at, 2 * MIB);
        assert_eq!(release(handle), NOTHING);
    }
    assert_eq!(unmap(0x3000_0000, 4 * MIB), [A, A]);
    assert_eq!(unmap(0x3040_0000, 2 * MIB), [A]);
}

#[test]
fn a_handle_that_comes_again_is_another_allocation() {
    note_created(0x106, Some(A));
    map(0x106, 0x4000_0000, 2 * MIB);
    assert_eq!(release(0x106), NOTHING, "still mapped");
    let second = AllocationRecord::of_bytes(4 << 20, 0, 0);
    note_created(0x106, Some(second));
    assert_eq!(unmap(0x4000_0000, 2 * MIB), [A], "the first");
    // The driver reuses the handle in another thread before the second release has returned here.
    let on_its_way = begin_release(0x106).unwrap();
    note_created(0x106, Some(A));
    assert_eq!(on_its_way.finish(), [second]);
    assert_eq!(release(0x106), [A]);
}

#[test]
fn a_release_that_failed_changes_nothing() {
    note_created(0x107, Some(A));
    begin_release(0x107).unwrap().undo();
    assert_eq!(release(0x107), [A]);
    assert!(begin_release(0x107).is_none());
}

#[test]
fn a_map_that_meets_a_release_keeps_the_allocation() {
    // The driver has mapped it and released the handle before either thread has returned here.
    note_created(0x108, Some(A));
    let mapping = pin_handle(0x108).unwrap();
    assert_eq!(release(0x108), NOTHING);
    note_mapped(mapping, 0x5000_0000, 2 * MIB);
    assert_eq!(unmap(0x5000_0000, 2 * MIB), [A]);
    // The map begins while the handle is being released.
    note_created(0x108, Some(A));
    let leaving = begin_release(0x108).unwrap();
    let mapping = pin_handle(0x108).unwrap();
    assert_eq!(leaving.finish(), NOTHING);
    note_mapped(mapping, 0x5000_0000, 2 * MIB);
    assert_eq!(unmap(0x5000_0000, 2 * MIB), [A]);
    // The driver released it first: the map fails, and the allocation ends here.
    note_created(0x108, Some(A));
    let mapping = pin_handle(0x108).unwrap();
    assert_eq!(release(0x108), NOTHING);
    assert_eq!(unpin_unused(mapping), [A]);
}

#[test]
fn addresses_that_are_mapped_again_at_once_are_told_apart() {
    let other = AllocationRecord::of_bytes(4 << 20, 0, 0);
    note_created(0x109, Some(A));
    note_created(0x10a, Some(other));
    map(0x109, 0x6000_0000, 2 * MIB);
    assert_eq!(release(0x109), NOTHING);
    let leaving = begin_unmap(0x6000_0000, 2 * MIB);
    // Another thread maps the range before the unmap has returned here.
    map(0x10a, 0x6000_0000, 2 * MIB);
    assert_eq!(leaving.finish(), [A]);
    assert_eq!(release(0x10a), NOTHING, "it is mapped");
    assert_eq!(unmap(0x6000_0000, 2 * MIB), [other]);
}

#[test]
fn an_unmap_that_failed_changes_nothing() {
    note_created(0x10b, Some(A));
    map(0x10b, 0x7000_0000, 2 * MIB);
    begin_unmap(0x7000_0000, 2 * MIB).undo();
    assert_eq!(release(0x10b), NOTHING);
    assert_eq!(unmap(0x7000_0000, 2 * MIB), [A]);
}

#[test]
fn a_retain_that_meets_an_unmap_keeps_the_allocation() {
    note_created(0x10c, Some(A));
    map(0x10c, 0x8000_0000, 2 * MIB);
    assert_eq!(release(0x10c), NOTHING);
    let leaving = begin_unmap(0x8000_0000, 2 * MIB);
    let retaining = pin_at(0x8010_0000).unwrap();
    assert_eq!(leaving.finish(), NOTHING);
    assert_eq!(note_retained(retaining, 0x10d), NOTHING);
    assert_eq!(release(0x10d), [A]);
}

#[test]
fn an_import_of_the_same_handle_is_the_same_allocation() {
    assert_eq!(note_imported(0x10e, Some(A), false), None);
    assert_eq!(note_imported(0x10e, Some(A), false), Some(A), "the second charge goes back");
    assert_eq!(release(0x10e), NOTHING);
    assert_eq!(release(0x10e), [A]);
}

#[test]
fn a_strangers_memory_is_charged_by_its_largest_mapping() {
    assert_eq!(note_imported(0x10f, Some(AllocationRecord::of_bytes(0, 0, 0)), true), None);
    let (first, second) = (pin_handle(0x10f).unwrap(), pin_handle(0x10f).unwrap());
    assert_eq!(
        (uncharged_part(&first, 2 * MIB), uncharged_part(&second, 2 * MIB)),
        (Some((0, 2 * MIB)), Some((0, 2 * MIB)))
    );
    assert_eq!(note_charged(&first, 2 * MIB, 2 * MIB), 0);
    assert_eq!(note_charged(&second, 2 * MIB, 2 * MIB), 2 * MIB, "another thread has paid");
    note_mapped(first, 0x9000_0000, 2 * MIB);
    assert_eq!(uncharged_part(&second, 2 * MIB), None);
    assert_eq!(unpin_unused(second), NOTHING);
    assert_eq!(release(0x10f), NOTHING);
    assert_eq!(unmap(0x9000_0000, 2 * MIB), [A]);
}

#[test]
fn what_is_bound_to_a_multicast_object_lives_as_long_as_the_binding() {
    note_created(0x110, None);
    for handle in [0x111, 0x112] {
        note_created(handle, Some(A));
    }
    assert_eq!(note_bound(pin_handle(0x110).unwrap(), pin_handle(0x111).unwrap(), Some(0), 0, 2 * MIB), NOTHING);
    assert_eq!(note_bound(pin_handle(0x110).unwrap(), pin_handle(0x112).unwrap(), Some(1), 0, 2 * MIB), NOTHING);
    assert_eq!((release(0x111), release(0x112)), (NOTHING, NOTHING));
    let object = pin_handle(0x110).unwrap();
    assert_eq!(note_unbound(&object, Some(0), 0, 2 * MIB), [A]);
    assert_eq!(note_unbound(&object, Some(0), 0, 2 * MIB), NOTHING);
    assert_eq!(unpin_unused(object), NOTHING);
    assert_eq!(release(0x110), [A], "the other ends with the object");
}

#[test]
fn tiles_of_an_array_keep_what_they_show() {
    note_created(0x113, Some(A));
    for part in [[0; 5], [1; 5]] {
        assert_eq!(tile_mapped(pin_handle(0x113).unwrap(), 0xa000, part), NOTHING);
    }
    assert_eq!(release(0x113), NOTHING);
    assert_eq!(tile_unmapped(0xa000, [0; 5]), NOTHING);
    assert_eq!(tile_unmapped(0xa000, [0; 5]), NOTHING);
    assert_eq!(array_ending(0xb000).finish(), NOTHING);
    array_ending(0xa000).undo();
    assert_eq!(array_ending(0xa000).finish(), [A]);
}
