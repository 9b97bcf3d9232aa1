//! Draws the bottom: problems, and below them the question, the last result, or the keys.

use crate::cordon::{format_members, format_subject};
use ratatui::text::{Line, Span};

use super::theme::ColourTheme;
use super::{fit_width, wrap_text};
use crate::top::line::InputLine as Typed;
use crate::top::state::{KeyMode, TopState};

/// Returns the lines, and the cursor's column in the last one during input.
#[must_use]
pub fn foot_lines<'t>(
    top: &TopState,
    theme: &ColourTheme,
    width: usize,
    height: usize,
) -> (Vec<Line<'t>>, Option<usize>) {
    let mut lines = fault_lines(top, theme, width);
    // Messages of the daemon may be long.
    let most = (height / 4).max(1);
    let all = |words: &str, style| {
        let mut broken = wrap_text(words.trim_end(), width);
        let rest = broken.split_off(most.min(broken.len()));
        if let Some(last) = broken.last_mut().filter(|_| !rest.is_empty()) {
            *last = fit_width(&format!("{last} {}", rest.join(" ")), width, false, theme);
        }
        broken.into_iter().map(move |text| Line::styled(text, style)).collect::<Vec<_>>()
    };
    let hint = |words: &str| vec![Line::styled(fit_width(words, width, false, theme), theme.dim_style())];
    let said = top.message.as_ref().map(|message| {
        let style = if message.wrong { theme.bad_style() } else { theme.good_style() };
        all(&message.words, style)
    });
    let (last, cursor) = match &top.mode {
        KeyMode::Set { of: (tenant, _), line } => {
            // Show the last error above the input.
            lines.extend(said.unwrap_or_default());
            input_line(&format!("set {tenant}: "), line, width, theme)
        }
        KeyMode::Filter { line, .. } => input_line("/", line, width, theme),
        KeyMode::Sure { question, .. } => {
            let room = width.saturating_sub(4).min(question.chars().count());
            (
                vec![Line::styled(format!("{} y/n", fit_width(question, room, false, theme)), theme.warning_style())],
                None,
            )
        }
        KeyMode::Help => (hint("any key goes back"), None),
        KeyMode::Details { .. } => {
            (said.unwrap_or_else(|| hint("Esc back  up down scroll  p pause  s set  Ctrl-C quit")), None)
        }
        KeyMode::Table => {
            let hints = "? keys  Enter details  / filter  < > order  d device  p pause  s set  q quit";
            (said.unwrap_or_else(|| hint(hints)), None)
        }
    };
    lines.extend(last);
    (lines, cursor)
}

/// Returns the problems of the daemon.
fn fault_lines<'t>(top: &TopState, theme: &ColourTheme, width: usize) -> Vec<Line<'t>> {
    let status = &top.look.status;
    let mut lines = Vec::new();
    if let Some(why) = &top.lost {
        lines.push(Line::styled(
            fit_width(&format!("outdated, asking again: {why}"), width, false, theme),
            theme.bad_style(),
        ));
        return lines;
    }
    let refused = status.configuration.as_ref().is_some_and(|file| file.refused.is_some());
    let mut words = Vec::new();
    match status.findings.len() {
        0 => {}
        1 => words.push("1 process at a device has a finding".to_owned()),
        many => words.push(format!("{many} processes at devices have findings")),
    }
    words.extend(status.faults.iter().map(|fault| format!("{}: {}", fault.what, fault.words)));
    words.extend(status.cordons.iter().map(|cordon| {
        let done = if cordon.evacuates { "evacuated" } else { "cordoned" };
        format!("{} is {done}, {}", format_subject(cordon), format_members(cordon))
    }));
    if refused {
        words.push("the last reading of the configuration was refused".into());
    }
    if !words.is_empty() {
        let text = format!("{} (vgpu status says more)", words.join("; "));
        lines.push(Line::styled(fit_width(&text, width, false, theme), theme.warning_style()));
    }
    lines
}

/// Returns an input line, scrolled so that the cursor is visible.
fn input_line<'t>(prompt: &str, line: &Typed, width: usize, theme: &ColourTheme) -> (Vec<Line<'t>>, Option<usize>) {
    let lead = prompt.chars().count();
    let room = width.saturating_sub(lead + 1);
    let skipped = line.cursor().saturating_sub(room);
    let text: String = line.line_text().chars().skip(skipped).take(room).collect();
    let spans = vec![Span::styled(prompt.to_owned(), theme.heading_style()), Span::raw(text)];
    (vec![Line::from(spans)], Some(lead + line.cursor() - skipped))
}
