//! Records the tenants' usage minute by minute, in files that outlive the daemon.
//!
//! The record runs on its own thread. Once a second the daemon's reactor hands over new numbers without waiting.
//! While the thread is busy with a slow disk, new numbers are merged and handed over later. So a full disk delays no
//! lease.
//!
//! [`ledgers`] reads the tenants' allocations, [`integrate`] turns sums and values into rows, [`store`] writes them,
//! [`ask`] queries them. This file has the thread and the reactor's handle to it.

pub mod ask;
pub mod integrate;
pub mod ledgers;
pub mod reading;
pub mod store;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::clock;
use integrate::{Integral, Moment, Sums};
use ledgers::{Held, Ledgers, QUICK, QUICK_READINGS, Whose};
use reading::LedgerReading;
use store::{Mark, Store};
use told::Told;
use vgpu_config::plan::Keep;
use vgpu_control::RecordStatus;

/// Time between two runs of the thread without messages; slightly more than the reactor's second.
const PAUSE: Duration = Duration::from_millis(1200);
/// First pause after a failed write; it doubles up to [`AT_MOST`].
const AGAIN: Duration = Duration::from_secs(1);
const AT_MOST: Duration = Duration::from_secs(30);
/// Time between two removals of old rows.
const TIDY: Duration = Duration::from_secs(600);
/// Up to this many rows are written every second. Beyond it, rows of tenants whose allocations are unchanged and that
/// do nothing else are written every [`SELDOM`].
const FEW: usize = 100;
const SELDOM: Duration = Duration::from_secs(10);
/// Most processes remembered while nothing can be written.
const MARKS: usize = 65_536;

/// Settings of the usage record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Directory of the record; `None` records nothing.
    pub dir: Option<PathBuf>,
    /// How long the record keeps its rows.
    pub keep: Keep,
    /// True if the device time of a tenant that is alone on its device is measured too.
    pub exact: bool,
}

/// Numbers that the reactor hands over in one message.
#[derive(Debug, Default)]
pub struct Batch {
    /// Changed sums of tenants on devices.
    pub sums: BTreeMap<Whose, Sums>,
    /// Processes that joined a device, each with the device time that it measured before.
    pub came: Vec<(Whose, u32, u64)>,
    /// Total device time of each process, in ns.
    pub marks: BTreeMap<(Whose, u32), u64>,
    /// Tenants (by room) whose last member has left, each with the number of the last file received from it.
    emptied: BTreeMap<u64, u64>,
    /// Tenants (by room) that were removed.
    gone: BTreeSet<u64>,
    token: Option<Arc<()>>,
}

enum Word {
    File(Whose, OwnedFd, u64),
    Told(Box<Batch>),
    /// A process of this tenant joined or left.
    Moved(u64),
    Keep(Keep),
    /// Read all ledgers of these tenants.
    Read(Vec<u64>),
    End(SyncSender<()>),
}

/// Results of the record's thread, for the reactor to read.
#[derive(Default)]
struct Shown {
    held: Mutex<BTreeMap<Whose, Held>>,
    /// Start of the reading of the ledgers that each value in `held` comes from.
    read: Mutex<BTreeMap<Whose, Instant>>,
    /// Why a ledger that was readable before cannot be read now.
    broken: Mutex<BTreeMap<Whose, &'static str>>,
    state: Mutex<RecordStatus>,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reactor's handle. No method waits for the disk or for a file, except [`Record::finish`].
pub struct Record {
    tell: Sender<Word>,
    shown: Arc<Shown>,
    draft: Batch,
    /// Cloned into the batch that is on its way.
    token: Arc<()>,
    number: u64,
}

impl Record {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(settings: Settings) -> std::io::Result<Self> {
        let (tell, told) = channel();
        let shown = Arc::new(Shown::default());
        let begins = match &settings.dir {
            None => RecordStatus { ok: true, words: Some("off: state_dir is \"none\"".into()), dir: None },
            Some(dir) => RecordStatus { ok: true, words: Some("not open yet".into()), dir: Some(dir.clone()) },
        };
        *lock(&shown.state) = begins;
        let work = Work::new(settings, shown.clone());
        thread::Builder::new().name("vgpud-record".into()).spawn(move || work.run(&told))?;
        Ok(Self { tell, shown, draft: Batch::default(), token: Arc::new(()), number: 0 })
    }

    /// Takes the ledger with which a member joined the device.
    pub fn file(&mut self, whose: Whose, file: OwnedFd) {
        self.number += 1;
        // The thread lives as long as the daemon. A file that cannot be sent is closed, as all are at the end.
        let _ = self.tell.send(Word::File(whose, file, self.number));
    }

    /// Returns the batch for the next handover; new numbers are merged into it.
    pub fn draft(&mut self) -> &mut Batch {
        &mut self.draft
    }

    /// Notes that a member has left; its allocations are released about now.
    pub fn left(&self, room: u64) {
        let _ = self.tell.send(Word::Moved(room));
    }

    /// Notes that a tenant's last member has left.
    pub fn emptied(&mut self, room: u64) {
        self.draft.emptied.insert(room, self.number);
    }

    /// Notes that a tenant was removed for good.
    pub fn gone(&mut self, room: u64) {
        self.draft.gone.insert(room);
    }

    /// Hands over the new numbers; returns false, for a later retry, while the last batch is still on its way.
    pub fn hand_over(&mut self) -> bool {
        if Arc::strong_count(&self.token) > 1 {
            return false;
        }
        let mut batch = std::mem::take(&mut self.draft);
        batch.token = Some(self.token.clone());
        let _ = self.tell.send(Word::Told(Box::new(batch)));
        true
    }

    /// Sets how long rows are kept.
    pub fn keep(&self, keep: Keep) {
        let _ = self.tell.send(Word::Keep(keep));
    }

    /// Returns a tenant's allocations on a device at the last reading; `None` if unknown.
    #[must_use]
    pub fn held(&self, whose: &Whose) -> Option<Held> {
        lock(&self.shown.held).get(whose).cloned()
    }

    /// Returns the tenants with a ledger that was readable before and is not now, and the reason.
    #[must_use]
    pub fn broken(&self) -> BTreeMap<Whose, &'static str> {
        lock(&self.shown.broken).clone()
    }

    /// Returns all ledgers' numbers at the last reading, each with a time that is never later than the reading.
    #[must_use]
    pub fn readings(&self) -> BTreeMap<Whose, LedgerReading> {
        // Take the times first: a number newer than its time does no harm.
        let read = lock(&self.shown.read).clone();
        let held = lock(&self.shown.held);
        let of = |(whose, read)| {
            let Held { used, overhead, claimed, .. } = *held.get(&whose)?;
            Some((whose, LedgerReading { used, overhead, claimed, read }))
        };
        read.into_iter().filter_map(of).collect()
    }

    /// Reads the ledgers of these tenants now instead of when they are due.
    pub fn read_now(&self, rooms: Vec<u64>) {
        let _ = self.tell.send(Word::Read(rooms));
    }

    /// Returns the state of the record.
    #[must_use]
    pub fn status(&self) -> RecordStatus {
        lock(&self.shown.state).clone()
    }

    /// Hands over everything left and waits until it is written, at most `patience`.
    pub fn finish(&mut self, patience: Duration) {
        let mut batch = std::mem::take(&mut self.draft);
        batch.token = Some(self.token.clone());
        let _ = self.tell.send(Word::Told(Box::new(batch)));
        let (done, seen) = sync_channel(1);
        let _ = self.tell.send(Word::End(done));
        let _ = seen.recv_timeout(patience);
    }
}

/// State of the thread that reads ledgers and writes the usage record.
struct Work {
    settings: Settings,
    ledgers: Ledgers,
    shown: Arc<Shown>,
    integral: Integral,
    told: Told,
    store: Option<Store>,
    /// Device time that earlier daemons recorded for processes that have not joined again; `None` until the store is
    /// open.
    former: Option<BTreeMap<Mark, u64>>,
    /// Processes that joined before the store was open.
    early: Vec<(Mark, u64)>,
    marks: BTreeMap<Mark, u64>,
    /// Time of the next try after a failure, and the pause after that try.
    again: Option<(Instant, Duration)>,
    /// Where a damaged record was moved.
    aside: Option<String>,
    written: Instant,
    tidied: Option<Instant>,
    /// Monotonic and wall clock at the start, to detect that the wall clock was set.
    began: Moment,
    /// Number of the last file taken from each tenant (by room).
    numbers: BTreeMap<u64, u64>,
}

impl Work {
    fn new(settings: Settings, shown: Arc<Shown>) -> Self {
        Self {
            settings,
            ledgers: Ledgers::default(),
            shown,
            integral: Integral::default(),
            told: Told::default(),
            store: None,
            former: None,
            early: Vec::new(),
            marks: BTreeMap::new(),
            again: None,
            aside: None,
            written: Instant::now(),
            tidied: None,
            began: moment(),
            numbers: BTreeMap::new(),
        }
    }

    fn run(mut self, told: &Receiver<Word>) {
        self.open(Instant::now());
        let mut next = Instant::now() + PAUSE;
        let mut glanced = Instant::now();
        loop {
            let busy = self.ledgers.due().is_some() || !self.integral.is_idle() || self.again.is_some();
            let quick = self.ledgers.is_quick().then(|| glanced + QUICK);
            let until = quick.map_or(next, |quick| quick.min(next));
            let wait = if busy { until.saturating_duration_since(Instant::now()) } else { TIDY };
            let mut look = false;
            match told.recv_timeout(wait) {
                Ok(Word::File(whose, file, number)) => self.take(whose, file, number),
                Ok(Word::Told(batch)) => {
                    self.hear(*batch);
                    look = true;
                }
                Ok(Word::Moved(room)) => self.ledgers.moved(room, Instant::now()),
                Ok(Word::Read(rooms)) => {
                    let read = |room| self.ledgers.read_room(room, Instant::now());
                    let changed: BTreeSet<Whose> = rooms.into_iter().flat_map(read).collect();
                    self.hold_of(&changed);
                    self.show();
                }
                Ok(Word::Keep(keep)) => (self.settings.keep, self.tidied) = (keep, None),
                Ok(Word::End(done)) => {
                    self.look(true);
                    // The thread that waits for this may have given up, which is no error.
                    let _ = done.try_send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if look || Instant::now() >= next || !busy {
                self.look(false);
                next = Instant::now() + PAUSE;
            } else if quick.is_some_and(|quick| Instant::now() >= quick) {
                self.glance();
                glanced = Instant::now();
            }
        }
    }

    fn take(&mut self, whose: Whose, file: OwnedFd, number: u64) {
        self.numbers.insert(whose.0, number);
        let (room, device) = (whose.0, whose.1.clone());
        match self.ledgers.take(whose.clone(), file, Instant::now()) {
            Ok(()) => {
                self.hold_of(&BTreeSet::from([whose]));
                self.show();
            }
            Err(why) => warn!(room, device, why, "a tenant's ledger cannot be read"),
        }
    }

    fn hear(&mut self, batch: Batch) {
        let now = moment();
        let mut written: BTreeMap<Whose, u64> = BTreeMap::new();
        for (whose, process, busy) in batch.came {
            let tenant = batch.sums.get(&whose).map(|sums| sums.tenant.clone());
            let Some(tenant) = tenant.or_else(|| self.integral.name(&whose).map(str::to_owned)) else { continue };
            let mark = (tenant, whose.1.clone(), process);
            match &mut self.former {
                // A new process may reuse the number. `min` limits the deduction to the time that this process
                // measured.
                Some(former) => {
                    let before = former.remove(&mark).unwrap_or(0).min(busy);
                    *written.entry(whose).or_default() += before;
                }
                None if self.settings.dir.is_some() && self.early.len() < MARKS => self.early.push((mark, busy)),
                None => {}
            }
        }
        for (whose, sums) in batch.sums {
            self.ledgers.stir(whose.0, Instant::now());
            let before = written.get(&whose).copied().unwrap_or(0);
            self.integral.hears(&whose, sums, before, now);
        }
        for ((whose, process), busy) in batch.marks {
            // While writing fails, an unmarked process may be counted twice, which is better than filling the memory.
            if self.marks.len() >= MARKS {
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
                self.hold();
                self.ledgers.forget(room);
                self.numbers.remove(&room);
            }
        }
        self.hold();
        for room in batch.gone {
            self.integral.forget(room);
            self.ledgers.forget(room);
            self.numbers.remove(&room);
            lock(&self.shown.held).retain(|(of, _), _| *of != room);
        }
    }

    /// Reads the ledgers that are due, and writes the waiting rows.
    fn look(&mut self, last: bool) {
        self.ledgers.read_due(Instant::now(), usize::MAX);
        self.hold();
        self.show();
        self.write(last);
    }

    /// Reads some of the ledgers that change frequently at the moment.
    fn glance(&mut self) {
        let changed = self.ledgers.read_due(Instant::now(), QUICK_READINGS);
        self.hold_of(&changed);
        let mut gone = false;
        for whose in changed {
            match self.ledgers.held_by(&whose) {
                // The published time stays that of an earlier reading, which readers of both values allow for.
                Some(held) => drop(lock(&self.shown.held).insert(whose, held)),
                None => gone = true,
            }
        }
        if gone {
            self.show();
        }
    }

    /// Applies new readings of these tenants' ledgers.
    fn hold_of(&mut self, changed: &BTreeSet<Whose>) {
        let now = moment();
        for whose in changed {
            let held = self.ledgers.held_by(whose);
            let (refused, rose) = self.ledgers.since(whose);
            let used = held.as_ref().map_or(0, |held| held.used);
            self.integral.holds_one(whose, used, held.map(|_| refused), rose, now);
        }
    }

    fn hold(&mut self) {
        let Self { ledgers, integral, told, .. } = self;
        let held = ledgers.held();
        integral.holds(&held, |whose| ledgers.since(whose), moment());
        told.hears(&held, |whose| integral.name(whose).map(str::to_owned));
    }

    fn show(&self) {
        let mut held = self.ledgers.held();
        let mut shown = lock(&self.shown.held);
        for (whose, before) in std::mem::take(&mut *shown) {
            // The processes are gone. The peak and the refusals stay, so that exported counters do not restart.
            let counted = Held { peak: before.peak, refused: before.refused, ..Held::default() };
            held.entry(whose).or_insert(counted);
        }
        *shown = held;
        drop(shown);
        *lock(&self.shown.read) = self.ledgers.read_at();
        lock(&self.shown.broken).clone_from(self.ledgers.broken());
    }

    fn open(&mut self, now: Instant) {
        let Some(dir) = &self.settings.dir else { return };
        let opened = Store::open(dir).and_then(|(mut store, aside)| Ok((store.marks(&boot())?, store, aside)));
        match opened {
            Ok((marks, store, aside)) => {
                if let Some(aside) = &aside {
                    warn!(aside = %aside.display(), "the record was damaged; it was moved aside and a new one begun");
                }
                let mut former = self.former.take().unwrap_or(marks);
                for ((tenant, device, process), busy) in std::mem::take(&mut self.early) {
                    let before = former.remove(&(tenant.clone(), device.clone(), process)).unwrap_or(0).min(busy);
                    self.integral.takes_off(&tenant, &device, before);
                }
                (self.former, self.store) = (Some(former), Some(store));
                if let Some(aside) = aside {
                    self.aside = Some(format!("the last one was damaged and lies in {}", aside.display()));
                }
                self.fares(true, None);
            }
            Err(why) => self.failed(&why.to_string(), now),
        }
    }

    fn fares(&mut self, ok: bool, words: Option<String>) {
        let mut state = lock(&self.shown.state);
        if ok && !state.ok && self.again.is_some() {
            info!(kind = "record.resumed", "the record is written again");
        }
        (state.ok, state.words) = (ok, words.or_else(|| self.aside.clone()));
        if ok {
            self.again = None;
        }
    }

    fn failed(&mut self, why: &str, now: Instant) {
        let pause = self.again.map_or(AGAIN, |(_, pause)| (pause * 2).min(AT_MOST));
        let new = lock(&self.shown.state).words.as_deref() != Some(why);
        if new {
            warn!(kind = "record.failed", why, "usage is not recorded at the moment; limits are kept as ever");
        }
        self.again = Some((now + pause, pause));
        self.fares(false, Some(why.to_owned()));
    }

    fn write(&mut self, last: bool) {
        let now = Instant::now();
        if self.settings.dir.is_none() {
            return self.integral.written();
        }
        if self.again.is_some_and(|(at, _)| now < at) && !last {
            return;
        }
        if self.store.is_none() {
            self.open(now);
        }
        let (rows, urgent) = self.integral.waiting();
        let due = last || urgent > 0 || rows.len() <= FEW || now.saturating_duration_since(self.written) >= SELDOM;
        let something = !(rows.is_empty() && self.marks.is_empty());
        let Some(store) = &mut self.store else { return };
        let added = if due && something { Some(store.add(rows, &self.marks, moment().wall)) } else { None };
        match added {
            Some(Ok(())) => {
                self.integral.written();
                self.marks.clear();
                self.written = now;
                self.fares(true, None);
            }
            Some(Err(why)) => {
                // A full disk may get space again. After any other error the file is opened and checked again.
                if !why.is_full() {
                    self.store = None;
                }
                return self.failed(&why.to_string(), now);
            }
            None => {}
        }
        let Some(store) = &mut self.store else { return };
        if !last && self.tidied.is_none_or(|at| now.saturating_duration_since(at) >= TIDY) {
            let at = moment();
            if at.was_set_since(&self.began) {
                // The age of rows is now unknown, and rows deleted by a wrong clock are lost.
                self.tidied = Some(now);
                warn!(
                    "the clock was set forward by more than a day: old rows of the record stay until the daemon starts again"
                );
                return;
            }
            match store.tidy(self.settings.keep, at.wall) {
                Ok(more) => self.tidied = if more { None } else { Some(now) },
                // If the error persists, adding rows reports it too.
                Err(why) => {
                    self.tidied = Some(now);
                    warn!(%why, "old rows of the record stay for now");
                }
            }
        }
    }
}

fn moment() -> Moment {
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Moment { ns: clock::now(), wall: i64::try_from(wall).unwrap_or(i64::MAX) }
}

/// Identifies this boot of the host, since process numbers restart with the next one.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
