//! Draws the panes that replace the table: a tenant's details, and the help.

use ratatui::text::{Line, Span};
use vgpu_core::units::bytes::Bytes;

use super::theme::ColourTheme;
use super::wrap_text;
use crate::ask;
use crate::ps::format_span;
use crate::top::history::MINUTES_SHOWN;
use crate::top::keys::KEY_BINDINGS;
use crate::top::row::{self, TopRow, brief_name};
use crate::top::state::TopState;
use vgpu_control::{MemberStatus, TenantStatus};
use vgpu_output::say::escape_line;

/// Returns the help.
#[must_use]
pub fn help_lines<'t>(theme: &ColourTheme, room: usize) -> Vec<Line<'t>> {
    let wide = KEY_BINDINGS.iter().map(|binding| binding.shown.len()).max().unwrap_or(0);
    let mut lines = vec![Line::styled("keys", theme.heading_style())];
    lines.extend(KEY_BINDINGS.iter().map(|binding| {
        Line::from(vec![
            Span::styled(format!("  {:<wide$}  ", binding.shown), theme.heading_style()),
            Span::raw(binding.what.to_owned()),
        ])
    }));
    lines.truncate(room);
    lines
}

/// Returns a tenant's details, without the first `skipped` lines.
#[must_use]
pub fn detail_lines<'t>(
    top: &TopState,
    theme: &ColourTheme,
    tenant: &str,
    width: usize,
    room: usize,
    skipped: usize,
) -> Vec<Line<'t>> {
    let mut lines = Vec::new();
    let Some(status) = top.tenant_status(tenant) else {
        return vec![Line::styled(format!("{tenant}: the daemon has no such tenant any more"), theme.warning_style())];
    };
    for row in top.rows_of(tenant) {
        on_device(top, theme, row, width, &mut lines);
    }
    explanation_lines(top, theme, tenant, width, &mut lines);
    lines.push(Line::styled(format!("processes ({})", status.members.len()), theme.heading_style()));
    lines.extend(member_rows(top, status).into_iter().map(|text| Line::raw(format!("  {text}"))));
    lines.push(Line::default());
    lines.push(Line::from(vec![
        Span::styled("socket ", theme.heading_style()),
        Span::raw(escape_line(&status.socket.display().to_string())),
    ]));
    // Do not scroll past the end.
    let skipped = skipped.min(lines.len().saturating_sub(room));
    lines.into_iter().skip(skipped).collect()
}

fn on_device(top: &TopState, theme: &ColourTheme, row: &TopRow, width: usize, lines: &mut Vec<Line<'_>>) {
    let percent = |value: Option<f64>| value.map_or(row.missing_time().to_owned(), |value| format!("{value:.1} %"));
    let share = |value: Option<f64>, none: &str| value.map_or(none.to_owned(), |value| format!("{value} %"));
    let seconds = |value: Option<f64>| value.map_or(row.missing_time().to_owned(), |value| format!("{value:.3} s"));
    lines.push(Line::from(vec![
        Span::styled(format!("{} on device {}: ", row.tenant, row.device), theme.heading_style()),
        Span::styled(row.state.clone(), theme.state_style(&row.state)),
    ]));
    let used = row.used.map_or("?".to_owned(), |used| Bytes(used).to_string());
    lines.push(Line::raw(format!(
        "  class {}, weight {}, floor {}, ceiling {}",
        if row.class.is_empty() { "-" } else { &row.class },
        row.weight,
        share(row.floor, "none"),
        share(row.ceiling, "unlimited"),
    )));
    lines.push(Line::raw(format!("  memory {used} of {}", ask::size(row.limit))));
    lines.push(Line::raw(format!(
        "  wanted {}, got {}; device time {}, waited {}",
        percent(row.wanted),
        percent(row.got),
        seconds(row.gpu_seconds),
        seconds(row.waited),
    )));
    let room = width.saturating_sub(14).clamp(10, MINUTES_SHOWN);
    let recent = theme.spark_text(top.history.newest_values(&row.row_key(), room));
    let bars = |head: &str, bars: String| {
        Line::from(vec![
            Span::styled(format!("  {head:<10}"), theme.dim_style()),
            Span::styled(bars, theme.good_style()),
        ])
    };
    lines.push(bars("got", recent));
    let hour = match &top.hour {
        None => None,
        Some(Err(why)) => Some(Line::styled(format!("  last hour: {}", escape_line(why)), theme.dim_style())),
        Some(Ok(all)) => {
            let same = |uuid: &str| row::name_same_device(&top.look.status.devices, uuid, &row.device);
            let line = all.iter().find(|((tenant, uuid), _)| *tenant == row.tenant && same(uuid));
            let nothing = vec![0.0; MINUTES_SHOWN];
            let values = line.map_or(&nothing, |(_, values)| values);
            let skipped = values.len().saturating_sub(room);
            Some(bars("last hour", theme.spark_text(values.iter().skip(skipped).copied())))
        }
    };
    lines.extend(hour);
    lines.push(Line::default());
}

fn explanation_lines(top: &TopState, theme: &ColourTheme, tenant: &str, width: usize, lines: &mut Vec<Line<'_>>) {
    lines.push(Line::styled("why", theme.heading_style()));
    match &top.explained {
        Some((whose, Ok(all))) if whose == tenant => {
            for device in all {
                for sentence in &device.sentences {
                    let words = format!("{}: {}", brief_name(&device.device), escape_line(sentence));
                    lines.extend(
                        wrap_text(&words, width.saturating_sub(2))
                            .into_iter()
                            .map(|text| Line::raw(format!("  {text}"))),
                    );
                }
            }
        }
        Some((whose, Err(why))) if whose == tenant => {
            lines.push(Line::styled(format!("  {}", escape_line(why)), theme.warning_style()));
        }
        _ => lines.push(Line::styled("  asking the daemon", theme.dim_style())),
    }
    lines.push(Line::default());
}

/// Returns the rows of the table of processes.
fn member_rows(top: &TopState, status: &TenantStatus) -> Vec<String> {
    let heads = [
        "PID",
        "INSIDE",
        "CONTAINER",
        "UID",
        "DEVICE",
        "LEASE",
        "GPU-SECONDS",
        "WAITED",
        "MEMORY",
        "SINCE",
        "LIBRARY",
        "POD",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for member in &status.members {
        rows.extend(of_member(top, member));
    }
    if status.members.iter().all(|member| pod_of(member).is_none()) {
        rows.iter_mut().for_each(|row| drop(row.pop()));
    }
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..heads.len()).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// UID of the pod that a process runs in.
fn pod_of(member: &MemberStatus) -> Option<&str> {
    member.place.as_ref()?.pod.as_deref()
}

fn of_member(top: &TopState, member: &MemberStatus) -> Vec<Vec<String>> {
    let seen = || member.place.as_ref()?.short_text();
    let row = |device: &str, lease: String, gpu: String, waited: String, memory: String| {
        vec![
            member.pid.map_or("-".into(), |pid| pid.to_string()),
            member.pid_inside.to_string(),
            member.pid.and_then(|pid| top.places.get(&pid).cloned()).or_else(seen).unwrap_or_else(|| "-".into()),
            member.uid.to_string(),
            brief_name(device),
            lease,
            gpu,
            waited,
            memory,
            format_span(member.connected_seconds),
            escape_line(&member.version),
            pod_of(member).unwrap_or("-").to_owned(),
        ]
    };
    if member.devices.is_empty() {
        return vec![row("-", "none".into(), "-".into(), "-".into(), "-".into())];
    }
    let on = |here: &vgpu_control::MemberDevice| {
        let lease = if here.waits { format!("{}, waits", here.lease) } else { here.lease.clone() };
        let memory = here.memory_used.map_or("?".into(), |used| Bytes(used).to_string());
        let gpu = here.gpu_seconds.map_or("?".into(), |seconds| format!("{seconds:.3}"));
        row(&here.device, lease, gpu, format!("{:.3}", here.waited_seconds), memory)
    };
    member.devices.iter().map(on).collect()
}
