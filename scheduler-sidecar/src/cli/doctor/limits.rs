//! The limits in the environment as the library will understand them, and variables it will not look at.

use vgpu_core::bytes::{Bytes, Size, parse_hami_size, parse_size};
use vgpu_core::limits::{Family, Quantity, RawLimits, Variable};
use vgpu_core::share::{Share, parse_hami_share, parse_share};

use super::{Report, variable};

/// Every variable of ours that somebody reads, but for the limits.
const KNOWN: [&str; 20] = [
    "VGPU_DEEPBIND",
    "VGPU_LIBRARY",
    "VGPU_LOG",
    "VGPU_LOG_FILE",
    "VGPU_ON_ERROR",
    "VGPU_RUNTIME_DIR",
    "VGPU_SHARED_UIDS",
    "VGPU_SIM_DIR",
    "VGPU_SIM_DRIVER",
    "VGPU_SIM_FAULTS",
    "VGPU_SIM_PROFILE",
    "VGPU_SIM_TRACE",
    "VGPU_SOCKET",
    "VGPU_STATE_DIR",
    "VGPU_STRICT",
    "VGPU_TENANT",
    "VGPU_SOAK_SECONDS",
    "VGPU_REQUIRE_ALL",
    "VGPU_BUILD",
    "VGPU_CACHE",
];

/// Variables of a few words, and the words.
const WORDS: [(&str, &[&str]); 4] = [
    ("VGPU_ON_ERROR", &["open", "closed"]),
    ("VGPU_STRICT", &["0", "1"]),
    ("VGPU_SHARED_UIDS", &["0", "1"]),
    ("VGPU_DEEPBIND", &["clear", "keep"]),
];

pub fn look(report: &mut Report) {
    let vars = std::env::vars_os().map(|(name, value)| (name.into_encoded_bytes(), value.into_encoded_bytes()));
    match RawLimits::from_vars(vars) {
        Err(why) => report.finding("limits", format!("{why}; CUDA and NVML will refuse to initialise")),
        Ok(limits) => understood(report, &limits),
    }
    for (name, accepted) in WORDS {
        let Some(value) = variable(name) else { continue };
        match (name, value.as_str()) {
            _ if !accepted.contains(&value.as_str()) => {
                report.finding(
                    "limits",
                    format!("{name}={value:?} is not understood; accepted: {}", accepted.join(", ")),
                );
            }
            ("VGPU_ON_ERROR", "open") => {
                report.fine(
                    "limits",
                    "VGPU_ON_ERROR=open: a limit that cannot be kept is reported, and the program runs without it",
                );
            }
            _ => {}
        }
    }
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("VGPU_") && !KNOWN.contains(&&*name) && !is_limit(&name) {
            report.finding("limits", format!("{name} is not a variable of vgpu and does nothing; misspelt?"));
        }
    }
}

/// Malformed ones too: those are findings of their own.
pub fn is_limit(name: &str) -> bool {
    name.starts_with("VGPU_MEMORY_LIMIT") || name.starts_with("VGPU_SM_LIMIT")
}

fn understood(report: &mut Report, limits: &RawLimits) {
    if limits.written().next().is_none() {
        return report.fine("limits", "none in the environment");
    }
    for quantity in [Quantity::Memory, Quantity::Sm] {
        let mut ordinals: Vec<Option<u32>> =
            limits.written().filter(|(of, _)| of.quantity == quantity).map(|(of, _)| of.ordinal).collect();
        ordinals.sort_unstable();
        ordinals.dedup();
        for ordinal in ordinals {
            report.fine("limits", in_words(limits, quantity, ordinal));
        }
    }
}

/// Which limit holds for one device, or for all that are not named; and what it won against.
fn in_words(limits: &RawLimits, quantity: Quantity, ordinal: Option<u32>) -> String {
    let mut found: Vec<(Variable, &str)> = Vec::new();
    for family in [Family::Vgpu, Family::Hami] {
        let written = |ordinal| {
            let name = Variable { family, quantity, ordinal };
            limits.written().find(|(of, _)| *of == name)
        };
        // Within a family the device's own variable wins over the global one.
        found.extend(written(ordinal).or_else(|| written(None)));
    }
    let what = if quantity == Quantity::Memory { "memory" } else { "device time" };
    let whose = ordinal.map_or("every device".to_owned(), |ordinal| format!("device {ordinal}"));
    let each: Vec<String> =
        found.iter().map(|(name, value)| format!("{name}={value} is {}", Meaning::of(*name, value).words())).collect();
    let verdict = match found.as_slice() {
        [one, other] => format!("; {}", lower(*one, *other)),
        _ => String::new(),
    };
    format!("{what} of {whose}: {}{verdict}", each.join(", "))
}

/// What a value means.
#[derive(Debug, Clone, Copy)]
enum Meaning {
    None,
    Memory(Size),
    Time(Share),
}

impl Meaning {
    fn of(name: Variable, value: &str) -> Self {
        let size = match (name.quantity, name.family) {
            (Quantity::Memory, Family::Vgpu) => parse_size(value).ok(),
            (Quantity::Memory, Family::Hami) => parse_hami_size(value).ok(),
            (Quantity::Sm, _) => None,
        };
        let share = match (name.quantity, name.family) {
            (Quantity::Sm, Family::Vgpu) => parse_share(value).ok().flatten(),
            (Quantity::Sm, Family::Hami) => parse_hami_share(value).ok().flatten(),
            (Quantity::Memory, _) => None,
        };
        match (size, share) {
            (Some(Size::Unlimited), _) | (None, None) => Self::None,
            (Some(size), _) => Self::Memory(size),
            (None, Some(share)) => Self::Time(share),
        }
    }

    fn words(self) -> String {
        match self {
            Self::None => "no limit".into(),
            Self::Memory(Size::Bytes(bytes)) => bytes.to_string(),
            Self::Memory(Size::Percent(share)) => {
                // Of a million bytes the share is as many millionths.
                let millionths = share.of(Bytes(1_000_000)).get();
                format!("{}.{:04} % of the device", millionths / 10_000, millionths % 10_000)
            }
            Self::Memory(Size::Unlimited) => "no limit".into(),
            Self::Time(share) => share.to_string(),
        }
    }
}

/// Who wins, if that can be told without the device's size.
fn lower(one: (Variable, &str), other: (Variable, &str)) -> String {
    let lower = match (Meaning::of(one.0, one.1), Meaning::of(other.0, other.1)) {
        (Meaning::None, Meaning::None) => return "neither limits anything".into(),
        (Meaning::None, _) => Some(other),
        (_, Meaning::None) => Some(one),
        (Meaning::Memory(Size::Bytes(a)), Meaning::Memory(Size::Bytes(b))) => Some(if a <= b { one } else { other }),
        (Meaning::Memory(Size::Percent(a)), Meaning::Memory(Size::Percent(b))) => {
            Some(if a <= b { one } else { other })
        }
        (Meaning::Time(a), Meaning::Time(b)) => Some(if a <= b { one } else { other }),
        _ => None,
    };
    lower.map_or("both are set: the lower wins, which depends on the device's size".into(), |(name, _)| {
        format!("both are set: {name}, the lower, wins")
    })
}
