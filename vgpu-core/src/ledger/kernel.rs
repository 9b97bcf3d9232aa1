//! What only the operating system can say or do, as a trait: locks that end with their holder, and time.

/// A descriptor of a process's own through which it can see whether one that was exported is open anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watched {
    /// Its number.
    pub descriptor: u32,
    /// Device and inode of its file: another file under that number sees nothing.
    pub node: (u64, u64),
}

/// The kernel's part of the ledger; shim-sys implements it with locks on the ledger's file.
///
/// # Rules for an implementation
/// - A lock ends when the driver frees what its holder had on the device: at death by whatever cause, without
///   anybody's help. (A forked child that never touched the driver may keep both alive, lock and memory.)
/// - A share's lock is a read lock of each process that holds the share, and a write lock of whoever settles it. A
///   process has one lock on a share: taking the other kind converts it, at once and without a gap.
/// - Slot and share locks exclude other processes. Threads of one process need not be excluded; the ledger keeps
///   them apart itself.
/// - The turn excludes other processes *and* other threads of this process.
/// - A failing system call counts as "not obtained".
pub trait Kernel {
    /// Takes the lock of the slot if nobody holds it. Never waits.
    fn try_lock_slot(&self, index: usize) -> bool;

    /// Gives back a lock that [`Kernel::try_lock_slot`] took.
    fn unlock_slot(&self, index: usize);

    /// Takes the write lock of the share if no other process holds it in any way. Never waits.
    fn try_lock_share(&self, index: usize) -> bool;

    /// Takes a read lock of the share, or makes our write lock one. Never waits.
    fn try_hold_share(&self, index: usize) -> bool;

    /// Gives back whichever lock of the share we have.
    fn unlock_share(&self, index: usize);

    /// Takes the write lock of the share's second byte, whose read locks say that it is kept for a descriptor.
    fn try_lock_kept(&self, index: usize) -> bool;

    /// Takes a read lock of the share's second byte.
    fn try_keep_share(&self, index: usize) -> bool;

    /// Gives back whichever lock of the share's second byte we have.
    fn unlock_kept(&self, index: usize);

    /// Whether no descriptor that is marked with `identity` is open anywhere, as far as that can be seen through a
    /// descriptor of the process `keeper`. What cannot be seen is open.
    fn is_closed(&self, keeper: u32, watched: Watched, identity: u64) -> bool;

    /// Takes the turn, waiting until `now()` reaches `deadline` at most; says whether it did.
    fn lock_turn(&self, deadline: u64) -> bool;

    /// Gives the turn back.
    fn unlock_turn(&self);

    /// Monotonic nanoseconds; only differences matter.
    fn now(&self) -> u64;

    /// Waits a little before the `round`-th repetition (from 0): spin first, then about 50 us.
    fn wait(&self, round: u32);
}
