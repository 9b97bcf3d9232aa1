//! Deadlines: the floor that a tenant needs to be done in time, no more, and never past what is admissible.
//!
//! ```text
//! needed part of a device = device time that remains / time that is left, divided among the tenant's devices
//! ```
//!
//! Floors are rounded up to whole percent, and fall only by [`FALL_PERMILLE`], so that terms change rarely. A device
//! has one sum of floors, in which each decision counts before the next one ([`FloorSums`]).

use std::collections::BTreeMap;

use vgpu_config::plan::TenantPlan;
use vgpu_config::schedule::WindowPlan;
use vgpu_config::usage::DeadlinePlan;
use vgpu_core::units::share::Share;

const NS_PER_SECOND: u128 = 1_000_000_000;

/// Floors are multiples of this, in thousandths.
const GRID_PERMILLE: u64 = 10;

/// A raised floor stays until the needed one is this much lower, in thousandths.
const FALL_PERMILLE: u64 = 20;

/// Part of the ceilings by which the needed time must pass them before a deadline counts as missed, and must be below
/// them before a missed one can be met again, in thousandths.
const MISSED_SLACK_PERMILLE: u64 = 10;

/// A device of a tenant with a deadline, and the tenant's terms there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadlineDevice {
    /// Name of the device.
    pub name: String,
    /// The tenant's floor in force.
    pub floor: Option<Share>,
    /// The tenant's ceiling in force.
    pub ceiling: Option<Share>,
    /// As [`DeadlineRoom::ceiling`].
    pub highest_ceiling: u32,
    /// As [`DeadlineRoom::raised`].
    pub raised: u32,
}

/// The sum of the floors of each device, in thousandths, while deadlines are decided one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FloorSums(BTreeMap<String, u32>);

impl FloorSums {
    /// Counts a floor that is in force.
    pub fn add_floor(&mut self, device: &str, floor: Option<Share>) {
        let Some(floor) = floor else { return };
        match self.0.get_mut(device) {
            Some(sum) => *sum += u32::from(floor.as_permille()),
            None => drop(self.0.insert(device.to_owned(), floor.as_permille().into())),
        }
    }

    /// The room that a tenant has on a device next to the floors of all others.
    fn room_on(&self, device: &DeadlineDevice) -> DeadlineRoom {
        let sum = self.0.get(&device.name).copied().unwrap_or(0);
        let others = sum.saturating_sub(device.floor.map_or(0, |floor| floor.as_permille().into()));
        let in_force = device.ceiling.map_or(1000, |ceiling| ceiling.as_permille().into());
        let admissible = 1000_u32.saturating_sub(others).min(in_force);
        DeadlineRoom { admissible, ceiling: device.highest_ceiling, raised: device.raised }
    }

    /// Decides a tenant's deadline as [`decide_deadline`], and counts the floors that it raises: the next tenant finds
    /// the rest. A paused tenant cannot use a promise and gets none.
    #[must_use]
    pub fn decide_next(
        &mut self,
        plan: &DeadlinePlan,
        received_ns: u64,
        devices: &[DeadlineDevice],
        last: DeadlineState,
        is_paused_on: impl Fn(&str) -> bool,
        now: i64,
    ) -> DeadlineDecision {
        let rooms: Vec<DeadlineRoom> = devices.iter().map(|device| self.room_on(device)).collect();
        let mut decision = decide_deadline(plan, received_ns, &rooms, last, now);
        for (device, floor) in devices.iter().zip(&mut decision.floors) {
            *floor = floor.filter(|_| !is_paused_on(&device.name));
            // A floor that falls is free when it has fallen.
            let above = |floor: &Share| Some(*floor) > device.floor;
            let Some(raised) = floor.filter(above) else { continue };
            let before = device.floor.map_or(0, |floor| floor.as_permille());
            *self.0.entry(device.name.clone()).or_default() += u32::from(raised.as_permille() - before);
        }
        decision
    }
}

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

/// Returns the floors at `now`, in seconds since 1970. `received_ns` is the device time that the work got so far,
/// `last` the state before.
#[must_use]
pub fn decide_deadline(
    plan: &DeadlinePlan,
    received_ns: u64,
    rooms: &[DeadlineRoom],
    last: DeadlineState,
    now: i64,
) -> DeadlineDecision {
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
    // Work that needs all of its ceilings is a little short of them at every second look.
    let slack = ceilings * u128::from(MISSED_SLACK_PERMILLE) / 1000;
    let may_need = if matches!(last, DeadlineState::Missed { .. }) { ceilings - slack } else { ceilings + slack };
    if needed > may_need {
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
