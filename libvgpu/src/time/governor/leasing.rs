//! The daemon's lease at the gate: the parts that run without the governor's lock. It rings the daemon, asks the
//! streams about work launched through an open gate, and detects a missing daemon.

use super::Governor;
use crate::daemon::lease::{LeaseWord, OpenStream, StreamAnswer};
use crate::driver::streams::{self, between_captures};
use crate::ffi::clock;
use crate::ledger::joined::JoinedLedger;
use crate::process::helper_thread;
use crate::time::meter::markers;
use crate::time::meter::reaping::in_context;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use shim_sys::cuda::{CUevent, CUresult};
use vgpu_core::time::account::{Admission, SharedAccount};
use vgpu_core::time::arbiter::Gate;
use vgpu_core::time::config::BASE;

impl Governor {
    /// The first launch of a stream through an open gate. From then on the helper thread notices when the gate shuts,
    /// because a program that makes no call would not.
    ///
    /// # Cost
    /// One load where that thread runs.
    #[cold]
    pub(super) fn launch_through_open_gate(&self, real: impl FnOnce() -> CUresult) -> CUresult {
        (self.above.start_helper)();
        real()
    }

    /// Rings the daemon if a ring is due. Returns the word to sleep on until the daemon acts; `None`: there is no
    /// daemon here.
    pub(super) fn ring_daemon(&self) -> Option<(&'static AtomicU32, u32)> {
        self.post.pages_slot()?;
        let (ring, word) = {
            let mut meter = self.lock_meter();
            (meter.lease.takes_ring(), meter.lease.futex_word())
        };
        if ring {
            self.post.ring_bell();
        }
        word
    }

    /// As [`Self::ring_daemon`], for a thread that is about to wait. Meanwhile the helper thread must see completions
    /// and detect a missing daemon.
    pub(super) fn ring_before_wait(&self, joined: &JoinedLedger) -> Option<(&'static AtomicU32, u32)> {
        if !self.post.is_governed() {
            return None;
        }
        (self.above.start_helper)();
        if !helper_thread::is_running() {
            (self.above.reconnect)();
        }
        self.ask_open_streams(joined);
        self.reap_now(joined);
        self.ring_daemon()
    }

    /// Asks the streams that had launches through an open gate whether that work is complete. After unfinished work
    /// it records a marker, so that its end is seen while the stream continues.
    ///
    /// # Cost
    /// A lock where there is nothing to ask; else a query for each stream.
    pub(super) fn ask_open_streams(&self, joined: &JoinedLedger) {
        let Some(streams) = self.lock_meter().lease.streams_to_ask() else { return };
        let answers = ask_streams(&streams);
        let now = clock::now();
        let unused = {
            let mut meter = self.lock_meter();
            let unused = meter.apply_answers(&answers, now, |due, since| self.charge(joined, due, since));
            meter.write_report(&self.post, now);
            unused
        };
        self.destroy_unused(unused);
    }

    fn destroy_unused(&self, unused: Vec<CUevent>) {
        super::destroy_events(unused.into_iter().map(Some));
        self.lock_meter().lease.finish_asking();
    }

    /// A stream is about to end: waits briefly for a thread that queries it, and marks the end of its work that was
    /// launched through an open gate.
    pub fn stream_ended(&self, key: u64) {
        self.post.forget_stream();
        let until = clock::now() + BASE.stuck;
        while clock::now() < until {
            let Some(streams) = self.lock_meter().lease.begin_stream_end(key) else {
                clock::sleep(BASE.handover);
                continue;
            };
            if !streams.is_empty() {
                let answers = ask_streams(&streams);
                let unused = self.lock_meter().lease.finish_stream_end(&answers);
                self.destroy_unused(unused);
            }
            break;
        }
        self.lock_meter().stream_ended(key);
    }

    /// Takes the newly joined slot, and reports the work in flight. The slot's previous member may have had work
    /// queued when the daemon stopped, and no other tenant may wait for a program that makes no call.
    pub fn announce_member(&self) {
        let _ = self.lock_meter().granting_word(&self.post, clock::now());
        self.ring_daemon();
    }

    /// The slot's word to sleep on, and its state when last read.
    pub fn daemon_word(&self) -> Option<(&'static AtomicU32, u32)> {
        self.post.pages_slot()?;
        self.lock_meter().lease.futex_word()
    }

    /// A look of the helper thread; returns when to look again. `None`: no thread waits, and nothing is in flight.
    pub(super) fn attend_lease(&self, joined: &JoinedLedger) -> Option<u64> {
        let now = clock::now();
        if self.post.alone_terms().is_some() {
            // Threads at the gate check the daemon's heartbeat; this call notices a daemon that is back.
            let _ = self.lock_meter().granting_word(&self.post, now);
            return None;
        }
        if self.lock_meter().in_flight() > 0 {
            self.reap_now(joined);
        }
        self.ask_open_streams(joined);
        let look = self.lock_meter().attend_lease(&self.post, clock::now());
        // A thread that waits for its balance sleeps on this process's bell, and would see other terms up to a
        // heartbeat later.
        let granted = self.daemon_word().map_or(0, |(_, sequence)| sequence);
        if self.granted.swap(granted, Relaxed) != granted {
            self.ring_waiters();
        }
        self.ring_daemon();
        look
    }

    /// Until when a launch that cannot be measured must wait; `None`: it may go.
    pub(super) fn kept_until(&self, account: SharedAccount<'_>) -> Option<u64> {
        let now = clock::now();
        if self.kept_ceiling().is_some()
            && let Admission::WaitUntil(until) = account.admit_launch(now)
        {
            return Some(until);
        }
        let mut meter = self.lock_meter();
        let gate = match meter.granting_word(&self.post, now) {
            LeaseWord::Open => return None,
            LeaseWord::Own => self.granted_gate(),
            LeaseWord::Said(gate) => gate,
        };
        match gate {
            Gate::Open => None,
            Gate::Run { until, .. } if now < until => match meter.lease.account_admission(&self.post, 0, now) {
                Admission::Admit => None,
                Admission::WaitUntil(until) => Some(until),
            },
            _ => {
                meter.request_lease(&self.post, gate, Admission::Admit, now);
                Some(u64::MAX)
            }
        }
    }
}

/// Asks streams whether their work that was launched through an open gate is complete.
fn ask_streams(streams: &[OpenStream]) -> Vec<(OpenStream, StreamAnswer)> {
    let here = streams::current();
    let ask = |OpenStream { place, launch, mark }: &OpenStream| match mark {
        Some(mark) if markers::is_passed(*mark) => StreamAnswer::Done,
        Some(_) => StreamAnswer::Busy,
        // Another thread's default stream cannot be named here, and a stream in a capture must not be queried.
        None if launch.stream_location() != *place || super::is_capturing(launch) != Some(false) => {
            StreamAnswer::Unasked
        }
        None if markers::is_idle(launch) => StreamAnswer::Done,
        // In the legacy stream a marker would be a barrier for all other streams of the context; running work may be
        // waiting for work after it.
        None if launch.stream_id().stream_key() == 0 => StreamAnswer::Busy,
        None => markers::record_event(launch, None).map_or(StreamAnswer::Busy, StreamAnswer::Marked),
    };
    // While a capture begins, no stream is queried.
    let ask = |stream: &OpenStream| between_captures(|| ask(stream)).unwrap_or(StreamAnswer::Busy);
    let within = |stream: &OpenStream| in_context(stream.launch.context.0 as usize, here, || ask(stream));
    // A context that has ended cannot be asked, and its work has ended with it.
    streams.iter().map(|stream| (*stream, within(stream).unwrap_or(StreamAnswer::Done))).collect()
}
