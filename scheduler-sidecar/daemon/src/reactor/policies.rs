//! Puts the decisions of the policies in force, and keeps those of administrators.
//!
//! [`vgpu_policy::chain`] decides. It is asked when the file, a tenant, an override or a booking changed, and at
//! the moment that its last decision named. Only tenants whose terms differ then are touched.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use jiff::tz::TimeZone;
use rustix::time::ClockId;
use tracing::{debug, info, warn};
use vgpu_accounting::clock;
use vgpu_config::live;
use vgpu_config::plan::{ConfigPlan, DevicePlan, TenantPlan};
use vgpu_config::schedule::{BookingPlan, WindowPlan, WrittenBooking};
use vgpu_core::limits::Mode;
use vgpu_policy::active::PolicyInputs;
use vgpu_policy::chain::decide;
use vgpu_policy::forecast::{admission_terms, find_booking_conflicts, find_misfit_ahead};
use vgpu_policy::outcome::{Cause, Decision, PolicyStep, RefusedPolicy, SkippedKey, TenantOutcome};
use vgpu_policy::overrides::{OverrideAction, TermsOverride};
use vgpu_policy::stage::PolicyStage;
use vgpu_policy::usage::UsageChange;
use vgpu_policy::words::{chain_sentences, format_time};

use super::deadlines::DeadlineFollower;
use super::needs::NeedState;
use super::{Reactor, arbiter_number};
use crate::config::TenantConfig;
use crate::connection::PeerCredentials;
use crate::kept_changes::{ChangeStore, KeptChanges};

/// Time for which a change without an end must fit: all windows return within a week.
const HORIZON_SECONDS: i64 = 8 * 86_400;

/// Longest time until the wall clock is looked at again, so that a clock that was set is noticed.
const MAX_CLOCK_WAIT: Duration = Duration::from_secs(60);

/// State of the policies: the decisions of administrators, and the outcome of the last decision.
pub(crate) struct PolicyState {
    /// `None`: there is no directory of state.
    store: Option<ChangeStore>,
    pub zone: TimeZone,
    pub kept: KeptChanges,
    /// Changes that follow from use.
    pub usage: Vec<UsageChange>,
    /// Tenants whose use is followed.
    pub needs: NeedState,
    /// Time of the next look at use; `None`: no policy follows it.
    pub next_usage: Option<Instant>,
    /// Outcomes of tenants that some policy changes, by name.
    outcomes: BTreeMap<String, TenantOutcome>,
    /// Windows and bookings without effect.
    pub refused: Vec<RefusedPolicy>,
    /// Values without effect, by tenant.
    skipped: Vec<(String, SkippedKey)>,
    /// Overrides and bookings that were reported because they match no device.
    pub unmatched: BTreeSet<String>,
    /// Wall clock at the last decision, in seconds since 1970.
    decided: i64,
    /// Wall clock at which something begins or ends next.
    next: Option<i64>,
}

/// The administrator behind a change of terms, for the log. Empty if time or a reload caused it.
#[derive(Debug, Clone, Default)]
pub(super) struct ChangeNote {
    /// Words about the change of a tenant, by its name, instead of the policies' own.
    pub what: BTreeMap<String, String>,
    /// The administrator.
    pub who: Option<PeerCredentials>,
    /// The administrator's reason.
    pub reason: Option<String>,
    /// True if the command that paused or resumed the tenant is logged by itself, because it is an event also where it
    /// changes nothing.
    pub pause_is_logged: bool,
}

impl ChangeNote {
    /// A change of one tenant by an administrator.
    pub fn about(tenant: &str, what: &str, who: PeerCredentials) -> Self {
        Self { what: BTreeMap::from([(tenant.to_owned(), what.to_owned())]), who: Some(who), ..Self::default() }
    }
}

impl PolicyState {
    pub fn below(state_dir: Option<&Path>) -> Self {
        let store = state_dir.map(ChangeStore::below);
        let kept = store.as_ref().map(ChangeStore::read_all).unwrap_or_default();
        Self {
            store,
            zone: TimeZone::system(),
            kept,
            usage: Vec::new(),
            needs: NeedState::new(DeadlineFollower::below(state_dir)),
            next_usage: None,
            outcomes: BTreeMap::new(),
            refused: Vec::new(),
            skipped: Vec::new(),
            unmatched: BTreeSet::new(),
            decided: i64::MIN,
            next: None,
        }
    }

    /// Time until use or the wall clock must be looked at; `None`: no policy waits for a moment.
    pub fn next_wait(&self) -> Option<Duration> {
        let usage = self.next_usage.map(|next| next.saturating_duration_since(Instant::now()));
        usage.into_iter().chain(self.next_moment_wait()).min()
    }

    fn next_moment_wait(&self) -> Option<Duration> {
        let now = clock::unix_seconds();
        let cordons = self.kept.cordons.iter().filter_map(|cordon| cordon.next_moment(now));
        let next = self.next.into_iter().chain(cordons).min()?;
        let next = u64::try_from(next).unwrap_or(0).saturating_mul(1_000_000_000);
        let left = Duration::from_nanos(next.saturating_sub(clock::nanoseconds(ClockId::Realtime)));
        Some(left.min(MAX_CLOCK_WAIT))
    }

    /// Lets the daemon decide again in its next round.
    pub fn decide_soon(&mut self) {
        self.next = Some(self.decided);
    }

    /// True if a window or a booking waits for its time, or an override for its end.
    fn looks_ahead(&self) -> bool {
        self.next.is_some()
    }

    /// Formats a moment in the host's time zone.
    pub fn format_time(&self, at: i64) -> String {
        format_time(&self.zone, at)
    }

    /// Tenants that may not launch: their names, each with the devices if it may launch on others.
    pub fn paused_tenants(&self) -> Vec<String> {
        let paused = self.outcomes.iter().filter(|(_, outcome)| !outcome.paused_on.is_empty());
        paused.map(|(name, outcome)| format!("{name}{}", place_words(outcome))).collect()
    }

    /// True if the tenant may not launch on this device, as its terms name it.
    pub fn is_paused_on(&self, tenant: &str, device: &str) -> bool {
        self.outcomes.get(tenant).is_some_and(|outcome| outcome.paused_on.contains(device))
    }

    /// The cause of a tenant's pause by a window or by its use, also where the tenant is paused for other reasons too.
    pub fn planned_pause(&self, tenant: &str) -> Option<&Cause> {
        let steps = self.steps_of(tenant).iter().rev().map(|step| (step.key, step.value.as_str(), &step.cause));
        let mut planned = steps
            .filter(|(key, value, cause)| *key == "paused" && *value == "true" && cause.stage != PolicyStage::Override);
        planned.next().map(|(_, _, cause)| cause)
    }

    /// The latest end of the overrides of this kind for a tenant; inner `None`: one has no end.
    pub fn last_end(&self, tenant: &str, action: &OverrideAction) -> Option<Option<i64>> {
        let own = self.kept.overrides.iter().filter(|change| change.tenant == tenant && change.action == *action);
        own.map(|change| change.until).reduce(|one, other| one.zip(other).map(|(one, other)| one.max(other)))
    }

    /// The cause of a tenant's pause on any of its devices.
    pub fn pause_cause(&self, tenant: &str) -> Option<&Cause> {
        self.outcomes.get(tenant)?.pause_cause()
    }

    /// True if a window or use pauses the tenant on the device, so that its pause is part of the plan.
    pub fn is_paused_by_plan(&self, tenant: &str, device: &str) -> bool {
        self.outcomes.get(tenant).is_some_and(|outcome| outcome.is_paused_by_plan(device))
    }

    /// The changes that administrators made to a tenant.
    pub fn override_steps(&self, tenant: &str) -> impl Iterator<Item = &PolicyStep> {
        self.steps_of(tenant).iter().filter(|step| step.cause.stage == PolicyStage::Override)
    }

    /// The changes that policies made to a tenant.
    pub fn steps_of(&self, tenant: &str) -> &[PolicyStep] {
        self.outcomes.get(tenant).map_or(&[], |outcome| &outcome.steps)
    }

    /// True if terms change in nothing but weights that follow the use of groups. These changes are no events: they
    /// follow from the record, and would fill the audit log. A weight that another stage gives or gave is told.
    fn is_share_of_use(&self, was: &TenantConfig, outcome: &TenantOutcome) -> bool {
        let is_share = |device: &str| {
            let stage_of = |steps: &[PolicyStep]| {
                let is_here = |step: &&PolicyStep| step.key == "weight" && step.device.as_deref() == Some(device);
                steps.iter().rfind(is_here).map(|step| step.cause.stage)
            };
            let stages = [stage_of(&outcome.steps), stage_of(self.steps_of(&outcome.tenant.name))];
            let mut stages = stages.into_iter().flatten().peekable();
            stages.peek().is_some() && stages.all(|stage| stage == PolicyStage::Group)
        };
        let mut before = TenantPlan::from(was);
        for (terms, fresh) in before.terms.iter_mut().zip(&outcome.tenant.terms) {
            if terms.weight != fresh.weight && is_share(&fresh.device) {
                terms.weight = fresh.weight;
            }
        }
        TenantConfig::from(&before) == TenantConfig::from(&outcome.tenant)
    }

    /// Keys of a tenant's terms on a device that an administrator changed.
    pub fn overridden_keys(&self, tenant: &str, device: &str) -> Vec<String> {
        let here = self
            .override_steps(tenant)
            .filter(|step| step.device.as_deref().is_none_or(|of| of == device) && step.key != "paused");
        let mut keys: Vec<String> = here.map(|step| step.key.to_owned()).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// Forgets a removed tenant: its overrides, and the bookings that commands made for it. Its cordon ends with its
    /// last member.
    pub fn forget_tenant(&mut self, tenant: &str) {
        let (own, others) = self.kept.bookings.drain(..).partition::<Vec<_>, _>(|booking| booking.tenant == tenant);
        self.kept.bookings = others;
        if !own.is_empty() {
            self.save_or_warn();
        }
        let now = clock::unix_seconds();
        for WrittenBooking { name, .. } in own.into_iter().filter(|booking| booking.until > now) {
            info!(kind = "booking.cancelled", %tenant, %name, "a booking ends, because its tenant was removed");
        }
        self.forget_overrides(tenant);
    }

    /// Forgets a tenant's overrides and the labels that commands set; its bookings stay.
    pub fn forget_overrides(&mut self, tenant: &str) {
        let before = self.kept.overrides.len();
        self.kept.overrides.retain(|change| change.tenant != tenant);
        if self.kept.labels.remove(tenant).is_some() || self.kept.overrides.len() < before {
            self.save_or_warn();
        }
    }

    /// Ends the changes that last until the file is read again.
    pub fn end_with_the_file(&mut self) {
        self.kept.overrides.retain(|change| !change.ends_with_the_file());
    }

    /// Replaces what people decided, and stores it for the next daemon.
    ///
    /// # Errors
    /// A message: it cannot be stored; nothing was changed.
    pub fn replace_kept(&mut self, mut kept: KeptChanges) -> Result<(), String> {
        Self::forget_what_is_over(&mut kept, clock::unix_seconds());
        let stored = lasting(&kept);
        if stored != lasting(&self.kept)
            && let Some(store) = &self.store
        {
            store.save(&stored).map_err(|why| format!("the change cannot be stored for the next daemon: {why}"))?;
        }
        self.kept = kept;
        Ok(())
    }

    /// True if the next daemon will know of changes with an end.
    pub fn is_stored(&self) -> bool {
        self.store.is_some()
    }

    pub fn save_or_warn(&self) {
        if let Some(Err(why)) = self.store.as_ref().map(|store| store.save(&lasting(&self.kept))) {
            warn!(%why, "changes.json cannot be written; the next daemon would apply overrides, bookings and suspensions as they were");
        }
    }

    /// Removes what is over. Only commands do that: a clock that is wrong for a while must lose nothing.
    fn forget_what_is_over(kept: &mut KeptChanges, now: i64) {
        kept.overrides.retain(|change| !change.is_over(now));
        kept.bookings.retain(|booking| booking.until > now);
        kept.cordons.retain(|cordon| !cordon.is_over(now));
    }
}

/// The part that outlives the daemon.
fn lasting(kept: &KeptChanges) -> KeptChanges {
    let overrides = kept.overrides.iter().filter(|change| change.until.is_some()).cloned().collect();
    KeptChanges { overrides, ..kept.clone() }
}

/// End of a refusal of something that fits only while overrides are in force that end with the file.
pub(super) const ENDLESS_WORDS: &str = "; changes by `vgpu set` without --for end with a reload";

/// Owned copies of everything that `decide` reads.
#[derive(Clone)]
pub(super) struct PolicySnapshot {
    devices: Vec<DevicePlan>,
    pub tenants: Vec<TenantPlan>,
    leaving: Vec<TenantPlan>,
    windows: Vec<WindowPlan>,
    pub bookings: Vec<BookingPlan>,
    usage: Vec<UsageChange>,
    pub overrides: Vec<TermsOverride>,
    zone: TimeZone,
}

impl PolicySnapshot {
    pub fn to_inputs(&self) -> PolicyInputs<'_> {
        let Self { devices, tenants, leaving, windows, bookings, usage, overrides, zone } = self;
        PolicyInputs { devices, tenants, leaving, windows, bookings, usage, overrides, zone }
    }

    /// The same without overrides that end with the file, as it will be once the file is read again.
    pub fn without_endless(mut self) -> Self {
        self.overrides.retain(|change| !change.ends_with_the_file());
        self
    }

    /// Names of the bookings that do not fit.
    pub fn conflicting_bookings(&self, now: i64) -> Vec<String> {
        find_booking_conflicts(&self.to_inputs(), now).into_iter().map(|conflict| conflict.name).collect()
    }

    /// Checks that everything fits from `now` until `end`. `changed`: the tenant and the devices whose terms are
    /// checked. The bookings named in `known` did not fit before and are not checked.
    ///
    /// # Errors
    /// A message: what does not fit and when.
    pub fn check_ahead(
        &self,
        changed: Option<(&str, &[String])>,
        now: i64,
        end: Option<i64>,
        known: &[String],
    ) -> Result<(), String> {
        let inputs = self.to_inputs();
        let ends = self.overrides.iter().filter_map(|change| change.until);
        let last = ends.chain(self.bookings.iter().map(|booking| booking.until)).fold(now, i64::max);
        let end = end.unwrap_or(last.saturating_add(HORIZON_SECONDS));
        let misfit = |(tenant, devices)| find_misfit_ahead(&inputs, tenant, devices, now, end);
        if let Some((at, words)) = changed.and_then(misfit) {
            let when = format_time(&self.zone, at);
            return Err(format!("from {when} on it does not fit: {words}; nothing was changed"));
        }
        match find_booking_conflicts(&inputs, now).into_iter().find(|new| !known.contains(&new.name)) {
            None => Ok(()),
            Some(conflict) => {
                let when = format_time(&self.zone, conflict.at);
                let beside = conflict.beside_words();
                let (name, words) = (conflict.name, conflict.words);
                Err(format!("booking {name:?} would not fit{beside} from {when} on: {words}; nothing was changed"))
            }
        }
    }
}

impl Reactor {
    /// Names of the bookings that do not fit already.
    pub(super) fn known_conflicts(&self) -> Vec<String> {
        self.policy_givens().conflicting_bookings(clock::unix_seconds())
    }

    /// Checks that a file that is read again breaks no booking that fits beside the file in force.
    ///
    /// # Errors
    /// A message with the booking.
    pub(super) fn check_bookings_beside(&self, before: &ConfigPlan, plan: &ConfigPlan) -> Result<(), String> {
        let now = clock::unix_seconds();
        let givens = |plan: &ConfigPlan| {
            let made = self.policies.kept.bookings.iter().filter_map(|written| written.read(str::to_owned).ok());
            PolicySnapshot {
                devices: plan.devices.clone(),
                tenants: plan.tenants.clone(),
                windows: plan.windows.clone(),
                bookings: plan.bookings.iter().cloned().chain(made).collect(),
                ..self.policy_givens()
            }
        };
        // A booking that fits only next to an override without an end is broken by the file too.
        let known = givens(before).conflicting_bookings(now);
        givens(plan).without_endless().check_ahead(None, now, Some(now), &known)
    }

    /// Collects what the policies decide about.
    pub(super) fn policy_givens(&self) -> PolicySnapshot {
        let plan = self.loaded.as_ref().map(|loaded| &loaded.plan);
        let (open, leaving) = self.rooms.values().partition::<Vec<_>, _>(|room| !room.is_removed());
        let mut bookings = plan.map(|plan| plan.bookings.clone()).unwrap_or_default();
        // Its values were accepted when it was made.
        bookings.extend(self.policies.kept.bookings.iter().filter_map(|written| written.read(str::to_owned).ok()));
        PolicySnapshot {
            devices: self.in_force().0,
            tenants: open.iter().map(|room| self.label_tenant(TenantPlan::from(&room.base))).collect(),
            leaving: leaving
                .iter()
                .map(|room| TenantPlan::from(&room.tenant))
                .chain(self.left_promises().cloned())
                .chain(self.slots.wanted_slots().cloned())
                .collect(),
            windows: plan.map(|plan| plan.windows.clone()).unwrap_or_default(),
            bookings,
            usage: self.policies.usage.clone(),
            overrides: self.policies.kept.overrides.clone(),
            zone: self.policies.zone.clone(),
        }
    }

    /// Open tenants with the terms that count when a promise is admitted. `changed`: the tenant whose terms change.
    pub(super) fn counted_tenants(&self, changed: Option<&str>) -> Vec<TenantPlan> {
        if self.policies.usage.is_empty() {
            return self.in_force().1;
        }
        admission_terms(&self.policy_givens().to_inputs(), changed, clock::unix_seconds())
    }

    /// Decides again if a moment that the last decision named has come, or the wall clock was set back.
    pub(super) fn follow_wall_clock(&mut self) {
        let Some(next) = self.policies.next else { return };
        let now = clock::unix_seconds();
        if now >= next || now < self.policies.decided {
            self.apply_policies(&ChangeNote::default());
        }
    }

    /// Decides what holds now, and puts it in force at once. Tenants whose terms stay the same are not touched.
    pub(super) fn apply_policies(&mut self, note: &ChangeNote) {
        self.follow_usage_if_configured();
        self.groups.forget_schedule();
        let now = clock::unix_seconds();
        let givens = self.policy_givens();
        let Decision { outcomes, refused, next } = decide(&givens.to_inputs(), now);
        (self.policies.decided, self.policies.next) = (now, next);
        for new in refused.iter().filter(|new| !self.policies.refused.contains(new)) {
            let RefusedPolicy { stage, name, tenant, device, words } = new;
            let (policy, tenant, device) = (stage_word(*stage), tenant.as_deref(), device.as_deref());
            warn!(kind = "policy.refused", policy, %name, tenant, device, why = %words, "it does not fit and has no effect");
        }
        self.policies.refused = refused;
        let rooms: BTreeMap<String, u64> = self
            .rooms
            .iter()
            .filter(|(_, room)| !room.is_removed())
            .map(|(id, room)| (room.tenant.name.clone(), *id))
            .collect();
        for outcome in &outcomes {
            if let Some(id) = rooms.get(&outcome.tenant.name) {
                self.put_outcome(*id, outcome, note, now);
            }
        }
        self.warn_of_skipped_keys(&outcomes, now);
        self.warn_of_unmatched_devices();
        let changed = outcomes.into_iter().filter(|outcome| !(outcome.steps.is_empty() && outcome.skipped.is_empty()));
        self.policies.outcomes = changed.map(|outcome| (outcome.tenant.name.clone(), outcome)).collect();
        self.leases.tick(clock::now());
    }

    fn put_outcome(&mut self, id: u64, outcome: &TenantOutcome, note: &ChangeNote, now: i64) {
        let (fresh, number) = (TenantConfig::from(&outcome.tenant), arbiter_number(id));
        let has_other_bearer = self.rooms.get(&id).is_some_and(|room| room.tenant.bearer != fresh.bearer);
        if has_other_bearer {
            // Usage until now belongs to the group and the labels of until now.
            self.hand_over_use(id);
        }
        let Some(room) = self.rooms.get_mut(&id) else { return };
        let name = fresh.name.clone();
        let said = note.what.get(&name);
        let who = note.who.filter(|_| said.is_some());
        let (by_uid, by_pid) = (who.map(|who| who.uid), who.and_then(|who| who.pid));
        let reason = note.reason.as_ref().filter(|_| said.is_some());
        let is_observed_now = room.tenant.mode == Mode::Enforce && fresh.mode != Mode::Enforce;
        if room.tenant != fresh {
            self.policies.needs.note_changed(id);
            let what = said.cloned().unwrap_or_else(|| difference_words(&room.tenant, outcome, now));
            let is_share = said.is_none() && self.policies.is_share_of_use(&room.tenant, outcome);
            room.take_terms(fresh.clone());
            let slots = self.leases.put_tenant(number, fresh, clock::now());
            self.keep_terms(id);
            self.keep_limits(id);
            if has_other_bearer {
                // The next member of a tenant that has none must find these.
                self.hand_over_use(id);
            }
            if is_share {
                debug!(tenant = %name, what, slots, "its weight follows the use of groups");
            } else {
                info!(kind = "tenant.changed", tenant = %name, by_uid, by_pid, what, reason, slots, "tenant changed");
            }
        }
        let was_paused_on = self.leases.paused_devices(number);
        if outcome.paused_on != was_paused_on {
            self.policies.needs.note_changed(id);
            self.leases.set_pauses(number, outcome.paused_on.clone(), clock::now());
            let cause = outcome.steps.iter().rev().find(|step| step.key == "paused");
            let what = cause.map_or_else(String::new, |step| step.cause.to_words(now));
            let devices = (!outcome.is_paused()).then(|| list_names(&outcome.paused_on));
            if said.is_some() && note.pause_is_logged {
                // Logged by the command.
            } else if outcome.paused_on.is_empty() {
                info!(kind = "tenant.resumed", tenant = %name, by_uid, by_pid, what, reason, "tenant resumed");
            } else {
                info!(kind = "tenant.paused", tenant = %name, by_uid, by_pid, what, reason, devices, "tenant paused");
            }
        }
        let is_paused = !outcome.paused_on.is_empty();
        if is_paused && outcome.tenant.mode != Mode::Enforce && (is_observed_now || was_paused_on.is_empty()) {
            warn!(tenant = %name, "paused, and only observed from now on: the pause has no effect");
        }
    }

    /// Warns once of each value that has no effect because its device's size is not known.
    fn warn_of_skipped_keys(&mut self, outcomes: &[TenantOutcome], now: i64) {
        let all = outcomes.iter().flat_map(|outcome| outcome.skipped.iter().map(|key| (&outcome.tenant.name, key)));
        let all: Vec<(String, SkippedKey)> = all.map(|(tenant, key)| (tenant.clone(), key.clone())).collect();
        for new in all.iter().filter(|new| !self.policies.skipped.contains(new)) {
            let (tenant, device, why) = (&new.0, &new.1.device, new.1.to_words(now));
            let (policy, name) = (stage_word(new.1.cause.stage), &new.1.cause.name);
            warn!(kind = "policy.refused", policy, %name, %tenant, %device, why, "a value has no effect");
        }
        self.policies.skipped = all;
    }

    /// Sentences that tell where a tenant's terms on a device come from; none if no policy changes them.
    pub(super) fn chain_words(&self, tenant: &str, device: &str) -> Vec<String> {
        let room = self.rooms.values().find(|room| !room.is_removed() && room.tenant.name == tenant);
        let use_words = self.policies.needs.idle.sentence(tenant);
        let Some((room, outcome)) = room.zip(self.policies.outcomes.get(tenant)) else {
            return use_words.into_iter().collect();
        };
        let source = match (self.added.is_stored(tenant), &self.loaded) {
            (true, _) => "vgpu tenant add",
            (false, Some(_)) => "file",
            (false, None) => "command line",
        };
        let chain = chain_sentences(&TenantPlan::from(&room.base), outcome, device, source, clock::unix_seconds());
        use_words.into_iter().chain(chain).collect()
    }

    /// The exclusive use that would still pause the tenant with the override `run` in force, and the names of the
    /// devices. Inner `None`: the override would help on no device. Outer `None`: nothing would pause it.
    ///
    /// # Errors
    /// A message: there are too many overrides.
    pub(super) fn lasting_pause(
        &self,
        tenant: &str,
        run: &TermsOverride,
    ) -> Result<Option<(Cause, Option<String>)>, String> {
        let mut ahead = self.policy_givens();
        vgpu_policy::overrides::add_override(&mut ahead.overrides, run.clone())?;
        let outcomes = decide(&ahead.to_inputs(), clock::unix_seconds()).outcomes;
        let after = outcomes.into_iter().find(|outcome| outcome.tenant.name == tenant);
        let before = self.policies.outcomes.get(tenant).map(|outcome| &outcome.paused_on);
        Ok(after.and_then(|after| {
            let helps = before.is_some_and(|before| *before != after.paused_on);
            Some((after.pause_cause()?.clone(), helps.then(|| list_names(&after.paused_on))))
        }))
    }

    /// Adds an override and puts it in force.
    ///
    /// # Errors
    /// A message: there are too many, or it cannot be stored; nothing was changed.
    pub(super) fn add_override(&mut self, change: TermsOverride, note: &ChangeNote) -> Result<(), String> {
        let mut kept = self.policies.kept.clone();
        vgpu_policy::overrides::add_override(&mut kept.overrides, change)?;
        self.policies.replace_kept(kept)?;
        self.apply_policies(note);
        Ok(())
    }

    /// Ends overrides, and puts what then holds in force. Returns how many ended.
    ///
    /// # Errors
    /// A message: it cannot be stored; nothing was changed.
    pub(super) fn end_overrides(
        &mut self,
        ends: impl Fn(&TermsOverride) -> bool,
        note: &ChangeNote,
    ) -> Result<usize, String> {
        let mut kept = self.policies.kept.clone();
        kept.overrides.retain(|change| !ends(change));
        let ended = self.policies.kept.overrides.len() - kept.overrides.len();
        self.policies.replace_kept(kept)?;
        self.apply_policies(note);
        Ok(ended)
    }

    /// Checks that a changed or new tenant fits from now on, also when windows end and bookings begin.
    ///
    /// # Errors
    /// A message: what does not fit and when.
    pub(super) fn check_tenant_ahead(&self, tenant: &TenantPlan) -> Result<(), String> {
        if !self.policies.looks_ahead() {
            return Ok(());
        }
        let mut givens = self.policy_givens();
        givens.tenants.retain(|other| other.name != tenant.name);
        givens.overrides.retain(|change| change.tenant != tenant.name);
        givens.tenants.push(tenant.clone());
        let devices: Vec<String> = tenant.terms.iter().map(|terms| terms.device.clone()).collect();
        let changed = Some((tenant.name.as_str(), devices.as_slice()));
        givens.check_ahead(changed, clock::unix_seconds(), None, &self.known_conflicts())
    }

    /// Warns of overrides that do not fit the file that was read or the devices that the driver named.
    pub(super) fn warn_of_misfits(&self) {
        if !self.policies.kept.overrides.iter().any(|change| matches!(change.action, OverrideAction::Terms(_))) {
            return;
        }
        let (devices, tenants) = self.in_force();
        for words in live::find_misfits(&devices, &tenants) {
            warn!("changes by `vgpu set` do not fit the configuration, and stay in force: {words}");
        }
    }
}

fn stage_word(stage: PolicyStage) -> &'static str {
    match stage {
        PolicyStage::Window => "window",
        PolicyStage::Booking => "booking",
        PolicyStage::Group => "group",
        PolicyStage::Need => "need",
        PolicyStage::Override => "override",
    }
}

/// Where a paused tenant may not launch: ` on device 0`; empty if it is paused on all its devices.
fn place_words(outcome: &TenantOutcome) -> String {
    if outcome.is_paused() { String::new() } else { format!(" on device {}", list_names(&outcome.paused_on)) }
}

fn list_names(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Describes in words how a tenant's terms change: each key with its new value and where it comes from.
fn difference_words(was: &TenantConfig, outcome: &TenantOutcome, now: i64) -> String {
    let before = TenantPlan::from(was);
    let mut words = Vec::new();
    for terms in &outcome.tenant.terms {
        let Some(then) = before.terms.iter().find(|then| then.device == terms.device) else { continue };
        for key in live::differing_keys(then, terms) {
            let steps = outcome.steps.iter().rev();
            let mut steps = steps.filter(|step| step.key == key && step.device.as_ref() == Some(&terms.device));
            let cause = steps.next().map_or_else(|| "configuration".to_owned(), |step| step.cause.to_words(now));
            let value = vgpu_policy::values::format_value(terms, key);
            words.push(format!("{key}={value} on device {} ({cause})", terms.device));
        }
    }
    if words.is_empty() { "configuration".to_owned() } else { words.join(", ") }
}
