//! Answers questions about a running tenant.
//!
//! Not here: the words of the administrative protocol (`admin`), and changes of terms (`policies`).

use super::{Reactor, arbiter_number};
use crate::leases::view::{Explained, Used};
use vgpu_accounting::clock;

impl Reactor {
    /// The room number of a tenant that is served.
    pub(super) fn room_of(&self, tenant: &str) -> Result<u64, String> {
        let open = self.rooms.iter().find(|(_, room)| !room.is_removed() && room.tenant.name == tenant);
        open.map(|(id, _)| *id).ok_or_else(|| format!("there is no tenant {tenant:?}"))
    }

    /// True if the tenant is paused; `None`: no such tenant.
    #[must_use]
    pub fn is_paused(&self, tenant: &str) -> Option<bool> {
        self.room_of(tenant).ok().map(|id| self.leases.is_paused(arbiter_number(id)))
    }

    /// True if all processes of the tenant are suspended.
    pub(super) fn is_suspended(&self, tenant: &str) -> bool {
        self.room_of(tenant).is_ok_and(|id| self.leases.is_suspended(arbiter_number(id)))
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
