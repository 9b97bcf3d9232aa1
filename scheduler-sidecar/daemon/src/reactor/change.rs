//! Carries out an administrator's changes, pauses and questions about a running tenant.
//!
//! Not here: the words of the administrative protocol (`admin`).

use super::{Reactor, arbiter_number};
use crate::config::TenantConfig;
use crate::connection::PeerCredentials;
use crate::leases::view::{Explained, Used};
use tracing::info;
use vgpu_accounting::clock;

impl Reactor {
    /// The room number of a tenant that is served.
    fn room_of(&self, tenant: &str) -> Result<u64, String> {
        let open = self.rooms.iter().find(|(_, room)| !room.is_removed() && room.tenant.name == tenant);
        open.map(|(id, _)| *id).ok_or_else(|| format!("there is no tenant {tenant:?}"))
    }

    /// Puts a tenant's new terms in force, after [`vgpu_config::live`] found that they fit. Members get them
    /// at once. The change lasts until the file is read again or the daemon ends.
    ///
    /// # Errors
    /// A message: no such tenant.
    pub fn change_tenant(&mut self, fresh: TenantConfig, what: &str, who: PeerCredentials) -> Result<(), String> {
        let id = self.room_of(&fresh.name)?;
        let now = clock::now();
        if let Some(room) = self.rooms.get_mut(&id) {
            room.take_terms(fresh.clone());
        }
        let tenant = fresh.name.clone();
        let slots = self.leases.put_tenant(arbiter_number(id), fresh, now);
        self.keep_terms(id);
        self.keep_limits(id);
        self.leases.tick(now);
        let (by_uid, by_pid) = (who.uid, who.pid);
        info!(kind = "tenant.changed", %tenant, by_uid, by_pid, what, slots, "tenant changed by an administrator");
        Ok(())
    }

    /// Grants a tenant no more leases: work in flight drains, and its members wait at the gate. Pausing twice is the
    /// same as once. The pause lasts until [`Self::resume_tenant`], even if the file is read again.
    ///
    /// # Errors
    /// A message: no such tenant.
    pub fn pause_tenant(&mut self, tenant: &str, who: PeerCredentials) -> Result<(), String> {
        let id = self.room_of(tenant)?;
        self.leases.set_pause(arbiter_number(id), true, clock::now());
        info!(kind = "tenant.paused", %tenant, by_uid = who.uid, by_pid = who.pid, "tenant paused");
        Ok(())
    }

    /// Ends a pause; without one it does nothing.
    ///
    /// # Errors
    /// A message: no such tenant.
    pub fn resume_tenant(&mut self, tenant: &str, who: PeerCredentials) -> Result<(), String> {
        let id = self.room_of(tenant)?;
        self.leases.set_pause(arbiter_number(id), false, clock::now());
        info!(kind = "tenant.resumed", %tenant, by_uid = who.uid, by_pid = who.pid, "tenant resumed");
        Ok(())
    }

    /// True if the tenant is paused; `None`: no such tenant.
    #[must_use]
    pub fn is_paused(&self, tenant: &str) -> Option<bool> {
        self.room_of(tenant).ok().map(|id| self.leases.is_paused(arbiter_number(id)))
    }

    /// The state of a tenant on each device on which it has members.
    ///
    /// # Errors
    /// A message: no such tenant.
    pub fn explain_tenant(&mut self, tenant: &str) -> Result<Vec<Explained>, String> {
        let id = self.room_of(tenant)?;
        Ok(self.leases.explain_standing(arbiter_number(id), clock::now()))
    }

    /// Usage of a tenant, one entry for each device; empty if the tenant does not exist.
    #[must_use]
    pub fn tenant_use(&mut self, tenant: &str) -> Vec<Used> {
        match self.room_of(tenant) {
            Ok(id) => self.leases.used_by_tenant(arbiter_number(id), clock::now()),
            Err(_) => Vec::new(),
        }
    }
}
