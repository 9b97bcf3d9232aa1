//! The operations of the ledger that need the operating system, as a trait: locks that end with their holder, and
//! time.

/// A descriptor of a process through which others can see if an exported descriptor is still open anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watched {
    /// The descriptor's number in that process.
    pub descriptor: u32,
    /// Device and inode of its file. If another file has that number by now, nothing can be concluded.
    pub node: (u64, u64),
}

/// System operations for the ledger; shim-sys implements them with locks on the ledger's file.
///
/// # Rules for an implementation
/// - A lock ends when the driver frees its holder's device memory: at death by any cause, without help from others.
///   (A forked child that never touched the driver may keep both alive, lock and memory.)
/// - Each process that holds a share has a read lock on it; a process that settles it has a write lock. A process has
///   one lock on a share: taking the other kind converts it, atomically.
/// - Slot and share locks exclude other processes. They need not exclude threads of one process; the ledger does
///   that.
/// - The turn lock excludes other processes *and* other threads of this process.
/// - A failed system call counts as "not obtained".
pub trait Kernel {
    /// Takes the lock of the slot if it is free. Never waits.
    fn try_lock_slot(&self, index: usize) -> bool;

    /// Releases a lock that [`Kernel::try_lock_slot`] took.
    fn unlock_slot(&self, index: usize);

    /// Takes the write lock of the share if no other process has any lock on it. Never waits.
    fn try_lock_share(&self, index: usize) -> bool;

    /// Takes a read lock of the share, or converts this process's write lock to one. Never waits.
    fn try_hold_share(&self, index: usize) -> bool;

    /// Releases this process's lock of the share, of either kind.
    fn unlock_share(&self, index: usize);

    /// Takes the write lock of the share's second byte. Read locks on that byte mean that the share is kept for a
    /// descriptor.
    fn try_lock_kept(&self, index: usize) -> bool;

    /// Takes a read lock of the share's second byte.
    fn try_keep_share(&self, index: usize) -> bool;

    /// Releases this process's lock of the share's second byte, of either kind.
    fn unlock_kept(&self, index: usize);

    /// True if no descriptor marked with `identity` is open anywhere, as seen through a descriptor of the process
    /// `keeper`. If that cannot be determined, the descriptor counts as open.
    fn is_closed(&self, keeper: u32, watched: Watched, identity: u64) -> bool;

    /// Takes the turn lock, waiting at most until `now()` reaches `deadline`. Returns true if it was obtained.
    fn lock_turn(&self, deadline: u64) -> bool;

    /// Releases the turn lock.
    fn unlock_turn(&self);

    /// Monotonic nanoseconds; only differences matter.
    fn now(&self) -> u64;

    /// Waits briefly before repetition number `round` (from 0): spins first, then sleeps about 50 us.
    fn wait(&self, round: u32);
}
