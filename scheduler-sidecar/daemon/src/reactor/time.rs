//! Connects members to the leases: passes on hellos, joins, bells and the alarm.
//!
//! Not here: the decisions about device time (`leases`).

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use rustix::event::epoll::{self, EventData, EventFlags};
use tracing::warn;
use vgpu_core::protocol::page::bell::RingOutcome;
use vgpu_core::protocol::wire::{Hello, JoinDevice, Reply};
use vgpu_core::time::arbiter::TenantId;

use super::{ConnectionState, FIRST_BELL, Reactor};
use crate::answer;
use crate::connection::Connection;
use crate::kept_ledger::KeptLedger;
use crate::leases::ClaimedPast;
use crate::pages::{BeatAudience, MappedPages};
use vgpu_accounting::clock;

/// Epoll events for a bell: edge-triggered, so each ring wakes the daemon once. A member that leaves its bell readable
/// costs nothing.
const BELL_EVENTS: EventFlags = EventFlags::IN.union(EventFlags::ET);

/// Returns the arbiter's number for a room's tenant.
pub(crate) fn arbiter_number(room: u64) -> TenantId {
    // Each room number is used once and is below the numbers of bells.
    TenantId(u32::try_from(room).unwrap_or(u32::MAX))
}

/// Returns the room of the arbiter's number for a tenant.
pub(super) fn room_number(tenant: TenantId) -> u64 {
    tenant.0.into()
}

impl Reactor {
    /// Answers a hello with the welcome and the descriptors of the tenant's pages.
    pub(super) fn welcome_member(&mut self, connection: &mut Connection, id: u64, hello: Hello) -> io::Result<()> {
        if self.is_hoarding(id) {
            return self
                .refuse_peer(connection, "too many processes of this tenant have not read what the daemon sent them");
        }
        if let Err(why) = self.ensure_pages(id) {
            warn!(%why, "no pages for a tenant");
            return self.refuse_peer(connection, &format!("the daemon cannot make the tenant's pages: {why}"));
        }
        // Beat before the descriptors are sent, so that a member never finds a heartbeat page that does not beat.
        self.members += 1;
        self.beat(clock::now());
        let member = self.next_member;
        self.next_member += 1;
        connection.member = Some(member);
        if let Some(room) = self.rooms.get_mut(&id) {
            room.members += 1;
            room.joins += 1;
        }
        self.register(connection, id, hello);
        let Some(room) = self.rooms.get(&id) else { return Err(io::ErrorKind::NotConnected.into()) };
        let Some(furniture) = &room.furniture else { return Err(io::ErrorKind::NotConnected.into()) };
        let reply = answer::welcome_reply(&room.tenant, member, self.leases.page_epoch(), clock::now());
        let line = reply.encode().map_err(io::Error::other)?;
        let heart = &self.heart;
        let sent = self.shelf.with_files(id, |files| {
            connection.send_with(line.as_bytes(), &furniture.welcome_descriptors(heart, files))
        });
        sent.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
    }

    /// Creates the tenant's pages and bell, if it has none.
    fn ensure_pages(&mut self, id: u64) -> io::Result<()> {
        let Some(room) = self.rooms.get_mut(&id) else { return Err(io::ErrorKind::NotConnected.into()) };
        if room.furniture.is_some() {
            return Ok(());
        }
        let (furniture, (board, report, files)) = MappedPages::new()?;
        epoll::add(&self.epoll, furniture.bell_descriptor(), EventData::new_u64(FIRST_BELL + id), BELL_EVENTS)?;
        self.shelf.store_files(id, files);
        self.leases.map_pages(arbiter_number(id), board, report);
        room.furniture = Some(furniture);
        Ok(())
    }

    /// Answers a join. A refused member keeps its connection, because it may use other devices.
    pub(super) fn answer_join(&mut self, connection: &mut Connection, id: u64, join: &JoinDevice) -> io::Result<()> {
        let Some(member) = connection.member.filter(|_| matches!(connection.state, ConnectionState::Registered(..)))
        else {
            return self.refuse_peer(connection, "a hello comes before a join");
        };
        let said = if let ConnectionState::Registered(hello, _) = &connection.state { hello.pid } else { 0 };
        let past = ClaimedPast { process: connection.peer.pid.unwrap_or(said), busy: join.busy };
        let now = clock::now();
        let admitted = self.admit_to_device(connection, &join.device);
        let joined =
            admitted.and_then(|()| self.leases.join_again(arbiter_number(id), member, &join.device, past, now));
        let joined = joined.and_then(|slot| {
            let ledger = self.open_ledger(connection, id, &join.device)?;
            Ok((slot, ledger))
        });
        match joined {
            Ok((slot, (ledger, path))) => {
                // The leases' spelling of the UUID; the member may have spelled it differently.
                let device = self.leases.name_of(&join.device);
                self.record.next_batch().came.push(((id, device.clone()), past.process, past.busy));
                if let Some(image) = &connection.image {
                    self.roster.note_device(image, &device);
                }
                self.record.offer_ledger((id, device), path);
                let reply = Reply::Slot { device: join.device.clone(), slot };
                let line = reply.encode().map_err(io::Error::other)?;
                connection.send_with(line.as_bytes(), &[ledger.as_fd()])
            }
            Err(words) => {
                self.note_refusal(connection.side, connection.peer, &words);
                let line = Reply::Refused(words).encode().map_err(io::Error::other)?;
                connection.send(line.as_bytes())
            }
        }
    }

    /// Opens the tenant's ledger of a device for one member, and creates it if it does not exist. Also returns its
    /// path.
    ///
    /// # Errors
    /// The reason for refusing the join. Without this ledger the member would have a limit of its own.
    fn open_ledger(&self, connection: &Connection, id: u64, device: &str) -> Result<(OwnedFd, PathBuf), String> {
        let Some(room) = self.rooms.get(&id) else { return Err("the tenant was removed".into()) };
        // Each answer carries a descriptor. A member that reads no answers would have one in flight for each question.
        if connection.is_unread() {
            return Err("an earlier answer was not read yet".into());
        }
        let tenant = &room.tenant;
        let ledger = KeptLedger::of(tenant, device)
            .ok_or_else(|| format!("the tenant's name cannot be the name of a ledger: {}", tenant.name))?;
        ledger.open_or_make().map(|file| (file, ledger.path())).map_err(|why| {
            warn!(tenant = %tenant.name, device, %why, "the daemon cannot keep the ledger of a tenant");
            format!("the daemon cannot keep the tenant's ledger of device {device}: {why}")
        })
    }

    /// Removes a member. With a tenant's last member its pages are removed too.
    pub(super) fn remove_member(&mut self, id: u64, member: u64) {
        let now = clock::now();
        self.members -= 1;
        self.note_members_changed();
        self.leases.leave_devices(arbiter_number(id), member, now);
        let Some(room) = self.rooms.get_mut(&id) else { return };
        room.members -= 1;
        self.record.left(id);
        if room.members == 0 {
            if !self.roster.has_prior(&room.tenant.name) {
                room.limits_before.clear();
            }
            self.record.note_emptied(id);
            self.slots.note_emptied();
            self.owes = true;
            if let Some(furniture) = room.furniture.take() {
                // Closing the bell is not enough: epoll keeps watching it while any process has it open.
                let _ = epoll::delete(&self.epoll, furniture.bell_descriptor());
            }
            self.shelf.remove(id);
            self.leases.unmap_pages(arbiter_number(id), now);
            self.muted.retain(|(_, muted)| *muted != id);
        }
    }

    /// Handles a ring of a tenant's bell.
    pub(super) fn bell_rang(&mut self, id: u64) {
        if self.rooms.get(&id).is_none_or(|room| room.furniture.is_none()) {
            return;
        }
        // A member that launches for the first time counts from now on.
        if self.leases.is_suspended(arbiter_number(id)) {
            self.suspensions.hurry_look();
        }
        // The event was consumed before the launch requests are read, so a ring in between is a new event.
        if let RingOutcome::At(moment) = self.leases.hear_bell(arbiter_number(id), clock::now()) {
            self.listen(id, false);
            self.muted.insert((moment, id));
        }
    }

    /// Starts or stops listening to a bell.
    fn listen(&self, id: u64, listen: bool) {
        let Some(furniture) = self.rooms.get(&id).and_then(|room| room.furniture.as_ref()) else { return };
        let interest = if listen { BELL_EVENTS } else { EventFlags::empty() };
        if let Err(why) =
            epoll::modify(&self.epoll, furniture.bell_descriptor(), EventData::new_u64(FIRST_BELL + id), interest)
        {
            warn!(%why, "a bell cannot be watched");
        }
    }

    /// Beats if a beat is due. After a silence of the daemon members may have worked without leases, so they are not
    /// judged for a while.
    fn beat(&mut self, now: u64) {
        let audience = match (self.members, self.leases.is_at_rest()) {
            (0, _) => BeatAudience::Nobody,
            (_, true) => BeatAudience::Resting,
            (_, false) => BeatAudience::Working,
        };
        if let Some(last) = self.heart.beat_if_due(audience, now) {
            self.leases.was_silent(last, now);
        }
    }

    /// Does all work that is due now: the heartbeat, listening again to bells that rang too often, and the arbiter's
    /// decisions.
    pub(super) fn keep_time(&mut self) {
        let now = clock::now();
        self.beat(now);
        while let Some((moment, id)) = self.muted.first().copied().filter(|(moment, _)| *moment <= now) {
            self.muted.remove(&(moment, id));
            // The bell is still readable from the ring that came too early. Listening again raises an event, which
            // answers that ring.
            self.listen(id, true);
        }
        if self.leases.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.leases.tick(now);
        }
    }

    /// Sets the alarm that wakes the loop for the next work due. The alarm is exact to the microsecond.
    pub(super) fn set_alarm(&mut self) {
        let muted = self.muted.first().map(|(moment, _)| *moment);
        // Usage is not recorded yet, and without members nothing else wakes the loop: retry after 1 s.
        let owed = self.owes.then(|| clock::now().saturating_add(1_000_000_000));
        self.alarm.set(self.leases.next_deadline().into_iter().chain(muted).chain(owed).min());
    }

    /// Stops the heartbeat and the leases when the daemon ends, so that every member notices at once.
    pub(super) fn end_pages(&mut self) {
        self.heart.stop(clock::now());
        self.leases.end_epoch();
    }
}
