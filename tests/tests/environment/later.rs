//! A program changes its own environment before its first CUDA call. That can tighten its limits and never loosen them.

use crate::ledger;
use std::fs;
use std::path::Path;
use vgpu_core::limits::variables::{VARIABLES, VariableOwner};
use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::program::{Kind, compile, compile_with};
use vgpu_tests::{GIB, Lab, Member, NO_PERMISSION, NOT_PERMITTED, OUT_OF_MEMORY};

fn limited() -> Lab {
    Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB")
}

/// A member that sets these variables and then creates its context.
#[track_caller]
fn after(lab: &Lab, added: &[(&str, &str)]) -> Member {
    let mut m = lab.member();
    added.iter().for_each(|(name, value)| drop(m.ok(&format!("setenv {name}={value}"))));
    m
}

/// Total memory that a member sees after it sets these variables.
#[track_caller]
fn total(lab: &Lab, added: &[(&str, &str)]) -> u64 {
    let mut m = after(lab, added);
    m.begin();
    let total = m.info().1;
    assert_eq!(m.errors(), "", "{added:?}");
    total
}

/// Number of launches of 5 ms in one second by a member that sets these variables.
fn launches(lab: &Lab, added: &[(&str, &str)]) -> u64 {
    let mut m = after(lab, added);
    m.begin();
    m.ok("work 5000000 1000 8 0").number(0)
}

/// Values that would loosen a memory limit of 1 GiB if the program were started with them, one per row of the variable
/// table.
const LOOSER: &[(&str, &str)] = &[
    ("VGPU_MEMORY_LIMIT", "8GiB"),
    ("VGPU_MEMORY_LIMIT", "unlimited"),
    ("VGPU_MEMORY_LIMIT_0", "8GiB"),
    ("VGPU_MEMORY_LIMIT_0", "unlimited"),
    ("CUDA_DEVICE_MEMORY_LIMIT", "0"),
    ("CUDA_DEVICE_MEMORY_LIMIT_0", "8g"),
    ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=8G"),
    ("VGPU_MODE", "off"),
    ("VGPU_MODE", "observe"),
    ("CUDA_DISABLE_CONTROL", "true"),
    ("VGPU_SOCKET", "/no/such/socket"),
    ("VGPU_TENANT", "another"),
    ("VGPU_STATE_DIR", "/tmp"),
    ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/cache"),
    ("VGPU_SHARED_UIDS", "1"),
    ("VGPU_DEEPBIND", "keep"),
    ("VGPU_STRICT", "0"),
    ("VGPU_CHARGE_COPIES", "0"),
    ("VGPU_ON_ERROR", "open"),
    ("VGPU_LOG", "off"),
    ("VGPU_LOG_FILE", "/dev/null"),
    ("VGPU_SM_LIMIT", "unlimited"),
    ("CUDA_DEVICE_SM_LIMIT", "0"),
    ("GPU_CORE_UTILIZATION_POLICY", "disable"),
    ("CUDA_TASK_PRIORITY", "0"),
];

#[test]
fn nothing_that_a_program_adds_later_lifts_its_memory_limit() {
    for row in VARIABLES.iter().filter(|row| {
        matches!(row.owner, VariableOwner::Library | VariableOwner::Hami) && row.reason_ignored().is_none()
    }) {
        let known = LOOSER.iter().any(|(name, _)| *name == row.name);
        assert!(known || row.name == "VGPU_SM_REQUEST", "{}: this test has no value for it", row.name);
    }
    let mut lab = limited();
    for (name, value) in LOOSER {
        let mut m = after(&lab, &[(name, value)]);
        m.begin();
        assert_eq!(m.info().1, GIB, "{name}={value}");
        assert_eq!(m.code(&format!("alloc {GIB}")), OUT_OF_MEMORY, "{name}={value}");
        assert_eq!(m.errors(), "", "{name}={value}");
    }
    assert_eq!(fs::read_dir(lab.state()).unwrap().count(), 1, "one ledger");
    // Sets all these variables together after a start with VGPU_MODE=observe: the program is still measured.
    lab.set("VGPU_MODE", "observe");
    let mut m = after(&lab, &[("VGPU_MODE", "off"), ("CUDA_DISABLE_CONTROL", "true")]);
    m.begin();
    m.alloc(2 * GIB);
    assert!(ledger(&lab).unwrap().members.iter().any(|member| member.used > 2 * GIB));
}

/// Each of these variables would give the program a second, full limit.
#[test]
fn nothing_that_a_program_adds_later_gives_it_another_ledger() {
    let mut lab = Lab::new("h200").with("CUDA_DEVICE_MEMORY_LIMIT", "4g").with("VGPU_TENANT", "team");
    let cache = lab.path().join("cache");
    fs::create_dir(&cache).unwrap();
    lab.set("CUDA_DEVICE_MEMORY_SHARED_CACHE", cache.join("one.cache"));
    let begin = |added: &[(&str, &str)]| {
        let mut m =
            Member::start(lab.command(compile("member", Kind::Program, &[])).arg("dlsym").env_remove("VGPU_STATE_DIR"));
        added.iter().for_each(|(name, value)| drop(m.ok(&format!("setenv {name}={value}"))));
        m.begin();
        m
    };
    let mut first = begin(&[]);
    first.alloc(2 * GIB);
    let other = lab.state();
    let other = other.to_str().unwrap();
    for (name, value) in [
        ("VGPU_TENANT", "another"),
        ("VGPU_STATE_DIR", other),
        ("CUDA_DEVICE_MEMORY_SHARED_CACHE", &format!("{other}/x.cache")),
    ] {
        let mut m = begin(&[(name, value)]);
        assert_eq!(m.code(&format!("alloc {}", 2 * GIB)), OUT_OF_MEMORY, "{name}={value}");
    }
    drop(begin(&[("VGPU_SHARED_UIDS", "1")]));
    let files = |place: &Path| fs::read_dir(place).unwrap().map(|e| e.unwrap()).collect::<Vec<_>>();
    assert_eq!((files(&cache).len(), files(&lab.state()).len()), (1, 0));
    let mode = std::os::unix::fs::PermissionsExt::mode(&files(&cache)[0].metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "theirs alone");
}

#[test]
fn nothing_that_a_program_adds_later_lifts_its_ceiling() {
    let hami = || Lab::new("h200").with("CUDA_DEVICE_SM_LIMIT", "5");
    let ours = || Lab::new("h200").with("VGPU_SM_LIMIT", "5");
    for (lab, added) in [
        (hami(), ("GPU_CORE_UTILIZATION_POLICY", "disable")),
        (hami(), ("CUDA_DEVICE_SM_LIMIT_0", "100")),
        (ours(), ("VGPU_SM_LIMIT_0", "unlimited")),
        (ours(), ("VGPU_MODE", "observe")),
    ] {
        // 200 launches in a second are the whole device. A ceiling of a twentieth allows 10, plus a burst and the last
        // batch.
        let got = launches(&lab, &[added]);
        assert!(got < 100, "{added:?}: {got} launches of 5 ms in a second under 5 %");
    }
}

#[test]
fn an_error_of_a_program_is_not_opened_by_what_it_adds_later() {
    let wrong = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "abc");
    let mut m = after(&wrong, &[("VGPU_ON_ERROR", "open")]);
    assert_eq!((m.code("init"), m.code("nvinit")), (NOT_PERMITTED, NO_PERMISSION));
    let mut m = after(&wrong, &[("VGPU_MODE", "off")]);
    assert_eq!((m.code("init"), m.code("nvinit")), (NOT_PERMITTED, NO_PERMISSION));
    // A program that may run without limits (`VGPU_ON_ERROR=open`) cannot reach that state by adding a wrong value.
    let open = limited().with("VGPU_ON_ERROR", "open");
    for added in [("VGPU_MEMORY_LIMIT_0", "abc"), ("VGPU_MEMORY_LIMIT_9", "1GiB"), ("VGPU_SM_REQUEST", "3")] {
        let mut m = after(&open, &[added]);
        assert_eq!((m.code("init"), m.code("nvinit")), (NOT_PERMITTED, NO_PERMISSION), "{added:?}");
        let said = m.errors();
        assert!(said.starts_with(&format!("vgpu: {}=\"{}\"", added.0, added.1)), "{said}");
        assert!(!said.contains("WITHOUT"), "{said}");
    }
}

#[test]
fn a_way_around_the_hooks_is_not_opened_by_what_a_program_adds_later() {
    let host = compile_with("host", Kind::Program, &[], &["-rdynamic"]);
    let guest = compile("guest", Kind::LinkedLibrary, &["OWN"]);
    let bound = |lab: &Lab, added: &str| {
        let out = lab.command(&host).args(["set", added, "deep"]).arg(&guest).arg("bound").output().unwrap();
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    };
    assert_eq!(bound(&limited(), "VGPU_DEEPBIND=keep"), "2", "cleared");
    assert_eq!(bound(&limited(), "VGPU_MODE=off"), "2", "cleared");
    let kept = limited().with("VGPU_DEEPBIND", "keep");
    assert_eq!(bound(&kept, "X=1"), "1", "by the start's word");
    assert_eq!(bound(&kept, "VGPU_STRICT=1"), "2", "added later, strict counts");
    assert_eq!(bound(&kept.with("VGPU_STRICT", "1"), "VGPU_STRICT=0"), "2", "strict is not taken back");
}

#[test]
fn what_a_program_adds_later_tightens() {
    let none = Lab::new("h200");
    let all = total(&none, &[]);
    assert_eq!(total(&none, &[("VGPU_MEMORY_LIMIT", "1GiB")]), GIB, "a limit where there was none");
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "4GiB");
    for (added, expected) in [
        (("VGPU_MEMORY_LIMIT", "2GiB"), 2 * GIB),
        (("VGPU_MEMORY_LIMIT_0", "1GiB"), GIB),
        (("CUDA_DEVICE_MEMORY_LIMIT", "3g"), 3 * GIB),
        (("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=3G"), 3 * GIB),
    ] {
        assert_eq!(total(&lab, &[added]), expected, "{added:?}");
    }
    let observed = Lab::new("h200").with("VGPU_MODE", "observe").with("VGPU_MEMORY_LIMIT", "1GiB");
    assert_eq!(total(&observed, &[]), all, "only measured");
    assert_eq!(total(&observed, &[("VGPU_MODE", "enforce")]), GIB, "a stricter mode");
    let ceiling = launches(&Lab::new("h200").with("VGPU_SM_LIMIT", "50"), &[("VGPU_SM_LIMIT", "5")]);
    assert!(ceiling < 100, "{ceiling} launches of 5 ms in a second under 5 %");
}

#[test]
fn what_a_program_clears_later_stays() {
    for (name, value) in [
        ("VGPU_MEMORY_LIMIT", "1GiB"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "1g"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G"),
    ] {
        let lab = Lab::new("h200").with(name, value);
        let mut m = lab.member();
        m.ok(&format!("unsetenv {name}"));
        m.begin();
        assert_eq!(m.info().1, GIB, "{name}");
    }
    let off = limited().with("VGPU_MODE", "off");
    let mut m = off.member();
    m.ok("unsetenv VGPU_MODE");
    m.begin();
    assert!(m.info().1 > GIB, "a word that is cleared does not tighten either");
}

/// Like setproctitle: the kernel no longer shows the environment of the start, the C library still has it.
#[test]
fn a_program_that_writes_its_title_over_its_environment_keeps_its_limits() {
    let lab = limited();
    let mut m = lab.member();
    m.ok("retitle");
    m.begin();
    assert_eq!(m.info().1, GIB);
    m.kill();
    // Values that the library has read once stay in force.
    let mut m = lab.member();
    m.ok("nvinit");
    m.ok("retitle");
    m.ok("setenv VGPU_MODE=off");
    m.begin();
    assert_eq!(m.info().1, GIB);
}

/// The daemon's `on_error = "open"` lets programs run without limits where limits cannot be enforced. It does not cover
/// a wrong variable, because the tenant writes its own environment.
#[test]
fn beside_a_daemon_that_is_open_on_errors_no_variable_is_one() {
    let lab = Lab::new("h200");
    let terms = "memory_limit = \"1GiB\"\non_error = \"open\"".to_owned();
    let plan = Plan { device: lab.device(0).uuid, time: String::new(), tenants: vec![("a".to_owned(), terms)] };
    let daemon = Daemon::start(lab.path(), &plan);
    let mut lab = lab.with("VGPU_SOCKET", daemon.socket("a"));
    assert_eq!(total(&lab, &[]), GIB);
    for (name, value) in [
        ("VGPU_MEMORY_LIMIT", "abc"),
        ("VGPU_MEMORY_LIMIT_9", "1GiB"),
        ("VGPU_SM_REQUEST", "3"),
        ("VGPU_TENANT", "a/b"),
        ("VGPU_DEEPBIND", "perhaps"),
    ] {
        lab.set(name, value);
        let mut m = lab.member();
        assert_eq!((m.code("init"), m.code("nvinit")), (NOT_PERMITTED, NO_PERMISSION), "{name}={value}");
        assert!(m.errors().starts_with(&format!("vgpu: {name}=\"{value}\"")), "{}", m.errors());
        lab.unset(name);
    }
    assert_eq!(total(&lab, &[("VGPU_MODE", "off"), ("VGPU_ON_ERROR", "open"), ("VGPU_SOCKET", "/other")]), GIB);
}
