//! What the daemon shares with its members, and the clock by which it does: memory files, bells, the beat, the alarm.
//!
//! Not here: what stands in the pages and when (`leases`), who is sent them (`reactor`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};
use shim_sys::memfd::{Made, Mapped, Reach};
use vgpu_core::page::{BeatPage, BoardPage, GONE, ReportPage};

pub mod shelf;

use shelf::Files;

/// What a tenant's members ring, as long as there are any.
pub struct Furniture {
    bell: OwnedFd,
}

/// A tenant's pages, to write and to read, and their files, to hand out.
pub type Pages = (Mapped<BoardPage>, Mapped<ReportPage>, Files);

impl Furniture {
    /// A bell and fresh pages.
    ///
    /// # Errors
    /// What the kernel says: no descriptor, no memory, or it is too old.
    pub fn new() -> io::Result<(Self, Pages)> {
        // Up from the start: then a ring need not add to its count, and finds it full for nobody.
        let bell = rustix::event::eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (board_file, board) = Made::new(c"vgpu-board", Reach::Maker)?.into_parts();
        let (report_file, report) = Made::new(c"vgpu-report", Reach::Everybody)?.into_parts();
        Ok((Self { bell }, (board, report, [board_file, report_file])))
    }

    /// What a member is sent, in the order of [`super::answer::DESCRIPTORS`].
    #[must_use]
    pub fn descriptors<'f>(&'f self, heart: &'f Heart, [board, report]: &'f Files) -> [BorrowedFd<'f>; 4] {
        [heart.page.file(), board.as_fd(), report.as_fd(), self.bell.as_fd()]
    }

    /// The bell, to watch by its edges. It is never read: the members have the same open file, and one of them can make it
    /// block and take it down, or keep it and ring it when nobody else has it.
    #[must_use]
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The host's page and when it is to beat.
pub struct Heart {
    page: Made<BeatPage>,
    epoch: u64,
    every: u64,
    /// `None`: nobody listens.
    next: Option<u64>,
}

impl Heart {
    /// A page that has beaten once.
    ///
    /// # Errors
    /// As [`Furniture::new`].
    pub fn new(epoch: u64, every: u64, now: u64) -> io::Result<Self> {
        let page = Made::<BeatPage>::new(c"vgpu-beat", Reach::Maker)?;
        page.page().format(epoch);
        page.page().beat(epoch, now);
        Ok(Self { page, epoch, every, next: None })
    }

    /// Beats if it is due, or if it did not beat for lack of listeners.
    pub fn beat(&mut self, listeners: bool, now: u64) {
        match self.next {
            _ if !listeners => self.next = None,
            Some(next) if now < next => {}
            _ => {
                self.page.page().beat(self.epoch, now);
                self.next = Some(now.saturating_add(self.every));
            }
        }
    }

    /// Another rate.
    pub fn settle(&mut self, every: u64) {
        self.every = every;
    }

    /// When it is to beat; `None`: never.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// The last beat: every member knows at once that the daemon goes.
    pub fn stop(&self, now: u64) {
        self.page.page().beat(GONE, now);
    }
}

/// A timer of the kernel that becomes readable at a moment of the monotonic clock, to the microsecond, which the timeout
/// of epoll before Linux 5.11 is not.
#[derive(Debug)]
pub struct Alarm {
    timer: OwnedFd,
    set: Option<u64>,
}

impl Alarm {
    /// Not set.
    ///
    /// # Errors
    /// No descriptor.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self { timer: timerfd_create(TimerfdClockId::Monotonic, flags)?, set: None })
    }

    /// It rang, and will ring again only if it is set again, which silences it.
    pub fn rang(&mut self) {
        self.set = None;
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
    }

    /// Rings at a moment, or never.
    ///
    /// # Cost
    /// A system call if the moment is another one than before.
    pub fn set(&mut self, at: Option<u64>) {
        if self.set == at {
            return;
        }
        // Nil would mean never, and a moment that has passed rings at once.
        let nanos = at.map_or(0, |at| at.max(1));
        let it_value = Timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        if timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value }).is_ok() {
            self.set = at;
        }
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// The host's monotonic clock, in nanoseconds.
#[must_use]
pub fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// An epoch that no daemon of this host had: the time of day, in nanoseconds.
#[must_use]
pub fn epoch() -> u64 {
    nanoseconds(ClockId::Realtime).clamp(1, GONE - 1)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}
