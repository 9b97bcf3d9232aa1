//! Ranks of a collective on two devices: their processes, rounds and answers.
#![allow(dead_code, reason = "each test program uses a part")]

use std::path::Path;
use std::time::{Duration, Instant};
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::timed::MS;
use vgpu_tests::{Lab, Member};

/// Liveness bound, which only a hang reaches. A single missing answer ends the test earlier.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Device time of a rank's own work before each collective.
pub const WORK: u64 = MS;

/// Two devices, both with a ceiling or both without.
pub fn lab(percent: Option<u32>) -> Lab {
    let lab = Lab::new("2xh200");
    percent.into_iter().fold(lab, |lab, percent| lab.with("VGPU_SM_LIMIT", percent.to_string()))
}

/// Starts a process with these ranks. Ranks find each other through the file `flags`.
pub fn process(lab: &Lab, ranks: &[u32], flags: &Path) -> Member {
    let mut m = Member::start(&mut lab.command(compile("ranks", Kind::Program, &[])));
    for rank in ranks {
        m.ok(&format!("begin {rank} {}", flags.display()));
    }
    m
}

/// Both ranks of a collective, one process each.
pub fn ranks(lab: &Lab, name: &str) -> [Member; 2] {
    let flags = lab.path().join(name);
    [process(lab, &[0], &flags), process(lab, &[1], &flags)]
}

pub fn tell(ranks: &mut [Member; 2], from: u32, count: u32) {
    tell_with(ranks, from, count, 0, false);
}

/// As `tell`, with `behind` further kernels queued after each collective operation. In order: both of an operation's
/// kernels are in one stream, the signal first.
pub fn tell_with(ranks: &mut [Member; 2], from: u32, count: u32, behind: u32, in_order: bool) {
    let in_order = u8::from(in_order);
    for (rank, m) in ranks.iter_mut().enumerate() {
        m.tell(&format!("rounds {rank} {from} {count} {WORK} {behind} {in_order}"));
    }
}

#[track_caller]
pub fn end(members: &mut [Member], begin: Instant) {
    for m in members {
        let answer = m.answer();
        assert_eq!(answer.code, 0, "{answer:?}; {}", m.errors());
    }
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
}
