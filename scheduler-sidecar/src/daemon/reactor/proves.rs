//! Who is registered, for the thread that proves enforcement.

use std::collections::HashMap;

use rustix::event::epoll::{self, EventData, EventFlags};
use tracing::warn;
use vgpu_core::page::Uncharged;
use vgpu_core::uuid::key;

use super::time::number;
use super::{PROOF, Reactor, ServeError, State, failed};
use crate::daemon::asked::Asked;
use crate::daemon::connection::Side;
use crate::daemon::pages;
use crate::daemon::proof::{COUNT, READ};
use crate::proof::judge::Registered;
use crate::proof::uncharged::Key;

impl Reactor {
    /// Watches for its questions.
    pub(super) fn watch_proof(&self) -> Result<(), ServeError> {
        let Some(proof) = &self.proof else { return Ok(()) };
        epoll::add(&self.epoll, proof, EventData::new_u64(PROOF), EventFlags::IN).map_err(failed("prove enforcement"))
    }

    /// It asks who is registered, since somebody is at a device.
    pub(super) fn proves(&mut self) {
        let Some(proof) = &mut self.proof else { return };
        match proof.heard() {
            Asked::Yes(what) => {
                if what == READ {
                    let suspects = self.proof.as_ref().map(|proof| proof.suspects()).unwrap_or_default();
                    let is_one = |name: &String| suspects.contains(name);
                    let rooms = self.rooms.iter().filter(|(_, room)| is_one(&room.tenant.name)).map(|(id, _)| *id);
                    self.record.read_now(rooms.collect());
                }
                if what == COUNT {
                    let counted = self.proof.as_ref().map(|proof| proof.uncharged()).unwrap_or_default();
                    self.count_uncharged(counted);
                }
                let registered = self.registered(what > 1);
                if let Some(proof) = &self.proof {
                    proof.tell(registered);
                }
            }
            Asked::No => {}
            Asked::Gone => {
                let _ = epoll::delete(&self.epoll, &*proof);
                proof.is_gone();
                self.count_uncharged(HashMap::new());
                warn!(kind = "proof.blind", "the thread that proves enforcement is gone; limits are kept all the same");
            }
        }
    }

    /// Counts memory that the driver holds beside the ledgers against the tenants' limits, in place of what counted before.
    fn count_uncharged(&mut self, counted: HashMap<Key, Uncharged>) {
        let now = pages::now();
        for (id, room) in &self.rooms {
            let of = counted.iter().filter(|((tenant, _), _)| *tenant == room.tenant.name);
            self.leases.count_uncharged(number(*id), of.map(|((_, device), bytes)| (device.as_str(), *bytes)), now);
        }
    }

    /// # Cost
    /// A look at each connection; with `all`, which is asked seldom, one at each room and what it holds by its ledgers too.
    fn registered(&mut self, all: bool) -> Registered {
        let mut known = Registered { all, ..Registered::default() };
        for connection in self.connections.values() {
            let (Side::Member(id), State::Registered(..)) = (connection.side, &connection.state) else { continue };
            let (Some(pid), Some(room)) = (connection.peer.pid, self.rooms.get(&id)) else { continue };
            known.members.insert(pid, room.tenant.name.clone());
        }
        if !all {
            return known;
        }
        for room in self.rooms.values() {
            let dir = room.tenant.socket.parent().map(std::path::Path::to_owned);
            known.dirs.extend(dir.map(|dir| (dir, room.tenant.name.clone())));
        }
        for ((id, device), used) in self.record.all_used() {
            if let Some(room) = self.rooms.get(&id) {
                known.used.insert((room.tenant.name.clone(), key(&device)), used);
            }
        }
        for ((id, device), reading) in self.record.readings() {
            if let Some(room) = self.rooms.get(&id) {
                known.readings.insert((room.tenant.name.clone(), key(&device)), reading);
            }
        }
        known
    }
}
