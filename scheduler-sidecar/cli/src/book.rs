//! `vgpu book` and `vgpu bookings`: promise a tenant a part of devices for some time, list and cancel such promises.

use std::process::ExitCode;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::ask::{DaemonAddress, format_notes, no_answer};
use super::when;
use vgpu_config::schedule::WrittenBooking;
use vgpu_config::value::{self, WrittenValue};
use vgpu_control::{BookingStatus, ControlCommand};
use vgpu_output::say::{self, EXIT_USAGE, Failure};

/// Books a part of devices for a tenant: from a moment on, for some time.
///
/// While the booking holds, the tenant has at least the booked floor and memory limit. Until then others use that part.
/// A booking that would not fit at some moment is refused, and so is every later change that would break it. Bookings
/// survive a restart of the daemon and of the host.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu book exam --from \"2026-12-01 09:00\" --for 2h --sm-request 50 --memory-limit 20GiB
  vgpu book demo --device 0 --from now --for 30m --sm-request 80 --reason 'customer visit'

Exit codes:
  0  booked
  1  it does not fit, or no such tenant or device; or no daemon answers there
  2  usage: a value is not accepted, and the daemon was not asked")]
pub struct BookArgs {
    /// The tenant, by its name.
    tenant: String,

    /// Books this device only: its number or UUID; can be repeated [default: all of the tenant's].
    #[arg(long, value_name = "ID")]
    device: Vec<String>,

    /// Beginning in the host's time zone: \"2026-12-01 09:00\", or now.
    #[arg(long, value_name = "TIME")]
    from: String,

    /// Length: 90m, 2h, 1d.
    #[arg(long = "for", value_name = "TIME")]
    length: String,

    /// Floor: guaranteed device time in percent: 30, 12.5.
    #[arg(long, value_name = "PERCENT", visible_alias = "sm")]
    sm_request: Option<String>,

    /// Memory on each device: 20GiB, 25%.
    #[arg(long, value_name = "SIZE", visible_alias = "memory")]
    memory_limit: Option<String>,

    /// Name of the booking [default: the tenant's name with a number].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Reason, for the audit log.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Lists the bookings that are not over, or cancels one.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu bookings
  vgpu bookings --cancel exam-1

Exit codes:
  0  listed or cancelled
  1  no such booking, or the configuration file has it; or no daemon answers there
  2  usage")]
pub struct BookingsArgs {
    /// Cancels the booking with this name.
    #[arg(long, value_name = "NAME")]
    cancel: Option<String>,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Asks the daemon for the booking, and prints it.
///
/// # Errors
/// [`Failure`]: a value is not accepted, the daemon does not answer, or it refuses.
pub fn book(args: &BookArgs) -> Result<ExitCode, Failure> {
    let booking = read_booking(args).map_err(|words| Failure::new(EXIT_USAGE, words))?;
    ask_and_tell(&args.daemon, &ControlCommand::Book { booking: Box::new(booking) })
}

/// Lists or cancels.
///
/// # Errors
/// [`Failure`]: the daemon does not answer, or it refuses.
pub fn bookings(args: &BookingsArgs) -> Result<ExitCode, Failure> {
    let ask = match &args.cancel {
        Some(name) => ControlCommand::Cancel { booking: name.clone() },
        None => ControlCommand::Bookings,
    };
    ask_and_tell(&args.daemon, &ask)
}

fn read_booking(args: &BookArgs) -> Result<WrittenBooking, String> {
    fn one<T>(option: &str, text: &str, reading: value::ValueReader<T>) -> Result<T, String> {
        reading(&WrittenValue::Text(text))
            .map_err(|wrong| format!("{option} {text:?} {}; accepted: {}", wrong.what, wrong.accepted))
    }
    let from = match args.from.as_str() {
        "now" => when::now(),
        text => {
            let written = one("--from", text, value::read_date_time).map_err(|words| format!("{words}, or now"))?;
            let begins = TimeZone::system().to_timestamp(written).map(Timestamp::as_second);
            begins.map_err(|_| format!("--from {text:?} is out of range; accepted: a date of this century"))?
        }
    };
    let length = one("--for", &args.length, value::read_length)?;
    let booking = WrittenBooking {
        name: args.name.clone().unwrap_or_default(),
        tenant: args.tenant.clone(),
        devices: args.device.clone(),
        from,
        until: from.saturating_add_unsigned(length),
        sm_request: args.sm_request.clone(),
        memory_limit: args.memory_limit.clone(),
        reason: args.reason.clone(),
    };
    booking.read(|key| format!("--{}", key.replace('_', "-")))?;
    Ok(booking)
}

fn ask_and_tell(daemon: &DaemonAddress, ask: &ControlCommand) -> Result<ExitCode, Failure> {
    let answer = daemon.ask_daemon(ask)?;
    let bookings = answer.bookings.ok_or_else(no_answer)?;
    if daemon.json {
        say::print_json(&bookings)?;
    } else if let ControlCommand::Cancel { booking } = ask {
        say::print_text(&format!("{booking} cancelled\n"))?;
    } else {
        let notes = format_notes(&answer.notes);
        say::print_text(&(format_bookings(&bookings, &TimeZone::system()) + &notes))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn format_bookings(bookings: &[BookingStatus], zone: &TimeZone) -> String {
    if bookings.is_empty() {
        return "there is no booking\n".to_owned();
    }
    let time = |at: i64| {
        let local = Timestamp::from_second(at).map(|at| zone.to_datetime(at));
        local.map_or_else(|_| at.to_string(), |local| local.strftime("%Y-%m-%d %H:%M").to_string())
    };
    let heads = ["BOOKING", "TENANT", "DEVICES", "FROM", "UNTIL", "REQUEST", "MEMORY", "STATE", "REASON"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let mut refused = String::new();
    for status in bookings {
        let booking = &status.booking;
        let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        let state = match (&status.refused, status.holds) {
            (Some(_), _) => "does not fit",
            (None, false) if status.overridden => "overridden",
            (None, true) => "holds",
            (None, false) => "to come",
        };
        rows.push(vec![
            booking.name.clone(),
            booking.tenant.clone(),
            if booking.devices.is_empty() { "all".to_owned() } else { booking.devices.join(",") },
            time(booking.from),
            time(booking.until),
            word(&booking.sm_request),
            word(&booking.memory_limit),
            if status.of_file { format!("{state} (file)") } else { state.to_owned() },
            word(&booking.reason),
        ]);
        refused.extend(status.refused.iter().map(|why| format!("{}: {why}\n", booking.name)));
    }
    format!("{}{refused}", say::lay_out_table(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookings_are_listed_with_their_times_and_states() {
        let booking = WrittenBooking {
            name: "exam".into(),
            tenant: "a".into(),
            from: 1_796_115_600,
            until: 1_796_122_800,
            sm_request: Some("50 %".into()),
            ..WrittenBooking::default()
        };
        let all = [
            BookingStatus { booking: booking.clone(), of_file: true, holds: true, overridden: false, refused: None },
            BookingStatus { booking: booking.clone(), of_file: false, holds: false, overridden: true, refused: None },
            BookingStatus {
                booking,
                of_file: false,
                holds: false,
                overridden: false,
                refused: Some("too much".into()),
            },
        ];
        let text = format_bookings(&all, &TimeZone::UTC);
        assert!(text.contains("exam     a       all      2026-12-01 09:00  2026-12-01 11:00  50 %"), "{text}");
        assert!(text.contains("  overridden"), "{text}");
        assert!(text.contains("holds (file)") && text.ends_with("exam: too much\n"), "{text}");
        assert_eq!(format_bookings(&[], &TimeZone::UTC), "there is no booking\n");
    }
}
