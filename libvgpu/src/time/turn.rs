//! This process's part in the turn for a device: its memory between two looks, and the follow-up work of a look.
//!
//! [`vgpu_core::time::turn`] decides who holds the turn and who is next; its words are in the tenant's ledger. A look
//! happens under the governor's lock, together with the count of work in flight, so that no launch slips in after the
//! turn was passed on. Its follow-up work (waking a member, checking whether a member lives, watching) happens
//! without the lock: [`TurnChores`]. Without a ceiling there is no governor, and no turn. Not here: the helper thread
//! ([`crate::process::helper_thread`]).

use crate::driver::own;
use crate::ffi::clock;
use crate::ledger::joined::JoinedLedger;
use crate::process::helper_thread;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use shim_sys::futex;
use vgpu_core::time::arbiter::Gate;
use vgpu_core::time::config::BASE;
use vgpu_core::time::turn::{LocalWork, Turn, TurnState, TurnWatch};

/// Device attribute: MPS shares the device's contexts, so several processes run at once.
const MPS_ENABLED: u32 = 133;

/// Whether members take turns on a device, decided at the first launch.
pub struct TurnRule(AtomicU8);

const TURN_UNKNOWN: u8 = 0;
const TURNS: u8 = 1;
const NO_TURNS: u8 = 2;

impl TurnRule {
    /// A rule that is not decided yet: the first launch asks the driver.
    pub const fn new() -> Self {
        Self(AtomicU8::new(TURN_UNKNOWN))
    }

    /// True if members take turns; `None`: no launch has been made yet.
    #[inline]
    pub fn known_rule(&self) -> Option<bool> {
        match self.0.load(Relaxed) {
            TURN_UNKNOWN => None,
            rule => Some(rule == TURNS),
        }
    }

    /// Decides whether members take turns on the current device. Turns are unnecessary only if the driver reports
    /// that MPS shares its contexts: then processes run at the same time, and a waiting one would leave the device
    /// idle. If the driver does not report it (before CUDA 12.2), turns are the safe choice. Called without a lock.
    #[cold]
    pub fn ask_driver(&self) -> bool {
        let (mut device, mut shared) = (0, 0);
        // SAFETY: pointers to locals.
        let known = unsafe {
            own::cuCtxGetDevice().is_some_and(|ask| ask(&raw mut device).ok())
                && own::cuDeviceGetAttribute().is_some_and(|ask| ask(&raw mut shared, MPS_ENABLED, device).ok())
        };
        let turns = !(known && shared == 1);
        self.0.store(if turns { TURNS } else { NO_TURNS }, Relaxed);
        turns
    }
}

/// A process's memory of the turn. Under the governor's lock.
#[derive(Default)]
pub struct TurnMemory {
    hand: TurnState,
    /// When this process must look at the turn again.
    look: u64,
    chores: TurnChores,
}

/// Follow-up work of a look at the turn (which members to wake, which may be dead), done without any lock.
#[derive(Clone, Copy, Default)]
pub struct TurnChores {
    wake: u32,
    suspect: Option<usize>,
}

impl TurnMemory {
    /// The gate of a launch that needs no look at the shared page, because the process keeps the turn; see
    /// [`Turn::keep_turn`]. `None`: it must look.
    #[inline]
    pub fn keep_turn(&mut self, turn: &Turn<'_>, now: u64) -> Option<Gate> {
        turn.keep_turn(&mut self.hand, now)
    }

    /// A check without the lock that the turn is kept; see [`Turn::watch_turn`].
    pub fn watch_kept(&self, turn: &Turn<'static>, now: u64) -> Option<TurnWatch<'static>> {
        turn.watch_turn(&self.hand, now)
    }

    /// Looks at the turn in the shared page: takes, renews or passes it on. Notes the follow-up work.
    pub fn step_turn(&mut self, turn: &Turn<'_>, here: &LocalWork) -> Gate {
        let held = turn.holds_turn(&self.hand);
        let step = turn.step_turn(&mut self.hand, here);
        self.look = step.look;
        self.chores.wake |= step.wake;
        self.chores.suspect = step.suspect.or(self.chores.suspect);
        if !held && here.wants && turn.holds_turn(&self.hand) {
            // Other threads of this process wait for the turn too.
            self.chores.wake |= turn.bell_bit();
        }
        step.gate
    }

    /// When a launch that must wait until `until` looks at the turn again, and whether it waits for other members.
    pub fn next_look(&self, gate: Gate, until: u64, in_flight: u64) -> (u64, bool) {
        match gate {
            Gate::Run { until: end, .. } => (until.min(end), false),
            _ => (until.min(self.look), in_flight == 0),
        }
    }

    /// True if there is work to do before this launch returns: another member waits, and no helper thread of this
    /// process watches.
    #[inline]
    pub fn is_to_be_tended(&self, gate: Gate) -> bool {
        let contended = matches!(gate, Gate::Run { until, .. } if until != u64::MAX);
        self.chores.wake != 0 || self.chores.suspect.is_some() || contended && !helper_thread::is_running()
    }

    /// Takes the follow-up work out, so that it is done once.
    pub fn take_chores(&mut self) -> TurnChores {
        core::mem::take(&mut self.chores)
    }

    /// Identifies the current possession of the turn; it changes when the turn was passed on or preempted.
    pub fn possession_number(&self) -> u64 {
        self.hand.possession_number()
    }

    /// True if the device runs only this process's work now, so that measurements are its own.
    pub fn is_clean(&self, turn: &Turn<'_>) -> bool {
        turn.turn_stamp(&self.hand) != 0
    }

    /// True if this process still has work of a turn that was preempted.
    pub fn owes_another(&self, turn: &Turn<'_>) -> bool {
        self.hand.has_unfinished_work() && !turn.holds_turn(&self.hand)
    }

    /// A look of the helper thread. Returns when to look again; at `next` the work in flight may be complete.
    pub fn watch_turn(&mut self, turn: &Turn<'_>, here: &LocalWork, next: u64) -> u64 {
        let mut look = here.now.saturating_add(BASE.heartbeat);
        let mut gate = Gate::Wait;
        // While the turn is not ours, a thread at the gate looks for itself.
        if !here.wants || turn.holds_turn(&self.hand) || self.hand.has_unfinished_work() {
            gate = self.step_turn(turn, here);
            look = look.min(self.look);
        }
        // A holder's thread at the gate sees its work complete by itself, until the lease is over.
        let attends = !here.wants || !matches!(gate, Gate::Run { .. });
        if here.in_flight > 0 && attends { look.min(next) } else { look }
    }
}

impl TurnChores {
    /// Does the follow-up work: wakes members and checks the one that may be dead. Returns whether members wait for the
    /// turn, so that the helper thread must watch.
    pub fn do_all(self, joined: &JoinedLedger, turn: &Turn<'_>) -> bool {
        if self.wake != 0 {
            futex::wake(turn.bell_word(), self.wake);
        }
        if let Some(suspect) = self.suspect
            && joined.reclaim_slot(suspect)
        {
            futex::wake(turn.bell_word(), u32::MAX);
        }
        turn.is_contended(clock::now())
    }
}

/// Waits at the bell, whose count was `heard`, until `moment`.
pub fn wait(turn: &Turn<'_>, heard: u32, moment: u64) {
    futex::wait(turn.bell_word(), heard, moment, turn.bell_bit());
}
