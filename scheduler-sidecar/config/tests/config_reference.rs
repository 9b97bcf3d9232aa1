//! Checks the tables of docs/vgpud.md against the program. Documented values are accepted; ten times the maximum and
//! any other word are refused. Writing out a default changes nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use vgpu_config as config;
use vgpu_config::plan::ConfigPlan;
use vgpu_config::resolve::Surroundings;

/// A documented key, with its heading, its name and the cells of its row.
struct Row {
    heading: String,
    key: String,
    accepted: String,
    default: String,
}

fn rows() -> Vec<Row> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/vgpud.md")).unwrap();
    let (mut rows, mut heading) = (Vec::new(), String::new());
    for line in page.lines() {
        if let Some(text) = line.strip_prefix("### ") {
            heading = text.replace('`', "");
        } else if line.starts_with("| `") && !heading.is_empty() {
            let cells: Vec<&str> = line.split(" | ").collect();
            let key = cells[0].trim_start_matches("| ").trim_matches('`');
            let cell = |at: usize| cells.get(at).map_or("", |cell| cell.trim_matches([' ', '|'])).to_owned();
            rows.push(Row { heading: heading.clone(), key: key.into(), accepted: cell(1), default: cell(2) });
        }
    }
    rows
}

/// Returns the TOML values in backticks: `"text"`, `true`, a number, a list.
fn literals(cell: &str) -> Vec<String> {
    let marked = cell.split('`').skip(1).step_by(2);
    let value = |text: &&str| {
        let list = text.starts_with('[') && (text.contains('"') || *text == "[]");
        (text.starts_with('"') && !text.contains("...")) || ["true", "false"].contains(text) || list
    };
    marked.filter(value).map(str::to_owned).collect()
}

/// Returns both ends of `LEAST to MOST` as values.
fn range(cell: &str) -> Option<(String, String)> {
    let (least, rest) = cell.split_once(" to ").filter(|_| !cell.contains("letters"))?;
    let value = |text: &str| {
        let text = text.trim_matches(['`', ',', ' ']);
        let number = text.parse::<f64>().is_ok() || text.starts_with('"');
        if number { text.to_owned() } else { format!("\"{text}\"") }
    };
    Some((value(least.split(' ').next_back()?), value(rest.split(' ').next()?)))
}

/// Returns ten times a value.
fn more(value: &str) -> String {
    let text = value.trim_matches('"');
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let quote = if value.starts_with('"') { "\"" } else { "" };
    format!("{quote}{}0{}{quote}", &text[..end], &text[end..])
}

/// Returns a file that sets this key to `value`, or leaves it out.
fn file(row: &Row, value: Option<&str>) -> String {
    let key = &row.key;
    let line = value.map_or(String::new(), |value| format!("{key} = {value}\n"));
    // Other keys that some values need.
    let beside = match key.as_str() {
        "keep_fine" => "keep = \"3650d\"\n",
        "keep" if row.heading == "[record]" => "keep_fine = \"1h\"\n",
        "in_flight" => "quantum = \"50ms\"\n",
        "quantum" if row.heading == "[time]" => "drain = \"1s\"\n",
        "deadline" => "gpu_hours_needed = 1\n",
        "gpu_hours_needed" => "deadline = \"2036-12-01 09:00\"\n",
        // Without any of these keys a tenant is not followed, also not by the defaults.
        "idle_minutes" | "idle_threshold" | "over_minutes" | "over_threshold" | "stalled_minutes" | "idle_steps"
        | "idle_grace" | "idle_dry_run" => "idle_suspend = [\"/bin/true\"]\n",
        _ => "",
    };
    let (own, device, tenant) = match row.heading.as_str() {
        "[[device]]" => (String::new(), line, String::new()),
        "[[tenant]]" => (String::new(), String::new(), format!("{line}{beside}")),
        "[[tenant.device]]" => (String::new(), String::new(), format!("[[tenant.device]]\nid = 0\n{line}")),
        "[[group]]" => (group_section(key, &line, ""), String::new(), String::new()),
        "[[group.quota]]" => (group_section("", "", &quota_section(key, &line)), String::new(), String::new()),
        "[[window]]" => (String::new(), String::new(), schedule_section("window", key, &line)),
        "[[booking]]" => (String::new(), String::new(), schedule_section("booking", key, &line)),
        "[[on_event]]" => {
            let other =
                |name: &str, value: &str| if key == name { String::new() } else { format!("{name} = {value}\n") };
            let beside = other("events", "[\"tenant.paused\"]") + &other("exec", "[\"/bin/true\"]");
            (format!("[[on_event]]\n{beside}{line}"), String::new(), String::new())
        }
        "[template.NAME] and [defaults]" => (format!("[defaults]\n{line}{beside}"), String::new(), String::new()),
        heading => (format!("{heading}\n{beside}{line}"), String::new(), String::new()),
    };
    format!("{own}[[device]]\nid = 0\nmemory = \"80GiB\"\n{device}[[tenant]]\nname = \"t\"\n{tenant}")
}

/// Returns a group that sets this key, with its name and its quota.
fn group_section(key: &str, line: &str, quota: &str) -> String {
    let name = if key == "name" { "" } else { "name = \"g\"\n" };
    format!("[[group]]\n{name}{line}{quota}")
}

/// Returns a quota that sets this key, with the other keys that it needs.
fn quota_section(key: &str, line: &str) -> String {
    let needed = [("per", "\"day\""), ("gpu_hours", "7")];
    let needed = needed.iter().filter(|(name, _)| *name != key).map(|(name, value)| format!("{name} = {value}\n"));
    format!("[[group.quota]]\n{}{line}", needed.collect::<String>())
}

/// Returns a window or a booking that sets this key, with the other keys that it needs.
fn schedule_section(section: &str, key: &str, line: &str) -> String {
    let needed: &[(&str, &str)] = match section {
        "window" => &[("name", "w"), ("from", "01:00"), ("to", "02:00"), ("class", "batch")],
        _ => &[("name", "b"), ("tenant", "t"), ("from", "2026-12-01 09:00"), ("for", "1h"), ("sm_request", "7")],
    };
    let needed = needed.iter().filter(|(name, _)| *name != key).map(|(name, value)| format!("{name} = \"{value}\"\n"));
    format!("[[{section}]]\n{}{line}", needed.collect::<String>())
}

fn plan(row: &Row, value: Option<&str>) -> Result<ConfigPlan, String> {
    let event_kinds = vec!["tenant.paused"];
    let around = Surroundings { run_dir: "/run/vgpu".into(), event_kinds, ..Default::default() };
    config::make_plan(&file(row, value), &around).map_err(|report| report.to_lines("vgpud.toml").to_string())
}

/// Keys whose row shows no literal value: paths, names, lists of differing things.
const FREE: [&str; 21] = [
    "gang",
    "tenants",
    "tenant",
    "groups",
    "run_dir",
    "devices",
    "allow",
    "slack",
    "id",
    "memory",
    "name",
    "template",
    "device",
    "quota",
    "uids",
    "group",
    "labels",
    "drain",
    "events",
    "exec",
    "idle_suspend",
];

#[test]
fn what_a_row_says_is_accepted_is_and_ten_times_the_most_is_not() {
    let (mut tried, mut wrong) = (BTreeSet::new(), Vec::new());
    for row in rows() {
        if row.accepted == "as above" || FREE.contains(&row.key.as_str()) {
            continue;
        }
        let ends = range(&row.accepted);
        let mut values = literals(&row.accepted);
        values.extend(ends.iter().flat_map(|(least, most)| [least.clone(), most.clone()]));
        assert!(!values.is_empty(), "{} {}: no value in {:?}", row.heading, row.key, row.accepted);
        for value in &values {
            if let Err(why) = plan(&row, Some(value)) {
                wrong.push(format!("{} {} = {value} is refused: {why}", row.heading, row.key));
            }
        }
        for value in ends.map(|(_, most)| more(&most)).into_iter().chain(["\"nonsense word\"".to_owned()]) {
            if plan(&row, Some(&value)).is_ok() {
                wrong.push(format!("{} {} = {value} is accepted", row.heading, row.key));
            }
        }
        tried.insert(format!("{} {}", row.heading, row.key));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried.len() > 35, "{tried:?}");
}

#[test]
fn a_default_that_is_written_out_changes_nothing() {
    let (mut count, mut wrong) = (0, Vec::new());
    for row in rows() {
        let bare = row.default.parse::<f64>().is_ok().then(|| row.default.clone());
        let whole = |text: &&String| row.default == format!("`{text}`");
        let Some(value) = bare.or_else(|| literals(&row.default).iter().find(whole).cloned()) else { continue };
        count += 1;
        // A plan also keeps these sections as written, for tenants that are added later.
        let resolved = |plan: ConfigPlan| ConfigPlan { defaults: Default::default(), templates: Vec::new(), ..plan };
        match (plan(&row, Some(&value)).map(resolved), plan(&row, None).map(resolved)) {
            (Ok(with), Ok(without)) if with == without => {}
            (Ok(_), Ok(_)) => wrong.push(format!("{} {} = {value} is another plan than without", row.heading, row.key)),
            (with, without) => {
                wrong.push(format!("{} {} = {value}: {:?} {:?}", row.heading, row.key, with.err(), without.err()))
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 30, "{count} defaults");
}
