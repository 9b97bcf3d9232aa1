//! Members that join a device and leave it, and how far their claims about earlier work are trusted.

use std::ops::Deref;

use vgpu_core::protocol::page::{BoardPage, PAGE_SLOTS, ReportPage};
use vgpu_core::time::arbiter::{self, Gate};

use super::{ClaimedPast, LeaseBook, MemberOfSlot, MemberSlot, allowed_use, desk};

impl<B: Deref<Target = BoardPage>, R: Deref<Target = ReportPage> + Clone> LeaseBook<B, R> {
    /// Adds a member to a device and returns its slot. Joining twice is the same as once.
    ///
    /// # Errors
    /// A message for the member: the device is not one of the tenant's, or no slot is left.
    pub fn join(&mut self, number: arbiter::TenantId, member: u64, uuid: &str, now: u64) -> Result<usize, String> {
        self.join_again(number, member, uuid, ClaimedPast::default(), now)
    }

    /// As [`Self::join`], for a process that may have been a member before, of this daemon or an earlier one. Its
    /// prior usage counts once. If it used the device before and the tenant's claim allowance is not used up, it
    /// counts as having queued work until it reports otherwise.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub fn join_again(
        &mut self,
        number: arbiter::TenantId,
        member: u64,
        uuid: &str,
        past: ClaimedPast,
        now: u64,
    ) -> Result<usize, String> {
        let Some(house) = self.houses.get_mut(&number) else { return Err("the tenant was removed".into()) };
        self.stirred.insert(number);
        let name = &house.tenant.name;
        let on = house.tenant.on_device(uuid)?.clone();
        let is_held = house.is_held_on(uuid);
        let Some(pages) = &mut house.pages else { return Err("a hello comes first".into()) };
        let device = self.devices.find_or_make(uuid, number, &mut self.arbiter, now)?;
        let here = pages.members.get(&member).into_iter().flatten().copied();
        let there =
            |&index: &usize| pages.slots.get(index).and_then(Option::as_ref).is_some_and(|s| s.device == device);
        if let Some(index) = here.into_iter().find(there) {
            return Ok(index);
        }
        let index = match pages.free.pop() {
            Some(index) => index,
            None if pages.slots.len() < PAGE_SLOTS => {
                pages.slots.push(None);
                pages.slots.len() - 1
            }
            None => {
                return Err(format!(
                    "tenant {name} has {PAGE_SLOTS} processes on devices already, the most it may have; a process counts \
                     once for each device"
                ));
            }
        };
        let uncharged = house.uncharged.get(&device).copied().unwrap_or_default();
        let allowed = allowed_use(&house.tenant, &on, &self.time, self.devices.hash(device), member, uncharged);
        if let Some(slot) = pages.board.slots.get(index) {
            slot.take_slot(&allowed, self.epoch);
        }
        self.reports.set_now(now);
        let id = self.arbiter.join(number, device, on.terms, now);
        self.reports.join(id, pages.report.clone(), index);
        let past = past.clamp_to_possible(now);
        let former = house.former.entry(device).or_default();
        for other in pages.slots.iter().flatten().filter(|slot| slot.device == device) {
            // The end of its earlier connection may not have been noticed yet.
            former.note_measured(other.past, self.arbiter.last_report(other.id).busy);
        }
        former.add_process(past);
        let belief = house.belief.entry(device).or_default();
        if past.busy > 0 && belief.is_left(now) {
            self.reports.presume_work(id);
            self.arbiter.comes_back(id, now);
            belief.begin_claim(now);
            self.claiming.push(MemberSlot { tenant: number, index });
        }
        if is_held {
            self.arbiter.pause_tenant(number, device, true, now);
        }
        let slot = MemberOfSlot {
            id,
            device,
            allowed,
            past,
            gate: Gate::Wait,
            granted: now,
            stands: None,
            waited: 0,
            told: 0,
            heard: 0,
            unmeasured: false,
            contexts: None,
        };
        pages.slots[index] = Some(slot);
        pages.members.entry(member).or_default().push(index);
        if self.places.len() <= id.index() {
            self.places.resize(id.index() + 1, None);
        }
        self.places[id.index()] = Some(MemberSlot { tenant: number, index });
        self.tick(now);
        Ok(index)
    }

    /// Devices that each member of a tenant joined, by UUID.
    pub fn joined_devices(&self, number: arbiter::TenantId) -> Vec<(u64, String)> {
        let Some(pages) = self.houses.get(&number).and_then(|house| house.pages.as_ref()) else { return Vec::new() };
        let on = |slot: &MemberOfSlot| (slot.allowed.member, self.devices.uuid_of(slot.device).to_owned());
        pages.slots.iter().flatten().map(on).collect()
    }

    /// True if a member launched on a device, or asked to. One that only asks NVML joins devices, but never does.
    pub fn has_launched(&self, number: arbiter::TenantId, member: u64) -> bool {
        let Some(pages) = self.houses.get(&number).and_then(|house| house.pages.as_ref()) else { return false };
        let slots = pages.members.get(&member).into_iter().flatten().filter_map(|index| pages.slots.get(*index));
        slots.flatten().any(|slot| slot.contexts.is_some())
    }

    /// Removes a member from all its devices, with its leases. Charges its last report.
    pub fn leave_devices(&mut self, number: arbiter::TenantId, member: u64, now: u64) {
        let Some(house) = self.houses.get_mut(&number) else { return };
        self.stirred.insert(number);
        let Some(pages) = &mut house.pages else { return };
        let Some(slots) = pages.members.remove(&member) else { return };
        self.reports.set_now(now);
        for index in slots {
            let place = MemberSlot { tenant: number, index };
            let claims = self.claiming.contains(&place);
            self.claiming.retain(|other| *other != place);
            let Some(mut slot) = pages.slots.get_mut(index).and_then(Option::take) else { continue };
            let usage = arbiter::MemberPages::read_usage(&mut self.reports, slot.id);
            self.arbiter.apply_report(slot.id, usage, now);
            let had = self.arbiter.leave_device(slot.id, now);
            if let Some(belief) = house.belief.get_mut(&slot.device).filter(|_| claims) {
                belief.hear_claim(&usage, &mut slot.heard, now);
                belief.end_claim(now);
            }
            house.former.entry(slot.device).or_default().left(slot.past, usage.busy, had);
            if desk::lets_launch(&slot.gate) {
                house.times.entry(slot.device).or_default().note_end(now);
            }
            let totals = house.gone.entry(slot.device).or_default();
            totals.wait += slot.waited + slot.stands.map_or(0, |since| now.saturating_sub(since));
            let said = self.reports.slot_history(slot.id).map_or(0, |witness| witness.reported_launches());
            totals.launches = totals.launches.saturating_add(said);
            totals.unmeasured |= slot.unmeasured || slot.is_unmeasured(&self.reports);
            self.reports.leave_slot(slot.id);
            self.places[slot.id.index()] = None;
            if let Some(slot) = pages.board.slots.get(index) {
                slot.leave_slot();
                desk::wake_sleepers(slot);
            }
            pages.free.push(index);
        }
        self.devices.mark_stale();
        self.tick(now);
    }

    /// Reads the reports of members that joined again, and ends the claim to queued work of each that has none left.
    pub(super) fn hear_claims(&mut self, now: u64) {
        let (houses, reports) = (&mut self.houses, &mut self.reports);
        self.claiming.retain(|MemberSlot { tenant, index }| {
            let Some(house) = houses.get_mut(tenant) else { return false };
            let slot = house.pages.as_mut().and_then(|pages| pages.slots.get_mut(*index)?.as_mut());
            let Some(slot) = slot else { return false };
            let usage = arbiter::MemberPages::read_usage(reports, slot.id);
            let Some(belief) = house.belief.get_mut(&slot.device) else { return false };
            let is_over = belief.hear_claim(&usage, &mut slot.heard, now);
            if is_over {
                belief.end_claim(now);
            }
            !is_over
        });
    }
}
