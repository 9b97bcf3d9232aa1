//! Inputs without a fuzzer: seeds, torn and put together again, each from a number that a failure prints.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use crate::Target;

/// xorshift: small, and the same everywhere.
pub struct Random(u64);

impl Random {
    /// Never the state that stays.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound.max(1)).unwrap_or(u64::MAX);
        usize::try_from((self.next() >> 11) % bound).unwrap_or(0)
    }
}

/// Numbers at which something changes.
const EDGES: &[u64] = &[0, 1, 63, 64, 1023, 1024, 0x7fff_ffff, 0xffff_ffff, 1 << 32, 1 << 63, u64::MAX - 1, u64::MAX];

/// An input of `target`, the same for the same number.
#[must_use]
pub fn input(target: &Target, number: u64) -> Vec<u8> {
    let mut random = Random::new(number);
    let mut bytes = match target.seeds {
        [] => Vec::new(),
        seeds => seeds[random.below(seeds.len())].to_vec(),
    };
    if random.below(8) == 0 || target.words.is_empty() && random.below(2) == 0 {
        bytes = (0..random.below(target.longest.min(600))).map(|_| random.next().to_le_bytes()[0]).collect();
    }
    for _ in 0..=random.below(8) {
        let at = random.below(bytes.len() + 1);
        let end = at + random.below((bytes.len() - at).min(40) + 1);
        match random.below(8) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let torn = bytes[at..end].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, torn);
            }
            2 if !target.words.is_empty() => {
                let word = target.words[random.below(target.words.len())].bytes();
                bytes.splice(at..end, word);
            }
            3 => {
                let other = target.seeds.get(random.below(target.seeds.len())).copied().unwrap_or_default();
                bytes.splice(at.., other[random.below(other.len() + 1)..].iter().copied());
            }
            4 => drop(bytes.splice(at..end, EDGES[random.below(EDGES.len())].to_le_bytes())),
            5 => drop(bytes.splice(at..end, EDGES[random.below(EDGES.len())].to_string().into_bytes())),
            6 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            _ => bytes.insert(at, random.next().to_le_bytes()[0]),
        }
    }
    bytes.truncate(target.longest);
    bytes
}

/// Runs the target on its seeds and then on random inputs until the time is over; says how many there were. `VGPU_SEED`
/// gives the first number, so that a failure can be seen again.
///
/// # Panics
/// As the target does, after the number and the input were printed.
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
