//! Shows a plan as a table for people and as JSON for programs.

use std::time::Duration;

use serde_json::{Value, json};
use vgpu_core::limits::Mode;
use vgpu_core::time::arbiter::Class;
use vgpu_core::units::bytes::Bytes;
use vgpu_core::units::share::Share;

use super::action::ActionPlan;
use super::admit::{GroupLimitSums, sum_group_limits};
use super::groups::{GroupPlan, QuotaPlan};
use super::plan::{ConfigPlan, TenantPlan, TermsPlan};
use super::problem::ConfigReport;
use super::raw::OnLoss;
use super::resolve::admission::format_thousandths;
use super::templates::all_templates;
use super::time::values_of;
use super::usage::IdlePlan;
use super::value::format_span;
use vgpu_output::say;

/// Returns the plan as text tables.
#[must_use]
pub fn plan_table(plan: &ConfigPlan) -> String {
    let mut devices =
        vec![["DEVICE", "MEMORY", "OVERCOMMIT", "LIMITS", "FLOORS", "TENANTS"].map(str::to_owned).to_vec()];
    for device in &plan.devices {
        let name = device.name();
        let there = || plan.tenants.iter().flat_map(|tenant| &tenant.terms).filter(|terms| terms.device == name);
        let limited = there().filter_map(|terms| terms.memory);
        let sum = limited.fold(Bytes::ZERO, |sum, limit| sum.saturating_add(limit));
        let unlimited = there().filter(|terms| terms.memory.is_none()).count();
        let floors: u64 = there().filter_map(|terms| terms.floor).map(|floor| u64::from(floor.as_permille())).sum();
        devices.push(vec![
            name.clone(),
            device.memory.map_or("not known".into(), |memory| memory.to_string()),
            format_thousandths(device.overcommit.into()),
            if unlimited > 0 { format!("{sum} and {unlimited} without") } else { sum.to_string() },
            format!("{} %", format_thousandths(u128::from(floors) * 100)),
            there().count().to_string(),
        ]);
    }
    let heads = ["TENANT", "DEVICE", "MEMORY", "REQUEST", "LIMIT", "WEIGHT", "CLASS", "MODE", "USERS", "SOCKET"];
    let mut tenants = vec![heads.map(str::to_owned).to_vec()];
    for tenant in &plan.tenants {
        tenants.extend(tenant_rows(tenant));
    }
    let mut text = format!("{}\n{}", say::lay_out_table(&devices), say::lay_out_table(&tenants));
    if !plan.groups.is_empty() {
        let mut groups = vec![["GROUP", "WEIGHT", "QUOTAS"].map(str::to_owned).to_vec()];
        groups.extend(plan.groups.iter().map(group_row));
        let sums = plan.groups.iter().map(|group| sum_group_limits(&plan.devices, &plan.tenants, &group.name));
        insert_limits(&mut groups, 2, &sums.collect::<Vec<_>>());
        text.push_str(&format!("\n{}", say::lay_out_table(&groups)));
    }
    if plan.tenants.iter().any(|tenant| tenant.usage.idle.is_some()) {
        let heads = ["TENANT", "IDLE BELOW", "FOR", "STALLED AFTER", "OVER-USED FROM", "FOR", "STEPS"];
        let mut idle = vec![heads.map(str::to_owned).to_vec()];
        idle.extend(plan.tenants.iter().filter_map(|tenant| Some(idle_row(&tenant.name, tenant.usage.idle.as_ref()?))));
        text.push_str(&format!("\n{}", say::lay_out_table(&idle)));
    }
    if !plan.actions.is_empty() {
        let mut actions = vec![["ON EVENT", "RUNS", "TIMEOUT", "AT ONCE"].map(str::to_owned).to_vec()];
        actions.extend(plan.actions.iter().map(action_row));
        text.push_str(&format!("\n{}", say::lay_out_table(&actions)));
    }
    text.push_str(&format!("\n{}\n", templates_line(plan)));
    if !plan.notes.is_empty() {
        text.push('\n');
        text.extend(plan.notes.iter().map(|note| format!("note: {note}\n")));
    }
    text
}

/// Returns one row for each of a tenant's devices.
fn tenant_rows(tenant: &TenantPlan) -> Vec<Vec<String>> {
    let share = |share: Option<Share>, none: &str| share.map_or(none.to_owned(), |share| share.to_string());
    let users = tenant.uids.as_ref().map_or("any".to_owned(), |uids| {
        let one = |range: &std::ops::RangeInclusive<u32>| match (range.start(), range.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        };
        uids.iter().map(one).collect::<Vec<_>>().join(",")
    });
    let row = |terms: &TermsPlan| {
        vec![
            tenant.name.clone(),
            terms.device.clone(),
            terms.memory.map_or("unlimited".into(), |memory| memory.to_string()),
            share(terms.floor, "none"),
            share(terms.ceiling, "unlimited"),
            terms.weight.to_string(),
            class_word(terms.class).to_owned(),
            mode_words(tenant.mode, tenant.strict),
            users.clone(),
            tenant.socket.display().to_string(),
        ]
    };
    tenant.terms.iter().map(row).collect()
}

fn group_row(group: &GroupPlan) -> Vec<String> {
    let quotas: Vec<String> = group.quotas.iter().map(quota_words).collect();
    vec![
        group.name.clone(),
        group.weight.map_or_else(|| "-".to_owned(), |weight| weight.to_string()),
        if quotas.is_empty() { "-".to_owned() } else { quotas.join("; ") },
    ]
}

/// Inserts columns before `column`: sums of memory limits and of ceilings next to the groups' limits. Each shows the
/// device with the largest part in use. A column without a limit is left out. The first row has the headers. The others
/// belong to the groups of `sums` in their order.
pub fn insert_limits(rows: &mut [Vec<String>], column: usize, sums: &[Vec<GroupLimitSums>]) {
    let memory = |sums: &GroupLimitSums| {
        let limit = sums.memory_limit?;
        let part = sums.memory as f64 / limit.max(1) as f64;
        Some((part, format!("{} of {}", Bytes(sums.memory), Bytes(limit))))
    };
    let ceilings = |sums: &GroupLimitSums| {
        let limit = sums.sm_limit?;
        Some((sums.ceilings / limit, format!("{} of {limit} %", sums.ceilings)))
    };
    let columns = [
        ("CEILINGS", sums.iter().map(|sums| fullest_device(sums, ceilings)).collect::<Vec<_>>()),
        ("MEMORY", sums.iter().map(|sums| fullest_device(sums, memory)).collect()),
    ];
    for (head, cells) in columns.into_iter().filter(|(_, cells)| cells.iter().any(Option::is_some)) {
        let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
        for (row, cell) in rows.iter_mut().zip(std::iter::once(head.to_owned()).chain(cells)) {
            row.insert(column, cell);
        }
    }
}

/// Returns the words of the device with the largest part in use, with its name if there are several devices; `None`: no
/// device has a limit. `part_of` returns part and words.
fn fullest_device(
    sums: &[GroupLimitSums],
    part_of: impl Fn(&GroupLimitSums) -> Option<(f64, String)>,
) -> Option<String> {
    let parts = sums.iter().filter_map(|sums| Some((part_of(sums)?, &sums.device)));
    let ((_, words), device) = parts.reduce(|fullest, other| if other.0.0 > fullest.0.0 { other } else { fullest })?;
    Some(if sums.len() > 1 { format!("{words} on {device}") } else { words })
}

/// Returns a quota in words: `40 GPU-hours a week, then class batch`.
fn quota_words(quota: &QuotaPlan) -> String {
    let limit =
        |hours: Option<u32>, unit: &str| hours.map(|hours| format!("{} {unit}", format_thousandths(u128::from(hours))));
    let limits: Vec<String> =
        [limit(quota.gpu_hours, "GPU-hours"), limit(quota.gib_hours, "GiB-hours")].into_iter().flatten().collect();
    format!("{} a {}, then {}", limits.join(" and "), quota.period.word(), quota.effect)
}

fn idle_row(name: &str, idle: &IdlePlan) -> Vec<String> {
    let steps: Vec<String> = idle.steps.iter().map(|step| step.to_words()).collect();
    let steps = if steps.is_empty() { "event".to_owned() } else { steps.join(", ") };
    vec![
        name.to_owned(),
        idle.idle_below.to_string(),
        format_span(to_ns(idle.idle_after)),
        format_span(to_ns(idle.stalled_after)),
        idle.over_from.to_string(),
        format_span(to_ns(idle.over_after)),
        if idle.dry_run { format!("{steps} (dry run)") } else { steps },
    ]
}

fn to_ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the names of all templates, those of the file first.
fn templates_line(plan: &ConfigPlan) -> String {
    let names: Vec<&str> = all_templates(&plan.templates).map(|template| template.name.as_str()).collect();
    let (file, built_in) = names.split_at(plan.templates.len());
    let lists = [("of the file", file), ("built in", built_in)].into_iter().filter(|(_, names)| !names.is_empty());
    let lists: Vec<String> = lists.map(|(whose, names)| format!("{} ({whose})", names.join(", "))).collect();
    format!("templates: {}", lists.join("; "))
}

/// Returns the timeout of an action as the file writes it.
#[must_use]
pub fn timeout_text(action: &ActionPlan) -> String {
    format_span(to_ns(action.timeout))
}

fn action_row(action: &ActionPlan) -> Vec<String> {
    let program: Vec<String> = action.exec.iter().map(|word| say::quote_shown(word.as_ref())).collect();
    vec![action.events.join(", "), program.join(" "), timeout_text(action), action.at_once.to_string()]
}

/// Returns the class as the file writes it.
#[must_use]
pub fn class_word(class: Class) -> &'static str {
    match class {
        Class::Latency => "latency",
        Class::Normal => "normal",
        Class::Batch => "batch",
    }
}

/// Returns a tenant's mode, `enforce` or `observe`, and whether it is `strict`.
#[must_use]
pub fn mode_words(mode: Mode, strict: bool) -> String {
    if strict { format!("{mode}, strict") } else { mode.to_string() }
}

fn on_loss(on_loss: OnLoss) -> &'static str {
    match on_loss {
        OnLoss::Local => "local",
        OnLoss::Open => "open",
        OnLoss::Block => "block",
    }
}

/// Returns the plan as JSON: bytes, percent, nanoseconds; null is no limit.
#[must_use]
pub fn plan_json(plan: &ConfigPlan) -> Value {
    let percent = |share: Option<Share>| share.map(|share| f64::from(share.as_permille()) / 10.0);
    let devices = plan.devices.iter().map(|device| {
        json!({
            "name": device.name(),
            "index": device.index,
            "uuid": device.uuid,
            "parent": device.parent,
            "memory": device.memory.map(u64::from),
            "overcommit": f64::from(device.overcommit) / 1000.0,
        })
    });
    let terms = |terms: &TermsPlan| {
        json!({
            "device": terms.device,
            "memory_limit": terms.memory.map(u64::from),
            "sm_limit": percent(terms.ceiling),
            "sm_request": percent(terms.floor),
            "weight": terms.weight,
            "class": class_word(terms.class),
            "quantum": terms.quantum,
        })
    };
    let idle = |idle: &IdlePlan| {
        json!({
            "idle_after": to_ns(idle.idle_after),
            "idle_below": percent(Some(idle.idle_below)),
            "over_after": to_ns(idle.over_after),
            "over_from": percent(Some(idle.over_from)),
            "stalled_after": to_ns(idle.stalled_after),
            "steps": idle.steps.iter().map(|step| json!({
                "step": step.kind.word(),
                "after": to_ns(step.after),
            })).collect::<Vec<_>>(),
            "suspend": idle.suspend,
            "grace": to_ns(idle.grace),
            "dry_run": idle.dry_run,
        })
    };
    let tenants = plan.tenants.iter().map(|tenant| {
        let uids = tenant.uids.as_ref();
        json!({
            "name": tenant.name,
            "socket": tenant.socket,
            "replicas": tenant.replicas,
            "gang": tenant.gang,
            "group": tenant.bearer.group,
            "labels": tenant.bearer.labels,
            "uids": uids.map(|uids| uids.iter().map(|range| [*range.start(), *range.end()]).collect::<Vec<_>>()),
            "mode": tenant.mode.to_string(),
            "strict": tenant.strict,
            "on_error": tenant.on_error,
            "on_loss": on_loss(tenant.on_loss),
            "idle": tenant.usage.idle.as_ref().map(idle),
            "deadline": tenant.usage.deadline.map(|deadline| json!({
                "due": deadline.due,
                "needed": deadline.needed_ns,
            })),
            "terms": tenant.terms.iter().map(terms).collect::<Vec<_>>(),
        })
    });
    let action = |action: &ActionPlan| {
        json!({
            "events": action.events,
            "exec": action.exec,
            "timeout": u64::try_from(action.timeout.as_nanos()).unwrap_or(u64::MAX),
            "at_once": action.at_once,
        })
    };
    json!({
        "daemon": {
            "run_dir": plan.daemon.run_dir,
            "state_dir": plan.daemon.state_dir,
            "admin_socket": plan.daemon.admin,
            "max_connections": plan.daemon.max_connections,
            "log": plan.daemon.log,
        },
        "log": plan.log,
        "metrics": plan.metrics,
        "proof": plan.proof.as_ref().map(|proof| json!({
            "interval": u64::try_from(proof.interval.as_nanos()).unwrap_or(u64::MAX),
            "devices": proof.devices,
            "allow": proof.allow,
            "slack": proof.slack,
            "action": if proof.stop { "stop" } else { "report" },
            "grace": u64::try_from(proof.grace.as_nanos()).unwrap_or(u64::MAX),
            "dry_run": proof.dry_run,
        })),
        "record": { "keep_seconds": plan.daemon.keep.all, "keep_fine_seconds": plan.daemon.keep.fine, "exact": plan.daemon.exact, "half_life_seconds": plan.daemon.half_life },
        "time": values_of(&plan.time),
        "devices": devices.collect::<Vec<_>>(),
        "tenants": tenants.collect::<Vec<_>>(),
        "groups": plan.groups.iter().map(|group| json!({
            "name": group.name,
            "weight": group.weight,
            "limits": sum_group_limits(&plan.devices, &plan.tenants, &group.name),
            "quotas": group.quotas.iter().map(quota_json).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "templates": all_templates(&plan.templates).enumerate().map(|(at, template)| json!({
            "name": template.name,
            "built_in": at >= plan.templates.len(),
        })).collect::<Vec<_>>(),
        "on_event": plan.actions.iter().map(action).collect::<Vec<_>>(),
        "notes": plan.notes,
    })
}

fn quota_json(quota: &QuotaPlan) -> Value {
    let hours = |thousandths: Option<u32>| thousandths.map(|hours| f64::from(hours) / 1000.0);
    json!({
        "per": quota.period.word(),
        "gpu_hours": hours(quota.gpu_hours),
        "gib_hours": hours(quota.gib_hours),
        "then": quota.effect.to_string(),
    })
}

/// Returns the problems as JSON.
#[must_use]
pub fn problems_json(file: &str, report: &ConfigReport) -> Value {
    json!({ "file": file, "problems": report.problems, "more": report.more })
}
