//! Measures the recent device time of the tenant's processes, from the sums that each keeps in the ledger.
//!
//! NVML's samples name processes by pids of another namespace, which cannot be mapped here; the ledger has the
//! tenant's own pids. A share is the difference of two looks at the ledger, at least a sixth of a second apart, like
//! NVML's samples. The first look is taken when the program initialises NVML; an earlier query waits for the rest of
//! that time.

use crate::device::table::{self, Device};
use crate::ffi::clock;
use crate::ffi::lock::Lock;
use std::time::{SystemTime, UNIX_EPOCH};
use vgpu_core::memory::ledger::MemberView;

/// Minimum time between two looks.
const MIN_LOOK_INTERVAL_NS: u64 = 166_666_667;
/// Maximum time between two looks: an older one is no longer recent.
const MAX_LOOK_AGE_NS: u64 = 5_000_000_000;
/// Maximum number of looks for one query: a signal may cut the sleep between them short.
const MAX_SLEEP_TRIES: u32 = 16;

/// A snapshot of a device's members.
struct LedgerLook {
    at: u64,
    members: Vec<MemberView>,
}

/// By device number: the last look, and the one before it.
static LAST_LOOKS: [Lock<[Option<Box<LedgerLook>>; 2]>; 64] = [const { Lock::new([None, None]) }; 64];

/// One process's use of a device.
pub struct ProcessUsage {
    /// The process's pid in its own namespace.
    pub pid: u32,
    /// Bytes of device memory that it uses.
    pub used: u64,
    /// Device time of the process in ns.
    pub busy_ns: u64,
}

/// The use by the tenant's processes between two looks.
pub struct TenantUsage {
    /// Time between the looks in ns.
    pub span_ns: u64,
    /// The shares of all living processes.
    pub shares: Vec<ProcessUsage>,
}

fn look_at_ledger(device: &Device) -> Option<Box<LedgerLook>> {
    let members = device.ledger.membership().ok()?.living_members();
    Some(Box::new(LedgerLook { at: clock::now(), members }))
}

/// Takes a look at all devices whose time is measured, so that the first query has one to compare with.
pub fn begin_measuring() {
    for device in table::all().filter(|device| device.governor.is_some()) {
        let Some(now) = look_at_ledger(device) else { continue };
        if let Some(looks) = LAST_LOOKS.get(usize::from(device.index)) {
            let mut looks = looks.lock();
            if looks[0].as_ref().is_none_or(|last| now.at.saturating_sub(last.at) > MAX_LOOK_AGE_NS) {
                *looks = [Some(now), None];
            }
        }
    }
}

/// The recent use of the device by the tenant's processes. `None`: its time is not measured.
///
/// # Cost
/// A scan of the ledger; up to a sixth of a second of sleep without a recent look.
pub fn usage_of(device: &Device) -> Option<TenantUsage> {
    device.governor.as_ref()?;
    let looks = LAST_LOOKS.get(usize::from(device.index))?;
    for _ in 0..MAX_SLEEP_TRIES {
        let wait = match compare_looks(&mut looks.lock(), look_at_ledger(device)?) {
            Ok(usage) => return Some(usage),
            Err(wait) => wait,
        };
        clock::sleep(wait);
    }
    Some(TenantUsage { span_ns: MIN_LOOK_INTERVAL_NS, shares: Vec::new() })
}

/// Compares with an older look, or returns in `Err` how long to wait, in ns.
fn compare_looks(looks: &mut [Option<Box<LedgerLook>>; 2], now: Box<LedgerLook>) -> Result<TenantUsage, u64> {
    let age = |look: &Option<Box<LedgerLook>>| look.as_ref().map_or(u64::MAX, |look| now.at.saturating_sub(look.at));
    let (last, before) = (age(&looks[0]), age(&looks[1]));
    if let (MIN_LOOK_INTERVAL_NS..=MAX_LOOK_AGE_NS, Some(base)) = (last, &looks[0]) {
        let usage = usage_between(base, &now);
        looks[1] = looks[0].replace(now);
        return Ok(usage);
    }
    if let (MIN_LOOK_INTERVAL_NS..=MAX_LOOK_AGE_NS, Some(base)) = (before, &looks[1]) {
        return Ok(usage_between(base, &now));
    }
    if last < MIN_LOOK_INTERVAL_NS {
        return Err(MIN_LOOK_INTERVAL_NS - last);
    }
    *looks = [Some(now), None];
    Err(MIN_LOOK_INTERVAL_NS)
}

fn usage_between(base: &LedgerLook, now: &LedgerLook) -> TenantUsage {
    let span_ns = now.at.saturating_sub(base.at).max(1);
    let share = |member: &MemberView| {
        let before = base.members.iter().find(|old| old.index == member.index && old.birth == member.birth);
        let busy_ns = member.busy_ns.saturating_sub(before.map_or(0, |old| old.busy_ns)).min(span_ns);
        ProcessUsage { pid: member.pid, used: member.used, busy_ns }
    };
    TenantUsage { span_ns, shares: now.members.iter().map(share).collect() }
}

/// Clears the looks in a forked child.
pub fn reset_after_fork() {
    for looks in &LAST_LOOKS {
        // SAFETY: called by the child's settling thread, before any other thread continues.
        unsafe { looks.reset([None, None]) };
    }
}

/// Percent, rounded: at least 1 for any use, at most 100.
#[allow(clippy::cast_possible_truncation)] // at most 100
pub fn to_percent(part: u64, whole: u64) -> u32 {
    let whole = u128::from(whole.max(1));
    let rounded = (u128::from(part) * 100 + whole / 2) / whole;
    rounded.clamp(u128::from(part > 0), 100) as u32
}

/// Microseconds since 1970, as NVML stamps its samples.
pub fn since_1970() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(index: usize, birth: u64, busy_ns: u64) -> MemberView {
        MemberView { index, pid: 100, birth, used: 7, shared: 0, overhead: 0, high: 0, busy_ns }
    }

    fn seen(at: u64, members: &[MemberView]) -> Box<LedgerLook> {
        Box::new(LedgerLook { at, members: members.to_vec() })
    }

    fn busy(usage: &TenantUsage) -> Vec<u64> {
        usage.shares.iter().map(|share| share.busy_ns).collect()
    }

    #[test]
    fn two_looks_are_a_period_apart_and_not_much_more() {
        let mut looks = [None, None];
        let t = 10 * MAX_LOOK_AGE_NS;
        assert_eq!(
            compare_looks(&mut looks, seen(t, &[member(0, 1, 50)])).err(),
            Some(MIN_LOOK_INTERVAL_NS),
            "the first one"
        );
        assert_eq!(
            compare_looks(&mut looks, seen(t + 1000, &[member(0, 1, 50)])).err(),
            Some(MIN_LOOK_INTERVAL_NS - 1000)
        );
        let usage = compare_looks(&mut looks, seen(t + MIN_LOOK_INTERVAL_NS, &[member(0, 1, 80)])).ok().unwrap();
        assert_eq!((usage.span_ns, busy(&usage)), (MIN_LOOK_INTERVAL_NS, vec![30]));
        // An immediate second query is compared with the look before the last.
        let usage = compare_looks(&mut looks, seen(t + MIN_LOOK_INTERVAL_NS + 5, &[member(0, 1, 90)])).ok().unwrap();
        assert_eq!((usage.span_ns, busy(&usage)), (MIN_LOOK_INTERVAL_NS + 5, vec![40]));
        let late = t + 3 * MAX_LOOK_AGE_NS;
        assert_eq!(
            compare_looks(&mut looks, seen(late, &[member(0, 1, 99)])).err(),
            Some(MIN_LOOK_INTERVAL_NS),
            "too long ago"
        );
    }

    #[test]
    fn a_slot_that_has_another_member_now_begins_anew() {
        let base = seen(0, &[member(0, 1, 1000), member(1, 1, 5)]);
        let now =
            seen(MIN_LOOK_INTERVAL_NS, &[member(0, 2, 30), member(1, 1, MIN_LOOK_INTERVAL_NS * 9), member(2, 1, 4)]);
        assert_eq!(busy(&usage_between(&base, &now)), [30, MIN_LOOK_INTERVAL_NS, 4], "no more than the time there was");
    }

    #[test]
    fn any_use_is_one_percent_at_least() {
        assert_eq!([to_percent(0, 0), to_percent(1, 1 << 40), to_percent(1, 2), to_percent(9, 3)], [0, 1, 50, 100]);
        assert_eq!(to_percent(u64::MAX, u64::MAX), 100);
    }
}
