//! Who is registered, for the thread that proves enforcement.

use rustix::event::epoll::{self, EventData, EventFlags};
use tracing::warn;
use vgpu_core::uuid::key;

use super::{PROOF, Reactor, ServeError, State, failed};
use crate::daemon::asked::Asked;
use crate::daemon::connection::Side;
use crate::daemon::proof::READ;
use crate::proof::judge::Registered;

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
                let registered = self.registered(what > 1);
                if let Some(proof) = &self.proof {
                    proof.tell(registered);
                }
            }
            Asked::No => {}
            Asked::Gone => {
                let _ = epoll::delete(&self.epoll, &*proof);
                proof.is_gone();
                warn!(kind = "proof.blind", "the thread that proves enforcement is gone; limits are kept all the same");
            }
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
        known
    }
}
