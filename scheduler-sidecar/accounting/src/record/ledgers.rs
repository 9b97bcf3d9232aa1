//! Reads the tenants' ledgers in the daemon: the memory that each tenant holds on a device, its peak, and its refused
//! requests.
//!
//! A member sends its ledger's file when it joins a device. The daemon does not trust the file: it must be a plain
//! file of a ledger's size on a file system of this host. It is never mapped, because a truncation would kill the
//! daemon; it is only read. A separate thread reads it, which is abandoned if the file does not answer ([`Apart`]);
//! then no file of that tenant is read again. The content is the tenant's own statement about itself and decides
//! nothing.
//!
//! A ledger is read every [`QUICK`] for one second after it changed, or a process of the tenant joined or ended.
//! Otherwise processes that live less than a second would end between two readings. After that it is read after a
//! second, then ever more rarely, up to every ten seconds. A launch of the tenant brings it back to a second. Not
//! here: the use of the readings ([`super::integrate`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, fstat, fstatfs};
use shim_sys::lock;
use vgpu_core::ledger::{HEADER_SIZE, LEDGER_SIZE, copied, extent, open_doors_in, slot_lock_offset};

use super::apart::Apart;
use crate::shelf::Shelf;

/// Longest wait for a file to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two readings of a ledger that changed within the last [`SOON`].
pub const QUICK: Duration = Duration::from_millis(100);
/// Most readings in each [`QUICK`] that do not wait for the reading of all that is due. The bound keeps their cost
/// constant, however many tenants change; that cost is not measured.
pub const QUICK_READINGS: usize = 10;
/// Time between two readings of a ledger: [`SOON`] after its last change, doubling up to [`SELDOM`].
const SOON: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(10);
/// Most ledgers of a tenant on a device: one for each of its containers.
const MOST: usize = 8;
/// Cap on reported bytes: a petabyte, more than any tenant holds.
const MOST_BYTES: u64 = 1 << 50;
/// Magic numbers of the trusted file systems: tmpfs, ext4, xfs, btrfs, overlayfs.
const HOSTS: [i64; 5] = [0x0102_1994, 0xef53, 0x5846_5342, 0x9123_683e, 0x794c_7630];

/// Tenants (by room) whose files did not answer; no more files are taken from them.
pub type Barred = Arc<Mutex<BTreeSet<u64>>>;

/// A tenant on a device: the number of its room and the device's UUID.
pub type Whose = (u64, String);

/// Memory that one process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Process id in its own pid namespace.
    pub pid: u32,
    /// Bytes that count against the limit.
    pub used: u64,
    /// Part of `used` that the program did not allocate itself.
    pub overhead: u64,
}

/// Memory that a tenant holds on a device, from its ledgers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes that count against the limit.
    pub used: u64,
    /// Part of `used` that the programs did not allocate themselves.
    pub overhead: u64,
    /// Most bytes held at once since the ledgers were created.
    pub peak: u64,
    /// Allocation requests refused since then.
    pub refused: u64,
    /// Bytes that the programs ever requested, modulo 2^64.
    pub claimed: u64,
    /// Number of bypasses of the library that the programs found, and the name of the first one.
    pub doors: Option<(u64, String)>,
    /// Living processes; memory that several processes share is in none of them.
    pub parts: Vec<Part>,
}

impl Held {
    /// Returns the memory of the process with this pid in its own namespace; `None` if unknown or if several have
    /// that pid.
    #[must_use]
    pub fn part(&self, pid: u32) -> Option<Part> {
        let mut parts = self.parts.iter().filter(|part| part.pid == pid);
        parts.next().copied().filter(|_| parts.next().is_none())
    }

    fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.used, other.used),
            (&mut self.overhead, other.overhead),
            (&mut self.peak, other.peak),
            (&mut self.refused, other.refused),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.claimed = self.claimed.wrapping_add(other.claimed);
        self.parts.extend(&other.parts);
    }
}

/// Reasons for not reading a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unread {
    /// The file is no ledger, or no longer one.
    NoLedger(&'static str),
    /// The file does not answer.
    Silent,
}

/// Result for a file that a member sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offered {
    /// A new ledger.
    New,
    /// A known ledger, or one beyond the bound.
    Known,
}

/// Device and inode of a file, equal for all of its names.
type Identity = (u64, u64);

struct Kept {
    whose: Whose,
    identity: Identity,
    held: Held,
    /// Start of the reading of `held`.
    read: Instant,
    /// Refusals and peak at the first reading.
    before: (u64, u64),
    due: Instant,
    pause: Duration,
    /// Last change of the ledger, or last join or end of a process of the tenant.
    moved: Instant,
}

impl Kept {
    /// Schedules quick readings after a process of the tenant joined or ended.
    fn stir(&mut self, now: Instant) {
        (self.moved, self.pause, self.due) = (now, QUICK, now);
    }

    /// Schedules the next reading after one.
    fn plan_next(&mut self, now: Instant) {
        self.pause = match now.saturating_duration_since(self.moved) < SOON {
            true => QUICK,
            false => (self.pause * 2).clamp(SOON, SELDOM),
        };
        self.due = now + self.pause;
    }
}

/// All ledgers. Their files lie on a [`Shelf`], where they take no place in the daemon's descriptor table.
pub struct Ledgers {
    apart: Apart,
    shelf: Shelf<1>,
    kept: BTreeMap<u64, Kept>,
    /// Tenants with a ledger that was readable before and is not now, and the reason.
    broken: BTreeMap<Whose, &'static str>,
    next: u64,
    barred: Barred,
}

impl Ledgers {
    /// Starts without ledgers.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn new(barred: Barred) -> io::Result<Self> {
        let (kept, broken) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { apart: Apart::start()?, shelf: Shelf::default(), kept, broken, next: 1, barred })
    }

    /// Takes a ledger's file that a member sent, or that the daemon itself keeps.
    ///
    /// # Errors
    /// [`Unread`]; the file is closed, or leaked if closing could block.
    pub fn offer(&mut self, whose: Whose, file: OwnedFd, now: Instant) -> Result<Offered, Unread> {
        let room = whose.0;
        if self.is_barred(room) {
            // The close may block too, so leak the file. Only files that were already on their way get here.
            std::mem::forget(file);
            return Err(Unread::Silent);
        }
        let looked = self.apart.run(PATIENCE, move || {
            let read = read(&file);
            read.map(|(identity, held)| (file, identity, held))
        });
        let (file, identity, held) = match looked {
            None => return Err(self.bar(room)),
            Some(Ok(ledger)) => ledger,
            Some(Err(unread)) => return Err(unread),
        };
        let here = self.kept.values().filter(|kept| kept.whose == whose);
        if here.clone().any(|kept| kept.identity == identity) || here.count() >= MOST {
            self.moved(room, now);
            self.close(room, file);
            return Ok(Offered::Known);
        }
        let tag = self.next;
        self.next += 1;
        // The members use another ledger now, and only that one has their allocations.
        self.broken.remove(&whose);
        self.shelf.put(tag, [file]);
        let before = (held.refused, held.peak);
        let (due, pause, moved) = (now + QUICK, QUICK, now);
        self.kept.insert(tag, Kept { whose, identity, held, read: now, before, due, pause, moved });
        Ok(Offered::New)
    }

    /// Closes a file that nobody asked for.
    pub fn close(&mut self, room: u64, file: OwnedFd) {
        if self.is_barred(room) {
            std::mem::forget(file);
        } else if self.apart.run(PATIENCE, move || drop(file)).is_none() {
            self.bar(room);
        }
    }

    fn is_barred(&self, room: u64) -> bool {
        self.barred.lock().unwrap_or_else(PoisonError::into_inner).contains(&room)
    }

    fn bar(&mut self, room: u64) -> Unread {
        self.barred.lock().unwrap_or_else(PoisonError::into_inner).insert(room);
        let read: Vec<Whose> = self.held().into_keys().filter(|whose| whose.0 == room).collect();
        self.forget(room);
        self.broken.extend(read.into_iter().map(|whose| (whose, "it does not answer")));
        Unread::Silent
    }

    /// Notes activity of a tenant: its ledgers may change from now on.
    pub fn stir(&mut self, room: u64, now: Instant) {
        for kept in self.kept.values_mut().filter(|kept| kept.whose.0 == room && kept.pause > SOON) {
            (kept.pause, kept.due) = (SOON, now);
        }
    }

    /// Notes that a process of the tenant joined or ended.
    pub fn moved(&mut self, room: u64, now: Instant) {
        self.kept.values_mut().filter(|kept| kept.whose.0 == room).for_each(|kept| kept.stir(now));
    }

    /// Reads at most `most` of the ledgers that are due, longest overdue first. Returns the tenants whose numbers
    /// changed or whose ledger is gone.
    ///
    /// # Cost
    /// Two wake-ups and some forty system calls for each ledger that is due.
    pub fn read_due(&mut self, now: Instant, most: usize) -> BTreeSet<Whose> {
        let due = self.kept.iter().filter(|(_, kept)| kept.due <= now).map(|(tag, kept)| (kept.due, *tag));
        let mut due: Vec<(Instant, u64)> = due.collect();
        due.sort_unstable();
        due.into_iter().take(most).filter_map(|(_, tag)| self.read_one(tag, now)).collect()
    }

    /// Reads all ledgers of a tenant now. Returns those whose numbers changed or whose ledger is gone.
    pub fn read_room(&mut self, room: u64, now: Instant) -> BTreeSet<Whose> {
        let of: Vec<u64> = self.kept.iter().filter(|(_, kept)| kept.whose.0 == room).map(|(tag, _)| *tag).collect();
        of.into_iter().filter_map(|tag| self.read_one(tag, now)).collect()
    }

    fn read_one(&mut self, tag: u64, now: Instant) -> Option<Whose> {
        let whose = self.kept.get(&tag)?.whose.clone();
        let Some(file) = self.shelf.with(tag, |[file]| file.try_clone()) else {
            self.kept.remove(&tag);
            return Some(whose);
        };
        // Out of descriptors at the moment: retry next time.
        let file = file.ok()?;
        match self.apart.run(PATIENCE, move || read(&file)) {
            None => {
                self.bar(whose.0);
                Some(whose)
            }
            Some(Err(why)) => {
                self.drop_one(tag);
                let why = match why {
                    Unread::NoLedger(why) => why,
                    Unread::Silent => "it does not answer",
                };
                self.broken.insert(whose.clone(), why);
                Some(whose)
            }
            Some(Ok((_, held))) => {
                let kept = self.kept.get_mut(&tag)?;
                let changed = kept.held != held;
                if changed {
                    kept.moved = now;
                }
                (kept.held, kept.read) = (held, now);
                kept.plan_next(now);
                changed.then_some(whose)
            }
        }
    }

    fn drop_one(&mut self, tag: u64) {
        let Some(kept) = self.kept.remove(&tag) else { return };
        if let Some([file]) = self.shelf.take(tag) {
            if self.is_barred(kept.whose.0) {
                std::mem::forget(file);
            } else {
                self.close(kept.whose.0, file);
            }
        }
    }

    /// Forgets the ledgers of a tenant without members.
    pub fn forget(&mut self, room: u64) {
        let of: Vec<u64> = self.kept.iter().filter(|(_, kept)| kept.whose.0 == room).map(|(tag, _)| *tag).collect();
        of.into_iter().for_each(|tag| self.drop_one(tag));
        self.broken.retain(|whose, _| whose.0 != room);
    }

    /// Returns the tenants with a ledger that was readable before and is not now, and the reason.
    #[must_use]
    pub fn broken(&self) -> &BTreeMap<Whose, &'static str> {
        &self.broken
    }

    /// Returns a tenant's allocations on a device at the last reading; `None` if none of its ledgers is read.
    #[must_use]
    pub fn held_by(&self, whose: &Whose) -> Option<Held> {
        let mut sum = None;
        for kept in self.kept.values().filter(|kept| kept.whose == *whose) {
            sum.get_or_insert_with(Held::default).add(&kept.held);
        }
        sum
    }

    /// Returns every tenant's allocations on every device at the last reading.
    #[must_use]
    pub fn held(&self) -> BTreeMap<Whose, Held> {
        let mut sums: BTreeMap<Whose, Held> = BTreeMap::new();
        for kept in self.kept.values() {
            sums.entry(kept.whose.clone()).or_default().add(&kept.held);
        }
        sums
    }

    /// Returns the start of each tenant's oldest reading; no number is older than that.
    #[must_use]
    pub fn read_at(&self) -> BTreeMap<Whose, Instant> {
        let mut oldest: BTreeMap<Whose, Instant> = BTreeMap::new();
        for kept in self.kept.values() {
            let at = oldest.entry(kept.whose.clone()).or_insert(kept.read);
            *at = kept.read.min(*at);
        }
        oldest
    }

    /// Returns a tenant's refusals since its ledgers were first read, and the highest peak that rose since then.
    #[must_use]
    pub fn since(&self, whose: &Whose) -> (u64, u64) {
        self.kept.values().filter(|kept| kept.whose == *whose).fold((0, 0), |(refused, peak), kept| {
            let more = kept.held.refused.saturating_sub(kept.before.0);
            let rose = if kept.held.peak > kept.before.1 { kept.held.peak } else { 0 };
            (refused.saturating_add(more), peak.max(rose))
        })
    }

    /// Returns true if some ledger is read every [`QUICK`].
    #[must_use]
    pub fn is_quick(&self) -> bool {
        self.kept.values().any(|kept| kept.pause == QUICK)
    }

    /// Returns when the next reading is due; `None` for never.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.kept.values().map(|kept| kept.due).min()
    }
}

const STRANGE: &str = "it lies on a file system that is not read";

/// Returns true for file systems whose files are read.
#[allow(clippy::useless_conversion)] // another width on another machine
fn is_read(system: rustix::fs::FsWord) -> bool {
    HOSTS.contains(&i64::from(system))
}

/// Reads a file that may be a ledger. May block forever.
fn read(file: &OwnedFd) -> Result<(Identity, Held), Unread> {
    let no = |why| move |_| Unread::NoLedger(why);
    let stat = fstat(file).map_err(no("it cannot be looked at"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Unread::NoLedger("it is no plain file"));
    }
    if usize::try_from(stat.st_size) != Ok(LEDGER_SIZE) {
        return Err(Unread::NoLedger("it has another size"));
    }
    if stat.st_nlink == 0 {
        return Err(Unread::NoLedger("it was removed"));
    }
    let system = fstatfs(file).map_err(no("its file system cannot be told"))?;
    if !is_read(system.f_type) {
        return Err(Unread::NoLedger(STRANGE));
    }
    let mut bytes = vec![0; LEDGER_SIZE];
    fill(file, &mut bytes, 0..HEADER_SIZE)?;
    let Some((slots, shares)) = extent(&bytes) else { return Err(Unread::NoLedger("it is no ledger of this version")) };
    fill(file, &mut bytes, slots)?;
    fill(file, &mut bytes, shares)?;
    let Some(said) = copied(&bytes) else { return Err(Unread::NoLedger("it is no ledger of this version")) };
    let mut held = Held { used: said.shared, peak: said.peak, refused: said.refused, ..Held::default() };
    held.claimed = said.claimed;
    held.doors = open_doors_in(&bytes).filter(|(count, _)| *count > 0);
    for member in said.members {
        let lives = lock::held_by_another(file.as_fd(), slot_lock_offset(member.index)).unwrap_or(true);
        if lives {
            let (used, overhead) = (member.used.min(MOST_BYTES), member.overhead.min(member.used));
            held.used = held.used.saturating_add(used);
            held.overhead = held.overhead.saturating_add(overhead);
            held.parts.push(Part { pid: member.pid, used, overhead });
        }
    }
    held.used = held.used.min(MOST_BYTES);
    // Some libraries do not record a peak.
    held.peak = held.peak.min(MOST_BYTES).max(held.used);
    Ok(((stat.st_dev, stat.st_ino), held))
}

fn fill(file: &OwnedFd, bytes: &mut [u8], range: std::ops::Range<usize>) -> Result<(), Unread> {
    let (mut at, end) = (range.start, range.end);
    while at < end {
        match rustix::io::pread(file, &mut bytes[at..end], at as u64) {
            Ok(0) => return Err(Unread::NoLedger("it has become shorter")),
            Ok(got) => at += got,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err(Unread::NoLedger("it cannot be read")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::{Seek as _, Write as _};
    use std::path::Path;

    use vgpu_core::ledger::{MAGIC, SLOT_SIZE, VERSION};

    use super::*;

    fn word(file: &mut File, at: usize, bytes: &[u8]) {
        file.seek(std::io::SeekFrom::Start(at as u64)).unwrap();
        file.write_all(bytes).unwrap();
    }

    /// Creates a ledger with one living member that holds `used`; the second file has the lock.
    fn ledger(path: &Path, used: u64) -> (OwnedFd, File) {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
        file.set_len(LEDGER_SIZE as u64).unwrap();
        word(&mut file, 0, &MAGIC.to_le_bytes());
        word(&mut file, 8, &VERSION.to_le_bytes());
        word(&mut file, 20, &1u32.to_le_bytes());
        word(&mut file, HEADER_SIZE, &used.to_le_bytes());
        word(&mut file, HEADER_SIZE + SLOT_SIZE / 2, &4711u32.to_le_bytes());
        assert!(lock::try_lock(file.as_fd(), slot_lock_offset(0)).unwrap());
        (File::open(path).unwrap().into(), file)
    }

    #[test]
    fn a_ledger_is_read_as_long_as_it_is_one_and_the_dead_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        let (sent, mut member) = ledger(&path, 1000);
        let again = File::open(&path).unwrap();
        let mut ledgers = Ledgers::new(Barred::default()).unwrap();
        let (now, whose) = (Instant::now(), (1, "GPU-1".to_owned()));
        assert_eq!(ledgers.offer(whose.clone(), sent, now), Ok(Offered::New));
        assert_eq!(ledgers.offer(whose.clone(), again.into(), now), Ok(Offered::Known), "it is known");
        let held = &ledgers.held()[&whose];
        assert_eq!((held.used, held.part(4711).map(|part| part.used), held.part(1)), (1000, Some(1000), None));
        assert!(ledgers.read_due(now, 1).is_empty(), "a process came, and nothing changed yet");
        word(&mut member, HEADER_SIZE, &3000u64.to_le_bytes());
        assert!(ledgers.read_due(now, 1).is_empty(), "not yet");
        let later = now + QUICK;
        assert!(ledgers.read_due(later, 0).is_empty(), "not more than may be read now");
        assert_eq!(ledgers.read_due(later, 1), BTreeSet::from([whose.clone()]));
        assert_eq!(ledgers.held()[&whose].used, 3000);
        assert_eq!(ledgers.held_by(&whose), ledgers.held().remove(&whose));
        let quiet = later + QUICK;
        assert!(ledgers.read_due(quiet, 1).is_empty());
        assert!(ledgers.is_quick() && ledgers.due() == Some(quiet + QUICK), "it changed within the last second");
        let quiet = later + SOON;
        assert!(ledgers.read_due(quiet, 1).is_empty());
        assert!(!ledgers.is_quick() && ledgers.due() == Some(quiet + SOON), "it did not change for a second");
        let later = quiet + SOON;
        assert!(ledgers.read_due(later, 1).is_empty());
        assert_eq!(ledgers.due(), Some(later + 2 * SOON), "what does not change is read more rarely");
        ledgers.stir(1, later);
        assert!(!ledgers.is_quick(), "a launch alone changes no memory");
        ledgers.moved(1, later);
        drop(member);
        assert_eq!(ledgers.read_due(later, 1), BTreeSet::from([whose.clone()]));
        assert!(ledgers.is_quick(), "a process came or went");
        assert_eq!(ledgers.held()[&whose].used, 0, "nobody holds the lock");
        File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
        ledgers.read_room(1, later);
        assert!(ledgers.held().is_empty(), "it has another size");
        assert_eq!(ledgers.broken()[&whose], "it has another size");
        let (sent, _member) = ledger(&dir.path().join("other"), 7);
        assert_eq!(ledgers.offer(whose.clone(), sent, later), Ok(Offered::New));
        assert!(ledgers.broken().is_empty(), "its members have another one");
        drop(_member);
        std::fs::remove_file(dir.path().join("other")).unwrap();
        ledgers.read_room(1, later);
        assert_eq!(ledgers.broken()[&whose], "it was removed");
        ledgers.forget(1);
        assert!(ledgers.broken().is_empty(), "nobody is there any more");
    }

    #[test]
    fn what_is_no_ledger_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledgers = Ledgers::new(Barred::default()).unwrap();
        let mut offer = |file: File| ledgers.offer((1, "GPU-1".into()), file.into(), Instant::now());
        let fifo = dir.path().join("fifo");
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, 0o600.into(), 0).unwrap();
        let fifo = rustix::fs::open(&fifo, flags, rustix::fs::Mode::empty()).unwrap();
        for (file, why) in [
            (File::from(fifo), "it is no plain file"),
            (File::open(dir.path()).unwrap(), "it is no plain file"),
            (File::open("/dev/zero").unwrap(), "it is no plain file"),
            (File::open("/proc/self/stat").unwrap(), "it has another size"),
        ] {
            assert_eq!(offer(file), Err(Unread::NoLedger(why)));
        }
        let path = dir.path().join("zeroes");
        let zeroes = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        zeroes.set_len(LEDGER_SIZE as u64).unwrap();
        assert_eq!(offer(zeroes), Err(Unread::NoLedger("it is no ledger of this version")));
        let (sent, _member) = ledger(&path, 1);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(offer(sent.into()), Err(Unread::NoLedger("it was removed")));
        assert!(ledgers.held().is_empty() && ledgers.due().is_none());
    }

    #[test]
    fn of_a_tenant_whose_file_did_not_answer_nothing_more_is_looked_at() {
        let barred = Barred::default();
        let mut ledgers = Ledgers::new(barred.clone()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (sent, _member) = ledger(&dir.path().join("one"), 1);
        barred.lock().unwrap().insert(1);
        assert_eq!(ledgers.offer((1, "GPU-1".into()), sent, Instant::now()), Err(Unread::Silent));
        let (sent, _member) = ledger(&dir.path().join("two"), 1);
        assert_eq!(ledgers.offer((2, "GPU-1".into()), sent, Instant::now()), Ok(Offered::New));
    }
}
