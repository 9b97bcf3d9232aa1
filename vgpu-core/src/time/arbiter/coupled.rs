//! Gangs whose kernels wait for each other across devices, as the ranks of a collective do.
//!
//! If the leases of such a gang end apart, a kernel stays on one device. It waits for a launch that the gate of another
//! device holds back. Its tenant pays for that wait, and the next leases end apart too. So the leases of a coupled gang
//! end together, and the gang gives its devices up only when all of them are drained:
//!
//! - The gang gets no lease while the ceiling of one of its waiting members is used up.
//! - When one of its leases ends, all end.
//! - Work that takes longer than its estimate may wait for a member that waits at the gate of another device. Such
//!   members may then launch for a moment, even if their ceiling is used up, but owe no more than
//!   [`TimeConfig::ageing`]. Each such *help* lasts twice as long as the one before, because a busy host may run the
//!   member late.
//! - After [`KNOWN_WAIT_NS`] the rules of a single device apply again: others get the device next to the late work. A
//!   waiting tenant of class latency waits for R only.
//!
//! A gang is coupled when a drain was late while another of its members waited at a gate. Long kernels that wait for
//! nobody can look the same. So once in [`TimeConfig::ageing`] late work gets no help for as long as its estimate
//! allows. If it ends by itself, the gang is coupled no longer. Nor is a gang of which no work was late for that time.
//!
//! A device counts as drained here only when a member waits at its gate again, or a lease later. A kernel that waits
//! has a short estimate, and its process reports it as over when that time has passed. The gang pays for that time.
//!
//! Not here: how a gang's leases begin ([`super::gang`]).
//!
//! [`TimeConfig::ageing`]: crate::time::config::TimeConfig::ageing

use super::decision::Decision;
use super::device::DevicePhase;
use super::gang::GangKey;
use super::seat::{SeatIx, SeatPlace};
use super::terms::{DeviceId, SlotId, quantum_of};
use super::{Arbiter, index};
use crate::limits::Class;
use crate::time::config::{KNOWN_WAIT_NS, SHORT_NS};

/// A gang of which no work was late in this many leases of its seats is coupled no longer. Finding it again costs some.
const ON_TIME_LEASES: u32 = 256;

/// State of a coupled gang.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coupling {
    /// When late work last did not end within its estimate and a drain's allowance; `None`: not since it was found.
    proved: Option<u64>,
    /// Since when the gang has been giving up its devices.
    drains_since: Option<u64>,
    /// True if work was late in this drain.
    was_late: bool,
    /// Leases since work was last late.
    on_time: u32,
    /// Length of the next help, in ns.
    help: u64,
}

impl Arbiter {
    fn coupling(&self, gang: GangKey) -> Option<&Coupling> {
        if self.gangs.coupled.is_empty() { None } else { self.gangs.coupled.get(&gang) }
    }

    /// All seats of a gang.
    fn gang_seats<'k>(&'k self, gang: &'k GangKey) -> impl Iterator<Item = SeatIx> + 'k {
        self.gangs.tenants_of(gang).iter().filter_map(|tenant| self.tenants.get(tenant)).flatten().copied()
    }

    /// The other devices that the gang holds by a lease or drains.
    fn other_devices(&self, gang: &GangKey, d: DeviceId) -> Vec<DeviceId> {
        let held = |seat: &SeatIx| {
            let this = self.seat_at(*seat);
            let phase = self.devices[index(this.device)].phase;
            let is_leased = matches!(phase, DevicePhase::Held { .. } | DevicePhase::Drain { .. });
            this.place == SeatPlace::Current && is_leased
        };
        let devices = self.gang_seats(gang).filter(held).map(|seat| self.seat_at(seat).device);
        devices.filter(|&other| other != d).collect()
    }

    fn is_over(&self, slot: SlotId) -> bool {
        self.slot_at(slot).usage.in_flight == Some(0)
    }

    /// True if all work that drains on the device was reported as over.
    fn is_reported_over(&self, d: DeviceId) -> bool {
        self.devices[index(d)].draining.iter().all(|&slot| self.is_over(slot))
    }

    /// True if the device is given up together with others of a coupled gang.
    pub(super) fn drains_with_others(&self, d: DeviceId, seat: SeatIx) -> bool {
        let gang = self.gang_of(self.seat_at(seat).tenant);
        self.coupling(gang).is_some() && !self.other_devices(&gang, d).is_empty()
    }

    /// True if the drain of a coupled gang's device is over.
    pub(super) fn is_drained(&self, d: DeviceId, now: u64) -> bool {
        let DevicePhase::Drain { seat, since, .. } = self.devices[index(d)].phase else { return false };
        let waits = self.waits_for_itself(d, seat) || now >= self.over_at(since);
        waits && self.is_reported_over(d)
    }

    /// When work of a drain that was reported as over counts as over although no member waits at the gate.
    const fn over_at(&self, since: u64) -> u64 {
        since.saturating_add(self.config.quantum)
    }

    /// When work that drains is late: longer than its estimate, or than as much as may be in flight. The estimate of a
    /// kernel that waits is that of its waits.
    fn late_at(&self, d: DeviceId, now: u64) -> u64 {
        match self.devices[index(d)].phase {
            DevicePhase::Drain { since, said, .. } if !self.is_drained(d, now) => {
                let by_estimate = said.saturating_sub(self.config.drain);
                by_estimate.min(since.saturating_add(self.config.in_flight)).saturating_add(SHORT_NS)
            }
            _ => u64::MAX,
        }
    }

    /// When work that drains is so late that it shows that its gang is coupled: by a drain's allowance. Work that is
    /// known to be long must be later than its estimate.
    fn found_late_at(&self, d: DeviceId, now: u64) -> u64 {
        match self.devices[index(d)].phase {
            DevicePhase::Drain { since, said, .. } if !self.is_drained(d, now) => {
                let is_long = said > since.saturating_add(KNOWN_WAIT_NS);
                if is_long { said } else { self.coupled_deadline(d, since) }
            }
            _ => u64::MAX,
        }
    }

    /// When the drain of a coupled gang's device is late by a drain's allowance. The learned length is that of the
    /// gang's waits, so it does not count.
    pub(super) fn coupled_deadline(&self, d: DeviceId, since: u64) -> u64 {
        let DevicePhase::Drain { said, .. } = self.devices[index(d)].phase else { return u64::MAX };
        said.min(since.saturating_add(self.config.in_flight + self.config.drain))
    }

    /// True if work of the gang on another device is late: it may wait for a launch on this one.
    fn is_needed(&self, gang: GangKey, d: DeviceId, now: u64) -> bool {
        self.gang_seats(&gang).any(|seat| {
            let this = self.seat_at(seat);
            let is_late = this.place == SeatPlace::Current && self.late_at(this.device, now) <= now;
            let is_overdue = |slot: &SlotId| self.slot_at(*slot).overdue.is_some() && !self.is_over(*slot);
            this.device != d && (is_late || this.members.iter().any(is_overdue))
        })
    }

    /// True if a member of the gang waits at the gate of another device.
    fn waits_elsewhere(&self, gang: GangKey, d: DeviceId) -> bool {
        self.gang_seats(&gang).any(|seat| {
            let this = self.seat_at(seat);
            let waits = match this.place {
                SeatPlace::Ready | SeatPlace::Capped(_) => true,
                SeatPlace::Current => {
                    let is_shut = matches!(self.devices[index(this.device)].phase, DevicePhase::Drain { .. });
                    is_shut && self.waits_for_itself(this.device, seat)
                }
                SeatPlace::Overdue => this.members.iter().any(|&slot| self.slot_at(slot).usage.wants),
                SeatPlace::Idle => false,
            };
            this.device != d && !this.paused && waits
        })
    }

    /// True if the seat's gang is coupled.
    pub(super) fn is_coupled(&self, seat: SeatIx) -> bool {
        self.coupling(self.gang_of(self.seat_at(seat).tenant)).is_some()
    }

    /// True if the seat of a coupled gang gets no lease now: the ceiling of one of its gang's waiting members is used
    /// up, or the gang is giving up its devices. Late work on another device may need a lease on this one nevertheless.
    pub(super) fn is_held_back(&self, seat: SeatIx, now: u64) -> bool {
        let is_capped = |seat: SeatIx| {
            let this = self.seat_at(seat);
            !this.paused && matches!(this.place, SeatPlace::Capped(_))
        };
        let gang = self.gang_of(self.seat_at(seat).tenant);
        self.coupling(gang).is_some()
            && (self.is_giving_up(gang, now) || self.gang_seats(&gang).any(is_capped))
            && !self.may_help(seat, now)
    }

    /// True if the seat may launch although its ceiling is used up, because late work of its gang waits for it. It may
    /// owe as much as a class of tenants waits at most: late work that never ends lifts a ceiling no further.
    pub(super) fn may_help(&self, seat: SeatIx, now: u64) -> bool {
        let this = self.seat_at(seat);
        let gang = self.gang_of(this.tenant);
        self.coupling(gang).is_some() && this.may_owe(self.config.ageing, now) && self.is_needed(gang, this.device, now)
    }

    /// Puts seats of this device that may no longer help back to where they belong.
    pub(super) fn settle_helpers(&mut self, d: DeviceId, now: u64) {
        if !core::mem::take(&mut self.devices[index(d)].has_helpers) {
            return;
        }
        for seat in self.seats_of(d) {
            let is_helper = self.seat_at(seat).place == SeatPlace::Ready
                && (self.seat_at(seat).used_up(now) || self.holds_up(seat, now));
            if is_helper && self.may_help(seat, now) {
                self.devices[index(d)].has_helpers = true;
            } else if is_helper {
                self.place_seat(seat, now);
            }
        }
    }

    /// Length of the help that a lease on this device is limited to; `None`: it is an ordinary lease.
    pub(super) fn next_help(&mut self, seat: SeatIx, now: u64) -> Option<u64> {
        let gang = self.gang_of(self.seat_at(seat).tenant);
        if !self.may_help(seat, now) {
            return None;
        }
        let longest = quantum_of(&self.config, &self.seat_at(seat).terms);
        let coupling = self.gangs.coupled.get_mut(&gang)?;
        let help = coupling.help;
        coupling.help = (2 * help).min(longest);
        Some(help)
    }

    /// True if this lease ends because another lease of its coupled gang has ended.
    pub(super) fn ends_together(&self, seat: SeatIx, now: u64) -> bool {
        self.is_giving_up(self.gang_of(self.seat_at(seat).tenant), now)
    }

    /// The seats of the gang whose device drains.
    fn draining_seats<'k>(&'k self, gang: &'k GangKey) -> impl Iterator<Item = SeatIx> + 'k {
        let drains = |seat: &SeatIx| match self.devices[index(self.seat_at(*seat).device)].phase {
            DevicePhase::Drain { seat: here, .. } => here == *seat,
            _ => false,
        };
        self.gang_seats(gang).filter(drains)
    }

    /// True if one of a coupled gang's devices drains, and not for so long that the others are given up apart.
    pub(super) fn is_giving_up(&self, gang: GangKey, now: u64) -> bool {
        let Some(coupling) = self.coupling(gang) else { return false };
        let given_up_at = |seat, since| self.given_up_at(self.seat_at(seat).device, seat, since);
        self.draining_seats(&gang).any(|seat| coupling.drains_since.is_none_or(|since| now < given_up_at(seat, since)))
    }

    /// True if this lease is a help that is over.
    pub(super) fn help_is_over(&self, d: DeviceId, seat: SeatIx, until: u64, now: u64) -> bool {
        now >= until
            || self.devices[index(d)].revoke
            || !self.is_needed(self.gang_of(self.seat_at(seat).tenant), d, now)
    }

    /// Notes that a lease of a coupled gang begins, unless another of its devices still drains. A gang of which no work
    /// was late for long is coupled no longer.
    pub(super) fn note_gang_lease(&mut self, seat: SeatIx) {
        let gang = self.gang_of(self.seat_at(seat).tenant);
        if self.coupling(gang).is_none() || self.draining_seats(&gang).next().is_some() {
            return;
        }
        let Some(coupling) = self.gangs.coupled.get_mut(&gang) else { return };
        coupling.on_time += 1;
        if coupling.on_time > ON_TIME_LEASES {
            self.gangs.coupled.remove(&gang);
            return;
        }
        (coupling.drains_since, coupling.help, coupling.was_late) = (None, SHORT_NS, false);
    }

    /// When late work of the gang, which has been draining since `since`, proves that it needs help: a drain's
    /// allowance after its estimate. `None`: nothing is late.
    fn proved_at(&self, gang: GangKey, since: u64) -> Option<u64> {
        let late = |seat: SeatIx| {
            let d = self.seat_at(seat).device;
            match self.devices[index(d)].phase {
                DevicePhase::Drain { said, .. } if !self.is_reported_over(d) => Some(said),
                _ => None,
            }
        };
        let said = self.draining_seats(&gang).filter_map(late).max()?;
        Some(said.min(since.saturating_add(KNOWN_WAIT_NS)))
    }

    /// True if late work must prove again that it ends only with help.
    fn is_on_trial(&self, coupling: &Coupling, now: u64) -> bool {
        coupling.proved.is_none_or(|proved| now >= proved.saturating_add(self.config.ageing))
    }

    /// Notes that a lease of a coupled gang ended, and has the gang's other devices decide.
    pub(super) fn note_gang_drain(&mut self, seat: SeatIx, now: u64) {
        let gang = self.gang_of(self.seat_at(seat).tenant);
        let Some(coupling) = self.gangs.coupled.get_mut(&gang) else { return };
        coupling.drains_since.get_or_insert(now);
        self.stir_held(gang);
    }

    /// Notes that work of a seat's gang is late: its members that wait on other devices may help.
    pub(super) fn wake_helpers(&mut self, seat: SeatIx, now: u64) {
        let gang = self.gang_of(self.seat_at(seat).tenant);
        if self.coupling(gang).is_none() {
            return;
        }
        for seat in self.gang_seats(&gang).collect::<Vec<_>>() {
            let this = self.seat_at(seat);
            let (d, was_ready) = (this.device, this.place == SeatPlace::Ready);
            if matches!(this.place, SeatPlace::Capped(_) | SeatPlace::Overdue) {
                self.place_seat(seat, now);
            }
            let device = &mut self.devices[index(d)];
            let is_ready = self.seats[seat as usize].as_ref().is_some_and(|seat| seat.place == SeatPlace::Ready);
            device.dirty |= is_ready && (!was_ready || device.phase == DevicePhase::Free);
        }
    }

    /// Has the gang's devices decide again.
    pub(super) fn stir_held(&mut self, gang: GangKey) {
        for device in self.gang_seats(&gang).map(|seat| self.seat_at(seat).device).collect::<Vec<_>>() {
            self.devices[index(device)].dirty = true;
        }
    }

    /// Notes a drain that is so late that its gang is coupled.
    fn note_late(&mut self, gang: GangKey, d: DeviceId, now: u64) {
        let flies = !self.is_reported_over(d);
        let new = Coupling { proved: None, drains_since: Some(now), was_late: false, on_time: 0, help: SHORT_NS };
        let coupling = self.gangs.coupled.entry(gang).or_insert(new);
        coupling.drains_since.get_or_insert(now);
        coupling.was_late |= flies;
    }

    /// When the rules of a single device apply to this device again, after its gang began to give up its devices.
    fn given_up_at(&self, d: DeviceId, seat: SeatIx, since: u64) -> u64 {
        since.saturating_add(if self.delays_latency(d, seat) { self.config.drain } else { KNOWN_WAIT_NS })
    }

    /// True if a tenant of class latency waits for the device, and the seat is of another class.
    fn delays_latency(&self, d: DeviceId, seat: SeatIx) -> bool {
        self.devices[index(d)].order.latency_waits() && self.seat_at(seat).terms.class != Class::Latency
    }

    /// Decides a drain of a coupled gang. `None`: the rules of a single device apply. Otherwise true if the phase
    /// changed, and false if nothing is to be done yet.
    pub(super) fn drain_together(
        &mut self,
        d: DeviceId,
        seat: SeatIx,
        now: u64,
        out: &mut Vec<Decision>,
    ) -> Option<bool> {
        let gang = self.gang_of(self.seat_at(seat).tenant);
        if now >= self.found_late_at(d, now) && self.waits_elsewhere(gang, d) {
            self.note_late(gang, d, now);
        }
        if now >= self.late_at(d, now) {
            let flies = !self.is_reported_over(d);
            if let Some(coupling) = self.gangs.coupled.get_mut(&gang).filter(|_| flies) {
                coupling.on_time = 0;
            }
            self.wake_helpers(seat, now);
        }
        let coupling = *self.coupling(gang)?;
        let others = self.other_devices(&gang, d);
        let is_given_up = coupling.drains_since.is_none_or(|since| now >= self.given_up_at(d, seat, since));
        if is_given_up {
            if self.is_on_trial(&coupling, now) {
                // Its work is longer than a trial.
                self.gangs.coupled.remove(&gang);
            }
            // Free devices may be granted to the gang again.
            for device in self.gang_devices(&gang) {
                let device = &mut self.devices[index(device)];
                device.dirty |= device.phase == DevicePhase::Free;
            }
        }
        if is_given_up || others.is_empty() {
            return None;
        }
        if self.is_drained(d, now) && others.iter().all(|&other| self.is_drained(other, now)) {
            if coupling.was_late && self.is_on_trial(&coupling, now) {
                // Late work ended without help.
                self.gangs.coupled.remove(&gang);
            }
            self.stir_held(gang);
            for &other in &others {
                if let DevicePhase::Drain { seat, .. } = self.devices[index(other)].phase {
                    self.count_device_time(other, now);
                    self.finish_drain(other, seat, now, None);
                }
            }
            return None;
        }
        // A help is over when the work that it was for is.
        for &other in &others {
            let device = &mut self.devices[index(other)];
            device.dirty |= device.helps;
        }
        if !self.waits_for_itself(d, seat) || self.devices[index(d)].revoke || self.delays_latency(d, seat) {
            return Some(false);
        }
        if self.is_on_trial(&coupling, now) {
            // If no work in flight is reported, there is none that could end by itself.
            if self.proved_at(gang, coupling.drains_since.unwrap_or(now)).is_some_and(|proved| now < proved) {
                return Some(false);
            }
            self.gangs.coupled.get_mut(&gang)?.proved = Some(now);
        }
        let Some(help) = self.next_help(seat, now) else { return Some(false) };
        self.help_gang(d, seat, help, now, out);
        Some(true)
    }

    /// Lets a member of the draining seat launch for a moment, for its gang's late work on other devices.
    fn help_gang(&mut self, d: DeviceId, seat: SeatIx, help: u64, now: u64, out: &mut Vec<Decision>) {
        let draining = &self.devices[index(d)].draining;
        let own = draining.iter().copied().find(|&slot| self.slot_at(slot).usage.wants);
        let Some(slot) = own.or_else(|| self.seat_at(seat).queue.front().copied()) else { return };
        self.seat_at_mut(seat).queue.retain(|&other| other != slot);
        self.slot_at_mut(slot).queued = false;
        let device = &mut self.devices[index(d)];
        device.draining.retain(|&other| other != slot);
        device.lease += 1;
        device.helps = true;
        let until = now.saturating_add(help);
        device.phase = DevicePhase::Held { seat, slot, since: now, until };
        self.run(d, seat, slot, until, now, out);
    }

    /// When a drain of a coupled gang must be looked at again although no member reports anything.
    pub(super) fn together_deadline(&self, d: DeviceId, seat: SeatIx, now: u64) -> u64 {
        let gang = self.gang_of(self.seat_at(seat).tenant);
        let Some(coupling) = self.coupling(gang) else {
            let found = self.found_late_at(d, now);
            return if found > now && self.waits_elsewhere(gang, d) { found } else { u64::MAX };
        };
        let since = coupling.drains_since;
        let given_up = since.map(|since| self.given_up_at(d, seat, since));
        let proved = since.and_then(|since| self.proved_at(gang, since));
        let devices = self.other_devices(&gang, d).into_iter().chain([d]);
        let late = devices.map(|device| self.late_at(device, now));
        let over = match self.devices[index(d)].phase {
            DevicePhase::Drain { since, .. } => Some(self.over_at(since)),
            _ => None,
        };
        late.chain(over).chain(given_up).chain(proved).filter(|&moment| moment > now).min().unwrap_or(u64::MAX)
    }
}
