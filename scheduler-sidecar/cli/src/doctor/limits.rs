//! Reports the limits in the environment as the library parses them, and the mode with the variable that decides it.
//! Also reports variables without effect: accepted ones that do nothing here, and unknown ones.

use std::collections::HashMap;

use vgpu_core::limits::variables;
use vgpu_core::limits::{Family, Mode, Quantity, RawLimits, Variable};
use vgpu_core::units::bytes::{Bytes, Size, parse_hami_size, parse_mebibytes, parse_size};
use vgpu_core::units::share::{Share, parse_hami_share, parse_request, parse_share};
use vgpu_engines::kubernetes::{ContainerFacts, PortionRule, is_managers_limit, read_container};

use super::{DoctorReport, environment_text};

pub fn examine_limits(report: &mut DoctorReport) {
    let vars = std::env::vars_os().map(|(name, value)| (name.into_encoded_bytes(), value.into_encoded_bytes()));
    match RawLimits::from_vars(vars) {
        Err(why) => report.add_finding("limits", format!("{why}; CUDA and NVML will refuse to initialise")),
        Ok(limits) => {
            report_mode(report, &limits);
            report_understood(report, &limits);
            report_word_variables(report, &limits);
            if limits.asked_mode() != Mode::Off
                && let Err(why) = limits.check_requests()
            {
                report.add_finding("limits", format!("{why}; CUDA and NVML will refuse to initialise"));
            }
        }
    }
    report_scheduler_variables(report);
    report_other_variables(report);
}

/// Reports limits that a scheduler seems to set and that nobody keeps.
fn report_scheduler_variables(report: &mut DoctorReport) {
    let all =
        std::env::vars_os().map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()));
    let (variables, annotations): (Vec<String>, _) = (all.collect(), HashMap::new());
    let has_tenant = environment_text("VGPU_SOCKET").is_some();
    let facts = ContainerFacts { name: "", annotations: &annotations, variables: &variables, has_tenant };
    if let Err(why) = read_container(facts, PortionRule::Refuse) {
        report.add_finding("limits", format!("{why}; VGPU_MEMORY_LIMIT is a limit too"));
    }
    let names = variables.iter().filter_map(|variable| variable.split('=').next());
    let managers: Vec<&str> = names.filter(|name| is_managers_limit(name)).collect();
    if !managers.is_empty() {
        let words =
            "vgpu-manager's own library keeps it, and this one does not; set VGPU_MEMORY_LIMIT and VGPU_SM_LIMIT too";
        report.add_finding("limits", format!("{}: {words}", managers.join(", ")));
    }
}

/// Reports the mode, and the setting that decides it.
fn report_mode(report: &mut DoctorReport, limits: &RawLimits) {
    if environment_text("VGPU_SOCKET").is_some() {
        let unheard = limits.unheard_mode().map_or(String::new(), |(name, word)| {
            format!("; {name}={word} has no effect with VGPU_SOCKET, because a variable can only tighten")
        });
        return report.add_fine("mode", format!("the daemon's: see below{unheard}"));
    }
    let by = match limits.mode_from() {
        None => "by default".to_owned(),
        Some((name, word)) => format!("{name}={word}"),
    };
    let what = match limits.asked_mode() {
        Mode::Enforce => "limits are kept",
        Mode::Observe => "memory is charged and device time measured; nothing is refused, delayed or shown differently",
        Mode::Off if limits.limits_anything() => "switched off: programs run WITHOUT the limits that are set",
        Mode::Off => "switched off",
    };
    let beside = match limits.word_of_variable("CUDA_DISABLE_CONTROL") {
        Some(word) if limits.word_of_variable("VGPU_MODE").is_some() => {
            format!("; CUDA_DISABLE_CONTROL={word} is set, too: VGPU_MODE wins")
        }
        _ => String::new(),
    };
    report.add_fine("mode", format!("{} ({by}): {what}{beside}", limits.asked_mode()));
}

/// Reports the effect of variables that take a word, other than the mode.
fn report_word_variables(report: &mut DoctorReport, limits: &RawLimits) {
    if limits.hami_ceiling_is_off() {
        report.add_fine("limits", "GPU_CORE_UTILIZATION_POLICY=disable: CUDA_DEVICE_SM_LIMIT is not kept");
    }
    if let Some(word) = limits.word_of_variable("CUDA_TASK_PRIORITY") {
        report.add_fine(
            "limits",
            format!("CUDA_TASK_PRIORITY={word} has no effect: the tenant's class in the daemon's file decides"),
        );
    }
    if limits.word_of_variable("VGPU_ON_ERROR") == Some("open") {
        let what = if environment_text("VGPU_SOCKET").is_some() {
            "has no effect with VGPU_SOCKET"
        } else {
            "a limit that cannot be kept is reported, and the program runs without it"
        };
        report.add_fine("limits", format!("VGPU_ON_ERROR=open: {what}"));
    }
}

/// Reports variables without effect: those of other projects with the reason, and those that look like misspelt ones
/// of ours.
fn report_other_variables(report: &mut DoctorReport) {
    let mut names: Vec<String> = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    let why = |name: &String| Some((name.clone(), variables::find(name.as_bytes())?.reason_ignored()?));
    let ignored: Vec<String> = names.iter().filter_map(why).map(|(name, why)| format!("{name} ({why})")).collect();
    if !ignored.is_empty() {
        report.add_fine("limits", format!("set, without effect: {}", ignored.join("; ")));
    }
    for name in names {
        if name.starts_with("VGPU_") && variables::find(name.as_bytes()).is_none() && !is_limit(&name) {
            report.add_finding("limits", format!("{name} is not a variable of vgpu and does nothing; misspelt?"));
        }
    }
}

/// Returns true for malformed names too: those are findings of their own.
pub fn is_limit(name: &str) -> bool {
    ["VGPU_MEMORY_LIMIT", "VGPU_SM_LIMIT", "VGPU_SM_REQUEST"].iter().any(|begin| name.starts_with(begin))
}

fn report_understood(report: &mut DoctorReport, limits: &RawLimits) {
    if limits.written_variables().next().is_none() {
        return report.add_fine("limits", "none in the environment");
    }
    for (list, value) in limits.written_variables().filter(|(of, _)| of.family == Family::Mps) {
        let what = "memory of each device that it names, of all the tenant's processes together";
        report.add_fine("limits", format!("{list}={value}: {what}; MPS keeps it for each process"));
    }
    for quantity in [Quantity::Memory, Quantity::Sm, Quantity::SmRequest] {
        let of_quantity = |(of, _): &(Variable, &str)| of.quantity == quantity && of.family != Family::Mps;
        let mut ordinals: Vec<Option<u32>> =
            limits.written_variables().filter(of_quantity).map(|(of, _)| of.ordinal).collect();
        ordinals.sort_unstable();
        ordinals.dedup();
        for ordinal in ordinals {
            report.add_fine("limits", in_words(limits, quantity, ordinal));
        }
    }
}

/// Describes the limit for one device, or for all devices without their own, and the value that it overrides.
fn in_words(limits: &RawLimits, quantity: Quantity, ordinal: Option<u32>) -> String {
    let mut found: Vec<(Variable, &str)> = Vec::new();
    for family in Family::EVERY_FAMILY {
        // Within a family, the device's own variable overrides the global one.
        found.extend(limits.winning_entry(family, quantity, ordinal));
    }
    let what = match quantity {
        Quantity::Memory => "memory",
        Quantity::Sm => "device time",
        Quantity::SmRequest => "guaranteed device time",
    };
    let whose = ordinal.map_or("every device".to_owned(), |ordinal| format!("device {ordinal}"));
    if limits.hami_ceiling_is_off() {
        found.retain(|(name, _)| (name.family, name.quantity) != (Family::Hami, Quantity::Sm));
    }
    if found.is_empty() {
        return format!("{what} of {whose}: no limit");
    }
    let each: Vec<String> = found
        .iter()
        .map(|(name, value)| format!("{name}={value} is {}", ValueMeaning::of_value(*name, value).to_words()))
        .collect();
    let verdict = match found.as_slice() {
        [one, other] => format!("; {}", winner_words(*one, *other)),
        [] | [_] => String::new(),
        _ => "; the lowest wins".to_owned(),
    };
    format!("{what} of {whose}: {}{verdict}", each.join(", "))
}

/// A parsed value.
#[derive(Debug, Clone, Copy)]
enum ValueMeaning {
    None,
    Memory(Size),
    Time(Share),
}

impl ValueMeaning {
    fn of_value(name: Variable, value: &str) -> Self {
        let size = match (name.quantity, name.family) {
            (Quantity::Memory, Family::Vgpu) => parse_size(value).ok(),
            (Quantity::Memory, Family::Hami) => parse_hami_size(value).ok(),
            (Quantity::Memory, Family::Toolkit) => parse_mebibytes(value).ok(),
            (Quantity::Memory, Family::Mps) | (Quantity::Sm | Quantity::SmRequest, _) => None,
        };
        let share = match (name.quantity, name.family) {
            (Quantity::Sm, Family::Hami) => parse_hami_share(value).ok().flatten(),
            (Quantity::Sm, _) => parse_share(value).ok().flatten(),
            (Quantity::SmRequest, _) => parse_request(value).ok(),
            (Quantity::Memory, _) => None,
        };
        match (size, share) {
            (Some(Size::Unlimited), _) | (None, None) => Self::None,
            (Some(size), _) => Self::Memory(size),
            (None, Some(share)) => Self::Time(share),
        }
    }

    fn to_words(self) -> String {
        match self {
            Self::None => "no limit".into(),
            Self::Memory(Size::Bytes(bytes)) => bytes.to_string(),
            Self::Memory(Size::Percent(share)) => {
                // Of a million bytes, the percentage takes as many bytes as it has millionths.
                let millionths = share.part_of(Bytes(1_000_000)).get();
                format!("{}.{:04} % of the device", millionths / 10_000, millionths % 10_000)
            }
            Self::Memory(Size::Unlimited) => "no limit".into(),
            Self::Time(share) => share.to_string(),
        }
    }
}

/// Says which of two values is lower, if that does not depend on the device's size.
fn winner_words(one: (Variable, &str), other: (Variable, &str)) -> String {
    let lower = match (ValueMeaning::of_value(one.0, one.1), ValueMeaning::of_value(other.0, other.1)) {
        (ValueMeaning::None, ValueMeaning::None) => return "neither limits anything".into(),
        (ValueMeaning::None, _) => Some(other),
        (_, ValueMeaning::None) => Some(one),
        (ValueMeaning::Memory(Size::Bytes(a)), ValueMeaning::Memory(Size::Bytes(b))) => {
            Some(if a <= b { one } else { other })
        }
        (ValueMeaning::Memory(Size::Percent(a)), ValueMeaning::Memory(Size::Percent(b))) => {
            Some(if a <= b { one } else { other })
        }
        (ValueMeaning::Time(a), ValueMeaning::Time(b)) => Some(if a <= b { one } else { other }),
        _ => None,
    };
    lower.map_or("both are set: the lower wins, which depends on the device's size".into(), |(name, _)| {
        format!("both are set: {name}, the lower, wins")
    })
}
