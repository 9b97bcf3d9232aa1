//! Draws the panes that replace the table: a tenant's details, and the help.

use ratatui::text::{Line, Span};
use vgpu_core::units::bytes::Bytes;

use super::theme::Theme;
use super::wrapped;
use crate::ask;
use crate::ps::span;
use crate::top::history::MINUTES;
use crate::top::keys::BINDINGS;
use crate::top::row::{self, Row, brief};
use crate::top::state::Top;
use vgpu_control::{MemberStatus, TenantStatus};
use vgpu_output::say::escaped;

/// Returns the help.
#[must_use]
pub fn help<'t>(theme: &Theme, room: usize) -> Vec<Line<'t>> {
    let wide = BINDINGS.iter().map(|binding| binding.shown.len()).max().unwrap_or(0);
    let mut lines = vec![Line::styled("keys", theme.head())];
    lines.extend(BINDINGS.iter().map(|binding| {
        Line::from(vec![
            Span::styled(format!("  {:<wide$}  ", binding.shown), theme.head()),
            Span::raw(binding.what.to_owned()),
        ])
    }));
    lines.truncate(room);
    lines
}

/// Returns a tenant's details, without the first `skipped` lines.
#[must_use]
pub fn details<'t>(top: &Top, theme: &Theme, tenant: &str, width: usize, room: usize, skipped: usize) -> Vec<Line<'t>> {
    let mut lines = Vec::new();
    let Some(status) = top.tenant(tenant) else {
        return vec![Line::styled(format!("{tenant}: the daemon has no such tenant any more"), theme.warning())];
    };
    for row in top.rows_of(tenant) {
        on_device(top, theme, row, width, &mut lines);
    }
    explained(top, theme, tenant, width, &mut lines);
    lines.push(Line::styled(format!("processes ({})", status.members.len()), theme.head()));
    lines.extend(members(top, status).into_iter().map(|text| Line::raw(format!("  {text}"))));
    lines.push(Line::default());
    lines.push(Line::from(vec![
        Span::styled("socket ", theme.head()),
        Span::raw(escaped(&status.socket.display().to_string())),
    ]));
    // Do not scroll past the end.
    let skipped = skipped.min(lines.len().saturating_sub(room));
    lines.into_iter().skip(skipped).collect()
}

fn on_device(top: &Top, theme: &Theme, row: &Row, width: usize, lines: &mut Vec<Line<'_>>) {
    let percent = |value: Option<f64>| value.map_or(row.none().to_owned(), |value| format!("{value:.1} %"));
    let share = |value: Option<f64>, none: &str| value.map_or(none.to_owned(), |value| format!("{value} %"));
    let seconds = |value: Option<f64>| value.map_or(row.none().to_owned(), |value| format!("{value:.3} s"));
    lines.push(Line::from(vec![
        Span::styled(format!("{} on device {}: ", row.tenant, row.device), theme.head()),
        Span::styled(row.state.clone(), theme.state(&row.state)),
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
    let room = width.saturating_sub(14).clamp(10, MINUTES);
    let recent = theme.spark(top.history.last(&row.key(), room));
    let bars = |head: &str, bars: String| {
        Line::from(vec![Span::styled(format!("  {head:<10}"), theme.dim()), Span::styled(bars, theme.good())])
    };
    lines.push(bars("got", recent));
    let hour = match &top.hour {
        None => None,
        Some(Err(why)) => Some(Line::styled(format!("  last hour: {}", escaped(why)), theme.dim())),
        Some(Ok(all)) => {
            let status = top.look.status.devices.iter().find(|device| row::is(device, &row.device));
            let same = |uuid: &str| {
                status.map_or_else(|| vgpu_core::units::uuid::same(uuid, &row.device), |device| row::is(device, uuid))
            };
            let line = all.iter().find(|((tenant, uuid), _)| *tenant == row.tenant && same(uuid));
            let nothing = vec![0.0; MINUTES];
            let values = line.map_or(&nothing, |(_, values)| values);
            let skipped = values.len().saturating_sub(room);
            Some(bars("last hour", theme.spark(values.iter().skip(skipped).copied())))
        }
    };
    lines.extend(hour);
    lines.push(Line::default());
}

fn explained(top: &Top, theme: &Theme, tenant: &str, width: usize, lines: &mut Vec<Line<'_>>) {
    lines.push(Line::styled("why", theme.head()));
    match &top.explained {
        Some((whose, Ok(all))) if whose == tenant => {
            for device in all {
                for sentence in &device.sentences {
                    let words = format!("{}: {}", brief(&device.device), escaped(sentence));
                    lines.extend(
                        wrapped(&words, width.saturating_sub(2)).into_iter().map(|text| Line::raw(format!("  {text}"))),
                    );
                }
            }
        }
        Some((whose, Err(why))) if whose == tenant => {
            lines.push(Line::styled(format!("  {}", escaped(why)), theme.warning()));
        }
        _ => lines.push(Line::styled("  asking the daemon", theme.dim())),
    }
    lines.push(Line::default());
}

/// Returns the rows of the table of processes.
fn members(top: &Top, status: &TenantStatus) -> Vec<String> {
    let heads =
        ["PID", "INSIDE", "CONTAINER", "UID", "DEVICE", "LEASE", "GPU-SECONDS", "WAITED", "MEMORY", "SINCE", "LIBRARY"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for member in &status.members {
        rows.extend(of_member(top, member));
    }
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..heads.len()).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn of_member(top: &Top, member: &MemberStatus) -> Vec<Vec<String>> {
    let row = |device: &str, lease: String, gpu: String, waited: String, memory: String| {
        vec![
            member.pid.map_or("-".into(), |pid| pid.to_string()),
            member.pid_inside.to_string(),
            member.pid.and_then(|pid| top.places.get(&pid).cloned()).unwrap_or_else(|| "-".into()),
            member.uid.to_string(),
            brief(device),
            lease,
            gpu,
            waited,
            memory,
            span(member.connected_seconds),
            escaped(&member.version),
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
