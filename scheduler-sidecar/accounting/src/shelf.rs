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
const EACH: usize = 12;

/// Stored descriptors, `N` files for each tag.
#[derive(Debug)]
pub struct Shelf<const N: usize> {
    queues: Vec<Queue>,
    /// Files for which the kernel had no space in flight.
    held: HashMap<u64, [OwnedFd; N]>,
    /// Placeholder descriptors that reserve table slots for files taken out. Without them files would be lost when no
    /// descriptor is left.
    places: Vec<OwnedFd>,
}

impl<const N: usize> Default for Shelf<N> {
    fn default() -> Self {
        Self { queues: Vec::new(), held: HashMap::new(), places: Vec::new() }
    }
}

#[derive(Debug)]
struct Queue {
    into: OwnedFd,
    out: OwnedFd,
    /// Tags of the queued messages, oldest first.
    whose: VecDeque<u64>,
}

impl Queue {
    fn new() -> Option<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (into, out) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
        Some(Self { into, out, whose: VecDeque::new() })
    }

    /// Queues files; returns false if the kernel takes no more.
    fn put<const N: usize>(&mut self, tag: u64, files: &[OwnedFd; N]) -> bool {
        let borrowed: [BorrowedFd<'_>; N] = files.each_ref().map(OwnedFd::as_fd);
        let sent = descriptors::send(self.into.as_fd(), &[0], &borrowed).is_ok_and(|sent| sent == 1);
        if sent {
            self.whose.push_back(tag);
        }
        sent
    }

    /// Takes the oldest message. Its files are missing, and lost, if this process may have no more descriptors.
    fn take<const N: usize>(&mut self) -> Option<(u64, Option<[OwnedFd; N]>)> {
        let tag = self.whose.pop_front()?;
        let mut files = Vec::new();
        let got = descriptors::receive(self.out.as_fd(), &mut [0], &mut files).is_ok();
        Some((tag, <[OwnedFd; N]>::try_from(files).ok().filter(|_| got)))
    }
}

impl<const N: usize> Shelf<N> {
    /// Most files out at once: the requested ones, and those being moved.
    const PLACES: usize = 2 * N;

    /// Stores files under `tag`, off the daemon's table of descriptors where possible.
    pub fn put(&mut self, tag: u64, files: [OwnedFd; N]) {
        if !self.queues.iter().any(|queue| queue.whose.len() < EACH) {
            self.queues.extend(Queue::new());
        }
        let room = self.queues.iter_mut().find(|queue| queue.whose.len() < EACH);
        if !room.is_some_and(|queue| queue.put(tag, &files)) {
            self.held.insert(tag, files);
        }
        self.keep_places();
    }

    /// Reserves as many table slots as a lookup needs.
    fn keep_places(&mut self) {
        let Some(queue) = self.queues.first() else { return };
        while self.places.len() < Self::PLACES {
            let Ok(place) = queue.into.try_clone() else { return };
            self.places.push(place);
        }
    }

    /// Calls `act` with the files of `tag`; `None` if there are none.
    ///
    /// # Cost
    /// Two system calls for each of at most a dozen tags.
    pub fn with<T>(&mut self, tag: u64, act: impl FnOnce(&[OwnedFd; N]) -> T) -> Option<T> {
        if let Some(files) = self.held.get(&tag) {
            return Some(act(files));
        }
        let done = self.turn(tag, true).map(|found| act(&found));
        self.keep_places();
        done
    }

    /// Drops the files of `tag`.
    pub fn remove(&mut self, tag: u64) {
        drop(self.take(tag));
    }

    /// Takes out the files of `tag`.
    pub fn take(&mut self, tag: u64) -> Option<[OwnedFd; N]> {
        let taken = self.held.remove(&tag).or_else(|| self.turn(tag, false));
        if self.queues.iter().filter(|queue| queue.whose.is_empty()).count() > 1 {
            self.queues.retain(|queue| !queue.whose.is_empty());
        }
        self.keep_places();
        taken
    }

    /// Moves every message of the queue of `tag` from front to back once; keeps the requested files queued only if
    /// `keep`.
    fn turn(&mut self, tag: u64, keep: bool) -> Option<[OwnedFd; N]> {
        let queue = self.queues.iter_mut().find(|queue| queue.whose.contains(&tag))?;
        self.places.clear();
        let mut found = None;
        for _ in 0..queue.whose.len() {
            let Some((whose, files)) = queue.take::<N>() else { break };
            let Some(files) = files else { continue };
            let wanted = whose == tag;
            if (keep || !wanted) && !queue.put(whose, &files) {
                // The kernel took no more: hold duplicates from now on, of requested files too.
                let copies: Vec<OwnedFd> = files.iter().filter_map(|file| file.try_clone().ok()).collect();
                if let Ok(copies) = <[OwnedFd; N]>::try_from(copies) {
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
        let mut shelf = Shelf::default();
        let mut inodes = Vec::new();
        for tag in 0..30 {
            let ((board, a), (report, b)) = (file("board"), file("report"));
            shelf.put(tag, [board, report]);
            inodes.push((a, b));
        }
        assert_eq!(shelf.queues.len(), 3, "three queues, six descriptors, for thirty tenants");
        for tag in [0, 29, 7, 7, 13, 12, 11, 0] {
            let found = shelf.with(tag, |[board, report]| (inode(board), inode(report)));
            assert_eq!(found, Some(inodes[usize::try_from(tag).unwrap()]));
        }
        for tag in 0..30 {
            shelf.remove(tag);
            assert_eq!(shelf.with(tag, |_| ()), None);
            assert_eq!(shelf.with(29, |_| ()).is_some(), tag < 29);
        }
        assert!(shelf.queues.len() <= 1 && shelf.held.is_empty());
    }
}
