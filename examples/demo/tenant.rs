//! A tenant of the demo: programs with limits in the environment, or with a daemon's socket instead, and the
//! preloaded library.

use crate::Trouble;
use crate::device::Gpu;
use crate::style::gib;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A tenant, and the limits of its programs.
pub struct Tenant {
    /// Name of the tenant.
    pub name: &'static str,
    /// Limit of the tenant's memory, bytes.
    pub limit: u64,
    /// Limit of device time, percent.
    pub ceiling: u32,
    library: PathBuf,
    scratch: PathBuf,
    simulated: Option<PathBuf>,
    socket: Option<PathBuf>,
}

impl Tenant {
    /// A tenant with these limits on `gpu`.
    pub fn new(name: &'static str, limit: u64, ceiling: u32, gpu: &Gpu) -> Self {
        Self {
            name,
            limit,
            ceiling,
            library: gpu.build.join("libvgpu.so"),
            scratch: gpu.scratch.0.clone(),
            simulated: gpu.simulated.then(|| gpu.build.join("sim")),
            socket: None,
        }
    }

    /// A tenant whose limits come from the daemon.
    pub fn of_daemon(name: &'static str, gpu: &Gpu, socket: PathBuf) -> Self {
        Self { socket: Some(socket), ..Self::new(name, 0, 0, gpu) }
    }

    /// The command line that makes a program part of this tenant.
    pub fn command_line(&self) -> String {
        let memory = gib(self.limit).replace(' ', "");
        format!("LD_PRELOAD=.../libvgpu.so VGPU_MEMORY_LIMIT={memory} VGPU_SM_LIMIT={} PROGRAM", self.ceiling)
    }

    /// Starts a program in this tenant.
    pub fn start(&self, program: &Path, arguments: &[&str]) -> Result<Program, Trouble> {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("LD_PRELOAD", &self.library)
            .env("VGPU_STATE_DIR", &self.scratch)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        match &self.socket {
            Some(socket) => command.env("VGPU_SOCKET", socket),
            None => command
                .env("VGPU_TENANT", format!("demo-{}", self.name))
                .env("VGPU_MEMORY_LIMIT", self.limit.to_string())
                .env("VGPU_SM_LIMIT", self.ceiling.to_string()),
        };
        if let Some(driver) = &self.simulated {
            command
                .env("LD_LIBRARY_PATH", driver)
                .env("VGPU_SIM_DIR", self.scratch.join("gpu"))
                .env("VGPU_SIM_PROFILE", "h200");
        }
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut child = command.spawn().map_err(|e| format!("{}: {e}", program.display()))?;
        let output = child.stdout.take().map(|out| BufReader::new(out).lines());
        Ok(Program { name, child, output, said: Vec::new() })
    }
}

/// A running program; dropping this value ends it.
pub struct Program {
    name: String,
    child: Child,
    output: Option<Lines<BufReader<ChildStdout>>>,
    said: Vec<String>,
}

impl Program {
    /// Process id of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Output of the program up to the line that begins with `last`.
    pub fn lines_until(&mut self, last: &str) -> Result<Vec<String>, Trouble> {
        for line in self.output.iter_mut().flatten() {
            let line = line.map_err(|e| format!("{}: {e}", self.name))?;
            self.said.push(line.clone());
            if line.starts_with(last) {
                return Ok(self.said.clone());
            }
        }
        Err(format!("{} ended before it said \"{last}\"; it said: {:?}", self.name, self.said))
    }

    /// Closes the program's input so that it ends; returns everything it printed.
    pub fn output(mut self) -> Result<Vec<String>, Trouble> {
        drop(self.child.stdin.take());
        let mut lines = std::mem::take(&mut self.said);
        for line in self.output.take().into_iter().flatten() {
            lines.push(line.map_err(|e| format!("{}: {e}", self.name))?);
        }
        match self.child.wait() {
            Ok(status) if status.success() => Ok(lines),
            Ok(status) => Err(format!("{} ended with {status}; it said: {lines:?}", self.name)),
            Err(e) => Err(format!("{}: {e}", self.name)),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The number of the line `key: number`; 0 if there is none.
pub fn number(lines: &[String], key: &str) -> u64 {
    value(lines, key).and_then(|text| text.parse().ok()).unwrap_or(if key == "left" { u64::MAX } else { 0 })
}

/// The percentage of the line `key: number %`.
pub fn percent(lines: &[String], key: &str) -> f64 {
    value(lines, key).and_then(|text| text.trim_end_matches(" %").parse().ok()).unwrap_or(0.0)
}

fn value<'a>(lines: &'a [String], key: &str) -> Option<&'a str> {
    lines.iter().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
}
