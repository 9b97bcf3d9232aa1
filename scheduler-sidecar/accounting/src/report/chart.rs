//! Draws pictures as SVG for use inside a page: bar charts, and dots on a scale.

use super::page::escape_html;

/// Widths of the names, the drawing and the values; height of a row.
const NAMES_WIDTH: f64 = 190.0;
const DRAWN_WIDTH: f64 = 420.0;
const VALUES_WIDTH: f64 = 150.0;
const ROW_HEIGHT: f64 = 26.0;

/// A bar of a chart.
#[derive(Debug, Clone)]
pub struct ChartBar {
    /// Name shown to the left of the bar.
    pub name: String,
    /// Value that sets the length of the bar.
    pub value: f64,
    /// Text after the bar.
    pub shown: String,
}

/// Draws bars next to their names, on a scale from zero to the longest.
#[must_use]
pub fn draw_bars(title: &str, bars: &[ChartBar]) -> String {
    let most = bars.iter().map(|bar| bar.value).filter(|value| value.is_finite()).fold(0.0, f64::max);
    let mut svg = begin_chart(title, bars.len());
    for (y, bar) in scale_lines().zip(bars) {
        let part = if most > 0.0 && bar.value.is_finite() { bar.value.max(0.0) / most } else { 0.0 };
        name(&mut svg, y, &bar.name);
        svg.push_str(&format!(
            "<rect x=\"{NAMES_WIDTH}\" y=\"{:.1}\" width=\"{:.1}\" height=\"14\" fill=\"var(--one)\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            y + 4.0,
            part * DRAWN_WIDTH,
            NAMES_WIDTH + part * DRAWN_WIDTH + 6.0,
            y + 15.0,
            escape_html(&bar.shown)
        ));
    }
    svg.push_str("</svg>");
    svg
}

/// Values of one kind: each is a dot, the median is a line, the interval is a bar.
#[derive(Debug, Clone)]
pub struct ChartDots {
    /// Name of the row.
    pub name: String,
    /// Values, one for each dot.
    pub values: Vec<f64>,
    /// Median of the values.
    pub median: f64,
    /// Confidence interval of the median.
    pub interval: Option<(f64, f64)>,
    /// True to draw the row in the second colour.
    pub second: bool,
    /// Text next to the dots.
    pub shown: String,
}

/// Draws rows of dots on a common scale from zero to the highest.
#[must_use]
pub fn draw_dots(title: &str, rows: &[ChartDots]) -> String {
    let all = rows.iter().flat_map(|row| row.values.iter().copied()).filter(|value| value.is_finite());
    let most = all.fold(0.0, f64::max);
    let x = |value: f64| NAMES_WIDTH + if most > 0.0 { value.max(0.0) / most * DRAWN_WIDTH } else { 0.0 };
    let mut svg = begin_chart(title, rows.len());
    for (y, row) in scale_lines().zip(rows) {
        let (middle, colour) = (y + 11.0, if row.second { "var(--two)" } else { "var(--one)" });
        name(&mut svg, y, &row.name);
        if let Some((low, high)) = row.interval {
            let width = (x(high) - x(low)).max(1.0);
            svg.push_str(&format!(
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"12\" fill=\"{colour}\" opacity=\"0.25\"/>",
                x(low),
                middle - 6.0
            ));
        }
        for value in row.values.iter().filter(|value| value.is_finite()) {
            svg.push_str(&format!(
                "<circle cx=\"{:.1}\" cy=\"{middle:.1}\" r=\"3\" fill=\"{colour}\" opacity=\"0.6\"/>",
                x(*value)
            ));
        }
        svg.push_str(&format!(
            "<path d=\"M{0:.1} {1:.1}v16\" stroke=\"{colour}\" stroke-width=\"2\"/><text x=\"{2:.1}\" y=\"{3:.1}\">{4}</text>",
            x(row.median),
            middle - 8.0,
            NAMES_WIDTH + DRAWN_WIDTH + 8.0,
            y + 15.0,
            escape_html(&row.shown)
        ));
    }
    svg.push_str("</svg>");
    svg
}

fn begin_chart(title: &str, rows: usize) -> String {
    #[allow(clippy::cast_precision_loss)] // rows of a table
    let height = rows as f64 * ROW_HEIGHT + 28.0;
    let (width, title) = (NAMES_WIDTH + DRAWN_WIDTH + VALUES_WIDTH, escape_html(title));
    format!(
        "<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{title}\">\
         <title>{title}</title><text x=\"0\" y=\"14\" font-weight=\"bold\">{title}</text>"
    )
}

fn scale_lines() -> impl Iterator<Item = f64> {
    std::iter::successors(Some(24.0), |y| Some(y + ROW_HEIGHT))
}

/// Draws a name, shortened to the space available.
fn name(svg: &mut String, y: f64, name: &str) {
    let mut short: String = name.chars().take(26).collect();
    if short.len() < name.len() {
        short.push('…');
    }
    svg.push_str(&format!("<text x=\"0\" y=\"{:.1}\">{}</text>", y + 15.0, escape_html(&short)));
}
