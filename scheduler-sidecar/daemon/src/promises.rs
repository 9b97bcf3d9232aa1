//! Device time that tenants were promised and got, second by second, with a judgement of each minute.
//!
//! [`vgpu_policy::promise`] computes the promises. Pure: the reactor passes the sums of the leases and the time. The
//! record stores the sums that this book returns.

use std::collections::{BTreeMap, HashMap};

use vgpu_control::service::{ServiceSums, is_kept};
use vgpu_core::time::arbiter::Terms;
use vgpu_policy::promise::{TimeClaim, promised_ns};

const MINUTE_SECONDS: i64 = 60;

/// Length of the span that the first look covers, in ns.
const FIRST_SPAN_NS: u64 = 1_000_000_000;

/// Identifies a tenant (by its room) on a device (by UUID).
pub(super) type TenantDevice = (u64, String);

/// Sums of a tenant on a device, as the leases count them.
#[derive(Debug, Clone)]
pub(super) struct PromiseLook {
    pub whose: TenantDevice,
    /// Terms in force; `None`: nothing is promised now.
    pub terms: Option<Terms>,
    /// Time that it waited without the device, in ns.
    pub waited: u64,
    /// Device time charged to it, in ns.
    pub charged: u64,
}

#[derive(Debug, Default)]
struct PromiseAccount {
    waited: u64,
    charged: u64,
    sums: ServiceSums,
    /// Number of the minute since 1970, and the sums at its begin.
    minute: i64,
    before: ServiceSums,
}

/// The promises of all tenants.
#[derive(Debug, Default)]
pub(super) struct PromiseBook {
    accounts: HashMap<TenantDevice, PromiseAccount>,
    /// Monotonic time of the last look, in ns.
    looked: Option<u64>,
}

impl PromiseBook {
    /// Adds what was promised and delivered since the last look. Tenants without news are left out of `looks`.
    pub fn take_looks(&mut self, looks: Vec<PromiseLook>, now: u64, wall: i64) {
        let span = self.looked.map_or(FIRST_SPAN_NS, |looked| now.saturating_sub(looked));
        self.looked = Some(now);
        let mut claims: BTreeMap<String, Vec<(TenantDevice, TimeClaim)>> = BTreeMap::new();
        for look in looks {
            let account = self.accounts.entry(look.whose.clone()).or_default();
            let waited = look.waited.saturating_sub(account.waited);
            let delivered_ns = look.charged.saturating_sub(account.charged);
            (account.waited, account.charged) = (look.waited, look.charged);
            if let Some(terms) = look.terms {
                let claim = TimeClaim { terms, wanted_ns: waited.saturating_add(delivered_ns), delivered_ns };
                claims.entry(look.whose.1.clone()).or_default().push((look.whose, claim));
            }
        }
        for all in claims.into_values() {
            let promised = promised_ns(span, &all.iter().map(|(_, claim)| *claim).collect::<Vec<_>>());
            for ((whose, claim), promised_ns) in all.into_iter().zip(promised) {
                let Some(account) = self.accounts.get_mut(&whose) else { continue };
                account.begin_minute(wall.div_euclid(MINUTE_SECONDS));
                account.sums.wanted_ns = account.sums.wanted_ns.saturating_add(claim.wanted_ns);
                account.sums.promised_ns = account.sums.promised_ns.saturating_add(promised_ns);
                account.sums.delivered_ns = account.sums.delivered_ns.saturating_add(claim.delivered_ns);
            }
        }
    }

    /// The sums of a tenant on a device, with the minutes that are over.
    pub fn sums_of(&mut self, whose: &TenantDevice, wall: i64) -> ServiceSums {
        let Some(account) = self.accounts.get_mut(whose) else { return ServiceSums::default() };
        account.begin_minute(wall.div_euclid(MINUTE_SECONDS));
        account.sums
    }

    /// Forgets a removed tenant.
    pub fn forget_room(&mut self, room: u64) {
        self.accounts.retain(|(of, _), _| *of != room);
    }
}

impl PromiseAccount {
    /// Judges the minute that is over, if another one has begun.
    fn begin_minute(&mut self, minute: i64) {
        if minute == self.minute {
            return;
        }
        let over = self.sums.since(&self.before);
        if over.promised_ns > 0 {
            self.sums.minutes += 1;
            self.sums.minutes_kept += u64::from(is_kept(over.delivered_ns, over.promised_ns));
        }
        (self.minute, self.before) = (minute, self.sums);
    }
}

#[cfg(test)]
mod tests {
    use vgpu_core::units::share::Share;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn look(room: u64, floor: u32, waited: u64, charged: u64) -> PromiseLook {
        let floor = Share::from_percent(floor);
        let terms = Some(Terms { floor, ..Terms::default() });
        PromiseLook { whose: (room, "G".into()), terms, waited: waited * SECOND / 100, charged: charged * SECOND / 100 }
    }

    #[test]
    fn half_of_a_floor_is_half_of_what_was_promised_and_a_minute_that_breaks_it() {
        let mut book = PromiseBook::default();
        let whose = (1, "G".to_owned());
        // Its floor is 40 %. In the first minute it wants always and gets 20 %, in the second one 39 %.
        let (mut waited, mut charged) = (0, 0);
        for second in 1..=120 {
            let got = if second <= 60 { 20 } else { 39 };
            (waited, charged) = (waited + 100 - got, charged + got);
            book.take_looks(vec![look(1, 40, waited, charged)], second * SECOND, i64::try_from(second).unwrap() - 1);
            let sums = book.sums_of(&whose, i64::try_from(second).unwrap() - 1);
            if second == 60 {
                assert_eq!(
                    (sums.wanted_ns, sums.promised_ns, sums.delivered_ns),
                    (60 * SECOND, 24 * SECOND, 12 * SECOND)
                );
                assert_eq!(sums.minutes, 0, "the minute is not over");
            }
        }
        let sums = book.sums_of(&whose, 120);
        assert_eq!((sums.minutes, sums.minutes_kept), (2, 1));
        // A tenant without news for long: its minutes do not count again.
        assert_eq!(book.sums_of(&whose, 12_000), sums);
        book.forget_room(1);
        assert_eq!(book.sums_of(&whose, 12_000), ServiceSums::default());
    }

    #[test]
    fn nothing_is_promised_without_terms_and_the_use_of_that_time_is_not_delivered_later() {
        let mut book = PromiseBook::default();
        let unpromised = PromiseLook { terms: None, ..look(1, 40, 100, 300) };
        book.take_looks(vec![unpromised], SECOND, 0);
        assert_eq!(book.sums_of(&(1, "G".into()), 0), ServiceSums::default());
        book.take_looks(vec![look(1, 40, 150, 350)], 2 * SECOND, 1);
        let sums = book.sums_of(&(1, "G".into()), 1);
        assert_eq!((sums.wanted_ns, sums.promised_ns, sums.delivered_ns), (SECOND, SECOND / 10 * 4, SECOND / 2));
    }

    #[test]
    fn tenants_of_other_devices_take_nothing_from_each_other() {
        let mut book = PromiseBook::default();
        let mut other = look(2, 90, 100, 0);
        other.whose.1 = "H".into();
        let free = PromiseLook { terms: Some(Terms::default()), ..look(1, 40, 0, 100) };
        book.take_looks(vec![free, other], SECOND, 0);
        assert_eq!(book.sums_of(&(1, "G".into()), 0).promised_ns, SECOND);
    }
}
