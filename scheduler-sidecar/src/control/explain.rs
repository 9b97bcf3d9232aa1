//! Why a tenant gets what it gets, in sentences: the facts come from the daemon, the words are here.
//!
//! A pure function from [`Facts`] to [`Explained`], so that each answer can be tested without a device.

use serde::{Deserialize, Serialize};
use vgpu_core::arbiter::Class;
use vgpu_core::share::Share;

use crate::config::show;
use crate::config::value::span;

/// The answer to `explain`, for one device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// The device, as the file names it; `*`: none yet.
    pub device: String,
    /// One word: `holds`, `open`, `drains`, `overdue`, `waits`, `ceiling`, `paused`, `idle`, `free`, `absent`.
    pub state: String,
    /// What that means and which rule it comes from.
    pub sentences: Vec<String>,
}

/// What is known of a tenant on a device, at one moment.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The device, as the file names it.
    pub device: String,
    /// Processes of the tenant that are connected, on whatever device.
    pub connected: usize,
    /// Those of them that have joined this device.
    pub joined: usize,
    /// Those of the connected that speak protocol 1: they have no leases.
    pub older: usize,
    /// Are leases given for the device?
    pub arbitrated: bool,
    /// Does the tenant launch nothing until it is resumed?
    pub paused: bool,
    /// Who comes first.
    pub class: Class,
    /// Its floor.
    pub floor: Option<Share>,
    /// Its ceiling.
    pub ceiling: Option<Share>,
    /// Where it stands.
    pub standing: Standing,
}

/// Where a tenant stands on a device. Durations in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It wants nothing.
    Idle,
    /// The gate is open: it is alone.
    Open,
    /// It holds the lease.
    Holds {
        /// The member, by the kernel's word.
        pid: Option<u32>,
        /// For so long.
        since: u64,
        /// Until then; `None`: while nobody else wants the device.
        left: Option<u64>,
    },
    /// Its lease is over, its work is not.
    Drains {
        /// For so long.
        since: u64,
    },
    /// As [`Standing::Drains`], for longer than allowed: others are let in beside it.
    Overdue,
    /// It stands at the gate.
    Waits {
        /// Who has the device, if anybody.
        holder: Option<Holder>,
        /// Tenants that wait there too.
        others: usize,
    },
    /// Its ceiling is used up.
    Ceiling {
        /// The next lease comes in so long, at the earliest.
        refill: u64,
    },
}

/// Who has the device for which somebody waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The tenant.
    pub tenant: String,
    /// Its class.
    pub class: Class,
    /// Is its lease over, so that only its work in flight is waited for?
    pub drains: bool,
    /// Its lease lasts so long yet; `None`: not known.
    pub left: Option<u64>,
}

/// Says why.
#[must_use]
pub fn explained(facts: &Facts) -> Explained {
    let mut sentences = Vec::new();
    let state = said(facts, &mut sentences);
    if state != "absent" {
        sentences.push(rules(facts));
    }
    if facts.older > 0 {
        sentences.push(format!(
            "{} of its processes use an older library (protocol 1), which knows no leases: they keep to the ceiling they were \
             told, each by its own account, and a live change reaches them when they start anew.",
            facts.older
        ));
    }
    Explained { device: facts.device.clone(), state: state.to_owned(), sentences }
}

fn said(facts: &Facts, sentences: &mut Vec<String>) -> &'static str {
    let mut say = |words: String| sentences.push(words);
    if facts.connected == 0 {
        say("No process of it is connected: it waits for nothing. A process connects at its first CUDA or NVML call, if \
             VGPU_SOCKET names the tenant's socket there."
            .into());
        if facts.paused {
            say("It is paused; a process that comes launches nothing until `vgpu resume`.".into());
        }
        return "absent";
    }
    if facts.joined == 0 {
        say(format!(
            "{} of its processes {} connected, none of them works on this device.",
            facts.connected,
            if facts.connected == 1 { "is" } else { "are" }
        ));
        return "absent";
    }
    if facts.paused {
        say("It is paused by an administrator and launches nothing until `vgpu resume`; what was in flight drains."
            .into());
        return "paused";
    }
    if !facts.arbitrated {
        say("This device is not arbitrated: no tenant of it says anything about time, so the gate is open for all and the \
             device's own scheduler decides."
            .into());
        return "free";
    }
    match &facts.standing {
        Standing::Idle => {
            say("It wants nothing at the moment: nothing of it stands at the gate, and nothing is in flight.".into());
            "idle"
        }
        Standing::Open => {
            say("It is alone on the device and has no ceiling: its gate is open, and it asks nobody.".into());
            "open"
        }
        Standing::Holds { pid, since, left } => {
            let who = pid.map_or("one of its processes".to_owned(), |pid| format!("its process {pid}"));
            let until = left.map_or("and keeps it while nobody else wants the device".to_owned(), |left| {
                format!("for {} more", rounded(left))
            });
            say(format!("It holds the lease: {who} has had the device for {} {until}.", rounded(*since)));
            "holds"
        }
        Standing::Drains { since } => {
            say(format!(
                "Its lease is over, and what it has in flight has been draining for {}; then comes whoever is next.",
                rounded(*since)
            ));
            "drains"
        }
        Standing::Overdue => {
            say("What it has in flight takes longer than a drain may: others are let in beside it, and it gets no lease before \
                 that work is done."
                .into());
            "overdue"
        }
        Standing::Ceiling { refill } => {
            let ceiling = facts.ceiling.map_or("its ceiling".to_owned(), |share| format!("its ceiling of {share}"));
            say(format!("It waits because {ceiling} is used up; it is refilled in {}.", rounded(*refill)));
            "ceiling"
        }
        Standing::Waits { holder, others } => {
            say(waits(facts, holder.as_ref(), *others));
            "waits"
        }
    }
}

fn waits(facts: &Facts, holder: Option<&Holder>, others: usize) -> String {
    let beside = match others {
        0 => String::new(),
        1 => " One other tenant waits too.".to_owned(),
        many => format!(" {many} other tenants wait too."),
    };
    let Some(holder) = holder else {
        return format!("It waits at the gate; the device is about to be given to whoever is next.{beside}");
    };
    let Holder { tenant, class, drains, left } = holder;
    let class = show::class(*class);
    let rule = match holder.class.cmp(&facts.class) {
        std::cmp::Ordering::Less => format!(", whose class comes before {}", show::class(facts.class)),
        std::cmp::Ordering::Equal => String::new(),
        std::cmp::Ordering::Greater => ", whose lease it ends early by its class".to_owned(),
    };
    let left = match (drains, left) {
        (true, _) => "; that lease is over, and its work drains".to_owned(),
        (false, Some(left)) => format!("; that lease lasts {} more", rounded(*left)),
        (false, None) => String::new(),
    };
    format!("It waits behind {tenant} of class {class}{rule}{left}.{beside}")
}

/// The rules it lives under.
fn rules(facts: &Facts) -> String {
    let class = show::class(facts.class);
    let floor = facts.floor.map_or("no floor".to_owned(), |floor| format!("a floor of {floor}"));
    let ceiling = facts.ceiling.map_or("no ceiling".to_owned(), |ceiling| format!("a ceiling of {ceiling}"));
    format!("Its terms there: class {class}, {floor}, {ceiling}.")
}

/// A duration for people: two digits are enough.
fn rounded(ns: u64) -> String {
    let unit = match ns {
        0..=99_999 => 1_000,
        100_000..=9_999_999 => 100_000,
        10_000_000..=999_999_999 => 1_000_000,
        _ => 100_000_000,
    };
    span(ns.div_ceil(unit).saturating_mul(unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            device: "0".into(),
            connected: 2,
            joined: 1,
            older: 0,
            arbitrated: true,
            paused: false,
            class: Class::Normal,
            floor: Share::from_percent(20),
            ceiling: Share::from_percent(50),
            standing: Standing::Idle,
        }
    }

    fn says(facts: &Facts) -> (String, String) {
        let Explained { state, sentences, .. } = explained(facts);
        (state, sentences.join(" "))
    }

    #[test]
    fn each_standing_is_told_with_the_rule_it_comes_from() {
        let holder = |class, drains| Holder { tenant: "chat".into(), class, drains, left: Some(1_234_567) };
        let waits = |class, drains| Standing::Waits { holder: Some(holder(class, drains)), others: 1 };
        for (standing, state, words) in [
            (Standing::Idle, "idle", "wants nothing"),
            (Standing::Open, "open", "alone"),
            (
                Standing::Holds { pid: Some(7), since: 1_000_000, left: Some(3_000_000) },
                "holds",
                "process 7 has had the device for 1ms for 3ms more",
            ),
            (Standing::Holds { pid: None, since: 0, left: None }, "holds", "while nobody else wants"),
            (Standing::Drains { since: 2_000_000 }, "drains", "draining for 2ms"),
            (Standing::Overdue, "overdue", "longer than a drain may"),
            (
                Standing::Ceiling { refill: 11_400_000 },
                "ceiling",
                "its ceiling of 50 % is used up; it is refilled in 12ms",
            ),
            (
                waits(Class::Latency, false),
                "waits",
                "behind chat of class latency, whose class comes before normal; that lease lasts 1300us more. One other",
            ),
            (waits(Class::Normal, true), "waits", "behind chat of class normal; that lease is over"),
            (waits(Class::Batch, false), "waits", "whose lease it ends early by its class"),
            (Standing::Waits { holder: None, others: 0 }, "waits", "about to be given"),
        ] {
            let (said, sentences) = says(&Facts { standing: standing.clone(), ..facts() });
            assert_eq!(said, state, "{standing:?}");
            assert!(sentences.contains(words), "{standing:?}: {sentences}");
            assert!(sentences.contains("class normal, a floor of 20 %, a ceiling of 50 %"), "{sentences}");
        }
    }

    #[test]
    fn what_comes_before_any_standing_is_told_first() {
        assert_eq!(says(&Facts { connected: 0, joined: 0, ..facts() }).0, "absent");
        assert!(says(&Facts { connected: 0, joined: 0, paused: true, ..facts() }).1.contains("vgpu resume"));
        assert!(says(&Facts { joined: 0, ..facts() }).1.contains("2 of its processes are connected"));
        let (state, words) = says(&Facts { paused: true, standing: Standing::Open, ..facts() });
        assert!(state == "paused" && words.contains("until `vgpu resume`"), "{words}");
        let (state, words) = says(&Facts { arbitrated: false, standing: Standing::Open, ..facts() });
        assert!(state == "free" && words.contains("not arbitrated"), "{words}");
        assert!(says(&Facts { older: 1, ..facts() }).1.contains("protocol 1"));
    }
}
