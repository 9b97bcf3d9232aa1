//! Pictures of a report as hand-written SVG, without script and font. The numbers of each picture are in a CSV.

use crate::output::{Picture, csv};
use std::fmt::Write;

/// Colours of series, distinguishable in grey too.
const SERIES_COLOURS: [&str; 7] = ["#1f5fa8", "#d2691e", "#2e8b57", "#8a3f9e", "#b22222", "#6b6b2a", "#3b8f9e"];

/// A line over time: one tenant of a measured combination of tenants and limits.
pub struct PlotLine {
    /// Label at the line's end.
    pub name: String,
    /// Percent of the device's time in each step.
    pub shares: Vec<f64>,
    /// The tenant's ceiling in percent.
    pub ceiling: Option<f64>,
}

/// One panel of the picture: the shares of a point's tenants over time.
pub struct PlotPanel {
    /// Title above the panel: the point's name.
    pub title: String,
    /// Length of a step in seconds.
    pub step: f64,
    /// The panel's lines, one per tenant.
    pub lines: Vec<PlotLine>,
}

/// A measured error, drawn as a dot.
pub struct PlotDot {
    /// Index of the column in which the dot is drawn.
    pub column: usize,
    /// Index of the series, which selects the colour.
    pub series: usize,
    /// Measured error, in points (percent of the device's time).
    pub error: f64,
    /// Text that appears when the reader points at the dot.
    pub name: String,
}

fn series_colour(at: usize) -> &'static str {
    SERIES_COLOURS[at % SERIES_COLOURS.len()]
}

fn escape_svg(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// An SVG of this size. `draw` writes its content.
pub fn make_drawing(width: f64, height: f64, title: &str, draw: impl FnOnce(&mut String)) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\" fill=\"#222\">\n<title>{}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n",
        escape_svg(title)
    );
    draw(&mut out);
    out.push_str("</svg>\n");
    out
}

/// Writes text at a position.
pub fn draw_text(out: &mut String, x: f64, y: f64, anchor: &str, more: &str, words: &str) {
    let words = escape_svg(words);
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{more}>{words}</text>");
}

/// Writes a straight line to the SVG.
pub fn draw_line(out: &mut String, from: (f64, f64), to: (f64, f64), style: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(out, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>");
}

/// Small panels next to each other: the share of each tenant over time, with its ceiling as a dashed line.
pub fn over_time(panels: &[PlotPanel]) -> Picture {
    let row = |panel: &PlotPanel, line: &PlotLine| {
        let shares: Vec<String> = line.shares.iter().map(|share| format!("{share:.1}")).collect();
        let ceiling = line.ceiling.map_or(String::new(), |ceiling| format!("{ceiling:.1}"));
        vec![panel.title.clone(), line.name.clone(), ceiling, format!("{:.2}", panel.step), shares.join(" ")]
    };
    let rows = panels.iter().flat_map(|panel| panel.lines.iter().map(move |line| row(panel, line)));
    let heads = ["panel", "line", "ceiling_percent", "step_s", "share_percent_of_each_step"];
    Picture { name: "over-time", csv: csv(&heads, rows), svg: draw_over_time(panels) }
}

fn draw_over_time(panels: &[PlotPanel]) -> String {
    const PANELS_ACROSS: usize = 3;
    let (wide, high, left, top) = (300.0, 150.0, 34.0, 22.0);
    let rows = panels.len().div_ceil(PANELS_ACROSS).max(1);
    let columns = panels.len().clamp(1, PANELS_ACROSS);
    make_drawing(
        wide * columns as f64 + 10.0,
        (high + 26.0) * rows as f64 + 10.0,
        "share of the device over time",
        |out| {
            for (at, panel) in panels.iter().enumerate() {
                let (x0, y0) =
                    (wide * (at % PANELS_ACROSS) as f64 + left, (high + 26.0) * (at / PANELS_ACROSS) as f64 + top);
                one_panel(out, panel, (x0, y0), (wide - left - 16.0, high - top));
            }
        },
    )
}

fn one_panel(out: &mut String, panel: &PlotPanel, (x0, y0): (f64, f64), (w, h): (f64, f64)) {
    let steps = panel.lines.iter().map(|line| line.shares.len()).max().unwrap_or(0).max(1);
    let x = |step: f64| x0 + w * step / steps as f64;
    let y = |percent: f64| y0 + h * (1.0 - percent.clamp(0.0, 100.0) / 100.0);
    draw_text(out, x0, y0 - 8.0, "start", " font-weight=\"bold\"", &panel.title);
    for percent in [0.0, 25.0, 50.0, 75.0, 100.0] {
        draw_line(out, (x0, y(percent)), (x0 + w, y(percent)), "stroke=\"#e4e4e4\"");
        draw_text(out, x0 - 4.0, y(percent) + 4.0, "end", " fill=\"#666\"", &format!("{percent:.0}"));
    }
    let seconds = steps as f64 * panel.step;
    draw_text(out, x0, y0 + h + 14.0, "start", " fill=\"#666\"", "0 s");
    draw_text(out, x0 + w, y0 + h + 14.0, "end", " fill=\"#666\"", &format!("{seconds:.0} s"));
    for (at, line) in panel.lines.iter().enumerate() {
        if let Some(ceiling) = line.ceiling {
            let style = format!("stroke=\"{}\" stroke-dasharray=\"5 3\" opacity=\"0.7\"", series_colour(at));
            draw_line(out, (x0, y(ceiling)), (x0 + w, y(ceiling)), &style);
        }
        let corners: Vec<String> = line
            .shares
            .iter()
            .enumerate()
            .map(|(step, share)| format!("{:.1},{:.1}", x(step as f64 + 0.5), y(*share)))
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.2\"><title>{}</title></polyline>",
            corners.join(" "),
            series_colour(at),
            escape_svg(&line.name)
        );
    }
}

/// Errors by kernel length: a column for each length, a colour for each series, the budget as a band.
pub fn errors_picture(columns: &[String], series: &[String], dots: &[PlotDot], budget: f64) -> Picture {
    let row = |dot: &PlotDot| {
        vec![dot.name.clone(), columns[dot.column].clone(), series[dot.series].clone(), format!("{:.2}", dot.error)]
    };
    let heads = ["point", "kernel", "series", "error_points"];
    Picture { name: "errors", csv: csv(&heads, dots.iter().map(row)), svg: draw_errors(columns, series, dots, budget) }
}

fn draw_errors(columns: &[String], series: &[String], dots: &[PlotDot], budget: f64) -> String {
    let (x0, y0, w, h) = (46.0, 34.0, 110.0 * columns.len().max(1) as f64, 320.0);
    let most = dots.iter().map(|dot| dot.error.abs()).fold(2.0 * budget, f64::max);
    // Half of the height shows the surroundings of the budget. Errors far outside are drawn closer, with their number
    // as text.
    let scaled = |error: f64| error.signum() * (error.abs() / budget).ln_1p() / (most / budget).ln_1p();
    let y = |error: f64| y0 + h / 2.0 * (1.0 - scaled(error));
    make_drawing(x0 + w + 20.0, y0 + h + 60.0, "error of the share by length of kernel", |out| {
        draw_text(out, x0, 18.0, "start", " font-weight=\"bold\"", "error of the share, points, by length of kernel");
        let band = y(-budget) - y(budget);
        let _ = writeln!(
            out,
            "<rect x=\"{x0}\" y=\"{:.1}\" width=\"{w}\" height=\"{band:.1}\" fill=\"#dff0df\"/>",
            y(budget)
        );
        let grid = [0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];
        for mark in grid.into_iter().filter(|mark| *mark >= budget / 2.0 && *mark <= most) {
            for mark in [mark, -mark] {
                draw_line(out, (x0, y(mark)), (x0 + w, y(mark)), "stroke=\"#e4e4e4\"");
                draw_text(out, x0 - 5.0, y(mark) + 4.0, "end", " fill=\"#666\"", &format!("{mark:+}"));
            }
        }
        draw_line(out, (x0, y(0.0)), (x0 + w, y(0.0)), "stroke=\"#888\"");
        for (at, name) in columns.iter().enumerate() {
            let x = x0 + 110.0 * at as f64;
            draw_line(out, (x, y0), (x, y0 + h), "stroke=\"#e4e4e4\"");
            draw_text(out, x + 55.0, y0 + h + 16.0, "middle", "", name);
        }
        for dot in dots {
            let place = (dot.series as f64 + 0.5) / series.len().max(1) as f64;
            let _ = writeln!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{}\" fill-opacity=\"0.75\"><title>{} {:+.2}</title></circle>",
                x0 + 110.0 * dot.column as f64 + 10.0 + 90.0 * place,
                y(dot.error),
                series_colour(dot.series),
                escape_svg(&dot.name),
                dot.error
            );
        }
        // About as wide as the names. If the legend is too wide for the drawing, the dots' own titles name the series.
        let letters: usize = series.iter().map(|name| name.len() + 5).sum();
        let each = (w / letters.max(1) as f64).min(7.5);
        let mut x = x0;
        for (at, name) in series.iter().enumerate() {
            let _ = writeln!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{}\"/>",
                x + 6.0,
                y0 + h + 36.0,
                series_colour(at)
            );
            draw_text(out, x + 14.0, y0 + h + 40.0, "start", "", name);
            x += each * (name.len() + 5) as f64;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that every opened element is closed and that no number is NaN.
    fn is_whole(svg: &str) {
        for element in ["svg", "text", "title", "circle", "polyline"] {
            let opened = svg.matches(&format!("<{element} ")).count() + svg.matches(&format!("<{element}>")).count();
            let closed = svg.matches(&format!("</{element}>")).count();
            let empty =
                svg.lines().filter(|line| line.starts_with(&format!("<{element} ")) && line.ends_with("/>")).count();
            assert_eq!(opened, closed + empty, "{element}: {svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn pictures_are_whole_also_of_nothing_and_of_the_impossible() {
        let line = PlotLine { name: "a <b> & c".into(), shares: vec![0.0, 50.0, 130.0], ceiling: Some(30.0) };
        let panel = PlotPanel { title: "t&t".into(), step: 0.1, lines: vec![line] };
        let drawn = over_time(&[panel]);
        is_whole(&drawn.svg);
        assert_eq!(drawn.csv.lines().nth(1), Some("t&t,a <b> & c,30.0,0.10,0.0 50.0 130.0"));
        is_whole(&over_time(&[]).svg);
        let dot = |error| PlotDot { column: 0, series: 1, error, name: "x".into() };
        let series = ["sync".into(), "async".into()];
        let drawn = errors_picture(&["1ms".into()], &series, &[dot(0.0), dot(-70.0), dot(0.4)], 1.0);
        is_whole(&drawn.svg);
        assert_eq!(drawn.csv.lines().nth(2), Some("x,1ms,async,-70.00"));
        is_whole(&errors_picture(&[], &[], &[], 1.0).svg);
    }

    #[test]
    fn what_is_above_is_drawn_above() {
        let dot = |error| PlotDot { column: 0, series: 0, error, name: String::new() };
        let svg = errors_picture(&["1ms".into()], &["sync".into()], &[dot(1.0), dot(-1.0)], 1.0).svg;
        let heights: Vec<f64> =
            svg.split("cy=\"").skip(1).filter_map(|rest| rest.split('"').next()?.parse().ok()).collect();
        assert!(heights[0] < heights[1], "{heights:?}");
    }
}
