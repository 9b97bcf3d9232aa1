//! The record: what tenants used, minute by minute, kept over the daemon's end.
//!
//! A thread of its own. The loop that serves members hands over what it knows, once a second, and never waits: while the
//! thread is busy with a slow disk, what is new is put together and handed over later. So a full disk holds up no lease.
//!
//! By verb: [`ledgers`] reads what tenants hold, [`integrate`] turns sums and values
//! into rows, [`store`] keeps them, [`ask`] finds them again. This file: the thread, and the side of those who tell it.

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

/// Between two looks of the thread where nobody tells it anything. A little more than between two tellings.
const PAUSE: Duration = Duration::from_millis(1200);
/// Between two tries to write where it failed, at first and at most.
const AGAIN: Duration = Duration::from_secs(1);
const AT_MOST: Duration = Duration::from_secs(30);
/// Between two looks for what is old.
const TIDY: Duration = Duration::from_secs(600);
/// Rows of tenants that hold what they held and do nothing else are written every second up to so many, and beyond that so
/// often.
const FEW: usize = 100;
const SELDOM: Duration = Duration::from_secs(10);
/// Processes that are remembered while nothing can be written.
const MARKS: usize = 65_536;

/// What is to be kept, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The directory; `None`: nothing is kept.
    pub dir: Option<PathBuf>,
    /// For how long.
    pub keep: Keep,
    /// Is the time of a tenant that is alone measured too?
    pub exact: bool,
}

/// What the loop hands over at once.
#[derive(Debug, Default)]
pub struct Batch {
    /// Sums that changed.
    pub sums: BTreeMap<Whose, Sums>,
    /// Processes that came to a device, with the device time that they measured before.
    pub came: Vec<(Whose, u32, u64)>,
    /// How far processes have come, in ns.
    pub marks: BTreeMap<(Whose, u32), u64>,
    /// Rooms whose last member has left, and the number of the last file that came from there.
    emptied: BTreeMap<u64, u64>,
    /// Rooms that are gone.
    gone: BTreeSet<u64>,
    token: Option<Arc<()>>,
}

enum Word {
    File(Whose, OwnedFd, u64),
    Told(Box<Batch>),
    /// A process of this room came or went.
    Moved(u64),
    Keep(Keep),
    /// Read all ledgers of these rooms.
    Read(Vec<u64>),
    End(SyncSender<()>),
}

/// What others may see.
#[derive(Default)]
struct Shown {
    held: Mutex<BTreeMap<Whose, Held>>,
    /// When that was read.
    read: Mutex<BTreeMap<Whose, Instant>>,
    /// Why a ledger that was read before cannot be read any more.
    broken: Mutex<BTreeMap<Whose, &'static str>>,
    state: Mutex<RecordStatus>,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The side of the loop. Nothing here waits for the disk, or for a file.
pub struct Record {
    tell: Sender<Word>,
    shown: Arc<Shown>,
    draft: Batch,
    /// Held by the batch that is on its way.
    token: Arc<()>,
    number: u64,
}

impl Record {
    /// Starts the thread.
    ///
    /// # Errors
    /// There can be none.
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

    /// A member joined the device with this ledger.
    pub fn file(&mut self, whose: Whose, file: OwnedFd) {
        self.number += 1;
        // The thread is there as long as the daemon; a file that cannot be sent is closed, as all are at the end.
        let _ = self.tell.send(Word::File(whose, file, self.number));
    }

    /// What is to be handed over next; what is there already is put together with it.
    pub fn draft(&mut self) -> &mut Batch {
        &mut self.draft
    }

    /// A member of a room has left: what it held is given up about now.
    pub fn left(&self, room: u64) {
        let _ = self.tell.send(Word::Moved(room));
    }

    /// A room's last member has left.
    pub fn emptied(&mut self, room: u64) {
        self.draft.emptied.insert(room, self.number);
    }

    /// A room is gone for good.
    pub fn gone(&mut self, room: u64) {
        self.draft.gone.insert(room);
    }

    /// Hands over what is new; false, if the last is on its way still: later, then.
    pub fn hand_over(&mut self) -> bool {
        if Arc::strong_count(&self.token) > 1 {
            return false;
        }
        let mut batch = std::mem::take(&mut self.draft);
        batch.token = Some(self.token.clone());
        let _ = self.tell.send(Word::Told(Box::new(batch)));
        true
    }

    /// Another time for which rows are kept.
    pub fn keep(&self, keep: Keep) {
        let _ = self.tell.send(Word::Keep(keep));
    }

    /// What a tenant holds of a device, as it was read last; `None`: not known.
    #[must_use]
    pub fn held(&self, whose: &Whose) -> Option<Held> {
        lock(&self.shown.held).get(whose).cloned()
    }

    /// Tenants with a ledger that was read before and cannot be read any more, and why.
    #[must_use]
    pub fn broken(&self) -> BTreeMap<Whose, &'static str> {
        lock(&self.shown.broken).clone()
    }

    /// What all tenants' ledgers say, as they were read last, and when: no sooner than that.
    #[must_use]
    pub fn readings(&self) -> BTreeMap<Whose, LedgerReading> {
        // The older one first: what is newer than its moment does no harm.
        let read = lock(&self.shown.read).clone();
        let held = lock(&self.shown.held);
        let of = |(whose, read)| {
            let Held { used, overhead, claimed, .. } = *held.get(&whose)?;
            Some((whose, LedgerReading { used, overhead, claimed, read }))
        };
        read.into_iter().filter_map(of).collect()
    }

    /// The ledgers of these rooms are read now instead of when they are due.
    pub fn read_now(&self, rooms: Vec<u64>) {
        let _ = self.tell.send(Word::Read(rooms));
    }

    /// How the record is.
    #[must_use]
    pub fn status(&self) -> RecordStatus {
        lock(&self.shown.state).clone()
    }

    /// Hands over what there is and waits until it is written, for so long at most.
    pub fn finish(&mut self, patience: Duration) {
        let mut batch = std::mem::take(&mut self.draft);
        batch.token = Some(self.token.clone());
        let _ = self.tell.send(Word::Told(Box::new(batch)));
        let (done, seen) = sync_channel(1);
        let _ = self.tell.send(Word::End(done));
        let _ = seen.recv_timeout(patience);
    }
}

/// The thread.
struct Work {
    settings: Settings,
    ledgers: Ledgers,
    shown: Arc<Shown>,
    integral: Integral,
    told: Told,
    store: Option<Store>,
    /// Device time that former daemons wrote of processes that have not come back yet; `None`: the store was not open yet.
    former: Option<BTreeMap<Mark, u64>>,
    /// Those that came before it was.
    early: Vec<(Mark, u64)>,
    marks: BTreeMap<Mark, u64>,
    /// When to try again after what failed, and the pause before the next try.
    again: Option<(Instant, Duration)>,
    /// Where a damaged record lies.
    aside: Option<String>,
    written: Instant,
    tidied: Option<Instant>,
    /// What the clock said first, beside the one that cannot be set.
    began: Moment,
    /// By room: what was taken from it last.
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
                    // Whoever waits may have given up.
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
                // Who has just begun is another process with that number.
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
            // While nothing can be written: what is not marked would count twice, which is better than to fill the memory.
            if self.marks.len() >= MARKS {
                break;
            }
            if let Some(tenant) = self.integral.name(&whose) {
                self.marks.insert((tenant.to_owned(), whose.1, process), busy);
            }
        }
        for (room, number) in batch.emptied {
            // Somebody may have come meanwhile, with another file.
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

    /// Reads what is due, and writes what waits.
    fn look(&mut self, last: bool) {
        self.ledgers.read_due(Instant::now(), usize::MAX);
        self.hold();
        self.show();
        self.write(last);
    }

    /// Reads some of the ledgers that change now.
    fn glance(&mut self) {
        let changed = self.ledgers.read_due(Instant::now(), QUICK_READINGS);
        self.hold_of(&changed);
        let mut gone = false;
        for whose in changed {
            match self.ledgers.held_by(&whose) {
                // Its moment stays the one of an earlier reading, as the readers of both expect.
                Some(held) => drop(lock(&self.shown.held).insert(whose, held)),
                None => gone = true,
            }
        }
        if gone {
            self.show();
        }
    }

    /// These tenants' ledgers were read: they hold something else from now on.
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
            // Its processes are gone. What their ledger counted stays, so that a counter does not begin anew.
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
                // A full disk may have room again; what else is wrong with the file is looked at anew.
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
                // What is old cannot be told: rows that are gone by a wrong clock are gone for good.
                self.tidied = Some(now);
                warn!(
                    "the clock was set forward by more than a day: old rows of the record stay until the daemon starts again"
                );
                return;
            }
            match store.tidy(self.settings.keep, at.wall) {
                Ok(more) => self.tidied = if more { None } else { Some(now) },
                // Adding says it too, if it lasts.
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

/// Names this boot of the host: numbers of processes begin anew with the next.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
