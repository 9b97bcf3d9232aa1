//! Modes that the daemon sets. An observed tenant is measured, and nothing is refused or delayed; the mode may change
//! while it runs. Strict tenants find no bypass of the library. The environment can loosen neither.

use std::process::Command;
use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::{GIB, Lab, Member, NOT_PERMITTED, OUT_OF_MEMORY, eventually};

struct World {
    lab: Lab,
    daemon: Daemon,
    plan: Plan,
}

fn world(tenants: &[(&str, &str)]) -> World {
    let lab = Lab::new("h200");
    let tenants = tenants.iter().map(|(name, lines)| ((*name).to_owned(), (*lines).to_owned())).collect();
    let plan = Plan { device: "*".into(), time: String::new(), tenants };
    let daemon = Daemon::start(lab.path(), &plan);
    World { lab, daemon, plan }
}

impl World {
    fn member(&mut self, tenant: &str) -> Member {
        self.lab.set("VGPU_SOCKET", self.daemon.socket(tenant));
        self.lab.member()
    }

    fn set(&self, tenant: &str, mode: &str) -> String {
        self.daemon.tell(&["set", tenant, "--mode", mode])
    }

    /// Device time charged to a tenant, in seconds.
    fn charged(&self, tenant: &str) -> f64 {
        let status: serde_json::Value = serde_json::from_str(&self.daemon.tell(&["status", "--json"])).unwrap();
        let tenants = status["tenants"].as_array().unwrap();
        let tenant = tenants.iter().find(|here| here["name"] == tenant).unwrap();
        let rows = tenant["devices"].as_array().unwrap();
        rows.iter().filter_map(|row| row["time"]["gpu_seconds"].as_f64()).sum()
    }
}

/// Number of launches of 5 ms in a second, eight in flight.
fn launched(m: &mut Member) -> u64 {
    m.ok("work 5000000 1000 8 0").number(0)
}

const TIGHT: &str = "memory_limit = \"1GiB\"\nsm_limit = 5\n";

#[test]
fn an_observed_tenant_is_refused_nothing_and_its_use_is_known() {
    let mut world = world(&[("seen", &format!("{TIGHT}mode = \"observe\"")), ("kept", TIGHT)]);
    let bare = Lab::new("h200");
    let mut reference = bare.bare_member();
    let mut m = world.member("seen");
    m.begin();
    reference.begin();
    assert_eq!(m.info().1, reference.info().1, "all of the device is shown");
    m.alloc(3 * GIB);
    m.ok("nvinit");
    reference.ok("nvinit");
    assert_eq!(m.ok("nvmem 0").number(0), reference.ok("nvmem 0").number(0));
    let (here, there) = (launched(&mut m), launched(&mut reference));
    assert!(here * 2 > there, "{here} launches, {there} without the library");
    assert_eq!(m.errors(), "");
    // The daemon knows all work of the device for this tenant, except work whose completion is not yet observed.
    eventually("its device time is known", || {
        m.ok("launch 1000");
        #[allow(clippy::cast_precision_loss)] // nanoseconds that add up to seconds
        let truth = world.lab.process(0, m.pid).busy_ns as f64 / 1e9;
        (world.charged("seen") - truth).abs() < truth / 10.0
    });
    let mut other = world.member("kept");
    other.begin();
    assert_eq!(
        (other.info().1, other.code(&format!("alloc {GIB}"))),
        (GIB, OUT_OF_MEMORY),
        "its neighbour is held to its"
    );
}

#[test]
fn the_mode_changes_under_a_living_process_both_ways() {
    let mut world = world(&[("a", TIGHT)]);
    let mut m = world.member("a");
    m.begin();
    m.ok("nvinit");
    let whole = Lab::new("h200").bare_member().begin().info().1;
    assert_eq!(m.info().1, GIB);
    for round in 0..2 {
        assert!(world.set("a", "observe").contains("mode: observe"));
        assert_eq!((m.info().1, m.ok("nvmem 0").number(0) > GIB), (whole, true), "round {round}: all is shown");
        let held = m.alloc(2 * GIB);
        let free = launched(&mut m);
        m.ok(&format!("free {held}"));
        world.set("a", "enforce");
        assert_eq!((m.info().1, m.ok("nvmem 0").number(0)), (GIB, GIB), "round {round}");
        assert_eq!(m.code(&format!("alloc {}", 2 * GIB)), OUT_OF_MEMORY);
        let kept = launched(&mut m);
        assert!(kept * 4 < free, "round {round}: {kept} launches under 5 %, {free} observed");
    }
    // The file says enforce; its next change takes effect too.
    let lines = format!("{TIGHT}mode = \"observe\"");
    world.plan.tenants = vec![("a".into(), lines)];
    world.daemon.write(&world.plan);
    world.daemon.reload();
    eventually("the file's word holds", || m.info().1 == whole);
    assert_eq!(m.errors(), "");
}

#[test]
fn an_observed_process_without_a_ledger_is_not_let_past_the_limit_that_comes_later() {
    let mut world = world(&[("a", &format!("{TIGHT}mode = \"observe\""))]);
    // The process starts while no daemon runs, and finds no ledger.
    let ledgers = world.daemon.room("a").join("vgpud.sock.ledgers");
    world.daemon.kill();
    let elsewhere = world.daemon.room("a").join("elsewhere");
    std::fs::rename(&ledgers, &elsewhere).unwrap();
    let mut m = world.member("a");
    m.begin();
    let held = m.alloc(2 * GIB);
    m.ok("launch 1000");
    std::fs::rename(&elsewhere, &ledgers).unwrap();
    world.daemon.again();
    world.set("a", "enforce");
    let takes_two = |m: &mut Member| {
        m.tell(&format!("alloc {}", 2 * GIB));
        let answer = m.answer();
        if answer.code == 0 {
            m.ok(&format!("free {}", answer.number(0)));
        }
        answer.code == 0
    };
    eventually("the limit holds", || !takes_two(&mut m));
    world.set("a", "observe");
    eventually("it is observed again", || takes_two(&mut m));
    m.ok(&format!("free {held}"));
}

#[test]
fn an_observed_tenant_cannot_be_paused_nor_a_paused_one_observed() {
    let world = world(&[("a", "mode = \"observe\"")]);
    let refused = |words: &[&str]| {
        let output = world.daemon.vgpu(words);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&["pause", "a"]).contains("a pause has no effect"));
    world.set("a", "enforce");
    world.daemon.tell(&["pause", "a"]);
    assert!(refused(&["set", "a", "--mode", "observe"]).contains("resume it first"));
    assert!(refused(&["set", "a", "--mode", "off"]).contains("is not for a tenant of the daemon"));
}

#[test]
fn who_starts_while_no_daemon_runs_has_its_mode_and_strictness_from_the_terms_file() {
    let mut world =
        world(&[("seen", &format!("{TIGHT}mode = \"observe\"")), ("kept", &format!("{TIGHT}strict = true"))]);
    // This daemon asks no driver: it knows the device by its members.
    for name in ["seen", "kept"] {
        world.member(name).begin();
    }
    world.daemon.kill();
    let mut m = world.member("seen");
    m.begin();
    assert!(m.info().1 > GIB);
    m.alloc(2 * GIB);
    let mut m = world.member("kept");
    m.begin();
    assert_eq!(m.info().1, GIB);
    let text = std::fs::read_to_string(world.daemon.room("kept").join("terms.json")).unwrap();
    assert!(text.contains("\"strict\":true"), "{text}");
    world.daemon.again();
    eventually("the daemon is back", || world.daemon.runs());
}

#[test]
fn a_terms_file_that_lifts_limits_or_is_no_file_is_refused_and_holds_nobody_up() {
    let mut world = world(&[("kept", TIGHT)]);
    world.daemon.kill();
    let path = world.daemon.room("kept").join("terms.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let limit = format!("\"memory_limit\":{GIB},");
    assert!(text.contains(&limit), "{text}");
    let mut refused = |words: &str| {
        let mut m = world.member("kept");
        assert_eq!(m.code("init"), NOT_PERMITTED, "{}", m.errors());
        assert!(m.errors().contains(words), "{words:?} in {}", m.errors());
    };
    std::fs::write(&path, text.replace("\"enforce\"", "\"off\"")).unwrap();
    refused("\"mode\"");
    std::fs::write(&path, text.replace(&limit, "")).unwrap();
    refused("\"memory_limit\"");
    std::fs::remove_file(&path).unwrap();
    vgpu_tests::run(Command::new("mkfifo").arg(&path));
    refused("is no file");
}

/// Asks for a variant of a function that is in no table, before and after the initialisation.
const VARIANT: &str = "
import ctypes, sys
cuda = ctypes.CDLL('libcuda.so.1')
def variant():
    at, status = ctypes.c_void_p(), ctypes.c_int(-1)
    cuda.cuGetProcAddress_v2(b'cuMemAlloc', ctypes.byref(at), 12020, ctypes.c_uint64(0), ctypes.byref(status))
    return bool(at.value)
early = variant() if sys.argv[1] == 'early' else None
print(early, cuda.cuInit(0), variant())
";

#[test]
fn a_strict_tenant_finds_no_way_around_the_library_and_one_found_before_fails_the_start() {
    let mut world = world(&[("strict", &format!("{TIGHT}strict = true")), ("lax", TIGHT)]);
    let driver = world.lab.driver_without(&["cuMemAlloc_v2"]);
    world.lab.with_driver(&driver);
    let mut ask = |tenant: &str, when: &str, variable: Option<&str>| {
        world.lab.set("VGPU_SOCKET", world.daemon.socket(tenant));
        let mut command = world.lab.command("python3");
        command.args(["-c", VARIANT, when]).envs(variable.map(|variable| (variable, "1")));
        let out = command.output().unwrap();
        (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    assert_eq!(ask("lax", "late", None).0, "None 0 True\n");
    let (said, errors) = ask("strict", "late", None);
    assert_eq!(said, "None 0 False\n");
    assert!(errors.contains("the daemon's strict"), "{errors}");
    let (said, _) = ask("strict", "early", None);
    assert!(said.starts_with(&format!("True {NOT_PERMITTED} ")), "{said}");
    assert_eq!(ask("strict", "early", Some("VGPU_STRICT")).0, "False 0 False\n");
    assert_eq!(ask("lax", "early", None).0, "True 0 True\n");
}
