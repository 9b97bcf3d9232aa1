//! State of one tenant: its listener and its connections.
//!
//! A tenant removed from the configuration loses its listener at once, so that no new member joins. Its `TenantRoom`
//! stays until the last member has left, so that no member is disturbed.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Instant;

use rustix::process::geteuid;
use tracing::info;

use super::config::TenantConfig;
use super::connection::PeerCredentials;
use super::door::ListeningSocket;
use super::kept_ledger;
use super::log::LineQuota;
use super::pages::MappedPages;
use super::roster::limits_of;
use crate::proof::limits::{LimitsByDevice, raise_limits};
use vgpu_config::bearer::{CostBearer, POD_LABEL};
use vgpu_control as control;

/// A tenant's state in the reactor.
pub(super) struct TenantRoom {
    /// The tenant with the terms in force.
    pub tenant: TenantConfig,
    /// The tenant as the file or a command describes it.
    pub base: TenantConfig,
    /// `None`: the tenant was removed, or its socket path is unusable.
    pub door: Option<ListeningSocket>,
    /// Why the socket path is unusable; `None`: it is usable.
    pub unusable: Option<String>,
    /// Number of open connections of the tenant.
    pub open: usize,
    /// Number of members: open connections that said hello.
    pub members: usize,
    /// UID of the Kubernetes pod of the process that joined the tenant when nobody else was in it. It stays after the
    /// last process has left, for the usage that is recorded later.
    pub pod: Option<String>,
    /// Number of hellos since the daemon started.
    pub joins: u64,
    /// Connections that ended but are kept, because descriptors sent over them are not received yet.
    pub untaken: usize,
    /// The tenant's bell, the eventfd by which its members wake the daemon; `None`: no member.
    pub furniture: Option<MappedPages>,
    /// Number of connections refused since the daemon started.
    pub refused: u64,
    /// The highest memory limits that were in force since the tenant last had no members.
    pub limits_before: LimitsByDevice,
    /// Time of the last change of the tenant's memory limits; `None`: never.
    pub limits_changed: Option<Instant>,
    pub log: LineQuota,
    /// Limits how often the tenant may ask for its findings.
    pub asked: LineQuota,
}

impl TenantRoom {
    pub fn new(tenant: TenantConfig, door: ListeningSocket) -> Self {
        Self { door: Some(door), ..Self::without_socket(tenant) }
    }

    /// A tenant without a listener: it was removed.
    pub fn without_socket(tenant: TenantConfig) -> Self {
        Self {
            base: tenant.clone(),
            tenant,
            door: None,
            unusable: None,
            open: 0,
            members: 0,
            pod: None,
            joins: 0,
            untaken: 0,
            furniture: None,
            refused: 0,
            limits_before: LimitsByDevice::new(),
            limits_changed: None,
            log: LineQuota::default(),
            asked: LineQuota::default(),
        }
    }

    /// A tenant whose socket path is unusable.
    pub fn without_door(tenant: TenantConfig, why: String) -> Self {
        Self { unusable: Some(why), ..Self::without_socket(tenant) }
    }

    /// Sets the tenant's new limits and share of time. Memory held under earlier limits may be kept until it is freed.
    pub fn take_terms(&mut self, fresh: TenantConfig) {
        let before = limits_of(&self.tenant);
        if before != limits_of(&fresh) {
            raise_limits(&mut self.limits_before, before);
            self.limits_changed = Some(Instant::now());
        }
        self.tenant = fresh;
    }

    /// True if this user may be a member. A list without root excludes root.
    pub fn admits_peer(&self, uid: u32) -> bool {
        self.tenant.uids.as_ref().is_none_or(|uids| uids.iter().any(|range| range.contains(&uid)))
    }

    /// Notes the pod of a process that said hello and is counted. Only the first process of a tenant decides, so that
    /// processes of several pods in one tenant do not change the tenant's labels again and again.
    pub fn note_pod(&mut self, pod: Option<&str>) {
        if self.members == 1 {
            self.pod = pod.map(str::to_owned);
        }
    }

    /// Group and labels that the tenant's use is recorded with: those given, and the UID of its pod.
    pub fn cost_bearer(&self) -> CostBearer {
        let mut bearer = self.tenant.bearer.clone();
        if let Some(pod) = &self.pod {
            bearer.labels.entry(POD_LABEL.to_owned()).or_insert_with(|| pod.clone());
        }
        bearer
    }

    /// Closes the listener for good and removes the socket.
    pub fn close(&mut self) {
        (self.door, self.unusable) = (None, None);
    }

    /// True if the tenant was removed from the configuration.
    pub fn is_removed(&self) -> bool {
        self.door.is_none() && self.unusable.is_none()
    }

    /// True if the tenant was removed and no connection is left.
    pub fn is_over(&self) -> bool {
        self.is_removed() && self.open == 0
    }

    /// The tenant's status without its members.
    pub fn tenant_status(&self) -> control::TenantStatus {
        let (memory, sm) = (self.tenant.lowest_memory(), self.tenant.lowest_ceiling());
        control::TenantStatus {
            name: self.tenant.name.clone(),
            bearer: self.cost_bearer(),
            labels_live: Vec::new(),
            socket: self.tenant.socket.clone(),
            memory_limit: memory.map(u64::from),
            sm_limit: sm.map(|share| f64::from(share.as_permille()) / 10.0),
            refused: self.refused,
            removed: self.is_removed(),
            added: None,
            unusable: self.unusable.clone(),
            idle: None,
            deadline: None,
            paused: false,
            suspended: false,
            gang: self.tenant.gang.clone(),
            mode: self.tenant.mode.to_string(),
            strict: self.tenant.strict,
            devices: Vec::new(),
            members: Vec::new(),
        }
    }
}

/// Logs that a tenant is served, and its limits. `who` is the administrator that added it; `None`: the configuration.
pub(super) fn announce_tenant(tenant: &TenantConfig, who: Option<PeerCredentials>) {
    let memory = tenant.lowest_memory().map_or("unlimited".to_owned(), |memory| memory.to_string());
    let sm = tenant.lowest_ceiling().map_or("unlimited".to_owned(), |sm| sm.to_string());
    let (by_uid, by_pid) = (who.map(|who| who.uid), who.and_then(|who| who.pid));
    info!(kind = "tenant.added", tenant = %tenant.name, ?memory, ?sm, by_uid, by_pid, socket = %tenant.socket.display(), "tenant added");
}

/// Removes the directory of a removed socket, and the ledgers that the daemon kept there, if nothing else is in it.
pub(super) fn remove_dir(socket: &Path) {
    kept_ledger::remove_all(socket);
    if let Some(dir) = socket.parent() {
        // A file of another program keeps the directory.
        let _ = std::fs::remove_dir(dir);
    }
}

/// True if every user can enter this directory. Its parents do not count, since a container may see it at another
/// path.
pub(super) fn is_open_to_all(dir: &Path) -> bool {
    std::fs::metadata(dir).is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0)
}

/// True if the peer may send administrative requests. The socket's mode says the same; this check also holds where
/// its directory is shared and the mode was changed.
pub(super) fn may_administrate(peer: PeerCredentials) -> bool {
    peer.uid == 0 || peer.uid == geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_recorded_for_the_pod_of_the_first_process_and_a_label_that_is_given_stays() {
        let tenant = TenantConfig::on_all_devices("a", "/run/a/vgpud.sock".into(), None, None);
        let mut room = TenantRoom::without_socket(tenant);
        assert!(room.cost_bearer().labels.is_empty());
        room.members = 1;
        room.note_pod(Some("first"));
        room.members = 2;
        room.note_pod(Some("second"));
        assert_eq!(room.cost_bearer().labels["pod-uid"], "first");
        // The last usage is recorded after the last process has left.
        room.members = 0;
        assert_eq!(room.tenant_status().bearer.labels["pod-uid"], "first");
        room.members = 1;
        room.note_pod(None);
        assert!(room.cost_bearer().labels.is_empty());
        room.note_pod(Some("third"));
        room.tenant.bearer.labels.insert(POD_LABEL.to_owned(), "given".to_owned());
        assert_eq!(room.cost_bearer().labels["pod-uid"], "given");
    }
}
