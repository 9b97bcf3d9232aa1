//! Random inputs without a fuzzer: seeds that are cut and recombined, each from a number that a failure prints.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use crate::Target;

/// Numbers at which code often changes its behaviour.
const EDGES: &[u64] = &[0, 1, 63, 64, 1023, 1024, 0x7fff_ffff, 0xffff_ffff, 1 << 32, 1 << 63, u64::MAX - 1, u64::MAX];

/// An input of `target`; the same number always gives the same input.
#[must_use]
pub fn input(target: &Target, number: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number);
    let mut bytes = match target.seeds {
        [] => Vec::new(),
        seeds => seeds[random.usize(..seeds.len())].to_vec(),
    };
    if random.usize(..8) == 0 || target.words.is_empty() && random.usize(..2) == 0 {
        bytes = (0..random.usize(..target.longest.clamp(1, 600))).map(|_| random.u8(..)).collect();
    }
    for _ in 0..=random.usize(..8) {
        let at = random.usize(..=bytes.len());
        let end = at + random.usize(..(bytes.len() - at).min(40) + 1);
        match random.usize(..8) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let torn = bytes[at..end].to_vec();
                let to = random.usize(..=bytes.len());
                bytes.splice(to..to, torn);
            }
            2 if !target.words.is_empty() => {
                let word = target.words[random.usize(..target.words.len())].bytes();
                bytes.splice(at..end, word);
            }
            3 => {
                let other = random.choice(target.seeds).copied().unwrap_or_default();
                bytes.splice(at.., other[random.usize(..=other.len())..].iter().copied());
            }
            4 => drop(bytes.splice(at..end, EDGES[random.usize(..EDGES.len())].to_le_bytes())),
            5 => drop(bytes.splice(at..end, EDGES[random.usize(..EDGES.len())].to_string().into_bytes())),
            6 if at < bytes.len() => bytes[at] ^= 1 << random.usize(..8),
            _ => bytes.insert(at, random.u8(..)),
        }
    }
    bytes.truncate(target.longest);
    bytes
}

/// Runs the target on its seeds, and then on random inputs until the time is over; returns the number of inputs.
/// `VGPU_SEED` sets the first number, to reproduce a failure.
///
/// # Panics
/// If the target panics, after printing the number and the input.
#[must_use]
pub fn soak(target: &Target, time: Duration) -> u64 {
    let given = std::env::var("VGPU_SEED").ok().and_then(|text| text.parse().ok());
    let drawn = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |now| now.as_nanos());
    let first: u64 = given.unwrap_or_else(|| u64::try_from(drawn % (1 << 53)).unwrap_or(1));
    target.seeds.iter().for_each(|seed| (target.run)(seed));
    let (begin, mut number) = (Instant::now(), first);
    while number == first || begin.elapsed() < time {
        let bytes = input(target, number);
        if let Err(why) = catch_unwind(AssertUnwindSafe(|| (target.run)(&bytes))) {
            let (name, text) = (target.name, String::from_utf8_lossy(&bytes));
            eprintln!("{name}: VGPU_SEED={number} shows it again; the input was {bytes:?}, {text:?}");
            resume_unwind(why);
        }
        number += 1;
    }
    number - first
}
