//! Reads the tenants' ledgers in the daemon: the memory that each tenant holds on a device, its peak, and its refused
//! requests.
//!
//! The daemon creates each ledger in a directory of its own, and members write to it. A member may truncate it or fill
//! it with anything. So the daemon reads it into memory and never maps it: the truncation of a mapped file would kill
//! the daemon. The content is the tenant's own statement about itself and decides nothing.
//!
//! Each reading opens the file by its name and closes it, because a descriptor for each tenant and device would be
//! many.
//!
//! A ledger is read every [`QUICK`] for one second after it changed, or a process of the tenant joined or ended.
//! Otherwise processes that live less than a second would end between two readings. After that it is read after a
//! second, then ever more rarely, up to every ten seconds. A launch of the tenant brings it back to a second. Not
//! here: the use of the readings ([`super::integrate`]).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::io::Errno;
use shim_sys::lock;
use vgpu_core::memory::ledger::{
    LEDGER_BYTES, LEDGER_HEADER_BYTES, open_doors_in, parse_ledger, slot_lock_offset, used_ranges,
};

/// Time between two readings of a ledger that changed within the last [`CHANGED_INTERVAL`].
pub const QUICK: Duration = Duration::from_millis(100);
/// Most readings in each [`QUICK`] that do not wait for the reading of all that is due. The bound keeps their cost
/// constant, however many tenants change; that cost is not measured.
pub const QUICK_READINGS: usize = 10;
/// Time between two readings of a ledger: [`CHANGED_INTERVAL`] after its last change, doubling up to
/// [`UNCHANGED_INTERVAL`].
const CHANGED_INTERVAL: Duration = Duration::from_secs(1);
const UNCHANGED_INTERVAL: Duration = Duration::from_secs(10);
/// Cap on reported bytes: a petabyte, more than any tenant holds.
const MAX_HELD_BYTES: u64 = 1 << 50;

/// A tenant on a device: the number of its room and the device's UUID.
pub type RoomDevice = (u64, String);

/// Memory that one process holds on a device, from a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessPart {
    /// Process ID of the process in its own pid namespace.
    pub pid: u32,
    /// Bytes that count against the limit.
    pub used: u64,
    /// Part of `used` that the program did not allocate itself.
    pub overhead: u64,
}

/// Memory that a tenant holds on a device, from its ledgers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldMemory {
    /// Bytes that count against the limit.
    pub used: u64,
    /// Part of `used` that the programs did not allocate themselves.
    pub overhead: u64,
    /// Most bytes held at once since the ledgers were created.
    pub peak: u64,
    /// Allocation requests refused since the ledgers were created.
    pub refused: u64,
    /// Bytes that the programs ever requested, modulo 2^64.
    pub claimed: u64,
    /// Number of bypasses of the library that the programs found, and the name of the first one.
    pub doors: Option<(u64, String)>,
    /// Living processes; memory that several processes share is in none of them.
    pub parts: Vec<ProcessPart>,
}

impl HeldMemory {
    /// Returns the memory of the process with this pid in its own namespace; `None` if unknown or if several have
    /// that pid.
    #[must_use]
    pub fn part_of(&self, pid: u32) -> Option<ProcessPart> {
        let mut parts = self.parts.iter().filter(|part| part.pid == pid);
        parts.next().copied().filter(|_| parts.next().is_none())
    }
}

/// Device and inode of a file, equal for all of its names.
type FileIdentity = (u64, u64);

struct KeptLedger {
    path: PathBuf,
    /// `None` until the first reading, if the daemon had no free descriptor when a member joined with the ledger.
    content: Option<LedgerContent>,
    due: Instant,
    pause: Duration,
    /// Last change of the ledger, or last join or end of a process of the tenant.
    moved: Instant,
}

/// Readings of one ledger.
struct LedgerContent {
    /// The file that was read. Another one at the same path is another ledger.
    identity: FileIdentity,
    held: HeldMemory,
    /// Start of the reading of `held`.
    read: Instant,
    /// Refusals and peak at the first reading.
    before: (u64, u64),
}

impl KeptLedger {
    /// Schedules quick readings after a process of the tenant joined or ended.
    fn note_activity(&mut self, now: Instant) {
        (self.moved, self.pause, self.due) = (now, QUICK, now);
    }

    /// Schedules the next reading after one.
    fn plan_next(&mut self, now: Instant) {
        self.pause = match now.saturating_duration_since(self.moved) < CHANGED_INTERVAL {
            true => QUICK,
            false if self.content.is_none() => CHANGED_INTERVAL,
            false => (self.pause * 2).clamp(CHANGED_INTERVAL, UNCHANGED_INTERVAL),
        };
        self.due = now + self.pause;
    }

    /// Keeps what a reading at `now` found. Returns true if it differs from the reading before.
    fn keep_reading(&mut self, (identity, held): (FileIdentity, HeldMemory), now: Instant) -> bool {
        let same = self.content.take().filter(|content| content.identity == identity);
        let changed = same.as_ref().is_none_or(|content| content.held != held);
        let before = same.map_or((held.refused, held.peak), |content| content.before);
        self.content = Some(LedgerContent { identity, held, read: now, before });
        if changed {
            self.moved = now;
        }
        changed
    }
}

/// All ledgers.
#[derive(Default)]
pub struct LedgerFiles {
    kept: BTreeMap<RoomDevice, KeptLedger>,
    /// Tenants with a ledger that was readable before and is not now, and the reason.
    broken: BTreeMap<RoomDevice, &'static str>,
    /// Every tenant's allocations, as [`Self::collect_held`] collected them.
    held: BTreeMap<RoomDevice, HeldMemory>,
    /// True if a ledger changed since they were collected.
    is_other: bool,
    /// Number of readings so far.
    readings: u64,
    scratch: LedgerScratch,
}

/// Memory for one reading. A reading looks only at what it wrote there, so it is not cleared.
#[derive(Default)]
struct LedgerScratch {
    bytes: Vec<u8>,
}

impl LedgerFiles {
    /// Takes the ledger with which a member joined the device. It replaces another one of the same tenant and device.
    /// A ledger that the daemon cannot open for want of descriptors is read later.
    ///
    /// # Errors
    /// The reason why the file cannot be read as a ledger.
    pub fn take(&mut self, whose: RoomDevice, path: PathBuf, now: Instant) -> Result<(), &'static str> {
        let reading = match self.scratch.read_file(&path) {
            Ok(reading) => Some(reading),
            Err(ReadFailure::Passing) => None,
            Err(ReadFailure::Broken(why)) => return Err(why),
        };
        self.moved(whose.0, now);
        self.broken.remove(&whose);
        let new = || KeptLedger { path: PathBuf::new(), content: None, due: now, pause: QUICK, moved: now };
        let kept = self.kept.entry(whose).or_insert_with(new);
        kept.path = path;
        if let Some(reading) = reading {
            kept.keep_reading(reading, now);
        }
        kept.plan_next(now);
        (self.is_other, self.readings) = (true, self.readings + 1);
        Ok(())
    }

    /// Notes activity of a tenant: its ledgers may change from now on.
    pub fn stir(&mut self, room: u64, now: Instant) {
        for (_, kept) in self.kept.range_mut(of_room(room)).filter(|(_, kept)| kept.pause > CHANGED_INTERVAL) {
            (kept.pause, kept.due) = (CHANGED_INTERVAL, now);
        }
    }

    /// Notes that a process of the tenant joined or ended.
    pub fn moved(&mut self, room: u64, now: Instant) {
        self.kept.range_mut(of_room(room)).for_each(|(_, kept)| kept.note_activity(now));
    }

    /// Reads at most `most` of the ledgers that are due, longest overdue first. Returns the tenants whose numbers
    /// changed or whose ledger is gone.
    ///
    /// # Cost
    /// Some forty system calls for each that is due.
    pub fn read_due(&mut self, now: Instant, most: usize) -> BTreeSet<RoomDevice> {
        let due = self.kept.iter().filter(|(_, kept)| kept.due <= now).map(|(whose, kept)| (kept.due, whose.clone()));
        let mut due: Vec<(Instant, RoomDevice)> = due.collect();
        due.sort_unstable();
        due.into_iter().take(most).map(|(_, whose)| whose).filter(|whose| self.read_one(whose, now)).collect()
    }

    /// Reads all ledgers of a tenant now. Returns those whose numbers changed or whose ledger is gone.
    pub fn read_room(&mut self, room: u64, now: Instant) -> BTreeSet<RoomDevice> {
        self.all_of(room).into_iter().filter(|whose| self.read_one(whose, now)).collect()
    }

    fn all_of(&self, room: u64) -> Vec<RoomDevice> {
        self.kept.range(of_room(room)).map(|(whose, _)| whose.clone()).collect()
    }

    /// True if its numbers are others now, or there are none any more.
    fn read_one(&mut self, whose: &RoomDevice, now: Instant) -> bool {
        let Some(kept) = self.kept.get_mut(whose) else { return false };
        self.readings += 1;
        match self.scratch.read_file(&kept.path) {
            Ok(reading) => {
                let changed = kept.keep_reading(reading, now);
                kept.plan_next(now);
                self.is_other |= changed;
                changed
            }
            Err(ReadFailure::Passing) => {
                kept.plan_next(now);
                false
            }
            Err(ReadFailure::Broken(why)) => {
                self.kept.remove(whose);
                self.broken.insert(whose.clone(), why);
                self.is_other = true;
                true
            }
        }
    }

    /// Forgets the ledgers of a tenant without members.
    pub fn forget_room(&mut self, room: u64) {
        self.kept.retain(|whose, _| whose.0 != room);
        self.is_other = true;
        self.broken.retain(|whose, _| whose.0 != room);
    }

    /// Returns the tenants with a ledger that was readable before and is not now, and the reason.
    #[must_use]
    pub fn broken_ledgers(&self) -> &BTreeMap<RoomDevice, &'static str> {
        &self.broken
    }

    /// Returns a tenant's allocations on a device at the last reading; `None`: its ledger is not read.
    #[must_use]
    pub fn held_by(&self, whose: &RoomDevice) -> Option<HeldMemory> {
        Some(self.kept.get(whose)?.content.as_ref()?.held.clone())
    }

    /// Collects the allocations for [`Self::held_memory`]. Returns true if they changed since the last call: at rest
    /// nothing is copied.
    pub fn collect_held(&mut self) -> bool {
        let is_other = std::mem::take(&mut self.is_other);
        if is_other {
            let held = self.contents().map(|(whose, content)| (whose.clone(), content.held.clone()));
            self.held = held.collect();
        }
        is_other
    }

    /// Returns every tenant's allocations on every device, as they were collected last.
    #[must_use]
    pub fn held_memory(&self) -> &BTreeMap<RoomDevice, HeldMemory> {
        &self.held
    }

    /// Returns the number of readings so far.
    #[must_use]
    pub const fn readings(&self) -> u64 {
        self.readings
    }

    /// Copies the begin of each ledger's last reading.
    ///
    /// # Cost
    /// Nothing is allocated if the ledgers are those of the last copy.
    pub fn copy_times(&self, times: &mut BTreeMap<RoomDevice, Instant>) {
        let mut contents = self.contents();
        let take = |(whose, at): (&RoomDevice, &mut Instant)| {
            contents.next().filter(|(of, _)| *of == whose).map(|(_, content)| *at = content.read).is_some()
        };
        let are_same = times.iter_mut().all(take) && contents.next().is_none();
        if !are_same {
            *times = self.contents().map(|(whose, content)| (whose.clone(), content.read)).collect();
        }
    }

    fn contents(&self) -> impl Iterator<Item = (&RoomDevice, &LedgerContent)> {
        self.kept.iter().filter_map(|(whose, kept)| Some((whose, kept.content.as_ref()?)))
    }

    /// Returns the changes since the first reading of a tenant's ledger: the number of refused requests, and the peak
    /// in bytes if it rose, else 0.
    #[must_use]
    pub fn new_since_first(&self, whose: &RoomDevice) -> (u64, u64) {
        let Some(LedgerContent { held, before: (refused, peak), .. }) =
            self.kept.get(whose).and_then(|kept| kept.content.as_ref())
        else {
            return (0, 0);
        };
        (held.refused.saturating_sub(*refused), if held.peak > *peak { held.peak } else { 0 })
    }

    /// Returns true if some ledger is read every [`QUICK`].
    #[must_use]
    pub fn is_quick(&self) -> bool {
        self.kept.values().any(|kept| kept.pause == QUICK)
    }

    /// Returns when the next reading is due; `None` for never.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.kept.values().map(|kept| kept.due).min()
    }
}

/// The keys of a room's ledgers.
fn of_room(room: u64) -> std::ops::Range<RoomDevice> {
    (room, String::new())..(room + 1, String::new())
}

/// Reason why a ledger was not read.
enum ReadFailure {
    /// The file is no ledger of this version; the words say why.
    Broken(&'static str),
    /// The daemon has no descriptor or memory for it now; the next reading may succeed.
    Passing,
}

impl LedgerScratch {
    /// Opens and reads a file that may be a ledger. No link is followed, and a pipe does not block.
    fn read_file(&mut self, path: &Path) -> Result<(FileIdentity, HeldMemory), ReadFailure> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(file) => self.read(&file).map_err(ReadFailure::Broken),
            Err(Errno::NOENT | Errno::NOTDIR) => Err(ReadFailure::Broken("it was removed")),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR) => Err(ReadFailure::Passing),
            Err(Errno::LOOP | Errno::NXIO) => Err(ReadFailure::Broken("it is no plain file")),
            Err(_) => Err(ReadFailure::Broken("it cannot be opened")),
        }
    }

    fn read(&mut self, file: &OwnedFd) -> Result<(FileIdentity, HeldMemory), &'static str> {
        let stat = fstat(file).map_err(|_| "it cannot be looked at")?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err("it is no plain file");
        }
        if usize::try_from(stat.st_size) != Ok(LEDGER_BYTES) {
            return Err("it has another size");
        }
        self.bytes.resize(LEDGER_BYTES, 0);
        let bytes = &mut self.bytes;
        read_range(file, bytes, 0..LEDGER_HEADER_BYTES)?;
        let Some((slots, shares)) = used_ranges(bytes) else { return Err("it is no ledger of this version") };
        read_range(file, bytes, slots)?;
        read_range(file, bytes, shares)?;
        let Some(said) = parse_ledger(bytes) else { return Err("it is no ledger of this version") };
        let mut held =
            HeldMemory { used: said.shared, peak: said.peak, refused: said.refused, ..HeldMemory::default() };
        held.claimed = said.claimed;
        held.doors = open_doors_in(bytes).filter(|(count, _)| *count > 0);
        for member in said.members {
            let lives = lock::held_by_another(file.as_fd(), slot_lock_offset(member.index)).unwrap_or(true);
            if lives {
                let (used, overhead) = (member.used.min(MAX_HELD_BYTES), member.overhead.min(member.used));
                held.used = held.used.saturating_add(used);
                held.overhead = held.overhead.saturating_add(overhead);
                held.parts.push(ProcessPart { pid: member.pid, used, overhead });
            }
        }
        held.used = held.used.min(MAX_HELD_BYTES);
        // Some libraries do not record a peak.
        held.peak = held.peak.min(MAX_HELD_BYTES).max(held.used);
        Ok(((stat.st_dev, stat.st_ino), held))
    }
}

fn read_range(file: &OwnedFd, bytes: &mut [u8], range: std::ops::Range<usize>) -> Result<(), &'static str> {
    let (mut at, end) = (range.start, range.end);
    while at < end {
        match rustix::io::pread(file, &mut bytes[at..end], at as u64) {
            Ok(0) => return Err("it has become shorter"),
            Ok(got) => at += got,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err("it cannot be read"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::{Seek as _, Write as _};

    use vgpu_core::memory::ledger::{LEDGER_MAGIC, LEDGER_SLOT_BYTES, LEDGER_VERSION};

    use super::*;

    fn word(file: &mut File, at: usize, bytes: &[u8]) {
        file.seek(std::io::SeekFrom::Start(at as u64)).unwrap();
        file.write_all(bytes).unwrap();
    }

    /// Creates a ledger with one living member that holds `used`; the file has the lock.
    fn ledger(path: &Path, used: u64) -> File {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
        file.set_len(LEDGER_BYTES as u64).unwrap();
        word(&mut file, 0, &LEDGER_MAGIC.to_le_bytes());
        word(&mut file, 8, &LEDGER_VERSION.to_le_bytes());
        word(&mut file, 20, &1u32.to_le_bytes());
        word(&mut file, LEDGER_HEADER_BYTES, &used.to_le_bytes());
        word(&mut file, LEDGER_HEADER_BYTES + LEDGER_SLOT_BYTES / 2, &4711u32.to_le_bytes());
        assert!(lock::try_lock(file.as_fd(), slot_lock_offset(0)).unwrap());
        file
    }

    /// Ends the member of [`ledger`]. Closing the file would not end the lock while a child that another test starts
    /// still has a copy of the descriptor.
    fn end_member(file: &File) {
        lock::unlock(file.as_fd(), slot_lock_offset(0)).unwrap();
    }

    #[test]
    fn a_reading_contains_nothing_of_the_ledger_that_was_read_before() {
        let dir = tempfile::tempdir().unwrap();
        let (now, whose) = (Instant::now(), |room| (room, "GPU-1".to_owned()));
        let mut ledgers = LedgerFiles::default();
        let _full = ledger(&dir.path().join("full"), 1000);
        let mut empty = ledger(&dir.path().join("empty"), 0);
        word(&mut empty, 20, &0u32.to_le_bytes());
        let mut times = BTreeMap::new();
        for (room, name) in [(1, "full"), (2, "empty"), (3, "full")] {
            ledgers.take(whose(room), dir.path().join(name), now).unwrap();
            ledgers.copy_times(&mut times);
            assert_eq!(times.len() as u64, room);
        }
        let used = |room| ledgers.held_by(&whose(room)).map(|held| (held.used, held.parts.len()));
        assert_eq!([1, 2, 3].map(used), [Some((1000, 1)), Some((0, 0)), Some((1000, 1))]);
        let later = now + QUICK;
        ledgers.read_due(later, 3);
        ledgers.copy_times(&mut times);
        assert_eq!(times, BTreeMap::from([1, 2, 3].map(|room| (whose(room), later))));
        ledgers.forget_room(2);
        ledgers.copy_times(&mut times);
        assert_eq!(times.into_keys().collect::<Vec<_>>(), [whose(1), whose(3)]);
    }

    #[test]
    fn a_ledger_is_read_as_long_as_it_is_one_and_the_dead_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        let mut member = ledger(&path, 1000);
        let mut ledgers = LedgerFiles::default();
        let (now, whose) = (Instant::now(), (1, "GPU-1".to_owned()));
        assert_eq!(ledgers.take(whose.clone(), path.clone(), now), Ok(()));
        assert_eq!(ledgers.take(whose.clone(), path.clone(), now), Ok(()), "it is known");
        ledgers.collect_held();
        let held = &ledgers.held_memory()[&whose];
        assert_eq!((held.used, held.part_of(4711).map(|part| part.used), held.part_of(1)), (1000, Some(1000), None));
        assert!(ledgers.read_due(now, 1).is_empty(), "a process came, and nothing changed yet");
        word(&mut member, LEDGER_HEADER_BYTES, &3000u64.to_le_bytes());
        assert!(ledgers.read_due(now, 1).is_empty(), "not yet");
        let later = now + QUICK;
        assert!(ledgers.read_due(later, 0).is_empty(), "not more than may be read now");
        assert_eq!(ledgers.read_due(later, 1), BTreeSet::from([whose.clone()]));
        assert!(ledgers.collect_held());
        assert_eq!(ledgers.held_memory()[&whose].used, 3000);
        assert_eq!(ledgers.held_by(&whose).as_ref(), ledgers.held_memory().get(&whose));
        let quiet = later + QUICK;
        assert!(ledgers.read_due(quiet, 1).is_empty());
        assert!(ledgers.is_quick() && ledgers.next_due() == Some(quiet + QUICK), "it changed within the last second");
        let quiet = later + CHANGED_INTERVAL;
        assert!(ledgers.read_due(quiet, 1).is_empty());
        assert!(
            !ledgers.is_quick() && ledgers.next_due() == Some(quiet + CHANGED_INTERVAL),
            "it did not change for a second"
        );
        let later = quiet + CHANGED_INTERVAL;
        assert!(ledgers.read_due(later, 1).is_empty());
        assert_eq!(ledgers.next_due(), Some(later + 2 * CHANGED_INTERVAL), "what does not change is read more rarely");
        ledgers.stir(1, later);
        assert!(!ledgers.is_quick(), "a launch alone changes no memory");
        ledgers.moved(1, later);
        end_member(&member);
        assert_eq!(ledgers.read_due(later, 1), BTreeSet::from([whose.clone()]));
        assert!(ledgers.is_quick(), "a process came or went");
        ledgers.collect_held();
        assert_eq!(ledgers.held_memory()[&whose].used, 0, "nobody holds the lock");
        File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
        ledgers.read_room(1, later);
        ledgers.collect_held();
        assert!(ledgers.held_memory().is_empty(), "it has another size");
        assert_eq!(ledgers.broken_ledgers()[&whose], "it has another size");
        let other = dir.path().join("other");
        let _member = ledger(&other, 7);
        assert_eq!(ledgers.take(whose.clone(), other.clone(), later), Ok(()));
        assert!(ledgers.broken_ledgers().is_empty(), "its members have another one");
        std::fs::remove_file(&other).unwrap();
        ledgers.read_room(1, later);
        assert_eq!(ledgers.broken_ledgers()[&whose], "it was removed");
        ledgers.forget_room(1);
        assert!(ledgers.broken_ledgers().is_empty(), "nobody is there any more");
    }

    /// A process of its own: the limit on descriptors is the process's, and other tests need descriptors.
    #[test]
    fn a_ledger_that_comes_while_no_descriptor_is_free_is_read_later() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "record::ledgers::tests::without_a_free_descriptor", "--ignored", "--nocapture"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && said.contains("1 passed"),
            "{said}{}",
            String::from_utf8_lossy(&child.stderr)
        );
    }

    #[test]
    #[ignore = "a part of a_ledger_that_comes_while_no_descriptor_is_free_is_read_later"]
    fn without_a_free_descriptor() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        let (_first, _second) = (ledger(&old, 1000), ledger(&new, 7));
        let mut ledgers = LedgerFiles::default();
        let (now, whose, other) = (Instant::now(), (1, "GPU-1".to_owned()), (2, "GPU-1".to_owned()));
        ledgers.take(whose.clone(), old.clone(), now).unwrap();
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limit }).unwrap();
        assert_eq!(ledgers.take(other.clone(), old, now), Ok(()), "a member joined with it");
        assert_eq!(ledgers.take(whose.clone(), new, now), Ok(()), "its tenant has another ledger now");
        let used = |ledgers: &LedgerFiles, whose| ledgers.held_by(whose).map(|held| held.used);
        assert_eq!((used(&ledgers, &whose), used(&ledgers, &other)), (Some(1000), None));
        assert_eq!(ledgers.new_since_first(&other), (0, 0));
        let later = now + UNCHANGED_INTERVAL;
        assert!(ledgers.read_due(later, 2).is_empty(), "no descriptor is free");
        assert_eq!(ledgers.next_due(), Some(later + CHANGED_INTERVAL));
        setrlimit(Resource::Nofile, limit).unwrap();
        assert_eq!(ledgers.read_due(later + UNCHANGED_INTERVAL, 2), BTreeSet::from([whose.clone(), other.clone()]));
        assert_eq!((used(&ledgers, &whose), used(&ledgers, &other)), (Some(7), Some(1000)));
        assert_eq!(ledgers.new_since_first(&whose), (0, 0), "the numbers of the ledger before are not its own");
        assert!(ledgers.broken_ledgers().is_empty());
    }

    #[test]
    fn what_is_no_ledger_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledgers = LedgerFiles::default();
        let mut take = |path: &Path| ledgers.take((1, "GPU-1".into()), path.to_owned(), Instant::now());
        let (fifo, link, path) = (dir.path().join("fifo"), dir.path().join("link"), dir.path().join("zeroes"));
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, 0o600.into(), 0).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for (file, why) in [
            (&*fifo, "it is no plain file"),
            (&*link, "it is no plain file"),
            (dir.path(), "it is no plain file"),
            (Path::new("/dev/zero"), "it is no plain file"),
            (Path::new("/proc/self/stat"), "it has another size"),
            (&*path, "it was removed"),
        ] {
            assert_eq!(take(file), Err(why));
        }
        File::create(&path).unwrap().set_len(LEDGER_BYTES as u64).unwrap();
        assert_eq!(take(&path), Err("it is no ledger of this version"));
        ledgers.collect_held();
        assert!(ledgers.held_memory().is_empty() && ledgers.next_due().is_none());
    }

    #[test]
    fn another_ledger_takes_the_place_of_the_one_before_and_tenants_are_kept_apart() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledgers = LedgerFiles::default();
        let (whose, other, now) = ((1, "GPU-1".to_owned()), (2, "GPU-1".to_owned()), Instant::now());
        let paths = [1, 2, 4].map(|used| dir.path().join(used.to_string()));
        let _members: Vec<File> = [1, 2, 4].iter().zip(&paths).map(|(used, path)| ledger(path, *used)).collect();
        for (whose, path) in [&whose, &whose, &other].into_iter().zip(&paths) {
            ledgers.take(whose.clone(), path.clone(), now).unwrap();
        }
        let used = |ledgers: &LedgerFiles, whose| ledgers.held_by(whose).map(|held| held.used);
        assert_eq!((used(&ledgers, &whose), used(&ledgers, &other)), (Some(2), Some(4)));
        ledgers.forget_room(1);
        assert_eq!((used(&ledgers, &whose), used(&ledgers, &other)), (None, Some(4)));
    }
}
