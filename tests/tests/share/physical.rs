//! Physical allocations that more than handles and mappings refer to: multicast objects, tiles, racing threads.

use crate::*;

#[test]
fn what_is_bound_to_a_multicast_object_is_charged_until_it_is_unbound() {
    let lab = Lab::new("2xh200").with("VGPU_MEMORY_LIMIT", "8GiB").with("VGPU_TENANT", "one");
    let mut member = sharer(&lab);
    let nothing = agrees(&lab, &mut member);
    let object = number(&mut member, &format!("multicast 2 {PART}"));
    for device in 0..2 {
        member.ok(&format!("multicast-device {object} {device}"));
    }
    let handle = number(&mut member, &format!("create {PART} 0 0"));
    member.ok(&format!("bind {object} 0 {handle} {PART}"));
    member.ok(&format!("release {handle}"));
    assert_eq!(agrees(&lab, &mut member), nothing + PART);
    member.ok(&format!("unbind {object} 0 0 {PART}"));
    assert_eq!(agrees(&lab, &mut member), nothing);
    // Memory that is bound by its address is released with the multicast object.
    let handle = number(&mut member, &format!("create {PART} 0 0"));
    let at = mapped(&mut member, handle, PART);
    member.ok(&format!("release {handle}"));
    member.ok(&format!("bind-address {object} 0 {at} {PART}"));
    member.ok(&format!("unmap {at} {PART}"));
    assert_eq!(agrees(&lab, &mut member), nothing + PART);
    member.ok(&format!("release {object}"));
    assert_eq!(agrees(&lab, &mut member), nothing);
}

#[test]
fn tiles_of_a_sparse_array_keep_what_they_show() {
    let lab = lab("8GiB");
    let mut member = sharer(&lab);
    let nothing = agrees(&lab, &mut member);
    let array = number(&mut member, "sparse 1024 1024");
    let handle = number(&mut member, &format!("create {PART} 0 0"));
    member.ok(&format!("tile {array} {handle} 128 128"));
    member.ok(&format!("release {handle}"));
    assert_eq!(agrees(&lab, &mut member), nothing + PART);
    member.ok(&format!("untile {array} 0 128 128"));
    assert_eq!(agrees(&lab, &mut member), nothing);
    let handle = number(&mut member, &format!("create {PART} 0 0"));
    member.ok(&format!("tile {array} {handle} 128 128"));
    member.ok(&format!("release {handle}"));
    member.ok(&format!("array-destroy {array}"));
    assert_eq!(agrees(&lab, &mut member), nothing);
}

#[test]
fn threads_that_map_retain_and_release_one_allocation_end_it_once() {
    let lab = lab("8GiB");
    let mut member = sharer(&lab);
    let nothing = agrees(&lab, &mut member);
    let at = number(&mut member, &format!("reserve {}", 8 * PART));
    let handle = number(&mut member, &format!("create {PART} 0 0"));
    member.ok(&format!("fight {handle} {at} {PART} 500"));
    assert_eq!(agrees(&lab, &mut member), nothing + PART, "the handle is held");
    member.ok(&format!("release {handle}"));
    assert_eq!(agrees(&lab, &mut member), nothing);
    // Other threads reuse handles and addresses at once.
    member.ok(&format!("churn {at} {} 2000", 2 * MIB));
    assert_eq!(agrees(&lab, &mut member), nothing);
}

#[test]
fn a_count_of_tiles_that_the_driver_refuses_is_the_drivers_to_refuse() {
    let lab = lab("8GiB");
    let mut member = sharer(&lab);
    let array = number(&mut member, "sparse 1024 1024");
    let handle = number(&mut member, &format!("create {PART} 0 0"));
    let nothing = agrees(&lab, &mut member);
    assert_eq!(member.code(&format!("tiles {array} {handle} 128 128 3 4294967295")), 1, "the last of three is none");
    assert_eq!(agrees(&lab, &mut member), nothing);
    // Maps more tiles than the library recorded before it called the driver.
    member.ok(&format!("tiles {array} {handle} 128 128 70000 70000"));
    member.ok(&format!("release {handle}"));
    assert_eq!(agrees(&lab, &mut member), nothing, "the tile keeps it");
    member.ok(&format!("tiles {array} 0 128 128 70000 70000"));
    assert_eq!(agrees(&lab, &mut member), nothing - PART);
}
