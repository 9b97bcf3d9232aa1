//! Content shared with other processes: a file of the machine's shares replaces private pages.
//!
//! Memory becomes shared when it is first exported; its addresses do not change. Existing content is copied to
//! the file, and no work of the device may run meanwhile (`Engine::still`).
//! Not here: what a share is and which process owns it (vgpu-sim's `share`), the handles that name one (`names`).

use super::{MemoryTables, ProcessMemory};
use crate::devices::VisibleDevices;
use shim_sys::cuda::CUresult;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use vgpu_sim::share::{NewShare, ShareError, ShareInfo, ShareKind};

const SHARED_PAGE_BYTES: u64 = 4096;

/// CUDA_ERROR_OPERATING_SYSTEM: a system call failed.
const OPERATING_SYSTEM: CUresult = CUresult(304);

/// The error code for a share that cannot be made or held; `unknown`: the code for one that has ended.
pub(super) fn trouble_code(trouble: &ShareError, unknown: CUresult) -> CUresult {
    match trouble {
        ShareError::Unknown => unknown,
        ShareError::TooMany => CUresult::OUT_OF_MEMORY,
        ShareError::File(e) if e.raw_os_error() == Some(libc::ENOSPC) => CUresult::OUT_OF_MEMORY,
        ShareError::File(_) => OPERATING_SYSTEM,
    }
}

impl ProcessMemory {
    /// Replaces private pages by the file.
    pub(super) fn map_file(&self, at: u64, len: u64, file: &File) -> Result<(), CUresult> {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        if self.remap_range(at, len, flags, file.as_raw_fd()) { Ok(()) } else { Err(OPERATING_SYSTEM) }
    }

    /// Restores private pages that read as zero. If the kernel refuses, the file's pages stay until the next use.
    pub(super) fn map_private(&self, at: u64, len: u64) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        self.remap_range(at, len, flags, -1);
    }

    fn remap_range(&self, at: u64, len: u64, flags: i32, fd: i32) -> bool {
        let len = usize::try_from(len).unwrap_or(0);
        let place = self.content_place(at).cast();
        // SAFETY: a range of our own content mapping that the caller owns: whole pages, and no reference to them is
        // kept.
        unsafe {
            let p = libc::mmap(place, len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0);
            libc::madvise(place, len, libc::MADV_DONTDUMP);
            p != libc::MAP_FAILED
        }
    }

    /// Makes `[at, at + len)`, memory in this process's own record, a share, and holds it once.
    pub(super) fn make_common(
        &self,
        t: &mut MemoryTables,
        device: Option<i32>,
        (at, len, small): (u64, u64, bool),
    ) -> Result<u64, CUresult> {
        let device = device.map(|dev| self.devices.device_of_ordinal(dev).map(|x| x.index)).transpose()?;
        let new = NewShare { kind: ShareKind::Memory, device, bytes: len, small, words: [0; 4] };
        let (info, file) = self.devices.machine.make_share(&new).map_err(|e| trouble_code(&e, CUresult::UNKNOWN))?;
        // From here on the bytes belong to the share. If the rest fails, the share is kept until the process ends.
        t.held.insert(info.id, 1);
        self.carry_over(at, len, &file).map_err(|_| OPERATING_SYSTEM)?;
        self.map_file(at, len, &file)?;
        Ok(info.id)
    }

    /// Copies the existing pages of `[at, at + len)` into the file.
    fn carry_over(&self, at: u64, len: u64, file: &File) -> std::io::Result<()> {
        const MAPPED_FILES: usize = 512;
        let pages = File::open("/proc/self/pagemap")?;
        let first = self.content_place(at) as u64;
        let mut entries = [0u8; MAPPED_FILES * 8];
        let mut done = 0;
        while done < len {
            let n = usize::try_from((len - done) / SHARED_PAGE_BYTES).unwrap_or(MAPPED_FILES).min(MAPPED_FILES);
            pages.read_exact_at(&mut entries[..n * 8], (first + done) / SHARED_PAGE_BYTES * 8)?;
            for entry in entries[..n * 8].as_chunks::<8>().0 {
                // Takes only pages that are present or swapped out; all others are zero.
                if u64::from_ne_bytes(*entry) >> 62 != 0 {
                    // SAFETY: one page of our content mapping, which stays mapped; no effect of the device runs
                    // meanwhile.
                    let page = unsafe { std::slice::from_raw_parts((first + done) as *const u8, 4096) };
                    file.write_all_at(page, done)?;
                }
                done += SHARED_PAGE_BYTES;
            }
        }
        Ok(())
    }

    /// Counts one more hold in this process, which holds the share already.
    pub(super) fn hold_again(t: &mut MemoryTables, info: &ShareInfo) {
        *t.held.entry(info.id).or_insert(0) += 1;
    }

    /// Ends one hold; with the last one the process no longer holds the share.
    pub(super) fn let_share_go(&self, t: &mut MemoryTables, id: u64) {
        if let Some(n) = t.held.get_mut(&id) {
            *n -= 1;
            if *n == 0 {
                t.held.remove(&id);
                self.devices.machine.drop_share(id);
            }
        }
    }
}

/// The CUDA ordinal of a share's device in this process; `None`: host memory.
///
/// # Errors
/// `INVALID_DEVICE`: the process does not see the device.
pub(super) fn ordinal_of_share(devices: &VisibleDevices, info: &ShareInfo) -> Result<Option<i32>, CUresult> {
    let Some(index) = info.device else { return Ok(None) };
    let found = devices.all.iter().position(|x| x.index == index).and_then(|n| i32::try_from(n).ok());
    found.map(Some).ok_or(CUresult::INVALID_DEVICE)
}
