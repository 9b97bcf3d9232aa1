//! The members that are connected, and signals to processes.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use vgpu_control::finding::ProcessId;

use super::{Reactor, arbiter_number};
use crate::connection::Connection;
use crate::proof::processes;

impl Reactor {
    /// The connections of all members: the number of the room, that of the member, and the connection.
    pub(super) fn connected_members(&self) -> impl Iterator<Item = (u64, u64, &Connection)> {
        self.connections.values().filter_map(|connection| {
            let (room, member) = connection.membership()?;
            Some((room, member, connection))
        })
    }

    /// The connections of the members of a room.
    pub(super) fn members_of(&self, id: u64) -> impl Iterator<Item = &Connection> {
        self.connected_members().filter(move |(room, ..)| *room == id).map(|(.., connection)| connection)
    }

    /// The connections of the members of a room that use a device: the driver lists them or suspended them, they
    /// launched, or they hold memory. Others only ask NVML, or were forked from one that uses a device, such as a
    /// worker that loads data.
    pub(super) fn device_users(&self, id: u64) -> impl Iterator<Item = &Connection> {
        let listed = self.proof.as_ref().map(|proof| proof.listed_processes().processes).unwrap_or_default();
        let named = self.members_of(id).filter_map(|connection| Some((connection.pid_inside()?, connection.process)));
        let holders = without_shared_ids(self.record.holders_of(id), named);
        let is_user = move |member, connection: &Connection| {
            let is_at_driver =
                |process: ProcessId| listed.contains(&process) || self.suspended_since(process).is_some();
            connection.process.is_some_and(is_at_driver)
                || connection.pid_inside().is_some_and(|pid| holders.contains(&pid))
                || self.leases.has_launched(arbiter_number(id), member)
        };
        let of_room = self.connected_members().filter(move |(room, ..)| *room == id);
        of_room.filter(move |(_, member, connection)| is_user(*member, connection)).map(|(.., connection)| connection)
    }
}

/// Removes the IDs that several members have, each in its own pid namespace: a ledger does not say which one it means.
/// `members`: their IDs there, and the processes. A process that says hello again has two connections for a moment.
fn without_shared_ids(
    mut ids: BTreeSet<u32>,
    members: impl Iterator<Item = (u32, Option<ProcessId>)>,
) -> BTreeSet<u32> {
    let mut owners = BTreeMap::new();
    for (id, process) in members {
        if *owners.entry(id).or_insert(process) != process {
            ids.remove(&id);
        }
    }
    ids
}

/// Opens a process, for its end or for signals. It is identified after it was opened, so its ID cannot change its
/// meaning.
pub(super) fn open_process(pid: u32) -> Option<(ProcessId, OwnedFd)> {
    let held = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
    Some((processes::read_process(pid)?, held))
}

/// Sends a signal to a process, but never to a later one with the same ID.
///
/// # Errors
/// [`rustix::io::Errno::SRCH`]: it has ended; and those of `pidfd_send_signal`.
pub(super) fn signal_process(process: &ProcessId, signal: Signal) -> rustix::io::Result<()> {
    let held = open_process(process.pid).filter(|(found, _)| found == process);
    let (_, held) = held.ok_or(rustix::io::Errno::SRCH)?;
    pidfd_send_signal(&held, signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_members_of_two_containers_have_says_of_neither_that_it_holds_memory() {
        let process = |pid| Some(ProcessId { pid, began: 1 });
        let members = [(7, process(71)), (8, process(72)), (7, process(73)), (9, process(74)), (9, process(74))];
        let left = without_shared_ids([7, 8, 9, 10].into(), members.into_iter());
        assert_eq!(left, [8, 9, 10].into(), "9 has two connections");
    }

    #[test]
    fn a_later_process_with_the_same_id_gets_no_signal() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let process = processes::read_process(child.id()).unwrap();
        let ended = ProcessId { began: process.began - 1, ..process };
        assert_eq!(signal_process(&ended, Signal::KILL), Err(rustix::io::Errno::SRCH));
        assert_eq!(child.try_wait().unwrap(), None);
        assert_eq!(signal_process(&process, Signal::KILL), Ok(()));
        child.wait().unwrap();
        assert_eq!(signal_process(&process, Signal::KILL), Err(rustix::io::Errno::SRCH));
    }
}
