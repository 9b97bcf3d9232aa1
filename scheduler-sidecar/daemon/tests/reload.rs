//! Tests of a daemon with a configuration file: each tenant has its own socket and limits. A reload applies all of
//! the file or nothing, and disturbs no member.

#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::Signal;
use support::{Daemon, LONG_TIMEOUT, Peer, eventually, texts, vgpu, vgpud, welcome_terms};
use tempfile::TempDir;
use vgpu_control::{self as control, DaemonStatus, TenantStatus};
use vgpu_core::protocol::wire::Terms;

const DEVICE: &str = "[[device]]\nid = 0\nmemory = \"80GiB\"\n";

const THREE: &str = "
[[tenant]]
name = \"a\"
memory_limit = \"10GiB\"
sm_limit = 30

[[tenant]]
name = \"b\"
memory_limit = \"25%\"

[[tenant]]
name = \"c\"
gpu = 0.125
sm_limit = 12.5
";

fn tenant(name: &str, gib: u64) -> String {
    format!("\n[[tenant]]\nname = \"{name}\"\nmemory_limit = \"{gib}GiB\"\n")
}

/// A daemon with a file, in its own directory.
struct World {
    dir: TempDir,
    daemon: Daemon,
    manager: UnixDatagram,
}

impl World {
    fn start(tenants: &str) -> Self {
        Self::start_with(tenants, &[])
    }

    fn start_with(tenants: &str, options: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        write(&dir, &format!("{DEVICE}{tenants}"));
        let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        manager.set_read_timeout(Some(LONG_TIMEOUT)).unwrap();
        let child = vgpud()
            .env("NOTIFY_SOCKET", dir.path().join("notify"))
            .arg("--config")
            .arg(dir.path().join("vgpud.toml"))
            .args(["--driver", "none", "--runtime-dir"])
            .arg(dir.path().join("run"))
            .args(options)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let socket = dir.path().join("run/tenants/a/vgpud.sock");
        let world = Self { daemon: Daemon { child, socket }, dir, manager };
        assert!(world.told().starts_with("READY=1\nSTATUS=serving"));
        world
    }

    /// The next message to the service manager.
    fn told(&self) -> String {
        let mut buffer = [0; 4096];
        let length = loop {
            match self.manager.recv(&mut buffer) {
                // Happens if this process was stopped and continued.
                Err(why) if why.kind() == std::io::ErrorKind::Interrupted => {}
                length => break length.unwrap(),
            }
        };
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    /// Writes the file and waits until the daemon has read it. Returns the status that the daemon then reports.
    fn reload(&self, tenants: &str) -> String {
        write(&self.dir, &format!("{DEVICE}{tenants}"));
        self.reload_as_it_is()
    }

    fn reload_as_it_is(&self) -> String {
        self.daemon.signal(Signal::HUP);
        let begin = self.told();
        assert!(begin.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{begin}");
        let end = self.told();
        end.strip_prefix("READY=1\nSTATUS=").unwrap_or_else(|| panic!("{end}")).to_owned()
    }

    fn socket(&self, tenant: &str) -> PathBuf {
        self.dir.path().join("run/tenants").join(tenant).join("vgpud.sock")
    }

    fn connect(&self, tenant: &str) -> Peer {
        Peer::connect(&self.socket(tenant))
    }

    fn says(&self, tenant: &str) -> Result<Terms, String> {
        self.connect(tenant).terms()
    }

    fn status(&self) -> DaemonStatus {
        let mut status = None;
        // On a busy machine an answer may take longer than the request waits.
        eventually("the daemon answers", || {
            status = control::ask_status(&self.dir.path().join("run/admin.sock")).ok();
            status.is_some()
        });
        status.unwrap()
    }

    /// Output of `vgpu status`.
    fn shown(&self) -> String {
        let mut out = String::new();
        eventually("vgpu status is answered", || {
            let admin = self.dir.path().join("run/admin.sock");
            let output = vgpu().args(["status", "--socket"]).arg(admin).output().unwrap();
            out = texts(&output).0;
            output.status.success()
        });
        out
    }

    fn tenant(&self, name: &str) -> Option<TenantStatus> {
        self.status().tenants.into_iter().find(|tenant| tenant.name == name)
    }

    fn tenants(&self) -> Vec<String> {
        self.status().tenants.into_iter().map(|tenant| tenant.name).collect()
    }
}

fn write(dir: &TempDir, text: &str) {
    fs::write(dir.path().join("vgpud.toml"), text).unwrap();
}

/// Terms of a welcome: bytes of memory, and tenths of a percent of time.
fn terms(tenant: &str, memory: u64, sm: Option<u32>) -> Result<Terms, String> {
    Ok(support::terms(tenant, Some(memory), sm))
}

const GIB: u64 = 1 << 30;

/// All entries below a directory with their inodes, except the record, which is written independently.
fn everything(dir: &Path) -> Vec<(PathBuf, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        if path.ends_with("run/state") {
            continue;
        }
        all.push((path.clone(), meta.ino()));
        if meta.is_dir() {
            all.extend(everything(&path));
        }
    }
    all.sort();
    all
}

#[test]
fn three_tenants_of_a_file_have_a_socket_and_limits_of_their_own() {
    let world = World::start(THREE);
    assert_eq!(world.says("a"), terms("a", 10 * GIB, Some(300)));
    assert_eq!(world.says("b"), terms("b", 20 * GIB, None));
    assert_eq!(world.says("c"), terms("c", 10 * GIB, Some(125)));
    // The socket decides which tenant a member belongs to, whatever the member claims.
    let mut liar = world.connect("b");
    let hello =
        b"{\"hello\":2,\"pid\":1,\"version\":\"x\",\"pages\":1,\"clock\":0,\"tenant\":\"a\",\"memory_limit\":null}\n";
    assert_eq!(welcome_terms(liar.send(hello).line()), terms("b", 20 * GIB, None));
    let status = world.status();
    let configuration = status.configuration.unwrap();
    assert_eq!((configuration.reloads, configuration.refused), (0, None));
    assert_eq!(configuration.file, world.dir.path().join("vgpud.toml"));
    let [note] = configuration.notes.as_slice() else { panic!("all else is in force: {:?}", configuration.notes) };
    assert!(note.contains("only the driver knows which device is 0"), "{note}");
}

#[test]
fn a_reload_adds_and_removes_tenants_and_who_stays_notices_nothing() {
    let world = World::start(THREE);
    let mut stays = world.connect("a");
    assert_eq!(stays.terms(), terms("a", 10 * GIB, Some(300)));
    let before = everything(&world.dir.path().join("run/tenants/a"));
    let two = THREE.split("\n[[tenant]]\nname = \"c\"").next().unwrap();
    assert_eq!(world.reload(&(two.to_owned() + &tenant("d", 4))), "serving 3 tenants");
    assert_eq!(world.says("d"), terms("d", 4 * GIB, None));
    assert!(!world.dir.path().join("run/tenants/c").exists(), "its directory is removed");
    assert!(UnixStream::connect(world.socket("c")).is_err());
    assert_eq!(world.tenants(), ["a", "b", "d"]);
    assert!(stays.is_served(), "on the same connection");
    assert_eq!(everything(&world.dir.path().join("run/tenants/a")), before, "the very same socket");
    assert_eq!(world.tenant("a").unwrap().members.len(), 1);
    assert_eq!(world.status().configuration.unwrap().reloads, 1);
}

#[test]
fn a_removed_tenants_members_stay_until_they_leave_and_nobody_new_comes_in() {
    let world = World::start(&(THREE.to_owned() + &tenant("d", 4)));
    let mut member = world.connect("d");
    assert_eq!(member.terms(), terms("d", 4 * GIB, None));
    let mut silent = world.connect("d");
    // Connections are accepted in order: once this one is answered, the silent one is accepted too.
    assert_eq!(world.says("d"), terms("d", 4 * GIB, None));
    world.reload(THREE);
    assert!(UnixStream::connect(world.socket("d")).is_err(), "no new ones");
    assert!(silent.hello().contains("error"), "nor one that had only knocked");
    let status = world.tenant("d").unwrap();
    assert!(status.removed);
    assert!(member.is_served(), "still connected");

    // The tenant is added again while a member is connected: new members get its new terms.
    world.reload(&(THREE.to_owned() + &tenant("d", 8)));
    assert_eq!(world.says("d"), terms("d", 8 * GIB, None));
    let status = world.tenant("d").unwrap();
    assert!(!status.removed);
    assert_eq!(world.tenants().iter().filter(|name| *name == "d").count(), 1);
    assert!(!status.members.is_empty(), "{status:?}");

    world.reload(THREE);
    assert!(world.dir.path().join("run/tenants/d").exists(), "while a container may have it mounted");
    drop(member);
    eventually("the tenant is gone with its last member", || world.tenant("d").is_none());
    assert!(!world.dir.path().join("run/tenants/d").exists());
}

#[test]
fn changed_limits_are_told_to_new_members_and_members_that_are_there_stay() {
    let world = World::start(THREE);
    let mut old = world.connect("a");
    assert_eq!(old.terms(), terms("a", 10 * GIB, Some(300)));
    let changed = THREE.replace("10GiB", "6GiB").replace("sm_limit = 30", "sm_limit = 40");
    world.reload(&changed);
    let mut new = world.connect("a");
    assert_eq!(new.terms(), terms("a", 6 * GIB, Some(400)));
    assert!(old.is_served());
    let status = world.tenant("a").unwrap();
    assert_eq!((status.memory_limit, status.sm_limit), (Some(6 * GIB), Some(40.0)));
    assert_eq!(status.members.len(), 2);
    let World { daemon, .. } = world;
    let (code, log) = daemon.stop();
    assert_eq!(code, Some(0));
    assert!(log.contains("reloaded: 0 added, 0 removed, 1 changed, 2 as before"), "{log}");
}

#[test]
fn vgpu_status_says_what_a_reload_left_behind_and_why_one_was_refused() {
    let world = World::start(&format!("{THREE}{}", tenant("d", 4)));
    let mut removed = world.connect("d");
    assert!(removed.terms().is_ok());
    let shown = world.shown();
    assert!(!shown.contains("removed") && !shown.contains("reload"), "{shown}");
    world.reload(&THREE.replace("10GiB", "6GiB"));
    let shown = world.shown();
    assert!(shown.contains("d: removed; it ends with its last member\n"), "{shown}");
    world.reload("[[tenant]]\nname = \"a b\"\nweight = 0\n");
    let shown = world.shown();
    assert!(shown.contains("vgpud.toml was refused:\n"), "{shown}");
    assert!(shown.contains(":5:8: tenant.name = \"a b\"") && shown.contains(":6:10: tenant.weight = 0"), "{shown}");
}

#[test]
fn a_bad_file_at_a_reload_changes_nothing_and_is_told() {
    let world = World::start(THREE);
    let mut member = world.connect("a");
    member.hello();
    let before = everything(&world.dir.path().join("run"));
    // Too much memory in total, while another tenant is added and a third removed.
    let two = THREE.split("\n[[tenant]]\nname = \"c\"").next().unwrap().to_owned();
    for (bad, words) in [
        (two.clone() + &tenant("d", 60), "may be promised"),
        (two.clone() + &tenant("d", 1) + "memroy_limit = 1\n", "did you mean memory_limit?"),
        (two.clone() + &tenant("d", 1) + "[[tenant", "not TOML"),
        (two.clone() + &tenant("d", 1) + "\n[daemon]\nlog = \"debug\"\n", "daemon.log is info and would become debug"),
        (
            two.clone() + &tenant("d", 1) + "\n[daemon]\nadmin_socket = \"none\"\n",
            "a running daemon cannot change this",
        ),
    ] {
        let status = world.reload(&bad);
        assert_eq!(status, "serving 3 tenants; the last reload was refused");
        let refused = world.status().configuration.unwrap().refused.unwrap();
        assert!(refused.contains(words), "{refused}");
        assert_eq!(everything(&world.dir.path().join("run")), before);
        assert_eq!(
            (world.says("a"), world.tenants()),
            (terms("a", 10 * GIB, Some(300)), ["a", "b", "c"].map(Into::into).into())
        );
    }
    fs::remove_file(world.dir.path().join("vgpud.toml")).unwrap();
    assert!(world.reload_as_it_is().contains("refused"));
    assert!(world.status().configuration.unwrap().refused.unwrap().contains("No such file"));
    // Case: after the unreadable file, a valid one is there again.
    assert_eq!(world.reload(&(two + &tenant("d", 1))), "serving 3 tenants");
    assert_eq!(world.status().configuration.unwrap().refused, None);
    assert_eq!(world.tenants(), ["a", "b", "d"]);
    assert!(member.is_served());
    let (code, log) = world.daemon.stop();
    assert_eq!(code, Some(0));
    assert!(log.contains("not reloaded, nothing was changed"), "{log}");
    assert!(log.contains("vgpud.toml:"), "with file and line: {log}");
}

#[test]
fn if_one_new_tenants_socket_cannot_be_made_no_tenant_is_added() {
    let world = World::start(THREE);
    let place = world.dir.path().join("run/tenants/e");
    fs::create_dir(&place).unwrap();
    fs::write(place.join("vgpud.sock"), "precious").unwrap();
    let before = everything(&world.dir.path().join("run"));
    let status = world.reload(&(THREE.to_owned() + &tenant("d", 4) + &tenant("e", 4)));
    assert!(status.contains("refused"), "{status}");
    let refused = world.status().configuration.unwrap().refused.unwrap();
    assert!(refused.contains("tenants/e/vgpud.sock exists and is not a socket"), "{refused}");
    assert_eq!(everything(&world.dir.path().join("run")), before);
    assert_eq!(world.tenants(), ["a", "b", "c"]);
}

/// A container may have the directory mounted. A new directory would be another one, and a socket in it would not be
/// seen inside the container.
#[test]
fn a_refused_reload_leaves_the_directories_that_were_there() {
    let world = World::start(&(THREE.to_owned() + &tenant("d", 4)));
    let mut member = world.connect("d");
    assert_eq!(member.terms(), terms("d", 4 * GIB, None));
    world.reload(THREE);
    let run = world.dir.path().join("run");
    fs::create_dir(run.join("tenants/f")).unwrap();
    fs::create_dir(run.join("tenants/z")).unwrap();
    fs::write(run.join("tenants/z/vgpud.sock"), "precious").unwrap();
    let before = everything(&run);
    // The removed tenant with a member is added again, another has an existing directory, and one has a taken path.
    let all: String = ["d", "f", "g", "z"].map(|name| tenant(name, 4)).concat();
    assert!(world.reload(&(THREE.to_owned() + &all)).contains("refused"));
    assert_eq!(everything(&run), before);
    // Now without the tenant whose path is taken.
    let two: String = ["d", "f"].map(|name| tenant(name, 4)).concat();
    assert_eq!(world.reload(&(THREE.to_owned() + &two)), "serving 5 tenants");
    assert_eq!(world.says("d"), terms("d", 4 * GIB, None));
    assert!(member.is_served());
}

#[test]
fn many_signals_at_once_end_in_the_last_file_and_nobody_is_lost() {
    let world = World::start(THREE);
    let mut members: Vec<Peer> = (0..20).map(|_| world.connect("a")).collect();
    for member in &mut members {
        member.hello();
    }
    for round in 0..30_u64 {
        let more: String = (0..round % 5).map(|index| tenant(&format!("t{index}"), 1)).collect();
        write(&world.dir, &format!("{DEVICE}{THREE}{more}"));
        world.daemon.signal(Signal::HUP);
    }
    // Several signals may lead to one reload, so the number of messages to the manager is not known.
    write(&world.dir, &format!("{DEVICE}{THREE}{}", tenant("last", 2)));
    world.daemon.signal(Signal::HUP);
    eventually("the last file is in force", || world.tenants() == ["a", "b", "c", "last"]);
    assert_eq!(world.tenant("a").unwrap().members.len(), 20);
    for member in &mut members {
        assert!(member.is_served());
    }
    assert_eq!(fs::read_dir(world.dir.path().join("run/tenants")).unwrap().count(), 4);
}

#[test]
fn users_that_a_tenant_does_not_list_are_refused_and_one_it_lists_is_served() {
    let own = rustix::process::geteuid().as_raw();
    let other = own + 1;
    let world =
        World::start(&format!("{}uids = [{other}]\n{}uids = [\"{own}-{other}\"]\n", tenant("a", 1), tenant("b", 1)));
    let said = world.says("a").unwrap_err();
    assert!(said.contains(&format!("tenant a does not accept user {own}")), "{said}");
    assert_eq!(world.says("b"), terms("b", GIB, None));
    assert_eq!(world.tenant("a").unwrap().refused, 1);
}

#[test]
fn the_command_line_wins_over_the_file_and_the_manager_is_told_of_the_end() {
    let world = World::start_with(
        &format!("[daemon]\nrun_dir = \"/does/not/exist\"\nlog = \"debug\"\n{THREE}"),
        &["--log", "warn"],
    );
    assert_eq!(world.says("a"), terms("a", 10 * GIB, Some(300)));
    assert!(world.dir.path().join("run/admin.sock").exists());
    world.daemon.signal(Signal::TERM);
    assert_eq!(world.told(), "STOPPING=1");
    let World { daemon, dir, .. } = world;
    let (code, log) = daemon.stop();
    assert_eq!(code, Some(0));
    assert!(!log.contains("INFO"), "{log}");
    assert!(!dir.path().join("run/tenants/a/vgpud.sock").exists());
}

#[test]
fn a_bad_file_at_the_start_is_code_2_with_all_errors_and_nothing_is_started() {
    let dir = TempDir::new().unwrap();
    write(&dir, "[[tenant]]\nname = \"a b\"\nweight = 0\n");
    let run = dir.path().join("run");
    let start = |file: &str| {
        vgpud().arg("--config").arg(dir.path().join(file)).arg("--runtime-dir").arg(&run).output().unwrap()
    };
    let output = start("vgpud.toml");
    let (_, log) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{log}");
    assert!(log.contains("vgpud.toml:2:8: tenant.name") && log.contains("vgpud.toml:3:10: tenant.weight"), "{log}");
    let output = start("missing.toml");
    assert_eq!(output.status.code(), Some(2));
    assert!(texts(&output).1.contains("missing.toml: No such file"));
    assert!(!run.exists());
}

#[test]
fn a_daemon_starts_without_tenants_and_they_come_and_go_with_the_file() {
    let world = World::start("");
    assert!(world.status().tenants.is_empty());
    for _ in 0..2 {
        world.reload(&tenant("a", 10));
        assert_eq!(world.says("a"), terms("a", 10 * GIB, None), "{:?}", world.status());
        world.reload("");
        // The daemon may see the end of the member's connection after the reload, and keeps the tenant until then.
        eventually("the tenant is gone", || world.status().tenants.is_empty() && !world.socket("a").exists());
    }
}
