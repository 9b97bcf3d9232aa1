//! Answers the requests of administrators ([`vgpu_control`]).
//!
//! [`crate::answer`] parses a request. [`vgpu_config::live`] checks whether a change fits, with the messages of the
//! configuration file. [`super::policies`] puts changes and pauses in force. [`super::change`] answers questions about
//! a running tenant.

use std::collections::BTreeSet;

use vgpu_core::limits::Mode;

use super::places::lasting_name;
use super::policies::{ChangeNote, ENDLESS_WORDS, PolicySnapshot};
use super::tenants::Lifetime;
use super::{Reactor, arbiter_number};
use crate::config::{TenantConfig, device_name};
use crate::connection::PeerCredentials;
use tracing::info;
use vgpu_accounting::clock;
use vgpu_config::change::WrittenChange;
use vgpu_config::live;
use vgpu_config::plan::{DevicePlan, TenantPlan};
use vgpu_control::explain::{DeviceExplanation, DeviceStanding, explain_tenant, tell_findings};
use vgpu_control::own;
use vgpu_control::{
    BookingStatus, ChangeLasting, ChangeResult, ControlAnswer, ControlCommand, CordonStatus, ProcessStatus,
};
use vgpu_policy::outcome::Cause;
use vgpu_policy::overrides::{OverrideAction, TermsOverride, add_override};

const LASTS_WORDS: &str = "it lasts until the configuration is read again (SIGHUP) or the daemon restarts";

/// Longest time that a change may be given, in seconds: a year.
pub(super) const MAX_LASTING_SECONDS: u64 = 365 * 86_400;

/// Longest reason, in bytes.
const MAX_REASON_BYTES: usize = 256;

impl Reactor {
    /// Answers a parsed request.
    pub(super) fn answer_command(&mut self, ask: &ControlCommand, who: PeerCredentials, answer: &mut ControlAnswer) {
        let done = match ask {
            ControlCommand::Status => return answer.status = Some(self.full_status()),
            ControlCommand::Ps => return answer.members = Some(self.list_processes()),
            ControlCommand::Queue => return answer.queue = Some(self.queue_answer()),
            ControlCommand::Explain { tenant } => {
                return match self.explanation_answer(tenant) {
                    Ok(explained) => answer.explained = Some(explained),
                    Err(words) => answer.error = Some(words),
                };
            }
            ControlCommand::Add { section, pid, seconds, replace, waits } => {
                let lifetime = Lifetime { pid: *pid, seconds: *seconds };
                let added = self.add_tenant(section, lifetime, *replace, who);
                self.note_addition(&section.name, *waits, added.as_ref().err());
                return match added {
                    Ok(added) => answer.tenant = Some(added),
                    Err(why) => (answer.error, answer.refusal) = (Some(why.words), why.kind),
                };
            }
            ControlCommand::Remove { tenant, only_look } => {
                return match self.remove_tenant(tenant, *only_look, who) {
                    Ok(removed) => answer.tenant = Some(removed),
                    Err(why) => (answer.error, answer.refusal) = (Some(why.words), why.kind),
                };
            }
            ControlCommand::Set { tenant, device, change, lasting } => {
                self.set_live(tenant, device.as_deref(), change, lasting, who)
            }
            ControlCommand::Pause { tenant, lasting } => self.pause(tenant, lasting, who),
            ControlCommand::Resume { tenant } => self.resume(tenant, who),
            ControlCommand::Exclusive { tenant, lasting } => self.make_exclusive(tenant, lasting, who),
            ControlCommand::Unset { tenant } => self.unset(tenant, who),
            ControlCommand::Label { tenant, labels } => self.label(tenant, labels, who),
            ControlCommand::Book { booking } => {
                if !self.policies.is_stored() {
                    answer.notes.push("the daemon has no state_dir, so the booking ends with the daemon".to_owned());
                }
                return take_bookings(self.book(booking, who), answer);
            }
            ControlCommand::Cordon { subject, evacuation, lasting } => {
                return take_cordon(self.begin_cordon(subject, *evacuation, lasting, who), answer);
            }
            ControlCommand::Uncordon { subject } => return take_cordon(self.end_cordon(subject, who), answer),
            ControlCommand::Suspensions(report) => {
                answer.members_may_return = self.awaits_members();
                return answer.suspensions = Some(self.take_suspensions(report, who));
            }
            ControlCommand::Bookings => return answer.bookings = Some(self.list_bookings()),
            ControlCommand::Cancel { booking } => return take_bookings(self.cancel_booking(booking, who), answer),
            // Sent line by line by `reactor::follow`.
            ControlCommand::Events { .. } => return,
        };
        match done {
            Ok(done) => answer.done = Some(done),
            Err(words) => answer.error = Some(words),
        }
    }

    fn list_processes(&mut self) -> Vec<ProcessStatus> {
        let of = |tenant: vgpu_control::TenantStatus| {
            let name = tenant.name;
            tenant.members.into_iter().map(move |member| ProcessStatus { tenant: name.clone(), member })
        };
        self.full_status().tenants.into_iter().flat_map(of).collect()
    }

    /// Devices and tenants as in force now, including the changes of administrators.
    pub(super) fn in_force(&self) -> (Vec<DevicePlan>, Vec<TenantPlan>) {
        let planned = self.loaded.as_ref().map(|loaded| loaded.plan.devices.clone());
        let unknown = || {
            let (index, uuid, parent, memory, model) = (None, None, None, None, None);
            vec![DevicePlan { index, uuid, parent, memory, overcommit: 1000, model, group_limits: Vec::new() }]
        };
        let open = self.rooms.values().filter(|room| !room.is_removed());
        (planned.unwrap_or_else(unknown), open.map(|room| TenantPlan::from(&room.tenant)).collect())
    }

    /// Tenants whose promises count, and those that were removed and still have members. Slots that wait for
    /// members to leave count with the larger of what they have and what the file says.
    pub(super) fn promised_tenants(&self) -> Vec<TenantPlan> {
        let removed = self.rooms.values().filter(|room| room.is_removed()).map(|room| TenantPlan::from(&room.tenant));
        let mut promised = self.counted_tenants(None);
        promised.extend(removed.chain(self.left_promises().cloned()));
        for wanted in self.slots.wanted_slots() {
            match promised.iter_mut().find(|tenant| tenant.name == wanted.name) {
                Some(tenant) => tenant.raise_promise(wanted),
                None => promised.push(wanted.clone()),
            }
        }
        promised
    }

    /// The room of a tenant that is served, by its name.
    pub(super) fn known_room(&self, name: &str) -> Result<u64, String> {
        let found = self.rooms.iter().find(|(_, room)| !room.is_removed() && room.tenant.name == name);
        found.map(|(id, _)| *id).ok_or_else(|| live::find_tenant(&self.in_force().1, name).err().unwrap_or_default())
    }

    fn set_live(
        &mut self,
        name: &str,
        device: Option<&str>,
        words: &WrittenChange,
        lasting: &ChangeLasting,
        who: PeerCredentials,
    ) -> Result<ChangeResult, String> {
        let change = words.read(str::to_owned)?;
        let (devices, tenants) = (self.in_force().0, self.counted_tenants(Some(name)));
        let changed = live::apply_change(&devices, &tenants, name, device, &change)?;
        let id = self.known_room(name)?;
        if changed.tenant.mode == Mode::Observe && self.leases.is_paused(arbiter_number(id)) {
            return Err(format!("tenant {name} is paused, and a pause has no effect in mode observe; resume it first"));
        }
        let action = OverrideAction::Terms(Box::new(words.clone()));
        let device = device.map(|device| live::device_of(&devices, &changed.tenant, device)).transpose()?;
        // Also devices on which the values are the same now: a window may give them, and end before the change.
        let all = changed.tenant.terms.iter().map(|terms| terms.device.clone());
        let touched: Vec<String> = device.clone().map_or_else(|| all.collect(), |device| vec![device]);
        let what = words.to_command_words(device.as_deref());
        let device = device.map(|device| lasting_name(&devices, &device));
        let change = TermsOverride { device, ..new_override(name, action, lasting, who)? };
        let mut ahead = self.policy_givens();
        add_override(&mut ahead.overrides, change.clone())?;
        let before = self.policy_givens();
        // With an end it outlives the overrides without one.
        let later =
            change.until.map(|_| (ahead.clone().without_endless(), before.clone().without_endless(), ENDLESS_WORDS));
        for (ahead, before, ends) in std::iter::once((ahead, before, "")).chain(later) {
            let known = before.conflicting_bookings(change.since);
            let changed_here = Some((name, touched.as_slice()));
            let check = |givens: &PolicySnapshot| givens.check_ahead(changed_here, change.since, change.until, &known);
            if let Err(why) = check(&ahead) {
                // Slots that wait may need more than there is. A change that promises no more is not refused for that.
                let own = tenants.iter().find(|tenant| tenant.name == name);
                let raises = own.is_none_or(|own| live::asks_for_more(&devices, own, &changed.tenant));
                if raises || check(&before).is_ok() {
                    return Err(format!("{why}{ends}"));
                }
            }
        }
        let until = change.until;
        self.add_override(change, &note_about(name, &what, lasting, who))?;
        let mut keys: BTreeSet<&'static str> = changed.whole.iter().copied().collect();
        keys.extend(changed.what.iter().flat_map(|(_, what)| what));
        if keys.is_empty() && until.is_some() {
            // The values are the same now, and will stay so where a window or the file gives others.
            let (by_uid, by_pid, reason) = (who.uid, who.pid, &lasting.reason);
            info!(kind = "tenant.changed", tenant = %name, by_uid, by_pid, what, reason, until, "tenant changed");
        }
        let mut notes = Vec::new();
        if !keys.is_empty() || until.is_some() {
            notes.extend(self.lasting_note(until, LASTS_WORDS));
        }
        if changed.whole.contains(&"strict") {
            notes
                .push("strict takes effect when a process starts: running processes keep the earlier value".to_owned());
        }
        if changed.whole.contains(&"mode") && changed.tenant.mode == Mode::Observe {
            notes.push("its processes are neither delayed nor refused anything, and take time from others".to_owned());
        }
        self.change_result(name, keys.into_iter().map(str::to_owned).collect(), notes)
    }

    /// How long a change lasts, for its caller.
    fn lasting_note(&self, until: Option<i64>, without_end: &str) -> Vec<String> {
        let Some(until) = until else { return vec![without_end.to_owned()] };
        let mut notes = vec![format!("it lasts until {}", self.policies.format_time(until))];
        if !self.policies.is_stored() {
            notes.push("the daemon has no state_dir, so a restart of the daemon ends it too".to_owned());
        }
        notes
    }

    /// Says that an earlier command of the same kind ends later than this one.
    fn later_end_note(&self, name: &str, action: &OverrideAction, until: Option<i64>) -> Option<String> {
        match self.policies.last_end(name, action)? {
            last if last == until => None,
            None => Some("an earlier command without an end stays in force after that".to_owned()),
            Some(last) => {
                let last = self.policies.format_time(last);
                Some(format!("an earlier command stays in force after that, until {last}"))
            }
        }
    }

    fn is_observed(&self, name: &str) -> bool {
        let room = self.rooms.values().find(|room| !room.is_removed() && room.tenant.name == name);
        room.is_some_and(|room| room.tenant.mode == Mode::Observe)
    }

    fn pause(&mut self, name: &str, lasting: &ChangeLasting, who: PeerCredentials) -> Result<ChangeResult, String> {
        self.known_room(name)?;
        let was = self.is_paused(name).unwrap_or(false);
        if self.is_observed(name) {
            return Err(format!(
                "tenant {name} is only observed (mode = \"observe\"), so a pause has no effect; use `vgpu set {name} \
                 --mode enforce` first"
            ));
        }
        let change = new_override(name, OverrideAction::Pause, lasting, who)?;
        let until = change.until;
        let note = ChangeNote { pause_is_logged: true, ..note_about(name, "paused", lasting, who) };
        self.add_override(change, &note)?;
        let (by_uid, by_pid, reason) = (who.uid, who.pid, &lasting.reason);
        info!(kind = "tenant.paused", tenant = %name, by_uid, by_pid, reason, until, "tenant paused");
        let mut notes = self.lasting_note(until, "it lasts until `vgpu resume` or a restart of the daemon");
        notes.extend(self.later_end_note(name, &OverrideAction::Pause, until));
        self.change_result(name, if was { Vec::new() } else { vec!["paused".to_owned()] }, notes)
    }

    /// Ends an administrator's pause. If a window or the tenant's use pauses it too, an override lifts that pause for
    /// its remaining time. A pause by another tenant's exclusive use stays.
    fn resume(&mut self, name: &str, who: PeerCredentials) -> Result<ChangeResult, String> {
        let id = self.known_room(name)?;
        let was = self.policies.pause_cause(name).is_some();
        let note = ChangeNote { pause_is_logged: true, ..note_about(name, "resumed", &ChangeLasting::default(), who) };
        let is_pause = |change: &TermsOverride| change.tenant == name && change.action == OverrideAction::Pause;
        self.end_overrides(is_pause, &note)?;
        let mut notes = Vec::new();
        if let Some(other) = self.policies.pause_cause(name).cloned() {
            let alone = |other: &Cause| {
                let other = &other.name;
                format!(
                    "tenant {name} is paused because tenant {other} has the devices alone; `vgpu unset {other}` ends that"
                )
            };
            // Only the pause of a window or of use can be lifted.
            let Some(pause) = self.policies.planned_pause(name).cloned() else { return Err(alone(&other)) };
            let run = new_override(name, OverrideAction::Run, &ChangeLasting::default(), who)?;
            let run = TermsOverride { until: pause.until, ..run };
            if let Some((other, devices)) = self.lasting_pause(name, &run)? {
                let Some(devices) = devices else { return Err(alone(&other)) };
                notes.push(format!("it stays paused on device {devices}, which tenant {} has alone", other.name));
            }
            self.add_override(run, &note)?;
            notes.push(format!("it was paused: {}; it launches until then", pause.to_words(clock::unix_seconds())));
        }
        if self.leases.is_suspended(arbiter_number(id)) {
            let words = self.suspension_words(id).unwrap_or_default();
            notes.push(format!("{words}; `vgpu-checkpoint resume PID` brings them back"));
        }
        info!(kind = "tenant.resumed", tenant = %name, by_uid = who.uid, by_pid = who.pid, "tenant resumed");
        self.change_result(name, if was { vec!["paused".to_owned()] } else { Vec::new() }, notes)
    }

    fn make_exclusive(
        &mut self,
        name: &str,
        lasting: &ChangeLasting,
        who: PeerCredentials,
    ) -> Result<ChangeResult, String> {
        self.known_room(name)?;
        let change = new_override(name, OverrideAction::Exclusive, lasting, who)?;
        let until = change.until;
        let now = clock::unix_seconds();
        let of_name = |change: &TermsOverride| {
            change.tenant == name && change.action == OverrideAction::Exclusive && !change.is_over(now)
        };
        if let Some(cause) = self.policies.pause_cause(name) {
            let cause = cause.to_words(now);
            return Err(format!("tenant {name} is paused itself: {cause}; accepted: a tenant that may launch"));
        }
        let was = self.policies.kept.overrides.iter().any(of_name);
        let before = self.policies.paused_tenants();
        self.add_override(change, &note_about(name, "exclusive", lasting, who))?;
        let (by_uid, by_pid, reason) = (who.uid, who.pid, &lasting.reason);
        info!(kind = "tenant.exclusive", tenant = %name, by_uid, by_pid, reason, until, "tenant has its devices alone");
        let mut notes = self.lasting_note(until, "it lasts until `vgpu unset` or a restart of the daemon");
        notes.extend(self.later_end_note(name, &OverrideAction::Exclusive, until));
        let paused: Vec<String> =
            self.policies.paused_tenants().into_iter().filter(|paused| !before.contains(paused)).collect();
        if !paused.is_empty() {
            notes.push(format!("paused, with their memory kept: {}", paused.join(", ")));
        }
        self.change_result(name, if was { Vec::new() } else { vec!["exclusive".to_owned()] }, notes)
    }

    /// Ends everything that administrators changed of a tenant.
    fn unset(&mut self, name: &str, who: PeerCredentials) -> Result<ChangeResult, String> {
        self.known_room(name)?;
        let mut keys: BTreeSet<String> = self.policies.override_steps(name).map(|step| step.key.to_owned()).collect();
        let is_own = |change: &TermsOverride| change.tenant == name;
        if self
            .policies
            .kept
            .overrides
            .iter()
            .any(|change| is_own(change) && change.action == OverrideAction::Exclusive)
        {
            keys.insert("exclusive".to_owned());
        }
        let known = self.known_conflicts();
        let mut givens = self.policy_givens();
        givens.overrides.retain(|change| !is_own(change));
        let of_name = |tenant: &&TenantPlan| tenant.name == name;
        let terms = givens.tenants.iter().find(of_name).map(|tenant| tenant.terms.clone()).unwrap_or_default();
        let devices: Vec<String> = terms.into_iter().map(|terms| terms.device).collect();
        let changed = Some((name, devices.as_slice()));
        if let Err(why) = givens.check_ahead(changed, clock::unix_seconds(), None, &known) {
            // A pause and exclusive use promise nothing, so they end in any case.
            let note = note_about(name, "its pause and its exclusive use were ended", &ChangeLasting::default(), who);
            self.end_overrides(|change| is_own(change) && !matches!(change.action, OverrideAction::Terms(_)), &note)?;
            return Err(format!(
                "the terms of the configuration do not fit any more, so the overridden ones stay: {why}"
            ));
        }
        let note = note_about(name, "its overrides were ended", &ChangeLasting::default(), who);
        self.end_overrides(is_own, &note)?;
        self.change_result(name, keys.into_iter().collect(), Vec::new())
    }

    /// Which tenants get their leases together with this one; `None`: it is in no gang.
    fn gang_words(&self, tenant: &TenantConfig) -> Option<String> {
        let gang = tenant.gang.as_ref()?;
        let others = self.rooms.values().map(|room| &room.tenant);
        let others = others.filter(|other| other.gang.as_ref() == Some(gang) && other.name != tenant.name);
        let names: Vec<&str> = others.map(|other| other.name.as_str()).collect();
        let names = if names.is_empty() { "nobody else".to_owned() } else { names.join(", ") };
        Some(format!("Gang {gang:?}: it gets its leases together with {names}, or nobody of them gets one."))
    }

    /// Returns the answer to a change: the tenant's terms after it, the changed keys and the notes.
    pub(super) fn change_result(
        &mut self,
        name: &str,
        changed: Vec<String>,
        notes: Vec<String>,
    ) -> Result<ChangeResult, String> {
        let id = self.known_room(name)?;
        let devices = self.terms_status(id);
        let paused = self.is_paused(name).unwrap_or(false);
        let room = self.rooms.get(&id);
        let mode = room.map_or(Mode::Enforce, |room| room.tenant.mode).to_string();
        let strict = room.is_some_and(|room| room.tenant.strict);
        let labels = room.map(|room| room.tenant.bearer.labels.clone()).unwrap_or_default();
        Ok(ChangeResult { tenant: name.to_owned(), changed, paused, mode, strict, devices, labels, notes })
    }

    /// Why a tenant gets the time it gets, and the findings about its processes.
    fn explanation_answer(&mut self, name: &str) -> Result<Vec<DeviceExplanation>, String> {
        let id = self.known_room(name)?;
        let Some(tenant) = self.rooms.get(&id).map(|room| room.tenant.clone()) else { return Ok(Vec::new()) };
        let whole = self.tenant_facts(name);
        let said = self.explain_tenant(name)?;
        let facts = said.into_iter().map(|said| {
            let class_of = |holder: &String| {
                let room = self.rooms.values().find(|room| room.tenant.name == *holder);
                room.and_then(|room| room.tenant.terms_on(&said.device))
                    .map_or_else(Default::default, |on| on.terms.class)
            };
            let holder = said.holder.filter(|holder| holder != name).map(|holder| (holder.clone(), class_of(&holder)));
            let terms = tenant.terms_on(&said.device).map(|on| on.terms).unwrap_or_default();
            DeviceStanding {
                class: terms.class,
                floor: terms.floor,
                ceiling: terms.ceiling,
                state: said.state,
                words: said.words,
                holder,
                refill: said.refill,
                device: said.device,
            }
        });
        let facts: Vec<DeviceStanding> = facts.collect();
        let mut all = explain_tenant(&whole, &facts);
        for explained in &mut all {
            let named = tenant.terms_on(&explained.device).map(|on| vec![device_name(&on.device)]);
            let devices = named.unwrap_or_else(|| tenant.on.iter().map(|on| device_name(&on.device)).collect());
            for device in &devices {
                let at = if devices.len() > 1 { format!("On device {device}: ") } else { String::new() };
                let words = self.chain_words(name, device).into_iter().chain(self.cordon_words_on(device));
                explained.sentences.extend(words.map(|words| format!("{at}{words}.")));
            }
            explained.sentences.extend(self.cordon_words_of(name).map(|words| format!("{words}.")));
            explained.sentences.extend(self.suspension_words(id).map(|words| format!("{words}.")));
            explained.sentences.extend(self.gang_words(&tenant));
        }
        let (found, more) =
            self.proof.as_ref().map(|proof| proof.of_tenant(name, own::MAX_FINDINGS_TOLD)).unwrap_or_default();
        tell_findings(&mut all, &found, more);
        Ok(all)
    }
}

fn take_cordon(done: Result<CordonStatus, String>, answer: &mut ControlAnswer) {
    match done {
        Ok(cordon) => answer.cordon = Some(cordon),
        Err(words) => answer.error = Some(words),
    }
}

fn take_bookings(done: Result<Vec<BookingStatus>, String>, answer: &mut ControlAnswer) {
    match done {
        Ok(bookings) => answer.bookings = Some(bookings),
        Err(words) => answer.error = Some(words),
    }
}

pub(super) fn check_reason(reason: Option<&str>) -> Result<(), String> {
    match reason.map(str::len) {
        Some(length) if length > MAX_REASON_BYTES => {
            Err(format!("the reason has {length} bytes; accepted: at most {MAX_REASON_BYTES}"))
        }
        _ => Ok(()),
    }
}

fn new_override(
    tenant: &str,
    action: OverrideAction,
    lasting: &ChangeLasting,
    who: PeerCredentials,
) -> Result<TermsOverride, String> {
    check_reason(lasting.reason.as_deref())?;
    let since = clock::unix_seconds();
    let until = match lasting.seconds {
        Some(seconds @ 1..=MAX_LASTING_SECONDS) => Some(since.saturating_add_unsigned(seconds)),
        Some(seconds) => return Err(format!("{seconds} s is no time that a change may last; accepted: 1s to 365d")),
        None => None,
    };
    let reason = lasting.reason.clone();
    Ok(TermsOverride { tenant: tenant.to_owned(), device: None, action, since, until, by_uid: who.uid, reason })
}

pub(super) fn note_about(tenant: &str, what: &str, lasting: &ChangeLasting, who: PeerCredentials) -> ChangeNote {
    ChangeNote { reason: lasting.reason.clone(), ..ChangeNote::about(tenant, what, who) }
}
