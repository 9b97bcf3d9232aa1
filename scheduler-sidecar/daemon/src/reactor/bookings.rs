//! Bookings by command: made, listed and cancelled.
//!
//! Whether a booking fits is computed by [`super::policies`], and what it changes by the chain of policies.

use std::collections::BTreeSet;

use tracing::{info, warn};
use vgpu_accounting::clock;
use vgpu_config::live;
use vgpu_config::plan::{ConfigPlan, TenantPlan};
use vgpu_config::problem::escape_value;
use vgpu_config::schedule::WrittenBooking;
use vgpu_config::value::is_name;
use vgpu_control::{BookingStatus, ChangeLasting};
use vgpu_policy::chain::has_booked;
use vgpu_policy::outcome::RefusedPolicy;
use vgpu_policy::stage::PolicyStage;

use super::Reactor;
use super::admin::{check_reason, note_about};
use super::places::{lasting_name, present_name};
use super::policies::ENDLESS_WORDS;
use crate::connection::PeerCredentials;

/// Most bookings that commands made and that are not over.
const MAX_BOOKINGS: usize = 1024;

impl Reactor {
    /// Books a part of devices for a tenant.
    ///
    /// # Errors
    /// A message: a value is not accepted, it does not fit, or it cannot be stored.
    pub(super) fn book(
        &mut self,
        written: &WrittenBooking,
        who: PeerCredentials,
    ) -> Result<Vec<BookingStatus>, String> {
        let now = clock::unix_seconds();
        let id = self.known_room(&written.tenant)?;
        let mut booking = written.clone();
        check_reason(booking.reason.as_deref())?;
        if booking.until <= now {
            return Err("the booking is over already; accepted: an end in the future".to_owned());
        }
        let Some(tenant) = self.rooms.get(&id).map(|room| TenantPlan::from(&room.base)) else { return Ok(Vec::new()) };
        let devices = self.in_force().0;
        let named = booking.devices.iter().map(|device| live::device_of(&devices, &tenant, device));
        let named: BTreeSet<String> = named.collect::<Result<_, _>>()?;
        booking.devices = named.iter().map(|name| lasting_name(&devices, name)).collect();
        let mut ahead = self.policy_givens();
        if booking.name.is_empty() {
            let is_free = |name: &String| ahead.bookings.iter().all(|other| other.name != *name);
            let names = (1..).map(|number: u32| format!("{}-{number}", booking.tenant));
            booking.name = names.filter(is_free).take(1).collect();
        } else if ahead.bookings.iter().any(|other| other.name == booking.name) {
            return Err(format!("there is a booking {:?} already; accepted: another name", booking.name));
        }
        if !is_name(&booking.name) {
            let accepted = "1 to 64 letters, digits, '-', '_' and '.', not beginning with '.'";
            return Err(format!("booking {:?} cannot be a name; accepted: {accepted}", escape_value(&booking.name)));
        }
        if self.policies.kept.bookings.len() >= MAX_BOOKINGS {
            return Err(format!("there are {MAX_BOOKINGS} bookings; accepted: fewer, see `vgpu bookings --cancel`"));
        }
        ahead.bookings.push(booking.read(str::to_owned)?);
        let before = self.policy_givens();
        for (ahead, before, ends) in
            [(ahead.clone(), before.clone(), ""), (ahead.without_endless(), before.without_endless(), ENDLESS_WORDS)]
        {
            let known = before.conflicting_bookings(now);
            ahead.check_ahead(None, now, Some(now), &known).map_err(|why| format!("{why}{ends}"))?;
        }
        let what = format!("booking {:?} from {}", booking.name, self.policies.format_time(booking.from));
        let mut kept = self.policies.kept.clone();
        kept.bookings.push(booking.clone());
        self.policies.replace_kept(kept)?;
        let (by_uid, by_pid) = (who.uid, who.pid);
        info!(kind = "booking.made", tenant = %booking.tenant, by_uid, by_pid, name = %booking.name, from = booking.from, until = booking.until, reason = booking.reason, "a part of devices was booked");
        self.apply_policies(&note_about(&booking.tenant, &what, &ChangeLasting::default(), who));
        Ok(self.list_bookings().into_iter().filter(|status| status.booking.name == booking.name).collect())
    }

    /// Cancels a booking that a command made.
    ///
    /// # Errors
    /// A message: there is none, the file has it, or it cannot be stored.
    pub(super) fn cancel_booking(&mut self, name: &str, who: PeerCredentials) -> Result<Vec<BookingStatus>, String> {
        let all = self.list_bookings();
        // Of two of one name that of a command can be cancelled.
        let mut named: Vec<&BookingStatus> = all.iter().filter(|status| status.booking.name == name).collect();
        named.sort_by_key(|status| status.of_file);
        let Some(status) = named.first().copied() else {
            let names = || all.iter().map(|status| status.booking.name.as_str());
            return Err(live::unknown_name("booking", name, names()));
        };
        if status.of_file {
            return Err(format!("booking {name} is in the configuration file; remove it there and reload"));
        }
        let tenant = status.booking.tenant.clone();
        let mut kept = self.policies.kept.clone();
        kept.bookings.retain(|booking| booking.name != name);
        self.policies.replace_kept(kept)?;
        let (by_uid, by_pid) = (who.uid, who.pid);
        info!(kind = "booking.cancelled", %tenant, by_uid, by_pid, %name, "a booking was cancelled");
        let what = format!("booking {name:?} was cancelled");
        self.apply_policies(&note_about(&tenant, &what, &ChangeLasting::default(), who));
        Ok(vec![status.clone()])
    }

    /// Bookings that are not over, the earliest first.
    pub(super) fn list_bookings(&self) -> Vec<BookingStatus> {
        let now = clock::unix_seconds();
        let of_file = self.loaded.iter().flat_map(|loaded| &loaded.plan.bookings);
        let of_file = of_file.map(|booking| (WrittenBooking::from(booking), true));
        let devices = self.in_force().0;
        let made = self.policies.kept.bookings.iter().map(|booking| {
            let named = booking.devices.iter().map(|device| present_name(&devices, device));
            (WrittenBooking { devices: named.collect(), ..booking.clone() }, false)
        });
        let mut all: Vec<BookingStatus> = of_file
            .chain(made)
            .filter(|(booking, _)| booking.until > now)
            .map(|(booking, of_file)| {
                let is_it =
                    |refused: &&RefusedPolicy| refused.name == booking.name && refused.stage == PolicyStage::Booking;
                let refused = self.policies.refused.iter().find(is_it).map(|refused| refused.words.clone());
                let is_now = booking.from <= now && refused.is_none();
                let holds = is_now && self.has_booked(&booking);
                BookingStatus { holds, overridden: is_now && !holds, booking, of_file, refused }
            })
            .collect();
        all.sort_by(|one, other| (one.booking.from, &one.booking.name).cmp(&(other.booking.from, &other.booking.name)));
        all
    }

    /// True if the booking's tenant has what was booked.
    fn has_booked(&self, written: &WrittenBooking) -> bool {
        let room = self.rooms.values().find(|room| !room.is_removed() && room.tenant.name == written.tenant);
        let devices = self.loaded.as_ref().map_or(&[][..], |loaded| &loaded.plan.devices);
        let booking = written.read(str::to_owned).ok();
        let both = room.zip(booking);
        both.is_some_and(|(room, booking)| has_booked(&TenantPlan::from(&room.tenant), &booking, devices))
    }

    /// Warns at the start of a booking of the file that has the name of one that a command made before. Both hold.
    pub(super) fn warn_of_booking_names(&self) {
        let checked = self.loaded.as_ref().map(|loaded| self.check_booking_names(&loaded.plan));
        if let Some(Err(why)) = checked {
            warn!("{why}; both hold until then");
        }
    }

    /// Checks that no booking of the file has the name of one that a command made.
    ///
    /// # Errors
    /// A message with the name and both places.
    pub(super) fn check_booking_names(&self, plan: &ConfigPlan) -> Result<(), String> {
        let now = clock::unix_seconds();
        let made = self.policies.kept.bookings.iter().filter(|booking| booking.until > now);
        let twice = made.map(|booking| &booking.name).find(|name| plan.bookings.iter().any(|of| of.name == **name));
        twice.map_or(Ok(()), |name| {
            Err(format!(
                "booking.name = {name:?} is the name of a booking that `vgpu book` made too; accepted: another name in the \
                 file, or `vgpu bookings --cancel {name}` before"
            ))
        })
    }
}
