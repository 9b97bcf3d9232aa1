//! Reserves bytes for a call. Before a refusal, pools and graph memory give back their unused bytes, as they would if
//! the device itself were full.

use super::pools;
use super::shares;
use crate::device::table::Device;
use crate::ledger::held_shares::LocalShare;
use shim_sys::cuda::CUresult;
use vgpu_core::memory::ledger::Reservation;

impl Device {
    /// Reserves `bytes` for one driver call. Before a refusal, this process's pools and graph memory give back their
    /// unused bytes, as they would if the device itself were full.
    ///
    /// # Errors
    /// The program gets "out of memory", or "not permitted" if the ledger itself is unusable.
    #[inline(always)] // hot, and the library is made for size
    pub fn reserve(&'static self, bytes: u64) -> Result<Reservation<'static>, CUresult> {
        match self.ledger.reserve_at_once(bytes, self.chargeable_bytes()) {
            Some(reservation) => Ok(reservation),
            None => self.reserve_after_trim(bytes),
        }
    }

    #[cold]
    fn reserve_after_trim(&'static self, bytes: u64) -> Result<Reservation<'static>, CUresult> {
        let outcome = self.trim_and_reserve(bytes, Self::chargeable_bytes);
        if outcome.is_err() {
            self.ledger.note_refused();
        }
        outcome
    }

    /// As [`Device::reserve`], for overhead that the driver already took. It compares with the limit and not with
    /// [`Device::chargeable_bytes`], because the daemon may already count this overhead as uncharged.
    ///
    /// # Errors
    /// As [`Device::reserve`].
    pub fn reserve_taken(&'static self, bytes: u64) -> Result<Reservation<'static>, CUresult> {
        self.trim_and_reserve(bytes, Self::memory_limit).inspect_err(|_| self.ledger.note_refused())
    }

    fn trim_and_reserve(&'static self, bytes: u64, room: fn(&Self) -> u64) -> Result<Reservation<'static>, CUresult> {
        self.look_for_daemon();
        match self.reserve_below(bytes, room(self)) {
            // A request above the limit never fits, so only a smaller one trims the pools.
            Err(CUresult::OUT_OF_MEMORY) if bytes <= self.memory_limit() && pools::give_back(self) => {
                self.reserve_below(bytes, room(self))
            }
            other => other,
        }
    }

    /// Trims the pools if `bytes` would not fit otherwise. For calls whose growth is measured: a trim between the first
    /// reading and the call would falsify the measurement.
    pub fn make_room(&'static self, bytes: u64) {
        if self.ledger.reserve_at_once(bytes, self.chargeable_bytes()).is_none() {
            drop(self.trim_and_reserve(bytes, Self::chargeable_bytes));
        }
    }
}

/// Reserves the bytes missing from the charge of a share that is to hold `whole`, until
/// [`charge_reserved`](crate::ledger::held_shares::charge_reserved).
///
/// # Errors
/// As [`Device::reserve`].
pub fn set_aside(share: LocalShare, whole: u64) -> Result<Option<Reservation<'static>>, CUresult> {
    let Some((device, lack)) = shares::uncharged_part(share, whole) else { return Ok(None) };
    match device.reserve(lack) {
        Ok(reservation) => Ok(Some(reservation)),
        // Another importer has charged the missing bytes meanwhile.
        Err(_) if shares::uncharged_part(share, whole).is_none() => Ok(None),
        Err(refused) => Err(refused),
    }
}
