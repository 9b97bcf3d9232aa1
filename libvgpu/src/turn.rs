//! This process's part in the turn at a device: what it remembers between two looks, and what a look leaves to be done.
//!
//! Whose turn it is, and who is next, is [`vgpu_core::turn`]; the words are in the tenant's ledger. A look is made under the
//! governor's lock, beside the count of what is in flight, so that no launch slips out behind a turn that is passed on.
//! What a look asks for (to wake somebody, to ask whether somebody lives, to watch) is done without the lock:
//! [`Chores`]. Without a ceiling there is no governor, and no turn. Not here: the thread that watches ([`crate::watcher`]).

use crate::driver::own;
use crate::ledger::Joined;
use crate::{clock, watcher};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use shim_sys::futex;
use vgpu_core::arbiter::Gate;
use vgpu_core::turn::{HEARTBEAT, Hand, Here, Turn, Watch};

/// Contexts on the device are shared by MPS: several processes run at once.
const MPS_ENABLED: u32 = 133;
/// Looks for work that takes longer than expected are so far apart, in parts of the time it is late ...
const LATE_PART: u64 = 16;
/// ... and for work that is far from its end, in parts of what is left ...
const EARLY_PART: u64 = 8;
/// ... but at most so far: a look costs some 10 us of processor time.
const PAUSE_MOST: u64 = 2_500_000;

/// Whether members take turns on a device, found out when the first launch comes.
pub struct Rule(AtomicU8);

const UNKNOWN: u8 = 0;
const TURNS: u8 = 1;
const NONE: u8 = 2;

impl Rule {
    /// Not known yet.
    pub const fn new() -> Self {
        Self(AtomicU8::new(UNKNOWN))
    }

    /// Whether members take turns; `None`: nobody has launched yet.
    #[inline]
    pub fn known(&self) -> Option<bool> {
        match self.0.load(Relaxed) {
            UNKNOWN => None,
            rule => Some(rule == TURNS),
        }
    }

    /// Whether members take turns on the device that is current. Only a driver that says that MPS shares its contexts
    /// makes them needless: its processes run at the same time, and one that waited would leave the device idle. Where it
    /// does not say (drivers before CUDA 12.2), turns are what is safe.
    #[cold]
    pub fn ask(&self) -> bool {
        let (mut device, mut shared) = (0, 0);
        // SAFETY: pointers to locals.
        let known = unsafe {
            own::cuCtxGetDevice().is_some_and(|ask| ask(&raw mut device).ok())
                && own::cuDeviceGetAttribute().is_some_and(|ask| ask(&raw mut shared, MPS_ENABLED, device).ok())
        };
        let turns = !(known && shared == 1);
        self.0.store(if turns { TURNS } else { NONE }, Relaxed);
        turns
    }
}

/// What a process remembers of the turn. Under the governor's lock.
#[derive(Default)]
pub struct Turning {
    hand: Hand,
    /// When to look again.
    look: u64,
    chores: Chores,
    /// Since when work takes longer than expected; 0: it does not.
    late: u64,
}

/// What a look leaves to be done, without any lock.
#[derive(Clone, Copy, Default)]
pub struct Chores {
    wake: u32,
    suspect: Option<usize>,
}

impl Turning {
    /// The gate of a launch, if it needs no look; see [`Turn::keeps`].
    #[inline]
    pub fn keeps(&mut self, turn: &Turn<'_>, now: u64) -> Option<Gate> {
        turn.keeps(&mut self.hand, now)
    }

    /// To see without the lock whether the turn is kept; see [`Turn::watch`].
    pub fn watch(&self, turn: &Turn<'static>, now: u64) -> Option<Watch<'static>> {
        turn.watch(&self.hand, now)
    }

    /// Looks, and notes what is to be done.
    pub fn step(&mut self, turn: &Turn<'_>, here: &Here) -> Gate {
        let held = turn.holds(&self.hand);
        let step = turn.step(&mut self.hand, here);
        self.look = step.look;
        self.chores.wake |= step.wake;
        self.chores.suspect = step.suspect.or(self.chores.suspect);
        if !held && here.wants && turn.holds(&self.hand) {
            // Other threads of ours wait for it too.
            self.chores.wake |= turn.bit();
        }
        step.gate
    }

    /// When to look again if a launch may not go until `until`, and whether it is others it waits for.
    pub fn until(&self, gate: Gate, until: u64, in_flight: u64) -> (u64, bool) {
        match gate {
            Gate::Run { until: end, .. } => (until.min(end), false),
            _ => (until.min(self.look), in_flight == 0),
        }
    }

    /// Whether something is to be done before this launch returns: somebody waits, and nobody of ours watches.
    #[inline]
    pub fn is_to_be_tended(&self, gate: Gate) -> bool {
        let contended = matches!(gate, Gate::Run { until, .. } if until != u64::MAX);
        self.chores.wake != 0 || self.chores.suspect.is_some() || contended && !watcher::runs()
    }

    /// Takes what is to be done.
    pub fn chores(&mut self) -> Chores {
        core::mem::take(&mut self.chores)
    }

    /// Which possession it is; it changes when the turn was passed on, or taken away.
    pub fn possession(&self) -> u64 {
        self.hand.possession()
    }

    /// Whether what is measured now is this process's own work.
    pub fn is_clean(&self, turn: &Turn<'_>) -> bool {
        turn.stamp(&self.hand) != 0
    }

    /// Whether this process has work of a turn that was taken from it.
    pub fn owes_another(&self, turn: &Turn<'_>) -> bool {
        self.hand.owes() && !turn.holds(&self.hand)
    }

    /// A look of whoever watches. `remaining` of the work in flight, by estimate, should be seen complete at `expected`.
    /// Says when to look again.
    pub fn attend(&mut self, turn: &Turn<'_>, here: &Here, remaining: u64, expected: u64) -> u64 {
        let mut look = here.now.saturating_add(HEARTBEAT);
        let mut gate = Gate::Wait;
        // A thread at the gate looks for itself while the turn is not ours.
        if !here.wants || turn.holds(&self.hand) || self.hand.owes() {
            gate = self.step(turn, here);
            look = look.min(self.look);
        }
        if here.in_flight == 0 || remaining > 0 {
            self.late = 0;
        } else if self.late == 0 {
            self.late = here.now;
        }
        // Whoever holds and stands at the gate sees its work complete by itself, until the lease is over.
        let attends = !here.wants || !matches!(gate, Gate::Run { .. });
        if here.in_flight > 0 && attends {
            let late = if self.late == 0 { 0 } else { here.now.saturating_sub(self.late) / LATE_PART };
            let pause = late.max(remaining / EARLY_PART).min(PAUSE_MOST);
            look = look.min(expected.max(here.now.saturating_add(pause)));
        }
        look
    }
}

impl Chores {
    /// Does it.
    pub fn do_all(self, joined: &Joined, turn: &Turn<'_>) {
        if self.wake != 0 {
            futex::wake(turn.bell(), self.wake);
        }
        if let Some(suspect) = self.suspect
            && joined.bury(suspect)
        {
            futex::wake(turn.bell(), u32::MAX);
        }
        if turn.contended(clock::now()) {
            watcher::start();
        }
    }
}

/// Waits at the bell, which rang `heard` times, until `moment`.
pub fn wait(turn: &Turn<'_>, heard: u32, moment: u64) {
    futex::wait(turn.bell(), heard, moment, turn.bit());
}
