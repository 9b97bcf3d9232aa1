//! Reads the lines of connections, answers them, and ends connections.
//!
//! A peer that misbehaves is told why and closed. It can use up one line of memory, 2 s and a connection of its
//! tenant's share, but nothing of another tenant's.

use std::io;
use std::time::Instant;

use rustix::event::epoll::{self, EventData};
use tracing::{info, warn};
use vgpu_core::protocol::wire::{Hello, MemberMessage, Reply};

use super::{PEER_TIMEOUT, Reactor};
use crate::answer;
use crate::connection::{Connection, ConnectionInput, ConnectionSide, ConnectionState, PeerCredentials};
use crate::proof::processes;
use vgpu_config::bearer::POD_NAME_LABELS;
use vgpu_control::{self as control, ControlCommand, own};

impl Reactor {
    /// Handles an event of a connection.
    pub(super) fn serve(&mut self, token: u64) {
        // The connection is taken out of the map, so that the code that answers can read all other connections.
        let Some(mut connection) = self.connections.remove(&token) else { return };
        if matches!(connection.state, ConnectionState::Over) {
            return self.forget_connection(token, connection);
        }
        let before = connection.epoll_interest();
        let had_deadline = connection.deadline;
        let stays = self.converse_with(&mut connection);
        let owes = !connection.is_flushed() && !matches!(connection.state, ConnectionState::Silent);
        if stays && owes && connection.deadline.is_none() {
            connection.deadline = Some(Instant::now() + PEER_TIMEOUT);
        } else if connection.is_flushed()
            && matches!(connection.state, ConnectionState::Registered(..) | ConnectionState::Following(..))
        {
            connection.deadline = None;
        }
        if had_deadline != connection.deadline {
            had_deadline.map(|deadline| self.deadlines.remove(&(deadline, token)));
            connection.deadline.map(|deadline| self.deadlines.insert((deadline, token)));
        }
        let interest = connection.epoll_interest();
        let watched =
            before == interest || epoll::modify(&self.epoll, &connection, EventData::new_u64(token), interest).is_ok();
        if stays && watched {
            self.connections.insert(token, connection);
        } else {
            self.forget_connection(token, connection);
        }
    }

    /// Reads lines and answers them; false: close the connection.
    fn converse_with(&mut self, connection: &mut Connection) -> bool {
        if connection.send_pending().is_err() {
            return false;
        }
        loop {
            if !connection.is_flushed() {
                return true;
            }
            if matches!(connection.state, ConnectionState::Leaving) || !self.send_events(connection) {
                return false;
            }
            if !connection.is_flushed() {
                return true;
            }
            let sent = match connection.read() {
                ConnectionInput::Nothing => return true,
                ConnectionInput::End => return false,
                ConnectionInput::TooLong => {
                    let words = format!("the line is longer than {} bytes", connection.max_line_bytes());
                    self.refuse_peer(connection, &words)
                }
                ConnectionInput::Line(line) => match connection.side {
                    ConnectionSide::Member(id) => self.answer_member(connection, id, &line),
                    ConnectionSide::Admin => self.answer_admin(connection, &line),
                },
            };
            if sent.is_err() {
                return false;
            }
            let goes_on = matches!(connection.state, ConnectionState::Leaving | ConnectionState::Following(..));
            if !connection.holds_line() && !goes_on {
                return true;
            }
        }
    }

    fn answer_member(&mut self, connection: &mut Connection, id: u64, line: &[u8]) -> io::Result<()> {
        let Some(room) = self.rooms.get_mut(&id) else { return Err(io::ErrorKind::NotConnected.into()) };
        if room.door.is_none() && !matches!(connection.state, ConnectionState::Registered(..)) {
            let words = format!("tenant {} was removed", room.tenant.name);
            return self.refuse_peer(connection, &words);
        }
        if matches!(connection.state, ConnectionState::Silent) && own::is_asked(line) {
            if room.asked.allow_line(Instant::now()).is_none() {
                return self.refuse_peer(connection, "too many questions: at most 20 a second are answered");
            }
            let tenant = &room.tenant.name;
            let found =
                self.proof.as_ref().map(|proof| proof.of_tenant(tenant, own::MAX_FINDINGS_TOLD)).unwrap_or_default();
            let mut answer = serde_json::to_vec(&own::OwnFindings::new(tenant, found))?;
            answer.push(b'\n');
            connection.state = ConnectionState::Leaving;
            return connection.send(&answer);
        }
        match MemberMessage::decode(line) {
            Err(why) => self.refuse_peer(connection, &why.to_string()),
            Ok(MemberMessage::Hello(hello)) if matches!(connection.state, ConnectionState::Silent) => {
                match self.admit_to_tenant(connection, id) {
                    Ok(()) => self.welcome_member(connection, id, hello),
                    Err(words) => self.refuse_peer(connection, &words),
                }
            }
            Ok(MemberMessage::Hello(_)) => self.refuse_peer(connection, "hello was sent already"),
            Ok(MemberMessage::Join(join)) => self.answer_join(connection, id, &join),
        }
    }

    /// Registers a member that said hello.
    pub(super) fn register(&mut self, connection: &mut Connection, id: u64, hello: Hello) {
        let now = Instant::now();
        let place = connection.process.and_then(processes::read_place);
        let Some(room) = self.rooms.get_mut(&id) else { return };
        room.note_pod(place.as_ref().and_then(|place| place.pod.as_deref()));
        if let Some(suppressed) = room.log.allow_line(now) {
            let PeerCredentials { pid, uid, gid } = connection.peer;
            let version: String = hello.version.chars().take(40).collect();
            let tenant = &room.tenant.name;
            let (container_id, pod_uid) =
                place.as_ref().map_or((None, None), |place| (place.id.as_deref(), place.pod.as_deref()));
            let [namespace, pod, container] =
                POD_NAME_LABELS.map(|name| room.tenant.bearer.labels.get(name).map(String::as_str));
            info!(
                kind = "member.joined", %tenant, pid, uid, gid, pid_inside = hello.pid, ?version, container_id, pod_uid,
                namespace, pod, container, suppressed, "member joined"
            );
        }
        connection.place = place.map(Box::new);
        connection.state = ConnectionState::Registered(hello, now);
        self.enrol_member(connection, id);
        self.note_members_changed();
    }

    fn answer_admin(&mut self, connection: &mut Connection, line: &[u8]) -> io::Result<()> {
        if matches!(connection.state, ConnectionState::Following(..)) {
            return self.refuse_peer(connection, "a connection that follows events takes no further question");
        }
        let mut answer = control::ControlAnswer { hello: control::CONTROL_PROTOCOL, ..Default::default() };
        match answer::parse_question(line) {
            Ok(ask) => {
                if let ControlCommand::Events { since, follow } = ask {
                    self.begin_events(connection, &mut answer, since, follow);
                } else {
                    self.answer_command(&ask, connection.peer, &mut answer);
                }
            }
            Err(words) => answer.error = Some(words),
        }
        let mut reply = serde_json::to_vec(&answer)?;
        reply.push(b'\n');
        if !matches!(connection.state, ConnectionState::Following(..)) {
            connection.state = ConnectionState::Leaving;
        }
        connection.send(&reply)
    }

    /// Tells a peer why it is refused, then closes the connection.
    pub(crate) fn refuse_peer(&mut self, connection: &mut Connection, words: &str) -> io::Result<()> {
        self.note_refusal(connection.side, connection.peer, words);
        connection.state = ConnectionState::Leaving;
        let line = Reply::Refused(words.to_owned()).encode().map_err(io::Error::other)?;
        connection.send(line.as_bytes())
    }

    pub(crate) fn note_refusal(&mut self, side: ConnectionSide, peer: PeerCredentials, words: &str) {
        let PeerCredentials { pid, uid, gid } = peer;
        match side {
            ConnectionSide::Admin => {
                warn!(kind = "admin.refused", pid, uid, gid, why = words, "an administrator was refused")
            }
            ConnectionSide::Member(id) => {
                let Some(room) = self.rooms.get_mut(&id) else { return };
                room.refused += 1;
                if let Some(suppressed) = room.log.allow_line(Instant::now()) {
                    warn!(kind = "member.refused", tenant = %room.tenant.name, pid, uid, gid, why = words, suppressed, "a connection was refused");
                }
            }
        }
    }

    /// Closes connections whose deadline has passed.
    pub(super) fn close_expired(&mut self) {
        let now = Instant::now();
        while let Some((deadline, token)) = self.deadlines.first().copied() {
            if deadline > now {
                return;
            }
            self.deadlines.pop_first();
            let Some(mut connection) = self.connections.remove(&token) else { continue };
            connection.deadline = None;
            if matches!(connection.state, ConnectionState::Silent) {
                let words = format!("no complete line within {} s", PEER_TIMEOUT.as_secs());
                // The send may fail if the peer is gone; the connection is closed in any case.
                let _ = self.refuse_peer(&mut connection, &words);
            }
            self.forget_connection(token, connection);
        }
    }

    /// Ends a connection. It stays open only while descriptors that it was sent are still in flight.
    pub(super) fn forget_connection(&mut self, token: u64, mut connection: Connection) {
        if let Some(deadline) = connection.deadline.take() {
            self.deadlines.remove(&(deadline, token));
        }
        let ConnectionSide::Member(id) = connection.side else {
            self.admins -= 1;
            return;
        };
        let (kept, was_over) = (self.is_kept(&connection), matches!(connection.state, ConnectionState::Over));
        if let Some(member) = connection.member.take() {
            self.remove_member(id, member);
        }
        let Some(room) = self.rooms.get_mut(&id) else { return };
        if let Some(image) = connection.image.take() {
            self.roster.note_left(&room.tenant.name, &image);
        }
        room.untaken -= usize::from(was_over);
        room.open -= 1;
        if matches!(connection.state, ConnectionState::Registered(..))
            && let Some(suppressed) = room.log.allow_line(Instant::now())
        {
            let (tenant, PeerCredentials { pid, uid, .. }) = (&room.tenant.name, connection.peer);
            info!(kind = "member.left", %tenant, pid, uid, left = room.members, suppressed, "member left");
        }
        if kept {
            room.open += 1;
            room.untaken += 1;
            self.keep_over(token, connection);
        } else if room.is_over() {
            self.forget_rooms();
        }
    }
}
