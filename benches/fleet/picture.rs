//! The picture of the fleet: the lost part of each day's GPU-hours, without and with idle steps.

use std::fmt::Write as _;

use vgpu_benches::output::{Picture, csv};
use vgpu_benches::plot::{draw_line, draw_text, make_drawing};

const COLOURS: [&str; 2] = ["#d2691e", "#1f5fa8"];

/// Draws two lines, one value in percent for each day.
pub fn draw_lost(without: &[f64], with: &[f64]) -> Picture {
    let row = |(day, (without, with)): (usize, (&f64, &f64))| {
        vec![(day + 1).to_string(), format!("{without:.2}"), format!("{with:.2}")]
    };
    let heads = ["day", "lost_percent_without_steps", "lost_percent_with_steps"];
    let rows = without.iter().zip(with).enumerate().map(row);
    Picture { name: "lost", csv: csv(&heads, rows), svg: draw(&[("without idle steps", without), ("with", with)]) }
}

#[expect(clippy::cast_precision_loss, reason = "days of a month")]
fn draw(lines: &[(&str, &[f64])]) -> String {
    let (x0, y0, w, h) = (44.0, 34.0, 560.0, 220.0);
    let days = lines.iter().map(|(_, days)| days.len()).max().unwrap_or(0).max(1);
    let most = lines.iter().flat_map(|(_, days)| *days).fold(1.0_f64, |most, day| most.max(*day)).ceil();
    let x = |day: usize| x0 + w * (day as f64 + 0.5) / days as f64;
    let y = |percent: f64| y0 + h * (1.0 - percent / most);
    make_drawing(x0 + w + 20.0, y0 + h + 52.0, "GPU-hours lost on each day", |out| {
        draw_text(
            out,
            x0,
            18.0,
            "start",
            " font-weight=\"bold\"",
            "GPU-hours lost, percent of the allocated ones of each day",
        );
        let marks = (0..).map(f64::from).take_while(|mark| *mark <= most);
        for mark in marks {
            draw_line(out, (x0, y(mark)), (x0 + w, y(mark)), "stroke=\"#e4e4e4\"");
            draw_text(out, x0 - 6.0, y(mark) + 4.0, "end", " fill=\"#666\"", &format!("{mark:.0}"));
        }
        for day in (0..days).filter(|day| day % 5 == 4 || *day == 0) {
            draw_text(out, x(day), y0 + h + 16.0, "middle", " fill=\"#666\"", &format!("day {}", day + 1));
        }
        for (at, (name, days)) in lines.iter().enumerate() {
            let colour = COLOURS[at % COLOURS.len()];
            let points: Vec<String> =
                days.iter().enumerate().map(|(day, percent)| format!("{:.1},{:.1}", x(day), y(*percent))).collect();
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"><title>{name}</title></polyline>",
                points.join(" ")
            );
            let place = x0 + 180.0 * at as f64;
            draw_line(
                out,
                (place, y0 + h + 36.0),
                (place + 20.0, y0 + h + 36.0),
                &format!("stroke=\"{colour}\" stroke-width=\"2\""),
            );
            draw_text(out, place + 26.0, y0 + h + 40.0, "start", "", name);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_with_more_lost_is_drawn_above_and_nothing_is_not_a_number() {
        let picture = draw_lost(&[5.0, 6.0], &[0.5, 0.0]);
        assert_eq!(picture.csv.lines().nth(1), Some("1,5.00,0.50"));
        assert!(!picture.svg.contains("NaN") && !draw_lost(&[], &[]).svg.contains("NaN"));
        let heights: Vec<f64> = picture
            .svg
            .split("points=\"")
            .skip(1)
            .filter_map(|rest| rest.split(['"', ' ']).next()?.split(',').nth(1)?.parse().ok())
            .collect();
        assert!(heights[0] < heights[1], "{heights:?}");
    }
}
