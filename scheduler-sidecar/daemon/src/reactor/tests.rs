//! Tests of the reactor without its loop: a daemon with a configuration file and no members.

use std::fs;

use clap::Parser as _;
use tempfile::TempDir;
use tracing_subscriber::layer::SubscriberExt as _;
use vgpu_accounting::clock;
use vgpu_config::added::TenantSection;
use vgpu_config::change::{TermsChange, WrittenChange};
use vgpu_config::difference::PlanDifference;
use vgpu_config::options::Options;
use vgpu_config::schedule::WrittenBooking;
use vgpu_config::usage::IdlePlan;
use vgpu_control::SuspensionReport;
use vgpu_control::finding::ProcessId;
use vgpu_core::limits::Mode;
use vgpu_core::protocol::wire::Hello;
use vgpu_policy::cordons::CordonSubject;
use vgpu_policy::idle::UseSample;
use vgpu_policy::overrides::{OverrideAction, TermsOverride};
use vgpu_policy::stage::PolicyStage;
use vgpu_policy::usage::{Restriction, UsageChange, UsageEffect};

use super::deadlines::DeadlineFollower;
use super::suspensions::SuspensionState;
use super::*;
use crate::actions::ActionRunner;
use crate::added::AddedTenant;
use crate::config::TenantConfig;
use crate::connection::PeerCredentials;
use crate::journal::EventLayer;
use crate::kept_changes::ChangeStore;
use crate::kept_deadlines::{DeadlineStore, KeptDeadline};
use crate::proof::image::Image;
use crate::proof::{ListedProcesses, processes};
use crate::source::PastDeadlines;
use crate::suspended::SuspendedProcess;

/// A reactor with its directory. Its file has one device, and these sections.
fn start(sections: &str) -> (Reactor, TempDir) {
    start_with_state("none", sections)
}

/// As [`start`], with this directory of state below the reactor's directory, or none.
fn start_with_state(state: &str, sections: &str) -> (Reactor, TempDir) {
    let dir = TempDir::new().unwrap();
    let state = if state == "none" { state.into() } else { dir.path().join(state) };
    let file = dir.path().join("vgpud.toml");
    let run_dir = dir.path().join("run");
    let head = format!("[daemon]\nrun_dir = {run_dir:?}\nstate_dir = {state:?}\nadmin_socket = \"none\"\n");
    fs::write(&file, format!("{head}[[device]]\nid = 0\nmemory = \"80GiB\"\n{sections}")).unwrap();
    let source = ConfigSource::new(&file, &Options::parse_from(["vgpud", "--driver", "none"]));
    let text = source.read_text().unwrap();
    let plan = source.make_plan(&text, PastDeadlines::All).unwrap_or_else(|why| panic!("{why}"));
    let config = DaemonConfig { proof: None, ..DaemonConfig::from(&plan) };
    let ends = || UnixStream::pair().unwrap().0;
    let told = LoopInputs { stop: ends(), reload: ends() };
    let notifier = ServiceNotifier::from_environment();
    let reactor = Reactor::new(config, told, Some((source, plan, text)), notifier, EventJournal::new());
    (reactor.unwrap_or_else(|why| panic!("{why}")), dir)
}

fn tenant(name: &str, rest: &str) -> String {
    format!("[[tenant]]\nname = \"{name}\"\ndevices = [0]\nmemory_limit = \"1GiB\"\n{rest}\n")
}

fn room_of(reactor: &Reactor, name: &str) -> u64 {
    *reactor.rooms.iter().find(|(_, room)| room.tenant.name == name).unwrap().0
}

fn command(tenant: &str, action: OverrideAction) -> TermsOverride {
    let since = clock::unix_seconds();
    TermsOverride { tenant: tenant.into(), device: None, action, since, until: None, by_uid: 0, reason: None }
}

/// A change of the tenant's weight by a stage.
fn weight_by(stage: PolicyStage, tenant: &str, weight: u32) -> UsageChange {
    let effect = match stage {
        PolicyStage::Group => UsageEffect::Terms(TermsChange { weight: Some(weight), ..TermsChange::default() }),
        _ => UsageEffect::Restrict(Restriction { weight: Some(weight), is_batch: true, ..Restriction::default() }),
    };
    UsageChange { stage, name: "n".into(), tenant: tenant.into(), device: None, effect, until: None, reason: None }
}

/// The events of changed terms while use changes them as given, one step after the other.
fn changes_told(reactor: &mut Reactor, steps: impl IntoIterator<Item = Vec<UsageChange>>) -> Vec<usize> {
    let journal = EventJournal::new();
    let subscriber = tracing_subscriber::registry().with(EventLayer(journal.clone()));
    tracing::subscriber::with_default(subscriber, || {
        let count = |usage| {
            let next = journal.event_position().next;
            reactor.policies.usage = usage;
            reactor.apply_policies(&ChangeNote::default());
            journal.from(next, 64).iter().filter(|event| event.kind == "tenant.changed").count()
        };
        steps.into_iter().map(count).collect()
    })
}

#[test]
fn a_lowered_batch_tenant_is_told_where_weights_that_follow_groups_are_not() {
    let sections = ["[[group]]\nname = \"lab\"\nweight = 2\n", &tenant("a", "group = \"lab\"\nclass = \"batch\"")];
    let (mut reactor, _dir) = start(&sections.concat());
    let share = |weight| weight_by(PolicyStage::Group, "a", weight);
    let lower = weight_by(PolicyStage::Need, "a", 1);
    let steps =
        [vec![share(900)], vec![share(800)], vec![share(800), lower], vec![share(700)], vec![share(600)], vec![]];
    assert_eq!(changes_told(&mut reactor, steps), [0, 0, 1, 1, 0, 0], "its beginning and its end are told");
}

#[test]
fn a_paused_tenant_does_not_run_in_its_group_however_long_it_waits() {
    let group = "[[group]]\nname = \"lab\"\nweight = 2\n";
    let (mut reactor, _dir) =
        start(&format!("{group}{}{}", tenant("a", "group = \"lab\""), tenant("b", "group = \"lab\"")));
    reactor.add_override(command("a", OverrideAction::Pause), &ChangeNote::default()).unwrap();
    for name in ["a", "b"] {
        let id = room_of(&reactor, name);
        reactor.note_running(id, Instant::now());
    }
    assert_eq!(reactor.group_statuses()[0].running, 1);
}

#[test]
fn running_tenants_are_kept_only_for_groups_and_only_while_they_are_served() {
    let (mut reactor, _dir) = start(&tenant("a", ""));
    let id = room_of(&reactor, "a");
    reactor.note_running(id, Instant::now());
    assert_eq!(reactor.groups.running(Instant::now()), BTreeSet::new(), "the file has no group");
    let (mut reactor, _dir) = start(&format!("[[group]]\nname = \"lab\"\n{}", tenant("a", "group = \"lab\"")));
    let id = room_of(&reactor, "a");
    reactor.note_running(id, Instant::now());
    assert_eq!(reactor.groups.running(Instant::now()), ["a".to_owned()].into());
    reactor.remove(&["a".to_owned()], "a test", None);
    reactor.forget_rooms();
    assert_eq!(reactor.groups.running(Instant::now()), BTreeSet::new(), "its room is gone");
}

#[test]
fn use_is_looked_at_once_a_second_and_at_once_only_for_another_file_or_a_new_tenant() {
    let (mut reactor, _dir) =
        start(&format!("[[group]]\nname = \"lab\"\nweight = 2\n{}", tenant("a", "group = \"lab\"")));
    let later = Instant::now() + Duration::from_secs(3_600);
    reactor.policies.next_usage = Some(later);
    reactor.apply_policies(&ChangeNote::default());
    assert_eq!(reactor.policies.next_usage, Some(later), "a decision alone");
    let begin = Instant::now();
    reactor.policies.next_usage = Some(begin);
    let last = vec![weight_by(PolicyStage::Group, "a", 900)];
    reactor.policies.usage.clone_from(&last);
    reactor.follow_usage();
    assert_ne!(reactor.policies.usage, last, "the look led to a decision");
    assert!(reactor.policies.next_usage.is_some_and(|next| next >= begin + usage::USAGE_PERIOD));
    reactor.policies.next_usage = Some(later);
    reactor.follow_changes(&PlanDifference::default(), true);
    assert!(reactor.policies.next_usage.is_some_and(|next| next <= Instant::now()), "another file");
    reactor.policies.next_usage = Some(later);
    let (id, socket) = (reactor.next_room, reactor.rooms[&FIRST_ROOM].tenant.socket.with_file_name("b/vgpud.sock"));
    let door = reactor.open_door(&socket, id).unwrap();
    reactor.take_in(id, TenantConfig::on_all_devices("b", socket, None, None), door);
    assert!(reactor.policies.next_usage.is_some_and(|next| next <= Instant::now()), "a new tenant");
}

/// Idle processes do not connect to a new daemon, and only those on the device are asked to leave it.
#[test]
fn a_member_of_the_last_daemon_is_on_the_devices_that_it_joined() {
    let (mut reactor, dir) = start(&tenant("a", ""));
    let own = crate::proof::processes::read_image(std::process::id()).unwrap();
    let there = |reactor: &Reactor, device: &str| {
        let members = reactor.members_there(&CordonSubject::Device(device.into()));
        members.iter().map(|member| member.is_certain).collect::<Vec<_>>()
    };
    let mut last = MemberRoster::open(Some(dir.path()));
    last.rewrite_file(std::iter::empty(), std::iter::empty());
    last.note_joined("a", &own);
    reactor.roster = MemberRoster::open(Some(dir.path()));
    assert_eq!(["0", "GPU-1"].map(|device| there(&reactor, device)), [vec![true], vec![]], "any device of its tenant");
    last.note_device(&own, "GPU-1");
    reactor.roster = MemberRoster::open(Some(dir.path()));
    assert_eq!(["0", "GPU-1", "GPU-2"].map(|device| there(&reactor, device)), [vec![], vec![true], vec![]]);
}

#[test]
fn a_booking_whose_tenant_an_override_gives_less_does_not_hold() {
    let (mut reactor, _dir) = start(&tenant("a", ""));
    let now = clock::unix_seconds();
    let (name, sm_request) = ("exam".to_owned(), Some("50".to_owned()));
    let booking = WrittenBooking {
        name,
        tenant: "a".into(),
        from: now - 5,
        until: now + 3_600,
        sm_request,
        ..Default::default()
    };
    reactor.policies.kept.bookings.push(booking);
    reactor.apply_policies(&ChangeNote::default());
    let state = |reactor: &Reactor| reactor.list_bookings().first().map(|status| (status.holds, status.overridden));
    assert_eq!(state(&reactor), Some((true, false)));
    let less = WrittenChange { sm_request: Some("20".into()), ..WrittenChange::default() };
    let less = command("a", OverrideAction::Terms(Box::new(less)));
    reactor.add_override(less, &ChangeNote::default()).unwrap();
    assert_eq!(state(&reactor), Some((false, true)));
}

/// A tenant's activity is seen at once, and a deadline counts each second.
#[test]
fn a_tenant_of_which_nothing_changes_has_no_samples_until_something_does() {
    let deadline = "deadline = \"2100-01-01 00:00\"\ngpu_hours_needed = 1";
    let (mut reactor, _dir) = start(&(tenant("a", "idle_steps = [\"lower\"]") + &tenant("b", deadline)));
    let (a, b) = (room_of(&reactor, "a"), room_of(&reactor, "b"));
    // How many samples the next looks take, of which b has one each.
    let samples = |reactor: &mut Reactor| {
        [(); 4].map(|()| {
            let before = reactor.policies.needs.samples;
            reactor.follow_needs();
            reactor.policies.needs.samples - before - 1
        })
    };
    for id in [a, b] {
        reactor.leases.used_since(arbiter_number(id), clock::now());
    }
    samples(&mut reactor);
    assert_eq!(samples(&mut reactor), [0; 4], "it rests");
    type Change = fn(&mut Reactor, u64);
    let changes: [(&str, Change); 6] = [
        ("a process joined", |reactor, id| reactor.rooms.get_mut(&id).unwrap().joins += 1),
        ("a process of two ended", |reactor, id| reactor.rooms.get_mut(&id).unwrap().members += 1),
        ("its reports may have changed", |reactor, id| reactor.policies.needs.note_changed(id)),
        ("a device was lost", |reactor, _| reactor.policies.needs.note_all_changed()),
        ("it is paused", |reactor, _| {
            reactor.add_override(command("a", OverrideAction::Pause), &ChangeNote::default()).unwrap();
        }),
        ("its plan is another one", |reactor, id| {
            let room = reactor.rooms.get_mut(&id).unwrap();
            room.base.usage.idle.as_mut().unwrap().grace *= 2;
            reactor.apply_policies(&ChangeNote::default());
        }),
    ];
    for (what, change) in changes {
        change(&mut reactor, a);
        let [at_once, _, later @ ..] = samples(&mut reactor);
        assert_eq!((at_once, later), (1, [0; 2]), "{what}");
    }
}

/// A tenant's use is read again when its reports can have changed, and kept otherwise.
#[test]
fn a_tenant_at_rest_is_sampled_without_reading_its_reports() {
    let (mut reactor, _dir) = start(&(tenant("a", "idle_steps = [\"lower\"]") + &tenant("b", "")));
    let (a, b) = (room_of(&reactor, "a"), room_of(&reactor, "b"));
    let readings = |reactor: &mut Reactor| {
        let before = reactor.policies.needs.readings;
        reactor.follow_needs();
        reactor.policies.needs.readings - before
    };
    readings(&mut reactor);
    // A tenant without members is as it was added until the record's look.
    assert!(reactor.leases.used_since(arbiter_number(a), clock::now()).is_some());
    assert_eq!([readings(&mut reactor), readings(&mut reactor)], [0, 0]);
    reactor.policies.needs.note_changed(a);
    reactor.policies.needs.note_changed(b);
    assert_eq!([readings(&mut reactor), readings(&mut reactor)], [1, 0], "b has no policy that follows use");
}

/// The image of this process, or of a child when it runs its program. `spawn` returns while the kernel still builds the
/// program's memory.
fn image_of(pid: u32) -> Image {
    let own = processes::read_image(std::process::id()).unwrap();
    let is_its_own = |image: &Image| *image == own || image.program != own.program && image.stack != 0;
    let read = || processes::read_image(pid).filter(is_its_own);
    std::iter::repeat_with(read).find_map(|image| image).unwrap()
}

/// A suspended process of a tenant, of this boot.
fn suspended(reactor: &Reactor, pid: u32) -> SuspendedProcess {
    let (image, boot) = (image_of(pid), reactor.added.boot.clone());
    SuspendedProcess { image, boot, tenant: "a".into(), since: 1, is_locked: false, learned: 0, resumed_by: None }
}

#[test]
fn the_report_of_a_tenant_ends_no_suspension_where_the_driver_lists_processes() {
    let (mut reactor, _dir) = start(&tenant("a", ""));
    let (id, pid) = (room_of(&reactor, "a"), std::process::id());
    let one = suspended(&reactor, pid);
    let is_over = |reactor: &mut Reactor| {
        reactor.policies.kept.suspended = vec![one.clone()];
        reactor.note_work_of_suspended(id, pid);
        reactor.policies.kept.suspended.is_empty()
    };
    let look = |reactor: &Reactor, blind| reactor.proof.as_ref().unwrap().note_look(&[], blind);
    assert!(is_over(&mut reactor), "nothing else tells it");
    reactor.proof = Some(ProofLink::without_thread(false));
    assert!(is_over(&mut reactor), "the check looks at /proc alone");
    reactor.proof = Some(ProofLink::without_thread(true));
    assert!(!is_over(&mut reactor), "the first look is still to come");
    look(&reactor, Some("NVML does not answer"));
    assert!(is_over(&mut reactor), "there is no list");
    look(&reactor, None);
    assert!(!is_over(&mut reactor));
    reactor.proof.as_ref().unwrap().is_gone();
    assert!(is_over(&mut reactor), "no list comes any more");
    look(&reactor, None);
    assert!(!is_over(&mut reactor));
    let listed = ListedProcesses { asked: 1, processes: [one.process()].into() };
    reactor.note_listed_processes(&listed);
    assert_eq!(reactor.policies.kept.suspended, []);
    // The driver lists a locked process all the time.
    reactor.policies.kept.suspended = vec![SuspendedProcess { is_locked: true, ..one }];
    reactor.note_listed_processes(&listed);
    assert_eq!(reactor.policies.kept.suspended.len(), 1);
    reactor.note_work_of_suspended(id, pid);
    assert_eq!(reactor.policies.kept.suspended, []);
}

/// A change of `vgpu-checkpoint` ended in the middle.
#[test]
fn a_process_that_stays_locked_counts_as_suspended_and_is_told_apart() {
    let (mut reactor, _dir) = start(&tenant("a", ""));
    let (id, process) = (room_of(&reactor, "a"), connect(&mut reactor, std::process::id(), 7));
    let mut hear = |report: SuspensionReport| {
        let told = reactor.take_suspensions(&report, PeerCredentials { pid: None, uid: 0, gid: 0 });
        assert_eq!(told.len(), 1);
        let words = reactor.suspension_words(id);
        (reactor.leases.is_suspended(arbiter_number(id)), words.map(|words| words.ends_with(" (locked)")))
    };
    let all = || vec![process];
    assert_eq!(hear(SuspensionReport { locked: all(), ..Default::default() }), (true, Some(true)));
    assert_eq!(hear(SuspensionReport { suspended: all(), ..Default::default() }), (true, Some(false)));
    assert_eq!(hear(SuspensionReport { locked: all(), ..Default::default() }), (true, Some(true)));
    assert_eq!(hear(SuspensionReport { running: all(), ..Default::default() }), (false, None));
}

#[test]
fn a_suspended_member_whose_program_cannot_be_read_is_none_that_the_daemon_knows() {
    let (mut reactor, _dir) = start(&tenant("a", ""));
    let process = connect(&mut reactor, std::process::id(), 7);
    let ended = ProcessId { began: process.began - 1, ..process };
    reactor.connections.values_mut().for_each(|connection| connection.process = Some(ended));
    let report = SuspensionReport { suspended: vec![ended], ..Default::default() };
    assert_eq!(reactor.take_suspensions(&report, PeerCredentials { pid: None, uid: 0, gid: 0 }), []);
}

/// Connects a process to the first room, as a member that says this ID of its own pid namespace.
fn connect(reactor: &mut Reactor, pid: u32, pid_inside: u32) -> ProcessId {
    let (stream, _) = UnixStream::pair().unwrap();
    let peer = PeerCredentials { pid: Some(pid), uid: 0, gid: 0 };
    let mut connection = Connection::new(stream.into(), peer, ConnectionSide::Member(FIRST_ROOM), Instant::now());
    let hello = Hello { pid: pid_inside, version: String::new(), clock: 0 };
    connection.state = ConnectionState::Registered(hello, Instant::now());
    connection.member = Some(u64::from(pid));
    let process = connection.process.unwrap();
    reactor.connections.insert(FIRST_CONNECTION + u64::from(pid), connection);
    process
}

/// Makes the next look at use now.
fn look_at_use(reactor: &mut Reactor) {
    if let Some(next) = &mut reactor.policies.next_usage {
        *next = Instant::now();
    }
    reactor.follow_usage();
}

/// Takes samples of a tenant that holds memory and launches nothing, in each of these minutes.
fn stay_idle(reactor: &mut Reactor, id: u64, minutes: std::ops::RangeInclusive<u64>) {
    for minute in minutes {
        let sample = UseSample { at: minute * 60_000_000_000, members: 1, memory: 1, ..UseSample::default() };
        reactor.follow_idle(&[(id, sample)], 0);
    }
}

/// The driver of a host that just started does not answer yet, or the file leaves no room.
#[test]
fn the_count_of_a_deadline_is_kept_while_its_added_tenant_is_not_served() {
    let (mut reactor, dir) = start_with_state("state", &tenant("a", ""));
    let state = dir.path().join("state");
    let (deadline, due) = ("2100-01-01 00:00".to_owned(), 4_102_444_800);
    let of_work =
        KeptDeadline { due, needed_ns: 7_200_000_000_000, received_ns: 3_600_000_000_000, ..Default::default() };
    DeadlineStore::below(&state).save(&["job", "removed"].map(|name| (name.to_owned(), of_work)).into());
    reactor.policies.needs.deadlines = DeadlineFollower::below(Some(&state));
    let section = TenantSection {
        name: "job".into(),
        memory_limit: Some("200GiB".into()),
        deadline: Some(deadline),
        gpu_hours_needed: Some("2".into()),
        ..TenantSection::default()
    };
    let boot = reactor.added.boot.clone();
    let added = AddedTenant { section, since: 1, owner: None, ends_ns: None, boot, remaining: None };
    reactor.added.save(&added).unwrap();
    reactor.restore_added();
    assert_eq!(reactor.added.waiting.keys().collect::<Vec<_>>(), ["job"]);
    reactor.follow_needs();
    assert_eq!(DeadlineStore::below(&state).read_due_times(), [("job".to_owned(), due)]);
    reactor.added.waiting.clear();
    reactor.follow_needs();
    assert_eq!(DeadlineStore::below(&state).read_due_times(), [], "it was removed");
}

/// A step of the removed tenant would end the process that just started in the new one.
#[test]
fn a_tenant_that_is_added_within_a_second_has_none_of_the_idle_time_of_a_removed_one() {
    let steps = "idle_steps = [\"lower\"]";
    for name in ["c", "a"] {
        let (mut reactor, _dir) = start(&(tenant("a", steps) + &tenant("b", steps)));
        let before = room_of(&reactor, "a");
        stay_idle(&mut reactor, before, 1..=5);
        let state = |reactor: &Reactor, name| reactor.policies.needs.idle.status_of(name, 0).map(|status| status.state);
        assert_eq!(state(&reactor, "a").as_deref(), Some("resident-idle"));
        let mut added = reactor.rooms[&before].tenant.clone();
        reactor.remove(&["a".to_owned()], "a test", None);
        let id = reactor.next_room;
        added.name = name.into();
        let door = reactor.open_door(&added.socket, id).unwrap();
        reactor.take_in(id, added, door);
        stay_idle(&mut reactor, id, 6..=6);
        assert_eq!(state(&reactor, name).as_deref(), Some("busy"));
        assert!(name == "a" || state(&reactor, "a").is_none());
        assert_eq!(reactor.policies.needs.idle.changes().count(), 0, "nobody is lowered");
    }
}

/// The file loses the keys of the last tenant that is followed.
#[test]
fn a_lowered_tenant_has_its_own_terms_again_once_its_keys_are_gone() {
    let (mut reactor, _dir) = start(&tenant("a", "weight = 5\nidle_steps = [\"lower\"]"));
    let id = room_of(&reactor, "a");
    let weight = |reactor: &Reactor| reactor.rooms[&id].tenant.on[0].terms.weight;
    stay_idle(&mut reactor, id, 1..=5);
    reactor.policies.usage = reactor.policies.needs.idle.changes().cloned().collect();
    reactor.apply_policies(&ChangeNote::default());
    let lowered = weight(&reactor);
    reactor.rooms.get_mut(&id).unwrap().base.usage.idle = None;
    reactor.apply_policies(&ChangeNote::default());
    look_at_use(&mut reactor);
    assert_eq!((lowered, weight(&reactor), reactor.policies.next_usage), (1, 5, None));
}

/// Programs of the step `suspend` wait while others run. One that begins later suspends processes at work, or those of
/// a tenant that is not followed any more.
#[test]
fn a_run_of_the_step_suspend_that_waits_ends_with_its_reason() {
    type Change = fn(&mut Reactor, &mut TenantConfig);
    fn plan_of(tenant: &mut TenantConfig) -> &mut IdlePlan {
        tenant.usage.idle.as_mut().unwrap()
    }
    let changes: [(&str, Change); 5] = [
        ("the tenant is removed", |reactor, _| reactor.remove(&["a".to_owned()], "a test", None)),
        ("its keys are gone", |_, tenant| tenant.usage.idle = None),
        ("the step is gone", |_, tenant| plan_of(tenant).steps.clear()),
        ("a dry run begins", |_, tenant| plan_of(tenant).dry_run = true),
        ("it is only observed", |_, tenant| tenant.mode = Mode::Observe),
    ];
    let steps = "idle_steps = [\"suspend after 1h\"]\nidle_suspend = [\"/bin/true\"]";
    let mut left = Vec::new();
    for (why, change) in changes {
        // The last followed tenant, and one of two.
        for other in ["", steps] {
            let (mut reactor, _dir) = start(&(tenant("a", steps) + &tenant("b", other)));
            let actions = ActionRunner::without_threads();
            reactor.journal.act_by(actions.clone());
            let process = connect(&mut reactor, std::process::id(), 7);
            reactor.proof = Some(ProofLink::without_thread(true));
            reactor.proof.as_ref().unwrap().note_look(&[process], None);
            let subscriber = tracing_subscriber::registry().with(EventLayer(reactor.journal.clone()));
            let id = room_of(&reactor, "a");
            tracing::subscriber::with_default(subscriber, || stay_idle(&mut reactor, id, 1..=80));
            assert_eq!(actions.waiting_tenants(), ["a"]);
            let mut base = reactor.rooms[&id].base.clone();
            change(&mut reactor, &mut base);
            if let Some(room) = reactor.rooms.get_mut(&id) {
                room.base = base;
            }
            reactor.apply_policies(&ChangeNote::default());
            if reactor.has_needs() {
                stay_idle(&mut reactor, id, 81..=81);
            } else {
                look_at_use(&mut reactor);
            }
            left.extend(actions.waiting_tenants().iter().map(|_| (why, other)));
        }
    }
    assert_eq!(left, []);
}

/// Two containers of a tenant have processes with the same ID inside.
#[test]
fn a_process_that_the_driver_lists_keeps_its_tenant_from_being_suspended() {
    let (mut reactor, _dir) = start(&tenant("a", ""));
    let id = room_of(&reactor, "a");
    let mut child = std::process::Command::new("sleep").arg("20").spawn().unwrap();
    let at_work = connect(&mut reactor, std::process::id(), 7);
    connect(&mut reactor, child.id(), 7);
    reactor.proof = Some(ProofLink::without_thread(true));
    let is_suspended = |reactor: &mut Reactor, listed: &[ProcessId]| {
        reactor.proof.as_ref().unwrap().note_look(listed, None);
        reactor.policies.kept.suspended = vec![suspended(reactor, child.id())];
        reactor.note_members_changed();
        reactor.settle_suspensions();
        reactor.leases.is_suspended(arbiter_number(id))
    };
    assert!(is_suspended(&mut reactor, &[]), "the other one uses no device");
    assert!(!is_suspended(&mut reactor, &[at_work]));
    child.kill().and_then(|()| child.wait()).unwrap();
}

#[test]
fn a_suspended_process_counts_before_it_has_come_back_and_so_do_the_other_members_of_the_last_daemon() {
    let (mut reactor, dir) = start(&tenant("a", ""));
    let id = room_of(&reactor, "a");
    let mut child = std::process::Command::new("sleep").arg("20").spawn().unwrap();
    let one = suspended(&reactor, child.id());
    let is_suspended = |reactor: &mut Reactor| {
        reactor.policies.kept.suspended = vec![one.clone()];
        reactor.suspensions = SuspensionState::due_at_once();
        reactor.settle_suspensions();
        reactor.leases.is_suspended(arbiter_number(id))
    };
    assert!(is_suspended(&mut reactor), "nobody else is known");
    assert!(reactor.suspension_words(id).unwrap().starts_with("suspended processes (1 of 1)"));
    let mut last = MemberRoster::open(Some(dir.path()));
    last.rewrite_file(std::iter::empty(), std::iter::empty());
    last.note_joined("a", &one.image);
    reactor.roster = MemberRoster::open(Some(dir.path()));
    assert!(is_suspended(&mut reactor));
    last.note_joined("a", &image_of(std::process::id()));
    reactor.roster = MemberRoster::open(Some(dir.path()));
    assert!(!is_suspended(&mut reactor), "another one may launch");
    connect(&mut reactor, std::process::id(), 7);
    assert!(is_suspended(&mut reactor), "it came back and uses no device");
    child.kill().and_then(|()| child.wait()).unwrap();
    assert!(!is_suspended(&mut reactor), "it ended");
}

/// Two programs suspend and resume a process one after the other, and the first one is heard last.
#[test]
fn an_older_state_of_a_process_that_is_heard_later_changes_nothing() {
    let (mut reactor, _dir) = start(&tenant("a", ""));
    let process = connect(&mut reactor, std::process::id(), 7);
    let who = PeerCredentials { pid: None, uid: 0, gid: 0 };
    let mut hear = |is_suspended: bool, read| {
        let (mut suspended, mut running) = (vec![process], vec![]);
        if !is_suspended {
            std::mem::swap(&mut suspended, &mut running);
        }
        let told = reactor.take_suspensions(&SuspensionReport { suspended, running, read, ..Default::default() }, who);
        let [told] = told.as_slice() else { panic!("{told:?}") };
        told.suspended_since.is_some()
    };
    assert!(hear(true, 20));
    assert!(hear(false, 10), "it was read before");
    assert!(!hear(false, 30));
    assert!(!hear(true, 20), "it was read before");
    assert!(hear(true, u64::MAX), "by a program whose clock is ahead");
    assert!(!hear(false, clock::now()) && hear(true, 0));
}

/// Each write waits for the disk.
#[test]
fn suspensions_that_end_together_are_stored_once() {
    let (mut reactor, dir) = start_with_state("state", &tenant("a", ""));
    let mut children = [0; 2].map(|_| std::process::Command::new("sleep").arg("20").spawn().unwrap());
    let own = suspended(&reactor, std::process::id());
    let earlier = SuspendedProcess { boot: "an earlier boot".into(), ..own.clone() };
    let pids: Vec<u32> = [std::process::id()].into_iter().chain(children.iter().map(|child| child.id())).collect();
    let all: Vec<SuspendedProcess> = pids.iter().map(|pid| suspended(&reactor, *pid)).collect();
    reactor.policies.kept.suspended = all.iter().cloned().chain([earlier]).collect();
    reactor.policies.save_or_warn();
    let stored = || ChangeStore::below(&dir.path().join("state")).read_all().suspended;
    let processes = all[..2].iter().map(SuspendedProcess::process).collect();
    reactor.note_listed_processes(&ListedProcesses { asked: 1, processes });
    assert_eq!((reactor.policies.kept.suspended.as_slice(), stored().len()), (&all[2..], 4), "not each one");
    reactor.settle_suspensions();
    assert_eq!(stored(), all[2..]);
    // One that ended is forgotten at the next look, whatever members do.
    children.iter_mut().for_each(|child| child.kill().and_then(|()| child.wait()).map(drop).unwrap());
    reactor.suspensions = SuspensionState::due_at_once();
    reactor.settle_suspensions();
    assert_eq!((reactor.policies.kept.suspended.len(), stored().len()), (0, 0));
}
