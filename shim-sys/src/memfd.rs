//! Shares a page of atomics through a sealed memory file, between processes that do not trust each other.
//!
//! The maker (vgpud) and the receiver (libvgpu) use the same two types. Seals, which nobody can remove, limit a
//! receiver's access to the file. The mode of a descriptor does not: its holder can open the file again through
//! /proc. If the file became smaller than its page, a reader past its end would die of SIGBUS. So the size is sealed
//! before another process gets the file, and a receiver checks size and seals before it maps.
//!
//! - [`WriteAccess::Everybody`]: the size is sealed, and everybody can write. A reader must not trust the contents.
//! - [`WriteAccess::Maker`]: only mappings made before the seal can write: the maker's own, which a forked child
//!   shares. The kernel refuses new writable mappings, `write`, `fallocate` and `mprotect` (F_SEAL_FUTURE_WRITE,
//!   Linux 5.1).
//!
//! A holder of a file that everybody can write can still punch a hole into it; all readers then see zeroes there.
//!
//! Both sides are in this crate and use only libc: the library must not get another dependency, and the daemon's
//! crate forbids the unsafe code that a mapping needs. Not here: the contents of a page (vgpu-core's `page`), passing
//! descriptors ([`crate::descriptors`]).

use core::ops::Deref;
use std::ffi::CStr;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use vgpu_core::protocol::page::{BeatPage, BoardPage, ReportPage};

use crate::shared_file::Page;

// SAFETY: in vgpu-core these types hold only atomics and padding, and its code checks any bytes they may contain.
unsafe impl Page for BeatPage {}
// SAFETY: as above.
unsafe impl Page for BoardPage {}
// SAFETY: as above.
unsafe impl Page for ReportPage {}

/// Processes that may write to the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteAccess {
    /// Only the process that made the file.
    Maker,
    /// Every process that has a descriptor.
    Everybody,
}

impl WriteAccess {
    const SIZE: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

    /// The seals that a receiver requires.
    const fn required_seals(self) -> libc::c_int {
        match self {
            Self::Maker => Self::SIZE | libc::F_SEAL_FUTURE_WRITE,
            Self::Everybody => Self::SIZE,
        }
    }
}

/// A [`Page`] in a mapping of its own. Clones share the mapping; dropping the last one unmaps it.
pub struct MappedPage<T: Page>(Arc<MappedRegion<T>>);

struct MappedRegion<T> {
    at: *const T,
}

// SAFETY: a Page is Sync, and a region hands out nothing but shared references to it.
unsafe impl<T: Page> Send for MappedRegion<T> {}
// SAFETY: as above.
unsafe impl<T: Page> Sync for MappedRegion<T> {}

impl<T> Drop for MappedRegion<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this size; no reference to it outlives the region.
        unsafe { libc::munmap(self.at.cast_mut().cast(), size_of::<T>()) };
    }
}

impl<T: Page> Clone for MappedPage<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Page> Deref for MappedPage<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped readable with the size of T at a page's boundary for as long as the region lives; T is a Page:
        // atomics only, any bits valid. The file cannot become shorter: it was sealed before it was mapped.
        unsafe { &*self.0.at }
    }
}

impl<T: Page> core::fmt::Debug for MappedPage<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Mapped").field(&self.0.at).finish()
    }
}

/// A page made by this process, and its file for other processes.
#[derive(Debug)]
pub struct OwnedPage<T: Page> {
    file: OwnedFd,
    page: MappedPage<T>,
}

impl<T: Page> OwnedPage<T> {
    /// Makes a file of zeroes of the size of `T`, maps it readable and writable, and seals it. /proc shows `name`.
    ///
    /// # Errors
    /// - `Unsupported`: the kernel has no memory files, or cannot seal one against writing; the text names the first
    ///   version that can.
    /// - Others: the kernel's error (too many descriptors, no memory).
    pub fn new(name: &CStr, reach: WriteAccess) -> std::io::Result<Self> {
        const { assert!(align_of::<T>() <= 4096) };
        let file = create_memfd(name)?;
        let size = libc::off_t::try_from(size_of::<T>()).map_err(|_| Error::from(ErrorKind::InvalidInput))?;
        // SAFETY: the descriptor is open.
        if unsafe { libc::ftruncate(file.as_raw_fd(), size) } != 0 {
            return Err(Error::last_os_error());
        }
        // Map first: after the seal against writing, no writable mapping can be made.
        let page = map(file.as_fd(), libc::PROT_READ | libc::PROT_WRITE)?;
        add_seals(file.as_fd(), reach.required_seals())?;
        Ok(Self { file, page })
    }

    /// The page, writable.
    #[must_use]
    pub fn mapped_page(&self) -> &MappedPage<T> {
        &self.page
    }

    /// The file, to pass on or to close, and the page, which stays mapped.
    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, MappedPage<T>) {
        (self.file, self.page)
    }

    /// The file, to pass on; close-on-exec.
    #[must_use]
    pub fn file_to_hand_out(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Maps the page of a received file writable. The descriptor may be closed afterwards.
///
/// # Errors
/// As [`receive_read_only`].
pub fn receive_page<T: Page>(file: BorrowedFd<'_>) -> std::io::Result<MappedPage<T>> {
    verify_file::<T>(file, WriteAccess::Everybody)?;
    map(file, libc::PROT_READ | libc::PROT_WRITE)
}

/// Maps a page that only its maker writes.
///
/// # Safety
/// The caller makes only relaxed loads through the result. Its memory is mapped read-only, and Rust allows no other
/// atomic accesses there. The member's side of vgpu-core's `page` follows this rule.
///
/// # Errors
/// `InvalidData`: not a memory file, another size, or seals missing; the text says which. Others: the kernel's error.
pub unsafe fn receive_read_only<T: Page>(file: BorrowedFd<'_>) -> std::io::Result<MappedPage<T>> {
    verify_file::<T>(file, WriteAccess::Maker)?;
    map(file, libc::PROT_READ)
}

fn create_memfd(name: &CStr) -> std::io::Result<OwnedFd> {
    const PLAIN: libc::c_uint = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // The file is never executable. Since Linux 6.3; a system may require the flag (vm.memfd_noexec).
    const NOEXEC: libc::c_uint = 0x8;
    let make = |flags: libc::c_uint| {
        // By syscall number: glibc has a function for it only since 2.27, the kernel supports it since 3.17.
        // SAFETY: a C string and flags.
        let raw = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) };
        let Some(raw) = libc::c_int::try_from(raw).ok().filter(|raw| *raw >= 0) else {
            return Err(Error::last_os_error());
        };
        // SAFETY: just made, owned by nobody else.
        Ok(unsafe { OwnedFd::from_raw_fd(raw) })
    };
    let made = match make(PLAIN | NOEXEC) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => make(PLAIN),
        other => other,
    };
    made.map_err(|e| match e.raw_os_error() {
        Some(libc::ENOSYS) => {
            unsupported_error("the kernel has no memory files (memfd_create): Linux 3.17 or later is needed")
        }
        _ => e,
    })
}

fn add_seals(file: BorrowedFd<'_>, seals: libc::c_int) -> std::io::Result<()> {
    // SAFETY: the descriptor is open; the argument is an int.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(seal_error(Error::last_os_error(), seals)),
    }
}

/// An older kernel answers EINVAL to an unknown seal.
fn seal_error(error: Error, seals: libc::c_int) -> Error {
    match error.raw_os_error() {
        Some(libc::EINVAL) if seals & libc::F_SEAL_FUTURE_WRITE != 0 => unsupported_error(
            "the kernel cannot seal a memory file against writing (F_SEAL_FUTURE_WRITE): Linux 5.1 or later is needed",
        ),
        _ => error,
    }
}

fn unsupported_error(words: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, words)
}

fn verify_file<T>(file: BorrowedFd<'_>, reach: WriteAccess) -> std::io::Result<()> {
    let invalid = |words: String| Err(Error::new(ErrorKind::InvalidData, words));
    // SAFETY: the descriptor is open for the borrow.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 {
        // Only memory files have seals.
        return invalid("is no memory file".into());
    }
    let missing = reach.required_seals() & !seals;
    if missing != 0 {
        let names = [
            (libc::F_SEAL_SHRINK, "shrink"),
            (libc::F_SEAL_GROW, "grow"),
            (libc::F_SEAL_SEAL, "seal"),
            (libc::F_SEAL_FUTURE_WRITE, "future-write"),
        ];
        let names: Vec<&str> = names.iter().filter(|(bit, _)| missing & bit != 0).map(|(_, name)| *name).collect();
        return invalid(format!("is not sealed: {} missing", names.join(", ")));
    }
    if reach == WriteAccess::Everybody && seals & (libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) != 0 {
        return invalid("is sealed against writing".into());
    }
    // SAFETY: all zeroes is a valid stat, which fstat fills.
    let size = unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        if libc::fstat(file.as_raw_fd(), &raw mut stat) != 0 {
            return Err(Error::last_os_error());
        }
        stat.st_size
    };
    // The size is sealed, as checked above, so it cannot change.
    if usize::try_from(size) != Ok(size_of::<T>()) {
        return invalid(format!("has {size} bytes, not {}: made by another version?", size_of::<T>()));
    }
    Ok(())
}

fn map<T: Page>(file: BorrowedFd<'_>, protection: libc::c_int) -> std::io::Result<MappedPage<T>> {
    const { assert!(size_of::<T>() > 0) };
    // SAFETY: a fresh shared mapping of an open file, at an address of the kernel's choice.
    let at =
        unsafe { libc::mmap(core::ptr::null_mut(), size_of::<T>(), protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    Ok(MappedPage(Arc::new(MappedRegion { at: at.cast_const().cast() })))
}

#[cfg(test)]
#[path = "memfd_tests.rs"]
mod tests;
