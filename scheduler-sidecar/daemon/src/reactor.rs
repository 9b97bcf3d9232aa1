//! The daemon's main thread: one epoll loop over listeners, connections, bells (eventfds of members) and deadlines.
//!
//! `entrance` accepts connections, `talk` reads requests and answers them. `time` serves member pages and GPU time,
//! `untaken` tracks descriptors that members have not received. `status` builds the status report, `follow` streams
//! events. The reactor reads the clock and passes the time to the leases, which read none.

mod admin;
mod change;
mod entrance;
mod follow;
mod proves;
mod reload;
mod status;
mod talk;
mod terms_file;
mod time;
mod untaken;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use entrance::{raise_descriptor_limit, spare};
use reload::Loaded;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use shim_sys::memfd::Mapped;
pub(super) use time::number;
use tracing::{info, warn};
use vgpu_core::protocol::page::{BoardPage, ReportPage};

use super::asking::Asking;
use super::by_hand::Marks;
use super::config::Config;
use super::connection::{Connection, Side, State};
use super::door::{Audience, Door, DoorError, refuse_foreign};
use super::journal::Journal;
use super::leases::Leases;
use super::metrics::Metrics;
use super::notify::Notifier;
use super::pages::{self, Alarm, Heart};
use super::proof::Proof;
use super::recent::Recent;
use super::room::{self, Room, is_open_to_all};
use super::roster::Roster;
use super::source::Source;
use vgpu_accounting::clock;
use vgpu_accounting::record::Record;
use vgpu_accounting::shelf::Shelf;
use vgpu_config::plan::Plan;

/// Time limit of a peer for its first line, and for receiving a pending answer.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Total time that startup may wait for other daemons' locks on socket directories.
const START_PATIENCE: Duration = Duration::from_secs(1);

/// Longest time that shutdown waits for the usage record to be written.
const LAST_ROWS: Duration = Duration::from_secs(1);

const SIGNALS: u64 = 0;
const ADMIN_DOOR: u64 = 1;
const RELOAD: u64 = 2;
const ALARM: u64 = 3;
const DRIVER: u64 = 4;
const EVENTS: u64 = 5;
const METRICS: u64 = 6;
const PROOF: u64 = 7;
const FIRST_ROOM: u64 = 8;
/// Epoll token of a tenant's bell (eventfd of its members): this plus the number of the tenant's room.
const FIRST_BELL: u64 = 1 << 31;
const FIRST_CONNECTION: u64 = 1 << 32;

/// Why the daemon cannot start or continue.
#[derive(Debug)]
pub enum ServeError {
    /// A socket cannot be opened.
    Door(DoorError),
    /// A system call failed.
    Io(&'static str, io::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Door(why) => why.fmt(f),
            Self::Io(what, why) => write!(f, "cannot {what}: {why}"),
        }
    }
}

impl std::error::Error for ServeError {}

impl From<DoorError> for ServeError {
    fn from(why: DoorError) -> Self {
        Self::Door(why)
    }
}

fn failed<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> ServeError {
    move |why| ServeError::Io(what, why.into())
}

/// Requests from the signal handlers: each stream becomes readable when its signal arrives.
pub struct Told {
    /// Stop the daemon.
    pub stop: UnixStream,
    /// Read the configuration file again.
    pub reload: UnixStream,
}

/// The running daemon: one event loop with all its sockets, tenants and leases.
pub struct Reactor {
    epoll: OwnedFd,
    told: Told,
    admin: Option<Door>,
    admins: usize,
    /// Tenants by room number. The number is also the epoll token of the tenant's listener, and is never reused.
    pub(super) rooms: BTreeMap<u64, Room>,
    pub(super) next_room: u64,
    pub(super) max_connections: usize,
    /// Most file descriptors that the daemon may have open.
    descriptors: usize,
    /// Most undelivered welcomes of all tenants together; `None`: the kernel does not limit descriptors in flight.
    most_untaken: Option<u64>,
    pub(super) loaded: Option<Loaded>,
    /// The driver while it is being asked for its devices.
    pub(super) asking: Option<Asking>,
    pub(super) notifier: Notifier,
    /// Log of the daemon's events, which administrators can follow.
    journal: Journal,
    /// The enforcement check; `None`: it is off.
    pub(super) proof: Option<Proof>,
    /// List of members for the next daemon.
    pub(super) roster: Roster,
    /// The metrics server, or why it could not start; `None`: it is off.
    metrics: Option<Result<Metrics, String>>,
    connections: HashMap<u64, Connection>,
    deadlines: BTreeSet<(Instant, u64)>,
    pub(super) leases: Leases<Mapped<BoardPage>, Mapped<ReportPage>>,
    pub(super) heart: Heart,
    alarm: Alarm,
    /// File descriptors of tenants' pages, by room.
    shelf: Shelf<2>,
    /// Device time that tenants wanted and got in the last seconds.
    pub(super) recent: Recent,
    /// Record of usage, on disk.
    pub(super) record: Record,
    /// True while usage is still to be passed to the record: the last member left, or the record was busy.
    owes: bool,
    /// Keys that administrators changed since the file was read.
    pub(super) marks: Marks,
    /// Bells that members ring too often, and that are ignored for a while: time in ns to listen again, and room.
    muted: BTreeSet<(u64, u64)>,
    /// Number of connected members that speak protocol 2.
    paged: usize,
    next_member: u64,
    next_token: u64,
    /// Closed when descriptors run out, so that a caller can be accepted and refused. Otherwise it would wait for
    /// ever.
    spare: Option<OwnedFd>,
    started: Instant,
}

impl Reactor {
    /// Opens every listener. With a file, `told.reload` makes the daemon read it again.
    ///
    /// # Errors
    /// [`ServeError`]; listeners that were already open are closed.
    pub fn new(
        config: Config,
        told: Told,
        file: Option<(Source, Plan, String)>,
        notifier: Notifier,
        journal: Journal,
    ) -> Result<Self, ServeError> {
        let foreign = config.run_dir.as_deref().map_or(Ok(()), refuse_foreign);
        foreign.map_err(io::Error::other).map_err(failed("use the directory of the sockets"))?;
        let descriptors = raise_descriptor_limit();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("make an epoll set"))?;
        for (stream, token) in [(&told.stop, SIGNALS), (&told.reload, RELOAD)] {
            stream.set_nonblocking(true).map_err(failed("watch for signals"))?;
            epoll::add(&epoll, stream, EventData::new_u64(token), EventFlags::IN)
                .map_err(failed("watch for signals"))?;
        }
        let (epoch, now) = (pages::epoch(), clock::now());
        let heart = Heart::new(epoch, config.time.heartbeat, now).map_err(failed("make the pages of members"))?;
        let alarm = Alarm::new().map_err(failed("make a timer"))?;
        epoll::add(&epoll, &alarm, EventData::new_u64(ALARM), EventFlags::IN | EventFlags::ET)
            .map_err(failed("watch a timer"))?;
        let measures_all = config.record.exact;
        let roster = Roster::open(config.run_dir.as_deref().filter(|_| config.proof.is_some()));
        let mut reactor = Self {
            epoll,
            told,
            admin: None,
            admins: 0,
            rooms: BTreeMap::new(),
            next_room: FIRST_ROOM,
            max_connections: config.max_connections,
            descriptors,
            most_untaken: untaken::most(),
            loaded: file.map(|(source, plan, text)| Loaded { source, plan, text, reloads: 0, refused: None }),
            asking: None,
            notifier,
            journal,
            roster,
            proof: config.proof.map(Proof::start).transpose().map_err(failed("prove enforcement"))?,
            metrics: config.metrics.listen.map(|at| Metrics::start(at, config.metrics.hami_names)),
            connections: HashMap::new(),
            deadlines: BTreeSet::new(),
            leases: Leases::new(config.time, config.arbitrate, &config.devices, epoch, now),
            heart,
            alarm,
            shelf: Shelf::default(),
            recent: Recent::default(),
            record: Record::start(config.record).map_err(failed("start the record"))?,
            owes: false,
            marks: Marks::new(),
            muted: BTreeSet::new(),
            paged: 0,
            next_member: 1,
            next_token: FIRST_CONNECTION,
            spare: spare(),
            started: Instant::now(),
        };
        reactor.leases.measure_all(measures_all);
        reactor.watch_journal()?;
        reactor.watch_metrics()?;
        reactor.watch_proof()?;
        let mut patience = START_PATIENCE;
        if let Some(path) = &config.admin {
            let door = Door::open(path, Audience::Administrators, &mut patience)?;
            reactor.watch(&door, ADMIN_DOOR)?;
            reactor.admin = Some(door);
        }
        let mut first = None;
        for tenant in config.tenants {
            match Door::open(&tenant.socket, Audience::Members, &mut patience) {
                Ok(door) => reactor.add_room(tenant, door)?,
                // A program of the tenant can listen at its socket path, so one taken path must not stop the daemon.
                // Another daemon is detected at the administrative socket, or by the fact that every path is taken.
                Err(why) => {
                    warn!(kind = "tenant.unusable", tenant = %tenant.name, %why, "this tenant is not served; the others are");
                    reactor.add_unusable(tenant, why.to_string());
                    first = first.or(Some(why));
                }
            }
        }
        match first {
            Some(why) if reactor.rooms.values().all(|room| room.door.is_none()) => return Err(why.into()),
            _ => {}
        }
        reactor.rewrite_roster(None);
        reactor.sweep_terms();
        reactor.ask_driver();
        Ok(reactor)
    }

    /// Asks the driver for its devices in a helper thread, if the plan has a device that only the driver can
    /// identify. One thread asks at a time, and it stops when the plan needs no answer.
    pub(super) fn ask_driver(&mut self) {
        let waits = self.loaded.as_ref().is_some_and(|loaded| loaded.source.waits_for_driver(&loaded.plan));
        if !waits {
            self.asking = None;
        }
        if !waits || self.asking.is_some() {
            return;
        }
        let begun = Asking::begin().and_then(|asking| {
            epoll::add(&self.epoll, &asking, EventData::new_u64(DRIVER), EventFlags::IN)?;
            Ok(asking)
        });
        match begun {
            Ok(asking) => self.asking = Some(asking),
            Err(why) => warn!(%why, "the driver cannot be asked again; reading the file again tries once more"),
        }
    }

    /// Adds a listener to the epoll set. Dropping the listener removes it.
    pub(super) fn watch(&self, door: &Door, token: u64) -> Result<(), ServeError> {
        epoll::add(&self.epoll, door, EventData::new_u64(token), EventFlags::IN).map_err(failed("watch a socket"))
    }

    /// Runs the loop until [`Told::stop`] is readable.
    ///
    /// # Errors
    /// [`ServeError`] if epoll itself fails.
    pub fn run(mut self) -> Result<(), ServeError> {
        self.announce();
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(why) => return Err(failed("wait for events")(why)),
            }
            // Alarm and bells first: waiting members get a device before new connections are accepted.
            for token in events.iter().map(|event| event.data.u64()) {
                match token {
                    ALARM => self.alarm.rang(),
                    FIRST_BELL..FIRST_CONNECTION => self.bell_rang(token - FIRST_BELL),
                    _ => {}
                }
            }
            self.keep_time();
            for token in events.iter().map(|event| event.data.u64()) {
                match token {
                    ALARM | FIRST_BELL..FIRST_CONNECTION => {}
                    SIGNALS => {
                        let members: usize = self.rooms.values().map(Room::members).sum();
                        info!(kind = "daemon.stopping", members, "stopping; members keep their last terms");
                        self.notifier.stopping();
                        self.end_pages();
                        self.note_all();
                        self.record.finish(LAST_ROWS);
                        return Ok(());
                    }
                    RELOAD => {
                        // Several requests lead to one reading, since each reading takes the file as it is.
                        while self.told.reload.read(&mut [0; 64]).is_ok_and(|length| length > 0) {}
                        self.reload();
                    }
                    DRIVER => self.driver_answered(),
                    EVENTS => self.happened(),
                    METRICS => self.measured(),
                    PROOF => self.proves(),
                    ADMIN_DOOR => self.let_in(Side::Admin),
                    FIRST_CONNECTION.. => self.serve(token),
                    room => self.let_in(Side::Member(room)),
                }
            }
            self.expire();
            self.look_back();
            self.set_alarm();
        }
    }

    /// Time to the next connection deadline or heartbeat. Both tolerate the millisecond of error that epoll may add.
    fn timeout(&self) -> Option<Timespec> {
        let deadline = self.deadlines.first().map(|(deadline, _)| deadline.saturating_duration_since(Instant::now()));
        let beat = self.heart.next().map(|next| Duration::from_nanos(next.saturating_sub(clock::now())));
        let left = deadline.into_iter().chain(beat).min()?;
        let tv_sec = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
        Some(Timespec { tv_sec, tv_nsec: i64::from(left.subsec_nanos()) })
    }

    fn announce(&self) {
        for Room { tenant, .. } in self.rooms.values() {
            room::announce(tenant);
            if let Some(dir) = tenant.socket.parent().filter(|dir| !is_open_to_all(dir)) {
                warn!(dir = %dir.display(), "only its owner can enter this directory; members may be any user");
            }
        }
        let version = env!("CARGO_PKG_VERSION");
        match &self.admin {
            Some(door) => info!(kind = "daemon.started", admin = %door.path().display(), version, "ready"),
            None => info!(kind = "daemon.started", version, "ready, without an administrative socket"),
        }
        for note in self.loaded.iter().flat_map(|loaded| &loaded.plan.notes) {
            warn!("{note}");
        }
        self.notifier.ready(&self.summary());
    }
}
