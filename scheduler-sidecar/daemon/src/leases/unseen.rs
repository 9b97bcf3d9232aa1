//! Exchanges data with the enforcement check: processes that work on a device without a lease or a report, and lost
//! devices.

use std::ops::Deref;

use vgpu_core::limits::Mode;
use vgpu_core::protocol::page::{BoardPage, ReportPage};
use vgpu_core::time::arbiter::audit::{AuditVerdict, HeldTime};

use super::LeaseBook;

impl<B: Deref<Target = BoardPage>, R: Deref<Target = ReportPage> + Clone> LeaseBook<B, R> {
    /// Applies every member's report. Then returns the time in which each process held each device that it joined: a
    /// value for each of its slots, and one for all slots that it left. `None`: its tenant is only observed. The caller
    /// adds up the values of a process and device.
    ///
    /// # Cost
    /// Reads every member's report.
    pub fn held_times(&mut self, now: u64) -> Vec<(u32, String, Option<HeldTime>)> {
        for number in self.houses.keys().copied().collect::<Vec<_>>() {
            self.read_report(number, now);
        }
        let slots = self.houses.values().flat_map(|house| &house.pages).flat_map(|pages| pages.slots.iter().flatten());
        let slots = slots.map(|slot| (slot.past.process, slot.device, slot.id, slot.allowed.mode));
        let had = |(process, device, id, mode)| {
            let had = (mode == Mode::Enforce).then(|| self.arbiter.held_time(id, now));
            (process, self.devices.uuid_of(device).to_owned(), had)
        };
        let mut all: Vec<_> = slots.map(had).collect();
        for (device, former) in self.houses.values().flat_map(|house| &house.former) {
            let uuid = self.devices.uuid_of(*device);
            all.extend(former.had().map(|(process, had)| (process, uuid.to_owned(), Some(had))));
        }
        all
    }

    /// The time in which members may have worked without leases, because the daemon was silent, in ns.
    pub const fn silent_ns(&self, now: u64) -> u64 {
        self.arbiter.silent_ns(now)
    }

    /// The daemon did not beat from `since` to `now`, so long that members may have gone on by themselves.
    pub fn was_silent(&mut self, since: u64, now: u64) {
        self.arbiter.was_silent(since, now);
    }

    /// Notes the processes that work on devices without a lease or a report. Replaces the list of the last call.
    pub fn work_unseen(&mut self, unseen: &[(u32, String, AuditVerdict)], now: u64) {
        for device in self.devices.all() {
            let uuid = self.devices.uuid_of(device);
            let here = unseen.iter().filter(|(_, name, _)| self.devices.name_of(name) == Some(uuid));
            let (mut strangers, mut accused, mut underreporting) = (0, Vec::new(), Vec::new());
            for (process, _, verdict) in here {
                let slots =
                    self.houses.values().flat_map(|house| &house.pages).flat_map(|pages| pages.slots.iter().flatten());
                let its = slots.filter(|slot| slot.device == device && slot.past.process == *process);
                let its: Vec<_> = its.map(|slot| slot.id).collect();
                if verdict.is_unleased {
                    strangers += u64::from(its.is_empty());
                    accused.extend(&its);
                }
                // The process pays once for the time that it hid.
                let unreported = verdict.unreported.map(|ns| std::iter::once(ns).chain(std::iter::repeat(0)));
                underreporting.extend(its.into_iter().zip(unreported.into_iter().flatten()));
            }
            self.arbiter.works_unseen(device, strangers, &accused, now);
            self.arbiter.set_underreporting(device, &underreporting, now);
        }
        self.tick(now);
    }

    /// Sets which devices the driver has lost, by UUID; replaces the list of the last call. The leases on them end now,
    /// and nobody waits for a lease there until the device is back. Returns true if the list is another one.
    pub fn lose_devices<'u>(&mut self, lost: impl Iterator<Item = &'u str>, now: u64) -> bool {
        let is_other = self.devices.set_lost(lost);
        self.tick(now);
        is_other
    }
}
