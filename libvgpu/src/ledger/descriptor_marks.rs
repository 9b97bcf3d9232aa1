//! Marks file descriptors of exported memory with the identity of a share, and detects whether one is still open
//! anywhere.
//!
//! An exported descriptor is marked with a kernel lock on its open file: a read lock on one byte far beyond any real
//! data. The byte's position is the share's identity. The lock belongs to the open file, follows it through fork, dup
//! and sockets, and ends with its last descriptor. So an importer can read the identity from the descriptor itself
//! (/proc/self/fdinfo). Another open file of the same device node can ask the kernel whether a marked one is still
//! open. And the mark keeps nothing open, so memory that the program released stays released.
//!
//! Where this is impossible (no /proc, a kernel before 4.1) there is no mark, and each importer is charged
//! separately.

use crate::ffi::lock::Lock;
use core::sync::atomic::{AtomicU64, Ordering::*};
use shim_sys::lock;
use shim_sys::shared_file::out_of_the_way;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use vgpu_core::limits::tenant::hash64;
use vgpu_core::memory::ledger::Watched;

/// Marks are at this position and above: no device and no file of ours has a byte there.
const MARK_BASE: u64 = 1 << 62;

/// An identity that no other export of any process has: see [`mark_descriptor`].
pub fn fresh_identity() -> u64 {
    static NEXT_IDENTITY: AtomicU64 = AtomicU64::new(0);
    let mut words = [0; 24];
    words[..8].copy_from_slice(&u64::from(std::process::id()).to_le_bytes());
    words[8..16].copy_from_slice(&crate::ffi::clock::now().to_le_bytes());
    words[16..].copy_from_slice(&NEXT_IDENTITY.fetch_add(1, Relaxed).to_le_bytes());
    hash64(&words) % (MARK_BASE - 1) + 1
}

fn borrow_descriptor<'a>(descriptor: i32) -> Option<BorrowedFd<'a>> {
    // SAFETY: used for the length of one call; a number that is not open is an error of that call.
    (descriptor >= 0).then(|| unsafe { BorrowedFd::borrow_raw(descriptor) })
}

/// Marks the open file behind `descriptor`. Returns whether that succeeded.
pub fn mark_descriptor(descriptor: i32, identity: u64) -> bool {
    borrow_descriptor(descriptor).is_some_and(|file| lock::try_hold(file, MARK_BASE + identity).unwrap_or(false))
}

/// The identity with which the open file behind `descriptor` is marked.
pub fn read(descriptor: i32) -> Option<u64> {
    let mut text = [0; 4096];
    let mut file = File::open(format!("/proc/self/fdinfo/{descriptor}")).ok()?;
    let length = file.read(&mut text).ok()?;
    parse(core::str::from_utf8(&text[..length]).ok()?)
}

/// The line is `lock:  1: OFDLCK ADVISORY  READ -1 00:01:1024 FIRST LAST`.
fn parse(text: &str) -> Option<u64> {
    let is_ours = |line: &&str| line.split_ascii_whitespace().any(|word| word == "OFDLCK");
    let locks = text.lines().filter_map(|line| line.strip_prefix("lock:")).filter(is_ours);
    locks.filter_map(lock_position).find(|at| *at > MARK_BASE).map(|at| at - MARK_BASE)
}

fn lock_position(line: &str) -> Option<u64> {
    let mut words = line.split_ascii_whitespace().rev();
    let (last, first) = (words.next()?, words.next()?);
    (first == last).then(|| first.parse().ok())?
}

/// Detects whether a marked file is open anywhere, through an open file of our own on the same device node. There is
/// one such file per node.
pub struct DescriptorWatch {
    node: FileNode,
    identity: u64,
}

type FileNode = (u64, u64);

struct NodeProbe {
    node: FileNode,
    descriptor: i32,
    watches: u32,
}

static NODE_PROBES: Lock<Vec<NodeProbe>> = Lock::new(Vec::new());

fn node_of(descriptor: i32) -> Option<FileNode> {
    // SAFETY: all zeroes is a valid stat, which fstat fills; a number that is not open is an error.
    unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        (libc::fstat(descriptor, &raw mut stat) == 0).then_some((stat.st_dev, stat.st_ino))
    }
}

impl DescriptorWatch {
    /// Watches for open files that are marked with `identity`, of which `descriptor` is one.
    pub fn watch_marks(descriptor: i32, identity: u64) -> Option<Self> {
        let node = node_of(descriptor)?;
        if let Some(probe) = NODE_PROBES.lock().iter_mut().find(|probe| probe.node == node) {
            probe.watches += 1;
            return Some(Self { node, identity });
        }
        let own = reopen_node(&format!("/proc/self/fd/{descriptor}"), node)?;
        let own = out_of_the_way(OwnedFd::from(own)).ok()?;
        // Two threads may both have opened one: the second entry stays unused in the list.
        NODE_PROBES.lock().push(NodeProbe { node, descriptor: own.into_raw_fd(), watches: 1 });
        Some(Self { node, identity })
    }

    /// Whether a file with that mark is open in any process or in transit to one. If so, returns the descriptor
    /// through which others can check.
    pub fn open(&self) -> Option<Watched> {
        let descriptor =
            NODE_PROBES.lock().iter().find(|probe| probe.node == self.node).map(|probe| probe.descriptor)?;
        let ours = Some(descriptor).filter(|descriptor| node_of(*descriptor) == Some(self.node));
        let open = lock::held_by_another(ours.and_then(borrow_descriptor)?, MARK_BASE + self.identity).unwrap_or(false);
        let descriptor = u32::try_from(descriptor).ok()?;
        open.then_some(Watched { descriptor, node: self.node })
    }
}

impl Drop for DescriptorWatch {
    fn drop(&mut self) {
        let mut probes = NODE_PROBES.lock();
        let Some(at) = probes.iter().position(|probe| probe.node == self.node) else { return };
        probes[at].watches -= 1;
        if probes[at].watches == 0 {
            let probe = probes.swap_remove(at);
            drop(probes);
            if node_of(probe.descriptor) == Some(probe.node) {
                // SAFETY: our own; if the program has reused its number for another file, it is left alone.
                drop(unsafe { OwnedFd::from_raw_fd(probe.descriptor) });
            }
        }
    }
}

/// Whether no file marked with `identity` is open anywhere, as seen through the descriptor of the process `keeper`.
/// If that descriptor cannot be opened, or is another file by now, the answer is unknown and counts as open.
pub fn is_closed(keeper: u32, watched: Watched, identity: u64) -> bool {
    let path = format!("/proc/{keeper}/fd/{}", watched.descriptor);
    let Some(file) = reopen_node(&path, watched.node) else { return false };
    matches!(lock::held_by_another(file.as_fd(), MARK_BASE + identity), Ok(false))
}

/// Opens `node`, expected at `path`, once more. The path is checked with O_PATH first, because the descriptor number
/// may name anything by now: opening a pipe wakes its writers, and opening a device runs its driver.
fn reopen_node(path: &str, node: FileNode) -> Option<File> {
    let place = File::options().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path).ok()?;
    if node_of(place.as_raw_fd()) != Some(node) {
        return None;
    }
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(format!("/proc/self/fd/{}", place.as_raw_fd()));
    file.ok().filter(|file| node_of(file.as_raw_fd()) == Some(node))
}

/// Clears the parent's watches in a forked child; the descriptors are closed on exec.
pub fn reset_after_fork() {
    // SAFETY: called by the child's settling thread, before any other thread continues.
    unsafe { NODE_PROBES.reset(Vec::new()) };
}

/// The identity of an opaque handle that is passed by value or through a socket.
pub fn of_bytes(handle: &[u8; 64]) -> u64 {
    hash64(handle).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exported() -> (File, File) {
        let path = std::env::temp_dir().join(format!("vgpu-descriptor-{}-{}", std::process::id(), fresh_identity()));
        let open = || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let both = (open(), open());
        std::fs::remove_file(path).unwrap();
        both
    }

    #[test]
    fn an_identity_travels_with_its_open_file_and_ends_with_it() {
        let (file, other) = exported();
        let (identity, number) = (fresh_identity(), file.as_raw_fd());
        assert_eq!(read(number), None);
        assert!(mark_descriptor(number, identity));
        assert!(mark_descriptor(number, identity), "exported again");
        let copy = file.try_clone().unwrap();
        assert_eq!((read(number), read(copy.as_raw_fd())), (Some(identity), Some(identity)));
        assert_eq!(read(other.as_raw_fd()), None, "another open file of the same node");
        assert!(mark_descriptor(other.as_raw_fd(), fresh_identity()));
        let watch = DescriptorWatch::watch_marks(number, identity).unwrap();
        let seen = watch.open().unwrap();
        drop(file);
        assert_eq!(watch.open(), Some(seen), "a copy is open");
        let own = std::process::id();
        assert!(!is_closed(own, seen, identity));
        drop(copy);
        assert_eq!(watch.open(), None, "the other file has another mark");
        assert!(is_closed(own, seen, identity), "seen as another process would");
        let elsewhere = Watched { node: (seen.node.0, seen.node.1 + 1), ..seen };
        assert!(!is_closed(own, elsewhere, identity), "another file by now tells nothing");
        drop(watch);
        assert!(!is_closed(own, seen, identity), "nor does one that is not there");
    }

    #[test]
    fn what_is_another_file_by_now_is_not_opened() {
        let path = std::env::temp_dir().join(format!("vgpu-pipe-{}-{}", std::process::id(), fresh_identity()));
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a string that ends in zero.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let named = File::options().read(true).custom_flags(libc::O_PATH).open(&path).unwrap();
        let watched = Watched { descriptor: u32::try_from(named.as_raw_fd()).unwrap(), node: (1, 2) };
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| File::options().write(true).open(&path).map(drop));
            for _ in 0..50 {
                assert!(!is_closed(std::process::id(), watched, 7));
                crate::ffi::clock::sleep(2_000_000);
            }
            let waits = !writer.is_finished();
            drop(File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path));
            writer.join().unwrap().unwrap();
            assert!(waits, "a writer waits for a reader, and none came");
        });
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_watch_closes_what_it_opened_and_nothing_else() {
        let (file, _other) = exported();
        let probe_of = |node| NODE_PROBES.lock().iter().find(|probe| probe.node == node).map(|probe| probe.descriptor);
        let node = node_of(file.as_raw_fd()).unwrap();
        let (first, second) = (
            DescriptorWatch::watch_marks(file.as_raw_fd(), 1).unwrap(),
            DescriptorWatch::watch_marks(file.as_raw_fd(), 2).unwrap(),
        );
        let probe = probe_of(node).unwrap();
        drop(first);
        assert_eq!(probe_of(node), Some(probe));
        drop(second);
        assert_eq!((probe_of(node), node_of(probe) == Some(node)), (None, false));
    }

    #[test]
    fn a_mark_is_told_from_other_locks() {
        let line = |kind: &str, first: u64, last: &str| {
            format!("pos:\t0\nlock:\t1: {kind} ADVISORY  READ -1 00:01:1024 {first} {last}\n")
        };
        assert_eq!(parse(&line("OFDLCK", MARK_BASE + 7, &(MARK_BASE + 7).to_string())), Some(7));
        assert_eq!(parse(&line("POSIX ", MARK_BASE + 7, &(MARK_BASE + 7).to_string())), None);
        assert_eq!(parse(&line("OFDLCK", 0, "EOF")), None);
        assert_eq!(parse(&line("OFDLCK", 5, "5")), None);
        assert_eq!(parse("lock:\n"), None);
    }

    #[test]
    fn identities_differ() {
        assert_ne!(fresh_identity(), fresh_identity());
        assert!((1..MARK_BASE).contains(&fresh_identity()));
    }
}
