//! The known devices by UUID, which of them are lost, and which are shared by leases.
//!
//! Devices that the driver named exist from the start. Another one is added when a member joins it by a UUID that its
//! tenant may use (`*`). A tenant that invents UUIDs gets few devices, which affect no other tenant.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tracing::warn;

use vgpu_core::limits::Mode;
use vgpu_core::limits::tenant::hash64;
use vgpu_core::protocol::page::ContextSharing;
use vgpu_core::time::arbiter::{Arbiter, DeviceId, DeviceSharing, TenantId};
use vgpu_core::units::uuid::uuid_key;

use super::TenantState;

/// Most devices added for one tenant; no machine has more.
const MAX_DEVICES_BY_TENANT: usize = 16;

/// Most devices in total. Each event costs a check of all of them, so the number is limited.
const MAX_LEASED_DEVICES: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct LeasedDevices {
    all: Vec<LeasedDevice>,
    by_uuid: HashMap<String, DeviceId>,
    /// Positions of removed devices.
    free: Vec<DeviceId>,
    /// True if [`Self::share_out`] must decide again.
    stale: bool,
    /// Keys ([`uuid_key`]) of the devices that the driver has lost.
    lost: BTreeSet<String>,
}

#[derive(Debug)]
struct LeasedDevice {
    id: DeviceId,
    uuid: String,
    /// The tenant for which it was added; `None`: the driver named it.
    by: Option<TenantId>,
    sharing: DeviceSharing,
}

impl LeasedDevices {
    pub fn new(known: &[String], arbiter: &mut Arbiter, now: u64) -> Self {
        let mut devices = Self { stale: true, ..Self::default() };
        for uuid in known {
            devices.add(uuid, None, arbiter, now);
        }
        devices
    }

    /// Adds devices that the driver named later. A device that a tenant named before is then the driver's too.
    pub fn learn_devices(&mut self, known: &[String], arbiter: &mut Arbiter, now: u64) {
        for uuid in known {
            let id = self.add(uuid, None, arbiter, now);
            if let Some(device) = self.all.get_mut(usize::from(id.0)) {
                device.by = None;
            }
        }
    }

    fn add(&mut self, uuid: &str, by: Option<TenantId>, arbiter: &mut Arbiter, now: u64) -> DeviceId {
        if let Some(device) = self.by_uuid.get(&uuid_key(uuid)) {
            return *device;
        }
        let id = match self.free.pop() {
            Some(id) => {
                if let Some(device) = self.all.get_mut(usize::from(id.0)) {
                    (device.uuid, device.by) = (uuid.to_owned(), by);
                }
                id
            }
            None => {
                let id = arbiter.add_device(now);
                self.all.push(LeasedDevice { id, uuid: uuid.to_owned(), by, sharing: DeviceSharing::Leases });
                id
            }
        };
        self.by_uuid.insert(uuid_key(uuid), id);
        self.stale = true;
        id
    }

    /// The device with this UUID, added if it is not known.
    pub fn find_or_make(
        &mut self,
        uuid: &str,
        by: TenantId,
        arbiter: &mut Arbiter,
        now: u64,
    ) -> Result<DeviceId, String> {
        if let Some(device) = self.by_uuid.get(&uuid_key(uuid)) {
            return Ok(*device);
        }
        // The name is shown to administrators and written to the log.
        if uuid.is_empty() || !uuid.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("{uuid:?} is not the name of a device; accepted: its UUID, as the driver writes it"));
        }
        if self.free.is_empty() && self.all.len() >= MAX_LEASED_DEVICES {
            return Err(format!(
                "device {uuid} is not known to the daemon, which knows {MAX_LEASED_DEVICES} devices already, the \
                 maximum; name it in a [[device]]"
            ));
        }
        let made = self.all.iter().filter(|device| device.by == Some(by)).count();
        if made < MAX_DEVICES_BY_TENANT {
            return Ok(self.add(uuid, Some(by), arbiter, now));
        }
        Err(format!(
            "device {uuid} is not known to the daemon, and this tenant has named {MAX_DEVICES_BY_TENANT} such devices already; name it \
             in a [[device]]"
        ))
    }

    /// Removes the devices added for a tenant, unless other tenants used them.
    pub fn forget_tenant(&mut self, by: TenantId, arbiter: &Arbiter) {
        for device in self.all.iter_mut().filter(|device| device.by == Some(by)) {
            device.by = None;
            if arbiter.is_unused(device.id) {
                self.by_uuid.remove(&uuid_key(&device.uuid));
                device.uuid.clear();
                self.free.push(device.id);
            }
        }
    }

    pub fn id_of(&self, uuid: &str) -> Option<DeviceId> {
        self.by_uuid.get(&uuid_key(uuid)).copied()
    }

    pub fn name_of(&self, uuid: &str) -> Option<&str> {
        self.by_uuid.get(&uuid_key(uuid)).map(|device| self.uuid_of(*device))
    }

    /// The UUIDs of devices that the driver named, without those that only a tenant named.
    pub fn of_driver(&self) -> impl Iterator<Item = &str> {
        self.all
            .iter()
            .filter(|device| device.by.is_none() && !device.uuid.is_empty())
            .map(|device| device.uuid.as_str())
    }

    pub fn uuid_of(&self, device: DeviceId) -> &str {
        self.all.get(usize::from(device.0)).map_or("", |device| &device.uuid)
    }

    pub fn hash(&self, device: DeviceId) -> u64 {
        hash64(self.uuid_of(device).as_bytes())
    }

    /// True if the device is shared by leases.
    pub fn is_arbitrated(&self, device: DeviceId) -> bool {
        self.all.get(usize::from(device.0)).is_some_and(|device| device.sharing == DeviceSharing::Leases)
    }

    /// Sets which devices the driver has lost, by UUID. Returns true if they are others.
    pub fn set_lost<'u>(&mut self, lost: impl Iterator<Item = &'u str>) -> bool {
        let lost = lost.map(uuid_key).collect();
        let is_other = self.lost != lost;
        self.stale |= is_other;
        self.lost = lost;
        is_other
    }

    /// True if the driver has lost the device.
    pub fn is_lost(&self, device: DeviceId) -> bool {
        self.lost.contains(&uuid_key(self.uuid_of(device)))
    }

    pub fn all(&self) -> impl Iterator<Item = DeviceId> + use<> {
        let count = u16::try_from(self.all.len()).unwrap_or(u16::MAX);
        (0..count).map(DeviceId)
    }

    /// Notes that tenants, terms, members or devices changed, so that [`Self::share_out`] must decide again.
    pub fn mark_stale(&mut self) {
        self.stale = true;
    }

    /// Decides how each device is shared: by leases, or without `arbitrate` only if a tenant has a ceiling. Under MPS
    /// the ceilings alone are kept. A device counts as under MPS if all members that launch on it report so: work of a
    /// member that is not a client of MPS takes the device in time slices.
    ///
    /// A lost device is shared like one under MPS. Its leases end, nobody waits for work that cannot end, and each call
    /// gets the driver's error. Ceilings hold, because a reset device may work before the daemon knows it.
    pub fn share_out<B, R>(
        &mut self,
        houses: &BTreeMap<TenantId, TenantState<B, R>>,
        arbitrate: bool,
        arbiter: &mut Arbiter,
    ) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        for device in &mut self.all {
            // Terms of a tenant that is only observed are not enforced, so they do not count.
            let kept = houses.values().map(|house| &house.tenant).filter(|tenant| tenant.mode == Mode::Enforce);
            let mut there = kept.filter_map(|tenant| tenant.terms_on(&device.uuid));
            let members = houses.values().filter_map(|house| house.pages.as_ref()).flat_map(|pages| &pages.slots);
            let mut reported =
                members.flatten().filter(|slot| slot.device == device.id).filter_map(|slot| slot.contexts);
            let first = reported.next();
            let is_under_mps =
                first == Some(ContextSharing::Mps) && reported.all(|contexts| contexts == ContextSharing::Mps);
            let before = device.sharing;
            device.sharing = if !there.any(|on| arbitrate || on.terms.effective_ceiling().is_some()) {
                DeviceSharing::Unlimited
            } else if is_under_mps || self.lost.contains(&uuid_key(&device.uuid)) {
                DeviceSharing::Budgets
            } else {
                DeviceSharing::Leases
            };
            if before != device.sharing && device.sharing == DeviceSharing::Budgets && is_under_mps {
                warn!(
                    device = device.uuid,
                    "the device is under MPS: ceilings are kept; floors and weights have no effect"
                );
            }
            arbiter.share_out(device.id, device.sharing);
        }
    }
}
