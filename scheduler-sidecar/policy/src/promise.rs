//! Device time that tenants are promised while they want it.
//!
//! A tenant with a floor is promised its floor. A tenant without one is promised its part by weight of the time that
//! remains after two subtractions: the time that other tenants' floors reserve, and the time that higher classes used.
//! Only tenants that wanted time count, each for the part of the span in which it wanted. No promise exceeds the
//! tenant's ceiling.

use vgpu_core::limits::Class;
use vgpu_core::time::arbiter::Terms;
use vgpu_core::units::share::Share;

/// A whole device, in parts per million.
const WHOLE_DEVICE_PPM: u128 = 1_000_000;

/// A tenant's wanted and delivered time of a device, within a span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeClaim {
    /// The tenant's terms.
    pub terms: Terms,
    /// Time in which it wanted the device, in ns.
    pub wanted_ns: u64,
    /// Device time that it got, in ns.
    pub delivered_ns: u64,
}

/// Sums over the claims of one class, in parts per million of the device and the span.
#[derive(Debug, Clone, Copy, Default)]
struct ClassSums {
    /// Time that floors reserve while they are wanted.
    reserved: u128,
    /// Time that is gone for lower classes: of each claim its reserved or its delivered time, the larger one.
    taken: u128,
    /// Weights, each multiplied by the part of the span in which its tenant wanted the device.
    weights: u128,
}

/// Returns the device time that each of a device's claims is promised within a span, in ns.
///
/// # Cost
/// Grows with the number of claims.
#[must_use]
pub fn promised_ns(span_ns: u64, claims: &[TimeClaim]) -> Vec<u64> {
    let span = u128::from(span_ns.max(1));
    let share = |share: Share| u128::from(share.as_permille()) * WHOLE_DEVICE_PPM / 1000;
    let part = |ns: u64| (u128::from(ns) * WHOLE_DEVICE_PPM / span).min(WHOLE_DEVICE_PPM);
    let weight = |claim: &TimeClaim| u128::from(claim.terms.weight.max(1));
    let mut classes = [ClassSums::default(); Class::COUNT];
    for claim in claims {
        let present = part(claim.wanted_ns);
        let reserved = claim.terms.floor.map_or(0, |floor| share(floor) * present / WHOLE_DEVICE_PPM);
        let sums = &mut classes[claim.terms.class.rank()];
        sums.reserved += reserved;
        sums.taken += reserved.max(part(claim.delivered_ns));
        sums.weights += weight(claim) * present;
    }
    let rate = |claim: &TimeClaim| {
        if let Some(floor) = claim.terms.floor {
            return share(floor);
        }
        // The claim itself has no floor, so it is in no sum of reserved time.
        let own = claim.terms.class.rank();
        let (higher, others) = classes.split_at(own);
        let taken = higher.iter().map(|sums| sums.taken).chain(others.iter().map(|sums| sums.reserved)).sum();
        // The claim's own weight counts for the whole span.
        let absent = WHOLE_DEVICE_PPM - part(claim.wanted_ns);
        let weights = classes[own].weights + weight(claim) * absent;
        WHOLE_DEVICE_PPM.saturating_sub(taken) * weight(claim) * WHOLE_DEVICE_PPM / weights
    };
    let promised = |claim: &TimeClaim| {
        let most = claim.terms.ceiling.map_or(WHOLE_DEVICE_PPM, share);
        let ns = u128::from(claim.wanted_ns) * rate(claim).min(most) / WHOLE_DEVICE_PPM;
        u64::try_from(ns).unwrap_or(u64::MAX)
    };
    claims.iter().map(promised).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn terms(class: Class, floor: u32, ceiling: u32, weight: u32) -> Terms {
        let share = |permille: u32| Share::from_permille(permille).filter(|_| permille > 0);
        Terms { class, floor: share(floor), ceiling: share(ceiling), weight, quantum: None }
    }

    fn claim(terms: Terms, wanted: u64, delivered: u64) -> TimeClaim {
        TimeClaim { terms, wanted_ns: SECOND / 100 * wanted, delivered_ns: SECOND / 100 * delivered }
    }

    /// Promised percent of a second.
    fn promised(claims: &[TimeClaim]) -> Vec<u64> {
        promised_ns(SECOND, claims).into_iter().map(|ns| (ns + SECOND / 200) / (SECOND / 100)).collect()
    }

    #[test]
    fn a_floor_is_promised_while_it_is_wanted_and_the_rest_by_weight_among_those_who_want() {
        let normal = |floor, weight| terms(Class::Normal, floor, 0, weight);
        for (case, claims, expected) in [
            ("alone", vec![claim(normal(0, 1), 100, 90)], vec![100]),
            ("a floor, alone", vec![claim(normal(400, 1), 50, 50)], vec![20]),
            ("equal weights", vec![claim(normal(0, 1), 100, 50), claim(normal(0, 1), 100, 50)], vec![50, 50]),
            ("3 to 1", vec![claim(normal(0, 3), 100, 0), claim(normal(0, 1), 100, 0)], vec![75, 25]),
            ("beside a floor", vec![claim(normal(400, 1), 100, 40), claim(normal(0, 1), 100, 60)], vec![40, 30]),
            ("the other wants half", vec![claim(normal(0, 1), 100, 0), claim(normal(0, 1), 50, 0)], vec![67, 25]),
            ("an idle floor", vec![claim(normal(400, 1), 0, 0), claim(normal(0, 1), 100, 100)], vec![0, 100]),
        ] {
            assert_eq!(promised(&claims), expected, "{case}");
        }
    }

    #[test]
    fn a_class_shares_what_higher_classes_left_and_nobody_is_promised_more_than_its_ceiling() {
        let latency = terms(Class::Latency, 0, 0, 1);
        let batch = terms(Class::Batch, 0, 0, 1);
        let lower_floor = terms(Class::Batch, 200, 0, 1);
        assert_eq!(promised(&[claim(latency, 100, 30), claim(batch, 100, 70)]), [100, 70]);
        assert_eq!(promised(&[claim(latency, 100, 30), claim(lower_floor, 100, 20)]), [80, 20]);
        assert_eq!(promised(&[claim(terms(Class::Normal, 0, 300, 1), 100, 30)]), [30]);
    }

    /// The promise of one claim without a floor next to the others, in parts per million. Each other claim counts by
    /// itself.
    fn rate_beside_others(span: u128, claims: &[TimeClaim], at: usize) -> u128 {
        let share = |share: Share| u128::from(share.as_permille()) * WHOLE_DEVICE_PPM / 1000;
        let part = |ns: u64| (u128::from(ns) * WHOLE_DEVICE_PPM / span).min(WHOLE_DEVICE_PPM);
        let own = claims[at].terms;
        let weight = u128::from(own.weight.max(1));
        let (mut taken, mut weights) = (0, weight * WHOLE_DEVICE_PPM);
        for (_, other) in claims.iter().enumerate().filter(|(other, _)| *other != at) {
            let present = part(other.wanted_ns);
            let reserved = other.terms.floor.map_or(0, |floor| share(floor) * present / WHOLE_DEVICE_PPM);
            let is_higher = other.terms.class.rank() < own.class.rank();
            taken += if is_higher { reserved.max(part(other.delivered_ns)) } else { reserved };
            if other.terms.class == own.class {
                weights += u128::from(other.terms.weight.max(1)) * present;
            }
        }
        WHOLE_DEVICE_PPM.saturating_sub(taken) * weight * WHOLE_DEVICE_PPM / weights
    }

    proptest! {
        #[test]
        fn sums_by_class_promise_the_same_as_each_claim_counted_beside_the_others(
            span in 1..3 * SECOND,
            tenants in prop::collection::vec(
                (0..3_usize, (0..4_u32, 0..900_u32), 0..1_000_u32, 0..9_u32, 0..4 * SECOND, 0..4 * SECOND), 1..12,
            ),
        ) {
            let made = |(class, (has_floor, floor), ceiling, weight, wanted_ns, delivered_ns): &_| {
                let class = [Class::Latency, Class::Normal, Class::Batch][*class];
                let floor = if *has_floor == 0 { *floor } else { 0 };
                TimeClaim {
                    terms: terms(class, floor, *ceiling, *weight), wanted_ns: *wanted_ns, delivered_ns: *delivered_ns,
                }
            };
            let claims: Vec<TimeClaim> = tenants.iter().map(made).collect();
            let all = promised_ns(span, &claims);
            for (at, claim) in claims.iter().enumerate().filter(|(_, claim)| claim.terms.floor.is_none()) {
                let ceiling = claim.terms.ceiling.map_or(1_000, |share| share.as_permille());
                let most = u128::from(ceiling) * 1_000;
                let rate = rate_beside_others(u128::from(span), &claims, at).min(most);
                prop_assert_eq!(u128::from(all[at]), u128::from(claim.wanted_ns) * rate / WHOLE_DEVICE_PPM);
            }
        }

        #[test]
        fn promises_of_one_class_together_never_exceed_the_device(
            tenants in prop::collection::vec((0..3_u32, 1..9_u32, 0..=100_u64, 0..100_u64), 1..12),
        ) {
            // The floors together are at most the device, as admission ensures.
            let each = 1000 / u32::try_from(tenants.len()).unwrap();
            let claims: Vec<TimeClaim> = tenants
                .iter()
                .map(|(floor, weight, _, delivered)| claim(
                    terms(Class::Normal, if *floor == 0 { each } else { 0 }, 0, *weight), 100, *delivered,
                ))
                .collect();
            let all = promised_ns(SECOND, &claims);
            prop_assert!(all.iter().sum::<u64>() <= SECOND, "{all:?}");
            // A tenant that wants less is promised less, and others without a floor at least as much.
            let mut less = claims.clone();
            less[0].wanted_ns = SECOND / 100 * tenants[0].2;
            let others = promised_ns(SECOND, &less);
            prop_assert!(others[0] <= all[0]);
            prop_assert!(others.iter().zip(&all).skip(1).all(|(now, before)| now >= before), "{others:?} {all:?}");
        }
    }
}
