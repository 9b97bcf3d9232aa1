//! Decode steps: services that alternate 8.6 ms of the device with work of the host, alone, by the device's own time
//! slices, and by leases.
//!
//! The host's work is a sleep: two services that compute would compete for the cores of a small host.

use super::cases::tenant_terms;
use super::figures::RequestTimes;
use super::run::{self, TenantProgramSpec};
use super::{Options, WARM_UP_TIME, print_progress};
use crate::output::{Picture, csv};
use crate::place::MeasuringPlace;
use crate::plot::{draw_line, draw_text, make_drawing};
use serde::Serialize;
use std::fmt::Write;

/// Kernels of a step, and the length of one in ns: together 8.6 ms.
const STEP: (u64, u64) = (43, 200_000);
/// Names by which the user selects a length of the host's work after each step, and that length in us.
pub const DECODE_CASES: [(&str, u64); 4] =
    [("decode/500us", 500), ("decode/1ms", 1_000), ("decode/3ms", 3_000), ("decode/9ms", 9_000)];
/// A lease that holds a whole step.
const WHOLE_STEP: &str = "quantum = \"10ms\"";

/// Ways to run the services: name, number of services, and configuration lines of each tenant (`None`: without vgpu).
const WAYS: [(&str, usize, Option<&str>); 4] = [
    ("alone", 1, None),
    ("two, time slices", 2, None),
    ("two, leases of 4 ms", 2, Some("")),
    ("two, leases of 10 ms", 2, Some(WHOLE_STEP)),
];

/// Title of the picture.
const DECODE_TITLE: &str =
    "Decode steps of two services on one simulated device, by the work of the host after each step";

/// Colours of the ways, in the picture.
const COLOURS: [&str; WAYS.len()] = ["#6b6b2a", "#d2691e", "#3b8f9e", "#1f5fa8"];

/// One way at one length of the host's work.
#[derive(Clone, Serialize)]
pub struct DecodeRow {
    /// Work of the host after each step, in ms.
    pub host_ms: f64,
    /// Name of the way.
    pub way: &'static str,
    /// Steps per second of all services together.
    pub per_second: f64,
    /// The same in percent of one service alone.
    pub percent_of_one: f64,
    /// Median length of a step's device part, from its first launch to its seen end, in ms.
    pub p50: f64,
    /// The 99th percentile of that length, in ms.
    pub p99: f64,
    /// Run delay of programs and daemon plus stolen time, in percent of the run.
    pub delay: f64,
}

/// Measures every way at the selected lengths of the host's work.
///
/// # Errors
/// A program does not start, or ends by itself.
pub fn measure_decode(place: &MeasuringPlace, options: &Options) -> Result<Vec<DecodeRow>, String> {
    let mut rows = Vec::new();
    for (name, host_us) in DECODE_CASES.into_iter().filter(|(name, _)| options.wants_case(name)) {
        let mut one = 0.0;
        for (way, services, lines) in WAYS {
            print_progress(&format!("{name}, {way}"));
            let service = |tenant| TenantProgramSpec::serving_program(tenant, STEP.0, STEP.1, host_us * 1_000);
            let programs: Vec<_> = (0..services).map(service).collect();
            let terms: Option<Vec<String>> = lines.map(|lines| vec![tenant_terms(lines); services]);
            let ran = run::run(place, terms.as_deref(), &programs, WARM_UP_TIME, options.window_of(5))?;
            let each = ran.requests.iter().map(|requests| RequestTimes::of_requests(requests, ran.window_ns));
            let per_second = each.map(|times| times.per_second).sum();
            let all = RequestTimes::of_requests(&ran.requests.concat(), ran.window_ns);
            let delay_ns = ran.host.iter().map(|usage| usage.delay_ns).sum::<u64>() + ran.stolen_ns;
            if services == 1 {
                one = per_second;
            }
            rows.push(DecodeRow {
                host_ms: host_us as f64 / 1_000.0,
                way,
                per_second,
                percent_of_one: per_second / one * 100.0,
                p50: all.p50,
                p99: all.p99,
                delay: delay_ns as f64 / ran.window_ns as f64 * 100.0,
            });
        }
    }
    Ok(rows)
}

/// Writes the table.
pub fn write_decode(rows: &[DecodeRow], out: &mut String) {
    if rows.is_empty() {
        return;
    }
    out.push_str(
        "\n## Decode steps of two services\n\n![decode steps](decode.svg)\n\nThe device is simulated. A step is 43 \
         kernels of 200 us, queued at once, and a wait for them; then the host works (it sleeps). The latency is that \
         of the device's part, by the program's own clock: from the first launch until its end is seen. Steps per \
         second are those of both services together. A lease of 10 ms holds a whole step: `quantum = \"10ms\"`.\n\n\
         | host, ms | way | steps per second | of one alone | p50, ms | p99 | run delay, % |\n\
         |--:|---|--:|--:|--:|--:|--:|\n",
    );
    for DecodeRow { host_ms, way, per_second, percent_of_one, p50, p99, delay } in rows {
        let _ = writeln!(
            out,
            "| {host_ms} | {way} | {per_second:.1} | {percent_of_one:.0} % | {p50:.2} | {p99:.2} | {delay:.1} |"
        );
    }
}

/// Two panels of bars over the host's work: throughput, and median latency.
pub fn decode_picture(rows: &[DecodeRow]) -> Picture {
    let panels = [("steps per second, percent of one alone", 200.0), ("median latency of a step, ms", 20.0)];
    let value = |panel: usize, row: &DecodeRow| if panel == 0 { row.percent_of_one } else { row.p50 };
    let svg = make_drawing(760.0, 270.0, DECODE_TITLE, |out| {
        draw_text(out, 40.0, 18.0, "start", " font-weight=\"bold\"", DECODE_TITLE);
        for (at, (title, most)) in panels.into_iter().enumerate() {
            let (left, base) = (40.0 + 380.0 * at as f64, 210.0);
            draw_text(out, left, 38.0, "start", "", title);
            for tick in 0..=4u8 {
                let part = f64::from(tick) / 4.0;
                let y = base - 150.0 * part;
                draw_line(out, (left, y), (left + 320.0, y), "stroke=\"#ccc\"");
                draw_text(out, left - 4.0, y + 4.0, "end", "", &format!("{}", most * part));
            }
            for (group, rows) in rows.chunks(WAYS.len()).enumerate() {
                let x = left + 8.0 + 80.0 * group as f64;
                for (bar, (row, colour)) in rows.iter().zip(COLOURS).enumerate() {
                    let height = (value(at, row) / most * 150.0).min(155.0);
                    let _ = writeln!(
                        out,
                        "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"14\" height=\"{height:.1}\" fill=\"{colour}\"><title>{}: \
                         {:.1}</title></rect>",
                        x + 16.0 * bar as f64,
                        base - height,
                        row.way,
                        value(at, row)
                    );
                }
                let host = rows.first().map_or(0.0, |row| row.host_ms);
                draw_text(out, x + 32.0, base + 16.0, "middle", "", &format!("{host} ms"));
            }
        }
        for (at, ((way, ..), colour)) in WAYS.iter().zip(COLOURS).enumerate() {
            let x = 40.0 + 180.0 * at as f64;
            let _ = writeln!(out, "<rect x=\"{x:.1}\" y=\"242\" width=\"12\" height=\"12\" fill=\"{colour}\"/>");
            draw_text(out, x + 18.0, 252.0, "start", "", way);
        }
    });
    let numbers = rows.iter().map(|row| {
        let DecodeRow { host_ms, way, per_second, percent_of_one, p50, p99, delay } = row;
        vec![
            host_ms.to_string(),
            (*way).to_owned(),
            format!("{per_second:.2}"),
            format!("{percent_of_one:.1}"),
            format!("{p50:.3}"),
            format!("{p99:.3}"),
            format!("{delay:.1}"),
        ]
    });
    let heads = ["host_ms", "way", "steps_per_second", "percent_of_one", "p50_ms", "p99_ms", "run_delay_percent"];
    Picture { name: "decode", svg, csv: csv(&heads, numbers) }
}
