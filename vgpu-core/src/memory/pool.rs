//! Charges a memory pool for the bytes it holds, as read from the driver; the charge is never less, not even for an
//! instant.
//!
//! A pool (stream-ordered, or a device's graph memory) grows and shrinks inside driver calls, in steps that the
//! driver chooses, while several threads use it. So the charge follows a number that only the driver knows.
//!
//! # A call
//! ```text
//! begin   the request fits inside the pool, or bytes for its growth are pledged (reserved in the ledger)
//! driver  the driver call
//! ticket  drawn after the driver's answer
//! read    query the bytes the pool holds, after drawing the ticket
//! end     withdraw the pledge, apply the reading, charge or release the difference
//! ```
//!
//! # Only the reading with the newest ticket counts
//! Readings of two threads may be applied in another order than they were taken. A reading includes the effect of
//! every call that drew its ticket earlier, since a call draws its ticket after its driver call has returned. So the
//! reading with the newest ticket includes all calls that have ended, and a reading with an older ticket is ignored.
//!
//! A newer ticket can still carry an older number: another thread drew an earlier ticket, but queried the driver
//! later and saw a trim. A number that is too large does no harm unless it demands a charge that nobody owes. So a
//! reading that demands a charge is discarded if other readings were applied since its ticket was drawn. The caller
//! then queries the driver again.
//!
//! # Never less than the pool holds
//! The charge stays between the newest reading and that reading plus the pledges of the calls in progress. Growth
//! after the newest reading comes from calls that had not drawn a ticket when the reading's ticket was drawn. Either
//! such a call is still in progress, and its pledge counts; or it has ended, and its own ticket is newer.
//!
//! A request that is known to fit inside ([`FreeRanges`]) pledges nothing, so a full tenant can still use the free
//! memory of its pools. It starts only while no other request is in progress, since the driver chooses which of two
//! requests gets which piece. It may still lose its room to a trim or to a request that began later, and then the
//! pool grows after all. So while it is in progress, the charge is not lowered by the amount it may add, and requests
//! that begin later pledge at least that amount. Growth beyond that is [`ChargeChange::lack`], and is charged when a
//! reading shows it.
//!
//! # Requests without a reading
//! A reading may show that memory has left the pool. When it is applied, [`FreeRanges::note_trim`] removes all room
//! that may be gone. So a request that begins inside afterwards relies only on memory that is charged.
//!
//! A request needs no reading under two conditions. Its memory is known to be the pool's ([`FreeRanges::is_free`]).
//! And at no time during the request was a call in progress that lets a pool shrink. Then the pool held that memory
//! when the request began, and did not grow. [`PoolAccount::end_inside`] ends such a request and gives its pledge, if
//! any, back. A stream-ordered free needs no reading either: a pool shrinks in calls that wait, not in frees. So its
//! end changes nothing in the ledger and can be recorded without the pool's lock ([`FreeEnds`]).
//!
//! Not here: the ledger in which pledges are reserved ([`crate::memory::ledger`]), the driver and its readings
//! (libvgpu's `pools`).

mod free_ends;
mod holes;

pub use free_ends::{FreeEnds, FreeSlot, SlottedFrees};
pub use holes::{FreeRanges, NO_STREAM, PendingFree, StreamKey};

/// Unit of physical memory: a pool grows by multiples of it.
pub const POOL_PAGE_BYTES: u64 = 2 << 20;
/// Assumed smallest growth of a pool, until its real step was seen.
pub const ASSUMED_GROWTH_BYTES: u64 = 32 << 20;

/// Bytes to pledge for a request of `bytes` that does not fit inside: the pool's step if it was `seen`, else
/// [`ASSUMED_GROWTH_BYTES`]; the request itself if that is larger. `None`: no device has as much.
#[must_use]
pub fn growth(bytes: u64, seen: Option<u64>) -> Option<u64> {
    least_growth(bytes).map(|least| least.max(seen.unwrap_or(ASSUMED_GROWTH_BYTES)))
}

/// The smallest possible growth of a pool for a request of `bytes`.
#[must_use]
pub fn least_growth(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(POOL_PAGE_BYTES)
}

/// Position of a reading in the order of readings; drawn before the driver is queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadingTicket {
    number: u64,
    /// Readings applied when the ticket was drawn.
    applied: u64,
    insists: bool,
}

impl ReadingTicket {
    /// Uses the reading even if others were applied since. For a caller that was asked to read again too often.
    #[must_use]
    pub fn insisting(self) -> Self {
        Self { insists: true, ..self }
    }
}

/// The driver's numbers for a pool at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolReading {
    /// From [`PoolAccount::ticket`], drawn before the driver was queried.
    pub ticket: ReadingTicket,
    /// Bytes that the pool holds.
    pub reserved: u64,
    /// Part of `reserved` that is in use, if that was queried too.
    pub used: Option<u64>,
}

/// A request to the pool that is in progress in the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a call that begins must end"]
pub struct PoolRequest {
    bytes: u64,
    pledge: u64,
    inside: bool,
}

impl PoolRequest {
    /// The request that [`PoolAccount::begin_inside`] has begun.
    pub const fn inside(bytes: u64) -> Self {
        Self { bytes, pledge: 0, inside: true }
    }

    /// Bytes reserved in the ledger for this call, in case the pool grows.
    #[must_use]
    pub fn pledge(&self) -> u64 {
        self.pledge
    }
}

/// Changes to make in the ledger after an end or a reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "the ledger has to follow"]
pub struct ChargeChange {
    /// Part of the call's own pledge that becomes a charge; the rest is given back.
    pub keep: u64,
    /// Bytes charged earlier that must be given back.
    pub release: u64,
    /// Growth of the pool that nobody pledged. `held` already includes it; the caller must charge it.
    pub lack: u64,
    /// Growth of the pool, if this call alone caused it.
    pub grew: Option<u64>,
    /// True if the pool holds less than at the previous reading.
    pub shrank: bool,
}

/// Charges and pledges of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolAccount {
    /// Bytes charged, or pledged (reserved in the ledger for growth).
    held: u64,
    /// Part of `held`: pledges of calls in progress.
    pledged: u64,
    /// Bytes that the pool holds by the newest reading.
    reserved: u64,
    /// Upper bound of the bytes in use: the last reading that queried it, plus the requests since.
    busy: u64,
    /// Bytes that the program has allocated and not freed, by its calls.
    live: u64,
    /// Bytes of the call in progress that pledged nothing, because it is known to fit into free memory of the pool. 0:
    /// no such call is in progress. At most one is at a time.
    inside: u64,
    /// Number of calls in progress.
    calls: u32,
    drawn: u64,
    /// The newest ticket whose reading was applied.
    newest: u64,
    /// Number of readings applied so far.
    applied: u64,
}

impl PoolAccount {
    /// Bytes charged, or pledged (reserved in the ledger for growth).
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Part of [`PoolAccount::held`] that is charged, not pledged.
    #[must_use]
    pub fn charged(&self) -> u64 {
        self.held - self.pledged
    }

    /// Bytes that the program has allocated and not freed, by its calls.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.live
    }

    /// True if the pool may shrink when the program waits for the device.
    #[must_use]
    pub fn may_shrink(&self) -> bool {
        self.charged() > self.live
    }

    /// Bytes charged and not in use, by the last reading.
    #[must_use]
    pub fn slack(&self) -> u64 {
        self.charged().saturating_sub(self.busy)
    }

    /// Begins a request that the caller knows to fit inside; nothing is pledged for it. `None`: it cannot fit, or
    /// another request is in progress.
    pub fn begin_inside(&mut self, bytes: u64) -> Option<PoolRequest> {
        (self.calls == 0 && self.charged().saturating_sub(self.live) >= bytes).then(|| self.enter(bytes))
    }

    /// True if requests are in progress.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.calls > 0
    }

    /// Fewest bytes to pledge (reserve for growth) for a request that begins now.
    #[must_use]
    pub fn least_pledge(&self) -> u64 {
        self.may_grow()
    }

    /// Bytes by which the call of `inside` may grow the pool if its room is trimmed away.
    fn may_grow(&self) -> u64 {
        if self.inside == 0 { 0 } else { growth(self.inside, None).unwrap_or(0) }
    }

    fn enter(&mut self, bytes: u64) -> PoolRequest {
        self.live = self.live.saturating_add(bytes);
        self.busy = self.busy.saturating_add(bytes);
        self.inside = bytes;
        self.calls = 1;
        PoolRequest::inside(bytes)
    }

    /// Begins a request with `pledge` bytes reserved in the ledger for growth. 0 is allowed: growth is then
    /// [`ChargeChange::lack`].
    pub fn begin_pledged(&mut self, bytes: u64, pledge: u64) -> PoolRequest {
        self.held = self.held.saturating_add(pledge);
        self.pledged = self.pledged.saturating_add(pledge);
        self.calls += 1;
        PoolRequest { bytes, pledge, inside: false }
    }

    /// Draws the ticket of a reading. Call it before querying the driver.
    pub fn ticket(&mut self) -> ReadingTicket {
        self.drawn += 1;
        ReadingTicket { number: self.drawn, applied: self.applied, insists: false }
    }

    /// Ends a request that the driver `granted` or refused. Without a reading the pool is assumed to have grown by
    /// the pledge.
    ///
    /// `None`: nothing was changed; draw another ticket and read again.
    pub fn end_request(
        &mut self,
        call: PoolRequest,
        granted: bool,
        reading: Option<PoolReading>,
    ) -> Option<ChargeChange> {
        if reading.is_some_and(|reading| self.is_doubtful(&reading)) {
            return None;
        }
        self.leave_request(call, granted);
        if reading.is_none() && granted && !call.inside {
            self.reserved = self.reserved.saturating_add(call.pledge);
        }
        let before = self.reserved;
        let grew = self.apply_newest(reading).filter(|_| self.calls == 0);
        let shrank = self.reserved < before;
        Some(ChargeChange { grew, shrank, ..self.settle_charge(call.pledge) })
    }

    /// Ends a request that was served from memory known to be the pool's all the time: the pool has not grown.
    pub fn end_inside(&mut self, call: PoolRequest) -> ChargeChange {
        self.leave_request(call, true);
        self.settle_charge(call.pledge)
    }

    fn leave_request(&mut self, call: PoolRequest, granted: bool) {
        self.calls -= 1;
        if call.inside {
            self.inside = 0;
        } else {
            self.pledged = self.pledged.saturating_sub(call.pledge);
        }
        if call.inside && !granted {
            self.live = self.live.saturating_sub(call.bytes);
            self.busy = self.busy.saturating_sub(call.bytes);
        } else if !call.inside && granted {
            self.live = self.live.saturating_add(call.bytes);
            self.busy = self.busy.saturating_add(call.bytes);
        }
    }

    /// Counts `bytes` that the program freed.
    pub fn note_freed(&mut self, bytes: u64) {
        self.live = self.live.saturating_sub(bytes);
    }

    /// Applies a reading that belongs to no request: after frees, trims, synchronisation.
    ///
    /// `None`: nothing was changed; draw another ticket and read again.
    pub fn apply_measurement(&mut self, reading: PoolReading) -> Option<ChargeChange> {
        if self.is_doubtful(&reading) {
            return None;
        }
        let before = self.reserved;
        let _ = self.apply_newest(Some(reading));
        Some(ChargeChange { shrank: self.reserved < before, ..self.settle_charge(0) })
    }

    /// True if the reading demands a charge and may be older than one that was applied.
    fn is_doubtful(&self, reading: &PoolReading) -> bool {
        let ReadingTicket { number, applied, insists } = reading.ticket;
        !insists && number > self.newest && reading.reserved > self.held && applied != self.applied
    }

    /// The program's allocations ended without its calls, for example with a context: only bytes that the last
    /// reading shows in use can be live.
    pub fn forget_allocations(&mut self) {
        self.live = self.live.min(self.busy);
    }

    /// Applies a reading if it is the newest, and returns the growth of the pool since the one before.
    fn apply_newest(&mut self, reading: Option<PoolReading>) -> Option<u64> {
        let reading = reading.filter(|reading| reading.ticket.number > self.newest)?;
        let before = core::mem::replace(&mut self.reserved, reading.reserved);
        self.newest = reading.ticket.number;
        self.applied += 1;
        if let Some(used) = reading.used {
            // A request in progress may not be in use yet, so the reading may lack it.
            self.busy = used.saturating_add(self.inside);
        }
        reading.reserved.checked_sub(before).filter(|growth| *growth > 0)
    }

    /// Brings the charge to at least the newest reading, and at most that reading plus everything that calls in
    /// progress may add.
    fn settle_charge(&mut self, own: u64) -> ChargeChange {
        let most = self.reserved.saturating_add(self.pledged).saturating_add(self.may_grow());
        let mut change = ChargeChange { keep: own, ..ChargeChange::default() };
        if self.held < self.reserved {
            change.lack = self.reserved - self.held;
            self.held = self.reserved;
        } else if self.held > most {
            let surplus = self.held - most;
            // Reduce the call's own pledge first; the remaining surplus was charged earlier.
            let back = surplus.min(own);
            change.keep = own - back;
            change.release = surplus - back;
            self.held = most;
        }
        change
    }
}

#[cfg(test)]
mod tests;
