//! Draws a line for the daemon and one for each device.

use ratatui::text::{Line, Span};

use super::fit_width;
use super::theme::ColourTheme;
use crate::ps::format_span;
use crate::top::row::{TopDevice, brief_name, part_of_whole, short_bytes};
use crate::top::state::TopState;
use vgpu_config::problem;

/// Returns the lines above the table.
#[must_use]
pub fn head_lines<'t>(top: &TopState, theme: &ColourTheme, width: usize, height: usize) -> Vec<Line<'t>> {
    let mut lines = vec![title_line(top, theme, width)];
    let devices = top.shown_devices();
    let devices: Vec<_> =
        devices.iter().filter(|device| top.device.as_ref().is_none_or(|name| *name == device.name)).collect();
    // Many devices must leave space for the tenants.
    let most = if height < 10 { 1 } else { (height / 3).max(2) };
    let name = devices.iter().map(|device| device_label(device).chars().count()).max().unwrap_or(0);
    let shown = if devices.len() > most { most - 1 } else { devices.len() };
    lines.extend(devices.iter().take(shown.max(1)).map(|device| device_line(device, theme, name, width)));
    let rest = devices.len().saturating_sub(shown.max(1));
    if rest > 0 && most > 1 {
        lines.push(Line::styled(
            fit_width(&format!("and {rest} more; d shows them one by one"), width, false, theme),
            theme.dim_style(),
        ));
    }
    if height >= 12 {
        lines.push(Line::default());
    }
    lines
}

fn title_line<'t>(top: &TopState, theme: &ColourTheme, width: usize) -> Line<'t> {
    let status = &top.look.status;
    let members: usize = status.tenants.iter().map(|tenant| tenant.members.len()).sum();
    let one = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let processes = if members == 1 { "1 process".to_owned() } else { format!("{members} processes") };
    let left = format!("vgpud {}, process {}, up {}", status.version, status.pid, format_span(status.uptime_seconds));
    let mut right = format!("{}, {processes}", one(status.tenants.len(), "tenant"));
    if !top.filter.is_empty() {
        right = format!("/{} of {right}", top.filter);
    }
    let gap = width.saturating_sub(left.chars().count() + right.chars().count());
    let text =
        if gap >= 2 { format!("{left}{}{right}", " ".repeat(gap)) } else { fit_width(&left, width, false, theme) };
    Line::styled(text, if top.lost.is_some() { theme.dim_style() } else { theme.heading_style() })
}

/// Returns the brief name, followed by the profile of a MIG instance.
fn device_label(device: &TopDevice) -> String {
    let profile = device.instance_profile().map_or(String::new(), |text| format!(" {}", problem::escape_value(text)));
    brief_name(&device.name) + &profile
}

fn device_line<'t>(device: &TopDevice, theme: &ColourTheme, name: usize, width: usize) -> Line<'t> {
    let memory = match (device.used, device.memory) {
        (None, None) => None,
        (used, memory) => {
            let used = used.map_or("?".to_owned(), short_bytes);
            let text = memory.map_or_else(|| used.clone(), |memory| format!("{used}/{}", short_bytes(memory)));
            Some((text, device.used.zip(device.memory).and_then(|(used, memory)| part_of_whole(used, memory))))
        }
    };
    let holder = match (&device.holder, device.arbitrated) {
        (Some(holder), _) => format!("held by {holder}"),
        (None, true) => "held by nobody".to_owned(),
        (None, false) => "no leases".to_owned(),
    };
    let label = if name == 0 { String::new() } else { format!("{:<name$}  ", device_label(device)) };
    let busy = device.busy.map_or("busy      ?".to_owned(), |busy| format!("busy {busy:>5.1}%"));
    let text = memory.as_ref().map_or_else(String::new, |(text, _)| format!("  memory {text}"));
    let fixed = 7 + label.chars().count() + busy.len() + text.chars().count() + 2 + holder.chars().count();
    let bars =
        usize::from(device.busy.is_some()) + usize::from(memory.as_ref().is_some_and(|(_, part)| part.is_some()));
    // Bars fill the remaining width.
    let each = (width.saturating_sub(fixed) / bars.max(1)).saturating_sub(1).min(20);
    let each = if each < 4 { 0 } else { each };
    let bar = |part: f64| if each == 0 { String::new() } else { format!(" {}", theme.bar_text(part, each)) };
    let mut spans = vec![
        Span::styled("device ", theme.dim_style()),
        Span::styled(label, theme.heading_style()),
        Span::raw(busy),
        Span::styled(device.busy.map_or(String::new(), |busy| bar(busy / 100.0)), theme.good_style()),
        Span::raw(text),
    ];
    if let Some((_, Some(part))) = memory {
        spans.push(Span::styled(bar(part), theme.fill_style(part)));
    }
    spans.push(Span::styled(format!("  {holder}"), theme.heading_style()));
    // Add the model name if it fits.
    let used: usize = spans.iter().map(Span::width).sum();
    if let Some(model) = device
        .model
        .as_ref()
        .map(|model| problem::escape_value(model))
        .filter(|model| used + 2 + model.chars().count() <= width)
    {
        spans.push(Span::styled(format!("  {model}"), theme.dim_style()));
    }
    Line::from(spans)
}
