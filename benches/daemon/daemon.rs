//! A daemon with a private directory, and the kernel's figures about it. Not here: the work of its members (`measure`).

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// UUID of the device that all members use.
pub const BENCH_DEVICE: &str = "GPU-00000000-1111-2222-3333-444444444444";

/// A running daemon. Dropping it kills the daemon and removes its directory.
pub struct BenchDaemon {
    child: Child,
    dir: TempDir,
}

impl BenchDaemon {
    /// Starts `vgpud` of `VGPU_BUILD`, else the one next to this program, with `tenants` tenants, and waits for the
    /// last one's socket.
    pub fn start(tenants: usize, rules: TenantRules) -> Result<Self, String> {
        let beside = || std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
        let build = std::env::var_os("VGPU_BUILD").map(PathBuf::from).or_else(beside).unwrap_or_default();
        let program = build.join("vgpud");
        let dir = TempDir::new().map_err(|why| why.to_string())?;
        let file = dir.path().join("vgpud.toml");
        fs::write(&file, daemon_file(dir.path(), tenants, rules)).map_err(|why| why.to_string())?;
        let mut command = Command::new(&program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("VGPU_")) {
            command.env_remove(name);
        }
        command.arg("--config").arg(&file).args(["--driver", "none", "--log", "warn"]).stdin(Stdio::null());
        let child = command.spawn().map_err(|why| format!("{}: {why}", program.display()))?;
        let mut daemon = Self { child, dir };
        let (begin, last) = (Instant::now(), daemon.tenant_socket(tenants - 1));
        while !last.exists() {
            if let Ok(Some(status)) = daemon.child.try_wait() {
                return Err(format!("{}: {status}", program.display()));
            }
            if begin.elapsed() > Duration::from_secs(60) {
                return Err(format!("{} never appeared", last.display()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(daemon)
    }

    /// Socket for the members of a tenant.
    pub fn tenant_socket(&self, tenant: usize) -> PathBuf {
        self.dir.path().join(format!("tenants/t{tenant}/vgpud.sock"))
    }

    /// Number of open descriptors of the daemon.
    pub fn open_descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).map_or(0, Iterator::count)
    }

    /// Resident memory in KiB, including shared pages.
    pub fn resident_kib(&self) -> u64 {
        self.proc_status("VmRSS:")
    }

    fn proc_status(&self, key: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }

    /// Processor time of its loop so far, in ns: the thread that grants leases.
    pub fn cpu_ns(&self) -> u64 {
        run_ns(&PathBuf::from(format!("/proc/{}", self.child.id())))
    }

    /// Processor time of all its threads so far, in ns: the loop, the record, the log.
    pub fn whole_cpu_ns(&self) -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        tasks.map_or(0, |tasks| tasks.flatten().map(|task| run_ns(&task.path())).sum())
    }
}

impl Drop for BenchDaemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processor time of a thread, in ns.
fn run_ns(task: &Path) -> u64 {
    let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Rules that a configuration has besides limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TenantRules {
    /// Limits alone.
    Limits,
    /// Every policy: groups with weights and quotas, windows, a booking, deadlines, idle steps.
    Policies,
}

/// Configuration with tenants t0, t1, ... that share one device by weight, with leases and without ceilings.
fn daemon_file(run_dir: &Path, tenants: usize, rules: TenantRules) -> String {
    let mut text = format!(
        "[daemon]\nrun_dir = {:?}\nstate_dir = {:?}\nadmin_socket = \"none\"\n[time]\narbitrate = true\n[[device]]\nid = \"{BENCH_DEVICE}\"\nmemory = \"64TiB\"\n",
        run_dir.display().to_string(),
        run_dir.join("state").display().to_string(),
    );
    for tenant in 0..tenants {
        let _ =
            write!(text, "[[tenant]]\nname = \"t{tenant}\"\nweight = {}\nmemory_limit = \"1GiB\"\n", 1 + tenant % 4);
        if rules == TenantRules::Policies {
            let _ = writeln!(text, "template = \"notebook\"\ngroup = \"g{}\"", tenant % POLICY_GROUPS);
        }
        if rules == TenantRules::Policies && tenant % 100 == 0 {
            text.push_str("deadline = \"2036-12-01 09:00\"\ngpu_hours_needed = 100\n");
        }
    }
    if rules == TenantRules::Policies {
        text.push_str(&policy_sections());
    }
    text
}

/// Number of groups among which tenants are divided.
const POLICY_GROUPS: usize = 50;

/// Groups with quotas, windows for each tenth of them, and a booking.
fn policy_sections() -> String {
    let mut text = String::new();
    for group in 0..POLICY_GROUPS {
        let _ = write!(
            text,
            "[[group]]\nname = \"g{group}\"\nweight = {}\n[[group.quota]]\nper = \"month\"\ngpu_hours = 500\n",
            1 + group % 5
        );
    }
    for window in 0..POLICY_GROUPS / 10 {
        let _ = write!(
            text,
            "[[window]]\nname = \"w{window}\"\nfrom = \"00:00\"\nto = \"24:00\"\ngroups = [\"g{window}\"]\nsm_limit = 50\n"
        );
    }
    text.push_str(
        "[[booking]]\nname = \"b\"\ntenant = \"t1\"\nfrom = \"2036-01-01 00:00\"\nfor = \"1h\"\nsm_request = 10\n",
    );
    text
}
