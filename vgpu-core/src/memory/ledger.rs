//! The memory ledger: counts how much device memory each member of a tenant holds, in one file that all members map.
//!
//! The ledger stores no total. Each member writes only its own [`LedgerSlot`], and the sum over the slots *is* the
//! tenant's usage. A member that dies leaves its charges in its slot and releases the slot's lock. Any member that
//! then gets this lock may settle the slot, which frees the charges ([`Ledger::reclaim_dead`]).
//!
//! # A slot
//! Four counters that only grow (modulo 2^64), all in bytes:
//!
//! | counter | grows when |
//! |---|---|
//! | `claimed` | a request is published, before anybody knows whether it fits |
//! | `granted` | the request fits, or is withdrawn |
//! | `committed` | the driver call succeeds, or the request is withdrawn or rolled back |
//! | `dropped` | the request is withdrawn or rolled back, or the memory is released |
//!
//! ```text
//! used      = claimed - dropped      counts against the limit
//! tentative = claimed - granted      undecided; its owner decides within its next instructions
//! pending   = granted - committed    a reservation whose driver call has not returned
//! settled   = used - tentative - pending    committed, not released
//! ```
//!
//! # The limit is never exceeded
//! A member adds its request to `claimed` *first* and sums the slots *afterwards*. It grants the request if the sum
//! is within the limit. All these accesses have one total order. Take the requests alive at any instant, and of those
//! the one that was added last. Its sum came after every other request was added, so it includes them all, and it was
//! within the limit. A sum reads `dropped` before `claimed`: while a slot changes, its sum may be too large, never
//! too small.
//!
//! A member that only observes reserves under the largest possible limit (all bits set), so each of its requests is
//! granted. A tenant with observing members can therefore exceed its limit by the bytes that those members hold.
//! Members that enforce the limit are then refused until the sum has fallen.
//!
//! # No false refusals
//! A sum above the limit proves nothing. It may contain requests about to be withdrawn, or count one amount twice: in
//! the slot it left and in the slot it moved to. So the member withdraws the request, takes the turn lock, reclaims
//! the dead and repeats the request (`contended.rs`). A refusal needs a *stable* reading: two sums in a row with
//! every counter unchanged. Counters never decrease, so equal sums mean equal counters, and the reading is the state
//! of one instant.
//!
//! Only a request that does not fit next to settled charges is refused immediately. A pending reservation gets 10 ms
//! to succeed or fail. The wait for a tentative request is longer, since its owner needs only a few nanoseconds of CPU
//! time to decide.
//!
//! # Death at any instruction
//! Every step is one atomic operation on the member's own slot. In every state between two steps the slot counts at
//! least the bytes its owner holds. Settling first stores `dropped := claimed`, which frees all charges in one step.
//! If its caller dies too, the next one repeats it.
//!
//! # Memory that several members hold
//! An exported allocation is charged once, to a [`SharedCharge`] of its own. The share lives as long as any process
//! holds a read lock on it: `shares.rs`.
//!
//! Not here: the mapping and the locks (shim-sys implements [`Kernel`]), the bytes that a call is charged
//! ([`crate::memory::charging`]), the numbers shown to programs ([`crate::memory::view`]).

mod contended;
#[cfg(not(loom))]
mod copy;
mod kernel;
mod layout;
mod member;
mod shares;
mod sum;

#[cfg(all(test, not(loom)))]
mod death_tests;
#[cfg(all(test, not(loom)))]
pub(crate) mod fake_kernel;
#[cfg(all(test, loom))]
mod loom_share_tests;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod model_tests;
#[cfg(all(test, not(loom)))]
mod page_tests;
#[cfg(all(test, not(loom)))]
mod share_place_tests;
#[cfg(all(test, not(loom)))]
mod share_tests;
#[cfg(all(test, not(loom)))]
mod tests;

pub use contended::{OUTCOME_WAIT_NS, STUCK_WAIT_NS, TURN_WAIT_NS};
#[cfg(not(loom))]
pub(crate) use copy::account_zero;
#[cfg(not(loom))]
pub use copy::{LedgerCopy, parse_ledger, used_ranges};
pub use kernel::{Kernel, Watched};
pub use layout::{
    LEDGER_BYTES, LEDGER_HEADER_BYTES, LEDGER_MAGIC, LEDGER_SLOT_BYTES, LEDGER_SLOTS, LEDGER_VERSION, LayoutError,
    LedgerHeader, LedgerIdentity, LedgerPage, LedgerSlot, SHARED_CHARGE_BYTES, SHARED_CHARGES, SharedCharge,
    TURN_LOCK_OFFSET, kept_lock_offset, share_lock_offset, slot_lock_offset,
};
#[cfg(not(loom))]
pub use layout::{formatted, is_formatted, ledger_version, open_doors_in};
pub use member::{JoinError, Member, MemberView, Refusal, Reservation};
pub use shares::{HeldCharge, Release, SharedChargeId};
pub use sum::{Ledger, Totals};
