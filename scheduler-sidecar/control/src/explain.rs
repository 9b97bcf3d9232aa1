//! Explains in sentences why a tenant gets the time it gets, from facts that the daemon collects.
//!
//! A pure function from [`DeviceStanding`] to [`DeviceExplanation`], so that each answer can be tested without a
//! device.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use vgpu_core::time::arbiter::Class;
use vgpu_core::units::share::Share;
use vgpu_core::units::uuid::is_same_device;

use crate::finding::Finding;
use vgpu_config::show;
use vgpu_config::value::format_span;

/// The answer to `explain`, for one device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceExplanation {
    /// The device: its UUID, or its name in the file.
    pub device: String,
    /// State in one word: `observed`, `running`, `open`, `draining`, `overdue`, `waiting`, `capped`, `paused`, `idle`.
    /// `free`: there are no limits of time on the device. `shared`: it is under MPS, without leases. `absent`: the
    /// tenant has no member there. `lost`: the driver has lost the device. `suspended`: all processes of the tenant are
    /// off their devices.
    pub state: String,
    /// The meaning of the state, and the rule that it follows from.
    pub sentences: Vec<String>,
}

/// Facts about a tenant that hold on all devices.
#[derive(Debug, Clone, Default)]
pub struct TenantFacts {
    /// Number of the tenant's connected processes.
    pub connected: usize,
    /// True if the tenant launches nothing until it is resumed.
    pub paused: bool,
    /// True if the tenant's use is only measured, and no limit is enforced.
    pub observed: bool,
}

/// Facts about a tenant, at one moment, on a device that one of its members has joined.
#[derive(Debug, Clone)]
pub struct DeviceStanding {
    /// Name or UUID of the device.
    pub device: String,
    /// Class of the tenant, which decides which waiting tenant gets the device first.
    pub class: Class,
    /// Floor: the share of device time that the tenant is guaranteed; `None`: none.
    pub floor: Option<Share>,
    /// Ceiling: the most device time that the tenant may use; `None`: no limit.
    pub ceiling: Option<Share>,
    /// State in one word: `running`, `open`, `draining`, `overdue`, `waiting`, `capped`, `paused`, `idle`, `shared`,
    /// `free`, `lost`, `suspended`.
    pub state: &'static str,
    /// The state in a sentence, with numbers.
    pub words: String,
    /// Other tenant that holds the device now, and the class of that tenant.
    pub holder: Option<(String, Class)>,
    /// Time in ns until the ceiling allows the next lease.
    pub refill: Option<u64>,
}

/// Explains the state on each device. A tenant without any device gets one answer too.
#[must_use]
pub fn explain_tenant(whole: &TenantFacts, facts: &[DeviceStanding]) -> Vec<DeviceExplanation> {
    let mut all: Vec<DeviceExplanation> = facts.iter().map(|facts| on_device(whole, facts)).collect();
    if all.is_empty() {
        all.push(DeviceExplanation {
            device: "*".into(),
            state: "absent".into(),
            sentences: vec![explain_absent(whole)],
        });
    }
    if let Some(first) = all.first_mut().filter(|_| whole.paused && facts.is_empty()) {
        first.sentences.push("It is paused: its processes launch nothing until `vgpu resume`.".into());
    }
    all
}

/// Adds a sentence for each finding to the answer for its device. If there is no answer for that device, or the
/// device is not known, the first answer gets it. `more`: number of findings that are left out.
pub fn tell_findings(all: &mut [DeviceExplanation], found: &[Finding], more: usize) {
    for finding in found {
        let is_at = |explained: &DeviceExplanation| {
            finding.device.as_ref().is_some_and(|name| is_same_device(name, &explained.device))
        };
        let at = all.iter().position(is_at).unwrap_or(0);
        let Finding { what, process, name, words, .. } = finding;
        let sentence = format!("Found (proof.{}) of process {} ({name}): {words}.", what.kind_word(), process.pid);
        all.get_mut(at).into_iter().for_each(|explained| explained.sentences.push(sentence.clone()));
    }
    if let Some(first) = all.first_mut().filter(|_| more > 0) {
        first.sentences.push(format!("{more} more of its processes have findings: see `vgpu status`."));
    }
}

fn explain_absent(whole: &TenantFacts) -> String {
    match whole.connected {
        0 => "None of its processes is connected, so it waits for nothing. A process connects at its first CUDA or \
             NVML call, \
              if its VGPU_SOCKET names the tenant's socket."
            .into(),
        1 => "One of its processes is connected, and it uses no device that the daemon knows.".into(),
        many => format!("{many} of its processes are connected, and none uses a device that the daemon knows."),
    }
}

fn on_device(whole: &TenantFacts, facts: &DeviceStanding) -> DeviceExplanation {
    let (state, sentence) = match facts.state {
        _ if whole.observed => (
            "observed",
            "It is only observed (mode = \"observe\"): it never waits, and nothing is refused. \
             Its use is measured, and other tenants do not get the time that it uses."
                .into(),
        ),
        _ if whole.paused => {
            ("paused", "It is paused by an administrator and launches nothing until `vgpu resume`.".into())
        }
        "paused" => (
            "paused",
            "It is paused on this device, and launches nothing here until that ends; elsewhere it launches.".into(),
        ),
        "suspended" => (
            "suspended",
            "All of its processes are suspended: it gets no lease and waits for none until `vgpu-checkpoint resume PID`."
                .into(),
        ),
        "lost" => (
            "lost",
            "The driver has lost this device: its calls fail there, and nobody has a lease until the device is reset."
                .into(),
        ),
        "free" => (
            "free",
            "This device is not arbitrated: time.arbitrate = false, and none of its tenants has an sm_limit. Launches \
             do not wait, and the device's own scheduler orders them. The tenant's device time is not measured."
                .into(),
        ),
        "shared" => (
            "shared",
            "This device is under MPS, which runs the work of several processes at once. There are no leases: the \
             tenant launches at the same time as others, up to its sm_limit. Floors and weights have no effect."
                .into(),
        ),
        "idle" => ("idle", "It wants nothing at the moment: no launch of it waits at the gate.".into()),
        "open" => (
            "open",
            "It is alone on the device and has no ceiling: it launches without leases, and its use is \
         not measured (record.exact = false)."
                .into(),
        ),
        "running" => ("running", format!("It holds the lease: {}.", facts.words)),
        "draining" => (
            "draining",
            "Its lease is over, and its work in flight drains; then the next tenant gets the device.".into(),
        ),
        "overdue" => (
            "overdue",
            "Its work in flight takes longer than a drain may. Other tenants run at the same time, and it gets no \
             lease before \
             that work is done."
                .into(),
        ),
        "capped" => ("capped", explain_ceiling(facts)),
        "waiting" => ("waiting", explain_wait(facts)),
        other => (other, format!("{}.", facts.words)),
    };
    DeviceExplanation {
        device: facts.device.clone(),
        state: state.into(),
        sentences: vec![sentence, terms_words(facts)],
    }
}

fn explain_ceiling(facts: &DeviceStanding) -> String {
    let ceiling = facts.ceiling.map_or("its ceiling".to_owned(), |share| format!("its ceiling of {share}"));
    match facts.refill {
        Some(0) => format!("It waits because {ceiling} was used up; it is refilled now."),
        Some(refill) => {
            format!("It waits because {ceiling} is used up; it may launch again in {}.", round_duration(refill))
        }
        None => format!("It waits because {ceiling} is used up."),
    }
}

fn explain_wait(facts: &DeviceStanding) -> String {
    let Some((tenant, class)) = &facts.holder else {
        return format!("It waits at the gate, and the device is about to go to the next tenant: {}.", facts.words);
    };
    let rule = match class.cmp(&facts.class) {
        Ordering::Less => format!(", which comes before {}", show::class_word(facts.class)),
        Ordering::Equal => {
            ", the same as its own; next is the tenant furthest behind its floor, then the one with the least time \
             by weight"
                .into()
        }
        Ordering::Greater => ", and ends that lease early because its own class is higher".to_owned(),
    };
    format!("It waits behind {tenant} of class {}{rule}: {}.", show::class_word(*class), facts.words)
}

/// Returns a sentence with the class, floor and ceiling of a tenant on a device.
fn terms_words(facts: &DeviceStanding) -> String {
    let class = show::class_word(facts.class);
    let floor = facts.floor.map_or("no floor".to_owned(), |floor| format!("a floor of {floor}"));
    let ceiling = facts.ceiling.map_or("no ceiling".to_owned(), |ceiling| format!("a ceiling of {ceiling}"));
    format!("Its terms there: class {class}, {floor}, {ceiling}.")
}

/// A duration for people, rounded up to two or three digits.
fn round_duration(ns: u64) -> String {
    let unit = match ns {
        0..=99_999 => 1_000,
        100_000..=9_999_999 => 100_000,
        10_000_000..=999_999_999 => 1_000_000,
        _ => 100_000_000,
    };
    format_span(ns.div_ceil(unit).saturating_mul(unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{FindingKind, ProcessId};

    fn facts(state: &'static str) -> DeviceStanding {
        DeviceStanding {
            device: "0".into(),
            class: Class::Normal,
            floor: Share::from_percent(20),
            ceiling: Share::from_percent(50),
            state,
            words: "1 of its members waits".into(),
            holder: None,
            refill: None,
        }
    }

    fn says(whole: &TenantFacts, facts: &[DeviceStanding]) -> (String, String) {
        let all = explain_tenant(whole, facts);
        assert_eq!(all.len(), facts.len().max(1));
        (all[0].state.clone(), all[0].sentences.join(" "))
    }

    #[test]
    fn each_standing_is_told_with_the_rule_it_comes_from() {
        let here = TenantFacts { connected: 1, ..TenantFacts::default() };
        let behind = |class| DeviceStanding { holder: Some(("chat".into(), class)), ..facts("waiting") };
        for (facts, words) in [
            (facts("idle"), "wants nothing"),
            (facts("open"), "alone on the device"),
            (facts("running"), "holds the lease: 1 of"),
            (facts("draining"), "drains"),
            (facts("overdue"), "longer than a drain may"),
            (
                DeviceStanding { refill: Some(11_400_000), ..facts("capped") },
                "ceiling of 50 % is used up; it may launch again in 12ms",
            ),
            (DeviceStanding { refill: Some(0), ..facts("capped") }, "refilled now"),
            (behind(Class::Latency), "behind chat of class latency, which comes before normal: 1 of"),
            (
                behind(Class::Normal),
                "behind chat of class normal, the same as its own; next is the tenant furthest behind",
            ),
            (behind(Class::Batch), "behind chat of class batch, and ends that lease early"),
            (facts("waiting"), "about to go to the next tenant"),
            (facts("lost"), "nobody has a lease until the device is reset"),
            (facts("suspended"), "waits for none until `vgpu-checkpoint resume PID`"),
        ] {
            let (said, sentences) = says(&here, std::slice::from_ref(&facts));
            assert_eq!(said, facts.state);
            assert!(sentences.contains(words), "{facts:?}: {sentences}");
            assert!(sentences.contains("class normal, a floor of 20 %, a ceiling of 50 %"), "{sentences}");
        }
    }

    #[test]
    fn what_is_found_of_a_tenant_is_told_at_its_device() {
        let here = TenantFacts { connected: 1, ..TenantFacts::default() };
        let at = |device: &str| DeviceStanding { device: device.into(), ..facts("idle") };
        let finding = |what, device: Option<&str>| Finding {
            what,
            process: ProcessId { pid: 4711, began: 1 },
            pid_inside: None,
            name: "train".into(),
            tenant: Some("a".into()),
            device: device.map(str::to_owned),
            contained: false,
            container: None,
            words: "it works without a lease".into(),
        };
        let mut all = explain_tenant(&here, &[at("GPU-1"), at("GPU-2")]);
        tell_findings(&mut all, &[finding(FindingKind::Time, Some("gpu-2")), finding(FindingKind::Over, None)], 3);
        let [first, second] = [0, 1].map(|at: usize| all[at].sentences.join(" "));
        assert!(second.contains("Found (proof.time) of process 4711 (train): it works without a lease."), "{second}");
        assert!(first.contains("Found (proof.over)") && first.contains("3 more of its processes"), "{first}");
        assert!(!first.contains("proof.time") && !second.contains("proof.over"));
    }

    #[test]
    fn what_comes_before_any_standing_is_told_first() {
        let here = TenantFacts { connected: 2, ..TenantFacts::default() };
        assert_eq!(says(&TenantFacts::default(), &[]).0, "absent");
        assert!(says(&here, &[]).1.contains("2 of its processes are connected"));
        assert!(says(&TenantFacts { paused: true, ..TenantFacts::default() }, &[]).1.contains("until `vgpu resume`"));
        let (state, words) = says(&TenantFacts { paused: true, ..here.clone() }, &[facts("open")]);
        assert!(state == "paused" && words.contains("until `vgpu resume`"), "{words}");
        let (state, words) = says(&here, &[facts("free")]);
        assert!(state == "free" && words.contains("not arbitrated") && words.contains("is not measured"), "{words}");
        let (state, words) = says(&TenantFacts { observed: true, ..here }, &[facts("waiting")]);
        assert!(state == "observed" && words.contains("it never waits"), "{words}");
    }
}
