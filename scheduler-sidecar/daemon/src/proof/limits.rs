//! Memory that a tenant may hold on a device: its limit, or what it held when the limit was lowered. No IO.
//!
//! A tenant may hold more than its limit if the limit was lowered, or was not enforced before. It may keep that
//! memory, but not allocate it again after it was freed. So the bound is at most the highest limit that was in force,
//! and falls with the memory that the tenant is seen to hold.

use std::collections::HashMap;
use std::time::Instant;

use vgpu_core::units::uuid;

use super::uncharged::TenantDeviceKey;

/// Limits in bytes by the configuration's names of devices; `u64::MAX`: no limit.
pub type LimitsByDevice = Vec<(String, u64)>;

/// Memory limits of a tenant, now and before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantLimits {
    /// Limits in force now.
    pub now: LimitsByDevice,
    /// The highest limit of each name since the tenant last had no members.
    pub before: LimitsByDevice,
    /// Time of the last change of the tenant's limits; `None`: never.
    pub changed: Option<Instant>,
}

/// Name that stands for every device without its own limit.
const ANY_DEVICE: &str = "*";

impl TenantLimits {
    /// The limit in force on a device.
    fn now(&self, device: &str) -> u64 {
        let named = self.now.iter().find(|(name, _)| uuid::is_same_device(name, device));
        // A device that the tenant may not use has no limit: no member can join it.
        named.or_else(|| self.now.iter().find(|(name, _)| name == ANY_DEVICE)).map_or(u64::MAX, |(_, bytes)| *bytes)
    }

    /// The highest limit that was in force on a device.
    fn highest_limit(&self, device: &str) -> u64 {
        let here = self.before.iter().filter(|(name, _)| name == ANY_DEVICE || uuid::is_same_device(name, device));
        here.map(|(_, bytes)| *bytes).fold(self.now(device), u64::max)
    }
}

/// Adds limits that were in force: the highest of each name is kept.
pub fn raise_limits(before: &mut LimitsByDevice, limits: impl IntoIterator<Item = (String, u64)>) {
    for (name, bytes) in limits {
        match before.iter_mut().find(|(known, _)| *known == name) {
            Some((_, highest)) => *highest = bytes.max(*highest),
            None => before.push((name, bytes)),
        }
    }
}

/// Memory that tenants may still hold above a lowered limit: falls as the tenant frees memory.
#[derive(Debug, Default)]
pub struct MemoryBounds(HashMap<TenantDeviceKey, MemoryBound>);

#[derive(Debug)]
struct MemoryBound {
    bytes: u64,
    /// Time of the change of limits after which the bound fell.
    changed: Option<Instant>,
}

impl MemoryBounds {
    /// Bytes that a tenant may hold on a device.
    #[must_use]
    pub fn bound_of(&self, key: &TenantDeviceKey, limits: &TenantLimits) -> u64 {
        let highest = limits.highest_limit(&key.1);
        let fell = self.0.get(key).filter(|bound| bound.changed == limits.changed).map_or(highest, |bound| bound.bytes);
        limits.now(&key.1).max(fell.min(highest))
    }

    /// Notes that a tenant holds `held` bytes, all of it seen at `since` or later.
    pub fn note_held(&mut self, key: TenantDeviceKey, limits: &TenantLimits, held: u64, since: Instant) {
        if limits.changed.is_none_or(|changed| changed < since) {
            let bytes = self.bound_of(&key, limits).min(held);
            self.0.insert(key, MemoryBound { bytes, changed: limits.changed });
        }
    }

    /// Forgets tenants that no longer exist.
    pub fn retain_tenants(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|(tenant, _), _| is_there(tenant));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_held_above_a_lowered_limit_may_stay_and_what_was_freed_may_not_come_again() {
        let (key, start) = (("a".to_owned(), "gpu-1".to_owned()), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut bounds = MemoryBounds::default();
        let mut limits = TenantLimits { now: vec![("*".into(), 8)], ..TenantLimits::default() };
        bounds.note_held(key.clone(), &limits, 1, at(0));
        assert_eq!(bounds.bound_of(&key, &limits), 8, "a limit that did not change is what it is");
        // The limit was lowered after the ledger was read.
        raise_limits(&mut limits.before, limits.now.clone());
        (limits.now, limits.changed) = (vec![("*".into(), 2)], Some(at(5)));
        bounds.note_held(key.clone(), &limits, 1, at(4));
        assert_eq!(bounds.bound_of(&key, &limits), 8);
        for (second, held, bound) in [(6, 7, 7), (7, 9, 7), (8, 5, 5), (9, 7, 5), (10, 1, 2)] {
            bounds.note_held(key.clone(), &limits, held, at(second));
            assert_eq!(bounds.bound_of(&key, &limits), bound, "in second {second}");
        }
        // The limit was raised and lowered between two rounds of the check.
        limits.changed = Some(at(11));
        assert_eq!(bounds.bound_of(&key, &limits), 8);
        limits.before.clear();
        assert_eq!(bounds.bound_of(&key, &limits), 2, "its members had all left");
    }

    #[test]
    fn a_device_has_its_own_limit_or_that_of_every_other_device() {
        let before = vec![("GPU-1".into(), 5), ("7".into(), 100)];
        let limits = TenantLimits { now: vec![("*".into(), 3), ("GPU-1".into(), 1)], before, changed: None };
        let of = |device: &str| (limits.now(device), limits.highest_limit(device));
        assert_eq!([of("gpu-1"), of("gpu-2")], [(1, 5), (3, 3)]);
        assert_eq!(TenantLimits::default().now("gpu-1"), u64::MAX);
        let mut before = vec![("*".to_owned(), 3)];
        raise_limits(&mut before, [("*".to_owned(), 2), ("GPU-1".to_owned(), 9)]);
        assert_eq!(before, [("*".to_owned(), 3), ("GPU-1".to_owned(), 9)]);
    }
}
