//! The results of the checking thread, shared with the reactor.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use vgpu_accounting::record::energy::EnergyReading;
use vgpu_core::protocol::page::Uncharged;
use vgpu_core::time::arbiter::audit::AuditVerdict;

use crate::proof::uncharged::TenantDeviceKey;
use vgpu_control::finding::{Finding, ProcessId};

/// The processes that the driver listed on its devices.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ListedProcesses {
    /// Time before the driver was asked, in ns.
    pub asked: u64,
    /// The processes.
    pub processes: BTreeSet<ProcessId>,
}

/// Latest results of the checking thread.
#[derive(Debug, Default)]
pub(super) struct FoundSoFar {
    pub findings: Vec<Finding>,
    /// Why the check is incomplete; `None`: it is complete.
    pub blind: Option<String>,
    /// Devices that the driver says are lost, with the time since when, as RFC 3339.
    pub lost: BTreeMap<String, String>,
    /// Tenants whose ledgers must be read.
    pub suspects: Vec<String>,
    /// Memory that counts against limits in addition to the ledgers.
    pub uncharged: HashMap<TenantDeviceKey, Uncharged>,
    /// Connections whose process runs another program than the one that said hello; the reactor ends them.
    pub changed: Vec<u64>,
    /// The processes on the devices at the last look.
    pub listed: ListedProcesses,
    /// Processes that work on a device without a lease or a report, with the device.
    pub unseen: Vec<(u32, String, AuditVerdict)>,
    /// The last reading of each device's energy, by UUID.
    pub energy: BTreeMap<String, EnergyReading>,
    /// Time at which the last round of the check began.
    pub looked: Option<Instant>,
}

impl FoundSoFar {
    /// A tenant's findings, at most `most`, and the number of further ones. Copies nothing else.
    pub fn of_tenant(&self, tenant: &str, most: usize) -> (Vec<Finding>, usize) {
        let mut all = self.findings.iter().filter(|finding| finding.tenant.as_deref() == Some(tenant));
        (all.by_ref().take(most).cloned().collect(), all.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_control::finding::{FindingKind, ProcessId};

    fn finding(tenant: Option<&str>) -> Finding {
        Finding {
            what: FindingKind::Unregistered,
            process: ProcessId { pid: 7, began: 1 },
            pid_inside: Some(3),
            name: "x".into(),
            tenant: tenant.map(str::to_owned),
            device: None,
            contained: true,
            container: None,
            words: "words".into(),
        }
    }

    #[test]
    fn a_tenant_is_told_of_itself_alone_and_of_no_more_than_was_asked_for() {
        let mut found = FoundSoFar {
            findings: vec![finding(Some("a")), finding(Some("b")), finding(None)],
            ..FoundSoFar::default()
        };
        assert_eq!(found.of_tenant("a", 3), (vec![finding(Some("a"))], 0));
        assert_eq!(found.of_tenant("c", 3), (vec![], 0));
        found.findings.extend(vec![finding(Some("a")); 7]);
        assert_eq!(found.of_tenant("a", 3), (vec![finding(Some("a")); 3], 5));
    }
}
