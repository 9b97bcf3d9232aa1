//! Follows tenants that do not use what they hold: tells their states, and takes the steps that the file gives.
//!
//! The decisions are [`vgpu_policy::idle`]. State is in memory only: after a restart of the daemon the minutes begin
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tracing::{info, warn};
use vgpu_config::action::ActionPlan;
use vgpu_config::usage::{IdlePlan, IdleStep, StepKind};
use vgpu_control::IdleStatus;
use vgpu_control::event::DaemonEvent;
use vgpu_core::limits::Mode;
use vgpu_policy::idle::{IdleEnd, IdleWatch, UseSample, UseState};
use vgpu_policy::stage::PolicyStage;
use vgpu_policy::usage::{Restriction, UsageChange, UsageEffect};

use super::Reactor;
use super::members::signal_process;
use crate::actions::once::OnceRun;
use crate::journal::EventJournal;
use crate::room::TenantRoom;
use vgpu_control::finding::ProcessId;

/// Time after which a program that suspends is killed.
const SUSPEND_TIMEOUT: Duration = Duration::from_secs(600);

/// Most events that are searched for the one that was just logged.
const MAX_EVENTS_SEARCHED: usize = 64;

/// A tenant that is followed.
#[derive(Debug, Default)]
struct FollowedTenant {
    /// The tenant's room. A tenant that was removed and added again has another one.
    room: u64,
    /// The plan in force.
    plan: IdlePlan,
    /// The plan of the file, and the tenant's mode, from which [`Self::plan`] follows.
    given: Option<(IdlePlan, Mode)>,
    watch: IdleWatch,
    memory: u64,
    /// Processes that got the last SIGTERM.
    asked: BTreeSet<ProcessId>,
    /// Bounds that hold for the tenant, and why.
    restriction: Option<(Restriction, UseState)>,
    /// True while the step `suspend` holds, and is not only told.
    holds_suspend_step: bool,
}

impl FollowedTenant {
    /// The members that were asked to end. A process that joined later has not had its grace.
    fn asked_members(&self, members: BTreeSet<ProcessId>) -> BTreeSet<ProcessId> {
        members.into_iter().filter(|process| self.asked.contains(process)).collect()
    }

    /// Takes over the plan of the file. Steps of a tenant that is only observed are only told.
    fn follow_plan(&mut self, plan: &IdlePlan, mode: Mode) {
        if self.given.as_ref().is_none_or(|(given, of)| given != plan || *of != mode) {
            self.plan = IdlePlan { dry_run: plan.dry_run || mode == Mode::Observe, ..plan.clone() };
            self.given = Some((plan.clone(), mode));
        }
    }

    /// Notes whether the step `suspend` holds. A run that waits ends with the step.
    fn set_suspend_step(&mut self, name: &str, holds: bool, journal: &EventJournal) {
        if std::mem::replace(&mut self.holds_suspend_step, holds) && !holds {
            journal.withdraw_once(name);
        }
    }
}

/// The tenants that are followed.
#[derive(Debug, Default)]
pub(crate) struct IdleFollower {
    /// By name.
    tenants: BTreeMap<String, FollowedTenant>,
    changes: Vec<UsageChange>,
}

impl IdleFollower {
    /// The changes of terms that hold now.
    pub fn changes(&self) -> impl Iterator<Item = &UsageChange> {
        self.changes.iter()
    }

    /// Forgets all tenants. Their runs that wait end.
    pub fn forget_all(&mut self, journal: &EventJournal) {
        for (name, mut tenant) in std::mem::take(&mut self.tenants) {
            tenant.set_suspend_step(&name, false, journal);
        }
        self.changes.clear();
    }

    /// Forgets the tenants that are not followed any more. Returns true if the terms of one were restricted.
    fn forget_unfollowed(&mut self, rooms: &BTreeMap<u64, TenantRoom>, journal: &EventJournal) -> bool {
        let mut was_restricted = false;
        self.tenants.retain(|name, tenant| {
            let room = rooms.get(&tenant.room);
            let stays = room.is_some_and(|room| !room.is_removed() && room.tenant.usage.idle.is_some());
            if !stays {
                was_restricted |= tenant.restriction.is_some();
                tenant.set_suspend_step(name, false, journal);
            }
            stays
        });
        was_restricted
    }

    fn collect_changes(&mut self) {
        let restricted = self.tenants.iter().filter_map(|(name, tenant)| Some((name, tenant.restriction?)));
        let change = |(tenant, (bounds, state)): (&String, (Restriction, UseState))| UsageChange {
            stage: PolicyStage::Need,
            name: "idle".into(),
            tenant: tenant.clone(),
            device: None,
            effect: UsageEffect::Restrict(bounds),
            until: None,
            reason: Some(state.word().to_owned()),
        };
        self.changes = restricted.map(change).collect();
    }

    /// How a tenant used what it holds at the last look, which was at `looked`; `None`: it is not followed.
    pub fn status_of(&self, tenant: &str, looked: u64) -> Option<IdleStatus> {
        let FollowedTenant { plan, watch, memory, .. } = self.tenants.get(tenant)?;
        let mut watch = watch.clone();
        watch.pass_rest(plan, looked);
        Some(IdleStatus {
            state: watch.state().word().to_owned(),
            idle_seconds: watch.idle_seconds(),
            steps: watch.taken_steps().iter().map(|kind| kind.word().to_owned()).collect(),
            reclaimable: if watch.is_reclaimable(plan) { *memory } else { 0 },
            hoarded_gib_hours: to_gib_hours(watch.hoarded_byte_seconds()),
        })
    }

    /// A sentence about a tenant that is not busy; `None`: it is busy or not followed.
    pub fn sentence(&self, tenant: &str) -> Option<String> {
        let FollowedTenant { plan, watch, .. } = self.tenants.get(tenant)?;
        let state = watch.state();
        let steps: Vec<&str> = watch.taken_steps().iter().map(|kind| kind.word()).collect();
        let steps = match (steps.is_empty(), plan.dry_run) {
            (true, _) => String::new(),
            (false, true) => format!("; steps not taken (idle_dry_run, or mode observe): {}", steps.join(", ")),
            (false, false) => format!("; steps: {}", steps.join(", ")),
        };
        (state != UseState::Busy).then(|| format!("use: {}{steps}", state.word()))
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn to_gib_hours(byte_seconds: u128) -> f64 {
    let hours = byte_seconds as f64 / f64::from(1 << 30) / 3600.0;
    (hours * 1000.0).round() / 1000.0
}

impl Reactor {
    /// Takes the next samples: logs changed states, takes steps that are due, and decides which terms change. A tenant
    /// without a sample rests.
    pub(super) fn follow_idle(&mut self, samples: &[(u64, UseSample)], last_look: u64) {
        let mut follower = std::mem::take(&mut self.policies.needs.idle);
        let mut is_other = follower.forget_unfollowed(&self.rooms, &self.journal);
        let followed = &mut follower.tenants;
        for (id, sample) in samples {
            let Some(room) = self.rooms.get(id) else { continue };
            let (name, Some(plan)) = (&room.tenant.name, &room.tenant.usage.idle) else { continue };
            if !followed.contains_key(name) {
                followed.insert(name.clone(), FollowedTenant { room: *id, ..FollowedTenant::default() });
            }
            let Some(tenant) = followed.get_mut(name) else { continue };
            tenant.memory = sample.memory;
            tenant.watch.pass_rest(&tenant.plan, last_look);
            tenant.follow_plan(plan, room.tenant.mode);
            let news = tenant.watch.take_sample(&tenant.plan, *sample);
            if let Some((before, state)) = news.change {
                tell_change(name, before, state, news.ended, sample);
            }
            for step in news.steps {
                self.take_step(*id, name, tenant, step);
            }
            if news.is_kill_due {
                signal_processes(name, &tenant.asked_members(self.member_processes(*id)), Signal::KILL);
            }
            let holds = tenant.watch.has_taken(StepKind::Suspend) && !tenant.plan.dry_run;
            tenant.set_suspend_step(name, holds, &self.journal);
            let restriction = tenant.watch.restriction(&tenant.plan).map(|bounds| (bounds, tenant.watch.state()));
            is_other |= restriction != tenant.restriction;
            tenant.restriction = restriction;
            // A deadline counts the time that the tenant gets, so it needs each sample.
            if room.tenant.usage.deadline.is_none()
                && let Some(until) = tenant.watch.rests_until(&tenant.plan)
            {
                self.policies.needs.note_rest(*id, until);
            }
        }
        if is_other {
            follower.collect_changes();
        }
        self.policies.needs.idle = follower;
    }

    fn take_step(&self, id: u64, name: &str, tenant: &mut FollowedTenant, step: IdleStep) {
        let plan = &tenant.plan;
        let next = self.journal.event_position().next;
        let processes = match step.kind {
            // The driver's checkpoint refuses a process that uses no device, and with it all others.
            StepKind::Suspend => self.device_users(id).filter_map(|connection| connection.process).collect(),
            _ => self.member_processes(id),
        };
        let pids = processes.iter().map(|process| process.pid.to_string()).collect::<Vec<_>>();
        let (step_words, state, members) = (step.to_words(), tenant.watch.state().word(), pids.join(" "));
        let dry_run = plan.dry_run.then_some(true);
        let meaning = step_meaning(step.kind, plan.dry_run);
        if step.kind.is_harmful() {
            warn!(kind = "idle.step", tenant = %name, step = step_words, state, members, dry_run, "{meaning}");
        } else {
            info!(kind = "idle.step", tenant = %name, step = step_words, state, members, dry_run, "{meaning}");
        }
        if plan.dry_run {
            return;
        }
        match step.kind {
            StepKind::Event | StepKind::Lower | StepKind::Reclaimable => {}
            StepKind::Suspend => {
                let events = self.journal.from(next, MAX_EVENTS_SEARCHED);
                let is_it =
                    |event: &&Arc<DaemonEvent>| event.kind == "idle.step" && event.tenant.as_deref() == Some(name);
                let program = ActionPlan {
                    events: vec!["idle.step".into()],
                    kinds: BTreeSet::new(),
                    exec: plan.suspend.clone(),
                    timeout: SUSPEND_TIMEOUT,
                    at_once: 1,
                };
                let event = events.iter().find(is_it).cloned();
                let can_run = !plan.suspend.is_empty() && !processes.is_empty();
                let runs = event
                    .filter(|_| can_run)
                    .is_some_and(|event| self.journal.run_once(OnceRun { plan: program, processes, event }));
                if !runs {
                    warn!(tenant = %name, "its processes cannot be suspended: there is no program or no process");
                }
            }
            StepKind::Terminate => {
                if processes.is_empty() {
                    warn!(tenant = %name, "no process can be asked to end: none is connected and identified");
                }
                signal_processes(name, &processes, Signal::TERM);
                tenant.asked = processes;
            }
        }
    }

    /// The processes of a tenant that are connected now, each once, as they were when they connected.
    fn member_processes(&self, id: u64) -> BTreeSet<ProcessId> {
        self.members_of(id).filter_map(|connection| connection.process).collect()
    }
}

/// Sends a signal to processes of a tenant.
fn signal_processes(tenant: &str, processes: &BTreeSet<ProcessId>, signal: Signal) {
    for process in processes {
        let sent = signal_process(process, signal);
        let (pid, signal) = (process.pid, if signal == Signal::KILL { "SIGKILL" } else { "SIGTERM" });
        match sent {
            Ok(()) => warn!(%tenant, pid, signal, "an idle process was signalled"),
            Err(why) => warn!(%tenant, pid, signal, %why, "an idle process cannot be signalled"),
        }
    }
}

fn step_meaning(step: StepKind, is_dry: bool) -> &'static str {
    match (step, is_dry) {
        (StepKind::Event, _) => "nothing but this event",
        (StepKind::Lower, false) => "weight and class are lowered while it is idle",
        (StepKind::Lower, true) => "weight and class would be lowered now (idle_dry_run, or mode observe)",
        (StepKind::Reclaimable, false) => "its memory is marked as reclaimable while it is idle",
        (StepKind::Reclaimable, true) => {
            "its memory would be marked as reclaimable now (idle_dry_run, or mode observe)"
        }
        (StepKind::Suspend, false) => "its processes are being suspended",
        (StepKind::Suspend, true) => "its processes would be suspended now (idle_dry_run, or mode observe)",
        (StepKind::Terminate, false) => "its processes were asked to end",
        (StepKind::Terminate, true) => "its processes would be asked to end now (idle_dry_run, or mode observe)",
    }
}

fn tell_change(tenant: &str, before: UseState, state: UseState, ended: Option<IdleEnd>, sample: &UseSample) {
    if let Some(IdleEnd { seconds, byte_seconds }) = ended {
        let gib_hours = to_gib_hours(byte_seconds);
        info!(
            kind = "idle.ended",
            tenant,
            was = before.word(),
            seconds,
            gib_hours,
            "the tenant is not idle any longer"
        );
    }
    match before {
        UseState::Starved => info!(kind = "starved.ended", tenant, "the tenant is not starved any longer"),
        UseState::OverUsed => info!(kind = "over-used.ended", tenant, "the tenant uses less than its threshold again"),
        _ => {}
    }
    let memory = sample.memory;
    match state {
        // `process.suspended` tells it.
        UseState::Busy | UseState::Suspended => {}
        UseState::Idle => info!(kind = "idle.began", tenant, memory, "the tenant uses less than its threshold"),
        UseState::Resident => {
            info!(kind = "idle.resident", tenant, memory, "the tenant holds memory and launches nothing")
        }
        UseState::Stalled => {
            warn!(kind = "idle.stalled", tenant, memory, "queued work of the tenant makes no progress")
        }
        UseState::Starved => {
            warn!(kind = "starved.began", tenant, "the tenant waits and gets less than its floor, or nothing")
        }
        UseState::OverUsed => info!(kind = "over-used.began", tenant, "the tenant uses all that it may"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, began: u64) -> ProcessId {
        ProcessId { pid, began }
    }

    #[test]
    fn a_process_that_was_never_asked_to_end_is_never_killed() {
        let asked = BTreeSet::from([process(1, 10), process(2, 10)]);
        let tenant = FollowedTenant { asked, ..FollowedTenant::default() };
        // The first ended, and a new member has its ID; the third started after SIGTERM.
        let members = BTreeSet::from([process(1, 99), process(2, 10), process(3, 50)]);
        assert_eq!(tenant.asked_members(members), BTreeSet::from([process(2, 10)]));
    }

    #[test]
    fn steps_of_a_tenant_that_is_only_observed_are_only_told() {
        let mut tenant = FollowedTenant::default();
        for (mode, in_file, dry_run) in
            [(Mode::Enforce, false, false), (Mode::Enforce, true, true), (Mode::Observe, false, true)]
        {
            tenant.follow_plan(&IdlePlan { dry_run: in_file, ..IdlePlan::default() }, mode);
            assert_eq!(tenant.plan.dry_run, dry_run, "{mode:?} {in_file}");
        }
    }
}
