//! Accepts connections: checks the peer's credentials from the kernel, and limits connections by free descriptors.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use rustix::event::epoll::{self, EventData};
use rustix::fs::{Mode, OFlags};
use rustix::process::Resource;
use tracing::warn;
use vgpu_control::tenant::RefusalKind;
use vgpu_control::{CONTROL_PROTOCOL, ControlAnswer};
use vgpu_core::protocol::wire::Reply;

use super::{ADMIN_TOKEN, PEER_TIMEOUT, Reactor, ServeError};
use crate::activation::ActivatedSocket;
use crate::connection::{Connection, ConnectionSide, PeerCredentials};
use crate::door::ListeningSocket;
use crate::room::may_administrate;

/// Most administrators connected at once.
const MAX_ADMIN_CONNECTIONS: usize = 16;

/// Descriptors that the daemon needs for itself. Each tenant needs one more, its listener.
const RESERVED_DESCRIPTORS: usize = 24;
/// Descriptors needed for a tenant with members: one for its bell, and a part of those that hold pages.
const DESCRIPTORS_WITH_PAGES: usize = 2;

/// Most callers accepted before other events are served.
const ACCEPTS_PER_TURN: usize = 64;

impl Reactor {
    /// Accepts administrators at a socket that the service manager opened.
    ///
    /// # Errors
    /// [`ServeError`]: its directory is gone or is mounted into containers, or the socket cannot be watched.
    pub fn administer_by(&mut self, activated: ActivatedSocket) -> Result<(), ServeError> {
        let ActivatedSocket { listener, path } = activated;
        if let Some(room) = self.rooms.values().find(|room| room.tenant.socket.parent() == path.parent()) {
            let why =
                format!("it lies in the directory that is mounted into the containers of tenant {}", room.tenant.name);
            let why = io::Error::new(io::ErrorKind::InvalidInput, why);
            return Err(ServeError::Io("take the service manager's socket", why));
        }
        let door = ListeningSocket::adopt_listener(listener, &path)?;
        self.watch_socket(&door, ADMIN_TOKEN)?;
        self.admin = Some(door);
        Ok(())
    }

    /// Accepts the callers that wait at a listener.
    pub(super) fn let_in(&mut self, side: ConnectionSide) {
        for _ in 0..ACCEPTS_PER_TURN {
            let door = match side {
                ConnectionSide::Admin => self.admin.as_ref(),
                // The tenant was removed after epoll reported the event.
                ConnectionSide::Member(id) => self.rooms.get(&id).and_then(|room| room.door.as_ref()),
            };
            let Some(door) = door else { return };
            match door.accept() {
                Ok(Some(stream)) => self.admit_connection(stream, side),
                Ok(None) => return,
                Err(why) => {
                    // No descriptor is left: without a free one the caller would wait, and epoll would report it
                    // again at once.
                    drop(self.spare.take());
                    let turned_away = door.accept();
                    if let Ok(Some(stream)) = turned_away {
                        send_busy_and_close(&stream, side, "the daemon has no file descriptor left");
                    }
                    self.spare = spare_descriptor();
                    warn!(%why, "a connection was turned away");
                    return;
                }
            }
        }
    }

    /// Most connections of each tenant while descriptors are scarce; `None`: they are not scarce.
    ///
    /// # Cost
    /// None until half of the descriptors are used; then it looks at each tenant.
    fn part_of_each(&self) -> Option<usize> {
        let (rooms, connections) = (self.rooms.len(), self.connections.len());
        if rooms <= 1 || connections < connection_bounds(self.descriptors, rooms, usize::MAX).0 {
            return None;
        }
        let furnished = self.rooms.values().filter(|room| room.furniture.is_some()).count();
        let (most, part) = connection_bounds(self.descriptors, rooms, furnished);
        (connections >= most).then_some(part)
    }

    fn admit_connection(&mut self, stream: OwnedFd, side: ConnectionSide) {
        let now = Instant::now();
        let peer = match PeerCredentials::of_stream(&stream) {
            Ok(peer) => peer,
            Err(why) => return warn!(%why, "a connection without credentials was closed"),
        };
        let refusal = match side {
            ConnectionSide::Admin if !may_administrate(peer) => {
                Some("only the daemon's user and root may ask".to_owned())
            }
            ConnectionSide::Admin if self.admins == MAX_ADMIN_CONNECTIONS => {
                let words = format!("{MAX_ADMIN_CONNECTIONS} administrators are connected already, the maximum");
                send_busy_and_close(&stream, side, &words);
                return self.note_refusal(side, peer, &words);
            }
            ConnectionSide::Admin => None,
            ConnectionSide::Member(id) => match self.rooms.get(&id) {
                None => return,
                Some(room) if !room.admits_peer(peer.uid) => {
                    Some(format!("tenant {} does not accept user {}", room.tenant.name, peer.uid))
                }
                Some(room) if room.open >= self.max_connections => {
                    let (name, max) = (&room.tenant.name, self.max_connections);
                    Some(format!("tenant {name} already has {max} connections, the most it may have"))
                }
                Some(room) if self.part_of_each().is_some_and(|part| room.open >= part) => {
                    let (name, open) = (&room.tenant.name, room.open);
                    Some(format!(
                        "tenant {name} has {open} connections already, and the daemon keeps its last file \
                         descriptors for other tenants"
                    ))
                }
                Some(_) => None,
            },
        };
        if let Some(words) = refusal {
            send_and_close(&stream, &words);
            return self.note_refusal(side, peer, &words);
        }
        let token = self.next_token;
        let connection = Connection::new(stream, peer, side, now + PEER_TIMEOUT);
        if let Err(why) = epoll::add(&self.epoll, &connection, EventData::new_u64(token), connection.epoll_interest()) {
            return warn!(%why, "a connection cannot be watched");
        }
        self.next_token += 1;
        match side {
            ConnectionSide::Admin => self.admins += 1,
            ConnectionSide::Member(id) => {
                if let Some(room) = self.rooms.get_mut(&id) {
                    room.open += 1;
                }
            }
        }
        self.deadlines.insert((now + PEER_TIMEOUT, token));
        self.connections.insert(token, connection);
    }
}

/// From how many connections on each tenant is limited to its part, and that part. Three quarters of the descriptors
/// left for connections are first come, first served. The rest is divided among the tenants, so that none keeps the
/// others out. At least half of the descriptors not used by listeners are always first come, first served.
fn connection_bounds(descriptors: usize, rooms: usize, furnished: usize) -> (usize, usize) {
    let beside_doors = descriptors.saturating_sub(RESERVED_DESCRIPTORS.saturating_add(rooms));
    let left = beside_doors.saturating_sub(furnished.saturating_mul(DESCRIPTORS_WITH_PAGES));
    ((left / 4 * 3).max(beside_doors / 2), (left / 4 / rooms.max(1)).max(1))
}

/// Sends one line to a peer that is closed at once. If the kernel cannot take the line, it is lost.
fn send_and_close(stream: &OwnedFd, words: &str) {
    if let Ok(line) = Reply::Refused(words.to_owned()).encode() {
        send_line(stream, line.as_bytes());
    }
}

/// As [`send_and_close`], to a peer that may be accepted in a moment. Administrators get a kind that says so.
fn send_busy_and_close(stream: &OwnedFd, side: ConnectionSide, words: &str) {
    if side != ConnectionSide::Admin {
        return send_and_close(stream, words);
    }
    let (error, refusal) = (Some(words.to_owned()), Some(RefusalKind::Busy));
    let answer = ControlAnswer { hello: CONTROL_PROTOCOL, error, refusal, ..ControlAnswer::default() };
    if let Ok(mut line) = serde_json::to_vec(&answer) {
        line.push(b'\n');
        send_line(stream, &line);
    }
}

fn send_line(stream: &OwnedFd, line: &[u8]) {
    let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
    let _ = rustix::net::send(stream, line, flags);
}

/// A descriptor that can be closed when none is left.
pub(super) fn spare_descriptor() -> Option<OwnedFd> {
    rustix::fs::open(Path::new("/dev/null"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Raises the soft limit of open files to the hard one, since each member needs a descriptor. The usual soft limit of
/// 1024 is for programs that use select. Returns the limit.
pub(super) fn raise_descriptor_limit() -> usize {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(why) = rustix::process::setrlimit(Resource::Nofile, limit) {
        warn!(%why, "the limit of open files cannot be raised and stays as it is");
    }
    let limit = rustix::process::getrlimit(Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_that_have_no_members_keep_no_more_than_their_doors_from_the_others() {
        assert!(connection_bounds(4096, 1_000, 50).0 > 50 * 17);
        assert!(connection_bounds(4096, 1_358, 0).0 > 1_358 && connection_bounds(4096, 1_358, 1_358).0 > 1_300);
        assert_eq!(connection_bounds(4096, 5_000, 5_000), (0, 1));
        let (most, part) = connection_bounds(200, 2, 2);
        assert!(most + part <= 200 - RESERVED_DESCRIPTORS - 2 - 2 * DESCRIPTORS_WITH_PAGES);
    }
}
