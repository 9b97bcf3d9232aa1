//! A machine with a daemon that gives out its device in leases, programs that use it, and the device's record of each
//! program.
#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};
use vgpu_tests::artefacts::{vgpu, vgpud};
pub use vgpu_tests::eventually;
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{Lab, Member};

/// Allows one measurement at a time: two cores cannot run several busy devices and their judges at once.
static ALONE: Mutex<()> = Mutex::new(());

pub fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// A machine, and a daemon that serves it from a file. Dropping it kills the daemon.
pub struct World {
    pub lab: Lab,
    daemon: Child,
}

impl Drop for World {
    fn drop(&mut self) {
        self.kill();
    }
}

impl World {
    pub fn start(file: &str) -> World {
        World::start_on("h200", file)
    }

    pub fn start_on(profile: &str, file: &str) -> World {
        let lab = Lab::new(profile);
        fs::write(lab.path().join("vgpud.toml"), file).unwrap();
        let daemon = daemon(&lab);
        let mut world = World { lab, daemon };
        eventually("the daemon answers", || {
            assert!(world.daemon.try_wait().unwrap().is_none(), "the daemon refuses {file}");
            !world.status().is_empty()
        });
        world
    }

    pub fn kill(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }

    pub fn restart(&mut self) {
        self.daemon = daemon(&self.lab);
    }

    pub fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.daemon.id().to_string()]).status().unwrap().success());
    }

    pub fn status(&self) -> String {
        let mut c = Command::new(vgpu());
        c.args(["status", "--json", "--socket"]).arg(self.lab.path().join("run/admin.sock"));
        String::from_utf8(c.output().unwrap().stdout).unwrap()
    }

    /// Output of `vgpu explain` for a tenant.
    pub fn explain(&self, tenant: &str) -> String {
        let mut c = Command::new(vgpu());
        c.args(["explain", tenant, "--socket"]).arg(self.lab.path().join("run/admin.sock"));
        String::from_utf8(c.output().unwrap().stdout).unwrap()
    }

    pub fn socket(&self, tenant: &str) -> PathBuf {
        self.lab.path().join("run/tenants").join(tenant).join("vgpud.sock")
    }

    /// Starts a program that works in bursts (`programs/turns.c`).
    pub fn member(&mut self, tenant: &str) -> Member {
        self.lab.set("VGPU_SOCKET", self.socket(tenant));
        let mut m = Member::start(&mut self.lab.command(compile("turns", Kind::Program, &[])));
        m.ok("begin");
        m
    }

    /// Starts a process that obeys commands; it has no context yet.
    pub fn plain(&mut self, tenant: &str) -> Member {
        self.lab.set("VGPU_SOCKET", self.socket(tenant));
        self.lab.member()
    }

    /// The tenant's device time in `vgpu status`, for the first device that it joined.
    pub fn time(&self, tenant: &str) -> serde_json::Value {
        let status: serde_json::Value = serde_json::from_str(&self.status()).expect("status is JSON");
        let tenants = status["tenants"].as_array().expect("tenants");
        let here = tenants.iter().find(|one| one["name"] == tenant).expect("the tenant");
        here["devices"]
            .as_array()
            .and_then(|rows| rows.first())
            .map_or(serde_json::Value::Null, |row| row["time"].clone())
    }

    /// Starts one member for each load: tenant, kernel in us, kernels before a pause, pause in us. All work for `ms`.
    pub fn at_work(&mut self, loads: &[(&str, u64, u64, u64)], ms: u64) -> Vec<Member> {
        let mut members: Vec<Member> = loads.iter().map(|load| self.member(load.0)).collect();
        for (m, (_, us, count, pause)) in members.iter_mut().zip(loads) {
            m.tell(&format!("bursts {} {count} {pause} {ms}", us * 1000));
        }
        members
    }

    pub fn served(&self, members: &[Member]) -> (Instant, Vec<u64>) {
        let truth = self.lab.truth();
        (Instant::now(), members.iter().map(|m| truth.living_process(0, m.pid).map_or(0, |p| p.busy_ns)).collect())
    }

    /// Percent of the device that each member gets during `time`, measured after a settling time of 800 ms.
    pub fn shares(&self, members: &[Member], time: Duration) -> Vec<f64> {
        thread::sleep(Duration::from_millis(800));
        let (begin, before) = self.served(members);
        thread::sleep(time);
        let (end, after) = self.served(members);
        #[allow(clippy::cast_precision_loss)] // nanoseconds that add up to seconds
        let percent = |(a, b): (&u64, &u64)| (b - a) as f64 / (end - begin).as_nanos() as f64 * 100.0;
        let got = before.iter().zip(&after).map(percent).collect();
        eprintln!("{got:.1?}");
        got
    }
}

pub fn daemon(lab: &Lab) -> Child {
    let mut c = lab.bare(vgpud());
    c.arg("--config").arg(lab.path().join("vgpud.toml")).arg("--runtime-dir").arg(lab.path().join("run"));
    let log = fs::File::create(lab.path().join("vgpud.log")).unwrap();
    c.stdin(Stdio::null()).stderr(log).spawn().unwrap()
}

/// A tenant's lines. The default memory limit lets all tenants fit into the device's memory.
pub fn tenant(name: &str, terms: &str) -> String {
    let memory = if terms.contains("memory_limit") { "" } else { "memory_limit = \"2GiB\"\n" };
    format!("[[tenant]]\nname = \"{name}\"\n{memory}{terms}\n")
}

/// Number of processes that the daemon knows.
pub fn members_of(world: &World) -> usize {
    world.status().matches("\"pid_inside\"").count()
}

pub fn finish(members: &mut [Member]) {
    for m in members {
        let a = m.answer();
        assert_eq!((a.code, m.errors()), (0, String::new()), "{a:?}");
    }
}
