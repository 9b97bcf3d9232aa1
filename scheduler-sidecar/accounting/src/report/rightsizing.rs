//! Suggests limits: compares each tenant's peak with its limit, and says how much would be enough.

use std::collections::BTreeMap;

use vgpu_core::units::bytes::Bytes;

use super::apportion::format_decimal;
use super::gather::NS_PER_SECOND;
use crate::record::ask;

mod show;

/// Suggested memory limits are multiples of this: 256 MiB.
const MEMORY_STEP_BYTES: u64 = 256 << 20;
/// Suggested ceilings are multiples of this, in thousandths.
const SHARE_STEP_PERMILLE: u32 = 50;

/// Headroom that suggested limits leave above the use, and the data that a suggestion needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdviceMargins {
    /// Headroom above the use, in percent.
    pub headroom: u32,
    /// Least seconds of rows for a suggestion.
    pub least: u64,
}

/// Observed use of a tenant on a device.
#[derive(Debug, Clone)]
pub struct SeenUse {
    /// Total length of the rows of this tenant on this device, in seconds.
    pub seconds: u64,
    /// Most bytes that the tenant held at once.
    pub peak: u64,
    /// Refused allocations; `None` if the tenant's memory is unknown.
    pub refused: Option<u64>,
    /// Last memory limit in force.
    pub memory_limit: Option<u64>,
    /// Ceiling (most device time) that was in force last, in thousandths of the device.
    pub sm_limit: Option<u32>,
    /// Measured device time in ns.
    pub gpu_ns: u128,
    /// Time during which use was not measured, in ns.
    pub unmeasured_ns: u128,
    /// Time spent waiting at the launch gate in ns, summed over processes.
    pub wait_ns: u128,
    /// Number of rows for each share of the device's time, in thousandths, without the last row.
    shares: BTreeMap<u32, u32>,
    /// The last row over all groups that the tenant was in: start, seconds, ns.
    last: Option<(i64, u64, u128)>,
}

/// Returns a row's share of the device's time in thousandths, at least 1 if there was any; `None` if there was none.
fn share_of(seconds: u64, gpu_ns: u128) -> Option<u32> {
    let share = (gpu_ns * 1000).div_ceil(u128::from(seconds.max(1)) * NS_PER_SECOND);
    (gpu_ns > 0).then(|| u32::try_from(share).unwrap_or(1000).min(1000))
}

/// Advice for one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice<T> {
    /// The suggested limit; `None` to keep the present one.
    pub limit: Option<T>,
    /// Reason for the advice, in words.
    pub why: String,
}

impl<T> Advice<T> {
    fn keep_as_is(why: impl Into<String>) -> Self {
        Self { limit: None, why: why.into() }
    }
}

/// The report, built row by row.
#[derive(Debug, Default)]
pub struct Rightsizing(BTreeMap<(String, String), SeenUse>);

impl SeenUse {
    /// Returns the share of device time, in thousandths, that 95 % of the busy rows stay within; 0 without busy rows.
    #[must_use]
    pub fn busy_p95(&self) -> u32 {
        let shares = self.all_shares();
        let busy: u64 = shares.values().map(|count| u64::from(*count)).sum();
        let rank = (busy * 95).div_ceil(100);
        let mut before = 0;
        for (share, count) in shares {
            before += u64::from(count);
            if before >= rank {
                return share;
            }
        }
        0
    }

    /// Returns the highest share of device time of any row, in thousandths.
    #[must_use]
    pub fn busiest_row(&self) -> u32 {
        self.all_shares().keys().next_back().copied().unwrap_or(0)
    }

    fn all_shares(&self) -> BTreeMap<u32, u32> {
        let mut shares = self.shares.clone();
        if let Some(share) = self.last.and_then(|(_, seconds, gpu_ns)| share_of(seconds, gpu_ns)) {
            *shares.entry(share).or_default() += 1;
        }
        shares
    }

    fn too_short(&self, care: AdviceMargins) -> Option<String> {
        let minutes = |seconds: u64| seconds.div_ceil(60);
        (self.seconds < care.least).then(|| {
            format!("seen for {} min only; suggested from {} min on", minutes(self.seconds), minutes(care.least))
        })
    }

    /// Suggests a memory limit.
    #[must_use]
    pub fn memory_advice(&self, care: AdviceMargins) -> Advice<u64> {
        if let Some(why) = self.too_short(care) {
            return Advice::keep_as_is(why);
        }
        if self.refused.is_none() && self.peak == 0 {
            return Advice::keep_as_is("its memory is not known: its library reports none");
        }
        let room = u128::from(self.peak) * u128::from(100 + care.headroom) / 100;
        let enough = u64::try_from(room)
            .unwrap_or(u64::MAX)
            .max(1)
            .checked_next_multiple_of(MEMORY_STEP_BYTES)
            .unwrap_or(u64::MAX);
        let (peak, refused) = (Bytes(self.peak), self.refused.unwrap_or(0));
        match self.memory_limit {
            Some(limit) if refused > 0 => {
                let more = (limit.max(self.peak).saturating_add(limit / 4))
                    .checked_next_multiple_of(MEMORY_STEP_BYTES)
                    .unwrap_or(limit);
                let why = format!(
                    "{refused} allocations were refused: a quarter more, or find the program that \
                     asked for so much"
                );
                Advice { limit: Some(more), why }
            }
            Some(limit) if limit > 0 => {
                let part = u128::from(self.peak) * 1000 / u128::from(limit);
                let part = format!("never above {peak}, {} % of its limit", format_decimal(part, 1));
                if enough < limit {
                    Advice { limit: Some(enough), why: format!("{part}; {} % of room above that", care.headroom) }
                } else {
                    Advice::keep_as_is(part)
                }
            }
            _ => Advice {
                limit: Some(enough),
                why: format!("no limit; never above {peak}; {} % of room above that", care.headroom),
            },
        }
    }

    /// Suggests a ceiling (most device time), in thousandths of the device.
    #[must_use]
    pub fn share_advice(&self, care: AdviceMargins) -> Advice<u32> {
        if let Some(why) = self.too_short(care) {
            return Advice::keep_as_is(why);
        }
        if self.unmeasured_ns > 0 {
            return Advice::keep_as_is("not all of its device time was measured: docs/record.md says when");
        }
        let (p95, waited) = (self.busy_p95(), self.wait_ns * 10 > self.gpu_ns);
        let percent = |thousandths: u32| format!("{} %", format_decimal(thousandths.into(), 1));
        let room = p95.saturating_mul(100 + care.headroom) / 100;
        let enough = room.max(1).next_multiple_of(SHARE_STEP_PERMILLE).min(1000);
        match self.sm_limit {
            None if p95 == 0 => Advice::keep_as_is(
                "none of its device time was measured: without an sm_limit, time alone on a \
                     device is not measured",
            ),
            None => {
                Advice::keep_as_is(format!("no ceiling; {} in 95 of 100 busy minutes that were measured", percent(p95)))
            }
            Some(_) if p95 == 0 => Advice::keep_as_is("it computed nothing"),
            Some(limit) if waited && u64::from(p95) * 10 >= u64::from(limit) * 9 => {
                let more = (limit + limit / 4).next_multiple_of(SHARE_STEP_PERMILLE).min(1000);
                let waits = self.wait_ns * 1000 / self.gpu_ns.max(1);
                let why = format!(
                    "at its ceiling ({} in 95 of 100 busy minutes) and waited {} s for each second of work",
                    percent(p95),
                    format_decimal(waits, 3)
                );
                Advice { limit: Some(more).filter(|more| *more > limit), why }
            }
            Some(limit) if enough < limit => Advice {
                limit: Some(enough),
                why: format!("{} in 95 of 100 busy minutes; {} % of room above that", percent(p95), care.headroom),
            },
            Some(_) => Advice::keep_as_is(format!("{} in 95 of 100 busy minutes", percent(p95))),
        }
    }
}

impl Rightsizing {
    /// Adds a row; rows arrive in the order of time.
    pub fn add(&mut self, line: &ask::RecordLine) {
        let seen = self.0.entry((line.tenant.clone(), line.device.clone())).or_insert_with(|| SeenUse {
            seconds: 0,
            peak: 0,
            refused: None,
            memory_limit: None,
            sm_limit: None,
            gpu_ns: 0,
            unmeasured_ns: 0,
            wait_ns: 0,
            shares: BTreeMap::new(),
            last: None,
        });
        let span = u64::try_from(line.span).unwrap_or(60).max(1);
        seen.peak = seen.peak.max(line.peak_bytes);
        if let Some(refused) = line.refused {
            seen.refused = Some(seen.refused.unwrap_or(0).saturating_add(refused));
        }
        seen.memory_limit = line.memory_limit;
        seen.sm_limit = line.sm_limit.map(|limit| u32::try_from(limit).unwrap_or(1000).min(1000));
        seen.gpu_ns += u128::from(line.gpu_ns);
        seen.unmeasured_ns += u128::from(line.unmeasured_ns);
        seen.wait_ns += u128::from(line.wait_ns);
        // A minute in which the tenant's group changed has a row for each group.
        match &mut seen.last {
            Some((start, _, gpu_ns)) if *start == line.start => *gpu_ns += u128::from(line.gpu_ns),
            last => {
                let before = last.replace((line.start, span, line.gpu_ns.into()));
                if let Some(share) = before.and_then(|(_, seconds, gpu_ns)| share_of(seconds, gpu_ns)) {
                    *seen.shares.entry(share).or_default() += 1;
                }
                seen.seconds = seen.seconds.saturating_add(span);
            }
        }
    }

    /// Returns the number of tenants with a memory limit that never held more than `permille` thousandths of it, and
    /// the number of all tenants with one.
    #[must_use]
    pub fn count_below(&self, permille: u64) -> (usize, usize) {
        let limited = || self.0.values().filter(|seen| seen.refused.is_some() || seen.peak > 0);
        let limited = || limited().filter_map(|seen| Some((seen.peak, seen.memory_limit.filter(|limit| *limit > 0)?)));
        let few =
            limited().filter(|(peak, limit)| u128::from(*peak) * 1000 <= u128::from(*limit) * u128::from(permille));
        (few.count(), limited().count())
    }
}

#[cfg(test)]
mod tests {
    use super::super::gather::tests::test_line;
    use super::*;

    const CARE: AdviceMargins = AdviceMargins { headroom: 20, least: 3600 };

    fn seen(change: impl Fn(&mut ask::RecordLine)) -> SeenUse {
        let mut report = Rightsizing::default();
        for minute in 0..60 {
            let mut line = test_line("a", None, "G", minute * 60, 6000, 60);
            (line.memory_limit, line.refused) = (Some(8 << 30), Some(0));
            change(&mut line);
            report.add(&line);
        }
        report.0.into_values().next().unwrap()
    }

    #[test]
    fn who_needs_less_is_told_how_much_is_enough_and_why() {
        let seen = seen(|_| {});
        // 1 GiB plus a fifth, rounded up to 256 MiB; 10 % plus a fifth, rounded up to 5 %.
        let memory = seen.memory_advice(CARE);
        assert_eq!(
            (memory.limit, memory.why.as_str()),
            (Some(1280 << 20), "never above 1 GiB, 12.5 % of its limit; 20 % of room above that")
        );
        let time = seen.share_advice(CARE);
        assert_eq!(
            (time.limit, time.why.as_str()),
            (Some(150), "10.0 % in 95 of 100 busy minutes; 20 % of room above that")
        );
    }

    #[test]
    fn who_was_refused_or_stood_at_its_ceiling_is_given_more() {
        let seen = seen(|line| (line.refused, line.gpu_ns, line.wait_ns) = (Some(1), 17_700_000_000, 9_000_000_000));
        assert_eq!(seen.memory_advice(CARE).limit, Some(10 << 30));
        assert!(seen.memory_advice(CARE).why.starts_with("60 allocations were refused"));
        assert_eq!(seen.share_advice(CARE).limit, Some(400), "{}", seen.share_advice(CARE).why);
    }

    #[test]
    fn a_minute_in_which_its_group_changed_is_one_minute() {
        let mut report = Rightsizing::default();
        for (start, group) in [(0, "one"), (60, "one"), (60, "two")] {
            report.add(&test_line("a", Some(group), "G", start, 6000, 60));
        }
        let seen = report.0.into_values().next().unwrap();
        assert_eq!((seen.seconds, seen.busiest_row(), seen.busy_p95()), (120, 200, 200));
    }

    #[test]
    fn where_little_is_known_nothing_is_suggested_and_that_is_said() {
        let short = AdviceMargins { least: 3601, ..CARE };
        assert_eq!(
            seen(|_| {}).memory_advice(short),
            Advice::keep_as_is("seen for 60 min only; suggested from 61 min on")
        );
        let unmeasured = seen(|line| (line.gpu_ns, line.unmeasured_ns) = (1_000_000_000, 5)).share_advice(CARE);
        assert!(unmeasured.limit.is_none() && unmeasured.why.contains("was measured"), "{unmeasured:?}");
        let blind = seen(|line| (line.refused, line.peak_bytes, line.sm_limit, line.gpu_ns) = (None, 0, None, 0));
        assert!(blind.memory_advice(CARE).limit.is_none() && blind.memory_advice(CARE).why.contains("not known"));
        assert!(blind.share_advice(CARE).limit.is_none() && blind.share_advice(CARE).why.contains("was measured"));
        let fits = seen(|line| (line.peak_bytes, line.gpu_ns) = (7 << 30, 16_000_000_000));
        assert_eq!((fits.memory_advice(CARE).limit, fits.share_advice(CARE).limit), (None, None));
    }
}
