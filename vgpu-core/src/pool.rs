//! What a pool of device memory is charged: what it holds, read from the driver, and never less for an instant.
//!
//! A pool (a stream-ordered pool, or a device's graph memory) grows and shrinks inside driver calls, in steps of the
//! driver's own choice, and several threads use it at once. The charge follows a number that only the driver knows.
//!
//! # A call
//! ```text
//! begin   enough is free inside the pool, or bytes for its growth are pledged (reserved in the ledger)
//! driver  the call itself
//! ticket  drawn after the driver's answer
//! read    what the pool holds now, asked after the ticket
//! end     the pledge is withdrawn, the reading applied, the difference charged or given back
//! ```
//!
//! # Only the reading with the newest ticket counts
//! Readings of two threads may be applied in another order than they were taken. A reading shows the effect of every
//! call that drew its ticket earlier: such a call had its answer before it drew. So the reading with the newest ticket
//! shows the effect of every call that has ended, and an older one that comes after it has nothing to add.
//!
//! A newer ticket may still carry the older number: somebody drew earlier, was asked later and has seen a trim. Too
//! large a number is harmless unless it asks for a charge that nobody owes. So a reading that asks for one, while others
//! were applied since its ticket was drawn, is not used, and the driver is asked again.
//!
//! # Never less than the pool holds
//! The charge stays between the newest reading and that reading plus the pledges of the calls under way. What the pool
//! grew by after the reading was done by calls that had not drawn a ticket when the reading's was drawn. Either they
//! are under way, and their pledges count, or they have ended, and then theirs is the newer ticket.
//!
//! A request that is known to fit inside ([`Holes`]) pledges nothing: it needs nothing, and a full tenant can still use
//! what its pools hold. It begins alone, since which of two requests gets which piece is the driver's choice. It may still
//! lose its room, to a trim or to a request that began later, and then the pool grows after all. So while it is under way
//! the charge is not lowered by what it may add, and requests that begin later pledge at least as much. Growth beyond
//! that shows as [`Change::lack`], and is charged when it is seen.
//!
//! # A request that needs no reading
//! What is known of a pool's room is cleared of what may be gone ([`Holes::trimmed`]) at the moment when a reading that
//! may show that is applied: whoever begins inside afterwards relies on nothing that is not charged.
//!
//! What a request was served from is known to be the pool's ([`Holes::has`]), and nothing that lets a pool shrink was
//! under way at any moment of the call: then the pool held that memory when the call began, and the call has not made it
//! grow. For everything above it is as if it had not been ([`Pool::end_inside`]); its pledge, if it had one, goes back.
//! Nor does a free in stream order need one: a pool gives back in calls that wait, not in those.
//!
//! What lives elsewhere: the ledger that pledges are reserved in ([`crate::ledger`]), the driver and its readings
//! (libvgpu's `pools`).

mod holes;

pub use holes::{Holes, Leaving, NOBODY, Stream};

/// What physical memory comes in: a pool grows by multiples of it.
pub const PAGE: u64 = 2 << 20;
/// What a pool grows by at least, as long as nobody has seen it grow.
pub const USUAL_GROWTH: u64 = 32 << 20;

/// What to pledge for a request of `bytes` that does not fit inside: the pool's step if it was `seen`, else the usual
/// one, or the request if it is larger. `None`: no device has as much.
#[must_use]
pub fn growth(bytes: u64, seen: Option<u64>) -> Option<u64> {
    least_growth(bytes).map(|least| least.max(seen.unwrap_or(USUAL_GROWTH)))
}

/// The least that a pool grows by for a request of `bytes`.
#[must_use]
pub fn least_growth(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(PAGE)
}

/// The right to read, drawn before the driver is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    number: u64,
    /// Readings that had been applied.
    applied: u64,
    insists: bool,
}

impl Ticket {
    /// The reading is to be used even if others were applied since: for who was asked to read again too often.
    #[must_use]
    pub fn insisting(self) -> Self {
        Self { insists: true, ..self }
    }
}

/// A reading of the driver's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Drawn by [`Pool::ticket`], before the driver was asked.
    pub ticket: Ticket,
    /// Bytes that the pool holds.
    pub reserved: u64,
    /// Of them in use, where that was asked too.
    pub used: Option<u64>,
}

/// A request on its way through the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a call that begins must end"]
pub struct Call {
    bytes: u64,
    pledge: u64,
    inside: bool,
}

impl Call {
    /// Bytes that were pledged for it.
    #[must_use]
    pub fn pledge(&self) -> u64 {
        self.pledge
    }
}

/// What an end or a reading asks of the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "the ledger has to follow"]
pub struct Change {
    /// Of the call's own pledge: becomes a charge; the rest of it is given back.
    pub keep: u64,
    /// Bytes charged earlier that are to be given back.
    pub release: u64,
    /// Bytes that the pool grew by and nobody pledged. They count as held already: the caller charges them.
    pub lack: u64,
    /// What the pool grew by, if this call alone made it grow.
    pub grew: Option<u64>,
    /// Whether the pool holds less than at the reading before.
    pub shrank: bool,
}

/// The account of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Charged or pledged for it.
    held: u64,
    /// Of it: pledges of calls under way.
    pledged: u64,
    /// What the newest reading said.
    reserved: u64,
    /// At most this much is in use: by the last reading that asked, and by the requests since.
    busy: u64,
    /// What the program has and has not given back, by its calls.
    live: u64,
    /// Of it: calls under way that nothing was pledged for.
    inside: u64,
    /// What these may grow by if their room is trimmed away.
    may_grow: u64,
    /// Calls under way.
    calls: u32,
    drawn: u64,
    /// The newest ticket whose reading was applied.
    newest: u64,
    /// How many readings were applied.
    applied: u64,
}

impl Pool {
    /// Bytes that are charged or pledged for it.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Of [`Pool::held`]: what is charged, not pledged.
    #[must_use]
    pub fn charged(&self) -> u64 {
        self.held - self.pledged
    }

    /// Bytes that the program has and has not given back, by its calls.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Whether it may give something back when the program waits for the device.
    #[must_use]
    pub fn may_shrink(&self) -> bool {
        self.charged() > self.live
    }

    /// Bytes that are charged and not in use, as of the last reading.
    #[must_use]
    pub fn slack(&self) -> u64 {
        self.charged().saturating_sub(self.busy)
    }

    /// Begins a request that fits inside, as the caller knows; nothing is pledged for it. `None`: it cannot fit, or it is
    /// not alone.
    pub fn begin_inside(&mut self, bytes: u64) -> Option<Call> {
        (self.calls == 0 && self.charged().saturating_sub(self.live) >= bytes).then(|| self.enter(bytes))
    }

    /// Whether requests are under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.calls > 0
    }

    /// The least that a request must pledge that begins now.
    #[must_use]
    pub fn least_pledge(&self) -> u64 {
        self.may_grow
    }

    fn enter(&mut self, bytes: u64) -> Call {
        self.live = self.live.saturating_add(bytes);
        self.busy = self.busy.saturating_add(bytes);
        self.inside = self.inside.saturating_add(bytes);
        self.may_grow = self.may_grow.saturating_add(growth(bytes, None).unwrap_or(0));
        self.calls += 1;
        Call { bytes, pledge: 0, inside: true }
    }

    /// Begins a request for whose growth `pledge` bytes are reserved in the ledger. 0 is allowed: growth then shows as
    /// [`Change::lack`].
    pub fn begin_pledged(&mut self, bytes: u64, pledge: u64) -> Call {
        self.held = self.held.saturating_add(pledge);
        self.pledged = self.pledged.saturating_add(pledge);
        self.calls += 1;
        Call { bytes, pledge, inside: false }
    }

    /// Draws the ticket of a reading. Draw, then ask the driver.
    pub fn ticket(&mut self) -> Ticket {
        self.drawn += 1;
        Ticket { number: self.drawn, applied: self.applied, insists: false }
    }

    /// Ends a request: `granted` by the driver or not. Without a reading it is assumed to have taken what was pledged.
    ///
    /// `None`: nothing has happened; draw another ticket and read again.
    pub fn end(&mut self, call: Call, granted: bool, reading: Option<Reading>) -> Option<Change> {
        if reading.is_some_and(|reading| self.is_doubtful(&reading)) {
            return None;
        }
        self.leave(call, granted);
        if reading.is_none() && granted && !call.inside {
            self.reserved = self.reserved.saturating_add(call.pledge);
        }
        let before = self.reserved;
        let grew = self.apply(reading).filter(|_| self.calls == 0);
        let shrank = self.reserved < before;
        Some(Change { grew, shrank, ..self.settle(call.pledge) })
    }

    /// Ends a request that was granted from what the pool is known to have held all the time: it has not grown by it.
    pub fn end_inside(&mut self, call: Call) -> Change {
        self.leave(call, true);
        self.settle(call.pledge)
    }

    fn leave(&mut self, call: Call, granted: bool) {
        self.calls -= 1;
        if call.inside {
            self.inside = self.inside.saturating_sub(call.bytes);
            self.may_grow = self.may_grow.saturating_sub(growth(call.bytes, None).unwrap_or(0));
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

    /// The program gave `bytes` back.
    pub fn freed(&mut self, bytes: u64) {
        self.live = self.live.saturating_sub(bytes);
    }

    /// Applies a reading that no request of this account stands behind: after frees, trims, synchronisation.
    ///
    /// `None`: nothing has happened; draw another ticket and read again.
    pub fn measured(&mut self, reading: Reading) -> Option<Change> {
        if self.is_doubtful(&reading) {
            return None;
        }
        let before = self.reserved;
        let _ = self.apply(Some(reading));
        Some(Change { shrank: self.reserved < before, ..self.settle(0) })
    }

    /// Whether the reading asks for a charge, and may be older than one that was applied.
    fn is_doubtful(&self, reading: &Reading) -> bool {
        let Ticket { number, applied, insists } = reading.ticket;
        !insists && number > self.newest && reading.reserved > self.held && applied != self.applied
    }

    /// The program's allocations are gone without its calls, as at the end of a context: only what the last reading
    /// calls in use can be live.
    pub fn emptied(&mut self) {
        self.live = self.live.min(self.busy);
    }

    /// Applies a reading if it is the newest, and says by how much more the pool holds.
    fn apply(&mut self, reading: Option<Reading>) -> Option<u64> {
        let reading = reading.filter(|reading| reading.ticket.number > self.newest)?;
        let before = core::mem::replace(&mut self.reserved, reading.reserved);
        self.newest = reading.ticket.number;
        self.applied += 1;
        if let Some(used) = reading.used {
            // A request under way may not be in use yet.
            self.busy = used.saturating_add(self.inside);
        }
        reading.reserved.checked_sub(before).filter(|growth| *growth > 0)
    }

    /// Brings the charge between the newest reading and that reading with everything that calls under way may add.
    fn settle(&mut self, own: u64) -> Change {
        let most = self.reserved.saturating_add(self.pledged).saturating_add(self.may_grow);
        let mut change = Change { keep: own, ..Change::default() };
        if self.held < self.reserved {
            change.lack = self.reserved - self.held;
            self.held = self.reserved;
        } else if self.held > most {
            let surplus = self.held - most;
            // The call's own pledge first: what is left was charged earlier.
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
