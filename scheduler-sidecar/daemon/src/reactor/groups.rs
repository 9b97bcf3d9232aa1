//! Follows the use of groups: weights that converge to the shares of the tree, and quotas.
//!
//! [`vgpu_policy::groups`] and [`vgpu_policy::quotas`] decide, the record knows the use. Here are the moments: which
//! tenants run, when weights are computed again, and which events are told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{info, warn};
use vgpu_accounting::clock;
use vgpu_accounting::record::group_use::{GroupUse, UseQuestion};
use vgpu_config::admit::sum_group_limits;
use vgpu_config::groups::{GroupPlan, QuotaEffect, QuotaPeriod, QuotaResource};
use vgpu_config::plan::TenantPlan;
use vgpu_control::status::{GroupStatus, QuotaStatus};
use vgpu_policy::active::PolicyInputs;
use vgpu_policy::chain::decide;
use vgpu_policy::groups::{
    GroupInputs, GroupShares, HeldWeights, divide_shares, divides_by_use, settle_weights, weight_changes,
};
use vgpu_policy::outcome::Decision;
use vgpu_policy::quotas::{
    PeriodUse, QuotaLevel, QuotaState, UseByPeriod, follow_quotas, period_starts, quota_changes,
};
use vgpu_policy::usage::UsageChange;

use super::{Reactor, arbiter_number};

/// Shortest time between two computations of the weights, unless a tenant or another file comes: a tenant's board is
/// written for them at most that often.
const WEIGHT_PERIOD: Duration = Duration::from_secs(10);

/// Time for which a tenant counts as running after it last used or wanted a device.
const RUNNING_HOLD: Duration = Duration::from_secs(60);

/// Longest time that a starting daemon waits for the record, so that no quota is forgotten for a moment.
const RECORD_START_TIMEOUT: Duration = Duration::from_secs(2);

/// Names a limit of a quota in its present period, wherever the quota stands in the file. The start of the period
/// stands for the time zone. The amount is left out: a larger one changes a limit, and makes no other one of it.
type LimitKey = (String, QuotaPeriod, QuotaResource, QuotaEffect, i64);

/// State of groups between two looks at their use.
#[derive(Debug, Default)]
pub(super) struct GroupState {
    /// Time at which each tenant last used or wanted a device.
    seen: BTreeMap<String, Instant>,
    held: HeldWeights,
    /// Time at which the weights were computed.
    weighed: Option<Instant>,
    weights: Vec<UsageChange>,
    quotas: Vec<UsageChange>,
    /// The tenants with the terms of windows and bookings, and the time until which these hold, in seconds since 1970.
    scheduled: Option<(Vec<TenantPlan>, i64)>,
    /// The use by which the quotas were judged last, and the end of the first of their periods, in seconds since 1970.
    judged: Option<(Arc<GroupUse>, i64)>,
    /// Limits whose state was told.
    told: BTreeMap<LimitKey, QuotaState>,
}

impl GroupState {
    /// Forgets a removed tenant.
    pub fn forget_tenant(&mut self, tenant: &str) {
        self.seen.remove(tenant);
    }

    /// The changes of terms that follow from use.
    pub fn changes(&self) -> impl Iterator<Item = &UsageChange> {
        self.weights.iter().chain(&self.quotas)
    }

    /// Names of the tenants that run.
    pub fn running(&mut self, now: Instant) -> BTreeSet<String> {
        self.seen.retain(|_, seen| now.saturating_duration_since(*seen) < RUNNING_HOLD);
        self.seen.keys().cloned().collect()
    }

    /// Makes the next look compute the weights, because the configuration changed or a tenant was added: its own weight
    /// is on another scale.
    pub fn weigh_again(&mut self) {
        self.weighed = None;
        self.forget_schedule();
    }

    /// Forgets the terms that windows and bookings give and the judgement of quotas, because something that they follow
    /// from may have changed.
    pub fn forget_schedule(&mut self) {
        (self.scheduled, self.judged) = (None, None);
    }

    /// Forgets all that followed from use, because no group follows it any more.
    pub fn stop(&mut self) {
        self.weights.clear();
        self.quotas.clear();
        self.held.clear();
        self.forget_schedule();
        self.tell_quotas(Vec::new());
    }

    /// Tells the events of limits that were reached since the last look, and of those that are free again.
    fn tell_quotas(&mut self, states: Vec<QuotaState>) {
        let now = by_limit(states);
        let is_restricted = |state: &QuotaState| state.level == QuotaLevel::UsedUp;
        // With another effect, a limit goes on.
        let goes_on = |told: &QuotaState| {
            let is_same = |state: &QuotaState| {
                (&state.group, state.start, state.limit_words()) == (&told.group, told.start, told.limit_words())
            };
            now.values().any(|state| is_restricted(state) && is_same(state))
        };
        let ended = self
            .told
            .iter()
            .filter(|(limit, told)| is_restricted(told) && now.get(*limit).is_none_or(|state| !is_restricted(state)));
        for (_, told) in ended.filter(|(_, told)| !goes_on(told)) {
            let (group, quota) = (&told.group, told.limit_words());
            info!(kind = "quota.ended", group, quota, "a group has its own terms again");
        }
        for (limit, state) in &now {
            let before = self.told.get(limit).map_or(QuotaLevel::Free, |told| told.level);
            let (group, quota, until) = (&state.group, state.limit_words(), state.end);
            let used = format!("{:.3}", state.used_hours);
            match state.level {
                level if level <= before => {}
                QuotaLevel::UsedUp => {
                    let then = state.effect.to_string();
                    warn!(kind = "quota.used_up", group, quota, used, then, until, "a group's quota is used up");
                }
                _ => warn!(kind = "quota.near", group, quota, used, until, "80 % of a group's quota are used"),
            }
        }
        self.told = now;
    }
}

/// The quotas by their keys. Of two that differ in their amount alone, the smaller one is kept: it is used up first.
fn by_limit(states: Vec<QuotaState>) -> BTreeMap<LimitKey, QuotaState> {
    let mut limits: BTreeMap<LimitKey, QuotaState> = BTreeMap::new();
    for state in states {
        let key = (state.group.clone(), state.period, state.resource, state.effect, state.start);
        if limits.get(&key).is_none_or(|other| state.limit < other.limit) {
            limits.insert(key, state);
        }
    }
    limits
}

/// The sums since the start of each period, as the policies take them.
fn use_by_period(used: &GroupUse) -> UseByPeriod {
    let groups = |(start, groups): (&i64, &BTreeMap<String, _>)| {
        let one = |(name, sums): (&String, &vgpu_accounting::record::group_use::GroupSums)| {
            (name.clone(), PeriodUse { gpu_ns: sums.gpu_ns, byte_seconds: sums.byte_seconds })
        };
        (*start, groups.iter().map(one).collect())
    };
    used.since.iter().map(groups).collect()
}

impl Reactor {
    /// Notes that a tenant used or wanted a device. A tenant that is paused on all its devices does not run: its
    /// processes may wait for a launch, but its share goes to the others of its group.
    pub(super) fn note_running(&mut self, id: u64, now: Instant) {
        if self.group_plans().is_empty() || self.leases.is_paused(arbiter_number(id)) {
            return;
        }
        let Some(room) = self.rooms.get(&id) else { return };
        match self.groups.seen.get_mut(&room.tenant.name) {
            Some(seen) => *seen = now,
            None => drop(self.groups.seen.insert(room.tenant.name.clone(), now)),
        }
    }

    fn group_plans(&self) -> &[GroupPlan] {
        self.loaded.as_ref().map_or(&[], |loaded| &loaded.plan.groups)
    }

    /// True if the use of groups has an effect on terms.
    pub(super) fn follows_groups(&self) -> bool {
        let groups = self.group_plans();
        divides_by_use(groups) || groups.iter().any(|group| !group.quotas.is_empty())
    }

    /// Asks the record for the use of groups.
    fn ask_group_use(&mut self, now: i64) {
        let Some(plan) = self.loaded.as_ref().map(|loaded| &loaded.plan) else { return };
        let question = UseQuestion { half_life: plan.daemon.half_life, starts: period_starts(&plan.groups, now) };
        self.record.ask_group_use(question);
    }

    /// Waits for the record when the daemon starts: a group that used up its quota must not run for a moment.
    pub(super) fn wait_for_group_use(&mut self) {
        if self.follows_groups() {
            self.ask_group_use(clock::unix_seconds());
            self.record.wait_for_group_use(RECORD_START_TIMEOUT);
        }
    }

    /// Decides about the use of groups. While the use is not known, the last changes of terms stay.
    pub(super) fn follow_groups(&mut self) {
        let (now, clock) = (Instant::now(), clock::unix_seconds());
        self.ask_group_use(clock);
        if let Some(used) = self.record.group_use() {
            let is_due = self.groups.weighed.is_none_or(|at| now.saturating_duration_since(at) >= WEIGHT_PERIOD);
            if is_due {
                self.groups.weighed = Some(now);
                self.weigh_tenants(&used, clock);
            }
            let is_judged = |(judged, until): &(Arc<GroupUse>, i64)| judged.since == used.since && clock < *until;
            if self.groups.judged.as_ref().is_some_and(is_judged) {
                return;
            }
            let states = self.quota_states(&used, clock);
            let until = states.iter().map(|state| state.end).min().unwrap_or(i64::MIN);
            let open = self.rooms.values().filter(|room| !room.is_removed()).map(|room| &room.base);
            let tenants = open.map(|tenant| (tenant.name.as_str(), tenant.bearer.group.as_deref()));
            self.groups.quotas = quota_changes(tenants, &states);
            self.groups.tell_quotas(states);
            self.groups.judged = Some((used, until));
        }
    }

    fn quota_states(&self, used: &GroupUse, clock: i64) -> Vec<QuotaState> {
        follow_quotas(self.group_plans(), &use_by_period(used), self.groups.told.values(), clock)
    }

    /// Computes the weights of all tenants, if some group has a weight.
    fn weigh_tenants(&mut self, used: &GroupUse, clock: i64) {
        let running = self.groups.running(Instant::now());
        let Some(plan) = self.loaded.as_ref().map(|loaded| &loaded.plan) else { return };
        if !divides_by_use(&plan.groups) {
            self.groups.held.clear();
            return self.groups.weights.clear();
        }
        let kept = self.groups.scheduled.take().filter(|(_, until)| clock < *until);
        let (tenants, until) = kept.unwrap_or_else(|| self.scheduled_tenants(clock));
        let (groups, half_life) = (&plan.groups, plan.daemon.half_life);
        let inputs = GroupInputs { groups, half_life, tenants: &tenants, running: &running, used: &used.decayed };
        self.groups.held = settle_weights(&inputs, &divide_shares(&inputs), &self.groups.held);
        self.groups.weights = weight_changes(&inputs, &self.groups.held);
        self.groups.scheduled = Some((tenants, until));
    }

    /// The tenants with the terms that windows and bookings give them now, and the time until which these hold.
    fn scheduled_tenants(&self, clock: i64) -> (Vec<TenantPlan>, i64) {
        let givens = self.policy_givens();
        let inputs = PolicyInputs { usage: &[], overrides: &[], ..givens.to_inputs() };
        let Decision { outcomes, next, .. } = decide(&inputs, clock);
        (outcomes.into_iter().map(|outcome| outcome.tenant).collect(), next.unwrap_or(i64::MAX))
    }

    /// State of the groups, for people and metrics.
    pub(super) fn group_statuses(&mut self) -> Vec<GroupStatus> {
        if self.group_plans().is_empty() {
            return Vec::new();
        }
        let clock = clock::unix_seconds();
        let running = self.groups.running(Instant::now());
        let used = self.record.group_use().filter(|_| self.follows_groups());
        let (tenants, _) = self.scheduled_tenants(clock);
        let promised = self.promised_tenants();
        let Some(plan) = self.loaded.as_ref().map(|loaded| &loaded.plan) else { return Vec::new() };
        let (groups, half_life) = (&plan.groups, plan.daemon.half_life);
        let none = BTreeMap::new();
        let decayed = used.as_ref().map_or(&none, |used| &used.decayed);
        let inputs = GroupInputs { groups, half_life, tenants: &tenants, running: &running, used: decayed };
        let GroupShares { rows, .. } = divide_shares(&inputs);
        let states = used.as_ref().map(|used| self.quota_states(used, clock)).unwrap_or_default();
        let (is_shared, is_known) = (divides_by_use(groups), used.is_some());
        let percent = |part: f64| (part * 1_000.0).round() / 10.0;
        let status = |(group, row): (&GroupPlan, vgpu_policy::groups::GroupRow)| GroupStatus {
            name: row.name,
            weight: group.weight,
            share: is_shared.then(|| percent(row.share)),
            used: is_known.then(|| percent(row.used)),
            effective: is_shared.then(|| percent(row.effective)),
            tenants: row.tenants,
            running: row.running,
            limits: sum_group_limits(&plan.devices, &promised, &group.name),
            quotas: states.iter().filter(|state| state.group == group.name).map(quota_status).collect(),
        };
        groups.iter().zip(rows).map(status).collect()
    }
}

fn quota_status(state: &QuotaState) -> QuotaStatus {
    QuotaStatus {
        per: state.period.word().to_owned(),
        unit: state.resource.unit().to_owned(),
        limit: f64::from(state.limit) / 1_000.0,
        used: (state.used_hours * 1_000_000.0).round() / 1_000_000.0,
        state: match state.level {
            QuotaLevel::Free => "free",
            QuotaLevel::Near => "near",
            QuotaLevel::UsedUp => "used up",
        }
        .to_owned(),
        then: state.effect.to_string(),
        until: state.end,
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;
    use vgpu_config::make_plan;
    use vgpu_config::resolve::Surroundings;
    use vgpu_policy::quotas::judge_quotas;

    use super::*;
    use crate::journal::{EventJournal, EventLayer};

    /// A Friday.
    const NOW: i64 = 1_795_780_800;

    /// Returns the events of a look at these quotas of one group, which used so many GPU-hours in all of its periods.
    fn tell(state: &mut GroupState, quotas: &[&str], hours: u64) -> Vec<String> {
        let quotas: String = quotas.iter().map(|quota| format!("[[group.quota]]\n{quota}\n")).collect();
        let file = format!("[[device]]\nid = 0\nmemory = \"80GiB\"\n[[group]]\nname = \"lab\"\n{quotas}");
        let around = Surroundings { run_dir: "/run/vgpu".into(), ..Surroundings::default() };
        let plan = make_plan(&file, &around).unwrap_or_else(|report| panic!("{}", report.to_lines("f")));
        let of_group = PeriodUse { gpu_ns: hours * 3_600_000_000_000, byte_seconds: 0 };
        let starts = period_starts(&plan.groups, NOW).into_iter();
        let used = starts.map(|start| (start, [("lab".to_owned(), of_group)].into())).collect();
        let journal = EventJournal::new();
        let subscriber = tracing_subscriber::registry().with(EventLayer(journal.clone()));
        let states = judge_quotas(&plan.groups, &used, NOW);
        tracing::subscriber::with_default(subscriber, || state.tell_quotas(states));
        journal.from(1, 64).iter().map(|event| event.kind.clone()).collect()
    }

    #[test]
    fn a_used_up_quota_is_told_once_wherever_it_stands_in_the_file() {
        let mut state = GroupState::default();
        let week = "per = \"week\"\ngpu_hours = 10\nthen = \"pause\"";
        let day = "per = \"day\"\ngpu_hours = 100\nthen = \"pause\"";
        assert_eq!(tell(&mut state, &[week], 10), ["quota.used_up"]);
        assert_eq!(tell(&mut state, &[day, week], 10), [""; 0], "another quota stands before it");
        assert_eq!(tell(&mut state, &[week, day], 10), [""; 0]);
        let lower = week.replace("10", "9");
        assert_eq!(tell(&mut state, &[&lower, week], 10), [""; 0], "the smaller one of two that are alike");
        assert_eq!(tell(&mut state, &[week, &lower], 10), [""; 0]);
        assert_eq!(tell(&mut state, &[&week.replace("10", "20")], 10), ["quota.ended"]);
    }

    #[test]
    fn two_limits_with_different_effects_are_told_each_and_another_effect_does_not_end_a_limit() {
        let mut state = GroupState::default();
        let soft = "per = \"day\"\ngpu_hours = 10\nthen = \"batch\"";
        let hard = "per = \"day\"\ngpu_hours = 20\nthen = \"pause\"";
        assert_eq!(tell(&mut state, &[soft, hard], 10), ["quota.used_up"]);
        assert_eq!(tell(&mut state, &[hard, soft], 20), ["quota.used_up"]);
        assert_eq!(tell(&mut state, &[soft, hard], 20), [""; 0]);
        assert_eq!(tell(&mut state, &[hard], 20), ["quota.ended"]);
        let ceiling = hard.replace("\"pause\"", "30");
        assert_eq!(tell(&mut state, &[&ceiling], 20), ["quota.used_up"], "it is held in another way");
        assert_eq!(tell(&mut state, &[soft], 20), ["quota.ended", "quota.used_up"], "the last word is that it is held");
    }
}
