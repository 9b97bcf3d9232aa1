//! Programs of tenants: scripts of launches, waits and host work.

use crate::profile::Noise;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// A program that repeats itself for ever.
#[derive(Clone, Debug)]
pub enum Work {
    /// Launches and waits for the kernel, with `gap` of host work in between.
    Sync { kernel: u64, gap: u64 },
    /// Launches as fast as the driver accepts.
    Queue { kernel: u64 },
    /// As `Queue`, with lengths drawn from a list. Each length is a function of its own, or all are one function.
    Mixed { kernels: &'static [u64], one_function: bool },
    /// As `Queue`, with lengths in turn, all of one function.
    InTurn { kernels: &'static [u64] },
    /// Kernels of lengths drawn from a list, all of one function, with a wait after each.
    Varied { kernels: &'static [u64] },
    /// One launch of `nodes` kernels at a time, queued.
    Graph { nodes: u64, kernel: u64 },
    /// Round robin over streams, waiting for all after `each` launches.
    Streams { streams: usize, kernel: u64, each: u32 },
    /// As `Queue`, round robin over streams; each launch is of a function that was never launched before.
    New { streams: usize, kernel: u64 },
    /// Launches `count` kernels, waits, then does `host` of host work.
    Burst { count: u32, kernel: u64, host: u64 },
    /// Launches `kernels` kernels and then computes for `host` without any call.
    Absent { kernel: u64, kernels: u32, host: u64 },
    /// Every `period` a request: one kernel that the program waits for.
    Requests { kernel: u64, period: u64 },
    /// On stream 0 a kernel that runs until one on stream 1 has run, then a wait; `times` times.
    Dependent { times: u32 },
    /// A rank of a collective. Each round: its own work, a kernel that runs until the other rank's signal, its own
    /// signal, then a wait. `rounds` rounds. In order: the signal comes before the kernel that waits, in the same
    /// stream, as in a collective operation of one kernel. Otherwise it comes after that kernel, on stream 1.
    Rank { kernel: u64, rounds: u32, in_order: bool },
    /// A kernel and a shorter one after it, then a wait. From round `after` on the second kernel takes `longer`.
    Grows { kernel: u64, tail: u64, after: u32, longer: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Launch {
        stream: usize,
        ns: u64,
        key: u64,
        spin: bool,
        release: bool,
        signal: bool,
    },
    /// Waits until all its work is done.
    Wait,
    /// Work on the host, in ns.
    Host(u64),
    /// Waits for the next request.
    Until(u64),
    /// A request is answered.
    Answered,
    Stop,
}

#[derive(Clone, Debug)]
pub struct Program {
    pub work: Work,
    at: u32,
    rounds: u32,
    due: u64,
    noise: Noise,
}

fn plain(stream: usize, ns: u64, key: u64) -> Step {
    Step::Launch { stream, ns, key, spin: false, release: false, signal: false }
}

impl Program {
    pub fn new(work: Work, seed: u64) -> Self {
        let mut noise = Noise::new(seed);
        let due = match &work {
            Work::Requests { period, .. } => noise.below(*period),
            _ => 0,
        };
        Self { work, at: 0, rounds: 0, due, noise }
    }

    /// Time at which the present request was due.
    pub fn due(&self) -> u64 {
        self.due
    }

    pub fn next(&mut self) -> Step {
        let at = self.at;
        self.at += 1;
        match self.work {
            Work::Queue { kernel } => plain(0, self.noise.about(kernel), 1),
            Work::Mixed { kernels, one_function } => {
                let which = self.noise.below(kernels.len() as u64);
                let kernel = kernels[usize::try_from(which).unwrap()];
                plain(0, self.noise.about(kernel), if one_function { 1 } else { which + 1 })
            }
            Work::InTurn { kernels } => plain(0, self.noise.about(kernels[at as usize % kernels.len()]), 1),
            Work::Graph { nodes, kernel } => plain(0, (0..nodes).map(|_| self.noise.about(kernel)).sum(), 77),
            Work::Varied { kernels } => {
                let which = self.noise.below(kernels.len() as u64);
                let kernel = kernels[usize::try_from(which).unwrap()];
                if at.is_multiple_of(2) { plain(0, self.noise.about(kernel), 1) } else { Step::Wait }
            }
            Work::Sync { kernel, gap } => match at % 3 {
                0 => plain(0, self.noise.about(kernel), 1),
                1 => Step::Wait,
                _ => Step::Host(self.noise.about(gap)),
            },
            Work::Streams { streams, kernel, each } => {
                if at % (each + 1) == each {
                    return Step::Wait;
                }
                plain(at as usize % streams, self.noise.about(kernel), 1)
            }
            Work::New { streams, kernel } => {
                plain(at as usize % streams, self.noise.about(kernel), 100 + u64::from(at))
            }
            Work::Burst { count, kernel, host } => match at % (count + 2) {
                n if n < count => plain(0, self.noise.about(kernel), 1),
                n if n == count => Step::Wait,
                _ => Step::Host(self.noise.about(host)),
            },
            Work::Absent { kernel, kernels, host } => match at % (kernels + 1) {
                n if n < kernels => plain(0, self.noise.about(kernel), 1),
                _ => Step::Host(host),
            },
            Work::Requests { kernel, period } => match at % 4 {
                0 => {
                    self.due += if at == 0 { 0 } else { self.noise.about(period) };
                    Step::Until(self.due)
                }
                1 => plain(0, self.noise.about(kernel), 1),
                2 => Step::Wait,
                _ => Step::Answered,
            },
            Work::Dependent { times } => match at % 3 {
                0 if self.rounds == times => Step::Stop,
                0 => {
                    self.rounds += 1;
                    Step::Launch { stream: 0, ns: MS, key: 1, spin: true, release: false, signal: false }
                }
                1 => Step::Launch { stream: 1, ns: MS, key: 2, spin: false, release: true, signal: false },
                _ => Step::Wait,
            },
            Work::Rank { kernel, rounds, in_order } => match at % 4 {
                0 if self.rounds == rounds => Step::Stop,
                0 => plain(0, self.noise.about(kernel), 1),
                n @ (1 | 2) if (n == 1) == in_order => {
                    let stream = usize::from(!in_order);
                    Step::Launch { stream, ns: 20 * US, key: 3, spin: false, release: false, signal: true }
                }
                1 | 2 => Step::Launch { stream: 0, ns: 5 * US, key: 2, spin: true, release: false, signal: false },
                _ => {
                    self.rounds += 1;
                    Step::Wait
                }
            },
            Work::Grows { kernel, tail, after, longer } => match at % 3 {
                0 => plain(0, self.noise.about(kernel), 1),
                1 => plain(0, self.noise.about(if self.rounds < after { tail } else { longer }), 2),
                _ => {
                    self.rounds += 1;
                    Step::Wait
                }
            },
        }
    }

    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Length of the longest kernel.
    pub fn longest(&self) -> u64 {
        match self.work {
            Work::Sync { kernel, .. }
            | Work::Queue { kernel }
            | Work::Streams { kernel, .. }
            | Work::New { kernel, .. }
            | Work::Burst { kernel, .. }
            | Work::Rank { kernel, .. }
            | Work::Absent { kernel, .. }
            | Work::Requests { kernel, .. } => kernel,
            Work::Mixed { kernels, .. } | Work::Varied { kernels } | Work::InTurn { kernels } => {
                kernels.iter().copied().max().unwrap_or(0)
            }
            Work::Graph { nodes, kernel } => nodes * kernel,
            Work::Dependent { .. } => MS,
            Work::Grows { kernel, longer, .. } => kernel.max(longer),
        }
    }
}
