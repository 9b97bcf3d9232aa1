//! Injects failures by `VGPU_SIM_FAULTS`, to test error paths. The same run fails at the same calls.
//!
//! Example: `name:every=7:code=2,name:p=0.1:code=999:seed=5`. Keys:
//! - `every=N` fails the N-th, 2N-th, ... call.
//! - `p` fails each call with that probability, drawn from `seed` and the number of the call.
//! - `after=N` exempts the first N calls.
//! - `times=N` ends after N failures.
//! - `code` is the error code, default 2.
//!
//! Calls are counted per process.
//! Not here: which code belongs to which library; the caller returns it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The calls to fail, by function name.
#[derive(Debug, Default)]
pub struct FaultRules {
    rules: HashMap<String, FaultRule>,
}

#[derive(Debug)]
struct FaultRule {
    every: u64,
    p: f64,
    code: u32,
    seed: u64,
    after: u64,
    times: u64,
    calls: AtomicU64,
    failed: AtomicU64,
}

impl FaultRules {
    /// Reads `VGPU_SIM_FAULTS`.
    ///
    /// # Errors
    /// An unknown key, or a value that is not a number; as text.
    pub fn from_env() -> Result<FaultRules, String> {
        FaultRules::parse(&std::env::var("VGPU_SIM_FAULTS").unwrap_or_default())
    }

    /// Reads the rules from `text`.
    ///
    /// # Errors
    /// As [`FaultRules::from_env`].
    pub fn parse(text: &str) -> Result<FaultRules, String> {
        let mut rules = HashMap::new();
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let mut words = part.split(':');
            let name = words.next().unwrap_or_default().to_owned();
            let mut r = FaultRule {
                every: 0,
                p: 0.0,
                code: 2,
                seed: 1,
                after: 0,
                times: u64::MAX,
                calls: AtomicU64::new(0),
                failed: AtomicU64::new(0),
            };
            for word in words {
                let bad =
                    || format!("VGPU_SIM_FAULTS: {word:?} in {part:?}; accepted: every= p= code= seed= after= times=");
                let (key, value) = word.split_once('=').ok_or_else(bad)?;
                let number = || value.parse::<u64>().map_err(|_| bad());
                match key {
                    "every" => r.every = number()?,
                    "p" => r.p = value.parse().map_err(|_| bad())?,
                    "code" => r.code = value.parse().map_err(|_| bad())?,
                    "seed" => r.seed = number()?,
                    "after" => r.after = number()?,
                    "times" => r.times = number()?,
                    _ => return Err(bad()),
                }
            }
            if r.every == 0 && r.p == 0.0 {
                return Err(format!("VGPU_SIM_FAULTS: {part:?} says neither every= nor p="));
            }
            rules.insert(name, r);
        }
        Ok(FaultRules { rules })
    }

    /// True when no call fails.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The error code with which this call of `name` fails, if it fails.
    pub fn check(&self, name: &str) -> Option<u32> {
        if self.rules.is_empty() {
            return None;
        }
        let r = self.rules.get(name)?;
        let n = r.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if n <= r.after || r.failed.load(Ordering::Relaxed) >= r.times {
            return None;
        }
        // 53 bits are exact in a double.
        #[allow(clippy::cast_precision_loss)]
        let draw = (splitmix64(r.seed ^ splitmix64(n)) >> 11) as f64 / (1u64 << 53) as f64;
        let hit = (r.every > 0 && (n - r.after).is_multiple_of(r.every)) || draw < r.p;
        if hit {
            r.failed.fetch_add(1, Ordering::Relaxed);
        }
        hit.then_some(r.code)
    }
}

/// Mixes 64 bits (the finaliser of splitmix64).
pub fn splitmix64(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nth_call_fails_and_others_do_not() {
        let f = FaultRules::parse("cuMemAlloc_v2:every=3:code=2,cuInit:every=1:code=999:times=1").unwrap();
        let got: Vec<_> = (0..6).map(|_| f.check("cuMemAlloc_v2")).collect();
        assert_eq!(got, [None, None, Some(2), None, None, Some(2)]);
        assert_eq!([f.check("cuInit"), f.check("cuInit")], [Some(999), None]);
        assert_eq!(f.check("cuMemFree_v2"), None);
    }

    #[test]
    fn a_probability_is_kept_and_repeatable() {
        let count = |seed| {
            let f = FaultRules::parse(&format!("x:p=0.1:seed={seed}")).unwrap();
            (0..10_000).filter(|_| f.check("x").is_some()).count()
        };
        assert!((900..1100).contains(&count(1)));
        assert_eq!(count(7), count(7));
    }

    #[test]
    fn nonsense_is_refused_in_words() {
        for bad in ["x", "x:every=a", "x:often=1", "x:every"] {
            assert!(FaultRules::parse(bad).unwrap_err().contains("VGPU_SIM_FAULTS"), "{bad}");
        }
    }
}
