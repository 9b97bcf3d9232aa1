//! The memory ledger: who holds how much of a device, in one page shared by the members of a tenant.
//!
//! There is no total to keep right. Each member writes only its own [`Slot`]; the sum over the slots
//! *is* what the tenant holds. A member that dies takes nothing with it but the lock of its slot, and
//! whoever finds that lock free may settle the slot ([`Ledger::reclaim_dead`]).
//!
//! # A slot
//! Four counters that only ever grow (modulo 2^64), all in bytes:
//!
//! | counter | grows when |
//! |---|---|
//! | `claimed` | a request is put on the table, before anybody knows whether it fits |
//! | `granted` | it fitted, or was withdrawn |
//! | `committed` | the driver said yes, or the request was withdrawn or rolled back |
//! | `dropped` | withdrawn, rolled back, or released |
//!
//! ```text
//! used      = claimed - dropped      what counts against the limit
//! tentative = claimed - granted      on the table; its owner decides within its next instructions
//! pending   = granted - committed    a reservation whose driver call is under way
//! settled   = used - tentative - pending
//! ```
//!
//! # Never over
//! A request is added to `claimed` *first* and the slots are summed *afterwards*; it is granted if the
//! sum is within the limit. All of these accesses have one total order. Among the requests alive at
//! any instant take the one that was added last: its sum came after every other was added, so it saw
//! them all, and it was within the limit. Reading `dropped` before `claimed` makes the sum of a slot
//! that moves too large, never too small.
//!
//! A member that only observes asks under a limit of all ones: its claims are granted whatever the sum, so a tenant with
//! such a member may stand above its limit, by what that member holds. Members that enforce are then refused until the sum has fallen:
//! "never over" holds for what each of *them* adds.
//!
//! # Never falsely refused
//! A sum above the limit proves nothing: it may contain claims about to be withdrawn, or one amount
//! twice, seen in a slot it left and in another it went to. So the request is withdrawn and repeated in
//! turn (`contended.rs`), after the dead were reclaimed, and a refusal needs a *stable* reading: two sums
//! in a row with every counter unchanged. Because counters never go back, equal sums mean equal counters,
//! and the reading is the state of one instant. Refused at once is only what does not fit beside
//! settled charges. A pending reservation is given 10 ms to turn out either way; a tentative claim is
//! waited for longer, since its owner needs nothing but a few nanoseconds on a CPU.
//!
//! # Death at any instruction
//! Every step is one atomic operation on one's own slot, and every state between two steps is covered:
//! the slot counts at least what its owner holds. Settling stores `dropped := claimed` first, which
//! frees the charges in one step, and can be repeated by the next one who comes.
//!
//! # What several hold
//! An exported allocation is charged once, to a [`Share`] of its own, which lives as long as anybody holds its read
//! lock: `shares.rs`.
//!
//! What lives elsewhere: the mapping and the locks (shim-sys implements [`Kernel`]), how many bytes a
//! call charges ([`crate::charging`]), what is shown ([`crate::view`]).

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
pub use copy::{Copied, copied, extent, is_settled};
pub use kernel::{Kernel, Watched};
pub use layout::{
    HEADER_SIZE, Header, Identity, LEDGER_SIZE, LayoutError, LedgerPage, MAGIC, SHARE_SIZE, SHARES, SLOT_SIZE, SLOTS,
    Share, Slot, TURN_LOCK_OFFSET, VERSION, kept_lock_offset, share_lock_offset, slot_lock_offset,
};
#[cfg(not(loom))]
pub use layout::{formatted, is_formatted, open_doors_in};
pub use member::{JoinError, Member, MemberView, Refusal, Reservation};
pub use shares::{Left, ShareId, Shared};
pub use sum::{Ledger, Totals};
