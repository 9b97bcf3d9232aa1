//! The lifetime of physical allocations, in every order that threads can bring about between our records and the
//! driver's calls.

use super::*;

const A: Holding = Holding { bytes: 2 << 20, device: 0, context: 0 };
const MIB: u64 = 1 << 20;

fn release(handle: u64) -> Ended {
    releasing(handle).map(Releasing::done).unwrap_or_default()
}

fn map(handle: u64, address: u64, bytes: u64) {
    mapped(pin(handle).unwrap(), address, bytes);
}

fn unmap(address: u64, bytes: u64) -> Ended {
    unmapping(address, bytes).done()
}

const NOTHING: Ended = Ended::new();

#[test]
fn a_physical_allocation_ends_with_its_last_mapping_after_its_handle() {
    created(0x101, Some(A));
    map(0x101, 0x1000_0000, MIB);
    map(0x101, 0x1010_0000, MIB);
    assert_eq!(release(0x101), NOTHING, "still mapped");
    assert_eq!(unmap(0x1000_0000, MIB), NOTHING, "half of it is mapped");
    assert_eq!(unmap(0x1010_0000, MIB), [A]);
}

#[test]
fn a_physical_allocation_ends_with_its_last_handle_after_its_mappings() {
    created(0x102, Some(A));
    map(0x102, 0x2000_0000, 2 * MIB);
    assert_eq!(retained(pin_at(0x201f_ffff).unwrap(), 0x102), NOTHING);
    assert!(pin_at(0x2020_0000).is_none(), "one byte too far");
    assert_eq!(unmap(0x2000_0000, 2 * MIB), NOTHING);
    assert_eq!(release(0x102), NOTHING);
    assert_eq!(release(0x102), [A]);
    assert_eq!(release(0x102), NOTHING, "it ends once");
}

#[test]
fn one_unmap_ends_every_mapping_in_its_range() {
    for (handle, at) in [(0x103, 0x3000_0000), (0x104, 0x3020_0000), (0x105, 0x3040_0000)] {
        created(handle, Some(A));
        map(handle, at, 2 * MIB);
        assert_eq!(release(handle), NOTHING);
    }
    assert_eq!(unmap(0x3000_0000, 4 * MIB), [A, A]);
    assert_eq!(unmap(0x3040_0000, 2 * MIB), [A]);
}

#[test]
fn a_handle_that_comes_again_is_another_allocation() {
    created(0x106, Some(A));
    map(0x106, 0x4000_0000, 2 * MIB);
    assert_eq!(release(0x106), NOTHING, "still mapped");
    let second = Holding { bytes: 4 << 20, ..A };
    created(0x106, Some(second));
    assert_eq!(unmap(0x4000_0000, 2 * MIB), [A], "the first");
    // The driver reuses the handle in another thread before the second release has returned here.
    let on_its_way = releasing(0x106).unwrap();
    created(0x106, Some(A));
    assert_eq!(on_its_way.done(), [second]);
    assert_eq!(release(0x106), [A]);
}

#[test]
fn a_release_that_failed_changes_nothing() {
    created(0x107, Some(A));
    releasing(0x107).unwrap().failed();
    assert_eq!(release(0x107), [A]);
    assert!(releasing(0x107).is_none());
}

#[test]
fn a_map_that_meets_a_release_keeps_the_allocation() {
    // The driver has mapped it and released the handle before either thread has returned here.
    created(0x108, Some(A));
    let mapping = pin(0x108).unwrap();
    assert_eq!(release(0x108), NOTHING);
    mapped(mapping, 0x5000_0000, 2 * MIB);
    assert_eq!(unmap(0x5000_0000, 2 * MIB), [A]);
    // The map begins while the handle is being released.
    created(0x108, Some(A));
    let leaving = releasing(0x108).unwrap();
    let mapping = pin(0x108).unwrap();
    assert_eq!(leaving.done(), NOTHING);
    mapped(mapping, 0x5000_0000, 2 * MIB);
    assert_eq!(unmap(0x5000_0000, 2 * MIB), [A]);
    // The driver released it first: the map fails, and the allocation ends here.
    created(0x108, Some(A));
    let mapping = pin(0x108).unwrap();
    assert_eq!(release(0x108), NOTHING);
    assert_eq!(unpin(mapping), [A]);
}

#[test]
fn addresses_that_are_mapped_again_at_once_are_told_apart() {
    let other = Holding { bytes: 4 << 20, ..A };
    created(0x109, Some(A));
    created(0x10a, Some(other));
    map(0x109, 0x6000_0000, 2 * MIB);
    assert_eq!(release(0x109), NOTHING);
    let leaving = unmapping(0x6000_0000, 2 * MIB);
    // Another thread maps the range before the unmap has returned here.
    map(0x10a, 0x6000_0000, 2 * MIB);
    assert_eq!(leaving.done(), [A]);
    assert_eq!(release(0x10a), NOTHING, "it is mapped");
    assert_eq!(unmap(0x6000_0000, 2 * MIB), [other]);
}

#[test]
fn an_unmap_that_failed_changes_nothing() {
    created(0x10b, Some(A));
    map(0x10b, 0x7000_0000, 2 * MIB);
    unmapping(0x7000_0000, 2 * MIB).failed();
    assert_eq!(release(0x10b), NOTHING);
    assert_eq!(unmap(0x7000_0000, 2 * MIB), [A]);
}

#[test]
fn a_retain_that_meets_an_unmap_keeps_the_allocation() {
    created(0x10c, Some(A));
    map(0x10c, 0x8000_0000, 2 * MIB);
    assert_eq!(release(0x10c), NOTHING);
    let leaving = unmapping(0x8000_0000, 2 * MIB);
    let retaining = pin_at(0x8010_0000).unwrap();
    assert_eq!(leaving.done(), NOTHING);
    assert_eq!(retained(retaining, 0x10d), NOTHING);
    assert_eq!(release(0x10d), [A]);
}

#[test]
fn an_import_of_the_same_handle_is_the_same_allocation() {
    assert_eq!(imported(0x10e, Some(A), false), None);
    assert_eq!(imported(0x10e, Some(A), false), Some(A), "the second charge goes back");
    assert_eq!(release(0x10e), NOTHING);
    assert_eq!(release(0x10e), [A]);
}

#[test]
fn a_strangers_memory_is_charged_by_its_largest_mapping() {
    assert_eq!(imported(0x10f, Some(Holding { bytes: 0, ..A }), true), None);
    let (first, second) = (pin(0x10f).unwrap(), pin(0x10f).unwrap());
    assert_eq!((owed(&first, 2 * MIB), owed(&second, 2 * MIB)), (Some((0, 2 * MIB)), Some((0, 2 * MIB))));
    assert_eq!(paid(&first, 2 * MIB, 2 * MIB), 0);
    assert_eq!(paid(&second, 2 * MIB, 2 * MIB), 2 * MIB, "another thread has paid");
    mapped(first, 0x9000_0000, 2 * MIB);
    assert_eq!(owed(&second, 2 * MIB), None);
    assert_eq!(unpin(second), NOTHING);
    assert_eq!(release(0x10f), NOTHING);
    assert_eq!(unmap(0x9000_0000, 2 * MIB), [A]);
}

#[test]
fn what_is_bound_to_a_multicast_object_lives_as_long_as_the_binding() {
    created(0x110, None);
    for handle in [0x111, 0x112] {
        created(handle, Some(A));
    }
    assert_eq!(bound(pin(0x110).unwrap(), pin(0x111).unwrap(), Some(0), 0, 2 * MIB), NOTHING);
    assert_eq!(bound(pin(0x110).unwrap(), pin(0x112).unwrap(), Some(1), 0, 2 * MIB), NOTHING);
    assert_eq!((release(0x111), release(0x112)), (NOTHING, NOTHING));
    let object = pin(0x110).unwrap();
    assert_eq!(unbound(&object, Some(0), 0, 2 * MIB), [A]);
    assert_eq!(unbound(&object, Some(0), 0, 2 * MIB), NOTHING);
    assert_eq!(unpin(object), NOTHING);
    assert_eq!(release(0x110), [A], "the other ends with the object");
}

#[test]
fn tiles_of_an_array_keep_what_they_show() {
    created(0x113, Some(A));
    for part in [[0; 5], [1; 5]] {
        assert_eq!(tile_mapped(pin(0x113).unwrap(), 0xa000, part), NOTHING);
    }
    assert_eq!(release(0x113), NOTHING);
    assert_eq!(tile_unmapped(0xa000, [0; 5]), NOTHING);
    assert_eq!(tile_unmapped(0xa000, [0; 5]), NOTHING);
    assert_eq!(array_ending(0xb000).done(), NOTHING);
    array_ending(0xa000).failed();
    assert_eq!(array_ending(0xa000).done(), [A]);
}
