//! Reports the tenant that a process here would belong to, and the place of its ledger, by the library's own rules.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::StatVfsMountFlags;
use vgpu_core::limits::tenant::{ProcessFacts, TenantKey};
use vgpu_core::memory::ledger::MemberView;
use vgpu_core::units::bytes::Bytes;

use super::DoctorReport;
use crate::ledgers;

/// Inode of the pid namespace that the kernel creates at boot.
const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;

/// `named` is the tenant by the daemon's answer, which overrides the environment's.
pub fn examine_state(report: &mut DoctorReport, named: Option<&str>) {
    let inode = |path: &str| fs::metadata(path).map_or(0, |file| file.ino());
    let pid_namespace = inode("/proc/self/ns/pid");
    let name = std::env::var_os("VGPU_TENANT");
    let facts = ProcessFacts {
        name: named.map(str::as_bytes).or(name.as_deref().map(OsStrExt::as_bytes)),
        mount_namespace: inode("/proc/self/ns/mnt"),
        pid_namespace,
        host: pid_namespace == INITIAL_PID_NAMESPACE,
        uid: rustix::process::geteuid().as_raw(),
    };
    let by = match &name {
        _ if named.is_some() => "the daemon",
        Some(_) => "VGPU_TENANT",
        None if facts.host => "this user on the host; `vgpu run` gives each program its own",
        None => "this container's namespaces",
    };
    match TenantKey::from_facts(&facts) {
        Ok(key) => {
            report.add_fine("tenant", format!("{key} (by {by})"));
            report_bypasses(report, &key);
            report_use(report, &key);
        }
        Err(why) => report.add_finding("tenant", why.to_string()),
    }
    report_ledger_directory(report);
}

/// Reports the bypasses of the hooks that the tenant's processes found during the ledger's lifetime.
fn report_bypasses(report: &mut DoctorReport, key: &TenantKey) {
    let told = ledgers::readable().iter().find_map(|place| ledgers::open_doors(place, key));
    match told {
        None => report.add_fine("bypasses", "no process of this tenant has a ledger yet, which would count bypasses"),
        Some((0, _)) => report.add_fine("bypasses", "no process of this tenant found a bypass"),
        Some((count, first)) => report.add_finding(
            "bypasses",
            format!(
                "processes of this tenant found bypasses {count} times; the first: {first}; VGPU_STRICT=1 \
                 refuses what can be refused"
            ),
        ),
    }
}

/// Reports, from the ledgers, how much memory living processes of the tenant hold and how long they kept each device
/// busy.
fn report_use(report: &mut DoctorReport, key: &TenantKey) {
    let all = ledgers::readable().iter().map(|place| ledgers::use_of(place, key)).find(|all| !all.is_empty());
    for (device, copied) in all.unwrap_or_default() {
        let living = |pid: u32| Path::new(&format!("/proc/{pid}")).exists();
        let members: Vec<_> = copied.members.iter().filter(|member| living(member.pid)).collect();
        if members.is_empty() {
            continue;
        }
        let sum = |of: fn(&MemberView) -> u64| members.iter().map(|member| of(member)).fold(0, u64::saturating_add);
        let held = sum(|member| member.used).saturating_add(copied.shared);
        let (overhead, busy) = (sum(|member| member.overhead), Duration::from_nanos(sum(|member| member.busy_ns)));
        let (count, held, overhead) = (members.len(), Bytes(held), Bytes(overhead));
        report.add_fine(
            "used",
            format!(
                "{device}: {count} processes hold {held}, including {overhead} overhead; busy for {:.3} s",
                busy.as_secs_f64()
            ),
        );
    }
}

/// Reports the first writable place; an explicitly set place is the only candidate.
fn report_ledger_directory(report: &mut DoctorReport) {
    if let Some(place) = ledgers::kept_by_daemon() {
        let is_read_only =
            rustix::fs::statvfs(&place).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY));
        let without = match is_read_only {
            true => ", which is mounted read-only: a program that starts while vgpud does not answer is refused",
            false => "",
        };
        return report.add_fine("ledger", format!("kept by vgpud in {}{without}", place.display()));
    }
    let places = ledgers::ledger_directories();
    let asked = std::env::var_os("VGPU_STATE_DIR").is_some();
    let why_not = |place: &Path| ledgers::why_unusable(place).map(|why| format!("{} {why}", place.display()));
    match (places.iter().find(|place| why_not(place).is_none()), asked) {
        (Some(place), true) => report.add_fine("ledger", format!("kept in {} (VGPU_STATE_DIR)", place.display())),
        (Some(place), false) => report.add_fine("ledger", format!("kept in {}", place.display())),
        (None, _) => {
            let why: Vec<String> = places.iter().filter_map(|place| why_not(place)).collect();
            let cure = if asked {
                "VGPU_STATE_DIR must be a writable directory"
            } else {
                "mount a writable directory and name it in VGPU_STATE_DIR"
            };
            let why = why.join(", ");
            report.add_finding(
                "ledger",
                format!("{why}: limits cannot be kept, CUDA and NVML will refuse to initialise; {cure}"),
            );
        }
    }
}
