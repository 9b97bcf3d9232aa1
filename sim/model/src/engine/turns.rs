//! Operations of the host in a stream: host functions, gates that are polled, and kernels that wait for a word of
//! memory.
//!
//! One thread per device runs all of them, one after another. It starts with the first such operation.

use super::{DeviceEngine, GATE_POLL_NS};
use crate::lines::{HostTurn, QueuedOperation, StreamId, StreamOperation};
use crate::machine::{MachineView, now};
use crate::sched;
use std::sync::Arc;
use std::time::Duration;

impl DeviceEngine {
    /// Enqueues a host function. False: there is no such stream.
    pub fn enqueue_host(&self, id: StreamId, f: impl FnOnce() + Send + 'static) -> bool {
        let mut f = Some(f);
        self.enqueue_turn(
            id,
            Box::new(move || {
                if let Some(f) = f.take() {
                    f();
                }
                true
            }),
        )
    }

    /// Holds a stream until `open` returns true; the helper thread polls it, and other streams go on.
    ///
    /// Used for events of other devices, whose clocks are independent of this device's. False: there is no such
    /// stream.
    pub fn enqueue_gate(&self, id: StreamId, open: impl FnMut() -> bool + Send + 'static) -> bool {
        self.enqueue_turn(id, Box::new(open))
    }

    /// Enqueues a kernel that stays on the device until `open` returns true. The device belongs to this process
    /// meanwhile (`sched`), and other streams of the process go on. False: there is no such stream.
    pub fn enqueue_occupying(&self, id: StreamId, mut open: impl FnMut() -> bool + Send + 'static) -> bool {
        let mut presence = WaitingKernel { machine: self.machine.clone(), device: self.device, on: false };
        self.enqueue_turn(
            id,
            Box::new(move || {
                let done = open();
                presence.set(true);
                if done {
                    presence.set(false);
                } else {
                    // Bring the device to now, so that the ground truth includes this time whenever the process ends.
                    drop(presence.machine.at_present(presence.device));
                }
                done
            }),
        )
    }

    fn enqueue_turn(&self, id: StreamId, f: HostTurn) -> bool {
        let mut s = self.lock_state();
        if !s.streams.contains_key(&id) {
            return false;
        }
        let after = s.begin_operation(id);
        s.hold_operation(id, StreamOperation::Host { f: Some(f) }, after);
        if !s.thread
            && let Some(me) = self.me.upgrade()
        {
            s.thread = true;
            helper_thread(me);
        }
        self.moved.notify_all();
        true
    }

    /// Runs host functions whose turn has come and polls gates, in an endless loop.
    fn run_host_functions(&self) {
        let mut s = self.lock_state();
        // Streams whose gate returned false since another operation was carried out.
        let mut shut = Vec::new();
        loop {
            let next = s.streams.iter().find_map(|(id, st)| {
                let q = st.queue.front().filter(|_| !shut.contains(id))?;
                let free = q.after.iter().all(|(o, n)| s.streams.get(o).is_none_or(|x| x.done >= *n));
                (free && matches!(q.op, StreamOperation::Host { f: Some(_) })).then_some(*id)
            });
            let Some(id) = next else {
                s = if shut.is_empty() {
                    self.moved.wait(s).unwrap_or_else(std::sync::PoisonError::into_inner)
                } else {
                    let waited = self.moved.wait_timeout(s, Duration::from_nanos(GATE_POLL_NS));
                    waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
                };
                shut.clear();
                continue;
            };
            let tail = s.order_tail(id);
            if !self.has_reached(&mut s, &tail) {
                drop(s);
                self.wait_marks(&tail);
                s = self.lock_state();
                continue;
            }
            let f = s.streams.get_mut(&id).and_then(|st| st.queue.front_mut()).and_then(|q| match &mut q.op {
                StreamOperation::Host { f } => f.take(),
                _ => None,
            });
            drop(s);
            let Some(mut f) = f else {
                s = self.lock_state();
                continue;
            };
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut f)).unwrap_or(true);
            // A kernel of a faulted process waits no longer.
            let done = done || self.is_faulted();
            // Drop the function outside the lock: dropping its captures may run code of the program.
            let again = (!done).then_some(f);
            s = self.lock_state();
            let front = s.streams.get_mut(&id).and_then(|st| st.queue.front_mut());
            if let (Some(f), Some(QueuedOperation { op: StreamOperation::Host { f: place }, .. })) = (again, front) {
                *place = Some(f);
                shut.push(id);
                continue;
            }
            shut.clear();
            if s.streams.get_mut(&id).and_then(|st| st.queue.pop_front()).is_some() {
                s.held -= 1;
                s.finish_operation(id);
            }
            s.moment = Some(now());
            self.run_held(&mut s);
            s.moment = None;
        }
    }
}

/// A kernel of this process that is on the device and waits for memory.
struct WaitingKernel {
    machine: Arc<MachineView>,
    device: usize,
    on: bool,
}

impl WaitingKernel {
    fn set(&mut self, on: bool) {
        if std::mem::replace(&mut self.on, on) == on {
            return;
        }
        let slot = self.machine.own_slot();
        let (mut b, _) = self.machine.at_present(self.device);
        b.slots[slot].touched |= 1 << self.device;
        b.slots[slot].devices[self.device].used.kernels += u64::from(on);
        sched::wait(&mut b, slot, self.device, if on { 1 } else { -1 });
    }
}

impl Drop for WaitingKernel {
    fn drop(&mut self) {
        if !self.machine.is_inherited() {
            self.set(false);
        }
    }
}

/// Starts the thread for host functions with all signals blocked, because signals belong to the program's
/// threads.
fn helper_thread(engine: Arc<DeviceEngine>) {
    // SAFETY: live signal sets; the mask is put back after the thread has inherited the full one.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let _ = std::thread::Builder::new().name("sim-host-fn".into()).spawn(move || engine.run_host_functions());
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
    }
}
