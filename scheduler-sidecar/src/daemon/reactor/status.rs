//! What the daemon says of itself.

use std::collections::BTreeMap;
use std::time::Instant;

use super::Reactor;
use crate::control;
use crate::daemon::connection::{Side, State};
use crate::daemon::reload::Loaded;

impl Reactor {
    pub(in crate::daemon) fn status(&self) -> control::Status {
        let now = Instant::now();
        let mut tenants: BTreeMap<u64, _> = self.rooms.iter().map(|(id, room)| (*id, room.status())).collect();
        for connection in self.connections.values() {
            let (Side::Member(id), State::Registered(hello, since)) = (connection.side, &connection.state) else {
                continue;
            };
            let (Some(room), Some(tenant)) = (self.rooms.get(&id), tenants.get_mut(&id)) else { continue };
            tenant.members.push(control::MemberStatus {
                pid: connection.peer.pid,
                pid_inside: hello.pid,
                uid: connection.peer.uid,
                gid: connection.peer.gid,
                version: hello.version.clone(),
                connected_seconds: now.duration_since(*since).as_secs(),
                earlier_terms: connection.member.is_none() && connection.told.is_some_and(|told| told != room.limits()),
                protocol: if connection.member.is_some() { 2 } else { 1 },
                devices: Vec::new(),
            });
        }
        let mut tenants: Vec<_> = tenants.into_values().collect();
        for tenant in &mut tenants {
            tenant.members.sort_by_key(|member| (std::cmp::Reverse(member.connected_seconds), member.pid));
        }
        control::Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: now.duration_since(self.started).as_secs(),
            configuration: self.loaded.as_ref().map(Loaded::status),
            devices: Vec::new(),
            tenants,
        }
    }
}
