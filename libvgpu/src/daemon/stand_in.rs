//! Test stand-in for the daemon: its pages in this process, without a daemon.

use super::{Place, Session, session};
use crate::clock;
use shim_sys::memfd::{Made, Mapped, Reach};
use std::os::fd::{FromRawFd, OwnedFd};
use vgpu_core::limits::Mode;
use vgpu_core::protocol::page::{Allowed, BeatPage, BoardPage, ReportPage, Uncharged};
use vgpu_core::protocol::wire;
use vgpu_core::protocol::wire::two::{Descriptor, Welcome};
use vgpu_core::time::arbiter::{Gate, Terms};
use vgpu_core::time::gate::loss::OnLoss;

const EPOCH: u64 = 7;
const MEMBER: u64 = 1;

/// The pages of a member in slot 0, on the daemon's side.
pub struct StandIn {
    board: Mapped<BoardPage>,
    session: &'static Session,
}

impl StandIn {
    /// Creates the pages and makes them the present session. The heartbeat is set once, now, so it counts as alive
    /// only for a short test.
    pub fn new() -> Self {
        let beat = Made::<BeatPage>::new(c"beat", Reach::Maker).unwrap();
        let board = Made::<BoardPage>::new(c"board", Reach::Maker).unwrap();
        let report = Made::<ReportPage>::new(c"report", Reach::Everybody).unwrap();
        beat.page().format(EPOCH);
        board.page().format(EPOCH);
        report.page().format(EPOCH);
        beat.page().beat(EPOCH, clock::now());
        let terms = Terms { quantum: Some(4_000_000), ..Terms::default() };
        let (in_flight, mode, on_loss) = (2_000_000, Mode::Enforce, OnLoss::Local);
        let (memory, uncharged) = (None, Uncharged::default());
        let allowed = Allowed { device: 1, member: MEMBER, memory, uncharged, terms, in_flight, mode, on_loss };
        board.page().slots[0].take(&allowed, EPOCH);
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
        let ((beat, _), (board, page), (report, _)) = (beat.into_parts(), board.into_parts(), report.into_parts());
        let session = Session::of(welcome, 0, 1, &[beat, board, report, bell]).unwrap();
        Self { board: page, session: session::keep(Box::new(session)) }
    }

    /// The member's slot.
    pub fn place(&self) -> Place {
        Place::new(self.session, 0)
    }

    /// Writes the gate that applies from now on.
    pub fn tells(&self, gate: Gate) {
        self.board.slots[0].tell(&gate);
    }
}
