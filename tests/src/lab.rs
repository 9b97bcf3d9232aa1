//! An isolated environment for each test: a simulated machine, a directory for ledgers, and environment variables. No
//! variable of vgpu is set beyond those that the test asks for.

use crate::artefacts::{libvgpu, scratch, sim_dir};
use crate::member::Member;
use crate::program::{Kind, compile};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;
use vgpu_sim::truth::{DeviceTruth, MachineTruth, ProcessTruth};
use vgpu_sim::{MachineView, truth};

/// A simulated machine, a tenant's state directory and an environment. Dropping it removes all of them.
pub struct Lab {
    dir: TempDir,
    env: Vec<(String, OsString)>,
    preload: Vec<PathBuf>,
    uid: Option<u32>,
    lib: PathBuf,
    sim: PathBuf,
}

impl Lab {
    /// A machine with the devices of `profile` (`h200`, `2xt4`, `t4,h200`), with the library preloaded.
    pub fn new(profile: &str) -> Lab {
        let dir = TempDir::new().expect("a temporary directory");
        for part in ["gpu", "state"] {
            fs::create_dir(dir.path().join(part)).expect("a directory");
        }
        drop(MachineView::open_at(&dir.path().join("gpu"), Some(profile)).expect("a simulated machine"));
        let lib = libvgpu();
        Lab { preload: vec![lib.clone()], lib, sim: sim_dir(), env: Vec::new(), uid: None, dir }
    }

    /// Sets `name=value` in the environment of every program started from now on.
    pub fn with(mut self, name: &str, value: impl AsRef<OsStr>) -> Lab {
        self.set(name, value);
        self
    }

    /// As [`Lab::with`], for a lab that is not moved.
    pub fn set(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.env.retain(|(n, _)| n != name);
        self.env.push((name.to_owned(), value.as_ref().to_owned()));
    }

    /// Removes `name` from that environment.
    pub fn unset(&mut self, name: &str) {
        self.env.retain(|(n, _)| n != name);
    }

    /// True if a memory limit is set and the library is preloaded to enforce it.
    pub fn limited(&self) -> bool {
        !self.preload.is_empty() && self.env.iter().any(|(name, _)| name == "VGPU_MEMORY_LIMIT")
    }

    /// Preloads these libraries, in this order, instead of only libvgpu.so.
    pub fn preload(&mut self, libraries: &[&Path]) {
        self.preload = libraries.iter().map(|p| (*p).to_owned()).collect();
    }

    /// Opens the lab to every user: directories with access for all, and copies of the libraries that everybody can
    /// read.
    pub fn for_every_user(mut self) -> Lab {
        let root = self.dir.path().to_owned();
        let open = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("own files");
        open(&root, 0o755);
        open(&self.gpu(), 0o777);
        open(&self.state(), 0o1777);
        let copies = root.join("lib");
        fs::create_dir(&copies).expect("a directory");
        let copy = |from: &Path, name: &str| {
            fs::copy(from, copies.join(name)).expect("a copy");
            open(&copies.join(name), 0o755);
        };
        copy(&self.lib, "libvgpu.so");
        copy(&self.sim.join("libcuda.so.1"), "libcuda.so.1");
        copy(&self.sim.join("libnvidia-ml.so.1"), "libnvidia-ml.so.1");
        copy(&compile("member", Kind::Program, &[]), "member");
        self.lib = copies.join("libvgpu.so");
        self.preload = vec![self.lib.clone()];
        self.sim = copies;
        self
    }

    /// Runs every program started from now on as user `uid`.
    pub fn become_user(&mut self, uid: u32) {
        self.uid = Some(uid);
    }

    /// Copies the simulated driver and renames the given functions in the copy, so that lookups do not find them.
    pub fn driver_without(&self, names: &[&str]) -> PathBuf {
        let dir = self.path().join("driver");
        fs::create_dir(&dir).unwrap();
        let mut bytes = fs::read(sim_dir().join("libcuda.so.1")).unwrap();
        for name in names {
            let wanted = [b"\0", name.as_bytes(), b"\0"].concat();
            let at: Vec<usize> = (0..bytes.len() - wanted.len()).filter(|&i| bytes[i..].starts_with(&wanted)).collect();
            assert!(!at.is_empty(), "{name} stands in the driver's names");
            at.iter().for_each(|&i| bytes[i + 1] = b'X');
        }
        fs::write(dir.join("libcuda.so.1"), bytes).unwrap();
        fs::copy(sim_dir().join("libnvidia-ml.so.1"), dir.join("libnvidia-ml.so.1")).unwrap();
        dir
    }

    /// Uses this directory of driver libraries instead of the built one.
    pub fn with_driver(&mut self, dir: &Path) {
        self.sim = dir.to_owned();
    }

    /// Directory that belongs to this test alone.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Directory of the simulated machine's state.
    pub fn gpu(&self) -> PathBuf {
        self.dir.path().join("gpu")
    }

    /// Directory of the library's ledgers.
    pub fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Path of the preloaded library.
    pub fn lib(&self) -> &Path {
        &self.lib
    }

    /// Runs `program` as a member: the library preloaded, the simulated driver on the loader's path, limits as set.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.with_libraries(program.as_ref(), &self.preload)
    }

    /// As [`Lab::command`] without the library, to see the driver's own behaviour.
    pub fn bare(&self, program: impl AsRef<OsStr>) -> Command {
        self.with_libraries(program.as_ref(), &[])
    }

    /// Runs `program` with the simulated driver on the loader's path and `preload` preloaded.
    fn with_libraries(&self, program: &OsStr, preload: &[PathBuf]) -> Command {
        let emulator = emulator_of(program);
        let mut c = Command::new(emulator.as_deref().unwrap_or(program));
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["VGPU_", "CUDA_", "NVIDIA_", "LD_"].iter().any(|begin| text.starts_with(begin)) {
                c.env_remove(&name);
            }
        }
        let mut loader = vec![("LD_LIBRARY_PATH", self.sim.clone().into_os_string())];
        if !preload.is_empty() {
            loader.push(("LD_PRELOAD", std::env::join_paths(preload).expect("no colon in paths")));
        }
        if emulator.is_some() {
            // The loader of the emulator itself cannot use libraries of the other machine.
            let words: Vec<OsString> =
                loader.into_iter().map(|(name, value)| [name.into(), value].join("=".as_ref())).collect();
            c.arg(program).env("QEMU_SET_ENV", words.join(",".as_ref()));
        } else {
            c.envs(loader);
        }
        c.env("VGPU_SIM_DIR", self.gpu())
            .env("VGPU_STATE_DIR", self.state())
            .env("LC_ALL", "C.UTF-8")
            .env("TERM", "dumb")
            .envs(self.env.iter().map(|(n, v)| (n, v)))
            .stdin(Stdio::null());
        if let Some(uid) = self.uid {
            c.uid(uid).gid(uid); // root's other groups go with the change of user
        }
        c
    }

    /// Starts a process on the device that finds the driver's functions by `dlsym`.
    pub fn member(&self) -> Member {
        self.member_by("dlsym")
    }

    /// Starts a process on the device that finds the driver's functions by `door`: `dlsym`, `dlvsym`, `default`,
    /// `get1`, `get2` or `linked`.
    pub fn member_by(&self, door: &str) -> Member {
        Member::start(self.command(self.member_program(door)).arg(door))
    }

    /// Starts a process on the device without the library.
    pub fn bare_member(&self) -> Member {
        Member::start(self.bare(self.member_program("dlsym")).arg("dlsym"))
    }

    fn member_program(&self, door: &str) -> PathBuf {
        let copied = self.sim.join("member");
        if door != "linked" && copied.exists() {
            return copied;
        }
        compile("member", if door == "linked" { Kind::Linked } else { Kind::Program }, &[])
    }

    /// The simulated machine's own record of every allocation, now.
    pub fn truth(&self) -> MachineTruth {
        truth::read(&self.gpu()).expect("the simulated machine")
    }

    /// The record of device `index`.
    pub fn device(&self, index: usize) -> DeviceTruth {
        self.truth().devices.swap_remove(index)
    }

    /// Stops a member with SIGSTOP at any instruction of its own code.
    ///
    /// A real driver holds its locks in the kernel, where a signal stops nobody. The simulated machine's lock is held
    /// in user space. So this function takes that lock first, which lets a member inside the machine leave it.
    #[track_caller]
    pub fn stop(&self, member: &Member) {
        let machine = MachineView::open_at(&self.gpu(), None).expect("the simulated machine");
        let _inside_is_nobody = machine.lock();
        member.signal(libc::SIGSTOP);
        member.stands();
    }

    /// The record of a living process on device `index`.
    pub fn process(&self, index: usize, pid: u32) -> ProcessTruth {
        let truth = self.truth();
        truth
            .living_process(index, pid)
            .unwrap_or_else(|| panic!("process {pid} is not on the device: {truth:?}"))
            .clone()
    }
}

/// The emulator that runs a test program of another machine, if the tests are to use one; other programs run as they
/// are.
fn emulator_of(program: &OsStr) -> Option<OsString> {
    std::env::var_os("VGPU_TEST_EMULATOR").filter(|_| Path::new(program).starts_with(scratch()))
}

/// Bytes of all living processes on a device that count against a limit: slabs taken for requests, and context
/// overhead.
pub fn charged(device: &DeviceTruth) -> u64 {
    device.processes.iter().map(|p| p.slab_bytes + p.overhead_bytes).sum()
}

/// Bytes that a program sees as used when `charged` bytes count against `limit`: the free rest is shown in whole slabs
/// of 2 MiB.
pub fn shown(limit: u64, charged: u64) -> u64 {
    limit - limit.saturating_sub(charged) / (2 << 20) * (2 << 20)
}

/// One line about a device for messages. Finished processes are left out: there can be thousands.
pub fn short(device: &DeviceTruth) -> String {
    let one = |p: &ProcessTruth| {
        format!("pid {}: {} live in {}, overhead {}", p.pid, p.live_bytes, p.allocations, p.overhead_bytes)
    };
    format!("{} used; {}", device.used, device.processes.iter().map(one).collect::<Vec<_>>().join("; "))
}

impl Lab {
    /// Passes a descriptor to another process, which must receive it. Returns its number there.
    #[track_caller]
    pub fn pass_descriptor(&self, from: &mut Member, descriptor: u64, to: &mut Member) -> u64 {
        let path = self.path().join(format!("socket-{}", to.pid));
        if !path.exists() {
            to.ok(&format!("serve {}", path.display()));
        }
        from.ok(&format!("send {descriptor} {}", path.display()));
        to.ok("take").number(0)
    }
}
