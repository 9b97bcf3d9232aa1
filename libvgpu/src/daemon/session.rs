//! A session: the shared pages from a daemon's welcome, checked and mapped, and the bell that wakes the daemon.
//!
//! A session in which a device was joined is leaked, and its pages stay mapped: a thread that still reads a previous
//! daemon's page sees there that it has ended. Each daemon that comes back adds one session, of which a few pages
//! were touched.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};
use shim_sys::memfd::{self, MappedPage};
use shim_sys::shared_file::out_of_the_way;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use vgpu_core::protocol::page::{BeatPage, BoardPage, BoardSlot, ReportPage, ReportSlot};
use vgpu_core::protocol::wire::{Descriptor, Welcome};
use vgpu_core::time::gate::loss;
use vgpu_core::units::share::Share;

/// The kernel's description of a descriptor.
pub fn stat_descriptor(descriptor: i32) -> Option<libc::stat> {
    // SAFETY: all zeroes is a valid stat, which fstat fills; a number that is not open is an error.
    unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        (libc::fstat(descriptor, &raw mut stat) == 0).then_some(stat)
    }
}

/// One daemon's welcome, and the shared pages and the bell that came with it.
pub struct Session {
    /// The daemon's welcome message.
    pub welcome: Welcome,
    /// Added to this process's clock, gives the daemon's clock, in ns.
    pub offset: i64,
    /// Number of the connection that delivered the welcome ([`super::hello`]).
    pub conversation: u64,
    beat: MappedPage<BeatPage>,
    board: MappedPage<BoardPage>,
    report: MappedPage<ReportPage>,
    bell: i32,
    /// Device, inode and mode of the bell, to detect that the program has reused its descriptor number.
    bell_is: (u64, u64, u32),
    /// Time of the last heartbeat that was found too old, in ns of the daemon's clock.
    old_beat: AtomicU64,
    /// When `old_beat` was first found, in ns of this process's clock.
    old_since: AtomicU64,
}

/// The current session, leaked so that references to it never end; null: there is none.
static CURRENT_SESSION: AtomicPtr<Session> = AtomicPtr::new(core::ptr::null_mut());

/// The current session; `None`: there is none.
pub fn current() -> Option<&'static Session> {
    // SAFETY: null, or leaked by [`set_current`].
    unsafe { CURRENT_SESSION.load(Acquire).as_ref() }
}

/// True if this is the current session.
///
/// # Cost
/// One load.
pub fn is_present(session: &Session) -> bool {
    core::ptr::eq(CURRENT_SESSION.load(Relaxed), session)
}

/// Makes this the current session.
pub fn set_current(session: Box<Session>) -> &'static Session {
    let session = Box::leak(session);
    let former = CURRENT_SESSION.swap(session, AcqRel);
    // SAFETY: null, or leaked by an earlier call.
    if let Some(former) = unsafe { former.as_ref() } {
        former.forget_bell();
    }
    session
}

/// Drops the current session in a forked child.
pub fn reset_after_fork() {
    let former = CURRENT_SESSION.swap(core::ptr::null_mut(), AcqRel);
    // SAFETY: null, or leaked by [`set_current`].
    if let Some(former) = unsafe { former.as_ref() } {
        former.forget_bell();
    }
}

fn file_identity(descriptor: i32) -> Option<(u64, u64, u32)> {
    stat_descriptor(descriptor).map(|stat| (stat.st_dev, stat.st_ino, stat.st_mode))
}

impl Session {
    /// Checks and maps the files of a welcome.
    ///
    /// # Errors
    /// One line: the file that is missing or invalid.
    pub fn from_welcome(welcome: Welcome, offset: i64, conversation: u64, files: &[OwnedFd]) -> Result<Self, String> {
        let file = |which: Descriptor, name: &str| -> Result<BorrowedFd<'_>, String> {
            let place = welcome
                .find_descriptor(which, files.len())
                .map_err(|e| format!("the daemon's welcome is wrong: {e}"))?;
            let file = place.and_then(|at| files.get(at));
            file.map(AsFd::as_fd).ok_or_else(|| format!("the daemon's welcome brings no {name}"))
        };
        let wrong = |name: &str, e: &dyn core::fmt::Display| format!("the daemon's {name} page {e}");
        let epoch = welcome.epoch;
        let beat = file(Descriptor::Beat, "beat")?;
        // SAFETY: only `last`, `check` and relaxed loads are used on it.
        let beat = unsafe { memfd::receive_read_only::<BeatPage>(beat) }.map_err(|e| wrong("beat", &e))?;
        let board = file(Descriptor::Board, "board")?;
        // SAFETY: only `check` and the member's side of its slots, which load relaxed, are used on it; `futex` only
        // reads.
        let board = unsafe { memfd::receive_read_only::<BoardPage>(board) }.map_err(|e| wrong("board", &e))?;
        let report = file(Descriptor::Report, "report")?;
        let report = memfd::receive_page::<ReportPage>(report).map_err(|e| wrong("report", &e))?;
        beat.check(epoch).map_err(|e| wrong("beat", &e))?;
        board.check(epoch).map_err(|e| wrong("board", &e))?;
        report.check(epoch).map_err(|e| wrong("report", &e))?;
        let bell = file(Descriptor::Bell, "bell")?.try_clone_to_owned().and_then(out_of_the_way);
        let bell = bell.map_err(|e| format!("no descriptor can be kept: {e}"))?;
        let bell_is = file_identity(bell.as_raw_fd()).ok_or("the daemon's bell is no file")?;
        let bell = bell.into_raw_fd();
        let (old_beat, old_since) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { welcome, offset, conversation, beat, board, report, bell, bell_is, old_beat, old_since })
    }

    /// Wakes the daemon: this tenant wants the device, or has drained it. The bell is one open eventfd for all
    /// processes of the tenant. Ringing adds zero to its count, which never blocks and still wakes the daemon,
    /// whatever other processes did to it. The daemon created it with a count above zero, and no honest process reads
    /// it down; a tenant that does is not heard.
    ///
    /// # Cost
    /// Two system calls. Must not be called under a lock.
    pub fn ring_bell(&self) {
        if file_identity(self.bell) == Some(self.bell_is) {
            let nothing = 0u64;
            // SAFETY: our own descriptor, as far as the check above can tell, and eight bytes of a local.
            unsafe { libc::write(self.bell, (&raw const nothing).cast(), 8) };
        }
    }

    fn forget_bell(&self) {
        if file_identity(self.bell) == Some(self.bell_is) {
            // SAFETY: our own descriptor.
            unsafe { libc::close(self.bell) };
        }
    }

    /// Whether the daemon's heartbeat is recent at `now`, by this process's clock. A heartbeat that is too old counts
    /// as recent until it has been seen for a moment: the whole host may just have been paused.
    ///
    /// # Cost
    /// Six loads.
    pub fn is_beating(&self, now: u64) -> bool {
        let Some(beat) = self.beat.last_beat().filter(|beat| beat.epoch == self.welcome.epoch) else { return false };
        if !loss::is_gone(beat.time, self.to_daemon_clock(now)) {
            return true;
        }
        if self.old_beat.load(Acquire) != beat.time {
            // Two threads that find it at once both note about the same moment.
            self.old_since.store(now, Relaxed);
            self.old_beat.store(beat.time, Release);
            return true;
        }
        !loss::stays_gone(self.old_since.load(Relaxed), now)
    }

    /// Converts a time of this process's clock to the daemon's clock.
    pub fn to_daemon_clock(&self, now: u64) -> u64 {
        now.saturating_add_signed(self.offset)
    }

    /// Converts a time of the daemon's clock to this process's clock; "never" (all ones) is unchanged.
    pub fn to_our_clock(&self, moment: u64) -> u64 {
        if moment == u64::MAX { moment } else { moment.saturating_add_signed(self.offset.saturating_neg()) }
    }
}

/// Drops a session that was not kept.
impl Drop for Session {
    fn drop(&mut self) {
        self.forget_bell();
    }
}

/// A slot in a session's pages: this process on one device.
pub struct PagesSlot {
    /// The session whose pages hold the slot.
    pub session: &'static Session,
    index: usize,
}

impl PagesSlot {
    /// The slot of that number, below the number of slots.
    pub fn new(session: &'static Session, index: usize) -> Self {
        Self { session, index: index.min(session.board.slots.len() - 1) }
    }

    /// The board slot, which the daemon writes.
    #[inline]
    pub fn board_slot(&self) -> &'static BoardSlot {
        let session: &'static Session = self.session;
        &session.board.slots[self.index]
    }

    /// The floor that the daemon guarantees this tenant on this device; `None`: no floor. If the slot cannot be read,
    /// returns the whole device, so that an unknown floor refuses no request.
    pub fn granted_floor(&self) -> Option<Share> {
        let allowed = self.board_slot().read_allowed(self.session.welcome.epoch);
        allowed.map_or(Some(Share::WHOLE_DEVICE), |(_, allowed)| allowed.terms.floor)
    }

    /// The report slot, which this process writes.
    #[inline]
    pub fn report_slot(&self) -> &'static ReportSlot {
        let session: &'static Session = self.session;
        &session.report.slots[self.index]
    }
}
