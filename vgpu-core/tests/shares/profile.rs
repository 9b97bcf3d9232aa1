//! Costs of the machine as parameters, and its noise. Durations are nanoseconds.

/// A device and its host.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    pub name: &'static str,
    /// Kernel lengths in a script are those of 108 SMs; fewer take longer.
    pub sms: u64,
    /// Time slice between contexts.
    pub slice: u64,
    /// Time of a switch between contexts, charged to no one.
    pub switch: u64,
    /// Host time of a launch.
    pub launch: u64,
    /// Host time of an event record or query.
    pub record: u64,
    /// Time from a member's wake-up call to the daemon.
    pub ring: u64,
    /// Time from an opened gate to the waiting thread.
    pub wake: u64,
}

const BASE: Profile = Profile {
    name: "",
    sms: 108,
    slice: 2_000_000,
    switch: 15_000,
    launch: 2_500,
    record: 1_000,
    ring: 10_000,
    wake: 4_000,
};

pub const T4: Profile = Profile { name: "T4", sms: 40, switch: 30_000, launch: 3_500, ..BASE };
pub const A100: Profile = Profile { name: "A100", ..BASE };
pub const H200: Profile = Profile { name: "H200", sms: 132, ..BASE };
pub const BIG: Profile = Profile { name: "188 SMs", sms: 188, slice: 1_500_000, switch: 10_000, ..BASE };
pub const ALL: [Profile; 4] = [T4, A100, H200, BIG];

impl Profile {
    /// Length of a script's kernel on this device.
    pub fn kernel(&self, ns: u64) -> u64 {
        (ns * 108 / self.sms).max(1_000)
    }
}

/// xorshift generator with a seed: the same run every time.
#[derive(Clone, Debug)]
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// Duration of one call of the driver: up to 15 % more or less than usual.
    pub fn call(&mut self, ns: u64) -> u64 {
        ns * (850 + self.below(301)) / 1000
    }

    /// A duration that is up to a fifth shorter.
    pub fn about(&mut self, ns: u64) -> u64 {
        ns - self.below(ns / 5 + 1)
    }

    /// Delay of a waking thread: some microseconds, one time in a thousand up to a millisecond.
    pub fn late(&mut self, base: u64) -> u64 {
        if self.below(1000) == 0 { self.below(1_000_000) } else { base + self.below(4 * base) }
    }
}
