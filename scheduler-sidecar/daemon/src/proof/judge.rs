//! Compares processes at the devices with the registered members, and returns findings. No IO.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::time::Instant;

use vgpu_core::time::arbiter::audit::HeldTime;
use vgpu_core::units::bytes::Bytes;
use vgpu_core::units::uuid::uuid_key;

use super::driver::ProcessOnDevice;
use super::image::Image;
use super::limits::{MemoryBounds, TenantLimits};
use super::processes::SeenProcess;
use super::uncharged::TenantDeviceKey;
use vgpu_accounting::record::reading::LedgerReading;
use vgpu_control::finding::{Finding, FindingKind, ProcessId};
use vgpu_control::place::parse_cgroup;

/// Data of the daemon's event loop that processes at the devices are compared with.
#[derive(Debug, Clone, Default)]
pub struct RegisteredMembers {
    /// Members by process ID.
    pub members: HashMap<u32, Vec<RegisteredMember>>,
    /// When `ledgers`, `broken`, `limits` and `dirs` were collected; `None`: they were not.
    pub all: Option<Instant>,
    /// Ledgers by tenant and device. A missing one is unknown.
    pub ledgers: HashMap<TenantDeviceKey, LedgerReading>,
    /// Why a ledger that was read before can no longer be read, by tenant and device.
    pub broken: HashMap<TenantDeviceKey, &'static str>,
    /// Memory limits by tenant name.
    pub limits: HashMap<String, TenantLimits>,
    /// Members' time on devices, by process and device; `None`: its tenant is only observed.
    pub had: HashMap<(u32, String), Option<HeldTime>>,
    /// Time in which members may have worked without leases, because the daemon was silent, in ns.
    pub silent_ns: u64,
    /// Directories of sockets, with their tenants.
    pub dirs: Vec<(PathBuf, String)>,
}

/// A registered process: one that said hello on a tenant's socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteredMember {
    /// Name of the tenant whose socket the process connected to.
    pub tenant: String,
    /// The program that said hello; `None`: it could not be read.
    pub image: Option<Image>,
    /// Token of the process's connection; `None`: it said hello to the previous daemon and not yet to this one.
    pub connection: Option<u64>,
}

impl RegisteredMember {
    /// True if this process with its present program said hello. A program that cannot be read counts as the same.
    fn is_process(&self, process: &ProcessId, image: Option<Image>) -> bool {
        self.image.is_some_and(|said| said.process == *process && image.is_none_or(|now| now == said))
    }
}

/// Uses of a device that are no findings: allowed programs, and a tolerance of memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProofTolerance {
    /// Programs in the daemon's own mount namespace that may use devices freely.
    pub programs: Vec<PathBuf>,
    /// Bytes by which a process may use more than its ledger contains, as the driver reports it.
    pub slack: u64,
}

impl RegisteredMembers {
    /// Returns the registered member that this process is; `None`: it said no hello.
    #[must_use]
    pub fn member_of_process(&self, process: &ProcessId, image: Option<Image>) -> Option<&RegisteredMember> {
        self.members.get(&process.pid)?.iter().find(|member| member.is_process(process, image))
    }
}

/// Connections of processes that run another program than when they said hello.
#[must_use]
pub fn changed_images(seen: &BTreeMap<ProcessId, SeenProcess>, known: &RegisteredMembers) -> Vec<u64> {
    let of = |(process, seen): (&ProcessId, &SeenProcess)| {
        let members = known.members.get(&process.pid).into_iter().flatten();
        let changed: Vec<u64> = members
            .filter(|member| member.image.is_some() && !member.is_process(process, seen.image))
            .filter_map(|member| member.connection)
            .collect();
        changed
    };
    seen.iter().flat_map(of).collect()
}

/// Returns the findings. `seen`: every process at a device, by an open device file or by the driver's list.
#[must_use]
pub fn judge_processes(
    seen: &BTreeMap<ProcessId, SeenProcess>,
    driver: &[ProcessOnDevice],
    known: &RegisteredMembers,
    bounds: &MemoryBounds,
    allowed: &ProofTolerance,
) -> Vec<Finding> {
    let groups: HashSet<&str> = seen
        .iter()
        .filter(|(process, seen)| known.member_of_process(process, seen.image).is_some() && !seen.group.is_empty())
        .map(|(_, seen)| seen.group.as_str())
        .collect();
    let faults = memory_faults(seen, driver, known, bounds, allowed.slack);
    let mut findings = Vec::new();
    for (process, seen) in seen {
        let on: Vec<&ProcessOnDevice> = driver.iter().filter(|on| on.pid == process.pid).collect();
        let finding = |what, tenant: Option<String>, device: Option<String>, words: String| Finding {
            what,
            process: *process,
            pid_inside: seen.inside,
            name: seen.name.clone(),
            tenant,
            device,
            contained: seen.contained,
            container: seen.contained.then(|| container_name(&seen.group)).flatten(),
            words,
        };
        let device = seen.device.clone().or_else(|| on.first().map(|on| on.device.clone()));
        let has_library = seen.library == Some(true);
        if let Some(RegisteredMember { tenant, .. }) = known.member_of_process(process, seen.image) {
            if seen.library == Some(false) {
                let words = "it is connected to the daemon and uses a device without the library: no limit holds it; \
                     start it under \
                             `vgpu run` or with LD_PRELOAD";
                findings.push(finding(FindingKind::Uncontrolled, Some(tenant.clone()), device, words.to_owned()));
            }
            for on in on {
                let fault = faults.get(&(tenant.as_str(), uuid_key(&on.device)));
                let Some((_, words)) = fault.filter(|(most, _)| *most == process.pid) else { continue };
                findings.push(finding(FindingKind::Over, Some(tenant.clone()), Some(on.device.clone()), words.clone()));
            }
            continue;
        }
        if !seen.contained && seen.program.as_ref().is_some_and(|program| allowed.programs.contains(program)) {
            continue;
        }
        // A child of a member: it says hello at its first call.
        if has_library && groups.contains(seen.group.as_str()) {
            continue;
        }
        match seen.tenants.first() {
            Some(tenant) => {
                let words = if has_library {
                    "it has its tenant's socket and the library, but is not connected: VGPU_SOCKET is missing in its \
                     environment, or the library was not let in (the log and `vgpu events` say so)"
                } else {
                    "it has its tenant's socket, but not the library: LD_PRELOAD is missing, names no file there, or \
                     it is a static program; `vgpu check --pid` shows which"
                };
                findings.push(finding(FindingKind::Unregistered, Some(tenant.clone()), device, words.to_owned()));
            }
            None => {
                let words = if has_library {
                    "it has the library, but no daemon: its limits are those of its own environment; give it a \
                     socket, or \
                     name its program in proof.allow"
                } else {
                    "it uses a device without the library: no limit holds it; start it under `vgpu run` or with \
                     LD_PRELOAD, \
                     or name its program in proof.allow"
                };
                let words = words.to_owned() + &missing_words(seen);
                findings.push(finding(FindingKind::Uncontrolled, None, device, words));
            }
        }
    }
    findings
}

/// The limit that the variables of a process ask for, with its pod; empty: they ask for none.
fn missing_words(seen: &SeenProcess) -> String {
    let Some(missing) = &seen.missing_limit else { return String::new() };
    let pod = parse_cgroup(&format!("0::{}", seen.group)).pod.map_or(String::new(), |pod| format!(" of pod {pod}"));
    format!("; the variables of its container{pod} ask for {missing}, which nothing keeps")
}

/// Memory of a tenant on a device, over all its members there.
struct TenantMemory {
    /// Bytes, as the driver reports them.
    used: u64,
    /// Number of the tenant's members on the device.
    members: u64,
    /// The member that uses most, and its bytes.
    most: (u32, u64),
}

/// Memory of tenants' members, as the driver reports it.
fn sum_by_tenant<'k>(
    seen: &BTreeMap<ProcessId, SeenProcess>,
    driver: &[ProcessOnDevice],
    known: &'k RegisteredMembers,
) -> HashMap<(&'k str, String), TenantMemory> {
    let mut sums: HashMap<(&str, String), TenantMemory> = HashMap::new();
    for (process, seen) in seen {
        let Some(member) = known.member_of_process(process, seen.image) else { continue };
        for on in driver.iter().filter(|on| on.pid == process.pid) {
            let Some(used) = on.used else { continue };
            let key = (member.tenant.as_str(), uuid_key(&on.device));
            let sum = sums.entry(key).or_insert(TenantMemory { used: 0, members: 0, most: (on.pid, 0) });
            sum.used = sum.used.saturating_add(used);
            sum.members += 1;
            if used > sum.most.1 {
                sum.most = (on.pid, used);
            }
        }
    }
    sums
}

/// Most overhead of a process, in bytes, by which its tenant may exceed its limit. Contexts and code that the driver
/// has allocated are charged even beyond the limit. The tenant can write the ledger with that figure, so it is not
/// trusted further. On the largest devices a context takes about half of this, and the code of a large framework the
/// other half.
const MAX_OVERHEAD_BYTES: u64 = 1 << 30;

/// Says in words how a tenant's memory on a device exceeds its ledger or its limit, or that the ledger is unreadable;
/// `None`: no fault.
fn memory_fault(
    sum: &TenantMemory,
    said: Option<&LedgerReading>,
    broken: Option<&str>,
    bound: u64,
    slack: u64,
) -> Option<String> {
    let slack = slack.saturating_mul(sum.members);
    let used = Bytes(sum.used);
    if let Some(why) = broken {
        return (sum.used > 0).then(|| {
            format!(
                "its tenant uses {used} according to the driver, and its ledger cannot be read any more: {why}; a \
                 process of the \
                 tenant wrote over it or removed it; start all of them again"
            )
        });
    }
    if let Some(said) = said.filter(|said| sum.used > said.used.saturating_add(slack)) {
        return Some(format!(
            "its tenant uses {used} according to the driver, this process most of it, and {} according to its \
             ledger: something \
             allocates past the library; `vgpu doctor` in the container shows bypasses, strict = true refuses them",
            Bytes(said.used)
        ));
    }
    let overhead = said.map_or(u64::MAX, |said| said.overhead).min(MAX_OVERHEAD_BYTES.saturating_mul(sum.members));
    let most = bound.saturating_add(overhead).saturating_add(slack);
    if sum.used > most {
        return Some(format!(
            "its tenant uses {used} according to the driver, this process most of it, and its limit is {}: something \
             allocates \
             past the library, or wrote over its tenant's ledger",
            Bytes(bound)
        ));
    }
    let said = said.filter(|said| said.used > most)?;
    Some(format!(
        "its tenant's ledger says that {} are used, and its limit is {}: the library grants no such sum, so a process of the \
         tenant wrote over the ledger",
        Bytes(said.used),
        Bytes(bound)
    ))
}

/// Faults of tenants' memory, by tenant and device: the member that uses most, and words. Each member adds to the
/// slack.
fn memory_faults<'k>(
    seen: &BTreeMap<ProcessId, SeenProcess>,
    driver: &[ProcessOnDevice],
    known: &'k RegisteredMembers,
    bounds: &MemoryBounds,
    slack: u64,
) -> HashMap<(&'k str, String), (u32, String)> {
    let of = |(key, sum): ((&'k str, String), TenantMemory)| {
        let whole = (key.0.to_owned(), key.1.clone());
        let bound = known.limits.get(key.0).map_or(u64::MAX, |limits| bounds.bound_of(&whole, limits));
        let broken = known.broken.get(&whole).copied();
        memory_fault(&sum, known.ledgers.get(&whole), broken, bound, slack).map(|words| (key, (sum.most.0, words)))
    };
    sum_by_tenant(seen, driver, known).into_iter().filter_map(of).collect()
}

/// Tenants and devices whose data look wrong but are older than `listed`, when the driver listed its processes. Since
/// then the tenant may have allocated memory, or got a higher limit.
#[must_use]
pub fn memory_suspects(
    seen: &BTreeMap<ProcessId, SeenProcess>,
    driver: &[ProcessOnDevice],
    known: &RegisteredMembers,
    bounds: &MemoryBounds,
    slack: u64,
    listed: Instant,
) -> Vec<TenantDeviceKey> {
    let keys = memory_faults(seen, driver, known, bounds, slack).into_keys();
    let is_old = |key: &TenantDeviceKey| {
        let ledger = known.ledgers.get(key).filter(|_| !known.broken.contains_key(key));
        known.all.is_none_or(|at| at < listed) || ledger.is_some_and(|said| said.read < listed)
    };
    keys.map(|(tenant, device)| (tenant.to_owned(), device)).filter(is_old).collect()
}

/// Notes the memory that tenants hold, as the driver (at `listed`) and the ledgers report it. A tenant that freed
/// memory under a lowered limit may not allocate it again.
pub fn note_held(
    seen: &BTreeMap<ProcessId, SeenProcess>,
    driver: &[ProcessOnDevice],
    known: &RegisteredMembers,
    bounds: &mut MemoryBounds,
    listed: Instant,
) {
    for ((tenant, device), sum) in sum_by_tenant(seen, driver, known) {
        let Some(limits) = known.limits.get(tenant) else { continue };
        let key = (tenant.to_owned(), device);
        let said = known.ledgers.get(&key);
        let held = said.map_or(sum.used, |said| said.used.max(sum.used));
        bounds.note_held(key, limits, held, said.map_or(listed, |said| said.read.min(listed)));
    }
    bounds.retain_tenants(|tenant| known.limits.contains_key(tenant));
}

/// Last part of a control group's path, which container engines derive from the container.
pub(super) fn container_name(group: &str) -> Option<String> {
    group.rsplit('/').find(|part| !part.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32) -> ProcessId {
        ProcessId { pid, began: 5 }
    }

    fn image(pid: u32) -> Image {
        Image { process: process(pid), program: (1, 2), code: 3, stack: 4 }
    }

    fn seen(group: &str) -> SeenProcess {
        SeenProcess { name: "python3".into(), group: group.into(), library: Some(false), ..SeenProcess::default() }
    }

    fn member(pid: u32) -> (u32, SeenProcess) {
        (pid, SeenProcess { library: Some(true), image: Some(image(pid)), ..seen("/docker/x") })
    }

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;

    fn known() -> RegisteredMembers {
        let mut known = RegisteredMembers { all: Some(Instant::now()), ..RegisteredMembers::default() };
        known.members.extend([10, 20].map(|pid| {
            (
                pid,
                vec![RegisteredMember {
                    tenant: "a".into(),
                    image: Some(image(pid)),
                    connection: Some(u64::from(pid)),
                }],
            )
        }));
        let said = LedgerReading { used: GIB, overhead: 0, claimed: 0, read: Instant::now() };
        known.ledgers.insert(("a".into(), "1".into()), said);
        known.limits.insert("a".into(), TenantLimits { now: vec![("*".into(), 2 * GIB)], ..TenantLimits::default() });
        known
    }

    fn on(pid: u32, used: u64) -> ProcessOnDevice {
        ProcessOnDevice { pid, device: "GPU-1".into(), used: Some(used) }
    }

    fn judged(all: Vec<(u32, SeenProcess)>, driver: &[ProcessOnDevice]) -> Vec<(FindingKind, u32, Option<String>)> {
        judged_by(&known(), all, driver)
    }

    fn judged_by(
        known: &RegisteredMembers,
        all: Vec<(u32, SeenProcess)>,
        driver: &[ProcessOnDevice],
    ) -> Vec<(FindingKind, u32, Option<String>)> {
        let seen = all.into_iter().map(|(pid, seen)| (process(pid), seen)).collect();
        let allowed = ProofTolerance { programs: vec!["/usr/bin/nvidia-persistenced".into()], slack: 64 * MIB };
        let found = judge_processes(&seen, driver, known, &MemoryBounds::default(), &allowed);
        found.into_iter().map(|finding| (finding.what, finding.process.pid, finding.tenant)).collect()
    }

    #[test]
    fn members_and_their_children_with_the_library_are_as_they_should_be() {
        let child = SeenProcess { library: Some(true), ..seen("/docker/x") };
        assert_eq!(judged(vec![member(10), (11, child.clone())], &[on(10, GIB)]), []);
        let stranger = vec![member(10), (11, SeenProcess { group: "/docker/y".into(), ..child.clone() })];
        assert_eq!(judged(stranger, &[]), [(FindingKind::Uncontrolled, 11, None)]);
        let bare = vec![member(10), (11, seen("/docker/x"))];
        assert_eq!(
            judged(bare, &[]),
            [(FindingKind::Uncontrolled, 11, None)],
            "the same container, and not the library"
        );
    }

    #[test]
    fn who_has_a_tenants_socket_and_said_no_hello_is_that_tenants() {
        let contained = SeenProcess { contained: true, tenants: vec!["a".into()], ..seen("/docker/z") };
        assert_eq!(judged(vec![(12, contained.clone())], &[]), [(FindingKind::Unregistered, 12, Some("a".into()))]);
        let other = SeenProcess { tenants: Vec::new(), ..contained };
        assert_eq!(judged(vec![(12, other)], &[]), [(FindingKind::Uncontrolled, 12, None)]);
    }

    #[test]
    fn a_container_without_the_limit_that_its_variables_ask_for_is_named_with_its_pod() {
        let (pod, id) = ("7ac1d5a2-9b42-4f4c-8d0a-52a1b7e3c111", "ab".repeat(32));
        let missing_limit = Some("CUDA_DEVICE_MEMORY_LIMIT=3000m".to_owned());
        let group = format!("/kubepods/besteffort/pod{pod}/{id}");
        let bare = SeenProcess { contained: true, missing_limit, ..seen(&group) };
        let of = |bare: SeenProcess| {
            let (seen, allowed) = (BTreeMap::from([(process(12), bare)]), ProofTolerance::default());
            judge_processes(&seen, &[], &known(), &MemoryBounds::default(), &allowed).remove(0)
        };
        let found = of(bare.clone());
        assert_eq!((found.what, found.container.as_deref()), (FindingKind::Uncontrolled, Some(&*id)));
        let words = format!(
            "; the variables of its container of pod {pod} ask for CUDA_DEVICE_MEMORY_LIMIT=3000m, which nothing keeps"
        );
        assert!(found.words.ends_with(&words), "{}", found.words);
        let docker = of(SeenProcess { group: format!("/docker/{id}"), ..bare.clone() });
        assert!(docker.words.contains("of its container ask for "), "{}", docker.words);
        let plain = of(SeenProcess { missing_limit: None, ..bare });
        assert!(!plain.words.contains("ask for"), "{}", plain.words);
    }

    #[test]
    fn a_member_that_uses_more_than_its_ledger_says_is_found_and_a_little_more_is_not() {
        let all = || vec![member(10)];
        assert_eq!(judged(all(), &[on(10, GIB + 64 * MIB)]), []);
        assert_eq!(judged(all(), &[on(10, GIB + 65 * MIB)]), [(FindingKind::Over, 10, Some("a".into()))]);
        assert_eq!(judged(all(), &[ProcessOnDevice { used: None, ..on(10, 0) }]), []);
        // NVML and CUDA name a MIG instance differently.
        let instance = ProcessOnDevice { device: "MIG-1".into(), ..on(10, 2 << 30) };
        assert_eq!(judged(all(), &[instance]), [(FindingKind::Over, 10, Some("a".into()))]);
        // Two members share the ledger, and each adds to the slack.
        let two = || vec![member(10), member(20)];
        assert_eq!(judged(two(), &[on(10, GIB / 2), on(20, GIB / 2 + 128 * MIB)]), []);
        let found = judged(two(), &[on(10, GIB / 2), on(20, GIB / 2 + 129 * MIB)]);
        assert_eq!(found, [(FindingKind::Over, 20, Some("a".into()))]);
    }

    #[test]
    fn a_member_without_the_library_is_found_and_one_that_cannot_be_looked_at_is_not() {
        let with = |library| (10, SeenProcess { library, ..member(10).1 });
        assert_eq!(judged(vec![with(Some(false))], &[]), [(FindingKind::Uncontrolled, 10, Some("a".into()))]);
        assert_eq!(judged(vec![with(None)], &[]), []);
    }

    #[test]
    fn who_runs_another_program_than_said_hello_is_no_member_and_its_connection_is_named() {
        let image = Some(Image { stack: 5, ..image(10) });
        let other = (10, SeenProcess { image, library: Some(true), ..seen("/docker/x") });
        assert_eq!(judged(vec![other.clone()], &[]), [(FindingKind::Uncontrolled, 10, None)]);
        let map = |(pid, seen): (u32, SeenProcess)| BTreeMap::from([(process(pid), seen)]);
        assert_eq!(changed_images(&map(other.clone()), &known()), [10]);
        assert!(changed_images(&map(member(10)), &known()).is_empty());
        let mut again = known();
        let hello = RegisteredMember { tenant: "a".into(), image, connection: Some(30) };
        again.members.entry(10).or_default().push(hello);
        assert_eq!(judged_by(&again, vec![other], &[]), [], "it said hello again");
        let reused = BTreeMap::from([(ProcessId { pid: 10, began: 6 }, seen("/docker/x"))]);
        assert_eq!(changed_images(&reused, &known()), [10], "another process with its number");
    }

    #[test]
    fn memory_is_judged_by_the_limit_too_whatever_the_ledger_says() {
        let key = || ("a".to_owned(), "1".to_owned());
        let with = |reading: Option<LedgerReading>| {
            let mut known = known();
            known.ledgers.remove(&key());
            known.ledgers.extend(reading.map(|reading| (key(), reading)));
            known
        };
        let said = |used, overhead| LedgerReading { used, overhead, claimed: 0, read: Instant::now() };
        let found = |reading, used| !judged_by(&with(reading), vec![member(10)], &[on(10, used)]).is_empty();
        assert!(!found(Some(said(2 * GIB, 0)), 2 * GIB + 64 * MIB));
        assert!(found(Some(said(40 * GIB, 0)), 3 * GIB), "more than the limit, by the driver's word");
        assert!(found(Some(said(129 * GIB, 0)), MIB), "a ledger that says more than the limit");
        assert!(found(Some(said(0, 0)), GIB), "zeros");
        // Contexts and code are charged beyond the limit, up to the most that a process may need.
        assert!(!found(Some(said(3 * GIB, GIB)), 3 * GIB));
        assert!(found(Some(said(4 * GIB, 2 * GIB)), 4 * GIB));
        // An unknown ledger is no fault, but the limit still applies.
        assert!(!found(None, 2 * GIB));
        assert!(found(None, 4 * GIB));
        for reading in [None, Some(said(GIB, 0))] {
            let mut known = with(reading);
            known.broken.insert(key(), "it has another size");
            let found = |used| !judged_by(&known, vec![member(10)], &[on(10, used)]).is_empty();
            assert!(found(MIB), "{reading:?}");
            assert!(!found(0), "nobody holds anything: {reading:?}");
        }
    }

    #[test]
    fn who_took_more_since_its_ledger_was_read_is_no_finding_before_that_is_read_again() {
        let (mut known, listed) = (known(), Instant::now() + std::time::Duration::from_secs(1));
        let seen = BTreeMap::from([member(10)].map(|(pid, seen)| (process(pid), seen)));
        let asked = |known: &RegisteredMembers, used, listed| {
            memory_suspects(&seen, &[on(10, used)], known, &MemoryBounds::default(), 0, listed)
        };
        let key = ("a".to_owned(), "1".to_owned());
        assert_eq!(asked(&known, 2 * GIB, listed), std::slice::from_ref(&key));
        assert_eq!(asked(&known, GIB, listed), [], "nothing is to be asked");
        let read = known.ledgers[&key].read;
        known.all = Some(read);
        assert_eq!(asked(&known, 2 * GIB, read), [], "read since");
        known.all = None;
        assert_eq!(asked(&known, 2 * GIB, read), [key], "its limit may be another one by now");
    }

    #[test]
    fn what_is_allowed_is_allowed_outside_of_containers_only() {
        let host = SeenProcess { program: Some("/usr/bin/nvidia-persistenced".into()), ..seen("/system.slice/x") };
        assert_eq!(judged(vec![(13, host.clone())], &[]), []);
        let inside = SeenProcess { contained: true, ..host };
        assert_eq!(judged(vec![(13, inside)], &[]), [(FindingKind::Uncontrolled, 13, None)]);
    }
}
