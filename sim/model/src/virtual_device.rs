//! A device inside one process whose clock advances only on request, for deterministic tests of scheduling policy
//! that take no real time.
//!
//! It uses the scheduler behind the drivers (`sched`, `forecast`, `segments`) without a file, a lock or wall
//! time. Tenants are numbers.
//! Not here: streams (the work of one queue runs in order), memory.

use crate::forecast::forecast_marks;
use crate::layout::{COMPUTE_LANE, LANE_COUNT, MAX_PROCESSES, NO_SLOT, StateBody};
use crate::profile::DeviceProfile;
use crate::sched::{self, LineMarks};
use crate::segments::passed_at;

/// A device and its virtual clock.
pub struct VirtualDevice {
    body: Box<StateBody>,
    now: u64,
}

/// The end of a piece of work: a position on one queue of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VirtualMark {
    who: usize,
    lane: usize,
    at: u64,
}

impl VirtualDevice {
    /// An idle device at time 0.
    pub fn new(profile: DeviceProfile) -> VirtualDevice {
        let layout = std::alloc::Layout::new::<StateBody>();
        // SAFETY: the layout is not empty. A Body is made of integers and arrays of integers: all zeroes is a valid
        // one, and the box frees it with the same layout.
        let mut body: Box<StateBody> = unsafe {
            let p = std::alloc::alloc_zeroed(layout).cast::<StateBody>();
            if p.is_null() {
                std::alloc::handle_alloc_error(layout);
            }
            Box::from_raw(p)
        };
        body.device_count = 1;
        body.devices[0].profile = profile;
        for lane in &mut body.devices[0].lanes {
            (lane.current, lane.last) = (NO_SLOT, NO_SLOT);
        }
        for (slot, serial) in body.slots.iter_mut().take(64).zip(1..) {
            slot.serial = serial;
        }
        VirtualDevice { body, now: 0 }
    }

    /// Present time of the virtual device, ns.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Advances the clock to `time`; without effect if that is past.
    pub fn advance_to(&mut self, time: u64) {
        self.now = self.now.max(time);
        sched::advance_device(&mut self.body, 0, self.now);
    }

    /// Launches a kernel of `ns` for process `who`; kernels of one process run one after another.
    ///
    /// # Panics
    /// The process number `who` is 64 or more.
    pub fn launch(&mut self, who: usize, ns: u64) -> VirtualMark {
        self.put_work(who, COMPUTE_LANE, ns, &[])
    }

    /// Enqueues work on an engine of the device (`layout`), after the work `after` of the same process.
    ///
    /// # Panics
    /// `who` is 64 or more, `after` is work of another process, or the queue has no room for its waits for other
    /// engines ([`crate::layout::GATES_KEPT`]).
    pub fn put_work(&mut self, who: usize, lane: usize, ns: u64, after: &[VirtualMark]) -> VirtualMark {
        assert!(who < 64, "process {who} of 64");
        let mut behind: LineMarks = [0; LANE_COUNT];
        for m in after {
            assert_eq!(m.who, who, "work waits for work of its own process");
            behind[m.lane] = behind[m.lane].max(m.at);
        }
        let at = sched::submit_work(&mut self.body, who, 0, lane, ns, &behind).expect("as many waits as a line holds");
        VirtualMark { who, lane, at }
    }

    /// A kernel of `who` starts to wait on the device for a word of memory, until [`VirtualDevice::wake_waiting`].
    pub fn wait(&mut self, who: usize) {
        sched::wait(&mut self.body, who, 0, 1);
    }

    /// The word arrives: the kernel of `who` no longer waits.
    pub fn wake_waiting(&mut self, who: usize) {
        sched::wait(&mut self.body, who, 0, -1);
    }

    /// Returns whether the work up to `mark` is done.
    pub fn is_done(&self, mark: VirtualMark) -> bool {
        self.process_line(mark.who, mark.lane).busy >= mark.at
    }

    /// When the work was done, as an event after it would report. `None`: it is not done, or its history was dropped
    /// ([`VirtualDevice::forget_done`]).
    pub fn done_at(&self, mark: VirtualMark) -> Option<u64> {
        passed_at(self.process_line(mark.who, mark.lane), mark.at)
    }

    /// Drops the history that dates finished marks. Without this call old history is merged in the end, and times in
    /// it are interpolated.
    pub fn forget_done(&mut self) {
        for slot in self.body.slots.iter_mut().take(64) {
            for line in &mut slot.devices[0].lanes {
                line.read = line.wrote;
            }
        }
    }

    /// When the work will be done if no more work arrives; now, if it is done.
    pub fn will_be_done(&self, mark: VirtualMark) -> u64 {
        let mut marks: LineMarks = [0; LANE_COUNT];
        marks[mark.lane] = mark.at;
        forecast_marks(&self.body, mark.who, 0, &marks, u64::MAX).max(self.now)
    }

    /// Advances the clock until the work is done, and returns that time.
    pub fn finish_work(&mut self, mark: VirtualMark) -> u64 {
        while !self.is_done(mark) {
            // With gates in between the forecast may be too early, but never too late.
            self.advance_to(self.will_be_done(mark).max(self.now + 1));
        }
        self.now
    }

    /// Time the device has worked for `who`, ns: kernels, including those that wait for memory.
    pub fn busy_ns(&self, who: usize) -> u64 {
        self.process_line(who, COMPUTE_LANE).busy + self.body.slots[who].devices[0].waited
    }

    /// Work of `who` that is enqueued and not done, all engines, ns.
    pub fn backlog_ns(&self, who: usize) -> u64 {
        self.body.slots[who].devices[0].lanes.iter().map(crate::layout::WorkLine::line_backlog).sum()
    }

    /// Time spent in switches, ns.
    pub fn switching_ns(&self) -> u64 {
        self.body.devices[0].switch_ns
    }

    /// Busy time of `who` in the bucket that includes `time` (`timeline`), ns.
    pub fn bucket_ns(&self, who: usize, time: u64) -> u32 {
        self.body.slots[who].devices[0].buckets.get(time / crate::layout::BUCKET_NS)
    }

    fn process_line(&self, who: usize, lane: usize) -> &crate::layout::WorkLine {
        &self.body.slots[who.min(MAX_PROCESSES - 1)].devices[0].lanes[lane]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{TO_DEVICE_LANE, TO_HOST_LANE};

    const MS: u64 = 1_000_000;

    fn device() -> VirtualDevice {
        VirtualDevice::new(DeviceProfile::built_in("h200").unwrap())
    }

    #[test]
    fn time_goes_only_when_it_is_told_to_and_work_is_dated_to_the_nanosecond() {
        let mut d = device();
        let a = d.launch(0, 3 * MS);
        let b = d.launch(0, MS);
        assert_eq!((d.now(), d.is_done(a), d.will_be_done(b)), (0, false, 4 * MS));
        d.advance_to(3 * MS - 1);
        assert!(!d.is_done(a));
        assert_eq!((d.finish_work(b), d.done_at(a), d.done_at(b)), (4 * MS, Some(3 * MS), Some(4 * MS)));
        assert_eq!((d.busy_ns(0), d.backlog_ns(0), d.busy_ns(1)), (4 * MS, 0, 0));
    }

    #[test]
    fn a_hundred_seconds_of_two_processes_take_no_time_and_are_fair() {
        let mut d = device();
        let end = 100_000 * MS;
        for t in (0..end).step_by(usize::try_from(10 * MS).unwrap()) {
            d.advance_to(t);
            d.forget_done();
            for who in 0..2 {
                while d.backlog_ns(who) < 20 * MS {
                    d.launch(who, MS);
                }
            }
        }
        d.advance_to(end);
        assert!(d.busy_ns(0).abs_diff(d.busy_ns(1)) <= 2 * MS);
        assert!(d.busy_ns(0) + d.busy_ns(1) + d.switching_ns() == end);
        let last: u64 = (0..2).map(|who| u64::from(d.bucket_ns(who, end - 1))).sum();
        assert!((9 * MS..=10 * MS).contains(&last), "{last}");
    }

    #[test]
    fn copies_and_kernels_that_wait_are_there_too() {
        let mut d = device();
        let there = d.put_work(0, TO_DEVICE_LANE, 5 * MS, &[]);
        let done = d.put_work(0, COMPUTE_LANE, 2 * MS, &[there]);
        let back = d.put_work(0, TO_HOST_LANE, MS, &[done]);
        assert_eq!((d.finish_work(back), d.done_at(done)), (8 * MS, Some(7 * MS)));
        d.wait(1);
        d.advance_to(20 * MS);
        d.wake_waiting(1);
        let busy = d.busy_ns(1);
        assert!((11 * MS..=12 * MS).contains(&busy), "{busy}");
        d.advance_to(30 * MS);
        assert_eq!(d.busy_ns(1), busy);
    }
}
