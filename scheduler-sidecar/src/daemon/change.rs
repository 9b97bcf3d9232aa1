//! What an administrator changes, holds or asks about while members run.
//!
//! The words of the administrative protocol are `admin`'s; this is what they come down to.

use vgpu_core::arbiter::Class;
use vgpu_core::bytes::Bytes;
use vgpu_core::share::Share;

use super::reactor::Reactor;

/// What is to be different; `None`: as it is. An inner `None`: no limit, no floor, the class's own quantum.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// Hard memory limit.
    pub memory: Option<Option<Bytes>>,
    /// sm limit.
    pub ceiling: Option<Option<Share>>,
    /// sm request.
    pub floor: Option<Option<Share>>,
    /// Its part of what floors leave; 1 to 10000.
    pub weight: Option<u32>,
    /// Who comes first.
    pub class: Option<Class>,
    /// Length of a lease in ns; 500 us to 50 ms.
    pub quantum: Option<Option<u64>>,
}

/// What a change did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Entries of the tenant's list of devices that are different now.
    pub devices: usize,
    /// Members of protocol 2: what changed is in force for them.
    pub members: usize,
    /// Members of protocol 1: they keep what they were told.
    pub behind: usize,
}

/// What a tenant used of a device since it was taken in, or since the daemon started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Used {
    /// The device's UUID.
    pub device: String,
    /// Members that have a slot there.
    pub members: usize,
    /// Device time charged, in ns.
    pub charged: u64,
    /// Time that its members stood at the gate, in ns, summed over members.
    pub wait: u64,
    /// Estimates of all launches, in ns of device time, by the members' own word.
    pub launches: u64,
}

/// Where a tenant stands on a device, for whoever asks why it does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// The device's UUID.
    pub device: String,
    /// Are there leases on this device at all?
    pub arbitrated: bool,
    /// In one word: `open`, `running`, `draining`, `waiting`, `capped`, `overdue`, `idle`, `paused`.
    pub state: &'static str,
    /// The same in a sentence, with names and numbers.
    pub words: String,
    /// Whose lease it is now: a tenant's name.
    pub holder: Option<String>,
    /// What is left of its account under its ceiling, in ns of device time; negative is debt.
    pub balance: Option<i64>,
    /// When the account allows the next lease, in ns from now.
    pub refill: Option<u64>,
}

impl Reactor {
    /// Changes a tenant's terms on a device (its UUID, its number, `*`), or on all of its devices; in force at once for
    /// members of protocol 2. Lasts until the file is read again or the daemon ends.
    ///
    /// # Errors
    /// In words: no such tenant or device, or it does not fit beside the other tenants. Nothing is changed then.
    pub fn change(&mut self, tenant: &str, device: Option<&str>, change: &Change) -> Result<Changed, String> {
        let _ = (tenant, device, change);
        Err("limits of a running tenant cannot be changed yet".into())
    }

    /// Grants a tenant nothing any more: what is in flight drains, its members wait at the gate. Twice is once.
    ///
    /// # Errors
    /// In words: no such tenant.
    pub fn pause(&mut self, tenant: &str) -> Result<(), String> {
        let _ = tenant;
        Err("a tenant cannot be paused yet".into())
    }

    /// Ends a pause; without one nothing happens.
    ///
    /// # Errors
    /// In words: no such tenant.
    pub fn resume(&mut self, tenant: &str) -> Result<(), String> {
        let _ = tenant;
        Err("a tenant cannot be paused yet".into())
    }

    /// Is this tenant paused? `None`: no such tenant.
    #[must_use]
    pub fn is_paused(&self, tenant: &str) -> Option<bool> {
        let _ = tenant;
        None
    }

    /// Where a tenant stands on each device on which it has members.
    ///
    /// # Errors
    /// In words: no such tenant.
    pub fn explain(&mut self, tenant: &str) -> Result<Vec<Explained>, String> {
        let _ = tenant;
        Err("not yet".into())
    }

    /// What a tenant used, device by device; empty for one that does not exist.
    #[must_use]
    pub fn used(&mut self, tenant: &str) -> Vec<Used> {
        let _ = tenant;
        Vec::new()
    }
}
