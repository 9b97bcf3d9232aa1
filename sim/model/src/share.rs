//! Shares: memory that several processes can hold, with one physical copy.
//!
//! An exported allocation moves out of its process's own record into an entry here, with a file next to the state
//! for its content. Holders are slots, one bit each, and file descriptors given to programs. The descriptor
//! has a kernel lock on its open file. So a descriptor that is in transit in a socket, or that no process has
//! imported, also keeps the memory. An entry ends with its last holder. Removing a dead process clears its bit,
//! so a kill leaks nothing.
//!
//! Which process owns the memory, for the ground truth and NVML: the creator while it lives and holds it.
//! Otherwise the living holder with the lowest slot. Memory that only descriptors hold belongs to the creator
//! while it lives, then to no process.
//!
//! Not here: addresses, mappings, handles (the driver).

use crate::layout::{
    COMPUTE_LANE, DeviceUse, MAX_SHARES, NO_SLOT, SLOT_SET_WORDS, SharedMemory, StateBody, TO_DEVICE_LANE,
    TO_HOST_LANE, WorkLine, set_bit, set_bits,
};
use crate::machine::{MachineView, now};
use crate::memory::signed_bytes;
use crate::numbers::MARK_PREFIX;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Type of a share, an object that several processes may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ShareKind {
    /// Memory of a device or of the host.
    Memory = 1,
    /// Identity of a memory pool; the pool's memory is shared chunk by chunk.
    Pool = 2,
    /// A multicast object of CUDA.
    Multicast = 3,
}

/// Description of a share to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewShare {
    /// Type of the new share.
    pub kind: ShareKind,
    /// The device; `None`: host memory, which is counted nowhere.
    pub device: Option<usize>,
    /// Bytes of content, and of device memory if there is a device.
    pub bytes: u64,
    /// True if the process's record counts these bytes as a slab that small requests share.
    pub small: bool,
    /// Data of the driver, opaque to the model.
    pub words: [u64; 4],
}

/// A share as its holders see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareInfo {
    /// Number of the share, never used twice.
    pub id: u64,
    /// A [`ShareKind`] as a number.
    pub kind: u32,
    /// The device on which the share is; `None`: host memory.
    pub device: Option<usize>,
    /// Bytes of the share's content.
    pub bytes: u64,
    /// Number of the process that made the share.
    pub creator: u64,
    /// True while that process lives and holds it.
    pub held_by_creator: bool,
    /// Data of the driver, opaque to the model.
    pub words: [u64; 4],
}

/// Why a share cannot be made or held.
#[derive(Debug)]
pub enum ShareError {
    /// The share has ended, or never existed.
    Unknown,
    /// All [`MAX_SHARES`] entries are in use.
    TooMany,
    /// The content's file cannot be made or opened.
    File(Error),
}

impl StateBody {
    /// The slot that owns the share's memory. `None`: no process owns it, only a descriptor in transit keeps it.
    pub fn owner_of(&self, share: &SharedMemory) -> Option<usize> {
        let creator = share.creator as usize;
        let lives = self.slots[creator].state == 1 && self.slots[creator].serial == share.creator_serial;
        let lowest = set_bits(&share.holders).next();
        match lowest {
            _ if lives && share.holders[creator / 64] & (1 << (creator % 64)) != 0 => Some(creator),
            None if lives => Some(creator),
            other => other,
        }
    }

    /// Bytes of all shares on device `d`, whichever process owns them.
    pub fn shared_bytes(&self, d: usize) -> u64 {
        self.shares_on(d).map(|s| s.bytes).sum()
    }

    /// Bytes of shares on device `d` that no process owns.
    pub fn unclaimed_bytes(&self, d: usize) -> u64 {
        self.shares_on(d).filter(|s| self.owner_of(s).is_none()).map(|s| s.bytes).sum()
    }

    /// Memory and work of the process in `slot` on device `d`, including the shares it owns.
    pub fn used_with_shares(&self, slot: usize, d: usize) -> DeviceUse {
        let mut used = self.own_use(slot, d);
        let sd = &self.slots[slot].devices[d];
        used.busy = sd.lanes[COMPUTE_LANE].busy + sd.waited;
        used.copying = sd.lanes[TO_DEVICE_LANE].busy + sd.lanes[TO_HOST_LANE].busy;
        used.submitted = used.busy + sd.lanes.iter().map(WorkLine::line_backlog).sum::<u64>();
        for s in self.shares_on(d).filter(|s| self.owner_of(s) == Some(slot)) {
            *(if s.small == 1 { &mut used.slabs } else { &mut used.large }) += s.bytes;
        }
        used.peak = used.peak.max(used.physical_bytes());
        used
    }

    /// Physical bytes in use on device `d`, all processes and shares added.
    pub fn taken_bytes(&self, d: usize) -> u64 {
        set_bits(&self.live).map(|s| self.own_use(s, d).physical_bytes()).sum::<u64>() + self.shared_bytes(d)
    }

    /// The bit set of shares in use, up to the highest entry that was ever used.
    fn shares_in_use(&self) -> &[u64] {
        &self.shared[..(self.shares_top as usize).div_ceil(64).min(MAX_SHARES / 64)]
    }

    /// True if the process in `slot` holds a share.
    pub(crate) fn holds_shares(&self, slot: usize) -> bool {
        set_bits(self.shares_in_use()).any(|i| self.shares[i].holders[slot / 64] & (1 << (slot % 64)) != 0)
    }

    fn shares_on(&self, d: usize) -> impl Iterator<Item = &SharedMemory> {
        set_bits(self.shares_in_use()).map(|i| &self.shares[i]).filter(move |s| s.device as usize == d)
    }

    fn share_index(&self, meant: impl Fn(&SharedMemory) -> bool) -> Option<usize> {
        set_bits(self.shares_in_use()).find(|i| meant(&self.shares[*i]))
    }

    fn info(&self, i: usize) -> ShareInfo {
        let s = &self.shares[i];
        let creator = s.creator as usize;
        let held = s.holders[creator / 64] & (1 << (creator % 64)) != 0;
        ShareInfo {
            id: s.id,
            kind: s.kind,
            device: (s.device != NO_SLOT).then_some(s.device as usize),
            bytes: s.size,
            creator: s.creator_serial,
            held_by_creator: held && self.slots[creator].serial == s.creator_serial,
            words: s.words,
        }
    }

    /// Clears the holder bit of a dead process; [`MachineView::end_unheld`] then ends shares without a holder.
    pub(crate) fn let_go_of_shares(&mut self, slot: usize) {
        for i in 0..self.shares_top as usize {
            set_bit(&mut self.shares[i].holders, slot, false);
        }
    }
}

impl MachineView {
    /// Turns memory of this process into a share: the bytes leave the process's record. Returns the share and the
    /// file for its content, which reads as zero.
    ///
    /// # Errors
    /// All entries are in use, or the file cannot be made; no memory has moved then.
    pub fn make_share(&self, new: &NewShare) -> Result<(ShareInfo, File), ShareError> {
        let mut b = self.lock();
        let i = (0..MAX_SHARES).find(|i| b.shared[i / 64] & (1 << (i % 64)) == 0).ok_or(ShareError::TooMany)?;
        b.shares_made += 1;
        let me = self.own_slot();
        let id = b.shares_made;
        let bytes = if new.device.is_some() && new.kind == ShareKind::Memory { new.bytes } else { 0 };
        let mut entry = SharedMemory {
            id,
            kind: new.kind as u32,
            device: new.device.map_or(NO_SLOT, |d| u32::try_from(d).unwrap_or(NO_SLOT)),
            creator: u32::try_from(me).unwrap_or(NO_SLOT),
            small: u32::from(new.small),
            descriptors: 0,
            pad: 0,
            creator_serial: b.slots[me].serial,
            bytes,
            size: new.bytes,
            node: [0; 2],
            words: new.words,
            holders: [0; SLOT_SET_WORDS],
        };
        set_bit(&mut entry.holders, me, true);
        b.shares[i] = entry;
        b.shares_top = b.shares_top.max(u32::try_from(i + 1).unwrap_or(0));
        // From here on the entry counts. A process killed before the file exists leaves an entry without one, which
        // ends like any other.
        set_bit(&mut b.shared, i, true);
        let made = self.make_content(id, new.bytes);
        let (file, node) = match made {
            Ok(f) => f,
            Err(e) => {
                set_bit(&mut b.shared, i, false);
                return Err(ShareError::File(e));
            }
        };
        b.shares[i].node = node;
        if let Some(d) = new.device.filter(|_| bytes > 0) {
            let used = &mut b.slots[me].devices[d].used;
            let field = if new.small { &mut used.slabs } else { &mut used.large };
            *field = field.saturating_add_signed(-signed_bytes(bytes));
        }
        Ok((b.info(i), file))
    }

    /// Adds this process to the holders of the live share `id` and opens its content.
    ///
    /// # Errors
    /// The share has ended, or its file cannot be opened.
    pub fn hold_share(&self, id: u64) -> Result<(ShareInfo, File), ShareError> {
        self.hold_where(|s| s.id == id)
    }

    /// Adds this process to the holders of the share that `fd` refers to, and opens its content again. The caller may
    /// close `fd` afterwards.
    ///
    /// # Errors
    /// `fd` is no descriptor of a share of this machine.
    pub fn hold_descriptor(&self, fd: i32) -> Result<(ShareInfo, File), ShareError> {
        let node = node_of(fd).map_err(ShareError::File)?;
        self.hold_where(|s| s.node == node)
    }

    fn hold_where(&self, meant: impl Fn(&SharedMemory) -> bool) -> Result<(ShareInfo, File), ShareError> {
        let mut b = self.lock();
        self.reap_dead(&mut b, now());
        let i = b.share_index(meant).ok_or(ShareError::Unknown)?;
        let file = open_content(&self.content_path(b.shares[i].id)).map_err(ShareError::File)?;
        let me = self.own_slot();
        set_bit(&mut b.shares[i].holders, me, true);
        if b.shares[i].device != NO_SLOT {
            let d = b.shares[i].device as usize;
            b.slots[me].touched |= 1 << d;
            let now_used = b.used_with_shares(me, d).physical_bytes();
            let used = &mut b.slots[me].devices[d].used;
            used.peak = used.peak.max(now_used);
        }
        Ok((b.info(i), file))
    }

    /// Describes a share, whether or not this process holds it.
    pub fn share_info(&self, id: u64) -> Option<ShareInfo> {
        let b = self.lock();
        b.share_index(|s| s.id == id).map(|i| b.info(i))
    }

    /// Changes the driver's words of a share that this process holds; returns the new words.
    pub fn with_share_words(&self, id: u64, change: impl FnOnce(&mut [u64; 4])) -> Option<[u64; 4]> {
        let mut b = self.lock();
        let i = b.share_index(|s| s.id == id)?;
        change(&mut b.shares[i].words);
        Some(b.shares[i].words)
    }

    /// Removes this process from the holders of a share.
    pub fn drop_share(&self, id: u64) {
        let mut b = self.lock();
        let me = self.own_slot();
        if let Some(i) = b.share_index(|s| s.id == id) {
            set_bit(&mut b.shares[i].holders, me, false);
        }
        self.end_unheld(&mut b);
    }

    /// Returns a descriptor for the program. It keeps the share until its open file is closed everywhere, including
    /// copies in sockets.
    ///
    /// # Errors
    /// The share has ended, or the descriptor cannot be opened.
    pub fn share_descriptor(&self, id: u64) -> Result<OwnedFd, Error> {
        let mut b = self.lock();
        let i = b.share_index(|s| s.id == id).ok_or(ErrorKind::NotFound)?;
        let file = open_content(&self.content_path(id))?;
        let lock = first_byte(libc::F_RDLCK);
        // SAFETY: an open descriptor and a live structure.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } != 0 {
            return Err(Error::last_os_error());
        }
        b.shares[i].descriptors = 1;
        Ok(file.into())
    }

    /// Ends the shares that no process and no descriptor holds.
    pub(crate) fn end_unheld(&self, b: &mut StateBody) {
        let unheld: Vec<usize> =
            set_bits(b.shares_in_use()).filter(|i| b.shares[*i].holders == [0; SLOT_SET_WORDS]).collect();
        for i in unheld {
            let path = self.content_path(b.shares[i].id);
            if b.shares[i].descriptors == 1 && is_locked(&path) {
                continue;
            }
            // Remove the file first: a process killed in between leaves the entry, and the next call finds it again.
            let _ = std::fs::remove_file(&path);
            set_bit(&mut b.shared, i, false);
        }
    }

    fn content_path(&self, id: u64) -> PathBuf {
        self.state_directory().join(format!("share.{id}"))
    }

    fn make_content(&self, id: u64, bytes: u64) -> Result<(File, [u64; 2]), Error> {
        let path = self.content_path(id);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        file.set_len(bytes)?;
        // Accessible to all users whatever the umask, like the state file.
        file.set_permissions(Permissions::from_mode(0o666))?;
        let node = node_of(file.as_raw_fd())?;
        Ok((file, node))
    }
}

/// Removes the content files in `dir` after its state was removed, for a reset of the machine.
pub(crate) fn remove_contents(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|n| n.starts_with("share.") || n.starts_with(MARK_PREFIX)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn open_content(path: &Path) -> Result<File, Error> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Device and inode number of an open file.
fn node_of(fd: i32) -> Result<[u64; 2], Error> {
    // SAFETY: an all-zero stat is a valid value of this plain structure; the kernel fills it or fails.
    let (rc, stat) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &raw mut stat), stat)
    };
    if rc == 0 { Ok([stat.st_dev, stat.st_ino]) } else { Err(Error::last_os_error()) }
}

fn first_byte(kind: libc::c_int) -> libc::flock {
    // Only the first byte: the program may use locks of its own on the rest of the file.
    // SAFETY: all zeroes is a valid flock.
    let mut l: libc::flock = unsafe { std::mem::zeroed() };
    l.l_type = libc::c_short::try_from(kind).unwrap_or(0);
    l.l_whence = libc::c_short::try_from(libc::SEEK_SET).unwrap_or(0);
    l.l_len = 1;
    l
}

/// True while a descriptor given to a program is open in some process or socket.
fn is_locked(path: &Path) -> bool {
    let Ok(file) = open_content(path) else { return false };
    let mut l = first_byte(libc::F_WRLCK);
    // SAFETY: an open descriptor and a live structure for the kernel to fill.
    let rc = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut l) };
    rc == 0 && l.l_type != libc::c_short::try_from(libc::F_UNLCK).unwrap_or(0)
}

impl ShareInfo {
    /// True if the share is of this kind.
    pub fn is_kind(&self, kind: ShareKind) -> bool {
        self.kind == kind as u32
    }
}

const _: () = assert!(MAX_SHARES.is_multiple_of(64));
