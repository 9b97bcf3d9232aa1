//! The share table: rows, tolerances, and the printed line of each row.

use crate::measure::{self, Error};
use crate::profile::{A100, Profile};
use crate::program::{Program, SECOND, US, Work};
use crate::world::World;
use vgpu_core::time::arbiter::Terms;
use vgpu_core::units::share::Share;

/// A tenant of a row: its terms, its program, and its due share in percent.
pub struct Party {
    pub terms: Terms,
    pub work: Work,
    pub due: f64,
}

pub struct Row {
    pub name: String,
    pub profile: Profile,
    pub daemon: bool,
    pub parties: Vec<Party>,
    /// The device must be busy: a tenant without a ceiling always has work queued.
    pub backlog: bool,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub whole: f64,
    pub mean: f64,
    pub p99: f64,
    pub busy: f64,
    /// Smallest share that a tenant got, in percent of its due share.
    pub least: f64,
    /// Largest difference between charged and true usage, in points.
    pub meter: f64,
}

impl Row {
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), profile: A100, daemon: true, parties: Vec::new(), backlog: true, seed: 1 }
    }

    pub fn party(mut self, terms: Terms, work: Work, due: f64) -> Self {
        self.parties.push(Party { terms, work, due });
        self
    }

    /// True if no tenant was promised a part of the wall clock.
    fn by_weights(&self) -> bool {
        let plain = |party: &Party| party.terms.effective_ceiling().is_none() && party.terms.floor.is_none();
        self.daemon && self.backlog && self.parties.iter().all(plain)
    }

    /// Length of the longest kernel.
    fn longest(&self) -> u64 {
        let of = |party: &Party| self.profile.kernel(Program::new(party.work.clone(), 1).longest());
        self.parties.iter().map(of).max().unwrap_or(0)
    }

    /// Length of the run: ten seconds, or long enough for fifty kernels of every tenant.
    fn span(&self) -> u64 {
        let of = |party: &Party| {
            let kernel = self.profile.kernel(Program::new(party.work.clone(), 1).longest());
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a percentage")]
            let permille = (party.due * 10.0) as u64;
            50 * kernel * 1000 / permille
        };
        let least = self.parties.iter().map(of).max().unwrap_or(0).max(50 * self.longest()).max(10 * SECOND);
        least.div_ceil(SECOND) * SECOND
    }

    pub fn run(&self) -> (World, Outcome) {
        let mut world = World::new(self.profile, 1, self.daemon, self.seed);
        for (at, party) in (0u32..).zip(&self.parties) {
            world.member(at, 0, party.terms, party.work.clone());
        }
        world.run(self.span());
        let busy = measure::busy(&world, 0, 0);
        let mut outcome = Outcome { least: 100.0, busy, ..Outcome::default() };
        for (at, party) in (0u32..).zip(&self.parties) {
            let Error { got, mean, p99 } = measure::error(&world, 0, at, party.due);
            // By weights the share is relative to the busy time. Idle time is judged separately and must not count
            // twice.
            let there_is = if self.by_weights() { busy / 100.0 } else { 1.0 };
            outcome.whole = outcome.whole.max((got / there_is - party.due).abs());
            outcome.mean = outcome.mean.max(mean);
            outcome.p99 = outcome.p99.max(p99);
            // A weight is a part of the busy time; a limit or a floor is a promise of the wall clock.
            if party.terms.effective_ceiling().is_some() || party.terms.floor.is_some() {
                outcome.least = outcome.least.min(got * 100.0 / party.due);
            }
            if let Some(arbiter) = &world.arbiter {
                let charged =
                    arbiter.charged_ns(vgpu_core::time::arbiter::TenantId(at), vgpu_core::time::arbiter::DeviceId(0));
                let said = charged as f64 * 100.0 / world.now as f64;
                outcome.meter = if (said - got).abs() > outcome.meter.abs() { said - got } else { outcome.meter };
            }
        }
        (world, outcome)
    }

    /// Runs the row, prints its line and asserts its tolerances.
    pub fn keep(&self) -> Outcome {
        let (_, outcome) = self.run();
        let Outcome { whole, mean, p99, busy, least, meter } = outcome;
        println!("| {} | {whole:.2} | {mean:.2} | {p99:.2} | {least:.1} | {busy:.1} | {meter:.2} |", self.name);
        let longest = self.longest();
        let kernel = if longest > 20_000 * US { longest as f64 * 100.0 / SECOND as f64 } else { 0.0 };
        assert!(whole <= 1.0, "{}: {whole:.2} points off over the whole run", self.name);
        assert!(p99 <= 3.0 + kernel, "{}: {p99:.2} points off in a second, p99", self.name);
        assert!(least >= 98.0, "{}: somebody had {least:.1} % of what was due", self.name);
        assert!(!self.backlog || busy >= 98.0, "{}: busy {busy:.1} %", self.name);
        outcome
    }
}

pub fn ceiling(percent: u32) -> Terms {
    Terms { ceiling: Share::from_percent(percent), ..Terms::default() }
}

pub fn weight(weight: u32) -> Terms {
    Terms { weight, ..Terms::default() }
}

pub fn floor(percent: u32) -> Terms {
    Terms { floor: Share::from_percent(percent), ..Terms::default() }
}

/// A floor and a ceiling of the same share.
pub fn strict(percent: u32) -> Terms {
    Terms { floor: Share::from_percent(percent), ..ceiling(percent) }
}

/// Percent of the device that the program uses alone and without a limit.
pub fn alone(profile: Profile, work: &Work) -> f64 {
    let mut world = World::new(profile, 1, false, 1);
    world.member(0, 0, Terms::default(), work.clone());
    let kernel = profile.kernel(Program::new(work.clone(), 1).longest());
    world.run((10 * SECOND).max(50 * kernel));
    measure::share(&world, 0, 0)
}

/// The worst of some outcomes.
pub fn worst(outcomes: &[Outcome]) -> Outcome {
    let max = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).fold(0.0, f64::max);
    let min = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).fold(100.0, f64::min);
    Outcome {
        whole: max(|o| o.whole),
        mean: max(|o| o.mean),
        p99: max(|o| o.p99),
        meter: max(|o| o.meter.abs()),
        busy: min(|o| o.busy),
        least: min(|o| o.least),
    }
}

pub fn name(ns: u64) -> String {
    if ns < 1_000 * US {
        format!("{} us", ns / US)
    } else if ns < SECOND {
        format!("{} ms", ns / 1_000_000)
    } else {
        format!("{} s", ns / SECOND)
    }
}

pub const KERNELS: [u64; 6] = [50 * US, 1_000 * US, 5_000 * US, 20_000 * US, 200_000 * US, SECOND];
