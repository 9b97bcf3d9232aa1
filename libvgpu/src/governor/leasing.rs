//! The daemon's lease at the gate: what is done without the governor's lock. It rings, finds out what went through an open
//! gate, and looks for a daemon that is gone.

use super::Governor;
use crate::daemon::lease::Word;
use crate::daemon::renew;
use crate::ledger::Joined;
use crate::meter::reaping::within;
use crate::meter::{Launch, markers};
use crate::order::{self, quietly};
use crate::{clock, watcher};
use core::sync::atomic::AtomicU32;
use vgpu_core::account::{Admission, SharedAccount};
use vgpu_core::arbiter::Gate;

impl Governor {
    /// Rings, if somebody is to be told. Where to sleep until the daemon speaks; `None`: it does not speak here.
    pub(super) fn tell(&self) -> Option<(&'static AtomicU32, u32)> {
        self.post.place()?;
        let (ring, word) = {
            let mut meter = self.meter();
            (meter.lease.takes_ring(), meter.lease.futex())
        };
        if ring {
            self.post.ring();
        }
        word
    }

    /// As [`Self::tell`], for a thread that is about to wait: somebody must see completion meanwhile, and a daemon that is
    /// gone must be looked for.
    pub(super) fn outward(&self, joined: &Joined) -> Option<(&'static AtomicU32, u32)> {
        if !self.post.is_governed() {
            return None;
        }
        watcher::start();
        if !watcher::runs() {
            renew::tend();
        }
        self.unblind();
        self.reap_now(joined);
        self.tell()
    }

    /// Asks the streams that were launched into through an open gate whether they are idle.
    pub(super) fn unblind(&self) {
        let Some(streams) = self.meter().lease.unseen() else { return };
        let here = order::current();
        let is_idle = |launch: &Launch| {
            within(launch.context.0 as usize, here, || quietly(|| markers::is_idle(launch))).unwrap_or(true)
        };
        if streams.iter().all(is_idle) {
            let mut meter = self.meter();
            meter.lease.sees();
            meter.report(&self.post, clock::now());
        }
    }

    /// The word of the slot that is slept for, and the state of it that was read.
    pub fn daemon_word(&self) -> Option<(&'static AtomicU32, u32)> {
        self.post.place()?;
        self.meter().lease.futex()
    }

    /// A look of the thread that watches: says when to look again. `None`: nobody waits, and nothing is in flight.
    pub(super) fn attend_lease(&self, joined: &Joined) -> Option<u64> {
        let now = clock::now();
        if self.post.alone().is_some() {
            // Whoever waits at the gate looks at the beat; here a daemon that is back is taken.
            let _ = self.meter().word(&self.post, now);
            return None;
        }
        if self.meter().in_flight() > 0 {
            self.reap_now(joined);
        }
        self.unblind();
        let look = self.meter().attend_lease(&self.post, clock::now());
        self.tell();
        look
    }

    /// Until when a launch that cannot be measured must wait; `None`: it may go.
    pub(super) fn kept_until(&self, account: SharedAccount<'_>) -> Option<u64> {
        let now = clock::now();
        if self.share().is_some()
            && let Admission::WaitUntil(until) = account.admit(now)
        {
            return Some(until);
        }
        let mut meter = self.meter();
        let gate = match meter.word(&self.post, now) {
            Word::Open => return None,
            Word::Own => self.gate(),
            Word::Said(gate) => gate,
        };
        match gate {
            Gate::Open => None,
            Gate::Run { until, .. } if now < until => match meter.lease.admission(&self.post, 0, now) {
                Admission::Admit => None,
                Admission::WaitUntil(until) => Some(until),
            },
            _ => {
                meter.wishes(&self.post, gate, Admission::Admit, now);
                Some(u64::MAX)
            }
        }
    }
}
