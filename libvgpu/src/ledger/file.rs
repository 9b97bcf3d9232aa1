//! Keeps the tenant's charges on one device: vgpu-core's ledger in a file that the tenant's processes map.
//!
//! A process is a member while it holds the lock of its slot. The kernel drops this lock when the last process with the
//! open file ends. The driver frees device memory by the same rule: a forked child that keeps its parent's descriptors
//! open keeps the lock and the memory alive.

use super::held_shares;
use super::joined::{JoinedLedger, LedgerLocks, ProcessTurn, SharedLedger};
use crate::ffi::clock::{coarse_now, now};
use crate::ffi::lock::Lock;
use crate::ffi::uuid;
use crate::process::tenant;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use shim_sys::shared_file::{FileAccess, SharedFile, leads_to, out_of_the_way, remove_unused};
use std::borrow::Cow;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use vgpu_core::limits::tenant::{TenantKey, hash64};
use vgpu_core::memory::ledger::{Kernel, LEDGER_BYTES, LayoutError, LedgerIdentity, Refusal, Reservation};
use vgpu_core::time::account::is_settled;

/// The charges of a tenant on one device.
pub struct Ledger {
    identity: LedgerIdentity,
    path: PathBuf,
    access: FileAccess,
    /// Descriptor of the ledger that the daemon handed over. It replaces the ledger at `path`. -1: none.
    handed: AtomicI32,
    joined: AtomicPtr<JoinedLedger>,
    joining: Lock<()>,
    /// Earliest time of the next attempt, for a ledger that could not be joined at the start. [`NO_WAIT`]: every call
    /// tries.
    retry: AtomicU64,
}

/// Least time between two attempts to join a ledger that could not be joined at the start.
const JOIN_RETRY_NS: u64 = 250_000_000;
/// Value of [`Ledger::retry`] with which every call tries to join.
const NO_WAIT: u64 = u64::MAX;

/// A ledger that could not be joined.
pub struct JoinFailure {
    /// One line that names the paths tried, each with its error.
    pub reason: String,
    /// The unjoined ledger, for a process that may run without a limit until the ledger can be joined. It retries the
    /// join later. `None`: there is no directory to try.
    pub ledger: Option<Ledger>,
}

/// Most directory entries that one search for ended ledgers reads. Both limits keep a search to about 100 us.
const MAX_FILES_SEEN: usize = 256;
/// Most ledgers that one search for ended ledgers opens.
const MAX_LEDGERS_SEEN: usize = 32;

/// Removes this user's ledgers that no member holds and that are settled: a new ledger would be the same.
///
/// A process may end by SIGKILL, so no process can be relied on to remove its own ledger. Instead each process that
/// made a new ledger removes ended ones, which keeps their number from growing with every tenant.
#[cold]
fn remove_ended(place: &Path) {
    let mut path = place.as_os_str().as_bytes().to_vec();
    path.push(b'/');
    let length = path.len();
    path.push(0);
    // SAFETY: ended by the line above; the directory is closed below.
    let directory = unsafe { libc::opendir(path.as_ptr().cast()) };
    if directory.is_null() {
        return;
    }
    let mut left = MAX_LEDGERS_SEEN;
    for _ in 0..MAX_FILES_SEEN {
        // SAFETY: an open directory, of this thread alone.
        let entry = unsafe { libc::readdir(directory) };
        if entry.is_null() || left == 0 {
            break;
        }
        // SAFETY: an entry's name is a C string and stays until the next one is read.
        let name = unsafe { CStr::from_ptr((*entry).d_name.as_ptr()) }.to_bytes_with_nul();
        if name.starts_with(b"vgpu-") && name.ends_with(b".ledger\0") {
            left -= 1;
            path.truncate(length);
            path.extend_from_slice(name);
            let _ = CStr::from_bytes_until_nul(&path).map(|path| remove_unused(path, is_over));
        }
    }
    // SAFETY: opened above.
    unsafe { libc::closedir(directory) };
}

/// True if an unused file is a settled ledger of this user.
fn is_over(file: BorrowedFd<'_>, stat: &libc::stat) -> bool {
    let mut header = [0; 128];
    // SAFETY: an open file, and a local of that length.
    let read = unsafe { libc::pread(file.as_raw_fd(), header.as_mut_ptr().cast(), header.len(), 0) };
    // SAFETY: no preconditions.
    let ours = stat.st_uid == unsafe { libc::geteuid() } && stat.st_size == LEDGER_BYTES as libc::off_t;
    ours && read == header.len().cast_signed() && is_settled(&header, now())
}

impl Ledger {
    fn at_path(path: PathBuf, identity: LedgerIdentity, access: FileAccess) -> Self {
        let (joined, joining) = (AtomicPtr::new(core::ptr::null_mut()), Lock::new(()));
        let (handed, retry) = (AtomicI32::new(-1), AtomicU64::new(NO_WAIT));
        Self { identity, path, access, handed, joined, joining, retry }
    }

    /// Returns an unjoined ledger in a file of the test.
    #[cfg(test)]
    pub fn of_a_test(path: PathBuf) -> Self {
        Self::at_path(path, LedgerIdentity { tenant: 1, device: 1 }, FileAccess::Owner)
    }

    /// Opens the tenant's ledger of the device and becomes a member.
    ///
    /// # Errors
    /// [`JoinFailure`] with the reason, if the ledger cannot be opened or joined.
    pub fn open(key: &TenantKey, uuid: &[u8; 16]) -> Result<Self, JoinFailure> {
        let text = uuid::uuid_text(uuid);
        let name = key.ledger_file(&text);
        let identity = LedgerIdentity { tenant: key.hash(), device: hash64(text.as_bytes()) };
        if let Some(directory) = tenant::kept_ledgers() {
            return Self::open_kept(directory.join(name), identity);
        }
        let access = if tenant::shared_by_users() { FileAccess::Everybody } else { FileAccess::Owner };
        let mut tried = String::new();
        let mut later = None;
        for place in tenant::ledger_directories() {
            let ledger = Self::at_path(place.join(&name), identity, access);
            let is_new = ledger.path.symlink_metadata().is_err();
            match ledger.join() {
                Ok(_) => {
                    if is_new {
                        remove_ended(&place);
                    }
                    return Ok(ledger);
                }
                Err(e) => {
                    let exists = ledger.path.symlink_metadata().is_ok();
                    if !tried.is_empty() {
                        tried.push_str("; ");
                    }
                    tried.push_str(&format!("{}: {e}", ledger.path.display()));
                    ledger.retry.store(now(), Relaxed);
                    if exists {
                        // A process that cannot use this file must not try the next directory: it would get a second
                        // full limit there.
                        later = Some(ledger);
                        break;
                    }
                    later.get_or_insert(ledger);
                }
            }
        }
        let reason = format!(
            "the tenant's ledger cannot be kept ({tried}); set VGPU_STATE_DIR to a directory this user may write"
        );
        Err(JoinFailure { reason, ledger: later })
    }

    /// Opens by its name the ledger that the daemon keeps. If that fails, the daemon hands the ledger over when this
    /// process joins the device.
    fn open_kept(path: PathBuf, identity: LedgerIdentity) -> Result<Self, JoinFailure> {
        let ledger = Self::at_path(path, identity, FileAccess::Given);
        match ledger.join() {
            Ok(_) => Ok(ledger),
            Err(e) => {
                let reason = format!(
                    "the daemon keeps the tenant's ledger, and it cannot be opened without it ({}: {e}); start vgpud, or \
                     mount that directory writable into the container",
                    ledger.path.display()
                );
                ledger.retry.store(now(), Relaxed);
                Err(JoinFailure { reason, ledger: Some(ledger) })
            }
        }
    }

    /// Returns this process's membership, and joins first if there is none, as in a forked child.
    ///
    /// # Errors
    /// The reason, if the file cannot be opened again or all slots are taken.
    ///
    /// # Cost
    /// One load.
    #[inline]
    pub fn membership(&self) -> Result<&'static JoinedLedger, String> {
        // SAFETY: null, or leaked by `join`.
        match unsafe { self.joined.load(Acquire).as_ref() } {
            Some(joined) => Ok(joined),
            None => self.join(),
        }
    }

    #[cold]
    fn join(&self) -> Result<&'static JoinedLedger, String> {
        let retry = self.retry.load(Relaxed);
        if retry != NO_WAIT {
            let now = coarse_now();
            if now < retry {
                return Err("the tenant's ledger could not be joined".into());
            }
            self.retry.store(now + JOIN_RETRY_NS, Relaxed);
        }
        let fresh = self.join_named()?;
        let _joining = self.joining.lock();
        let there = self.joined.load(Acquire);
        // SAFETY: null, or leaked below.
        if let Some(joined) = unsafe { there.as_ref() } {
            return Ok(joined); // another thread was faster; `fresh` closes its file, which frees its slot
        }
        let joined = Box::leak(fresh);
        self.joined.store(joined, Release);
        Ok(joined)
    }

    fn join_named(&self) -> Result<Box<JoinedLedger>, String> {
        loop {
            let joined = self.join_file()?;
            // A cleaner removes a ledger only while it holds all locks of it. This process now holds a slot's lock, so
            // a file that still has its name keeps it.
            if !joined.file.is_unlinked() {
                return Ok(Box::new(joined));
            }
        }
    }

    /// Moves this process's charges to the file that replaces `old`.
    ///
    /// A cleaner or the end of a login session may have removed the old file, or the daemon handed over another one.
    /// Processes that start later use the new file, so this process's memory must count there. If the daemon keeps the
    /// ledger and has not made a new one yet, the old one stays in use.
    #[cold]
    fn follow_file(&self, old: &'static JoinedLedger) -> Result<&'static JoinedLedger, String> {
        let fresh = match self.join_named() {
            Err(_) if self.access == FileAccess::Given && self.path.symlink_metadata().is_err() => return Ok(old),
            fresh => fresh?,
        };
        let overhead = old.member.overhead_bytes();
        let used = old.member.used_bytes().max(overhead);
        // No limit applies, because the driver already spent these bytes.
        fresh.charge_spent(used - overhead);
        fresh.member.charge_spent_overhead(overhead);
        let joined = {
            let _joining = self.joining.lock();
            // SAFETY: leaked by `join` or here.
            match unsafe { self.joined.load(Acquire).as_ref() } {
                Some(joined) if !core::ptr::eq(joined, old) => return Ok(joined), // another thread was faster
                _ => {
                    let joined: &'static JoinedLedger = Box::leak(fresh);
                    self.joined.store(core::ptr::from_ref(joined).cast_mut(), Release);
                    joined
                }
            }
        };
        held_shares::follow_ledger(old, joined);
        // If the new membership is in the same file, the charge counts twice until it is released here.
        if joined.file.lock_file().is_some_and(|file| old.file.is_same(file)) {
            old.member.release_overhead(overhead);
            old.member.release(used - overhead);
        }
        Ok(joined)
    }

    /// Reserves bytes without a system call if they fit. `None` is no refusal: [`Ledger::reserve`] must decide. It
    /// means that the sum was too large, nothing is joined, the charges are damaged, or the file's name is due for a
    /// check.
    ///
    /// # Cost
    /// Two atomic additions and a scan of the slots ever used.
    #[inline(always)]
    pub fn reserve_at_once(&self, bytes: u64, limit: u64) -> Option<Reservation<'static>> {
        // SAFETY: null, or leaked by `join`.
        let joined = unsafe { self.joined.load(Acquire).as_ref()? };
        if joined.is_time_to_look() || !joined.member.is_intact() {
            None
        } else {
            joined.member.reserve_at_once(bytes, limit)
        }
    }

    /// Reserves bytes without a limit in the joined file, even if the file lost its name. `None`: no file is joined.
    #[cold]
    pub fn reserve_as_joined(&self, bytes: u64) -> Option<Reservation<'static>> {
        // SAFETY: null, or leaked by `join`.
        unsafe { self.joined.load(Acquire).as_ref()? }.member.reserve_at_once(bytes, u64::MAX)
    }

    /// Reserves bytes as [`vgpu_core::memory::ledger::Member::reserve`] does, after a check that the file still has its
    /// name.
    ///
    /// # Errors
    /// `Ok(Err)` with the numbers if the bytes do not fit. `Err` with the reason if the ledger itself became unusable.
    pub fn reserve(&self, bytes: u64, limit: u64) -> Result<Result<Reservation<'static>, Refusal>, String> {
        let mut joined = self.membership()?;
        if joined.file.is_unlinked() {
            joined = self.follow_file(joined)?;
        }
        joined.check_intact()?;
        let outcome = joined.member.reserve(bytes, limit, &joined.file_locks());
        if outcome.is_err() && held_shares::end_closed() {
            return Ok(joined.member.reserve(bytes, limit, &joined.file_locks()));
        }
        Ok(outcome)
    }

    /// Counts a refused request of the program.
    #[cold]
    pub fn note_refused(&self) {
        // SAFETY: null, or leaked by `join`.
        if let Some(joined) = unsafe { self.joined.load(Acquire).as_ref() } {
            joined.member.member_ledger().header().note_refused();
        }
    }

    /// Returns the owner of the file at the ledger's path, if this is not the process's own user.
    fn foreign_owner(&self) -> Option<u32> {
        // SAFETY: no preconditions.
        let uid = unsafe { libc::geteuid() };
        self.path.symlink_metadata().ok().map(|there| there.uid()).filter(|owner| *owner != uid)
    }

    /// Switches to the ledger that the daemon handed over, and moves this process's charges there.
    ///
    /// # Errors
    /// The reason, if the file is no ledger of this tenant and device or cannot be opened.
    pub fn take_handed(&self, file: OwnedFd) -> Result<(), String> {
        // SAFETY: null, or leaked by `join`.
        let joined = unsafe { self.joined.load(Acquire).as_ref() };
        if joined.is_some_and(|joined| joined.file.is_same(file.as_fd()) && joined.file.lock_file().is_some()) {
            return Ok(());
        }
        // A program may close all descriptors. If the path leads to the same file, open the ledger by its path, which
        // still works then.
        let handed = match leads_to(&self.path, file.as_fd()) {
            true => -1,
            false => out_of_the_way(file).map_err(|e| e.to_string())?.into_raw_fd(),
        };
        // The previous descriptor is not closed: the program may have closed it, and its number may now belong to the
        // program.
        self.handed.store(handed, Release);
        self.retry.store(NO_WAIT, Relaxed);
        let joined = joined.map_or_else(|| self.membership(), |joined| self.follow_file(joined));
        if joined.is_err() {
            self.retry.store(now(), Relaxed);
        }
        joined.map(drop)
    }

    /// Returns the bytes that the tenant holds. At most every 50 ms it also checks the file's name and reclaims dead
    /// members' charges, since both cost system calls.
    ///
    /// # Errors
    /// The reason, if the ledger became unusable.
    pub fn tenant_used(&self) -> Result<u64, String> {
        let mut joined = self.membership()?;
        let now = coarse_now();
        let swept = joined.swept.load(Relaxed);
        if now.saturating_sub(swept) > 50_000_000 && joined.swept.compare_exchange(swept, now, Relaxed, Relaxed).is_ok()
        {
            if joined.file.is_unlinked() {
                joined = self.follow_file(joined)?;
            }
            held_shares::end_closed();
            joined.member.reclaim_dead(&joined.file_locks());
        }
        joined.check_intact()?;
        Ok(joined.member.member_ledger().used())
    }

    fn join_file(&self) -> Result<JoinedLedger, String> {
        let (path, access) = match self.handed.load(Acquire) {
            -1 => (Cow::Borrowed(self.path.as_path()), self.access),
            handed => (Cow::Owned(PathBuf::from(format!("/proc/self/fd/{handed}"))), FileAccess::HandedOver),
        };
        let is_given = matches!(access, FileAccess::Given | FileAccess::HandedOver);
        let file = SharedFile::<SharedLedger>::open(&path, access).map_err(|e| match self.foreign_owner() {
            Some(owner) if !is_given => format!(
                "{e}; it belongs to user {owner}: remove it, or start the tenant's first process with VGPU_SHARED_UIDS=1 if \
                 its users are to share one ledger"
            ),
            _ => e.to_string(),
        })?;
        let kernel = ProcessTurn { taken: AtomicU32::new(0) };
        let page = &file.shared_page().0;
        let locks = LedgerLocks { file: &file, turn: &kernel };
        // The daemon formats its own ledgers, so a file without a header at such a path came from the program.
        if !is_given && page.header.check(self.identity) == Err(LayoutError::NotFormatted) {
            if !locks.lock_turn(now() + 2_000_000_000) {
                return Err("its creator holds it for more than 2 s".into());
            }
            if page.header.check(self.identity) == Err(LayoutError::NotFormatted) {
                page.header.format_header(self.identity);
            }
            locks.unlock_turn();
        }
        page.header.check(self.identity).map_err(|e| e.to_string())?;
        let member = page.as_ledger().join(std::process::id(), now(), &locks).map_err(|e| e.to_string())?;
        Ok(JoinedLedger { file, member, kernel, swept: AtomicU64::new(0), calls: Default::default() })
    }

    /// Gives up the parent's membership in a forked child. The parent keeps its slot.
    pub fn reset_after_fork(&self) {
        // SAFETY: the child's only thread.
        unsafe { self.joining.reset(()) };
        let inherited = self.joined.swap(core::ptr::null_mut(), AcqRel);
        if !inherited.is_null() {
            // SAFETY: leaked by `join`, and nobody uses it any more. The page stays mapped, which holds no lock.
            unsafe { core::ptr::read(&raw const (*inherited).file) }.give_up_inherited();
        }
    }
}

impl Drop for Ledger {
    /// Frees the slot of a ledger that was opened and is not needed.
    fn drop(&mut self) {
        let joined = self.joined.swap(core::ptr::null_mut(), AcqRel);
        if !joined.is_null() {
            // SAFETY: leaked by `join`; a ledger that is dropped was never shown to anybody.
            drop(unsafe { Box::from_raw(joined) });
        }
    }
}
