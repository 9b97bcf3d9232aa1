//! `vgpu groups`: shares, use and quotas of groups of tenants.

use std::process::ExitCode;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::ask::{DaemonAddress, no_answer};
use vgpu_config::show::insert_limits;
use vgpu_control::ControlCommand;
use vgpu_control::status::{GroupStatus, QuotaStatus};
use vgpu_output::say::{self, Failure};

/// Shows what groups of tenants are due, what they used, and what they get now; and their quotas.
///
/// SHARE is the part that the weights of the tree give. USED is the part of all use so far; use counts half after each
/// half_life of the configuration. EFFECTIVE is the part that the tenants that run now get. The daemon gives a group
/// that used less than its share larger weights, until both are equal. MEMORY and CEILINGS are sums over the tenants
/// next to the limits of the group, on the device with the largest part in use.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu groups
  vgpu groups --json

Exit codes:
  0  shown
  1  no daemon answers there
  2  usage")]
pub struct Args {
    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Asks the daemon, and prints the groups.
///
/// # Errors
/// [`Failure`]: the daemon does not answer.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let status = args.daemon.ask_daemon(&ControlCommand::Status)?.status.ok_or_else(no_answer)?;
    if args.daemon.json {
        say::print_json(&status.groups)?;
    } else {
        say::print_text(&format_groups(&status.groups, &TimeZone::system()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn format_groups(groups: &[GroupStatus], zone: &TimeZone) -> String {
    if groups.is_empty() {
        return "there is no [[group]] in the configuration\n".to_owned();
    }
    let percent = |part: Option<f64>| part.map_or_else(|| "-".to_owned(), |part| format!("{part:.1} %"));
    let heads = ["GROUP", "WEIGHT", "SHARE", "USED", "EFFECTIVE", "TENANTS", "RUNNING"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(groups.iter().map(|group| {
        vec![
            group.name.clone(),
            group.weight.map_or_else(|| "-".to_owned(), |weight| weight.to_string()),
            percent(group.share),
            percent(group.used),
            percent(group.effective),
            group.tenants.to_string(),
            group.running.to_string(),
        ]
    }));
    let limits: Vec<_> = groups.iter().map(|group| group.limits.clone()).collect();
    insert_limits(&mut rows, 5, &limits);
    let mut text = say::lay_out_table(&rows);
    let quotas: Vec<_> = groups.iter().flat_map(|group| group.quotas.iter().map(move |quota| (group, quota))).collect();
    if !quotas.is_empty() {
        let mut rows = vec![["GROUP", "QUOTA", "USED", "STATE", "THEN", "UNTIL"].map(str::to_owned).to_vec()];
        rows.extend(quotas.iter().map(|(group, quota)| quota_row(&group.name, quota, zone)));
        text.push_str(&format!("\n{}", say::lay_out_table(&rows)));
    }
    if groups.iter().any(|group| group.used.is_none()) {
        text.push_str("the use of groups is not known: no group has a weight or a quota, or the record is not read\n");
    }
    text
}

fn quota_row(group: &str, quota: &QuotaStatus, zone: &TimeZone) -> Vec<String> {
    let until = Timestamp::from_second(quota.until).map(|at| zone.to_datetime(at));
    vec![
        group.to_owned(),
        format!("{} {} a {}", quota.limit, quota.unit, quota.per),
        format!("{:.3} ({:.0} %)", quota.used, 100.0 * quota.used / quota.limit),
        quota.state.clone(),
        quota.then.clone(),
        until.map_or_else(|_| quota.until.to_string(), |at| at.strftime("%Y-%m-%d %H:%M").to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use vgpu_config::admit::GroupLimitSums;

    use super::*;

    #[test]
    fn groups_are_shown_with_share_use_and_effect_and_with_their_quotas() {
        let quota = QuotaStatus {
            per: "week".into(),
            unit: "GPU-hours".into(),
            limit: 40.0,
            used: 34.0,
            state: "near".into(),
            then: "class batch".into(),
            until: 1_796_115_600,
        };
        let lab = GroupStatus {
            name: "lab".into(),
            weight: Some(3),
            share: Some(75.0),
            used: Some(60.25),
            effective: Some(81.0),
            tenants: 2,
            running: 1,
            limits: Vec::new(),
            quotas: vec![quota],
        };
        let text =
            format_groups(&[lab.clone(), GroupStatus { name: "ops".into(), ..GroupStatus::default() }], &TimeZone::UTC);
        assert!(text.contains("lab    3       75.0 %  60.2 %  81.0 %     2        1"), "{text}");
        assert!(
            text.contains("lab    40 GPU-hours a week  34.000 (85 %)  near   class batch  2026-12-01 09:00"),
            "{text}"
        );
        assert!(text.ends_with("or the record is not read\n"), "{text}");
        let promise = |device: &str, memory: u64, ceilings| GroupLimitSums {
            device: device.into(),
            memory: memory << 30,
            memory_limit: Some(70 << 30),
            ceilings,
            sm_limit: Some(100.0),
        };
        let limits = vec![promise("0", 60, 80.5), promise("1", 30, 90.0)];
        let text = format_groups(&[GroupStatus { limits, ..lab }, GroupStatus::default()], &TimeZone::UTC);
        let heads = "EFFECTIVE  MEMORY                 CEILINGS          TENANTS";
        let cells = "81.0 %     60 GiB of 70 GiB on 0  90 of 100 % on 1  2";
        assert!(text.contains(heads) && text.contains(cells), "{text}");
        assert!(format_groups(&[], &TimeZone::UTC).starts_with("there is no [[group]]"));
    }
}
