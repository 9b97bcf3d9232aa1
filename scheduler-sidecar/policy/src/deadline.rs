//! Deadlines: the floor that a tenant needs to be done in time, no more, and never past what is admissible.
//!
//! ```text
//! needed part of a device = device time that remains / time that is left, divided among the tenant's devices
//! ```
//!
//! Floors are rounded up to whole percent, and fall only by [`FALL_PERMILLE`], so that terms change rarely.

use vgpu_config::plan::TenantPlan;
use vgpu_config::schedule::WindowPlan;
use vgpu_config::usage::DeadlinePlan;
use vgpu_core::units::share::Share;

const NS_PER_SECOND: u128 = 1_000_000_000;

/// Floors are multiples of this, in thousandths.
const GRID_PERMILLE: u64 = 10;

/// A raised floor stays until the needed one is this much lower, in thousandths.
const FALL_PERMILLE: u64 = 20;

/// A device of the tenant, as far as a deadline may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadlineRoom {
    /// Highest floor that fits next to the floors of others, in thousandths, at most [`Self::ceiling`].
    pub admissible: u32,
    /// The most device time that the tenant may use until the due time, in thousandths ([`find_highest_ceiling`]).
    pub ceiling: u32,
    /// Floor that was raised for the deadline before, in thousandths; 0: none.
    pub raised: u32,
}

/// State of a deadline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeadlineState {
    /// It can be met.
    #[default]
    OnTime,
    /// The floor that it needs is not admissible. It may still be met with time that others do not use.
    AtRisk,
    /// All of the tenant's ceilings cannot meet it any more.
    Missed {
        /// Time since which that is so, in seconds since 1970.
        since: i64,
    },
    /// The work is done.
    Met,
}

/// A deadline's state, and the floor of each device, in the order of the rooms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadlineDecision {
    /// State now.
    pub state: DeadlineState,
    /// Floors to raise to; `None`: none.
    pub floors: Vec<Option<Share>>,
}

/// Returns the floors at `now`, in seconds since 1970. `received_ns` is the device time that the work got so far.
#[must_use]
pub fn decide_deadline(plan: &DeadlinePlan, received_ns: u64, rooms: &[DeadlineRoom], now: i64) -> DeadlineDecision {
    let none = |state| DeadlineDecision { state, floors: vec![None; rooms.len()] };
    let remaining = u128::from(plan.needed_ns.saturating_sub(received_ns));
    if remaining == 0 {
        return none(DeadlineState::Met);
    }
    // Thousandths of one device, over all devices.
    let ceilings: u128 = rooms.iter().map(|room| u128::from(room.ceiling)).sum();
    let Some(left) = u128::try_from(plan.due.saturating_sub(now)).ok().filter(|left| *left > 0 && ceilings > 0) else {
        return none(DeadlineState::Missed { since: last_chance(plan, remaining, ceilings) });
    };
    let needed = (remaining * 1000).div_ceil(left * NS_PER_SECOND);
    if needed > ceilings {
        return none(DeadlineState::Missed { since: last_chance(plan, remaining, ceilings).min(now) });
    }
    let floors = divide(u64::try_from(needed).unwrap_or(u64::MAX), rooms);
    let promised: u128 = floors.iter().map(|floor| u128::from(*floor)).sum();
    let share = |floor: &u64| u32::try_from(*floor).ok().and_then(Share::from_permille);
    DeadlineDecision {
        state: if promised < needed { DeadlineState::AtRisk } else { DeadlineState::OnTime },
        floors: floors.iter().map(share).collect(),
    }
}

/// Returns the highest ceiling on a device that the tenant has now or will have, in thousandths: its own, that of a
/// window, or the one in force. A ceiling that a window or a quota lowers for some hours does not decide a deadline.
#[must_use]
pub fn find_highest_ceiling(own: &TenantPlan, device: &str, in_force: Option<Share>, windows: &[WindowPlan]) -> u32 {
    let group = own.bearer.group.as_deref();
    let is_about =
        |window: &&WindowPlan| window.subjects.has_tenant(&own.name, group) && window.subjects.has_device(device);
    let of_windows = windows.iter().filter(is_about).filter_map(|window| window.change.ceiling);
    let of_file = own.terms.iter().filter(|terms| terms.device == device).map(|terms| terms.ceiling);
    let permille = |ceiling: Option<Share>| ceiling.map_or(1000, |share| u32::from(share.as_permille()));
    of_windows.chain(of_file).map(permille).fold(permille(in_force), u32::max)
}

/// Returns the last moment at which all of the ceilings could have done the work in time.
fn last_chance(plan: &DeadlinePlan, remaining: u128, ceilings: u128) -> i64 {
    let needs = (remaining * 1000).checked_div(ceilings * NS_PER_SECOND).unwrap_or(0);
    plan.due.saturating_sub(i64::try_from(needs).unwrap_or(i64::MAX))
}

/// Divides the needed thousandths equally; what a device does not admit goes to the others.
fn divide(needed: u64, rooms: &[DeadlineRoom]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..rooms.len()).collect();
    order.sort_by_key(|at| rooms[*at].admissible);
    let (mut left, mut floors) = (needed, vec![0; rooms.len()]);
    for (taken, at) in order.iter().enumerate() {
        let room = &rooms[*at];
        let part = left.div_ceil((rooms.len() - taken) as u64);
        let floor = settle(part, u64::from(room.raised)).min(u64::from(room.admissible));
        floors[*at] = floor;
        left = left.saturating_sub(floor.min(part));
    }
    floors
}

/// Rounds a needed floor up, and keeps a raised one that is only a little higher.
fn settle(needed: u64, raised: u64) -> u64 {
    let rounded = needed.div_ceil(GRID_PERMILLE) * GRID_PERMILLE;
    if rounded <= raised && raised < rounded + FALL_PERMILLE { raised } else { rounded }
}
