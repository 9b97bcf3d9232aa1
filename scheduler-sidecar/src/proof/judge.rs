//! What was seen beside who is registered: findings. No IO.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::time::Instant;

use vgpu_core::bytes::Bytes;
use vgpu_core::uuid::key;

use super::driver::OnDevice;
use super::processes::Seen;
use super::uncharged::{Key, Reading};
use super::{Finding, Process, What};

/// What the daemon knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registered {
    /// Members by their process, each with its tenant.
    pub members: HashMap<u32, String>,
    /// Is the rest there too?
    pub all: bool,
    /// Bytes that tenants hold by their ledgers, by tenant and device ([`key`]), and when they were read; what is missing
    /// is not known.
    pub used: HashMap<(String, String), (u64, Instant)>,
    /// The same ledgers, to be compared with the driver's figures.
    pub readings: HashMap<Key, Reading>,
    /// The directories of sockets, with their tenants.
    pub dirs: Vec<(PathBuf, String)>,
}

/// What is no finding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Programs of the daemon's own mount namespace that may use devices as they like.
    pub programs: Vec<PathBuf>,
    /// How much more than its ledger says a process may use by the driver's word.
    pub slack: u64,
}

/// Compares. `seen`: every process at a device, by its file or by the driver's word.
#[must_use]
pub fn judge(
    seen: &BTreeMap<Process, Seen>,
    driver: &[OnDevice],
    known: &Registered,
    allowed: &Allowed,
) -> Vec<Finding> {
    let groups: HashSet<&str> = seen
        .iter()
        .filter(|(process, seen)| known.members.contains_key(&process.pid) && !seen.group.is_empty())
        .map(|(_, seen)| seen.group.as_str())
        .collect();
    let over = over(driver, known, allowed.slack);
    let mut findings = Vec::new();
    for (process, seen) in seen {
        let on: Vec<&OnDevice> = driver.iter().filter(|on| on.pid == process.pid).collect();
        let finding = |what, tenant: Option<String>, device: Option<String>, words: String| Finding {
            what,
            process: *process,
            pid_inside: seen.inside,
            name: seen.name.clone(),
            tenant,
            device,
            contained: seen.contained,
            container: seen.contained.then(|| container(&seen.group)).flatten(),
            words,
        };
        let device = seen.device.clone().or_else(|| on.first().map(|on| on.device.clone()));
        if let Some(tenant) = known.members.get(&process.pid) {
            for on in on {
                let Some((used, said, most)) = over.get(&(tenant.as_str(), key(&on.device))) else {
                    continue;
                };
                if *most == process.pid {
                    let words = format!(
                        "its tenant uses {} by the driver's word, this process most of it, and {} by its ledger: something \
                         allocates past the library; `vgpu doctor` in the container tells of open doors, strict = true shuts \
                         them",
                        Bytes(*used),
                        Bytes(*said)
                    );
                    findings.push(finding(What::Over, Some(tenant.clone()), Some(on.device.clone()), words));
                }
            }
            continue;
        }
        if !seen.contained && seen.program.as_ref().is_some_and(|program| allowed.programs.contains(program)) {
            continue;
        }
        // A child of a member: it says hello with its first call.
        if seen.library && groups.contains(seen.group.as_str()) {
            continue;
        }
        match seen.tenants.first() {
            Some(tenant) => {
                let words = if seen.library {
                    "it has its tenant's socket and the library, and has not said hello: VGPU_SOCKET is missing in its \
                     environment, or the library was not let in (the log and `vgpu events` say so)"
                } else {
                    "it has its tenant's socket and not the library: LD_PRELOAD is missing, names no file there, or it is a \
                     static program; `vgpu check --pid` tells"
                };
                findings.push(finding(What::Unregistered, Some(tenant.clone()), device, words.to_owned()));
            }
            None => {
                let words = if seen.library {
                    "it has the library and no daemon: its limits are those of its own environment; give it a socket, or \
                     name its program in proof.allow"
                } else {
                    "it uses a device without the library: nothing holds it; start it under `vgpu run` or with LD_PRELOAD, \
                     or name its program in proof.allow"
                };
                findings.push(finding(What::Uncontrolled, None, device, words.to_owned()));
            }
        }
    }
    findings
}

/// Tenants that use more than their ledger says, by tenant and device: how much, how much it says, and the process that
/// uses most. The slack is for each process.
fn over<'k>(driver: &[OnDevice], known: &'k Registered, slack: u64) -> HashMap<(&'k str, String), (u64, u64, u32)> {
    let mut sums: HashMap<(&str, String), (u64, u64, u32, u64)> = HashMap::new();
    for on in driver {
        let (Some(tenant), Some(used)) = (known.members.get(&on.pid), on.used) else { continue };
        let sum = sums.entry((tenant, key(&on.device))).or_insert((0, 0, on.pid, 0));
        sum.0 = sum.0.saturating_add(used);
        sum.1 = sum.1.saturating_add(slack);
        if used > sum.3 {
            (sum.2, sum.3) = (on.pid, used);
        }
    }
    let is_over = |(key, (used, slack, most, _)): ((&'k str, String), (u64, u64, u32, u64))| {
        let (said, _) = *known.used.get(&(key.0.to_owned(), key.1.clone()))?;
        (used > said.saturating_add(slack)).then_some((key, (used, said, most)))
    };
    sums.into_iter().filter_map(is_over).collect()
}

/// Tenants, each with a device, that use more than their ledgers said before the driver listed its processes at `listed`: they
/// may have taken it since.
#[must_use]
pub fn suspects(driver: &[OnDevice], known: &Registered, slack: u64, listed: Instant) -> Vec<(String, String)> {
    let keys = over(driver, known, slack).into_keys().map(|(tenant, device)| (tenant.to_owned(), device));
    keys.filter(|key| known.used.get(key).is_some_and(|(_, read)| *read < listed)).collect()
}

/// The end of a control group: what engines name after the container.
fn container(group: &str) -> Option<String> {
    group.rsplit('/').find(|part| !part.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32) -> Process {
        Process { pid, began: 5 }
    }

    fn seen(group: &str) -> Seen {
        Seen { name: "python3".into(), group: group.into(), ..Seen::default() }
    }

    fn known() -> Registered {
        let mut known = Registered::default();
        known.members.extend([(10, "a".into()), (20, "a".into())]);
        known.used.insert(("a".into(), "1".into()), (1 << 30, Instant::now()));
        known
    }

    fn on(pid: u32, used: u64) -> OnDevice {
        OnDevice { pid, device: "GPU-1".into(), used: Some(used) }
    }

    fn judged(all: Vec<(u32, Seen)>, driver: &[OnDevice]) -> Vec<(What, u32, Option<String>)> {
        let seen = all.into_iter().map(|(pid, seen)| (process(pid), seen)).collect();
        let allowed = Allowed { programs: vec!["/usr/bin/nvidia-persistenced".into()], slack: 64 << 20 };
        let found = judge(&seen, driver, &known(), &allowed);
        found.into_iter().map(|finding| (finding.what, finding.process.pid, finding.tenant)).collect()
    }

    #[test]
    fn members_and_their_children_with_the_library_are_as_they_should_be() {
        let child = Seen { library: true, ..seen("/docker/x") };
        assert_eq!(judged(vec![(10, seen("/docker/x")), (11, child.clone())], &[on(10, 1 << 30)]), []);
        let stranger = vec![(10, seen("/docker/x")), (11, Seen { group: "/docker/y".into(), ..child.clone() })];
        assert_eq!(judged(stranger, &[]), [(What::Uncontrolled, 11, None)]);
        let bare = vec![(10, seen("/docker/x")), (11, seen("/docker/x"))];
        assert_eq!(judged(bare, &[]), [(What::Uncontrolled, 11, None)], "the same container, and not the library");
    }

    #[test]
    fn who_has_a_tenants_socket_and_said_no_hello_is_that_tenants() {
        let contained = Seen { contained: true, tenants: vec!["a".into()], ..seen("/docker/z") };
        assert_eq!(judged(vec![(12, contained.clone())], &[]), [(What::Unregistered, 12, Some("a".into()))]);
        let other = Seen { tenants: Vec::new(), ..contained };
        assert_eq!(judged(vec![(12, other)], &[]), [(What::Uncontrolled, 12, None)]);
    }

    #[test]
    fn a_member_that_uses_more_than_its_ledger_says_is_found_and_a_little_more_is_not() {
        let all = || vec![(10, seen("/docker/x"))];
        assert_eq!(judged(all(), &[on(10, (1 << 30) + (64 << 20))]), []);
        assert_eq!(judged(all(), &[on(10, (1 << 30) + (65 << 20))]), [(What::Over, 10, Some("a".into()))]);
        assert_eq!(judged(all(), &[OnDevice { used: None, ..on(10, 0) }]), []);
        // NVML's name of an instance, and CUDA's.
        let instance = OnDevice { device: "MIG-1".into(), ..on(10, 2 << 30) };
        assert_eq!(judged(all(), &[instance]), [(What::Over, 10, Some("a".into()))]);
        // Two share what the ledger says, and the slack is each one's.
        let two = || vec![(10, seen("/docker/x")), (20, seen("/docker/x"))];
        assert_eq!(judged(two(), &[on(10, 1 << 29), on(20, (1 << 29) + (128 << 20))]), []);
        let found = judged(two(), &[on(10, 1 << 29), on(20, (1 << 29) + (129 << 20))]);
        assert_eq!(found, [(What::Over, 20, Some("a".into()))]);
    }

    #[test]
    fn who_took_more_since_its_ledger_was_read_is_no_finding_before_that_is_read_again() {
        let (known, listed) = (known(), Instant::now() + std::time::Duration::from_secs(1));
        let more = [on(10, 2 << 30)];
        assert_eq!(suspects(&more, &known, 0, listed), [("a".to_owned(), "1".to_owned())]);
        assert_eq!(suspects(&[on(10, 1 << 30)], &known, 0, listed), [], "nothing is to be asked");
        let read = known.used.values().next().unwrap().1;
        assert_eq!(suspects(&more, &known, 0, read), [], "read since");
    }

    #[test]
    fn what_is_allowed_is_allowed_outside_of_containers_only() {
        let host = Seen { program: Some("/usr/bin/nvidia-persistenced".into()), ..seen("/system.slice/x") };
        assert_eq!(judged(vec![(13, host.clone())], &[]), []);
        let inside = Seen { contained: true, ..host };
        assert_eq!(judged(vec![(13, inside)], &[]), [(What::Uncontrolled, 13, None)]);
    }
}
