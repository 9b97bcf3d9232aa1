//! Draws the bottom: problems, and below them the question, the last result, or the keys.

use ratatui::text::{Line, Span};

use super::theme::Theme;
use super::{fit, wrapped};
use crate::top::line::Line as Typed;
use crate::top::state::{Mode, Top};

/// Returns the lines, and the cursor's column in the last one during input.
#[must_use]
pub fn lines<'t>(top: &Top, theme: &Theme, width: usize, height: usize) -> (Vec<Line<'t>>, Option<usize>) {
    let mut lines = wrong(top, theme, width);
    // Messages of the daemon may be long.
    let most = (height / 4).max(1);
    let all = |words: &str, style| {
        let mut broken = wrapped(words.trim_end(), width);
        let rest = broken.split_off(most.min(broken.len()));
        if let Some(last) = broken.last_mut().filter(|_| !rest.is_empty()) {
            *last = fit(&format!("{last} {}", rest.join(" ")), width, false, theme);
        }
        broken.into_iter().map(move |text| Line::styled(text, style)).collect::<Vec<_>>()
    };
    let hint = |words: &str| vec![Line::styled(fit(words, width, false, theme), theme.dim())];
    let said = top.message.as_ref().map(|message| {
        let style = if message.wrong { theme.bad() } else { theme.good() };
        all(&message.words, style)
    });
    let (last, cursor) = match &top.mode {
        Mode::Set { of: (tenant, _), line } => {
            // Show the last error above the input.
            lines.extend(said.unwrap_or_default());
            typed(&format!("set {tenant}: "), line, width, theme)
        }
        Mode::Filter { line, .. } => typed("/", line, width, theme),
        Mode::Sure { question, .. } => {
            let room = width.saturating_sub(4).min(question.chars().count());
            (vec![Line::styled(format!("{} y/n", fit(question, room, false, theme)), theme.warning())], None)
        }
        Mode::Help => (hint("any key goes back"), None),
        Mode::Details { .. } => {
            (said.unwrap_or_else(|| hint("Esc back  up down scroll  p pause  s set  Ctrl-C quit")), None)
        }
        Mode::Table => {
            let hints = "? keys  Enter details  / filter  < > order  d device  p pause  s set  q quit";
            (said.unwrap_or_else(|| hint(hints)), None)
        }
    };
    lines.extend(last);
    (lines, cursor)
}

/// Returns the problems of the daemon.
fn wrong<'t>(top: &Top, theme: &Theme, width: usize) -> Vec<Line<'t>> {
    let status = &top.look.status;
    let mut lines = Vec::new();
    if let Some(why) = &top.lost {
        lines.push(Line::styled(fit(&format!("not of now, asking again: {why}"), width, false, theme), theme.bad()));
        return lines;
    }
    let refused = status.configuration.as_ref().is_some_and(|file| file.refused.is_some());
    let mut words = Vec::new();
    match status.findings.len() {
        0 => {}
        1 => words.push("1 process at a device is not as it should be".to_owned()),
        many => words.push(format!("{many} processes at devices are not as they should be")),
    }
    words.extend(status.faults.iter().map(|fault| format!("{}: {}", fault.what, fault.words)));
    if refused {
        words.push("the last reading of the configuration changed nothing".into());
    }
    if !words.is_empty() {
        let text = format!("{} (vgpu status says more)", words.join("; "));
        lines.push(Line::styled(fit(&text, width, false, theme), theme.warning()));
    }
    lines
}

/// Returns an input line, scrolled so that the cursor is visible.
fn typed<'t>(prompt: &str, line: &Typed, width: usize, theme: &Theme) -> (Vec<Line<'t>>, Option<usize>) {
    let lead = prompt.chars().count();
    let room = width.saturating_sub(lead + 1);
    let skipped = line.cursor().saturating_sub(room);
    let text: String = line.text().chars().skip(skipped).take(room).collect();
    let spans = vec![Span::styled(prompt.to_owned(), theme.head()), Span::raw(text)];
    (vec![Line::from(spans)], Some(lead + line.cursor() - skipped))
}
