//! The demo's part with a daemon: busy tenants share the device by weight, and the host changes a limit while
//! they run.
//!
//! The daemon is a child process in the demo's own directory. Programs get only the path of their tenant's
//! socket.

use crate::device::Gpu;
use crate::shares;
use crate::style::Style;
use crate::tenant::{Program, Tenant};
use crate::{Trouble, pause};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time between two lines of the table.
const LINE: Duration = Duration::from_millis(1000);
/// Number of lines that are shown before the change, and after it.
const LINES: usize = 4;

/// `vgpud` with two tenants; dropping this value ends it.
pub struct Daemon {
    child: Child,
    build: PathBuf,
    run: PathBuf,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Daemon {
    /// Starts the daemon for tenants with these weights.
    fn start(gpu: &Gpu, weights: &[(&str, u32)]) -> Result<Self, Trouble> {
        let run = gpu.scratch.0.join("run");
        let mut text =
            format!("[daemon]\nrun_dir = {:?}\nstate_dir = {:?}\n", text(&run), text(&gpu.scratch.0.join("kept")));
        for (name, weight) in weights {
            text.push_str(&format!("[[tenant]]\nname = {name:?}\nweight = {weight}\nmemory_limit = \"4GiB\"\n"));
        }
        let file = gpu.scratch.0.join("vgpud.toml");
        std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
        let mut command = Command::new(gpu.build.join("vgpud"));
        command.arg("--config").arg(file).args(["--log", "warn"]).stdin(Stdio::null());
        if gpu.simulated {
            command.env("LD_LIBRARY_PATH", gpu.build.join("sim")).env("VGPU_SIM_PROFILE", "h200");
            command.env("VGPU_SIM_DIR", gpu.scratch.0.join("gpu"));
        }
        let child = command.spawn().map_err(|e| format!("vgpud: {e}"))?;
        let mut daemon = Self { child, build: gpu.build.clone(), run };
        let begin = Instant::now();
        while !weights.iter().all(|(name, _)| daemon.socket(name).exists()) {
            pause(Duration::from_millis(20))?;
            if let Ok(Some(status)) = daemon.child.try_wait() {
                return Err(format!("vgpud ended with {status}"));
            }
            if begin.elapsed() > Duration::from_secs(10) {
                return Err("vgpud does not open its sockets".into());
            }
        }
        Ok(daemon)
    }

    fn socket(&self, tenant: &str) -> PathBuf {
        self.run.join("tenants").join(tenant).join("vgpud.sock")
    }

    /// Runs `vgpu WORDS...` against the daemon's administration socket.
    fn tell(&self, words: &[&str]) -> Result<(), Trouble> {
        let socket = self.run.join("admin.sock");
        let out = Command::new(self.build.join("vgpu")).args(words).arg("--socket").arg(socket).output();
        match out {
            Ok(out) if out.status.success() => Ok(()),
            Ok(out) => Err(format!("vgpu {}: {}", words.join(" "), String::from_utf8_lossy(&out.stderr))),
            Err(e) => Err(format!("vgpu: {e}")),
        }
    }
}

fn text(path: &std::path::Path) -> String {
    path.display().to_string()
}

/// Runs two busy tenants, prints a table of their shares and changes a limit on the way; true if the shares
/// followed. A real device has no record of which process used it, so there the part is skipped.
pub fn live(gpu: &Gpu, style: &Style) -> Result<bool, Trouble> {
    if !gpu.simulated {
        println!("  skipped: the table is made from the simulated device's own record");
        return Ok(true);
    }
    let daemon = Daemon::start(gpu, &[("a", 3), ("b", 7)])?;
    let seconds = format!("{}", (LINE * u32::try_from(2 * LINES + 2).unwrap_or(0)).as_secs_f64());
    let start =
        |name| Tenant::of_daemon(name, gpu, daemon.socket(name)).start(&gpu.example("example-launches"), &[&seconds]);
    let programs = [start("a")?, start("b")?];
    let pids: Vec<u32> = programs.iter().map(Program::pid).collect();
    pause(LINE)?;
    println!("  vgpud: a has weight 3, b has weight 7, neither has a ceiling");
    let first = table(gpu, style, &pids)?;
    println!("  $ vgpu set b --sm-limit 20");
    daemon.tell(&["set", "b", "--sm-limit", "20"])?;
    pause(Duration::from_millis(100))?;
    let second = table(gpu, style, &pids)?;
    drop(programs);
    // Relative to the sum of both: on a busy host the device is sometimes idle, whichever tenant has its turn.
    let part = first[0] / (first[0] + first[1]) * 100.0;
    Ok((part - 30.0).abs() <= 6.0 && second[1] <= 24.0 && second[0] > first[0])
}

/// Prints a few lines, each with the shares since the previous one; returns the shares of the whole time.
fn table(gpu: &Gpu, style: &Style, pids: &[u32]) -> Result<[f64; 2], Trouble> {
    let begin = shares::used(gpu, pids);
    let mut before = shares::used(gpu, pids);
    for _ in 0..LINES {
        pause(LINE)?;
        let now = shares::used(gpu, pids);
        let mut line = String::from("  ");
        for (name, share) in ["a", "b"].iter().zip(shares::between(&before, &now)) {
            let share = share.unwrap_or(0.0);
            let bar: String = (0..20).map(|at| if share / 5.0 > f64::from(at) { '#' } else { '.' }).collect();
            line.push_str(&style.tenant(name, &format!("{name} {share:5.1} % [{bar}]  ")));
        }
        println!("{line}");
        before = now;
    }
    match shares::between(&begin, &before)[..] {
        [Some(a), Some(b)] => Ok([a, b]),
        _ => Err("a program is gone from the device".into()),
    }
}
