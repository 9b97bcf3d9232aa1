//! The daemon's main thread: one epoll loop over listeners, connections, bells (eventfds of members) and deadlines.
//!
//! `entrance` accepts connections, `talk` reads requests and answers them, `tenants` adds and removes tenants by
//! command, `stored` has those that are not served. `time` serves member pages and GPU time, `untaken` tracks
//! descriptors that members have not received. `policies` puts decisions in force, `bookings` and `cordons` make and
//! end theirs, `evacuations` asks members to end, `suspensions` knows the suspended ones, and `places` names their
//! devices. `status` builds the status report, `queue` lists who waits, `follow` streams events. The reactor reads the
//! clock and passes the time to the leases, which read none.

mod admin;
mod bookings;
mod change;
mod cordons;
mod deadlines;
mod entrance;
mod evacuations;
mod follow;
mod groups;
mod idle;
mod labels;
mod members;
mod needs;
mod places;
mod policies;
mod proves;
mod queue;
mod reload;
mod slots;
mod status;
mod stored;
mod suspensions;
mod talk;
mod tenants;
mod terms_file;
#[cfg(test)]
mod tests;
mod time;
mod untaken;
mod usage;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use entrance::{raise_descriptor_limit, spare_descriptor};
use groups::GroupState;
use policies::{ChangeNote, PolicyState};
use reload::LoadedFile;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use shim_sys::memfd::MappedPage;
use slots::WaitingSlots;
use tenants::AddedTenants;
pub(super) use time::arbiter_number;
use tracing::{info, warn};
use vgpu_core::protocol::page::{BoardPage, ReportPage};

use super::additions::AdditionQueue;
use super::asking::DriverInquiry;
use super::config::DaemonConfig;
use super::connection::{Connection, ConnectionSide, ConnectionState};
use super::door::{ListenError, ListeningSocket, SocketAudience, refuse_foreign};
use super::journal::EventJournal;
use super::leases::LeaseBook;
use super::metrics::MetricsServer;
use super::notify::ServiceNotifier;
use super::pages::{self, BeatSource, TimerAlarm};
use super::promises::PromiseBook;
use super::proof::ProofLink;
use super::proof::driver::DeviceNames;
use super::recent::RecentUse;
use super::room::{self, TenantRoom, is_open_to_all};
use super::roster::MemberRoster;
use super::source::ConfigSource;
use crate::descriptor_pool::DescriptorPool;
use vgpu_accounting::clock;
use vgpu_accounting::record::UsageRecord;
use vgpu_config::plan::ConfigPlan;

/// Time limit of a peer for its first line, and for receiving a pending answer.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(2);

/// Total time that startup may wait for other daemons' locks on socket directories.
const START_LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest time between two turns of the loop. Kernels before 5.11 take no more than 24 days of milliseconds.
const MAX_SLEEP: Duration = Duration::from_secs(3600);

/// Longest time that shutdown waits for the usage record to be written.
const RECORD_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

const SIGNALS_TOKEN: u64 = 0;
const ADMIN_TOKEN: u64 = 1;
const RELOAD_TOKEN: u64 = 2;
const ALARM_TOKEN: u64 = 3;
const DRIVER_TOKEN: u64 = 4;
const EVENTS_TOKEN: u64 = 5;
const METRICS_TOKEN: u64 = 6;
const PROOF_TOKEN: u64 = 7;
const FIRST_ROOM: u64 = 8;
/// Epoll token of the process with whose end a tenant is removed: this plus the number of the tenant's room.
const FIRST_OWNER: u64 = 1 << 30;
/// Epoll token of a tenant's bell (eventfd of its members): this plus the number of the tenant's room.
const FIRST_BELL: u64 = 1 << 31;
const FIRST_CONNECTION: u64 = 1 << 32;

/// Why the daemon cannot start or continue.
#[derive(Debug)]
pub enum ServeError {
    /// A socket cannot be opened.
    Door(ListenError),
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

impl From<ListenError> for ServeError {
    fn from(why: ListenError) -> Self {
        Self::Door(why)
    }
}

fn serve_error<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> ServeError {
    move |why| ServeError::Io(what, why.into())
}

/// Requests from the signal handlers: each stream becomes readable when its signal arrives.
pub struct LoopInputs {
    /// Stop the daemon.
    pub stop: UnixStream,
    /// Read the configuration file again.
    pub reload: UnixStream,
}

/// The running daemon: one event loop with all its sockets, tenants and leases.
pub struct Reactor {
    epoll: OwnedFd,
    told: LoopInputs,
    admin: Option<ListeningSocket>,
    admins: usize,
    /// Tenants by room number. The number is also the epoll token of the tenant's listener, and is never reused.
    pub(super) rooms: BTreeMap<u64, TenantRoom>,
    pub(super) next_room: u64,
    pub(super) max_connections: usize,
    /// Most file descriptors that the daemon may have open.
    descriptors: usize,
    /// Most undelivered welcomes of all tenants together; `None`: the kernel does not limit descriptors in flight.
    most_untaken: Option<u64>,
    pub(super) loaded: Option<LoadedFile>,
    /// Tenants that commands added.
    added: AddedTenants,
    /// Slots of the file that wait for members to leave.
    slots: WaitingSlots,
    /// The driver while it is being asked for its devices.
    pub(super) asking: Option<DriverInquiry>,
    pub(super) notifier: ServiceNotifier,
    /// Log of the daemon's events, which administrators can follow.
    journal: EventJournal,
    /// The enforcement check; `None`: it is off.
    pub(super) proof: Option<ProofLink>,
    /// List of members for the next daemon.
    pub(super) roster: MemberRoster,
    /// The metrics server, or why it could not start; `None`: it is off.
    metrics: Option<Result<MetricsServer, String>>,
    connections: HashMap<u64, Connection>,
    deadlines: BTreeSet<(Instant, u64)>,
    pub(super) leases: LeaseBook<MappedPage<BoardPage>, MappedPage<ReportPage>>,
    pub(super) heart: BeatSource,
    alarm: TimerAlarm,
    /// File descriptors of tenants' pages, by room.
    shelf: DescriptorPool,
    /// Device time that tenants wanted and got in the last seconds.
    pub(super) recent: RecentUse,
    /// Device time that tenants were promised and got.
    pub(super) promises: PromiseBook,
    /// Commands that wait until their tenant fits.
    pub(super) additions: AdditionQueue,
    /// Record of usage, on disk.
    pub(super) record: UsageRecord,
    /// True while usage is still to be passed to the record: the last member left, or the record was busy.
    owes: bool,
    /// Decisions of administrators and of the policies.
    pub(super) policies: PolicyState,
    /// Steps that evacuations have taken.
    pub(super) evacuated: evacuations::EvacuationLog,
    /// Work that is due for suspended processes.
    suspensions: suspensions::SuspensionState,
    /// State of groups: their weights and quotas in force.
    groups: GroupState,
    /// Bells that members ring too often, and that are ignored for a while: time in ns to listen again, and room.
    muted: BTreeSet<(u64, u64)>,
    /// Number of members.
    members: usize,
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
        config: DaemonConfig,
        told: LoopInputs,
        file: Option<(ConfigSource, ConfigPlan, String)>,
        notifier: ServiceNotifier,
        journal: EventJournal,
    ) -> Result<Self, ServeError> {
        let foreign = config.run_dir.as_deref().map_or(Ok(()), refuse_foreign);
        foreign.map_err(io::Error::other).map_err(serve_error("use the directory of the sockets"))?;
        let descriptors = raise_descriptor_limit();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(serve_error("make an epoll set"))?;
        for (stream, token) in [(&told.stop, SIGNALS_TOKEN), (&told.reload, RELOAD_TOKEN)] {
            stream.set_nonblocking(true).map_err(serve_error("watch for signals"))?;
            epoll::add(&epoll, stream, EventData::new_u64(token), EventFlags::IN)
                .map_err(serve_error("watch for signals"))?;
        }
        let (epoch, now) = (pages::new_epoch(), clock::now());
        let heart =
            BeatSource::new(epoch, config.time.heartbeat, now).map_err(serve_error("make the pages of members"))?;
        let alarm = TimerAlarm::new().map_err(serve_error("make a timer"))?;
        epoll::add(&epoll, &alarm, EventData::new_u64(ALARM_TOKEN), EventFlags::IN | EventFlags::ET)
            .map_err(serve_error("watch a timer"))?;
        let measures_all = config.record.exact;
        let roster = MemberRoster::open(config.run_dir.as_deref().filter(|_| config.proof.is_some()));
        let mut names = DeviceNames::new();
        for device in file.iter().flat_map(|(_, plan, _)| &plan.devices) {
            if let (Some(index), Some(uuid)) = (device.index, &device.uuid) {
                names.entry(index).or_default().push(uuid.clone());
            }
        }
        let policies = PolicyState::below(config.record.dir.as_deref());
        let mut reactor = Self {
            epoll,
            told,
            admin: None,
            admins: 0,
            rooms: BTreeMap::new(),
            next_room: FIRST_ROOM,
            max_connections: config.max_connections,
            descriptors,
            most_untaken: untaken::max_undelivered(),
            loaded: file.map(|(source, plan, text)| LoadedFile { source, plan, text, reloads: 0, refused: None }),
            added: AddedTenants::below(config.run_dir.as_deref()),
            slots: WaitingSlots::default(),
            asking: None,
            notifier,
            journal,
            roster,
            proof: config
                .proof
                .map(|plan| ProofLink::start(plan, names))
                .transpose()
                .map_err(serve_error("prove enforcement"))?,
            metrics: config.metrics.listen.map(|at| MetricsServer::start(at, config.metrics.hami_names)),
            connections: HashMap::new(),
            deadlines: BTreeSet::new(),
            leases: LeaseBook::new(config.time, config.arbitrate, &config.devices, epoch, now),
            heart,
            alarm,
            shelf: DescriptorPool::default(),
            recent: RecentUse::default(),
            promises: PromiseBook::default(),
            additions: AdditionQueue::default(),
            record: UsageRecord::start(config.record).map_err(serve_error("start the record"))?,
            owes: false,
            policies,
            // Evacuations of the last daemon go on.
            evacuated: evacuations::EvacuationLog::due_at_once(),
            suspensions: suspensions::SuspensionState::due_at_once(),
            groups: GroupState::default(),
            muted: BTreeSet::new(),
            members: 0,
            next_member: 1,
            next_token: FIRST_CONNECTION,
            spare: spare_descriptor(),
            started: Instant::now(),
        };
        reactor.leases.measure_all(measures_all);
        reactor.watch_journal()?;
        reactor.watch_metrics()?;
        reactor.watch_proof()?;
        let mut patience = START_LOCK_TIMEOUT;
        if let Some(path) = &config.admin {
            let door = ListeningSocket::open(path, SocketAudience::Administrators, &mut patience)?;
            reactor.watch_socket(&door, ADMIN_TOKEN)?;
            reactor.admin = Some(door);
        }
        let mut first = None;
        for tenant in config.tenants {
            match ListeningSocket::open(&tenant.socket, SocketAudience::Members, &mut patience) {
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
        reactor.apply_policies(&ChangeNote::default());
        reactor.restore_added();
        reactor.rename_changed_devices();
        reactor.warn_of_booking_names();
        reactor.apply_policies(&ChangeNote::default());
        reactor.warn_of_misfits();
        reactor.settle_suspensions();
        reactor.wait_for_group_use();
        reactor.follow_usage();
        reactor.rewrite_roster(None);
        reactor.sweep_terms();
        reactor.ask_driver();
        Ok(reactor)
    }

    /// Asks the driver for its devices in a helper thread, if the plan has a device that only the driver can
    /// identify, if a device is lost, or if a tenant was not accepted without it. One thread asks at a time, and it
    /// stops when the plan needs no answer.
    pub(super) fn ask_driver(&mut self) {
        let lacks = self.added.lacks_driver;
        let waits = self.loaded.as_ref().is_some_and(|loaded| {
            loaded.source.waits_for_driver(&loaded.plan) || lacks && loaded.source.driver_is_silent()
        });
        if !waits {
            self.asking = None;
        }
        if !waits || self.asking.is_some() {
            return;
        }
        let known = self.loaded.as_ref().map_or(0, |loaded| loaded.source.count_identified());
        let begun = DriverInquiry::begin_inquiry(known).and_then(|asking| {
            epoll::add(&self.epoll, &asking, EventData::new_u64(DRIVER_TOKEN), EventFlags::IN)?;
            Ok(asking)
        });
        match begun {
            Ok(asking) => self.asking = Some(asking),
            Err(why) => warn!(%why, "the driver cannot be asked again; reading the file again tries once more"),
        }
    }

    /// Adds a listener to the epoll set. Dropping the listener removes it.
    pub(super) fn watch_socket(&self, door: &ListeningSocket, token: u64) -> Result<(), ServeError> {
        epoll::add(&self.epoll, door, EventData::new_u64(token), EventFlags::IN).map_err(serve_error("watch a socket"))
    }

    /// Runs the loop until [`LoopInputs::stop`] is readable.
    ///
    /// # Errors
    /// [`ServeError`] if epoll itself fails.
    pub fn run(mut self) -> Result<(), ServeError> {
        self.announce_ready();
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            let timeout = self.poll_timeout();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(why) => return Err(serve_error("wait for events")(why)),
            }
            // Alarm and bells first: waiting members get a device before new connections are accepted.
            for token in events.iter().map(|event| event.data.u64()) {
                match token {
                    ALARM_TOKEN => self.alarm.acknowledge_ring(),
                    FIRST_BELL..FIRST_CONNECTION => self.bell_rang(token - FIRST_BELL),
                    _ => {}
                }
            }
            self.keep_time();
            for token in events.iter().map(|event| event.data.u64()) {
                match token {
                    ALARM_TOKEN | FIRST_BELL..FIRST_CONNECTION => {}
                    SIGNALS_TOKEN => {
                        info!(
                            kind = "daemon.stopping",
                            members = self.members,
                            "stopping; members keep their last terms"
                        );
                        self.notifier.notify_stopping();
                        self.end_pages();
                        self.note_all();
                        self.record.finish_writing(RECORD_DRAIN_TIMEOUT);
                        return Ok(());
                    }
                    RELOAD_TOKEN => {
                        // Several requests lead to one reading, since each reading takes the file as it is.
                        while self.told.reload.read(&mut [0; 64]).is_ok_and(|length| length > 0) {}
                        self.reload_file();
                    }
                    DRIVER_TOKEN => self.driver_answered(),
                    EVENTS_TOKEN => self.tell_followers(),
                    METRICS_TOKEN => self.answer_metrics(),
                    PROOF_TOKEN => self.answer_proof(),
                    ADMIN_TOKEN => self.let_in(ConnectionSide::Admin),
                    FIRST_CONNECTION.. => self.serve(token),
                    FIRST_OWNER..FIRST_BELL => self.owner_ended(token - FIRST_OWNER),
                    room => self.let_in(ConnectionSide::Member(room)),
                }
            }
            self.close_expired();
            self.remove_expired();
            self.settle_waiting_slots();
            self.follow_wall_clock();
            self.follow_cordons();
            self.follow_usage();
            self.look_back();
            self.settle_suspensions();
            self.set_alarm();
        }
    }

    /// Time to the next connection deadline, heartbeat, end of a tenant or moment of a policy. All tolerate the
    /// millisecond of error that epoll may add.
    fn poll_timeout(&self) -> Option<Timespec> {
        let deadline = self.deadlines.first().map(|(deadline, _)| deadline.saturating_duration_since(Instant::now()));
        let ends = self.heart.next().into_iter().chain(self.added.next_end());
        let ends = ends.map(|next| Duration::from_nanos(next.saturating_sub(clock::now())));
        let left = deadline
            .into_iter()
            .chain(ends)
            .chain(self.policies.next_wait())
            .chain(self.evacuated.next_wait())
            .chain(self.suspensions.next_wait())
            .min()?
            .min(MAX_SLEEP);
        let tv_sec = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
        Some(Timespec { tv_sec, tv_nsec: i64::from(left.subsec_nanos()) })
    }

    fn announce_ready(&self) {
        for TenantRoom { tenant, .. } in self.rooms.values() {
            room::announce_tenant(tenant, None);
            if let Some(dir) = tenant.socket.parent().filter(|dir| !is_open_to_all(dir)) {
                warn!(dir = %dir.display(), "only its owner can enter this directory; members may be any user");
            }
        }
        let version = env!("CARGO_PKG_VERSION");
        match &self.admin {
            Some(door) => info!(kind = "daemon.started", admin = %door.socket_path().display(), version, "ready"),
            None => info!(kind = "daemon.started", version, "ready, without an administrative socket"),
        }
        for note in self.loaded.iter().flat_map(|loaded| &loaded.plan.notes) {
            warn!("{note}");
        }
        self.notifier.notify_ready(&self.daemon_summary());
    }
}
