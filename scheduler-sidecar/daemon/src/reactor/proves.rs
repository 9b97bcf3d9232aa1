//! Gives the enforcement check the list of registered processes, and applies what it found.

use std::collections::HashMap;

use rustix::event::epoll::{self, EventData, EventFlags};
use tracing::warn;
use vgpu_core::protocol::page::Uncharged;
use vgpu_core::time::arbiter::audit::HeldTime;
use vgpu_core::units::uuid::uuid_key;

use super::time::arbiter_number;
use super::{ConnectionState, PROOF_TOKEN, Reactor, ServeError, serve_error};
use crate::asked::WakeReason;
use crate::connection::{Connection, ConnectionSide};
use crate::proof::judge::{RegisteredMember, RegisteredMembers};
use crate::proof::limits::TenantLimits;
use crate::proof::uncharged::TenantDeviceKey;
use crate::proof::{ASK_LEDGERS, TELL_COUNTED};
use crate::roster::limits_of;
use vgpu_accounting::clock;
use vgpu_accounting::record::ledgers::RoomDevice;

impl Reactor {
    /// Makes the event loop listen for requests from the thread that checks enforcement.
    pub(super) fn watch_proof(&self) -> Result<(), ServeError> {
        let Some(proof) = &self.proof else { return Ok(()) };
        epoll::add(&self.epoll, proof, EventData::new_u64(PROOF_TOKEN), EventFlags::IN)
            .map_err(serve_error("prove enforcement"))
    }

    /// Answers a request of the checking thread, which asks when a process is at a device, or when a device is lost or
    /// back. Each request also brings the thread's results.
    pub(super) fn answer_proof(&mut self) {
        // Other events may have taken long: a silence must be known before anybody is judged.
        self.keep_time();
        let Some(proof) = &mut self.proof else { return };
        match proof.take_question() {
            WakeReason::Yes(what) => {
                let (suspects, changed, counted) =
                    (proof.suspected_tenants(), proof.take_changed(), proof.uncharged_bytes());
                let (unseen, lost) = (proof.unseen_workers(), proof.lost_devices());
                let listed = (!self.policies.kept.suspended.is_empty()).then(|| proof.listed_processes());
                listed.iter().for_each(|listed| self.note_listed_processes(listed));
                self.leases.work_unseen(&unseen, clock::now());
                if self.leases.lose_devices(lost.keys().map(String::as_str), clock::now()) {
                    self.policies.needs.note_all_changed();
                }
                if what == ASK_LEDGERS {
                    let is_one = |name: &String| suspects.contains(name);
                    let rooms = self.rooms.iter().filter(|(_, room)| is_one(&room.tenant.name)).map(|(id, _)| *id);
                    self.record.read_now(rooms.collect());
                }
                if what == TELL_COUNTED {
                    self.count_uncharged(counted);
                }
                changed.into_iter().for_each(|token| self.end_changed(token));
                let registered = self.registered_members(what > 1);
                if let Some(proof) = &self.proof {
                    proof.tell_registered(registered);
                }
            }
            WakeReason::No => {}
            WakeReason::Gone => {
                let _ = epoll::delete(&self.epoll, &*proof);
                proof.is_gone();
                self.count_uncharged(HashMap::new());
                self.leases.work_unseen(&[], clock::now());
                self.leases.lose_devices(std::iter::empty(), clock::now());
                self.policies.needs.note_all_changed();
                warn!(kind = "proof.blind", "the thread that proves enforcement is gone; limits are still enforced");
            }
        }
    }

    /// Counts memory that the driver reports but the ledgers do not contain against the tenants' limits. Replaces the
    /// amounts counted before.
    fn count_uncharged(&mut self, counted: HashMap<TenantDeviceKey, Uncharged>) {
        let now = clock::now();
        self.policies.needs.note_all_changed();
        for (id, room) in &self.rooms {
            let of = counted.iter().filter(|((tenant, _), _)| *tenant == room.tenant.name);
            self.leases.count_uncharged(
                arbiter_number(*id),
                of.map(|((_, device), bytes)| (device.as_str(), *bytes)),
                now,
            );
        }
    }

    /// Ends a connection whose process is gone, or runs another program than the one that said hello.
    fn end_changed(&mut self, token: u64) {
        let Some(connection) = self.connections.remove(&token) else { return };
        if matches!(connection.state, ConnectionState::Registered(..)) {
            let words = "the connected process is gone, or runs another program now";
            self.note_refusal(connection.side, connection.peer, words);
        }
        self.forget_connection(token, connection);
    }

    /// Remembers the program that said hello, for this daemon and the next one.
    ///
    /// # Cost
    /// Four system calls if the enforcement check is on. Rarely, a line is written for each member and tenant.
    pub(super) fn enrol_member(&mut self, connection: &mut Connection, id: u64) {
        if self.proof.is_none() {
            return;
        }
        connection.image = connection.read_image();
        if let (Some(image), Some(room)) = (&connection.image, self.rooms.get(&id)) {
            self.roster.note_joined(&room.tenant.name, image);
        }
        if self.roster.is_long() {
            self.rewrite_roster(Some(connection));
        }
    }

    /// Rewrites the list for the next daemon. `served`: the connection being served, which is not in the map now.
    pub(super) fn rewrite_roster(&mut self, served: Option<&Connection>) {
        let rooms = &self.rooms;
        let of = |connection: &Connection| match connection.side {
            ConnectionSide::Member(id) => Some((rooms.get(&id)?.tenant.name.as_str(), connection.image?)),
            ConnectionSide::Admin => None,
        };
        let connections = self.connections.values().chain(served);
        let limits = rooms.values().flat_map(|room| {
            let name = room.tenant.name.as_str();
            [(name, room.limits_before.clone()), (name, limits_of(&room.tenant))]
        });
        self.roster.rewrite_file(connections.filter_map(of), limits);
    }

    /// Writes a tenant's memory limits to the list for the next daemon.
    pub(crate) fn keep_limits(&mut self, id: u64) {
        let Some(room) = self.rooms.get(&id) else { return };
        self.roster.note_limits(&room.tenant.name, &limits_of(&room.tenant));
    }

    /// The registered processes; with `all` also limits and ledgers of every tenant.
    ///
    /// # Cost
    /// Looks at each connection and at each member on a device. With `all`, which is rare, also at each tenant and
    /// its ledgers.
    fn registered_members(&mut self, all: bool) -> RegisteredMembers {
        let silent_ns = self.leases.silent_ns(clock::now());
        let mut known = RegisteredMembers { silent_ns, ..RegisteredMembers::default() };
        for (token, connection) in &mut self.connections {
            let (ConnectionSide::Member(id), ConnectionState::Registered(..)) = (connection.side, &connection.state)
            else {
                continue;
            };
            let (Some(pid), Some(room)) = (connection.peer.pid, self.rooms.get(&id)) else { continue };
            // The program may have been unreadable at the hello, for lack of a descriptor.
            if connection.image.is_none() {
                connection.image = connection.read_image();
                if let Some(image) = &connection.image {
                    self.roster.note_joined(&room.tenant.name, image);
                    let joined = self.leases.joined_devices(arbiter_number(id)).into_iter();
                    let own = joined.filter(|(member, _)| Some(*member) == connection.member);
                    own.for_each(|(_, device)| self.roster.note_device(image, &device));
                }
            }
            let (tenant, image) = (room.tenant.name.clone(), connection.image);
            known.members.entry(pid).or_default().push(RegisteredMember { tenant, image, connection: Some(*token) });
        }
        for prior in self.roster.prior_members() {
            let member = RegisteredMember { tenant: prior.tenant.clone(), image: Some(prior.image), connection: None };
            known.members.entry(prior.image.process.pid).or_default().push(member);
        }
        for (process, device, had) in self.leases.held_times(clock::now()) {
            let sum = known.had.entry((process, uuid_key(&device))).or_insert(Some(HeldTime::default()));
            *sum = sum.zip(had).map(|(sum, had)| sum.plus(had));
        }
        if !all {
            return known;
        }
        known.all = Some(std::time::Instant::now());
        for room in self.rooms.values() {
            let dir = room.tenant.socket.parent().map(std::path::Path::to_owned);
            known.dirs.extend(dir.map(|dir| (dir, room.tenant.name.clone())));
            let now = limits_of(&room.tenant);
            let limits = TenantLimits { now, before: room.limits_before.clone(), changed: room.limits_changed };
            known.limits.insert(room.tenant.name.clone(), limits);
        }
        let whose = |(id, device): RoomDevice| Some((self.rooms.get(&id)?.tenant.name.clone(), uuid_key(&device)));
        known.ledgers =
            self.record.ledger_readings().into_iter().filter_map(|(of, reading)| Some((whose(of)?, reading))).collect();
        known.broken = self.record.broken().into_iter().filter_map(|(of, why)| Some((whose(of)?, why))).collect();
        known
    }
}
