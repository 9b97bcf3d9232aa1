//! Draws a line for the daemon and one for each device.

use ratatui::text::{Line, Span};

use super::fit;
use super::theme::Theme;
use crate::ps::span;
use crate::top::row::{Device, brief, fraction, short};
use crate::top::state::Top;
use vgpu_config::problem;

/// Returns the lines above the table.
#[must_use]
pub fn lines<'t>(top: &Top, theme: &Theme, width: usize, height: usize) -> Vec<Line<'t>> {
    let mut lines = vec![title(top, theme, width)];
    let devices = top.devices();
    let devices: Vec<_> =
        devices.iter().filter(|device| top.device.as_ref().is_none_or(|name| *name == device.name)).collect();
    // Many devices must leave space for the tenants.
    let most = if height < 10 { 1 } else { (height / 3).max(2) };
    let name = devices.iter().map(|device| brief(&device.name).chars().count()).max().unwrap_or(0);
    let shown = if devices.len() > most { most - 1 } else { devices.len() };
    lines.extend(devices.iter().take(shown.max(1)).map(|device| line(device, theme, name, width)));
    let rest = devices.len().saturating_sub(shown.max(1));
    if rest > 0 && most > 1 {
        lines.push(Line::styled(
            fit(&format!("and {rest} more; d shows them one by one"), width, false, theme),
            theme.dim(),
        ));
    }
    if height >= 12 {
        lines.push(Line::default());
    }
    lines
}

fn title<'t>(top: &Top, theme: &Theme, width: usize) -> Line<'t> {
    let status = &top.look.status;
    let members: usize = status.tenants.iter().map(|tenant| tenant.members.len()).sum();
    let one = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let processes = if members == 1 { "1 process".to_owned() } else { format!("{members} processes") };
    let left = format!("vgpud {}, process {}, up {}", status.version, status.pid, span(status.uptime_seconds));
    let mut right = format!("{}, {processes}", one(status.tenants.len(), "tenant"));
    if !top.filter.is_empty() {
        right = format!("/{} of {right}", top.filter);
    }
    let gap = width.saturating_sub(left.chars().count() + right.chars().count());
    let text = if gap >= 2 { format!("{left}{}{right}", " ".repeat(gap)) } else { fit(&left, width, false, theme) };
    Line::styled(text, if top.lost.is_some() { theme.dim() } else { theme.head() })
}

fn line<'t>(device: &Device, theme: &Theme, name: usize, width: usize) -> Line<'t> {
    let memory = match (device.used, device.memory) {
        (None, None) => None,
        (used, memory) => {
            let used = used.map_or("?".to_owned(), short);
            let text = memory.map_or_else(|| used.clone(), |memory| format!("{used}/{}", short(memory)));
            Some((text, device.used.zip(device.memory).and_then(|(used, memory)| fraction(used, memory))))
        }
    };
    let holder = match (&device.holder, device.arbitrated) {
        (Some(holder), _) => format!("held by {holder}"),
        (None, true) => "held by nobody".to_owned(),
        (None, false) => "no leases".to_owned(),
    };
    let label = if name == 0 { String::new() } else { format!("{:<name$}  ", brief(&device.name)) };
    let busy = device.busy.map_or("busy      ?".to_owned(), |busy| format!("busy {busy:>5.1}%"));
    let text = memory.as_ref().map_or_else(String::new, |(text, _)| format!("  memory {text}"));
    let fixed = 7 + label.chars().count() + busy.len() + text.chars().count() + 2 + holder.chars().count();
    let bars =
        usize::from(device.busy.is_some()) + usize::from(memory.as_ref().is_some_and(|(_, part)| part.is_some()));
    // Bars fill the remaining width.
    let each = (width.saturating_sub(fixed) / bars.max(1)).saturating_sub(1).min(20);
    let each = if each < 4 { 0 } else { each };
    let bar = |part: f64| if each == 0 { String::new() } else { format!(" {}", theme.bar(part, each)) };
    let mut spans = vec![
        Span::styled("device ", theme.dim()),
        Span::styled(label, theme.head()),
        Span::raw(busy),
        Span::styled(device.busy.map_or(String::new(), |busy| bar(busy / 100.0)), theme.good()),
        Span::raw(text),
    ];
    if let Some((_, Some(part))) = memory {
        spans.push(Span::styled(bar(part), theme.fill(part)));
    }
    spans.push(Span::styled(format!("  {holder}"), theme.head()));
    // Add the model name if it fits.
    let used: usize = spans.iter().map(Span::width).sum();
    if let Some(model) = device
        .model
        .as_ref()
        .map(|model| problem::shown(model))
        .filter(|model| used + 2 + model.chars().count() <= width)
    {
        spans.push(Span::styled(format!("  {model}"), theme.dim()));
    }
    Line::from(spans)
}
