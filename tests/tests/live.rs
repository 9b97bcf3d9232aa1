//! Limits that change while programs run, by `vgpu set` or by a file that is read again. They take effect within
//! milliseconds and kill no program. The simulated device's record judges device time.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::timed::{alone, measured, timed};
use vgpu_tests::{GIB, LONG_TIMEOUT, Lab, MIB, NOT_PERMITTED, OUT_OF_MEMORY};

/// The time budget is 10 ms; the rest allows for a busy machine.
const SOON: Duration = Duration::from_secs(2);

fn plan(lab: &Lab, lines: &str) -> Plan {
    let tenants = vec![("a".into(), lines.into())];
    Plan { device: lab.device(0).uuid, time: "arbitrate = true".into(), tenants }
}

fn with_daemon(lines: &str) -> (Lab, Daemon) {
    let lab = Lab::new("h200");
    let daemon = Daemon::start(lab.path(), &plan(&lab, lines));
    let lab = lab.with("VGPU_SOCKET", daemon.socket("a"));
    (lab, daemon)
}

/// Asks the daemon as `vgpu set` does, without the time that a new process takes.
fn set(daemon: &Daemon, key: &str, value: &str) {
    let mut admin = UnixStream::connect(daemon.admin()).unwrap();
    writeln!(admin, "{{\"hello\":2,\"ask\":\"set\",\"tenant\":\"a\",\"change\":{{\"{key}\":\"{value}\"}}}}").unwrap();
    let mut answer = String::new();
    BufReader::new(admin).read_line(&mut answer).unwrap();
    assert!(!answer.contains("\"error\""), "{answer}");
}

#[test]
fn a_memory_limit_below_what_is_held_stops_growth_and_kills_nobody() {
    let (lab, daemon) = with_daemon("memory_limit = \"8GiB\"");
    let mut m = lab.member();
    m.begin();
    m.ok("launch 1000000");
    let (first, second) = (m.alloc(2 * GIB), m.alloc(2 * GIB));
    let mut took = Vec::new();
    for limit in [2, 6, 3, 2] {
        let begin = Instant::now();
        set(&daemon, "memory_limit", &format!("{limit}GiB"));
        while m.info().1 != limit * GIB {
            assert!(begin.elapsed() < SOON, "{limit} GiB are not in force: {:?}; {}", m.info(), m.errors());
        }
        took.push(begin.elapsed());
    }
    took.sort();
    eprintln!("a memory limit is in force after {took:?}");
    assert_eq!(m.info(), (0, 2 * GIB));
    assert_eq!(m.code(&format!("alloc {MIB}")), OUT_OF_MEMORY);
    m.ok("launch 1000000");
    m.ok("nvinit");
    assert_eq!(m.ok("nvmem 0").number(0), 2 * GIB, "NVML says so too");
    assert_eq!(lab.process(0, m.pid).live_bytes, 4 * GIB, "what is held stays");
    m.ok(&format!("free {first}"));
    assert_eq!(m.code(&format!("alloc {MIB}")), OUT_OF_MEMORY, "with its context it is still above");
    m.ok(&format!("free {second}"));
    m.alloc(GIB);
    assert_eq!(m.errors(), "");
}

#[test]
fn limits_that_a_file_changes_are_in_force_for_those_who_are_there() {
    let (lab, daemon) = with_daemon("memory_limit = \"8GiB\"");
    let mut m = lab.member();
    m.begin();
    m.alloc(GIB);
    daemon.write(&plan(&lab, "memory_limit = \"4GiB\""));
    daemon.reload();
    let begin = Instant::now();
    while m.info().1 != 4 * GIB {
        assert!(begin.elapsed() < SOON, "{:?}", m.info());
    }
    eprintln!("a limit of the file is in force {:?} after the daemon said so", begin.elapsed());
    assert_eq!(m.code(&format!("alloc {}", 3 * GIB)), OUT_OF_MEMORY);
}

/// A list for MPS in the program's environment holds next to the daemon's limit, and the lower of both is in force.
#[test]
fn a_list_for_mps_only_tightens_the_daemons_limit() {
    let (lab, daemon) = with_daemon("memory_limit = \"8GiB\"");
    let lab = lab.with("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4G,1=1M");
    let mut m = lab.member();
    m.begin();
    for (said, in_force) in [("8GiB", 4), ("2GiB", 2), ("16GiB", 4)] {
        set(&daemon, "memory_limit", said);
        let begin = Instant::now();
        while m.info().1 != in_force * GIB {
            assert!(begin.elapsed() < LONG_TIMEOUT, "{said}: {:?}; {}", m.info(), m.errors());
        }
        let free = m.info().0;
        assert_eq!(m.code(&format!("alloc {}", free + 1)), OUT_OF_MEMORY, "{said}");
        let all = m.alloc(free);
        m.ok(&format!("free {all}"));
    }
    let lab = lab.with("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "4G");
    let mut m = lab.member();
    assert_eq!(m.code("init"), NOT_PERMITTED);
    assert!(m.errors().starts_with("vgpu: CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=\"4G\" is not a list"), "{}", m.errors());
}

/// Percent of the next `ms` milliseconds in which the device works.
fn share(lab: &Lab, ms: u64) -> f64 {
    let before = lab.truth();
    std::thread::sleep(Duration::from_millis(ms));
    let after = lab.truth();
    let (busy, wall) = (after.devices[0].busy_ns - before.devices[0].busy_ns, after.at_ns - before.at_ns);
    #[allow(clippy::cast_precision_loss)] // nanoseconds that add up to seconds
    {
        busy as f64 / wall as f64 * 100.0
    }
}

#[test]
fn a_ceiling_that_changes_is_kept_by_a_program_that_launches_without_a_pause() {
    let _alone = alone();
    measured(|| {
        let (lab, daemon) = with_daemon("memory_limit = \"8GiB\"");
        let mut m = timed(&lab);
        m.tell("loop 2000000 4000 0 8 0 0 0");
        std::thread::sleep(Duration::from_millis(500));
        let free = share(&lab, 500);
        set(&daemon, "sm_limit", "20");
        // After the change the tenant may still use its saved balance and the work queued on the device.
        std::thread::sleep(Duration::from_millis(200));
        let held = share(&lab, 1000);
        set(&daemon, "sm_limit", "60");
        std::thread::sleep(Duration::from_millis(200));
        let wider = share(&lab, 1000);
        eprintln!("shares: {free:.1} without a ceiling, {held:.1} at 20, {wider:.1} at 60");
        // A share above the ceiling is wrong on any host; a busy host may leave the program below it.
        assert!(free > 2.0 * held && (12.0..=24.0).contains(&held) && wider > 1.5 * held && wider < 65.0);
        m.answer();
        assert_eq!(m.errors(), "");
    });
}

#[test]
fn a_tenant_that_is_paused_uses_no_time_and_goes_on_when_it_may() {
    let (lab, daemon) = with_daemon("memory_limit = \"8GiB\"");
    let mut m = timed(&lab);
    m.tell("loop 200000 3000 0 8 0 0 0");
    std::thread::sleep(Duration::from_millis(300));
    daemon.tell(&["pause", "a"]);
    let begin = Instant::now();
    let mut quiet = 0;
    while quiet < 3 {
        // Work queued on the device still drains after the pause, so the test waits for three quiet readings.
        quiet = if share(&lab, 100) == 0.0 { quiet + 1 } else { 0 };
        assert!(begin.elapsed() < SOON, "it works on");
    }
    let mut other = lab.member();
    other.begin();
    other.alloc(MIB);
    daemon.tell(&["resume", "a"]);
    let begin = Instant::now();
    while share(&lab, 20) == 0.0 {
        assert!(begin.elapsed() < LONG_TIMEOUT, "it does not go on: {}", m.errors());
    }
    eprintln!("it works again {:?} after its resume", begin.elapsed());
    assert_eq!(m.answer().code, 0, "{}", m.errors());
}
