//! Tests of the reactor without its loop: a daemon with a configuration file and no members.

use std::fs;

use clap::Parser as _;
use tempfile::TempDir;
use vgpu_accounting::clock;
use vgpu_config::options::Options;
use vgpu_policy::overrides::{OverrideAction, TermsOverride};

use super::*;

/// A reactor with its directory. Its file has one device, and these sections.
fn start(sections: &str) -> (Reactor, TempDir) {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("vgpud.toml");
    let run_dir = dir.path().join("run");
    let head = format!("[daemon]\nrun_dir = {run_dir:?}\nstate_dir = \"none\"\nadmin_socket = \"none\"\n");
    fs::write(&file, format!("{head}[[device]]\nid = 0\nmemory = \"80GiB\"\n{sections}")).unwrap();
    let source = ConfigSource::new(&file, &Options::parse_from(["vgpud", "--driver", "none"]));
    let text = source.read_text().unwrap();
    let plan = source.make_plan(&text).unwrap_or_else(|why| panic!("{why}"));
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
