//! A tenant at work: its door, and how many are in.
//!
//! A tenant that is taken out of the configuration loses its door at once, so that nobody new comes in; its room stays
//! until the last member has left, so that nobody is disturbed.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Instant;

use rustix::process::geteuid;
use tracing::info;
use vgpu_core::bytes::Bytes;
use vgpu_core::share::Share;

use super::config::Tenant;
use super::connection::Peer;
use super::door::Door;
use super::kept_ledger;
use super::log::Quota;
use super::pages::Furniture;
use super::roster::limits_of;
use crate::proof::limits::{ByDevice, raise};
use vgpu_control as control;

/// A tenant at work.
pub(super) struct Room {
    pub tenant: Tenant,
    /// None: the tenant was removed, or its place is unusable.
    pub door: Option<Door>,
    /// Why its place is unusable, if it is.
    pub unusable: Option<String>,
    /// Connections that are open.
    pub open: usize,
    /// Those of them that speak protocol 2.
    pub paged: usize,
    /// Those of them that are over, but for descriptors that they have not taken.
    pub untaken: usize,
    /// What they share with the daemon.
    pub furniture: Option<Furniture>,
    /// Connections that were turned away.
    pub refused: u64,
    /// Memory limits that were in force since it had no members.
    pub limits_before: ByDevice,
    /// When its memory limits changed last.
    pub limits_changed: Option<Instant>,
    pub log: Quota,
    /// How often it asked what was found of it.
    pub asked: Quota,
}

impl Room {
    pub fn new(tenant: Tenant, door: Door) -> Self {
        Self { door: Some(door), ..Self::without(tenant) }
    }

    fn without(tenant: Tenant) -> Self {
        Self {
            tenant,
            door: None,
            unusable: None,
            open: 0,
            paged: 0,
            untaken: 0,
            furniture: None,
            refused: 0,
            limits_before: ByDevice::new(),
            limits_changed: None,
            log: Quota::default(),
            asked: Quota::default(),
        }
    }

    /// A tenant whose place is unusable.
    pub fn without_door(tenant: Tenant, why: String) -> Self {
        Self { unusable: Some(why), ..Self::without(tenant) }
    }

    /// Gives the tenant other terms. What it holds under its former limits it may hold until it frees it.
    pub fn take_terms(&mut self, fresh: Tenant) {
        let before = limits_of(&self.tenant);
        if before != limits_of(&fresh) {
            raise(&mut self.limits_before, before);
            self.limits_changed = Some(Instant::now());
        }
        self.tenant = fresh;
    }

    /// May this user be one of its members? A list that leaves root out keeps root out.
    pub fn admits(&self, uid: u32) -> bool {
        self.tenant.uids.as_ref().is_none_or(|uids| uids.iter().any(|range| range.contains(&uid)))
    }

    /// Connections that are not over.
    pub fn members(&self) -> usize {
        self.open - self.untaken
    }

    /// Those of them that do not speak protocol 2.
    pub fn older(&self) -> usize {
        self.members() - self.paged
    }

    /// What its members of protocol 1 are told now.
    pub fn limits(&self) -> (Option<Bytes>, Option<Share>) {
        self.tenant.told()
    }

    /// Closes the door for good: the socket is removed.
    pub fn close(&mut self) {
        (self.door, self.unusable) = (None, None);
    }

    /// Was the tenant taken out of the configuration?
    pub fn is_removed(&self) -> bool {
        self.door.is_none() && self.unusable.is_none()
    }

    /// Is it closed, and the last one gone?
    pub fn is_over(&self) -> bool {
        self.is_removed() && self.open == 0
    }

    /// The tenant without its members.
    pub fn status(&self) -> control::TenantStatus {
        let (memory, sm) = (self.tenant.memory(), self.tenant.sm());
        control::TenantStatus {
            name: self.tenant.name.clone(),
            bearer: self.tenant.bearer.clone(),
            socket: self.tenant.socket.clone(),
            memory_limit: memory.map(u64::from),
            sm_limit: sm.map(|share| f64::from(share.permille()) / 10.0),
            refused: self.refused,
            removed: self.is_removed(),
            unusable: self.unusable.clone(),
            paused: false,
            mode: self.tenant.mode.to_string(),
            strict: self.tenant.strict,
            devices: Vec::new(),
            members: Vec::new(),
        }
    }
}

/// Says that a tenant is served, and by which limits.
pub(super) fn announce(tenant: &Tenant) {
    let memory = tenant.memory().map_or("unlimited".to_owned(), |memory| memory.to_string());
    let sm = tenant.sm().map_or("unlimited".to_owned(), |sm| sm.to_string());
    info!(kind = "tenant.added", tenant = %tenant.name, ?memory, ?sm, socket = %tenant.socket.display(), "tenant");
}

/// Removes the directory of a socket that is gone, with the ledgers that the daemon kept, if nothing else is in it.
pub(super) fn remove_dir(socket: &Path) {
    kept_ledger::remove_all(socket);
    if let Some(dir) = socket.parent() {
        // Somebody else's file in it keeps it.
        let _ = std::fs::remove_dir(dir);
    }
}

/// May every user pass through this directory? A container may see it at another place, so its parents do not count.
pub(super) fn is_open_to_all(dir: &Path) -> bool {
    std::fs::metadata(dir).is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0)
}

/// The socket's mode says the same; this holds where its directory is shared and the mode was changed.
pub(super) fn may_administrate(peer: Peer) -> bool {
    peer.uid == 0 || peer.uid == geteuid().as_raw()
}
