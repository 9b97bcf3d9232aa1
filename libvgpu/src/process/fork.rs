//! Detects, for the price of a load, that this process is a forked child.
//!
//! A page that the kernel zeroes in a child (MADV_WIPEONFORK) holds a mark. A missing mark means that this is a child
//! that has not settled yet: at its next call it gives up the state it inherited and registers again. No fork handler
//! is registered with the C library, so a child that never touches a GPU runs no code of ours.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// Mark of a process that is no forked child, or has given up the state it inherited.
const CHILD_SETTLED: u32 = 1;
/// A thread of a child is giving up the inherited state.
const CHILD_SETTLING: u32 = 2;

/// The mark's page; null until placed.
static FORK_MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// Where the kernel cannot wipe a page (before 4.14, some sandboxes): the process id that placed the mark; else 0.
static MARK_OWNER: AtomicU32 = AtomicU32::new(0);

/// Places the mark, before there is state that a child could inherit. May be called again.
pub fn place_mark() {
    if !FORK_MARK.load(Acquire).is_null() || MARK_OWNER.load(Acquire) != 0 {
        return;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh private mapping of one page at an address of the kernel's choice.
    let page = unsafe { libc::mmap(core::ptr::null_mut(), 4096, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        MARK_OWNER.store(std::process::id(), Release);
        return;
    }
    let mark = page.cast::<AtomicU32>();
    // SAFETY: the page is ours, zeroed, and large enough.
    let wiped = unsafe {
        (*mark).store(CHILD_SETTLED, Relaxed);
        libc::madvise(page, 4096, libc::MADV_WIPEONFORK) == 0
    };
    if !wiped {
        MARK_OWNER.store(std::process::id(), Release);
    }
    if !wiped || FORK_MARK.compare_exchange(core::ptr::null_mut(), mark, AcqRel, Acquire).is_err() {
        // SAFETY: no other thread knows the page.
        unsafe { libc::munmap(page, 4096) };
    }
}

/// Whether this process has surely settled. `false` means unknown, not that this is a child.
///
/// # Cost
/// Two loads.
#[inline(always)]
pub fn is_settled() -> bool {
    let mark = FORK_MARK.load(Relaxed);
    // SAFETY: a mark once placed is never unmapped.
    !mark.is_null() && unsafe { &*mark }.load(Acquire) == CHILD_SETTLED
}

/// Runs `settle` if this process is a child that has not yet given up its inherited state. Other threads wait until
/// it has.
///
/// # Cost
/// Three loads; where the kernel cannot wipe pages, a system call.
#[inline]
pub fn reset_in_child(settle: impl FnOnce()) {
    let mark = FORK_MARK.load(Relaxed);
    if mark.is_null() {
        return reset_unmarked(settle);
    }
    // SAFETY: a mark once placed is never unmapped.
    let mark = unsafe { &*mark };
    if mark.load(Acquire) != CHILD_SETTLED {
        reset_once(mark, settle);
    }
}

/// As [`reset_in_child`], by the process id. Out of line: most hooks contain the other case.
#[cold]
#[inline(never)]
fn reset_unmarked(settle: impl FnOnce()) {
    let owner = MARK_OWNER.load(Relaxed);
    if owner != 0 && owner != std::process::id() && MARK_OWNER.swap(std::process::id(), AcqRel) == owner {
        settle();
    }
}

#[cold]
#[inline(never)]
fn reset_once(mark: &AtomicU32, settle: impl FnOnce()) {
    if mark.compare_exchange(0, CHILD_SETTLING, AcqRel, Acquire).is_ok() {
        settle();
        mark.store(CHILD_SETTLED, Release);
    }
    while mark.load(Acquire) != CHILD_SETTLED {
        crate::ffi::clock::sleep(10_000);
    }
}
