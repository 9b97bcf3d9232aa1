//! The usage record, judged by the simulated device: its sums equal the device's, a killed daemon loses little, and
//! neither a disk nor a tenant's file delays anything.

#[path = "leases/world.rs"]
#[allow(unused_imports, reason = "this program uses a part")]
mod world;

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use shim_sys::descriptors;
use vgpu_core::memory::ledger::LEDGER_BYTES;
use vgpu_core::protocol::wire::{Hello, JoinDevice};
use vgpu_tests::artefacts::vgpu;
use vgpu_tests::{GIB, LONG_TIMEOUT, MIB, Member, OUT_OF_MEMORY};
use world::{World, alone, eventually, finish, members_of, tenant};

/// One second of device time in ns, more than a test uses.
const SECOND: u64 = 1_000_000_000;

/// Directory of the daemons' record, next to their sockets, which are not at the usual path.
fn kept(world: &World) -> PathBuf {
    world.lab.path().join("run/state")
}

/// Content of the record in a directory.
fn usage(dir: &Path, words: &[&str]) -> Value {
    let output = Command::new(vgpu()).args(["usage", "--format", "json", "--state-dir"]).arg(dir).args(words).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn total(dir: &Path, what: &str) -> u64 {
    usage(dir, &[])["total"][what].as_u64().unwrap()
}

/// A number of a tenant's row.
fn of(dir: &Path, tenant: &str, what: &str) -> Option<u64> {
    let all = usage(dir, &[]);
    all["rows"].as_array().unwrap().iter().find(|row| row["tenant"] == tenant)?[what].as_u64()
}

fn status(world: &World) -> Value {
    serde_json::from_str(&world.status()).unwrap_or(Value::Null)
}

#[allow(clippy::cast_precision_loss)] // nanoseconds that add up to seconds
fn percent(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64 * 100.0
}

/// Waits until the recorded device time is between `least` and `most` percent of the device's record.
#[track_caller]
fn settles(dir: &Path, truth: u64, least: f64, most: f64) {
    let begin = Instant::now();
    loop {
        let all = percent(total(dir, "gpu_ns"), truth);
        if (least..=most).contains(&all) {
            return;
        }
        assert!(begin.elapsed() < LONG_TIMEOUT, "{all:.2} % of {truth} ns: {}", usage(dir, &["--device"]));
        thread::sleep(Duration::from_millis(100));
    }
}

const TWO: [&str; 2] = ["a", "b"];

fn two() -> String {
    let lines = "memory_limit = \"4GiB\"\nweight = 50";
    tenant("a", lines) + &tenant("b", lines)
}

#[test]
fn the_tenants_sums_are_what_the_device_did_and_what_was_held_over_the_time_it_was_held() {
    let _alone = alone();
    let mut world = World::start(&two());
    let began = Instant::now();
    let mut holder = world.plain("a");
    holder.begin();
    holder.alloc(GIB);
    // Refusals count from the first reading of the ledger on.
    eventually("its ledger is read", || !status(&world)["tenants"][0]["devices"][0]["memory_used"].is_null());
    assert_eq!(holder.code(&format!("alloc {}", 4 * GIB)), OUT_OF_MEMORY);
    let since = Instant::now();
    let mut members = world.at_work(&[("a", 1000, 64, 0), ("b", 700, 30, 5000)], 6_000);
    finish(&mut members);
    drop(members);
    let held = since.elapsed();
    drop(holder);
    let most = began.elapsed();
    let (dir, truth) = (kept(&world), world.lab.device(0).busy_ns);
    assert!(truth > 3 * SECOND, "{truth}");
    settles(&dir, truth, 99.0, 101.0);
    for name in TWO {
        assert!(of(&dir, name, "gpu_ns").unwrap() > SECOND / 2, "{}", usage(&dir, &[]));
    }
    // One GiB plus at most three contexts; a reading may be one second late.
    let integral = of(&dir, "a", "memory_byte_seconds").unwrap();
    let bytes = |time: Duration, bytes: u64| bytes / 1000 * u64::try_from(time.as_millis()).unwrap();
    let least = bytes(held.saturating_sub(Duration::from_secs(2)), GIB);
    let most = bytes(most + Duration::from_secs(2), 3 * GIB);
    assert!((least..=most).contains(&integral), "{least} {integral} {most}");
    assert!((GIB..3 * GIB).contains(&of(&dir, "a", "peak_bytes").unwrap()));
    eventually("the refusal is counted", || of(&dir, "a", "refused_allocations") == Some(1));
    assert_eq!(of(&dir, "b", "refused_allocations"), Some(0));
    world.kill();
    assert!((99.0..=101.0).contains(&percent(total(&dir, "gpu_ns"), truth)), "without a daemon");
}

/// Each process ends within the second after which the daemon would read its tenant's sums.
#[test]
fn what_processes_of_less_than_a_second_held_is_recorded() {
    let _alone = alone();
    let mut world = World::start(&two());
    let mut held = Duration::ZERO;
    for _ in 0..5 {
        let mut holder = world.plain("a");
        holder.begin();
        holder.alloc(GIB);
        let since = Instant::now();
        thread::sleep(Duration::from_millis(900));
        drop(holder);
        held += since.elapsed();
    }
    let dir = kept(&world);
    let truth = GIB / 1000 * u64::try_from(held.as_millis()).unwrap();
    let recorded = || of(&dir, "a", "memory_byte_seconds").unwrap_or(0);
    eventually("nearly all of it is recorded", || recorded() > truth / 10 * 8);
    // Contexts are held too, and a busy host shows the end of each process some tenths of a second late.
    thread::sleep(Duration::from_secs(2));
    assert!(recorded() < truth * 2, "{} of {truth}", recorded());
}

#[test]
fn status_and_ps_show_what_is_held_in_memory_by_whom() {
    let mut world = World::start(&two());
    let mut m = world.plain("a");
    m.begin();
    m.alloc(GIB);
    let here = |world: &World| status(world)["tenants"][0]["devices"][0].clone();
    eventually("the tenant's memory is shown", || here(&world)["memory_used"].as_u64().is_some_and(|used| used >= GIB));
    let device = here(&world);
    let (used, overhead) = (device["memory_used"].as_u64().unwrap(), device["overhead"].as_u64().unwrap());
    assert_eq!(used - overhead, GIB, "{device}");
    assert!(device["memory_peak"].as_u64().unwrap() >= used, "{device}");
    assert_eq!(device["refused_allocations"], 0, "{device}");
    let member = status(&world)["tenants"][0]["members"][0]["devices"][0].clone();
    assert_eq!((member["memory_used"].as_u64(), member["overhead"].as_u64()), (Some(used), Some(overhead)));
    m.kill();
    eventually("nothing is held any more", || here(&world)["memory_used"].as_u64().is_none_or(|used| used == 0));
}

/// The ledgers of other tenants' members are still read once a second.
#[test]
fn a_tenant_whose_last_member_left_is_shown_no_memory_from_that_moment_on() {
    let mut world = World::start(&two());
    let here = |world: &World| status(world)["tenants"][0]["devices"][0].clone();
    let mut other = world.plain("b");
    other.begin();
    for _ in 0..3 {
        let mut m = world.plain("a");
        m.begin();
        m.alloc(GIB);
        eventually("it is shown", || here(&world)["memory_used"].as_u64().is_some_and(|used| used >= GIB));
        m.kill();
        let mut seen = Value::Null;
        eventually("the daemon sees that it left", || {
            seen = here(&world);
            seen["time"]["members"] == 0
        });
        assert_eq!(seen["memory_used"], 0, "{seen}");
    }
}

#[test]
fn who_has_no_process_holds_nothing_by_status_and_by_metrics() {
    let mut world = World::start(&two());
    let sample = |world: &World, name: &str| {
        let mut c = Command::new(vgpu());
        c.args(["metrics", "--socket"]).arg(world.lab.path().join("run/admin.sock"));
        let text = String::from_utf8(c.output().unwrap().stdout).unwrap();
        let of_a = |line: &&str| line.starts_with(name) && line.contains("tenant=\"a\"");
        let line = text.lines().find(of_a).map(str::to_owned);
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
    };
    let shown = |world: &World| status(world)["tenants"][0]["devices"][0]["memory_used"].clone();
    for name in ["vgpu_tenant_memory_used_bytes", "vgpu_tenant_launches_total"] {
        assert_eq!(sample(&world, name), Some(0.0), "{name} before the first process");
    }
    assert_eq!(shown(&world), 0);
    let mut m = world.plain("a");
    m.begin();
    m.alloc(GIB);
    assert_eq!(m.code(&format!("alloc {}", 4 * GIB)), OUT_OF_MEMORY);
    eventually("it is read", || sample(&world, "vgpu_tenant_allocations_refused_total") == Some(1.0));
    m.kill();
    eventually("nobody holds it", || sample(&world, "vgpu_tenant_memory_used_bytes") == Some(0.0));
    // The ledger still contains the dead member's record, also when `vgpu status` reads the file.
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(shown(&world), 0);
    assert_eq!(sample(&world, "vgpu_tenant_memory_used_bytes"), Some(0.0));
    assert!(sample(&world, "vgpu_tenant_memory_peak_bytes").unwrap() >= 1e9, "what was counted stays");
    assert_eq!(sample(&world, "vgpu_tenant_allocations_refused_total"), Some(1.0), "a counter does not begin anew");
}

#[test]
fn a_killed_daemon_loses_a_second_at_most_and_the_next_one_counts_nothing_twice() {
    let _alone = alone();
    // One tenant alone, because a measurement without leases contains the time of other tenants. With a ceiling,
    // because a lone tenant without one needs no lease and is not measured.
    let mut world = World::start(&tenant("a", "sm_limit = 80"));
    let mut members = world.at_work(&[("a", 1000, 64, 0)], 9_000);
    let dir = kept(&world);
    eventually("something is written", || dir.join("record.sqlite").exists() && total(&dir, "gpu_ns") > SECOND);
    thread::sleep(Duration::from_millis(700));
    let truth = world.lab.device(0).busy_ns;
    world.kill();
    let written = total(&dir, "gpu_ns");
    // The record may lack one second, and work queued on the device that is not charged yet; the test's host may be
    // busy.
    assert!(written + SECOND + SECOND / 2 > truth, "{written} of {truth}");
    world.restart();
    finish(&mut members);
    drop(members);
    let truth = world.lab.device(0).busy_ns;
    settles(&dir, truth, 98.0, f64::MAX);
    thread::sleep(Duration::from_secs(2));
    let all = percent(total(&dir, "gpu_ns"), truth);
    assert!((98.0..=101.0).contains(&all), "{all} % of what the device did");
}

#[test]
fn what_a_tenant_used_that_was_removed_stays() {
    let _alone = alone();
    let mut world = World::start(&two());
    let mut members = world.at_work(&[("b", 1000, 64, 0)], 500);
    finish(&mut members);
    drop(members);
    let truth = world.lab.device(0).busy_ns;
    fs::write(world.lab.path().join("vgpud.toml"), tenant("a", "weight = 50")).unwrap();
    world.signal("-HUP");
    eventually("it is removed", || !world.status().contains("\"name\": \"b\""));
    let dir = kept(&world);
    eventually("what it used last is written", || {
        of(&dir, "b", "gpu_ns").is_some_and(|used| percent(used, truth) > 98.0)
    });
}

#[test]
fn a_damaged_record_is_moved_aside_and_a_new_one_begun() {
    let _alone = alone();
    let mut world = World::start(&two());
    eventually("it is open", || status(&world)["record"]["words"].is_null());
    world.kill();
    let (dir, file) = (kept(&world), kept(&world).join("record.sqlite"));
    // With a journal that was begun, SQLite would rightly restore the file.
    for end in ["", "-wal", "-shm", "-journal"] {
        let _ = fs::remove_file(format!("{}{end}", file.display()));
    }
    fs::write(&file, "this is no database ".repeat(1000)).unwrap();
    world.restart();
    eventually("it is said", || {
        status(&world)["record"]["words"].as_str().is_some_and(|words| words.contains("damaged"))
    });
    assert_eq!(status(&world)["record"]["ok"], true);
    let aside = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    assert!(aside.into_iter().any(|path| path.to_string_lossy().contains("damaged-")));
    finish(&mut world.at_work(&[("a", 1000, 64, 0)], 300));
    eventually("the new one is written", || total(&dir, "gpu_ns") > SECOND / 10);
}

/// A mount for this test. Dropping it unmounts it.
struct Mount(PathBuf);

impl Mount {
    fn new(at: PathBuf, options: &str) -> Self {
        fs::create_dir_all(&at).unwrap();
        let text = |text: &str| CString::new(text).unwrap();
        let (kind, place, data) = (text("tmpfs"), text(&at.display().to_string()), text(options));
        // SAFETY: the C strings live through the call.
        let done = unsafe { libc::mount(kind.as_ptr(), place.as_ptr(), kind.as_ptr(), 0, data.as_ptr().cast()) };
        assert_eq!(done, 0, "this test mounts a tmpfs, as root: {}", std::io::Error::last_os_error());
        Self(at)
    }

    fn read_only(&self, read_only: bool) {
        let place = CString::new(self.0.display().to_string()).unwrap();
        let flags = libc::MS_REMOUNT | libc::MS_BIND | if read_only { libc::MS_RDONLY } else { 0 };
        // SAFETY: the C strings live through the call; the kernel does not read the other arguments.
        let done = unsafe { libc::mount(c"none".as_ptr(), place.as_ptr(), c"none".as_ptr(), flags, std::ptr::null()) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let place = CString::new(self.0.display().to_string()).unwrap();
        // SAFETY: the C string lives through the call.
        unsafe { libc::umount2(place.as_ptr(), libc::MNT_DETACH) };
    }
}

/// Checks that memory limits and ceilings hold and that a new process gets device time.
fn enforces(world: &mut World) {
    let begin = Instant::now();
    let mut m = world.plain("a");
    m.begin();
    assert_eq!(m.code(&format!("alloc {}", 4 * GIB)), OUT_OF_MEMORY);
    m.alloc(100 * MIB);
    finish(&mut world.at_work(&[("a", 1000, 16, 0), ("b", 1000, 16, 0)], 300));
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}

#[test]
fn a_full_disk_is_said_and_holds_nobody_up_and_what_was_used_meanwhile_is_written_when_there_is_room() {
    let _alone = alone();
    let mut world = World::start(&two());
    world.kill();
    let disk = Mount::new(world.lab.path().join("disk"), "size=1m");
    let dir = disk.0.join("kept");
    let file = format!("[daemon]\nstate_dir = {:?}\n{}", dir.display().to_string(), two());
    fs::write(world.lab.path().join("vgpud.toml"), file).unwrap();
    world.restart();
    eventually("the record is open", || status(&world)["record"]["ok"] == true);
    let ballast = disk.0.join("ballast");
    let mut filled = File::create(&ballast).unwrap();
    while filled.write_all(&[0; 4096]).is_ok() {}
    enforces(&mut world);
    eventually("it is said", || status(&world)["record"]["words"] == "the disk is full");
    assert_eq!(status(&world)["record"]["ok"], false);
    enforces(&mut world);
    drop(filled);
    fs::remove_file(ballast).unwrap();
    let truth = world.lab.device(0).busy_ns;
    eventually("all of it is written", || status(&world)["record"]["ok"] == true);
    eventually("nothing is missing", || percent(total(&dir, "gpu_ns"), truth) > 98.0);
    world.kill();
}

#[test]
fn a_read_only_disk_is_said_and_holds_nobody_up() {
    let _alone = alone();
    let mut world = World::start(&two());
    world.kill();
    let disk = Mount::new(world.lab.path().join("disk"), "size=8m");
    let dir = disk.0.join("kept");
    let file = format!("[daemon]\nstate_dir = {:?}\n{}", dir.display().to_string(), two());
    fs::write(world.lab.path().join("vgpud.toml"), file).unwrap();
    disk.read_only(true);
    world.restart();
    let words = |world: &World| status(world)["record"]["words"].as_str().unwrap_or_default().to_owned();
    eventually("it is said", || words(&world).contains("ead-only"));
    enforces(&mut world);
    disk.read_only(false);
    let truth = world.lab.device(0).busy_ns;
    eventually("it is written now", || status(&world)["record"]["ok"] == true);
    eventually("nothing is missing", || percent(total(&dir, "gpu_ns"), truth) > 98.0);
    world.kill();
}

/// A member that speaks only the protocol and joins with any file.
struct Liar(UnixStream);

impl Liar {
    fn hello(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(LONG_TIMEOUT)).unwrap();
        let hello = Hello { pid: std::process::id(), version: "liar".into(), clock: vgpu_tests::peer::now() };
        stream.write_all(hello.encode().unwrap().as_bytes()).unwrap();
        let (mut bytes, mut files) = ([0; 4096], Vec::new());
        assert!(descriptors::receive_descriptors(stream.as_fd(), &mut bytes, &mut files).unwrap() > 0);
        Self(stream)
    }

    fn join(&mut self, device: &str, file: BorrowedFd<'_>) -> String {
        let line = JoinDevice { device: device.into(), busy: 0 }.encode().unwrap();
        descriptors::send(self.0.as_fd(), line.as_bytes(), &[file]).unwrap();
        let mut bytes = [0; 4096];
        let got = self.0.read(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..got]).into_owned()
    }
}

#[test]
fn whatever_a_tenant_sends_as_its_ledger_stalls_nobody_and_says_nothing() {
    let _alone = alone();
    let mut world = World::start(&two());
    let device = world.lab.device(0).uuid;
    let place = world.lab.path().join("lies");
    fs::create_dir(&place).unwrap();
    let fifo = CString::new(place.join("fifo").display().to_string()).unwrap();
    // SAFETY: the C string lives through the call.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    // SAFETY: the C string lives through the call; nothing else owns the new descriptor.
    let fifo = unsafe { OwnedFd::from_raw_fd(libc::open(fifo.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC)) };
    let short = place.join("short");
    fs::write(&short, [0; 100]).unwrap();
    let zeroes = place.join("zeroes");
    File::create(&zeroes).unwrap().set_len(LEDGER_BYTES as u64).unwrap();
    let opened = |path: &Path| OwnedFd::from(File::open(path).unwrap());
    let lies = [fifo, opened(&place), opened(Path::new("/dev/zero")), opened(&short), opened(&zeroes)];
    let begin = Instant::now();
    let mut liars = Vec::new();
    for lie in &lies {
        for _ in 0..20 {
            let mut liar = Liar::hello(&world.socket("a"));
            assert!(liar.join(&device, lie.as_fd()).contains("slot"));
            liars.push(liar);
        }
    }
    // A member sends more lines than it may, each with a file.
    for _ in 0..500 {
        let liar = liars.first_mut().unwrap();
        assert!(liar.join(&device, lies[0].as_fd()).contains("slot"));
    }
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    let mut honest = world.plain("b");
    honest.begin();
    honest.alloc(GIB);
    let used = |world: &World, tenant: usize| status(world)["tenants"][tenant]["devices"][0]["memory_used"].clone();
    eventually("the other tenant's memory is shown", || used(&world, 1).as_u64().is_some_and(|used| used >= GIB));
    assert_eq!(used(&world, 0), 0, "nothing that was sent counts");
    finish(&mut world.at_work(&[("b", 1000, 16, 0)], 300));
    drop(liars);

    // A ledger shrinks while the daemon reads it.
    let mut m = world.plain("a");
    m.begin();
    eventually("it is read", || used(&world, 0).as_u64().is_some_and(|used| used > 0));
    let ledger = ledger_of(&m);
    File::options().write(true).open(&ledger).unwrap().set_len(4096).unwrap();
    // The member itself may have died at the end of the file; then no process holds any memory.
    eventually("it is none any more", || used(&world, 0).as_u64().unwrap_or(0) == 0);
    finish(&mut world.at_work(&[("b", 1000, 16, 0)], 300));
    assert!(!world.status().is_empty());
}

/// A control group that is named like that of a container in a pod of Kubernetes.
struct ContainerGroup(PathBuf);

impl ContainerGroup {
    /// `None`: this user may not make control groups here.
    fn make(pod: &str) -> Option<Self> {
        let id = std::process::id();
        // Version 2, else a hierarchy of version 1.
        let mut roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/memory"].into_iter().map(Path::new);
        let root = roots.find(|root| root.join("cgroup.procs").exists())?;
        let at = root.join(format!("vgpu-test-{id}/kubepods/pod{pod}/{id:064x}"));
        fs::create_dir_all(&at).ok()?;
        Some(Self(at))
    }

    fn admit(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for ContainerGroup {
    fn drop(&mut self) {
        for dir in self.0.ancestors().take(4) {
            let _ = fs::remove_dir(dir);
        }
    }
}

#[test]
fn the_pod_of_a_process_is_in_the_record_the_status_the_events_and_the_bill() {
    let _alone = alone();
    let pod = "7ac1d5a2-9b42-4f4c-8d0a-52a1b7e3c111";
    let Some(group) = ContainerGroup::make(pod) else {
        return vgpu_tests::optional::skipped("control groups, which this user may not make");
    };
    let mut world =
        World::start(&tenant("a", "labels = { namespace = \"lab\", pod = \"train-0\", container = \"main\" }"));
    let mut m = world.member("a");
    let outside = status(&world);
    assert_eq!(outside["tenants"][0]["labels"].get("pod-uid"), None, "{outside}");
    m.kill();
    eventually("the process has left", || members_of(&world) == 0);
    world.lab.set("VGPU_SOCKET", world.socket("a"));
    let mut m = world.plain("a");
    group.admit(m.pid);
    m.begin();
    m.alloc(GIB);
    let at = world.lab.path().join("run/admin.sock");
    let shown = |verb: &str, more: &[&str]| {
        let output = Command::new(vgpu()).args([verb, "--socket"]).arg(&at).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let status = status(&world);
    assert_eq!(status["tenants"][0]["labels"]["pod-uid"], pod, "{status}");
    assert_eq!(status["tenants"][0]["members"][0]["place"]["pod"], pod, "{status}");
    let table = shown("ps", &[]);
    assert!(table.lines().next().unwrap().contains("CONTAINER     POD") && table.contains(pod), "{table}");
    let events = shown("events", &["--json"]);
    let joined = events.lines().rfind(|line| line.contains("member.joined")).unwrap();
    let joined: Value = serde_json::from_str(joined).unwrap();
    assert_eq!(joined["more"]["pod_uid"], pod, "{joined}");
    for (name, value) in [("namespace", "lab"), ("pod", "train-0"), ("container", "main")] {
        assert_eq!(joined["more"][name], value, "{joined}");
    }
    let metrics = shown("metrics", &[]);
    let labels = r#"{tenant="a",namespace="lab",pod="train-0",container="main"}"#;
    assert!(metrics.contains(&format!("vgpu_tenant_members{labels} 1.0")), "{metrics}");
    assert!(metrics.contains(&format!("label_pod_uid=\"{pod}\"")), "{metrics}");
    let dir = kept(&world);
    let bill = |by: &str| {
        let mut command = Command::new(vgpu());
        command.args(["report", "chargeback", "--gpu-rate", "1/h", "--memory-rate", "1/s", "--format", "csv", "--by"]);
        let output = command.arg(by).arg("--state-dir").arg(&dir).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    eventually("the pod is in the record", || bill("label:pod-uid").contains(pod));
    let by_namespace = bill("label:namespace");
    assert!(by_namespace.lines().any(|line| line.starts_with("lab,")), "{by_namespace}");
    m.kill();
    eventually("the process has left", || members_of(&world) == 0);
}

/// The ledger that a process has open.
fn ledger_of(member: &Member) -> PathBuf {
    let open = fs::read_dir(format!("/proc/{}/fd", member.pid)).unwrap();
    let links = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    let mut ledgers = links.filter(|path| fs::metadata(path).is_ok_and(|meta| meta.len() == LEDGER_BYTES as u64));
    ledgers.next().expect("a ledger is open")
}
