//! Runs every target on random inputs, for `VGPU_SOAK_SECONDS` in total (default 2 s).

use std::time::Duration;
use vgpu_fuzz::{TARGETS, Target, random};

#[test]
fn soak_what_tenants_and_administrators_send_is_answered_whatever_it_is() {
    let seconds = std::env::var("VGPU_SOAK_SECONDS").ok().map_or(2, |text| text.parse().expect("VGPU_SOAK_SECONDS"));
    let each = Duration::from_secs(seconds) / u32::try_from(TARGETS.len()).unwrap();
    for target in TARGETS {
        let inputs = random::soak(target, each);
        eprintln!("{}: {inputs} inputs", target.name);
        assert!(inputs > 0);
    }
}

#[test]
fn a_broken_promise_is_seen_and_the_same_number_shows_it_again() {
    fn broken(bytes: &[u8]) {
        assert!(!bytes.windows(2).any(|pair| pair == b"\0x"), "broken on purpose");
    }
    let target = Target { name: "broken", run: broken, seeds: &[b"x\0y", b"a"], words: &["\0", "x"], longest: 64 };
    let found = (0..).find(|number| std::panic::catch_unwind(|| broken(&random::input(&target, *number))).is_err());
    let found = found.unwrap();
    assert!(found < 100_000 && std::panic::catch_unwind(|| broken(&random::input(&target, found))).is_err());
}
