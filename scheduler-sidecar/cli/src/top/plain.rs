//! The view without a terminal: prints each refresh as text or as JSON.

use std::process::ExitCode;
use std::time::Instant;

use vgpu_core::units::bytes::Bytes;

use super::feed;
use super::row::{StatusLook, TopDevice, TopRow};
use super::state::{TopOptions, TopState};
use crate::ask::{self, DaemonAddress};
use crate::ps::format_span;
use crate::status;
use vgpu_config::problem;
use vgpu_output::say::{self, Failure};

/// Prints this many refreshes; `None` prints until interrupted, across restarts of the daemon.
///
/// # Errors
/// [`Failure`]: the daemon does not answer at first, or stdout is closed.
pub fn run(daemon: &DaemonAddress, wishes: &TopOptions, looks: Option<u32>) -> Result<ExitCode, Failure> {
    let (socket, began) = (daemon.socket_path(), Instant::now());
    let (first, wishes) = feed::first_look(&socket, began, wishes)?;
    let show = |look: StatusLook| match daemon.json {
        true => say::print_exact(&say::plain_json(&format!("{}\n", status::enrich_status(&look.status)?))),
        false => say::print_text(&plain_text(&TopState::new(look, wishes.clone()))),
    };
    show(first)?;
    let mut shown = 1;
    while looks.is_none_or(|looks| shown < looks) {
        std::thread::sleep(wishes.interval);
        match feed::ask_once(&socket, began) {
            Ok(look) => {
                if !daemon.json {
                    say::print_text("\n")?;
                }
                show(look)?;
            }
            Err(why) => say::print_note(&ask::explain_failure(&socket, &why)),
        }
        shown += 1;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a refresh as text.
#[must_use]
pub fn plain_text(top: &TopState) -> String {
    let status = &top.look.status;
    let up = format_span(status.uptime_seconds);
    let mut text = format!("vgpud {}, process {}, up {up}\n", status.version, status.pid);
    let devices = top.shown_devices();
    let wanted = devices.iter().filter(|device| top.device.as_ref().is_none_or(|name| *name == device.name));
    text.extend(wanted.map(device_line));
    let heads = [
        "TENANT",
        "DEVICE",
        "CLASS",
        "WEIGHT",
        "FLOOR",
        "CEILING",
        "WANTED",
        "GOT",
        "USED",
        "MEMORY",
        "WAITED",
        "WAITING",
        "PROCESSES",
        "STATE",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(top.shown_rows().into_iter().map(row_cells));
    text + &say::lay_out_table(&rows)
}

fn device_line(device: &TopDevice) -> String {
    let size = |bytes: Option<u64>| bytes.map_or("?".to_owned(), |bytes| Bytes(bytes).to_string());
    let holder = match (&device.holder, device.arbitrated) {
        (Some(holder), _) => format!("held by {holder}"),
        (None, true) => "held by nobody".into(),
        (None, false) => "no leases".into(),
    };
    let TopDevice { name, busy, used, memory, model, .. } = device;
    let busy = busy.map_or("not measured".to_owned(), |busy| format!("{busy:.1} %"));
    let model = model.as_ref().map_or(String::new(), |model| format!(", {}", problem::escape_value(model)));
    format!("device {name}: busy {busy}, memory {} of {}, {holder}{model}\n", size(*used), size(*memory))
}

fn row_cells(row: &TopRow) -> Vec<String> {
    let percent = |value: Option<f64>| value.map_or(row.missing_time().to_owned(), |value| format!("{value:.1} %"));
    vec![
        row.tenant.clone(),
        row.device.clone(),
        if row.class.is_empty() { "-".into() } else { row.class.clone() },
        row.weight.to_string(),
        ask::format_percent(row.floor, "none"),
        ask::format_percent(row.ceiling, "unlimited"),
        percent(row.wanted),
        percent(row.got),
        row.used.map_or("?".into(), |used| Bytes(used).to_string()),
        ask::size(row.limit),
        row.waited.map_or("-".into(), |waited| format!("{waited:.3}")),
        row.waiting.to_string(),
        row.members.to_string(),
        row.state.clone(),
    ]
}
