//! A daemon with a configuration file for tests: start, kill, reload, query by `vgpu`.
//!
//! Not here: members. [`crate::member`] has members with the library, [`crate::peer`] has members that speak only the
//! protocol.

use crate::LONG_TIMEOUT;
use crate::artefacts::{sim_dir, vgpu, vgpud};
use crate::lab::Lab;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A `vgpud` with its own directory. Dropping it kills the daemon.
pub struct Daemon {
    program: PathBuf,
    child: Option<Child>,
    dir: PathBuf,
    /// User that the daemon runs as; `None` is the test's user.
    user: Option<u32>,
    /// Environment in which the daemon finds the driver; empty: it asks no driver.
    driver: Vec<(&'static str, PathBuf)>,
}

/// A device and its tenants, as the configuration file lists them.
#[derive(Clone, Debug)]
pub struct Plan {
    /// UUID of the one device.
    pub device: String,
    /// Additional lines for the `[time]` section.
    pub time: String,
    /// Name and configuration lines of each tenant.
    pub tenants: Vec<(String, String)>,
}

impl Plan {
    /// Text of the configuration file.
    fn text(&self, dir: &Path, has_driver: bool) -> String {
        let run = dir.join("run");
        let memory = if has_driver { "" } else { "memory = \"140GiB\"\novercommit = 4\n" };
        let mut text = format!(
            "[daemon]\nrun_dir = {:?}\nstate_dir = {:?}\n[time]\n{}\n[[device]]\nid = {:?}\n{memory}",
            run.display().to_string(),
            dir.join("kept").display().to_string(),
            self.time,
            self.device
        );
        for (name, lines) in &self.tenants {
            text.push_str(&format!("[[tenant]]\nname = {name:?}\n{lines}\n"));
        }
        text
    }
}

fn clean(program: PathBuf) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("VGPU_")) {
        command.env_remove(name);
    }
    command.env_remove("LD_PRELOAD").stdin(Stdio::null());
    command
}

impl Daemon {
    /// Writes the configuration file into `dir` and starts the daemon.
    pub fn start(dir: &Path, plan: &Plan) -> Daemon {
        Daemon::start_as(vgpud(), dir, plan)
    }

    /// As [`Daemon::start`], with the given `vgpud`.
    pub fn start_as(program: PathBuf, dir: &Path, plan: &Plan) -> Daemon {
        Daemon::start_with(program, dir, plan, None, Vec::new())
    }

    /// As [`Daemon::start`] in the lab's directory, with the driver of the lab's machine. Its devices' numbers and
    /// memory are known, and the memory is promised once.
    pub fn start_on_machine(lab: &Lab, plan: &Plan) -> Daemon {
        let driver = lab.path().join("driver");
        fs::create_dir(&driver).expect("own directory");
        // NVML's Rust wrapper opens the second name; the driver's package installs the first.
        for name in ["libnvidia-ml.so.1", "libnvidia-ml.so"] {
            symlink(sim_dir().join("libnvidia-ml.so.1"), driver.join(name)).expect("own directory");
        }
        let driver = vec![("LD_LIBRARY_PATH", driver), ("VGPU_SIM_DIR", lab.gpu())];
        Daemon::start_with(vgpud(), lab.path(), plan, None, driver)
    }

    /// As [`Daemon::start`], as user `uid`, with directories that belong to that user. Needs root.
    pub fn start_as_user(uid: u32, dir: &Path, plan: &Plan) -> Daemon {
        let program = dir.join("vgpud");
        fs::copy(vgpud(), &program).expect("a copy");
        for part in ["run", "kept"] {
            fs::create_dir(dir.join(part)).expect("a directory");
            std::os::unix::fs::chown(dir.join(part), Some(uid), Some(uid)).expect("root");
        }
        Daemon::start_with(program, dir, plan, Some(uid), Vec::new())
    }

    fn start_with(
        program: PathBuf,
        dir: &Path,
        plan: &Plan,
        user: Option<u32>,
        driver: Vec<(&'static str, PathBuf)>,
    ) -> Daemon {
        let mut daemon = Daemon { program, child: None, dir: dir.to_owned(), user, driver };
        daemon.write(plan);
        daemon.again();
        daemon
    }

    /// Writes the file without telling the daemon.
    pub fn write(&self, plan: &Plan) {
        let fresh = self.dir.join("vgpud.toml.new");
        fs::write(&fresh, plan.text(&self.dir, !self.driver.is_empty())).expect("own directory");
        fs::rename(fresh, self.dir.join("vgpud.toml")).expect("own directory");
    }

    /// Starts the daemon with the file as it is. Does nothing if the daemon runs.
    pub fn again(&mut self) {
        if self.child.is_some() {
            return;
        }
        let log =
            fs::File::options().create(true).append(true).open(self.dir.join("vgpud.log")).expect("own directory");
        let mut command = clean(self.program.clone());
        command.arg("--config").arg(self.dir.join("vgpud.toml")).stderr(log);
        if self.driver.is_empty() {
            command.args(["--driver", "none"]);
        }
        command.envs(self.driver.iter().map(|(name, value)| (name, value)));
        if let Some(uid) = self.user {
            command.uid(uid).gid(uid);
        }
        // While another test's thread forks, its child holds a copy of the descriptor that a fresh program was written
        // through, and the program cannot run yet.
        self.child = Some(loop {
            match command.spawn() {
                Err(why) if why.kind() == ErrorKind::ExecutableFileBusy => thread::yield_now(),
                started => break started.expect("vgpud starts"),
            }
        });
        let begin = Instant::now();
        // The daemon answers only once every tenant's socket exists too.
        while !self.answers() {
            let status = self.child.as_mut().map(Child::try_wait);
            let over = begin.elapsed() > LONG_TIMEOUT || matches!(status, Some(Ok(Some(_))));
            assert!(!over, "the daemon does not listen ({status:?}): {}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn answers(&self) -> bool {
        let Ok(mut stream) = UnixStream::connect(self.admin()) else { return false };
        let asked = stream
            .set_read_timeout(Some(LONG_TIMEOUT))
            .and_then(|()| stream.write_all(b"{\"hello\":2,\"ask\":\"status\"}\n"));
        asked.and_then(|()| stream.read_exact(&mut [0])).is_ok()
    }

    /// True if this side started the daemon and has not ended it.
    pub fn runs(&self) -> bool {
        self.child.is_some()
    }

    /// Process id of the daemon.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Path of the administrative socket.
    pub fn admin(&self) -> PathBuf {
        self.dir.join("run/admin.sock")
    }

    /// Directory that is mounted into the tenant's container.
    pub fn room(&self, tenant: &str) -> PathBuf {
        self.dir.join("run/tenants").join(tenant)
    }

    /// Socket that the tenant's members connect to.
    pub fn socket(&self, tenant: &str) -> PathBuf {
        self.room(tenant).join("vgpud.sock")
    }

    /// Text that the daemon has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("vgpud.log")).unwrap_or_default()
    }

    /// Kills the daemon with SIGKILL, at any instruction.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child");
            child.wait().expect("a child");
        }
    }

    fn signal(&self, signal: libc::c_int) {
        let pid = libc::pid_t::try_from(self.pid()).expect("a pid");
        // SAFETY: the process is a child of this test that was not waited for, so its pid is not reused.
        unsafe { libc::kill(pid, signal) };
    }

    /// Sends SIGTERM, waits for the end and returns the exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.signal(libc::SIGTERM);
        let mut child = self.child.take()?;
        let begin = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("a child") {
                return status.code();
            }
            if begin.elapsed() > LONG_TIMEOUT {
                let _ = child.kill();
                panic!("the daemon does not end: {}", self.log());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Makes the daemon read its file again and waits until it has. Panics with the daemon's message if it refuses the
    /// file.
    pub fn reload(&self) {
        let before = self.reloads();
        self.signal(libc::SIGHUP);
        let begin = Instant::now();
        while self.reloads() == before {
            assert!(begin.elapsed() < LONG_TIMEOUT, "not reloaded: {}", self.log());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn reloads(&self) -> usize {
        let log = self.log();
        assert!(!log.contains("not reloaded"), "{log}");
        log.matches(" reloaded: ").count()
    }

    /// Runs `vgpu WORD... --socket ADMIN`, as root on the host would.
    pub fn vgpu(&self, words: &[&str]) -> Output {
        clean(vgpu()).args(words).arg("--socket").arg(self.admin()).output().expect("vgpu runs")
    }

    /// As [`Daemon::vgpu`] for a command that must succeed; returns its output.
    #[track_caller]
    pub fn tell(&self, words: &[&str]) -> String {
        let out = self.vgpu(words);
        assert!(out.status.success(), "vgpu {words:?}: {}\n{}", crate::text(&out), self.log());
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Number of descriptors that the daemon has open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).map_or(0, Iterator::count)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
    }
}
