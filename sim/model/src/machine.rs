//! The machine: opens or makes the state file, maps it, holds this process's slot, and removes dead processes.
//!
//! The state is the file `state` in `VGPU_SIM_DIR` (default `/dev/shm/vgpu-sim-<uid>`). It is completed under
//! another name and then linked into place. So of many processes that start at the same time exactly one makes
//! it. Its devices are chosen then, by `VGPU_SIM_PROFILE` (default `h200`); later values of that variable have no
//! effect. All users can access the file, like the device nodes of a real driver. Its pages are not reserved:
//! when /dev/shm is full, the simulator ends with SIGBUS.
//! Not here: the work and memory on the devices (`sched`, `memory`), the process's own queues (`engine`).

use crate::bury::end_process;
use crate::layout::{
    MAX_PROCESSES, NO_SLOT, ProcessSlot, STATE_MAGIC, STATE_RUNNING, STATE_VERSION, StateBody, StateFile, set_bit,
    set_bits,
};
use crate::lock::{self, LockHolder, LockOutcome};
use crate::numbers;
use crate::profile::{DeviceProfile, parse_list};
use crate::sched;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// Offset of the first liveness lock in the state file, far beyond its end; each slot locks one byte.
const LOCK_BASE: i64 = 1 << 40;
/// Shortest time between two searches for dead processes while time is computed, ns.
const REAP_EVERY_NS: u64 = 5_000_000;

/// A process's view of the simulated machine.
///
/// It belongs to the process that opened it. After a fork the child calls [`MachineView::is_inherited`], drops it
/// with [`MachineView::forget_inherited`] and opens its own.
#[derive(Debug)]
pub struct MachineView {
    shared: NonNull<StateFile>,
    file: File,
    slot: usize,
    holder: LockHolder,
    pid: u32,
    pid_namespace: u32,
    /// The file whose lock tells other pid namespaces this process's number; `None`: it cannot be made.
    mark: Option<File>,
    dir: PathBuf,
}

// SAFETY: the mapping is shared between processes already; every access to its body goes through the machine's lock.
unsafe impl Send for MachineView {}
// SAFETY: as above.
unsafe impl Sync for MachineView {}

/// The shared state while this process holds its lock.
pub struct LockedState<'a> {
    machine: &'a MachineView,
}

impl std::ops::Deref for LockedState<'_> {
    type Target = StateBody;
    fn deref(&self) -> &StateBody {
        // SAFETY: mapped for the life of the machine; the lock makes this the only access in any process.
        unsafe { &(*self.machine.shared.as_ptr()).body }
    }
}

impl std::ops::DerefMut for LockedState<'_> {
    fn deref_mut(&mut self) -> &mut StateBody {
        // SAFETY: as above.
        unsafe { &mut (*self.machine.shared.as_ptr()).body }
    }
}

impl Drop for LockedState<'_> {
    fn drop(&mut self) {
        // SAFETY: mapped for the life of the machine.
        lock::unlock(unsafe { &self.machine.shared.as_ref().lock });
    }
}

/// Time of CLOCK_MONOTONIC, ns.
pub fn now() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Time of CLOCK_REALTIME, ns.
pub fn wall_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

fn clock_ns(id: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live structure for the kernel to fill.
    unsafe { libc::clock_gettime(id, &raw mut t) };
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

/// The directory of the state: `VGPU_SIM_DIR`, else one per user in /dev/shm.
pub fn default_directory() -> PathBuf {
    match std::env::var_os("VGPU_SIM_DIR") {
        Some(d) if !d.is_empty() => d.into(),
        // SAFETY: has no preconditions.
        _ => format!("/dev/shm/vgpu-sim-{}", unsafe { libc::getuid() }).into(),
    }
}

impl MachineView {
    /// Opens the machine that the environment names; makes it if it does not exist.
    pub fn open() -> Result<MachineView, Error> {
        let profile = std::env::var("VGPU_SIM_PROFILE").unwrap_or_default();
        MachineView::open_at(&default_directory(), Some(profile.trim()).filter(|p| !p.is_empty()))
    }

    /// Opens the machine in `dir`; a new one gets the devices of `profile` (default `h200`).
    ///
    /// # Errors
    /// The directory cannot be made or written, the profile is not understood, the state has another version, or all
    /// process slots are taken.
    pub fn open_at(dir: &Path, profile: Option<&str>) -> Result<MachineView, Error> {
        let path = dir.join("state");
        let file = loop {
            match OpenOptions::new().read(true).write(true).open(&path).and_then(move_descriptor) {
                Ok(f) => break f,
                Err(e) if e.kind() == ErrorKind::NotFound => create_state(dir, &path, profile.unwrap_or("h200"))?,
                Err(e) => return Err(Error::new(e.kind(), format!("{}: {e}", path.display()))),
            }
        };
        // Mapped through a second open file. A mapping keeps its open file alive, even in a forked child that has
        // closed the descriptor; mapped through `file`, it would also keep the slot's lock.
        let apart = OpenOptions::new().read(true).write(true).open(&path).and_then(move_descriptor)?;
        if apart.metadata()?.ino() != file.metadata()?.ino() {
            return MachineView::open_at(dir, profile); // the file was replaced between the two opens
        }
        let shared = map(&apart, &path)?;
        let mut machine = MachineView {
            shared,
            file,
            slot: 0,
            holder: LockHolder::new(0, 0),
            pid: std::process::id(),
            pid_namespace: numbers::own_namespace(),
            mark: None,
            dir: dir.to_owned(),
        };
        machine.take_slot()?;
        Ok(machine)
    }

    /// Directory that holds the machine's state.
    pub fn state_directory(&self) -> &Path {
        &self.dir
    }

    /// True in a child that inherited this value through fork.
    pub fn is_inherited(&self) -> bool {
        self.pid != std::process::id()
    }

    /// Drops an inherited machine in a forked child: closes its copy of the descriptor, so that other processes notice
    /// the parent's death.
    pub fn forget_inherited(self) {
        drop(self);
    }

    /// The descriptor whose lock marks this process as alive; a forked child must close its copy.
    pub fn liveness_descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Number of devices of the machine.
    pub fn device_count(&self) -> usize {
        self.lock().device_count as usize
    }

    /// The profile of device `i`.
    pub fn profile_of(&self, i: usize) -> DeviceProfile {
        self.lock().devices[i].profile
    }

    /// Values that make a share's name unique: the machine's identity, new with every reset, and this process's
    /// number.
    pub fn name_numbers(&self) -> (u64, u64) {
        let b = self.lock();
        (b.boot, b.slots[self.slot].serial)
    }

    /// Index of this process's entry in the table of processes.
    pub fn own_slot(&self) -> usize {
        self.slot
    }

    /// The number of the process in `slot` in this process's pid namespace. `None`: it has none there.
    ///
    /// # Cost
    /// Three system calls for a process of another namespace, else none.
    pub fn number_of(&self, body: &StateBody, slot: usize) -> Option<u32> {
        let ProcessSlot { pid, pid_namespace, .. } = body.slots[slot];
        if pid_namespace == self.pid_namespace { Some(pid) } else { numbers::number_of_holder(&self.dir, slot) }
    }

    /// The mapped state, for words that are read without the lock.
    pub(crate) fn shared_state(&self) -> *mut StateFile {
        self.shared.as_ptr()
    }

    /// This process's checkpoint state, which is read without the lock.
    pub(crate) fn checkpoint_word(&self) -> &AtomicU32 {
        // SAFETY: mapped for the life of self; an aligned u32 that everybody treats as an atomic.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.shared.as_ptr()).body.slots[self.slot].checkpoint) }
    }

    /// Takes the lock; completes the update that a dead holder left half made.
    pub fn lock(&self) -> LockedState<'_> {
        // SAFETY: mapped for the life of self.
        let word = unsafe { &self.shared.as_ref().lock };
        let taken = lock::lock(word, self.holder, |slot| is_slot_held(&self.file, slot));
        let mut body = LockedState { machine: self };
        if taken == LockOutcome::FromTheDead {
            crate::bury::repair_burial(&mut body);
        }
        body
    }

    /// Takes the lock and advances `device` to now; looks for dead processes at most every 5 ms.
    pub fn at_present(&self, device: usize) -> (LockedState<'_>, u64) {
        self.at_moment(device, None)
    }

    /// As [`MachineView::at_present`], for the time `moment`, which is not long ago; another process may have
    /// advanced the device beyond it.
    pub fn at_moment(&self, device: usize, moment: Option<u64>) -> (LockedState<'_>, u64) {
        let mut body = self.lock();
        let time = moment.unwrap_or_else(now);
        if time.saturating_sub(body.reaped_at) > REAP_EVERY_NS {
            self.reap_dead(&mut body, time);
        }
        sched::advance_device(&mut body, device, time);
        (body, time)
    }

    /// Takes the lock, removes dead processes, and advances all devices to now.
    pub fn lock_settled(&self) -> LockedState<'_> {
        let mut body = self.lock();
        let time = now();
        self.reap_dead(&mut body, time);
        for d in 0..body.device_count as usize {
            sched::advance_device(&mut body, d, time);
        }
        body
    }

    /// Calls [`MachineView::reap_dead`] unless that happened within the last 20 us: a query that a program makes a
    /// million times a second must not cost a system call per process.
    pub fn reap_now_and_then(&self, body: &mut StateBody, time: u64) {
        if time.wrapping_sub(body.reaped_at) > 20_000 {
            self.reap_dead(body, time);
        }
    }

    /// Removes dead processes, as the kernel driver does when a process's files are closed.
    ///
    /// Their queued work ends at the present time of the device's clock; their counters are kept in `finished`.
    pub fn reap_dead(&self, body: &mut StateBody, time: u64) {
        body.reaped_at = time;
        let live = body.live;
        for s in set_bits(&live) {
            if s != self.slot && !is_slot_held(&self.file, s) {
                end_process(body, s, time);
            }
        }
        self.end_unheld(body);
    }

    fn take_slot(&mut self) -> Result<(), Error> {
        let start = (self.pid as usize).wrapping_mul(7) % MAX_PROCESSES;
        let slot =
            (0..MAX_PROCESSES).map(|k| (start + k) % MAX_PROCESSES).find(|s| hold_slot(&self.file, *s)).ok_or_else(
                || Error::other(format!("all {MAX_PROCESSES} process slots of the simulated machine are in use")),
            )?;
        // SAFETY: mapped; the slot's byte is ours, and its generation is written by the byte's holder only.
        let generation = unsafe {
            let g = &raw mut (*self.shared.as_ptr()).body.slots[slot].generation;
            *g = (*g).wrapping_add(1);
            *g
        };
        self.slot = slot;
        // Moved before it is locked: the lock ends with any descriptor of the file.
        self.mark = numbers::open_mark(&self.dir, slot).and_then(move_descriptor).ok();
        self.mark = self.mark.take().filter(|mark| numbers::lock_mark(mark).is_ok());
        self.holder = LockHolder::new(slot, generation);
        // SAFETY: mapped for the life of self.
        let word = unsafe { &self.shared.as_ref().lock };
        if lock::inherit_lock(word, slot, self.holder) {
            crate::bury::repair_burial(&mut LockedState { machine: self });
        }
        let time = now();
        let mut body = self.lock();
        if body.live[slot / 64] & (1 << (slot % 64)) != 0 {
            end_process(&mut body, slot, time);
        }
        body.processes += 1;
        let serial = body.processes;
        let s = &mut body.slots[slot];
        s.state = 1;
        (s.pid, s.pid_namespace) = (self.pid, self.pid_namespace);
        // SAFETY: has no preconditions.
        s.uid = unsafe { libc::getuid() };
        s.serial = serial;
        s.since = time;
        s.touched = 0;
        s.checkpoint = STATE_RUNNING;
        s.fault = 0;
        s.name = [0; 128];
        let name = std::fs::read_link("/proc/self/exe").unwrap_or_default();
        let name = name.as_os_str().as_encoded_bytes();
        let n = name.len().min(127);
        s.name[..n].copy_from_slice(&name[..n]);
        set_bit(&mut body.live, slot, true);
        Ok(())
    }
}

impl Drop for MachineView {
    fn drop(&mut self) {
        if !self.is_inherited() {
            let mut body = self.lock();
            let time = now();
            for d in 0..body.device_count as usize {
                sched::advance_device(&mut body, d, time);
            }
            end_process(&mut body, self.slot, time);
            self.end_unheld(&mut body);
            if self.mark.is_some() {
                let _ = std::fs::remove_file(numbers::mark_path(&self.dir, self.slot));
            }
        }
        // SAFETY: mapped with this length by `map`; no reference outlives self.
        unsafe { libc::munmap(self.shared.as_ptr().cast(), size_of::<StateFile>()) };
    }
}

/// A small libc constant in the integer width of `flock` fields.
fn to_short(v: libc::c_int) -> libc::c_short {
    libc::c_short::try_from(v).unwrap_or(0)
}

fn byte_lock(slot: usize) -> libc::flock {
    // SAFETY: an all-zero flock is a valid value of this plain structure.
    let mut l: libc::flock = unsafe { std::mem::zeroed() };
    l.l_type = to_short(libc::F_WRLCK);
    l.l_whence = to_short(libc::SEEK_SET);
    l.l_start = LOCK_BASE + i64::try_from(slot).unwrap_or(0);
    l.l_len = 1;
    l
}

/// Moves the descriptor above those of the program: a file on descriptor 0, 1 or 2 would receive the program's
/// prints.
fn move_descriptor(file: File) -> Result<File, Error> {
    for lowest in [256, 3] {
        // SAFETY: an open descriptor; the copy has no other owner.
        let raw = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest) };
        if raw >= 0 {
            // SAFETY: just made.
            return Ok(unsafe { File::from_raw_fd(raw) });
        }
    }
    Err(Error::last_os_error())
}

/// Locks the slot's byte for this open file; false when another open file has it.
fn hold_slot(file: &File, slot: usize) -> bool {
    let l = byte_lock(slot);
    // SAFETY: an open descriptor and a live structure.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const l) == 0 }
}

/// True while another open file holds the slot's byte.
fn is_slot_held(file: &File, slot: usize) -> bool {
    let mut l = byte_lock(slot);
    // SAFETY: an open descriptor and a live structure for the kernel to fill.
    let rc = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut l) };
    rc != 0 || l.l_type != to_short(libc::F_UNLCK)
}

fn map(file: &File, path: &Path) -> Result<NonNull<StateFile>, Error> {
    let size = size_of::<StateFile>();
    let wrong = |why: &str| {
        Error::new(ErrorKind::InvalidData, format!("{}: {why}; remove it or run `vgpu sim reset`", path.display()))
    };
    if file.metadata()?.len() != size as u64 {
        return Err(wrong("state of another version of the simulator"));
    }
    // SAFETY: a shared mapping of an open file with its exact size, at an address of the kernel's choice.
    let p = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            0,
        )
    };
    if p == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    let shared = NonNull::new(p.cast::<StateFile>()).ok_or_else(|| Error::other("mapped at null"))?;
    // SAFETY: mapped above; these fields are constant once the file is linked into place.
    let (magic, version, stated) = unsafe { (shared.as_ref().magic, shared.as_ref().version, shared.as_ref().size) };
    if magic != STATE_MAGIC || version != STATE_VERSION || stated != size as u64 {
        // SAFETY: mapped above with this size.
        unsafe { libc::munmap(p, size) };
        return Err(wrong("state of another version of the simulator"));
    }
    Ok(shared)
}

/// Makes the state under a temporary name and links it into place; another process may win that race.
fn create_state(dir: &Path, path: &Path, profile: &str) -> Result<(), Error> {
    let profiles = parse_list(profile)
        .map_err(|e| Error::new(ErrorKind::InvalidInput, format!("VGPU_SIM_PROFILE={profile:?}: {e}")))?;
    let describe = |p: &Path, e: Error| Error::new(e.kind(), format!("{}: {e}", p.display()));
    let is_new = !dir.exists();
    std::fs::DirBuilder::new().recursive(true).mode(0o777).create(dir).map_err(|e| describe(dir, e))?;
    if is_new {
        // Each user's processes put files of their own next to the state, whatever the umask.
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o1777)).map_err(|e| describe(dir, e))?;
    }
    let boot = wall_ns() ^ (u64::from(std::process::id()) << 40);
    let temporary = dir.join(format!("state.{}.{:x}", std::process::id(), boot ^ now()));
    let made = (|| {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.set_len(size_of::<StateFile>() as u64)?;
        // SAFETY: the file is ours, has the size of Shared and is all zeroes, which is a valid Shared: it is made of
        // integers and arrays of integers.
        unsafe {
            let p = libc::mmap(
                std::ptr::null_mut(),
                size_of::<StateFile>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            );
            if p == libc::MAP_FAILED {
                return Err(Error::last_os_error());
            }
            let s = &mut *p.cast::<StateFile>();
            s.magic = STATE_MAGIC;
            s.version = STATE_VERSION;
            s.size = size_of::<StateFile>() as u64;
            s.body.boot = boot;
            s.body.created_ns = wall_ns();
            s.body.device_count = u32::try_from(profiles.len()).unwrap_or(0);
            let mut board = 0;
            for (i, profile) in profiles.iter().enumerate() {
                // Instances of one device are adjacent; the first one, like a whole device, starts a new board.
                board += u32::from(profile.mig <= 1);
                init_device(&mut s.body.devices[i], board - 1, profile);
            }
            libc::munmap(p, size_of::<StateFile>());
        }
        // Accessible to all users whatever the umask, like /dev/nvidia0.
        file.set_permissions(std::fs::Permissions::from_mode(0o666))?;
        match std::fs::hard_link(&temporary, path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(e),
            _ => Ok(()),
        }
    })();
    let _ = std::fs::remove_file(&temporary);
    made.map_err(|e| describe(path, e))
}

/// Fills in the device on board `n`, or one instance of it.
fn init_device(d: &mut crate::layout::DeviceBody, n: u32, profile: &DeviceProfile) {
    d.profile = *profile;
    for lane in &mut d.lanes {
        (lane.current, lane.last, lane.clock) = (NO_SLOT, NO_SLOT, now());
    }
    d.minor = n;
    d.pci_bus = 0x17 + n * 0x0B;
    // Deterministic, distinct per index and kind, with the version 4 and variant bits of real UUIDs.
    let mut seed = u64::from(n) + 1;
    for b in profile.profile_key().bytes() {
        seed = crate::faults::splitmix64(seed ^ u64::from(b));
    }
    d.uuid[..8].copy_from_slice(&crate::faults::splitmix64(seed).to_be_bytes());
    d.uuid[8..].copy_from_slice(&crate::faults::splitmix64(seed ^ 0x5851_F42D_4C95_7F2D).to_be_bytes());
    d.uuid[6] = (d.uuid[6] & 0x0F) | 0x40;
    d.uuid[8] = (d.uuid[8] & 0x3F) | 0x80;
    if profile.mig > 0 {
        d.uuid[15] = u8::try_from(profile.mig).unwrap_or(0);
    }
}
