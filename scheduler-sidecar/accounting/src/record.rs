//! Records the tenants' usage minute by minute, in files that outlive the daemon.
//!
//! The record runs on its own thread. Once a second the daemon's reactor hands over new numbers without waiting.
//! While the thread is busy with a slow disk, new numbers are merged and handed over later. So a full disk delays no
//! lease.
//!
//! [`ledgers`] reads the tenants' allocations, [`energy`] divides a device's energy, [`integrate`] turns sums and
//! values into rows, [`store`] writes them, [`ask`] queries them, [`group_use`] sums them up by groups. This file has
//! the thread and the reactor's handle to it.

pub mod ask;
pub mod energy;
pub mod group_use;
pub mod integrate;
pub mod ledgers;
pub mod reading;
pub mod store;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::{info, warn};

use crate::clock;
use energy::{EnergyReading, EnergyUse};
use group_use::{GroupUse, UseQuestion};
use integrate::{ClockMoment, UsageIntegral, UsageSums};
use ledgers::{HeldMemory, LedgerFiles, QUICK, QUICK_READINGS, RoomDevice};
use reading::LedgerReading;
use store::{ProcessMark, RecordStore, mark_of_any_name};
use told::ToldRefusals;
use vgpu_config::plan::Keep;
use vgpu_control::RecordStatus;

/// Time between two runs of the thread without messages; slightly more than the reactor's second.
const LOOK_INTERVAL: Duration = Duration::from_millis(1200);
/// First pause after a failed write; it doubles up to [`MAX_WRITE_RETRY`].
const FIRST_WRITE_RETRY: Duration = Duration::from_secs(1);
const MAX_WRITE_RETRY: Duration = Duration::from_secs(30);
/// Time between two removals of old rows.
const TIDY_INTERVAL: Duration = Duration::from_secs(600);
/// Up to this many rows are written every second. Beyond it, rows of tenants whose allocations are unchanged and that
/// do nothing else are written every [`QUIET_ROWS_INTERVAL`].
const ROWS_EVERY_SECOND: usize = 100;
const QUIET_ROWS_INTERVAL: Duration = Duration::from_secs(10);
/// Most processes remembered while nothing can be written.
const MAX_MARKS: usize = 65_536;

/// Settings of the usage record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordSettings {
    /// Directory of the record; `None` records nothing.
    pub dir: Option<PathBuf>,
    /// How long the record keeps its rows.
    pub keep: Keep,
    /// True if the device time of a tenant that is alone on its device is measured too.
    pub exact: bool,
}

/// Numbers that the reactor hands over in one message.
#[derive(Debug, Default)]
pub struct RecordBatch {
    /// Changed sums of tenants on devices.
    pub sums: BTreeMap<RoomDevice, UsageSums>,
    /// Processes that joined a device, each with the device time that it measured before.
    pub came: Vec<(RoomDevice, u32, u64)>,
    /// Total device time of each process, in ns.
    pub marks: BTreeMap<(RoomDevice, u32), u64>,
    /// The last reading of each device's energy, by UUID.
    pub energy: BTreeMap<String, EnergyReading>,
    /// Tenants (by room) whose last member has left, each with the number of the last file received from it.
    emptied: BTreeMap<u64, u64>,
    /// Tenants (by room) that were removed.
    gone: BTreeSet<u64>,
    token: Option<Arc<()>>,
}

enum RecordMessage {
    Ledger(RoomDevice, PathBuf, u64),
    Told(Box<RecordBatch>),
    /// A process of this tenant joined or left.
    Moved(u64),
    Keep(Keep),
    /// From now on, sum up the use of groups.
    SumGroups(UseQuestion),
    /// Read all ledgers of these tenants.
    Read(Vec<u64>),
    End(SyncSender<()>),
}

/// Results of the record's thread, for the reactor to read.
#[derive(Default)]
struct SharedRecord {
    held: Mutex<BTreeMap<RoomDevice, HeldMemory>>,
    /// Number of changes of `held` so far.
    held_changes: AtomicU64,
    /// Start of the reading of the ledgers that each value in `held` comes from.
    read: Mutex<BTreeMap<RoomDevice, Instant>>,
    /// Energy of each tenant on each device since the start.
    energy: Mutex<BTreeMap<RoomDevice, EnergyUse>>,
    /// Why a ledger that was readable before cannot be read now.
    broken: Mutex<BTreeMap<RoomDevice, &'static str>>,
    state: Mutex<RecordStatus>,
    /// Use of groups; `None`: nobody asked, or the record was not read yet.
    group_use: Mutex<Option<Arc<GroupUse>>>,
    /// Tenants (by room) that were removed, and whose last rows are not written yet.
    unwritten: Mutex<BTreeSet<u64>>,
}

impl SharedRecord {
    fn note_held_change(&self) {
        self.held_changes.fetch_add(1, Ordering::Relaxed);
    }
}

/// The reactor's handle. No method waits for the disk or for a file, except [`UsageRecord::finish_writing`].
pub struct UsageRecord {
    tell: Sender<RecordMessage>,
    shown: Arc<SharedRecord>,
    draft: RecordBatch,
    /// Cloned into the batch that is on its way.
    token: Arc<()>,
    number: u64,
    /// The last question about groups.
    question: Option<UseQuestion>,
}

impl UsageRecord {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(settings: RecordSettings) -> std::io::Result<Self> {
        let (tell, told) = channel();
        let shown = Arc::new(SharedRecord::default());
        let begins = match &settings.dir {
            None => RecordStatus { ok: true, words: Some("off: state_dir is \"none\"".into()), dir: None },
            Some(dir) => RecordStatus { ok: true, words: Some("not open yet".into()), dir: Some(dir.clone()) },
        };
        *shown.state.lock() = begins;
        let work = RecordThread::new(settings, shown.clone());
        thread::Builder::new().name("vgpud-record".into()).spawn(move || work.run(&told))?;
        Ok(Self { tell, shown, draft: RecordBatch::default(), token: Arc::new(()), number: 0, question: None })
    }

    /// Notes that a member joined the device with the ledger at `path`.
    pub fn offer_ledger(&mut self, whose: RoomDevice, path: PathBuf) {
        self.number += 1;
        // The thread lives as long as the daemon.
        let _ = self.tell.send(RecordMessage::Ledger(whose, path, self.number));
    }

    /// Returns the batch for the next handover; new numbers are merged into it.
    pub fn next_batch(&mut self) -> &mut RecordBatch {
        &mut self.draft
    }

    /// Notes that a member has left; its allocations are released about now.
    pub fn left(&self, room: u64) {
        let _ = self.tell.send(RecordMessage::Moved(room));
    }

    /// Notes that a tenant's last member has left.
    pub fn note_emptied(&mut self, room: u64) {
        self.draft.emptied.insert(room, self.number);
    }

    /// Notes that a tenant was removed for good.
    pub fn note_gone(&mut self, room: u64) {
        self.draft.gone.insert(room);
        self.shown.unwritten.lock().insert(room);
    }

    /// Returns true once all usage of a removed tenant is written, or if nothing is recorded.
    #[must_use]
    pub fn is_written(&self, room: u64) -> bool {
        !self.shown.unwritten.lock().contains(&room)
    }

    /// Hands over the new numbers; returns false, for a later retry, while the last batch is still on its way.
    pub fn hand_over(&mut self) -> bool {
        if Arc::strong_count(&self.token) > 1 {
            return false;
        }
        self.hand_over_at_once();
        true
    }

    /// Hands over the new numbers, also while the last batch is still on its way: the next numbers must not be merged
    /// into these. For commands, which are few.
    pub fn hand_over_at_once(&mut self) {
        let mut batch = std::mem::take(&mut self.draft);
        batch.token = Some(self.token.clone());
        let _ = self.tell.send(RecordMessage::Told(Box::new(batch)));
    }

    /// Sets how long rows are kept.
    pub fn set_keep(&self, keep: Keep) {
        let _ = self.tell.send(RecordMessage::Keep(keep));
    }

    /// Asks for the use of groups. [`Self::group_use`] returns it from about a second later on.
    pub fn ask_group_use(&mut self, question: UseQuestion) {
        if self.question.as_ref() != Some(&question) {
            self.question = Some(question.clone());
            let _ = self.tell.send(RecordMessage::SumGroups(question));
        }
    }

    /// Returns the use of groups, at most two seconds ago; `None`: it is not known yet.
    #[must_use]
    pub fn group_use(&self) -> Option<Arc<GroupUse>> {
        self.shown.group_use.lock().clone()
    }

    /// Waits until the use of groups is known, at most `patience`.
    pub fn wait_for_group_use(&self, patience: Duration) {
        let end = Instant::now() + patience;
        while self.group_use().is_none() && Instant::now() < end {
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns a tenant's allocations on a device at the last reading; `None` if unknown.
    #[must_use]
    pub fn held_by(&self, whose: &RoomDevice) -> Option<HeldMemory> {
        self.shown.held.lock().get(whose).cloned()
    }

    /// Returns the bytes that a tenant's ledger of a device had at the last reading, and the part of them that is
    /// overhead; `None` if unknown.
    #[must_use]
    pub fn held_bytes(&self, whose: &RoomDevice) -> Option<(u64, u64)> {
        self.shown.held.lock().get(whose).map(|held| (held.used, held.overhead))
    }

    /// Returns a number that is another one after any tenant's allocations changed.
    #[must_use]
    pub fn held_changes(&self) -> u64 {
        self.shown.held_changes.load(Ordering::Relaxed)
    }

    /// Returns a tenant's energy on a device since the daemon started; `None` if the device's energy is not known.
    #[must_use]
    pub fn energy_of(&self, whose: &RoomDevice) -> Option<EnergyUse> {
        self.shown.energy.lock().get(whose).copied()
    }

    /// Returns the tenants with a ledger that was readable before and is not now, and the reason.
    #[must_use]
    pub fn broken(&self) -> BTreeMap<RoomDevice, &'static str> {
        self.shown.broken.lock().clone()
    }

    /// Processes of a tenant that held memory on a device at the last reading, by their IDs in their own pid
    /// namespaces.
    #[must_use]
    pub fn holders_of(&self, room: u64) -> BTreeSet<u32> {
        let held = self.shown.held.lock();
        let of_room = held.range((room, String::new())..).take_while(|((owner, _), _)| *owner == room);
        let parts = of_room.flat_map(|(_, held)| &held.parts);
        parts.filter(|part| part.used > 0).map(|part| part.pid).collect()
    }

    /// Returns all ledgers' numbers at the last reading, each with a time that is never later than the reading.
    #[must_use]
    pub fn ledger_readings(&self) -> BTreeMap<RoomDevice, LedgerReading> {
        // Take the times first: a number newer than its time does no harm.
        let read = self.shown.read.lock().clone();
        let held = self.shown.held.lock();
        let of = |(whose, read)| {
            let HeldMemory { used, overhead, claimed, .. } = *held.get(&whose)?;
            Some((whose, LedgerReading { used, overhead, claimed, read }))
        };
        read.into_iter().filter_map(of).collect()
    }

    /// Reads the ledgers of these tenants now instead of when they are due.
    pub fn read_now(&self, rooms: Vec<u64>) {
        let _ = self.tell.send(RecordMessage::Read(rooms));
    }

    /// Returns the state of the record.
    #[must_use]
    pub fn record_status(&self) -> RecordStatus {
        self.shown.state.lock().clone()
    }

    /// Hands over everything left and waits until it is written, at most `patience`.
    pub fn finish_writing(&mut self, patience: Duration) {
        self.hand_over_at_once();
        let (done, seen) = sync_channel(1);
        let _ = self.tell.send(RecordMessage::End(done));
        let _ = seen.recv_timeout(patience);
    }
}

/// State of the thread that reads ledgers and writes the usage record.
struct RecordThread {
    settings: RecordSettings,
    ledgers: LedgerFiles,
    shown: Arc<SharedRecord>,
    integral: UsageIntegral,
    told: ToldRefusals,
    store: Option<RecordStore>,
    /// Device time that earlier daemons recorded for processes that have not joined again, by [`mark_of_any_name`];
    /// `None` until the store is open.
    former: Option<BTreeMap<ProcessMark, u64>>,
    /// Processes that joined before the store was open.
    early: Vec<(ProcessMark, u64)>,
    marks: BTreeMap<ProcessMark, u64>,
    /// Time of the next try after a failure, and the pause after that try.
    again: Option<(Instant, Duration)>,
    /// Where a damaged record was moved.
    aside: Option<String>,
    written: Instant,
    tidied: Option<Instant>,
    /// Monotonic and wall clock at the start, to detect that the wall clock was set.
    began: ClockMoment,
    /// Number of the last file taken from each tenant (by room).
    numbers: BTreeMap<u64, u64>,
    /// Removed tenants (by room) whose last rows wait to be written.
    gone: BTreeSet<u64>,
    /// The sums that are asked for.
    question: Option<UseQuestion>,
    /// Use of groups by the rows that left the memory; `None`: the record was not read for this question yet.
    group_use: Option<GroupUse>,
    /// True if allocations changed since they were published.
    is_unpublished: bool,
    /// True if a tenant's numbers other than its ledgers changed since its allocations were last counted.
    has_news: bool,
    /// Number of the ledgers' readings whose times were published.
    published_readings: u64,
}

impl RecordThread {
    fn new(settings: RecordSettings, shown: Arc<SharedRecord>) -> Self {
        Self {
            settings,
            ledgers: LedgerFiles::default(),
            shown,
            integral: UsageIntegral::default(),
            told: ToldRefusals::default(),
            store: None,
            former: None,
            early: Vec::new(),
            marks: BTreeMap::new(),
            again: None,
            aside: None,
            written: Instant::now(),
            tidied: None,
            began: current_moment(),
            numbers: BTreeMap::new(),
            gone: BTreeSet::new(),
            question: None,
            group_use: None,
            is_unpublished: true,
            has_news: true,
            published_readings: 0,
        }
    }

    fn run(mut self, told: &Receiver<RecordMessage>) {
        self.open(Instant::now());
        let mut next = Instant::now() + LOOK_INTERVAL;
        let mut glanced = Instant::now();
        loop {
            let busy = self.ledgers.next_due().is_some() || !self.integral.is_idle() || self.again.is_some();
            let quick = self.ledgers.is_quick().then(|| glanced + QUICK);
            let until = quick.map_or(next, |quick| quick.min(next));
            let wait = if busy { until.saturating_duration_since(Instant::now()) } else { TIDY_INTERVAL };
            let mut look = false;
            match told.recv_timeout(wait) {
                Ok(RecordMessage::Ledger(whose, path, number)) => self.take_ledger(whose, path, number),
                Ok(RecordMessage::Told(batch)) => {
                    self.take_batch(*batch);
                    look = true;
                }
                Ok(RecordMessage::Moved(room)) => self.ledgers.moved(room, Instant::now()),
                Ok(RecordMessage::Read(rooms)) => {
                    let read = |room| self.ledgers.read_room(room, Instant::now());
                    let changed: BTreeSet<RoomDevice> = rooms.into_iter().flat_map(read).collect();
                    self.hold_of(&changed);
                    self.publish();
                }
                Ok(RecordMessage::SumGroups(question)) => {
                    self.take_question(question);
                    self.sum_groups();
                }
                Ok(RecordMessage::Keep(keep)) => (self.settings.keep, self.tidied) = (keep, None),
                Ok(RecordMessage::End(done)) => {
                    self.read_and_write(true);
                    // The thread that waits for this may have given up, which is no error.
                    let _ = done.try_send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if look || Instant::now() >= next || !busy {
                self.read_and_write(false);
                next = Instant::now() + LOOK_INTERVAL;
            } else if quick.is_some_and(|quick| Instant::now() >= quick) {
                self.glance();
                glanced = Instant::now();
            }
        }
    }

    fn take_ledger(&mut self, whose: RoomDevice, path: PathBuf, number: u64) {
        self.numbers.insert(whose.0, number);
        let (room, device) = (whose.0, whose.1.clone());
        match self.ledgers.take(whose.clone(), path, Instant::now()) {
            Ok(()) => {
                self.hold_of(&BTreeSet::from([whose]));
                self.publish();
            }
            Err(why) => warn!(room, device, why, "a tenant's ledger cannot be read"),
        }
    }

    fn take_batch(&mut self, batch: RecordBatch) {
        let now = current_moment();
        self.has_news |= !batch.came.is_empty() || !batch.sums.is_empty();
        let (loses_members, has_energy) =
            (!batch.emptied.is_empty() || !batch.gone.is_empty(), !batch.energy.is_empty());
        let mut written: BTreeMap<RoomDevice, u64> = BTreeMap::new();
        for (whose, process, busy) in batch.came {
            let tenant = batch.sums.get(&whose).map(|sums| sums.tenant.clone());
            let Some(tenant) = tenant.or_else(|| self.integral.name(&whose).map(str::to_owned)) else { continue };
            let mark = (tenant, whose.1.clone(), process);
            match &mut self.former {
                // A new process may reuse the number. `min` limits the deduction to the time that this process
                // measured.
                Some(former) => {
                    let before = former.remove(&mark_of_any_name(mark)).unwrap_or(0).min(busy);
                    *written.entry(whose).or_default() += before;
                }
                None if self.settings.dir.is_some() && self.early.len() < MAX_MARKS => self.early.push((mark, busy)),
                None => {}
            }
        }
        for (whose, sums) in batch.sums {
            self.ledgers.stir(whose.0, Instant::now());
            let before = written.get(&whose).copied().unwrap_or(0);
            self.integral.add_sums(&whose, sums, before, now);
        }
        for ((whose, process), busy) in batch.marks {
            // While writing fails, an unmarked process may be counted twice, which is better than filling the memory.
            if self.marks.len() >= MAX_MARKS {
                break;
            }
            if let Some(tenant) = self.integral.name(&whose) {
                self.marks.insert((tenant.to_owned(), whose.1, process), busy);
            }
        }
        for (room, number) in batch.emptied {
            // A new member may have joined since, with a newer file.
            if self.numbers.get(&room).is_none_or(|last| *last <= number) {
                self.ledgers.read_room(room, Instant::now());
                self.integrate_held();
                self.ledgers.forget_room(room);
                self.numbers.remove(&room);
            }
        }
        if loses_members {
            self.has_news = true;
            self.integrate_held();
        }
        self.integral.add_energy(&batch.energy, now);
        if has_energy {
            *self.shown.energy.lock() = self.integral.energy_of_tenants();
        }
        for room in batch.gone {
            self.gone.insert(room);
            self.integral.forget_room(room);
            self.ledgers.forget_room(room);
            self.numbers.remove(&room);
            self.shown.held.lock().retain(|(of, _), _| *of != room);
            self.shown.note_held_change();
        }
    }

    /// Reads the ledgers that are due, and writes the waiting rows.
    fn read_and_write(&mut self, last: bool) {
        self.ledgers.read_due(Instant::now(), usize::MAX);
        self.integrate_held();
        self.publish();
        self.write(last);
        self.sum_groups();
    }

    /// Reads some of the ledgers that change frequently at the moment.
    fn glance(&mut self) {
        let changed = self.ledgers.read_due(Instant::now(), QUICK_READINGS);
        self.hold_of(&changed);
        let mut gone = false;
        for whose in changed {
            match self.ledgers.held_by(&whose) {
                // The published time stays that of an earlier reading, which readers of both values allow for.
                Some(held) => {
                    self.shown.held.lock().insert(whose, held);
                    self.shown.note_held_change();
                }
                None => gone = true,
            }
        }
        if gone {
            self.publish();
        }
    }

    /// Applies new readings of these tenants' ledgers.
    fn hold_of(&mut self, changed: &BTreeSet<RoomDevice>) {
        let now = current_moment();
        for whose in changed {
            let held = self.ledgers.held_by(whose);
            let (refused, rose) = self.ledgers.new_since_first(whose);
            let used = held.as_ref().map_or(0, |held| held.used);
            self.integral.holds_one(whose, used, held.map(|_| refused), rose, now);
        }
    }

    /// Counts the allocations of all tenants until now.
    ///
    /// # Cost
    /// Without news, a search for each tenant that holds memory.
    fn integrate_held(&mut self) {
        let Self { ledgers, integral, told, has_news, .. } = self;
        let is_other = ledgers.collect_held();
        self.is_unpublished |= is_other;
        if !std::mem::take(has_news) && !is_other {
            return integral.pass_time(current_moment());
        }
        let held = ledgers.held_memory();
        integral.add_held(held, |whose| ledgers.new_since_first(whose), current_moment());
        *has_news = told.tell_new(held, |whose| integral.name(whose));
    }

    fn publish(&mut self) {
        let readings = self.ledgers.readings();
        if std::mem::replace(&mut self.published_readings, readings) != readings {
            self.ledgers.copy_times(&mut self.shown.read.lock());
        }
        self.is_unpublished |= self.ledgers.collect_held();
        if !std::mem::take(&mut self.is_unpublished) {
            return;
        }
        let mut held = self.ledgers.held_memory().clone();
        let mut shown = self.shown.held.lock();
        for (whose, before) in std::mem::take(&mut *shown) {
            // The processes are gone. The peak and the refusals stay, so that exported counters do not restart.
            let counted = HeldMemory { peak: before.peak, refused: before.refused, ..HeldMemory::default() };
            held.entry(whose).or_insert(counted);
        }
        *shown = held;
        drop(shown);
        self.shown.note_held_change();
        self.shown.broken.lock().clone_from(self.ledgers.broken_ledgers());
    }

    fn open(&mut self, now: Instant) {
        let Some(dir) = &self.settings.dir else { return };
        let opened = RecordStore::open(dir)
            .and_then(|(mut store, aside)| Ok((store.read_marks(&clock::boot_id())?, store, aside)));
        match opened {
            Ok((marks, store, aside)) => {
                if let Some(aside) = &aside {
                    warn!(aside = %aside.display(), "the record was damaged; it was moved aside and a new one begun");
                }
                let mut former = self.former.take().unwrap_or(marks);
                for ((tenant, device, process), busy) in std::mem::take(&mut self.early) {
                    let mark = mark_of_any_name((tenant.clone(), device.clone(), process));
                    let before = former.remove(&mark).unwrap_or(0).min(busy);
                    self.integral.takes_off(&tenant, &device, before);
                }
                (self.former, self.store) = (Some(former), Some(store));
                if let Some(aside) = aside {
                    self.aside = Some(format!("the previous record was damaged and was moved to {}", aside.display()));
                }
                self.note_outcome(true, None);
            }
            Err(why) => self.note_failure(&why.to_string(), now),
        }
    }

    /// Notes that no row of a removed tenant waits any more.
    fn note_written(&mut self) {
        if !self.gone.is_empty() {
            let gone = std::mem::take(&mut self.gone);
            self.shown.unwritten.lock().retain(|room| !gone.contains(room));
        }
    }

    fn note_outcome(&mut self, ok: bool, words: Option<String>) {
        let mut state = self.shown.state.lock();
        if ok && !state.ok && self.again.is_some() {
            info!(kind = "record.resumed", "the record is written again");
        }
        (state.ok, state.words) = (ok, words.or_else(|| self.aside.clone()));
        if ok {
            self.again = None;
        }
    }

    fn note_failure(&mut self, why: &str, now: Instant) {
        let pause = self.again.map_or(FIRST_WRITE_RETRY, |(_, pause)| (pause * 2).min(MAX_WRITE_RETRY));
        let new = self.shown.state.lock().words.as_deref() != Some(why);
        if new {
            warn!(kind = "record.failed", why, "usage is not recorded at the moment; limits are still enforced");
        }
        self.again = Some((now + pause, pause));
        self.note_outcome(false, Some(why.to_owned()));
    }

    /// Clears the rows that were written, and counts them for their groups.
    fn clear_waiting(&mut self) {
        self.pass_group_time(current_moment().wall);
        if let Some(all) = &mut self.group_use {
            all.add_rows(self.integral.waiting_rows().0);
        }
        self.integral.clear_written();
    }

    /// Halves the use of groups by the time that passed. After a clock that was set back it is read again; without a
    /// record on disk it goes on from the use that is left.
    fn pass_group_time(&mut self, now: i64) {
        let is_right = self.group_use.as_mut().is_none_or(|all| all.pass_time(now));
        if !is_right && self.settings.dir.is_some() {
            self.group_use = None;
        }
    }

    /// Takes a new question about groups. A period that has just begun needs few rows; only another half-life needs
    /// all.
    fn take_question(&mut self, question: UseQuestion) {
        let now = current_moment().wall;
        let is_answered = self.group_use.as_mut().is_some_and(|all| match (&self.store, &self.settings.dir) {
            (Some(store), _) => all.follow_question(&question, |part| store.read_group_use(part, now).ok()),
            (None, Some(_)) => false,
            (None, None) => all.follow_question(&question, |part| Some(GroupUse::new(part.clone(), now))),
        });
        if !is_answered {
            self.group_use = None;
        }
        self.question = Some(question);
    }

    /// Publishes the use of groups, with the rows that wait. The record is read when the question is new.
    fn sum_groups(&mut self) {
        let now = current_moment().wall;
        self.pass_group_time(now);
        let Some(question) = &self.question else { return };
        if self.group_use.is_none() {
            self.group_use = match (&self.store, &self.settings.dir) {
                // If the error persists, adding rows reports it too.
                (Some(store), _) => store.read_group_use(question, now).ok(),
                (None, Some(_)) => None,
                (None, None) => Some(GroupUse::new(question.clone(), now)),
            };
        }
        if let Some(all) = &self.group_use {
            let mut shown = all.clone();
            shown.add_rows(self.integral.waiting_rows().0);
            *self.shown.group_use.lock() = Some(Arc::new(shown));
        }
    }

    fn write(&mut self, last: bool) {
        let now = Instant::now();
        if self.settings.dir.is_none() {
            self.note_written();
            self.clear_waiting();
            return;
        }
        if self.again.is_some_and(|(at, _)| now < at) && !last {
            return;
        }
        if self.store.is_none() {
            self.open(now);
        }
        let (rows, urgent) = self.integral.waiting_rows();
        let due = last
            || urgent > 0
            || !self.gone.is_empty()
            || rows.len() <= ROWS_EVERY_SECOND
            || now.saturating_duration_since(self.written) >= QUIET_ROWS_INTERVAL;
        let something = !(rows.is_empty() && self.marks.is_empty());
        let Some(store) = &mut self.store else { return };
        let added = if due && something { Some(store.add(rows, &self.marks, current_moment().wall)) } else { None };
        match added {
            Some(Ok(())) => {
                self.clear_waiting();
                self.marks.clear();
                self.written = now;
                self.note_outcome(true, None);
                self.note_written();
            }
            Some(Err(why)) => {
                // A full disk may get space again. After any other error the file is opened and checked again.
                if !why.is_full() {
                    self.store = None;
                }
                return self.note_failure(&why.to_string(), now);
            }
            None if !something => self.note_written(),
            None => {}
        }
        let Some(store) = &mut self.store else { return };
        if !last && self.tidied.is_none_or(|at| now.saturating_duration_since(at) >= TIDY_INTERVAL) {
            let at = current_moment();
            if at.was_set_since(&self.began) {
                // The age of rows is now unknown, and rows deleted by a wrong clock are lost.
                self.tidied = Some(now);
                warn!(
                    "the clock was set forward by more than a day: old rows of the record stay until the daemon starts again"
                );
                return;
            }
            match store.roll_up_old(self.settings.keep, at.wall) {
                Ok(more) => self.tidied = if more { None } else { Some(now) },
                // If the error persists, adding rows reports it too.
                Err(why) => {
                    self.tidied = Some(now);
                    warn!(%why, "old rows of the record cannot be removed and stay for now");
                }
            }
        }
    }
}

fn current_moment() -> ClockMoment {
    ClockMoment { ns: clock::now(), wall: clock::unix_seconds() }
}

#[cfg(test)]
mod tests {
    use super::integrate::{RecordKey, RecordRow};
    use super::*;
    use vgpu_config::bearer::CostBearer;

    #[test]
    fn use_of_groups_is_read_again_after_a_clock_that_was_ahead() {
        let dir = tempfile::tempdir().unwrap();
        let now = current_moment().wall;
        let bearer = CostBearer { group: Some("lab".into()), ..CostBearer::default() };
        let key = RecordKey { tenant: "a".into(), device: "GPU-1".into(), start: now - 120, bearer };
        let row = RecordRow { gpu_ns: 1_000, ..RecordRow::default() };
        let (mut store, _) = RecordStore::open(dir.path()).unwrap();
        store.add(&BTreeMap::from([(key, row)]), &BTreeMap::new(), now).unwrap();
        drop(store);
        let keep = Keep { fine: 86_400, all: 86_400 };
        let settings = RecordSettings { dir: Some(dir.path().to_owned()), keep, exact: false };
        let mut thread = RecordThread::new(settings, Arc::new(SharedRecord::default()));
        thread.open(Instant::now());
        let question = UseQuestion { half_life: 365 * 86_400, starts: BTreeSet::new() };
        // A year ahead all use was halved to nothing.
        thread.group_use = Some(GroupUse::new(question.clone(), now + 365 * 86_400));
        thread.question = Some(question);
        thread.sum_groups();
        let shown = thread.shown.group_use.lock().clone().unwrap();
        assert!(shown.decayed.get("lab").is_some_and(|used| *used > 999.0), "{shown:?}");
    }
}
