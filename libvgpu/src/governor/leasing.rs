//! The daemon's lease at the gate: the parts that run without the governor's lock. It rings the daemon, asks the
//! streams about work launched through an open gate, and detects a missing daemon.

use super::Governor;
use crate::daemon::lease::{Answer, Stream, Word};
use crate::daemon::renew;
use crate::ledger::Joined;
use crate::meter::markers;
use crate::meter::reaping::within;
use crate::order::{self, between_captures};
use crate::{clock, watcher};
use core::sync::atomic::AtomicU32;
use shim_sys::cuda::{CUevent, CUresult};
use vgpu_core::time::account::{Admission, SharedAccount};
use vgpu_core::time::arbiter::Gate;

/// The first launch of a stream through an open gate. From then on the helper thread notices when the gate shuts,
/// because a program that makes no call would not.
///
/// # Cost
/// One load where that thread runs.
#[cold]
pub(super) fn opened(real: impl FnOnce() -> CUresult) -> CUresult {
    watcher::start();
    real()
}

impl Governor {
    /// Rings the daemon if a ring is due. Returns the word to sleep on until the daemon acts; `None`: there is no
    /// daemon here.
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

    /// As [`Self::tell`], for a thread that is about to wait. Meanwhile the helper thread must see completions and
    /// detect a missing daemon.
    pub(super) fn outward(&self, joined: &Joined) -> Option<(&'static AtomicU32, u32)> {
        if !self.post.is_governed() {
            return None;
        }
        watcher::start();
        if !watcher::runs() {
            renew::tend();
        }
        self.unblind(joined);
        self.reap_now(joined);
        self.tell()
    }

    /// Asks the streams that had launches through an open gate whether that work is complete. After unfinished work
    /// it records a marker, so that its end is seen while the stream continues.
    ///
    /// # Cost
    /// A lock where there is nothing to ask; else a query for each stream.
    pub(super) fn unblind(&self, joined: &Joined) {
        let Some(streams) = self.meter().lease.unseen() else { return };
        let answers = ask(&streams);
        let now = clock::now();
        let unused = {
            let mut meter = self.meter();
            let unused = meter.sees(&answers, now, |due, since| self.charge(joined, due, since));
            meter.report(&self.post, now);
            unused
        };
        self.answered(unused);
    }

    fn answered(&self, unused: Vec<CUevent>) {
        super::destroy(unused.into_iter().map(Some));
        self.meter().lease.answered();
    }

    /// A stream is about to end: waits briefly for a thread that queries it, and marks the end of its work that was
    /// launched through an open gate.
    pub(super) fn stream_ended(&self, key: u64) {
        self.post.forget_stream();
        for _ in 0..super::ENDING_TRIES {
            let Some(streams) = self.meter().lease.ends(key) else {
                clock::sleep(20_000);
                continue;
            };
            if !streams.is_empty() {
                let answers = ask(&streams);
                let unused = self.meter().lease.ended(&answers);
                self.answered(unused);
            }
            break;
        }
        self.meter().stream_ended(key);
    }

    /// Takes the newly joined slot, and reports the work in flight. The slot's previous member may have had work
    /// queued when the daemon stopped, and no other tenant may wait for a program that makes no call.
    pub fn greet(&self) {
        let _ = self.meter().word(&self.post, clock::now());
        self.tell();
    }

    /// The slot's word to sleep on, and its state when last read.
    pub fn daemon_word(&self) -> Option<(&'static AtomicU32, u32)> {
        self.post.place()?;
        self.meter().lease.futex()
    }

    /// A look of the helper thread; returns when to look again. `None`: no thread waits, and nothing is in flight.
    pub(super) fn attend_lease(&self, joined: &Joined) -> Option<u64> {
        let now = clock::now();
        if self.post.alone().is_some() {
            // Threads at the gate check the daemon's heartbeat; this call notices a daemon that is back.
            let _ = self.meter().word(&self.post, now);
            return None;
        }
        if self.meter().in_flight() > 0 {
            self.reap_now(joined);
        }
        self.unblind(joined);
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

/// Asks streams whether their work that was launched through an open gate is complete.
fn ask(streams: &[Stream]) -> Vec<(Stream, Answer)> {
    let here = order::current();
    let ask = |Stream { place, launch, mark }: &Stream| match mark {
        Some(mark) if markers::is_passed(*mark) => Answer::Done,
        Some(_) => Answer::Busy,
        // Another thread's default stream cannot be named here, and a stream in a capture must not be queried.
        None if launch.place() != *place || super::captures(launch) != Some(false) => Answer::Unasked,
        None if markers::is_idle(launch) => Answer::Done,
        // In the legacy stream a marker would be a barrier for all other streams of the context; running work may be
        // waiting for work after it.
        None if launch.order().key() == 0 => Answer::Busy,
        None => markers::record(launch, None).map_or(Answer::Busy, Answer::Marked),
    };
    // While a capture begins, no stream is queried.
    let ask = |stream: &Stream| between_captures(|| ask(stream)).unwrap_or(Answer::Busy);
    let within = |stream: &Stream| within(stream.launch.context.0 as usize, here, || ask(stream));
    // A context that has ended cannot be asked, and its work has ended with it.
    streams.iter().map(|stream| (*stream, within(stream).unwrap_or(Answer::Done))).collect()
}
