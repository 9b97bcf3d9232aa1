//! The known devices by UUID, and which of them are shared by leases.
//!
//! Devices that the driver named exist from the start. Another one is added when a member joins it by a UUID that its
//! tenant may use (`*`). A tenant that invents UUIDs gets few devices, which affect no other tenant.

use std::collections::{BTreeMap, HashMap};

use vgpu_core::limits::Mode;
use vgpu_core::limits::tenant::hash64;
use vgpu_core::time::arbiter::{Arbiter, DeviceId, Tenant};
use vgpu_core::units::uuid::key;

use super::House;
use crate::config::{Arbitrate, On};

/// Most devices added for one tenant; no machine has more.
const MOST_MADE: usize = 16;

/// Most devices in total. Each event costs a check of all of them, so the number is limited.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Devices {
    all: Vec<Device>,
    by_uuid: HashMap<String, DeviceId>,
    /// Positions of removed devices.
    free: Vec<DeviceId>,
    /// True if [`Self::share_out`] must decide again.
    stale: bool,
}

#[derive(Debug)]
struct Device {
    id: DeviceId,
    uuid: String,
    /// The tenant for which it was added; `None`: the driver named it.
    by: Option<Tenant>,
    arbitrated: bool,
}

impl Devices {
    pub fn new(known: &[String], arbiter: &mut Arbiter, now: u64) -> Self {
        let mut devices = Self { stale: true, ..Self::default() };
        for uuid in known {
            devices.add(uuid, None, arbiter, now);
        }
        devices
    }

    /// Adds devices that the driver named later. A device that a tenant named before is then the driver's too.
    pub fn know(&mut self, known: &[String], arbiter: &mut Arbiter, now: u64) {
        for uuid in known {
            let id = self.add(uuid, None, arbiter, now);
            if let Some(device) = self.all.get_mut(usize::from(id.0)) {
                device.by = None;
            }
        }
    }

    fn add(&mut self, uuid: &str, by: Option<Tenant>, arbiter: &mut Arbiter, now: u64) -> DeviceId {
        if let Some(device) = self.by_uuid.get(&key(uuid)) {
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
                self.all.push(Device { id, uuid: uuid.to_owned(), by, arbitrated: true });
                id
            }
        };
        self.by_uuid.insert(key(uuid), id);
        self.stale = true;
        id
    }

    /// The device with this UUID, added if it is not known.
    pub fn of(&mut self, uuid: &str, by: Tenant, arbiter: &mut Arbiter, now: u64) -> Result<DeviceId, String> {
        if let Some(device) = self.by_uuid.get(&key(uuid)) {
            return Ok(*device);
        }
        // The name is shown to administrators and written to the log.
        if uuid.is_empty() || !uuid.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("{uuid:?} is not the name of a device; accepted: its UUID, as the driver writes it"));
        }
        if self.free.is_empty() && self.all.len() >= MOST {
            return Err(format!("device {uuid} is not known to the daemon, and {MOST} are; name it in a [[device]]"));
        }
        let made = self.all.iter().filter(|device| device.by == Some(by)).count();
        if made < MOST_MADE {
            return Ok(self.add(uuid, Some(by), arbiter, now));
        }
        Err(format!(
            "device {uuid} is not known to the daemon, and this tenant has named {MOST_MADE} such devices already; name it \
             in a [[device]]"
        ))
    }

    /// Removes the devices added for a tenant, unless other tenants used them.
    pub fn forget(&mut self, by: Tenant, arbiter: &Arbiter) {
        for device in self.all.iter_mut().filter(|device| device.by == Some(by)) {
            device.by = None;
            if arbiter.is_unused(device.id) {
                self.by_uuid.remove(&key(&device.uuid));
                device.uuid.clear();
                self.free.push(device.id);
            }
        }
    }

    pub fn id(&self, uuid: &str) -> Option<DeviceId> {
        self.by_uuid.get(&key(uuid)).copied()
    }

    pub fn name_of(&self, uuid: &str) -> Option<&str> {
        self.by_uuid.get(&key(uuid)).map(|device| self.uuid(*device))
    }

    /// The UUIDs of devices that the driver named, without those that only a tenant named.
    pub fn of_driver(&self) -> impl Iterator<Item = &str> {
        self.all
            .iter()
            .filter(|device| device.by.is_none() && !device.uuid.is_empty())
            .map(|device| device.uuid.as_str())
    }

    pub fn uuid(&self, device: DeviceId) -> &str {
        self.all.get(usize::from(device.0)).map_or("", |device| &device.uuid)
    }

    pub fn hash(&self, device: DeviceId) -> u64 {
        hash64(self.uuid(device).as_bytes())
    }

    pub fn is_arbitrated(&self, device: DeviceId) -> bool {
        self.all.get(usize::from(device.0)).is_some_and(|device| device.arbitrated)
    }

    pub fn all(&self) -> impl Iterator<Item = DeviceId> + use<> {
        let count = u16::try_from(self.all.len()).unwrap_or(u16::MAX);
        (0..count).map(DeviceId)
    }

    /// Notes that tenants, terms or devices changed, so that [`Self::share_out`] must decide again.
    pub fn stale(&mut self) {
        self.stale = true;
    }

    /// Decides for each device whether it is shared by leases. By default it is if a tenant that may use it has terms
    /// about its time; [`Arbitrate`] names the other cases.
    pub fn share_out<B, R>(
        &mut self,
        houses: &BTreeMap<Tenant, House<B, R>>,
        arbitrate: Arbitrate,
        arbiter: &mut Arbiter,
    ) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        for device in &mut self.all {
            // Terms of a tenant that is only observed are not enforced, so they do not count.
            let kept = houses.values().map(|house| &house.tenant).filter(|tenant| tenant.mode == Mode::Enforce);
            let mut there = kept.filter_map(|tenant| tenant.on(&device.uuid));
            device.arbitrated = match arbitrate {
                Arbitrate::Yes => true,
                Arbitrate::Auto => there.any(On::asks_for_time),
                Arbitrate::No => there.any(|on| on.terms.limit().is_some()),
            };
            arbiter.share_out(device.id, !device.arbitrated);
        }
    }
}
