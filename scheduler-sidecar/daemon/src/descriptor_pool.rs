//! Stores rarely used descriptors outside of the daemon's descriptor table: as messages in flight in socket pairs.
//! Two more files for each tenant would raise the table from 1.2 to 1.4 descriptors for each member, on a host with
//! ten members a tenant.
//!
//! A queue cannot be searched. A lookup takes out each message and puts it back, a dozen at most.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use shim_sys::descriptors;

/// Most tags (tenants) in one queue.
const TENANTS_PER_QUEUE: usize = 12;

/// Number of files under each tag: a tenant's board and report.
const FILES: usize = 2;

/// Stored descriptors, [`FILES`] for each tag.
#[derive(Debug, Default)]
pub struct DescriptorPool {
    queues: Vec<DescriptorQueue>,
    /// Files for which the kernel had no space in flight.
    held: HashMap<u64, [OwnedFd; FILES]>,
    /// Placeholder descriptors that reserve table slots for files taken out. Without them files would be lost when no
    /// descriptor is left.
    places: Vec<OwnedFd>,
}

#[derive(Debug)]
struct DescriptorQueue {
    into: OwnedFd,
    out: OwnedFd,
    /// Tags of the queued messages, oldest first.
    whose: VecDeque<u64>,
}

impl DescriptorQueue {
    fn new() -> Option<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (into, out) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
        Some(Self { into, out, whose: VecDeque::new() })
    }

    /// Queues files; returns false if the kernel takes no more.
    fn queue_files(&mut self, tag: u64, files: &[OwnedFd; FILES]) -> bool {
        let borrowed: [BorrowedFd<'_>; FILES] = files.each_ref().map(OwnedFd::as_fd);
        let sent = descriptors::send(self.into.as_fd(), &[0], &borrowed).is_ok_and(|sent| sent == 1);
        if sent {
            self.whose.push_back(tag);
        }
        sent
    }

    /// Takes the oldest message. Its files are missing, and lost, if this process may have no more descriptors.
    fn dequeue_files(&mut self) -> Option<(u64, Option<[OwnedFd; FILES]>)> {
        let tag = self.whose.pop_front()?;
        let mut files = Vec::new();
        let got = descriptors::receive_descriptors(self.out.as_fd(), &mut [0], &mut files).is_ok();
        Some((tag, <[OwnedFd; FILES]>::try_from(files).ok().filter(|_| got)))
    }
}

impl DescriptorPool {
    /// Most files out at once: the requested ones, and those being moved.
    const MESSAGES_READ: usize = 2 * FILES;

    /// Stores files under `tag`, off the daemon's table of descriptors where possible.
    pub fn store_files(&mut self, tag: u64, files: [OwnedFd; FILES]) {
        if !self.queues.iter().any(|queue| queue.whose.len() < TENANTS_PER_QUEUE) {
            self.queues.extend(DescriptorQueue::new());
        }
        let room = self.queues.iter_mut().find(|queue| queue.whose.len() < TENANTS_PER_QUEUE);
        if !room.is_some_and(|queue| queue.queue_files(tag, &files)) {
            self.held.insert(tag, files);
        }
        self.keep_places();
    }

    /// Reserves as many table slots as a lookup needs.
    fn keep_places(&mut self) {
        let Some(queue) = self.queues.first() else { return };
        while self.places.len() < Self::MESSAGES_READ {
            let Ok(place) = queue.into.try_clone() else { return };
            self.places.push(place);
        }
    }

    /// Calls `act` with the files of `tag`; `None` if there are none.
    ///
    /// # Cost
    /// Two system calls for each of at most a dozen tags.
    pub fn with_files<T>(&mut self, tag: u64, act: impl FnOnce(&[OwnedFd; FILES]) -> T) -> Option<T> {
        if let Some(files) = self.held.get(&tag) {
            return Some(act(files));
        }
        let done = self.rotate_queue(tag, true).map(|found| act(&found));
        self.keep_places();
        done
    }

    /// Drops the files of `tag`.
    pub fn remove(&mut self, tag: u64) {
        drop(self.take_files(tag));
    }

    /// Takes out the files of `tag`.
    pub fn take_files(&mut self, tag: u64) -> Option<[OwnedFd; FILES]> {
        let taken = self.held.remove(&tag).or_else(|| self.rotate_queue(tag, false));
        if self.queues.iter().filter(|queue| queue.whose.is_empty()).count() > 1 {
            self.queues.retain(|queue| !queue.whose.is_empty());
        }
        self.keep_places();
        taken
    }

    /// Moves every message of the queue of `tag` from front to back once; keeps the requested files queued only if
    /// `keep`.
    fn rotate_queue(&mut self, tag: u64, keep: bool) -> Option<[OwnedFd; FILES]> {
        let queue = self.queues.iter_mut().find(|queue| queue.whose.contains(&tag))?;
        self.places.clear();
        let mut found = None;
        for _ in 0..queue.whose.len() {
            let Some((whose, files)) = queue.dequeue_files() else { break };
            let Some(files) = files else { continue };
            let wanted = whose == tag;
            if (keep || !wanted) && !queue.queue_files(whose, &files) {
                // The kernel took no more: hold duplicates from now on, of requested files too.
                let copies: Vec<OwnedFd> = files.iter().filter_map(|file| file.try_clone().ok()).collect();
                if let Ok(copies) = <[OwnedFd; FILES]>::try_from(copies) {
                    self.held.insert(whose, copies);
                }
            }
            if wanted {
                found = Some(files);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> (OwnedFd, u64) {
        let file = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let inode = rustix::fs::fstat(&file).unwrap().st_ino;
        (file, inode)
    }

    fn inode(file: &OwnedFd) -> u64 {
        rustix::fs::fstat(file).unwrap().st_ino
    }

    #[test]
    fn each_gets_its_own_files_in_any_order_until_they_are_taken_away() {
        let mut shelf = DescriptorPool::default();
        let mut inodes = Vec::new();
        for tag in 0..30 {
            let ((board, a), (report, b)) = (file("board"), file("report"));
            shelf.store_files(tag, [board, report]);
            inodes.push((a, b));
        }
        assert_eq!(shelf.queues.len(), 3, "three queues, six descriptors, for thirty tenants");
        for tag in [0, 29, 7, 7, 13, 12, 11, 0] {
            let found = shelf.with_files(tag, |[board, report]| (inode(board), inode(report)));
            assert_eq!(found, Some(inodes[usize::try_from(tag).unwrap()]));
        }
        for tag in 0..30 {
            shelf.remove(tag);
            assert_eq!(shelf.with_files(tag, |_| ()), None);
            assert_eq!(shelf.with_files(29, |_| ()).is_some(), tag < 29);
        }
        assert!(shelf.queues.len() <= 1 && shelf.held.is_empty());
    }
}
