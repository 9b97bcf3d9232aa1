//! Green contexts retain their device's primary context. The first green context that creates it is charged its size.
//! Memory allocated in a green context belongs to the primary one and survives the green context. Launches in them:
//! `launches.rs`.

use vgpu_tests::lab::charged;
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{Lab, Member};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

fn start(limit: &str) -> (Lab, Member) {
    let lab = Lab::new("h200").with("VGPU_SIM_DRIVER", "580").with("VGPU_MEMORY_LIMIT", limit);
    let member = Member::start(&mut lab.command(compile("green", Kind::Program, &[])));
    (lab, member)
}

/// Checks that the charges shown to the tenant equal the device's record, and returns them.
#[track_caller]
fn agrees(lab: &Lab, member: &mut Member) -> u64 {
    let (free, total) = member.info();
    assert_eq!(total - free, charged(&lab.device(0)));
    total - free
}

#[test]
fn what_a_green_context_makes_and_holds_is_charged() {
    let (lab, mut member) = start("4GiB");
    let made = member.ok("make 32");
    assert_eq!(made.numbers()[1..], [32, 100], "the part, and the rest of 132");
    let green = made.number(0);
    member.ok(&format!("enter {green}"));
    let context = agrees(&lab, &mut member);
    assert!(context > 0, "the primary context was made for it");
    // A second green context and the program's own retain create nothing.
    let second = member.ok("make 8").number(0);
    member.ok("retain");
    assert_eq!(agrees(&lab, &mut member), context);

    member.ok(&format!("enter {green}"));
    let address = member.ok(&format!("alloc {}", 100 * MIB)).number(0);
    assert_eq!(agrees(&lab, &mut member), context + 100 * MIB);
    assert_eq!(member.code(&format!("alloc {}", 4 * GIB)), 2, "the limit holds in it");

    // The green context ends. Memory allocated in it stays until it is freed.
    member.ok("retain");
    member.ok(&format!("end {green}"));
    assert_eq!(agrees(&lab, &mut member), context + 100 * MIB);
    member.ok(&format!("free {address}"));
    assert_eq!(agrees(&lab, &mut member), context);

    // The last release destroys the primary context and all memory left in it.
    member.ok(&format!("alloc {}", 10 * MIB));
    member.ok("release");
    member.ok("release");
    assert_eq!(charged(&lab.device(0)), context + 10 * MIB, "the second green context holds it");
    member.ok(&format!("end {second}"));
    assert_eq!(charged(&lab.device(0)), 0);
    member.ok("retain");
    assert_eq!(agrees(&lab, &mut member), context);
}

#[test]
fn a_green_context_whose_primary_one_does_not_fit_is_refused() {
    let (lab, mut member) = start("64MiB");
    assert_eq!(member.ask("make 32").code, 2);
    assert_eq!(charged(&lab.device(0)), 0);
}
