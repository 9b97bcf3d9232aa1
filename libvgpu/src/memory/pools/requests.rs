//! How a request of one charged pool begins and ends, and how the charge follows the size that the driver reports.

use super::give_back;
use super::shrinking::{self, QuietEpoch};
use crate::ffi::clock;
use crate::ledger::held_shares;
use crate::ledger::held_shares::LocalShare;
use crate::memory::pool_entry::*;
use crate::memory::shrink_flag::expect_shrinking;
use core::sync::atomic::{AtomicU64, Ordering::*};
use shim_sys::cuda::*;
use vgpu_core::memory::ledger::{OUTCOME_WAIT_NS, Reservation};
use vgpu_core::memory::pool::{self, ChargeChange, PoolReading, PoolRequest, StreamKey};

/// Maximum number of readings that other requests may invalidate; the next one is used in any case.
const MAX_DOUBTFUL_READINGS: u32 = 8;

/// A request in flight: its account entry and its reservation.
pub(super) struct PoolAllocation {
    pub(super) call: PoolRequest,
    pub(super) pledge: Option<Reservation<'static>>,
}

/// Smallest growth steps observed, by device number; 0: none yet. First pools, then graph memory.
static SEEN_STEPS: [[AtomicU64; 2]; 64] = [const { [const { AtomicU64::new(0) }; 2] }; 64];

impl PoolEntry {
    /// Begins an allocation that known room inside can serve.
    #[inline(always)] // hot, and the request stays in registers
    pub(super) fn begin_inside(&self, bytes: u64, stream: StreamKey) -> Option<PoolAllocation> {
        let begins = self.enter_inside(bytes, stream);
        begins.then(|| PoolAllocation { call: PoolRequest::inside(bytes), pledge: None })
    }

    #[inline(never)] // one copy for three callers
    fn enter_inside(&self, bytes: u64, stream: StreamKey) -> bool {
        let mut state = self.lock_for_request();
        let fits = !state.surprised && state.holes.fits_request(bytes, stream);
        let begins = fits && state.account.begin_inside(bytes).is_some();
        state.requests += u64::from(begins);
        begins
    }

    /// Begins an allocation with a reservation for the expected growth, or inside if other requests left room.
    ///
    /// # Errors
    /// Out of memory: neither fits. Another code if the ledger is unusable.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_growing(&self, bytes: u64, stream: StreamKey) -> Result<PoolAllocation, CUresult> {
        let inside = || self.begin_inside(bytes, stream);
        if let Some(begun) = self.begin_pledged(&[bytes])? {
            return Ok(begun);
        }
        self.wait_for_others();
        if let Some(begun) = inside() {
            return Ok(begun);
        }
        give_back(self.device);
        if let Some(begun) = inside() {
            return Ok(begun);
        }
        self.begin_pledged(&[bytes])?.ok_or_else(|| self.device.refuse_request())
    }

    /// Begins a launch that takes `parts`, each of which may make graph memory grow: the bytes the graph frees
    /// itself, and those that outlive the launch. Nothing is reserved if the graph frees all of it and `backing` is
    /// still valid.
    pub(super) fn begin_launch(
        &self,
        parts: [u64; 2],
        backing: Option<GraphBacking>,
    ) -> Result<PoolAllocation, CUresult> {
        if let (Some(backing), [passing, 0]) = (backing, parts) {
            let mut state = self.lock_state();
            let lasts = backing.losses == self.losses.load(SeqCst);
            if let Some(call) = lasts.then(|| state.account.begin_inside(passing)).flatten() {
                state.requests += 1;
                return Ok(PoolAllocation { call, pledge: None });
            }
        }
        let parts = parts.map(|part| (part > 0).then_some(part));
        let parts: Vec<u64> = parts.into_iter().flatten().collect();
        if let Some(begun) = self.begin_pledged(&parts)? {
            return Ok(begun);
        }
        give_back(self.device);
        self.begin_pledged(&parts)?.ok_or_else(|| self.device.refuse_request())
    }

    /// The backing that a graph launched now in the stream presents at its next launch.
    pub(super) fn graph_backing(&self, stream: Option<StreamKey>) -> Option<GraphBacking> {
        stream.map(|stream| GraphBacking { losses: self.losses.load(SeqCst), stream })
    }

    /// As [`PoolEntry::graph_backing`], after other graphs may have lost their memory to this launch.
    pub(super) fn others_may_have_lost(&self, stream: Option<StreamKey>) -> Option<GraphBacking> {
        let losses = self.losses.fetch_add(1, SeqCst) + 1;
        stream.map(|stream| GraphBacking { losses, stream })
    }

    /// Ends a request served at `at` without a reading, and records its block, if that address was known as free inside
    /// the pool and no pool may have shrunk since `moment`. Returns the bytes of an earlier record at that address.
    ///
    /// # Errors
    /// The request goes on: only a reading shows whether the pool has grown.
    #[inline(always)] // hot, and it has one caller
    pub(super) fn serve_inside(
        &self,
        begun: &mut PoolAllocation,
        at: u64,
        bytes: u64,
        moment: QuietEpoch,
    ) -> Result<Option<u64>, ()> {
        let (stale, change, share) = {
            let mut state = self.lock_for_request();
            if state.closed || !moment.is_still_quiet() || !state.holes.note_placed_inside(at, bytes) {
                return Err(());
            }
            state.last_request = shrinking::calls_begun();
            (state.blocks.insert(at, bytes), state.account.end_inside(begun.call), state.share)
        };
        let pledge = begun.pledge.take();
        if pledge.is_some() || change.release > 0 {
            self.settle_ledger(pledge, share, &change);
        }
        Ok(stale)
    }

    /// Waits for other threads' requests that are in the driver, as long as the ledger waits for reservations.
    #[cold]
    fn wait_for_others(&self) {
        let since = clock::now();
        while self.lock_state().account.is_busy() && clock::now().saturating_sub(since) < OUTCOME_WAIT_NS {
            clock::sleep(20_000);
        }
    }

    fn begin_pledged(&self, parts: &[u64]) -> Result<Option<PoolAllocation>, CUresult> {
        let bytes = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(*part));
        Ok(self.reserve_growth(parts)?.map(|pledge| {
            let mut state = self.lock_state();
            state.requests += 1;
            let call = state.account.begin_pledged(bytes, pledge.reserved_bytes());
            PoolAllocation { call, pledge: Some(pledge) }
        }))
    }

    /// Reserves the growth that a request may cause. `None`: it does not fit.
    fn reserve_growth(&self, parts: &[u64]) -> Result<Option<Reservation<'static>>, CUresult> {
        let seen = self.growth_step();
        let size = |part: u64| Some(pool::growth(part, seen)?.min(self.max.max(pool::least_growth(part)?)));
        let Some(sum) = parts.iter().try_fold(0u64, |sum, part| sum.checked_add(size(*part)?)) else { return Ok(None) };
        let sum = sum.max(self.lock_state().account.least_pledge());
        match self.device.try_reserve(sum) {
            Ok(pledge) => Ok(Some(pledge)),
            Err(CUresult::OUT_OF_MEMORY) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// The growth step observed for pools of this kind on this device. Graph memory falls back to the step of pools.
    fn growth_step(&self) -> Option<u64> {
        let of = |kind: usize| {
            Some(SEEN_STEPS[usize::from(self.device.index) % 64][kind].load(Relaxed)).filter(|step| *step > 0)
        };
        match self.source {
            PoolSource::Pool(_) => of(0),
            PoolSource::Graph(_) => of(1).or(of(0)),
        }
    }

    /// Learns the step from growth by `by` for a request of `bytes`, if it was more than the request needs.
    pub(super) fn learn_step(&self, bytes: u64, by: u64) {
        if pool::least_growth(bytes).is_some_and(|least| least < by) {
            let seen = &SEEN_STEPS[usize::from(self.device.index) % 64]
                [usize::from(matches!(self.source, PoolSource::Graph(_)))];
            let smaller = |step: u64| (step == 0 || by < step).then_some(by);
            let _ = seen.fetch_update(Relaxed, Relaxed, smaller);
        }
    }

    /// Reads the pool's size until `apply` accepts a reading, then updates the charge and returns the change to the
    /// ledger. `then` updates the known room (`holes`) under the same lock. `began` is the moment at which a request
    /// began. If pools may have shrunk since then, the reading may hide the
    /// request's growth. Known room is then reduced: otherwise a later request could rely on room that the pool
    /// gave back and that is no longer charged.
    pub(super) fn follow_reading(
        &self,
        used: bool,
        began: Option<QuietEpoch>,
        pledge: Option<Reservation<'static>>,
        apply: &dyn Fn(&mut pool::PoolAccount, Option<PoolReading>) -> Option<ChargeChange>,
        then: &dyn Fn(&mut PoolState, &ChargeChange),
    ) -> ChargeChange {
        for attempt in 0..=MAX_DOUBTFUL_READINGS {
            let ticket = self.lock_state().account.ticket();
            let ticket = if attempt == MAX_DOUBTFUL_READINGS { ticket.insisting() } else { ticket };
            let numbers = self.ask_driver(|source| source.read_numbers(used)).flatten();
            let reading = numbers.map(|(reserved, used)| PoolReading { ticket, reserved, used });
            let (change, share) = {
                let mut state = self.lock_state();
                if state.closed {
                    return ChargeChange::default();
                }
                let Some(change) = apply(&mut state.account, reading) else { continue };
                if state.account.may_shrink() {
                    expect_shrinking();
                }
                if change.shrank {
                    self.losses.fetch_add(1, SeqCst);
                }
                if change.shrank || began.is_some_and(|began| !began.is_still_quiet()) {
                    state.holes.note_trim();
                    // Chunks in use stay. If they are known to be larger than the pool, that knowledge is wrong and
                    // is discarded.
                    if numbers.is_some_and(|(reserved, _)| reserved < state.holes.known_bytes()) {
                        state.holes.forget_all();
                    }
                }
                then(&mut state, &change);
                (change, state.share)
            };
            self.settle_ledger(pledge, share, &change);
            return change;
        }
        ChargeChange::default()
    }

    /// Applies the change to the ledger.
    #[inline(never)]
    fn settle_ledger(&self, pledge: Option<Reservation<'static>>, share: Option<LocalShare>, change: &ChargeChange) {
        if let Some(mut pledge) = pledge {
            pledge.shrink_to(change.keep);
            self.charge(share, pledge);
        }
        self.release(share, change.release);
    }

    fn charge(&self, share: Option<LocalShare>, reservation: Reservation<'static>) {
        match share.and_then(held_shares::share_slot) {
            None => reservation.commit(),
            Some(share) => reservation.commit_to(share),
        }
    }

    /// Charges growth that was not reserved; returns whether it fits. If it does not, it is charged all the same,
    /// because the device has already given the memory.
    pub(super) fn charge_growth(&self, lack: u64) -> bool {
        if lack == 0 {
            return true;
        }
        let share = self.lock_state().share;
        if let Ok(reservation) = self.device.try_reserve(lack) {
            self.charge(share, reservation);
            return true;
        }
        if let Ok(reservation) = self.device.reserve_spent(lack) {
            self.charge(share, reservation);
        }
        give_back(self.device);
        self.device.fits_in_the_end()
    }

    /// Reads the pool's size and updates the charge. Returns the number of bytes released.
    pub fn measure_held(&self) -> u64 {
        self.measure_after(&|_| false)
    }

    /// As [`PoolEntry::measure_held`]. `may_have_shrunk` is called under the lock when the reading is applied: it
    /// returns whether the pool may have given memory back and taken it again.
    pub(super) fn measure_after(&self, may_have_shrunk: &dyn Fn(&PoolState) -> bool) -> u64 {
        let measured = |account: &mut pool::PoolAccount, reading| match reading {
            Some(reading) => account.apply_measurement(reading),
            None => Some(ChargeChange::default()),
        };
        let change = self.follow_reading(true, None, None, &measured, &|state, _| {
            if may_have_shrunk(state) {
                state.holes.note_trim();
            }
        });
        self.charge_growth(change.lack);
        change.release
    }

    /// Measures, trims the pool, and measures again, unless all its memory is in use. Graph memory counts memory kept
    /// for idle graphs as in use, so there the driver is always asked to trim.
    pub(super) fn trim_and_measure(&self) -> u64 {
        if self.lock_state().account.held() == 0 {
            return 0;
        }
        let before = self.measure_held();
        let numbers = self.ask_driver(|source| source.read_numbers(matches!(source, PoolSource::Pool(_)))).flatten();
        if numbers.is_none_or(|(held, used)| held == 0 || used.is_some_and(|used| used >= held)) {
            return before;
        }
        let _announced = shrinking::begin_shrinking();
        let _ = self.ask_driver(PoolSource::trim_source);
        self.losses.fetch_add(1, SeqCst);
        self.lock_state().holes.note_trim();
        before + self.measure_held()
    }
}
