//! Makes the memory files and bells (eventfds) shared with members, the heartbeat, and the reactor's timer.
//!
//! Not here: the contents of the pages (`leases`), and sending them to members (`reactor`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use shim_sys::memfd::{MappedPage, OwnedPage, WriteAccess};
use vgpu_core::protocol::page::{BeatPage, BoardPage, GONE_EPOCH, ReportPage};
use vgpu_core::time::config::DAEMON_GONE_NS;
use vgpu_core::time::gate::loss;

use vgpu_accounting::clock::nanoseconds;

/// File descriptors of a tenant's board and report, stored together on the `DescriptorPool`.
pub type Files = [OwnedFd; 2];

/// The bell of a tenant: an eventfd by which members wake the daemon. It exists while the tenant has members.
pub struct MappedPages {
    bell: OwnedFd,
}

/// A tenant's board, which the daemon writes, its report, which it reads, and the descriptors to send to members.
pub type PagePair = (MappedPage<BoardPage>, MappedPage<ReportPage>, Files);

impl MappedPages {
    /// Creates the bell and fresh pages.
    ///
    /// # Errors
    /// Any error of the kernel: no descriptor, no memory, or a kernel that is too old.
    pub fn new() -> io::Result<(Self, PagePair)> {
        // The count starts at 1, so that a member rings by adding 0: the counter never fills up.
        let bell = rustix::event::eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (board_file, board) = OwnedPage::new(c"vgpu-board", WriteAccess::Maker)?.into_parts();
        let (report_file, report) = OwnedPage::new(c"vgpu-report", WriteAccess::Everybody)?.into_parts();
        Ok((Self { bell }, (board, report, [board_file, report_file])))
    }

    /// Descriptors that are sent to a member, in the order of [`super::answer::WELCOME_DESCRIPTORS`].
    #[must_use]
    pub fn welcome_descriptors<'f>(&'f self, heart: &'f BeatSource, [board, report]: &'f Files) -> [BorrowedFd<'f>; 4] {
        [heart.page.file_to_hand_out(), board.as_fd(), report.as_fd(), self.bell.as_fd()]
    }

    /// The bell, to watch edge-triggered. The daemon never reads it. Members share its open file, so one of them
    /// could make it blocking and reset its count. A former member could keep it and ring it after all others are
    /// gone.
    #[must_use]
    pub fn bell_descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// At rest a heartbeat is due after this many intervals, but within [`MAX_REST_INTERVAL_NS`].
const REST_INTERVALS: u64 = 5;

/// Longest time between two heartbeats at rest: half of the time after which members count the daemon as gone.
const MAX_REST_INTERVAL_NS: u64 = DAEMON_GONE_NS / 2;

/// Members that a heartbeat is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeatAudience {
    /// There is no member.
    Nobody,
    /// No member has a lease or an open gate, and none waits. Its next launch wakes the daemon.
    Resting,
    /// Some member works.
    Working,
}

/// The page with the daemon's heartbeat, and when the next one is due.
pub struct BeatSource {
    page: OwnedPage<BeatPage>,
    epoch: u64,
    every: u64,
    /// Time of the last heartbeat in ns; `None`: no member listens.
    last: Option<u64>,
    /// Time of the next heartbeat in ns, while members listen.
    next: u64,
}

impl BeatSource {
    /// Creates the page and writes the first heartbeat.
    ///
    /// # Errors
    /// As [`MappedPages::new`].
    pub fn new(epoch: u64, every: u64, now: u64) -> io::Result<Self> {
        let page = OwnedPage::<BeatPage>::new(c"vgpu-beat", WriteAccess::Maker)?;
        page.mapped_page().format_page(epoch);
        page.mapped_page().make_beat(epoch, now);
        Ok(Self { page, epoch, every, last: None, next: 0 })
    }

    /// Writes a heartbeat if it is due, or if there was no audience before. It may be half an interval early: when
    /// the loop is awake for another event, it need not wake again for this. Returns the time of the last heartbeat, in
    /// ns, if members may have counted the daemon as gone since.
    pub fn beat_if_due(&mut self, audience: BeatAudience, now: u64) -> Option<u64> {
        let every = match audience {
            BeatAudience::Nobody => {
                self.last = None;
                return None;
            }
            BeatAudience::Resting => self.rest_interval(),
            BeatAudience::Working => self.every,
        };
        let due = self.last.map(|last| last.saturating_add(every));
        self.next = due.unwrap_or(now);
        if due.is_some_and(|due| now < due.saturating_sub(every / 2)) {
            return None;
        }
        let last = self.page.mapped_page().last_beat();
        self.page.mapped_page().make_beat(self.epoch, now);
        let had_audience = self.last.replace(now).is_some();
        self.next = now.saturating_add(every);
        last.filter(|_| had_audience).map(|beat| beat.time).filter(|time| loss::is_gone(*time, now))
    }

    fn rest_interval(&self) -> u64 {
        self.every.saturating_mul(REST_INTERVALS).min(MAX_REST_INTERVAL_NS).max(self.every)
    }

    /// Sets the time between two heartbeats, in ns.
    pub fn set_interval(&mut self, every: u64) {
        self.every = every;
    }

    /// Time of the next heartbeat in ns; `None`: none is due.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        self.last.map(|_| self.next)
    }

    /// Writes the last heartbeat, so that every member knows at once that the daemon ends.
    pub fn stop(&self, now: u64) {
        self.page.mapped_page().make_beat(GONE_EPOCH, now);
    }
}

/// A kernel timer on the monotonic clock, exact to the microsecond. The timeout of epoll is not, before Linux 5.11.
///
/// It is watched edge-triggered and never read. A later deadline does not reprogram it: the timer fires at the
/// earlier time without effect, and is set then. So deadlines that move with each handover of a device cost no system
/// call.
#[derive(Debug)]
pub struct TimerAlarm {
    timer: OwnedFd,
    /// Time in ns at which the timer fires; `None`: it is not set.
    set: Option<u64>,
}

impl TimerAlarm {
    /// Creates the timer, unset.
    ///
    /// # Errors
    /// No descriptor.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self { timer: timerfd_create(TimerfdClockId::Monotonic, flags)?, set: None })
    }

    /// Notes that the timer fired: it fires again only after [`Self::set`].
    pub fn acknowledge_ring(&mut self) {
        self.set = None;
    }

    /// Arms the timer to fire at `at` (ns of the monotonic clock), unless it fires earlier anyway. `None` changes
    /// nothing: an armed timer still fires.
    ///
    /// # Cost
    /// A system call, unless the timer already fires at `at` or earlier.
    pub fn set(&mut self, at: Option<u64>) {
        let Some(at) = at else { return };
        if self.set.is_some_and(|set| set <= at) {
            return;
        }
        // 0 would disarm the timer; a time that has passed fires at once.
        let nanos = at.max(1);
        let it_value = Timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        if timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value }).is_ok() {
            self.set = Some(at);
        }
    }
}

impl AsFd for TimerAlarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// An epoch that no earlier daemon of this host had: the wall clock time in ns.
#[must_use]
pub fn new_epoch() -> u64 {
    nanoseconds(ClockId::Realtime).clamp(1, GONE_EPOCH - 1)
}

#[cfg(test)]
mod tests {
    use rustix::buffer::spare_capacity;
    use rustix::event::Timespec;
    use rustix::event::epoll::{self, EventData, EventFlags};

    use super::BeatAudience::{Nobody, Resting, Working};
    use super::*;
    use vgpu_accounting::clock::now;

    const MS: u64 = 1_000_000;

    /// Watches a timer as the reactor does. The closure returns whether it fires within that many ms.
    fn watched(alarm: &TimerAlarm) -> impl FnMut(u64) -> bool + use<> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&epoll, alarm, EventData::new_u64(0), EventFlags::IN | EventFlags::ET).unwrap();
        move |ms| {
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::try_from(ms * MS).unwrap() };
            let mut events = Vec::with_capacity(2);
            epoll::wait(&epoll, spare_capacity(&mut events), Some(&timeout)).unwrap();
            !events.is_empty()
        }
    }

    #[test]
    fn an_alarm_rings_once_each_time_it_is_set_and_nobody_reads_it() {
        let mut alarm = TimerAlarm::new().unwrap();
        let mut rings = watched(&alarm);
        for at in [0, 1, now() + 2 * MS, now() + 4 * MS] {
            alarm.set(Some(at));
            assert!(rings(900), "{at}");
            alarm.acknowledge_ring();
            assert!(!rings(1), "once");
        }
    }

    #[test]
    fn an_alarm_that_is_put_off_rings_then_and_is_set_anew_and_one_that_is_put_forward_rings_at_once() {
        let mut alarm = TimerAlarm::new().unwrap();
        let mut rings = watched(&alarm);
        let (soon, late) = (now() + 5 * MS, now() + 600_000 * MS);
        alarm.set(Some(soon));
        alarm.set(Some(late));
        assert_eq!(alarm.set, Some(soon), "no system call");
        alarm.set(None);
        assert!(rings(900));
        alarm.acknowledge_ring();
        alarm.set(Some(late));
        assert!(!rings(20));
        alarm.set(Some(now()));
        assert!(rings(900));
    }

    #[test]
    fn a_heart_beats_once_in_its_time_and_early_for_whoever_is_awake_in_the_second_half_of_it() {
        let mut heart = BeatSource::new(7, 10 * MS, MS).unwrap();
        heart.beat_if_due(Nobody, 2 * MS);
        assert_eq!(heart.next(), None);
        heart.beat_if_due(Working, 3 * MS);
        assert_eq!(heart.next(), Some(13 * MS));
        heart.beat_if_due(Working, 7 * MS);
        assert_eq!(heart.next(), Some(13 * MS), "too early");
        heart.beat_if_due(Working, 8 * MS);
        assert_eq!(heart.next(), Some(18 * MS));
        heart.beat_if_due(Working, 40 * MS);
        assert_eq!(
            (heart.next(), heart.page.mapped_page().last_beat().map(|beat| beat.time)),
            (Some(50 * MS), Some(40 * MS))
        );
    }

    #[test]
    fn a_heart_tells_whether_members_may_have_counted_it_as_gone() {
        let mut heart = BeatSource::new(7, 10 * MS, MS).unwrap();
        assert_eq!(heart.beat_if_due(Working, 900 * MS), None, "nobody listened");
        assert_eq!(heart.beat_if_due(Working, 1_150 * MS), None, "250 ms are no loss");
        assert_eq!(heart.beat_if_due(Working, 1_401 * MS), Some(1_150 * MS));
        assert_eq!(heart.beat_if_due(Working, 1_411 * MS), None, "it is told once");
        assert_eq!(
            [(Nobody, 2_000), (Working, 3_000)].map(|(audience, ms)| heart.beat_if_due(audience, ms * MS)),
            [None; 2]
        );
    }

    #[test]
    fn at_rest_a_heart_beats_more_rarely_and_at_its_pace_again_with_the_first_that_works() {
        let mut heart = BeatSource::new(7, 10 * MS, MS).unwrap();
        heart.beat_if_due(Working, 10 * MS);
        heart.beat_if_due(Resting, 20 * MS);
        assert_eq!(heart.next(), Some(60 * MS), "five intervals after the last");
        assert_eq!(heart.beat_if_due(Working, 30 * MS), None);
        assert_eq!(heart.next(), Some(40 * MS), "the one at rest would have been at 60 ms");
        for (every, at_rest) in [(1, 5), (10, 50), (30, 125), (125, 125)] {
            heart.set_interval(every * MS);
            heart.beat_if_due(Resting, 1_000 * MS);
            assert_eq!(heart.next(), Some((1_000 + at_rest) * MS));
            heart.beat_if_due(Nobody, 1_000 * MS);
        }
    }
}
