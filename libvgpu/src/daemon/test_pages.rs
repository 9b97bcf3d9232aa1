//! Test stand-in for the daemon: its pages in this process, without a daemon.

use super::session::{self, PagesSlot, Session};
use crate::ffi::clock;
use shim_sys::memfd::{MappedPage, OwnedPage, WriteAccess};
use std::os::fd::{FromRawFd, OwnedFd};
use vgpu_core::limits::Mode;
use vgpu_core::protocol::page::{AllowedUse, BeatPage, BoardPage, ReportPage, Uncharged};
use vgpu_core::protocol::wire;
use vgpu_core::protocol::wire::{Descriptor, Welcome};
use vgpu_core::time::arbiter::{Gate, Terms};
use vgpu_core::time::config::{DAEMON_GONE_NS, HOST_RESUME_NS};
use vgpu_core::time::gate::loss::OnLoss;

const EPOCH: u64 = 7;
const MEMBER: u64 = 1;

/// The pages of a member in slot 0, on the daemon's side.
pub struct StandIn {
    beat: MappedPage<BeatPage>,
    board: MappedPage<BoardPage>,
    session: &'static Session,
}

impl StandIn {
    /// Creates the pages and makes them the present session. The heartbeat is set once, now, so it counts as alive
    /// only for a short test.
    pub fn new() -> Self {
        let beat = OwnedPage::<BeatPage>::new(c"beat", WriteAccess::Maker).unwrap();
        let board = OwnedPage::<BoardPage>::new(c"board", WriteAccess::Maker).unwrap();
        let report = OwnedPage::<ReportPage>::new(c"report", WriteAccess::Everybody).unwrap();
        beat.mapped_page().format_page(EPOCH);
        board.mapped_page().format_page(EPOCH);
        report.mapped_page().format_page(EPOCH);
        beat.mapped_page().make_beat(EPOCH, clock::now());
        let terms = Terms { quantum: Some(4_000_000), ..Terms::default() };
        let (in_flight, mode, on_loss) = (2_000_000, Mode::Enforce, OnLoss::Local);
        let (memory, uncharged) = (None, Uncharged::default());
        let allowed = AllowedUse { device: 1, member: MEMBER, memory, uncharged, terms, in_flight, mode, on_loss };
        board.mapped_page().slots[0].take_slot(&allowed, EPOCH);
        // SAFETY: no preconditions; a descriptor of ours.
        let bell = unsafe { OwnedFd::from_raw_fd(libc::eventfd(1, libc::EFD_CLOEXEC)) };
        let descriptors = vec![Descriptor::Beat, Descriptor::Board, Descriptor::Report, Descriptor::Bell];
        let terms = wire::Terms { tenant: "a".into(), memory_limit: None, sm_limit: None };
        let welcome = Welcome {
            terms,
            member: MEMBER,
            epoch: EPOCH,
            clock: 0,
            mode,
            open_on_error: false,
            on_loss,
            strict: false,
            descriptors,
        };
        let ((beat, heart), (board, page), (report, _)) = (beat.into_parts(), board.into_parts(), report.into_parts());
        let session = Session::from_welcome(welcome, 0, 1, &[beat, board, report, bell]).unwrap();
        Self { beat: heart, board: page, session: session::set_current(Box::new(session)) }
    }

    /// The member's slot.
    pub fn pages_slot(&self) -> PagesSlot {
        PagesSlot::new(self.session, 0)
    }

    /// Writes a heartbeat, now.
    pub fn beat(&self) {
        self.beat.make_beat(EPOCH, clock::now());
    }

    /// Writes the gate that applies from now on.
    pub fn set_gate(&self, gate: Gate) {
        self.board.slots[0].change_gate(&gate);
    }
}

/// After a pause of the host, a member may run before its daemon.
#[test]
fn a_daemon_is_gone_only_if_its_old_heartbeat_was_seen_for_a_while() {
    let daemon = StandIn::new();
    let session = daemon.session;
    let resumed = clock::now() + 2 * DAEMON_GONE_NS;
    // Seen for the first time.
    assert!(session.is_beating(resumed));
    assert!(session.is_beating(resumed + HOST_RESUME_NS));
    assert!(!session.is_beating(resumed + HOST_RESUME_NS + 1));
    daemon.beat();
    // Another heartbeat, which is too old by then, too.
    assert!(session.is_beating(resumed + HOST_RESUME_NS + 2));
    assert!(session.is_beating(clock::now()));
}
