//! Reads /proc: which processes have a device file open, have the library mapped, and which container they run in.
//!
//! # Cost
//! For each process one system call, if the kernel reports the number of its descriptors (Linux 6.2) and that number
//! is 0, as for all threads of the kernel, or did not change. Otherwise its descriptors are read. Every
//! [`THOROUGH_EVERY`] looks they are read in any case, for a process that closes one file when it opens another. A
//! process's own name is used in messages only.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, readlinkat, statat};
use rustix::io::Errno;

use super::image::Image;
use vgpu_config::problem::escape_value;
use vgpu_control::finding::ProcessId;
use vgpu_control::place::{ProcessPlace, parse_cgroup};
use vgpu_engines::kubernetes::{ContainerFacts, PortionRule, PreloadedLibrary, missing_limit};

/// Rounds of the check after which all descriptors are read again, even if their number did not change.
pub const THOROUGH_EVERY: u32 = 16;

/// A process that has a device file open, or that the driver lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenProcess {
    /// Name of the process, as it chose it.
    pub name: String,
    /// Device file that the process has open; `None`: the driver listed the process.
    pub device: Option<String>,
    /// True if the library is mapped in the process as code; `None`: its memory map cannot be read.
    pub library: Option<bool>,
    /// Program that the process runs; `None`: it cannot be read.
    pub image: Option<Image>,
    /// Path of the program in the process's own mount namespace; `None`: it cannot be read.
    pub program: Option<PathBuf>,
    /// True if it has another root directory and another mount namespace than the host's first process. Services
    /// without access to parts of the file system have only another namespace.
    pub contained: bool,
    /// Path of the process's control group.
    pub group: String,
    /// Process ID in the process's own pid namespace; `None`: not known.
    pub inside: Option<u32>,
    /// Tenants whose socket directories are mounted in the process's mount namespace.
    pub tenants: Vec<String>,
    /// Limit that the variables of a process in a container ask for and that nothing keeps; `None`: there is none.
    pub missing_limit: Option<String>,
}

/// Reads /proc, and remembers results from one round of the check to the next.
#[derive(Debug)]
pub struct ProcessScanner {
    root: PathBuf,
    patterns: Vec<String>,
    /// Results of earlier rounds of the check, by process ID.
    known: HashMap<u32, KnownProcess>,
    looks: u32,
    /// True if the kernel reports the number of a process's descriptors.
    are_descriptors_counted: bool,
    /// Mount namespace and root directory of the host's first process. `None`: they cannot be read, so no process
    /// counts as in a container.
    host: Option<(PathBuf, (u64, u64))>,
}

/// Results for a process from earlier rounds of the check.
#[derive(Debug)]
struct KnownProcess {
    /// Inode of the process's list of descriptors in /proc. A later process with the same ID has another inode.
    inode: u64,
    /// Number of descriptors when they were read; 0: none, or the kernel does not report it.
    count: u64,
    /// Device file among the descriptors, with the process that has it open; `None`: none.
    holds: Option<(ProcessId, String)>,
    /// Number of the round of the check that saw the process last.
    look: u32,
}

impl ProcessScanner {
    /// Looks for files that match one of the patterns: `*` is any text without a slash, `[0-9]` a digit.
    #[must_use]
    pub fn new(patterns: &[String]) -> Self {
        // If /proc/1 cannot be read, use this process: a service without access to parts of the file system has the
        // host's root.
        let host = world_of(Path::new("/proc/1")).or_else(|| world_of(Path::new("/proc/self")));
        let (root, patterns) = (PathBuf::from("/proc"), patterns.to_vec());
        // This process has descriptors.
        let are_descriptors_counted = fs::metadata("/proc/self/fd").is_ok_and(|meta| meta.size() > 0);
        Self { root, patterns, known: HashMap::new(), looks: 0, are_descriptors_counted, host }
    }

    /// The processes that have a device file open, except this one.
    ///
    /// # Errors
    /// A message: /proc cannot be read.
    pub fn device_holders(&mut self) -> Result<Vec<(ProcessId, String)>, String> {
        let fail = |why: Errno| format!("{}: {why}", self.root.display());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.root, flags, Mode::empty()).map_err(fail)?;
        let entries = Dir::read_from(&root).map_err(fail)?;
        let (own, mut files) = (std::process::id(), String::new());
        let thorough = self.looks.is_multiple_of(THOROUGH_EVERY);
        self.looks = self.looks.wrapping_add(1);
        let look = self.looks;
        let mut found = Vec::new();
        for entry in entries.flatten() {
            let Some(pid) = entry.file_name().to_str().ok().and_then(|name| name.parse::<u32>().ok()) else { continue };
            if pid == own {
                continue;
            }
            files.clear();
            let _ = write!(files, "{pid}/fd");
            let Ok(stat) = statat(&root, files.as_str(), AtFlags::empty()) else { continue };
            let (inode, count) = (stat.st_ino, u64::try_from(stat.st_size).unwrap_or(0));
            if count == 0 && self.are_descriptors_counted {
                continue;
            }
            let before = self.known.get_mut(&pid).filter(|known| known.inode == inode && known.count == count);
            match before.filter(|_| count != 0 && !thorough) {
                Some(known) => {
                    known.look = look;
                    found.extend(known.holds.clone());
                }
                None => {
                    let holds =
                        self.device_among(&root, &files).and_then(|device| Some((self.process_by_pid(pid)?, device)));
                    found.extend(holds.clone());
                    self.known.insert(pid, KnownProcess { inode, count, holds, look });
                }
            }
        }
        self.known.retain(|_, known| known.look == look);
        Ok(found)
    }

    /// The process with this ID, if it exists.
    #[must_use]
    pub fn process_by_pid(&self, pid: u32) -> Option<ProcessId> {
        ProcessStat::read(&self.root.join(pid.to_string())).map(|stat| ProcessId { pid, began: stat.began })
    }

    /// The program that a process runs; `None`: it cannot be read, or the process is about to end.
    #[must_use]
    pub fn image_of(&self, pid: u32) -> Option<Image> {
        image_below(&self.root, pid)
    }

    /// The first device file among a process's descriptors. `files`: their directory, below that of all processes.
    fn device_among(&self, root: &OwnedFd, files: &str) -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let files = openat(root, files, flags, Mode::empty()).ok()?;
        let mut target = Vec::new();
        Dir::read_from(&files).ok()?.flatten().find_map(|entry| {
            target = readlinkat(&files, entry.file_name(), std::mem::take(&mut target)).ok()?.into_bytes();
            let target = OsStr::from_bytes(&target);
            let target = target.to_str()?;
            let target = target.strip_suffix(" (deleted)").unwrap_or(target);
            self.patterns.iter().any(|pattern| matches_pattern(pattern, target)).then(|| escape_value(target))
        })
    }

    /// Reads the details of one process. `dirs`: locations of the tenants' socket directories.
    #[must_use]
    pub fn look_at_process(
        &self,
        process: ProcessId,
        device: Option<String>,
        dirs: &[(DirectoryPlace, String)],
    ) -> SeenProcess {
        let at = self.root.join(process.pid.to_string());
        let text = |name: &str| fs::read(at.join(name)).map(|text| String::from_utf8_lossy(&text).into_owned());
        let thread = thread_with_memory(&at).map_or_else(|| at.clone(), |(thread, _)| thread);
        let maps = fs::read(thread.join("maps")).unwrap_or_default();
        let maps = String::from_utf8_lossy(&maps);
        let group = text("cgroup").unwrap_or_default();
        let world = world_of(&at);
        let contained = self.host.as_ref().zip(world).is_some_and(|(host, here)| host.0 != here.0 && host.1 != here.1);
        let mounts = if dirs.is_empty() { String::new() } else { text("mountinfo").unwrap_or_default() };
        let library = (!maps.is_empty()).then(|| maps.lines().any(is_library));
        let tenants = mounted_directories(&mounts, dirs);
        let variables = if contained { text("environ").unwrap_or_default() } else { String::new() };
        SeenProcess {
            name: escape_value(text("comm").unwrap_or_default().trim_end()),
            device,
            library,
            image: self.image_of(process.pid),
            program: fs::read_link(thread.join("exe")).ok(),
            contained,
            group: group.lines().find_map(|line| line.splitn(3, ':').nth(2)).unwrap_or_default().to_owned(),
            inside: innermost_pid(&text("status").unwrap_or_default()),
            missing_limit: limit_of_variables(&variables, !tenants.is_empty(), library == Some(true)),
            tenants,
        }
    }
}

/// The limit that the text of `environ` asks for and that nothing keeps.
fn limit_of_variables(environ: &str, has_tenant: bool, has_library: bool) -> Option<String> {
    let variables: Vec<String> = environ.split_terminator('\0').map(str::to_owned).collect();
    let annotations = HashMap::new();
    let facts = ContainerFacts { name: "", annotations: &annotations, variables: &variables, has_tenant };
    let library = if has_library { PreloadedLibrary::Ours } else { PreloadedLibrary::Missing };
    // vgpud does not know the rule of an NRI plugin, so a portion counts as a limit.
    missing_limit(facts, PortionRule::Limit, library)
}

/// The process of the host with this ID, if it exists.
#[must_use]
pub fn read_process(pid: u32) -> Option<ProcessId> {
    let stat = ProcessStat::read(&Path::new("/proc").join(pid.to_string()))?;
    Some(ProcessId { pid, began: stat.began })
}

/// Container and pod of a process of the host, by its control group; `None`: it is in none, or has ended.
///
/// # Cost
/// Reads two files that the kernel generates.
#[must_use]
pub fn read_place(process: ProcessId) -> Option<ProcessPlace> {
    place_below(Path::new("/proc"), process)
}

fn place_below(root: &Path, process: ProcessId) -> Option<ProcessPlace> {
    let at = root.join(process.pid.to_string());
    let place = parse_cgroup(&fs::read_to_string(at.join("cgroup")).ok()?);
    // Another process may have the number by now.
    let is_same = ProcessStat::read(&at).is_some_and(|stat| stat.began == process.began);
    (is_same && place != ProcessPlace::default()).then_some(place)
}

/// The program that a process of the host runs, as [`ProcessScanner::image_of`].
///
/// # Cost
/// Two system calls, and a file that the kernel generates.
#[must_use]
pub fn read_image(pid: u32) -> Option<Image> {
    image_below(Path::new("/proc"), pid)
}

fn image_below(root: &Path, pid: u32) -> Option<Image> {
    let at = root.join(pid.to_string());
    let began = ProcessStat::read(&at)?.began;
    let (thread, ProcessStat { code, stack, .. }) = thread_with_memory(&at)?;
    let program = fs::metadata(thread.join("exe")).map_or((0, 0), |file| (file.dev(), file.ino()));
    Some(Image { process: ProcessId { pid, began }, program, code, stack })
}

/// Data of a process or thread from its `stat`.
struct ProcessStat {
    /// Start time, in ticks since boot.
    began: u64,
    /// Start address of the code; 0: it has no memory any more, 1: reading it is not permitted.
    code: u64,
    /// Start address of the stack.
    stack: u64,
}

impl ProcessStat {
    fn read(at: &Path) -> Option<Self> {
        let text = fs::read(at.join("stat")).ok()?;
        // The name in brackets may contain any character, even brackets.
        let after = text.iter().rposition(|byte| *byte == b')')?;
        let rest = String::from_utf8_lossy(text.get(after + 1..)?).into_owned();
        let mut words = rest.split_ascii_whitespace();
        let began = words.nth(19)?.parse().ok()?;
        let code = words.nth(3)?.parse().ok()?;
        let stack = words.nth(1)?.parse().ok()?;
        Some(Self { began, code, stack })
    }
}

/// A thread of a process that still has its memory. The first thread may end before the others; then /proc shows no
/// memory for it.
fn thread_with_memory(at: &Path) -> Option<(PathBuf, ProcessStat)> {
    let first = ProcessStat::read(at)?;
    if first.code != 0 {
        return Some((at.to_owned(), first));
    }
    let threads = fs::read_dir(at.join("task")).ok()?.flatten().map(|thread| thread.path());
    threads.filter_map(|thread| ProcessStat::read(&thread).map(|stat| (thread, stat))).find(|(_, stat)| stat.code != 0)
}

/// The process ID in the innermost pid namespace, from the `NSpid` line of `status`.
fn innermost_pid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().next_back()?.parse().ok()
}

/// A process's mount namespace, and its root directory by device and inode.
fn world_of(at: &Path) -> Option<(PathBuf, (u64, u64))> {
    let root = fs::metadata(at.join("root/.")).ok()?;
    Some((fs::read_link(at.join("ns/mnt")).ok()?, (root.dev(), root.ino())))
}

/// Location of a directory, independent of its name: the number of its file system, and its path within that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryPlace {
    system: String,
    path: Vec<u8>,
}

/// Location of the directory that has this path in this mountinfo.
#[must_use]
pub fn directory_place(mounts: &str, dir: &Path) -> Option<DirectoryPlace> {
    let entries = mounts.lines().filter_map(MountLine::read);
    // Of several mounts at one point, the last one is visible.
    let over = entries.filter_map(|mount| {
        let rest = dir.strip_prefix(OsStr::from_bytes(&mount.point)).ok()?.to_owned();
        Some((mount, rest))
    });
    let (mount, rest) = over.max_by_key(|(mount, _)| mount.point.len())?;
    let path = Path::new(OsStr::from_bytes(&mount.root)).join(rest);
    // Collecting the parts again removes a trailing slash.
    let path = path.components().collect::<PathBuf>().into_os_string().into_vec();
    Some(DirectoryPlace { system: mount.system, path })
}

/// Tenants whose directories are mounts in this mountinfo. Only the kernel's table counts: reading a path inside the
/// process's own tree could block for ever, or lead elsewhere.
fn mounted_directories(mounts: &str, dirs: &[(DirectoryPlace, String)]) -> Vec<String> {
    let mut found = Vec::new();
    for mount in mounts.lines().filter_map(MountLine::read) {
        let here = DirectoryPlace { system: mount.system, path: mount.root };
        found.extend(dirs.iter().filter(|(place, _)| *place == here).map(|(_, tenant)| tenant.clone()));
    }
    found
}

/// A line of mountinfo.
struct MountLine {
    system: String,
    root: Vec<u8>,
    point: Vec<u8>,
}

impl MountLine {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ').skip(2);
        let (system, root, point) = (words.next()?, words.next()?, words.next()?);
        Some(Self { system: system.to_owned(), root: unescape_path(root), point: unescape_path(point) })
    }
}

/// True if a line of `maps` names the library, mapped as code.
fn is_library(line: &str) -> bool {
    let mut words = line.splitn(6, ' ').skip(1);
    if words.next().is_none_or(|rights| !rights.contains('x')) {
        return false;
    }
    let path = words.nth(3).unwrap_or_default().trim_start();
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    Path::new(path).file_name().is_some_and(|name| {
        let name = name.as_bytes();
        // After an upgrade by rename, the old file has another name.
        name == b"libvgpu.so" || name.starts_with(b"libvgpu.so.")
    })
}

/// Decodes a path of mountinfo, where a blank is `\040`.
fn unescape_path(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut path = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 4).filter(|digits| byte == b'\\' && digits.iter().all(u8::is_ascii_digit));
        let code = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        path.push(code.unwrap_or(byte));
        at += if code.is_some() { 4 } else { 1 };
    }
    path
}

/// True if a path matches a pattern: `*` is any text without a slash, `[0-9]` a digit.
#[must_use]
pub fn matches_pattern(pattern: &str, path: &str) -> bool {
    if let Some(rest) = pattern.strip_prefix("[0-9]") {
        return path.starts_with(|first: char| first.is_ascii_digit()) && matches_pattern(rest, &path[1..]);
    }
    match (pattern.chars().next(), path.chars().next()) {
        (None, None) => true,
        (Some('*'), first) => {
            let rest = &pattern[1..];
            matches_pattern(rest, path)
                || first.is_some_and(|first| first != '/' && matches_pattern(pattern, &path[first.len_utf8()..]))
        }
        (Some(wanted), Some(first)) if wanted == first => {
            matches_pattern(&pattern[wanted.len_utf8()..], &path[first.len_utf8()..])
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_what_they_say_and_no_other_file() {
        for (pattern, path, is) in [
            ("/dev/nvidia[0-9]*", "/dev/nvidia0", true),
            ("/dev/nvidia[0-9]*", "/dev/nvidia12", true),
            ("/dev/nvidia[0-9]*", "/dev/nvidiactl", false),
            ("/dev/nvidia[0-9]*", "/dev/nvidia-uvm", false),
            ("/dev/nvidia-uvm", "/dev/nvidia-uvm", true),
            ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", false),
            ("/dev/*", "/dev/a/b", false),
            ("/d\u{e9}*x", "/d\u{e9}\u{e9}x", true),
            ("", "", true),
        ] {
            assert_eq!(matches_pattern(pattern, path), is, "{pattern} {path}");
        }
    }

    #[test]
    fn who_opens_a_file_is_seen_and_who_closes_it_is_seen_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("nvidia0");
        fs::write(&device, "").unwrap();
        let pattern = format!("{}/nvidia[0-9]*", dir.path().display());
        let mut processes = ProcessScanner::new(&[pattern]);
        assert_eq!(processes.device_holders().unwrap(), []);
        let script = "exec 9<\"$1\"; echo on; read _; exec 9<&-; echo off; read _";
        let mut child = std::process::Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&device)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        use std::io::{BufRead as _, Write as _};
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "on");
        let found = processes.device_holders().unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].0.pid, found[0].1.as_str()), (child.id(), device.to_str().unwrap()));
        assert_eq!(processes.device_holders().unwrap(), found, "from memory");
        let seen = processes.look_at_process(found[0].0, Some(found[0].1.clone()), &[]);
        assert!(seen.library == Some(false) && !seen.contained && seen.program.is_some(), "{seen:?}");
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"\n").unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "off");
        assert_eq!(processes.device_holders().unwrap(), []);
        drop(stdin);
        child.wait().unwrap();
        assert!(processes.process_by_pid(child.id()).is_none());
    }

    /// The number of descriptors stays the same, but one is another file.
    #[test]
    fn who_closes_one_file_and_opens_a_devices_between_two_looks_is_seen_at_the_next_thorough_one() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("nvidia0");
        fs::write(&device, "").unwrap();
        let mut processes = ProcessScanner::new(&[format!("{}/nvidia[0-9]*", dir.path().display())]);
        let script = "exec 9</dev/null; echo on; read _; exec 9<\"$1\"; echo other; read _";
        let mut child = std::process::Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&device)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        use std::io::{BufRead as _, Write as _};
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "on");
        assert_eq!(processes.device_holders().unwrap(), []);
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"\n").unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "other");
        let looks = (1..=THOROUGH_EVERY)
            .find(|_| processes.device_holders().unwrap().iter().any(|(one, _)| one.pid == child.id()));
        assert!(looks.is_some(), "not within {THOROUGH_EVERY} looks");
        drop(stdin);
        child.wait().unwrap();
    }

    #[test]
    fn a_process_has_another_image_when_it_runs_a_program_again_and_the_same_until_then() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "echo on; read _; exec sh -c 'echo again; read _'"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        use std::io::{BufRead as _, Write as _};
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "on");
        let first = read_image(child.id()).unwrap();
        assert_eq!(read_image(child.id()), Some(first));
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"\n").unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "again");
        let second = read_image(child.id()).unwrap();
        assert_eq!((first.process, first.program), (second.process, second.program), "the same process and program");
        assert_ne!(first, second);
        drop(stdin);
        child.wait().unwrap();
        assert_eq!(read_image(child.id()), None);
    }

    /// /proc shows no memory for a first thread that has ended.
    #[test]
    fn a_process_whose_first_thread_ended_is_looked_at_by_another_thread() {
        let script = "import ctypes,os,threading,time\n\
            libc=ctypes.CDLL(None)\n\
            def go():\n \
             while open('/proc/self/stat').read().split(')')[1].split()[0]!='Z': time.sleep(0.01)\n \
             os.write(1,b'on\\n'); os.read(0,1); os._exit(0)\n\
            print('both',flush=True); os.read(0,1); threading.Thread(target=go).start(); libc.pthread_exit(None)";
        let mut child = std::process::Command::new("python3")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        use std::io::{BufRead as _, Write as _};
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "both");
        let first = read_image(child.id()).unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"\n").unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "on");
        assert_eq!(read_image(child.id()), Some(first));
        let seen = ProcessScanner::new(&[]).look_at_process(first.process, None, &[]);
        assert!(seen.library == Some(false) && seen.program.is_some(), "{seen:?}");
        drop(stdin);
        child.wait().unwrap();
    }

    #[test]
    fn the_pod_of_a_process_is_told_unless_another_process_has_its_number() {
        let root = tempfile::tempdir().unwrap();
        let (at, pod) = (root.path().join("40"), "7ac1d5a2-9b42-4f4c-8d0a-52a1b7e3c111");
        fs::create_dir(&at).unwrap();
        fs::copy("/proc/self/stat", at.join("stat")).unwrap();
        fs::write(at.join("cgroup"), format!("0::/kubepods/pod{pod}/{}\n", "a".repeat(64))).unwrap();
        let process = ProcessId { pid: 40, began: read_process(std::process::id()).unwrap().began };
        assert_eq!(place_below(root.path(), process).and_then(|place| place.pod).as_deref(), Some(pod));
        assert_eq!(place_below(root.path(), ProcessId { began: process.began + 1, ..process }), None);
        fs::write(at.join("cgroup"), "0::/\n").unwrap();
        assert_eq!(place_below(root.path(), process), None);
    }

    #[test]
    fn variables_ask_for_a_limit_that_neither_a_tenant_nor_the_library_keeps() {
        let environ = "PATH=/bin\0CUDA_DEVICE_MEMORY_LIMIT=3000m\0";
        let missing = limit_of_variables(environ, false, false);
        assert_eq!(missing.as_deref(), Some("CUDA_DEVICE_MEMORY_LIMIT=3000m"));
        assert_eq!(limit_of_variables(environ, false, true), None);
        assert_eq!(limit_of_variables(environ, true, false), None);
        assert_eq!(limit_of_variables("", false, false), None);
        let managers = "CUDA_MEM_LIMIT_0=1g\0";
        assert_eq!(limit_of_variables(managers, false, true).as_deref(), Some("CUDA_MEM_LIMIT_0=1g"));
    }

    #[test]
    fn a_process_has_its_number_of_the_innermost_namespace() {
        assert_eq!(innermost_pid("Name:\tx\nNSpid:\t4711\t12\t3\nVmPeak:\t1 kB\n"), Some(3));
        assert_eq!(innermost_pid("Name:\tNSpid:\n"), None);
    }

    #[test]
    fn a_library_is_told_from_others_by_the_name_of_its_file() {
        let line =
            |path: &str| format!("7f0000000000-7f0000001000 r-xp 00000000 08:01 1234                     {path}");
        for (path, is) in [
            ("/usr/local/lib/vgpu/libvgpu.so", true),
            ("/a b/libvgpu.so (deleted)", true),
            ("/x/libvgpu.so.new (deleted)", true),
            ("/x/libvgpu.so/other", false),
            ("/x/notlibvgpu.so", false),
            ("[stack]", false),
        ] {
            assert_eq!(is_library(&line(path)), is, "{path}");
        }
        let as_data = "7f0000000000-7f0000001000 r--p 00000000 08:01 1234                     /x/libvgpu.so";
        assert!(!is_library(as_data), "its bytes are no code there");
        assert_eq!(unescape_path(r"/a\040b\\c"), b"/a b\\\\c");
    }

    #[test]
    fn a_tenants_directory_is_known_by_where_it_lies_and_not_by_what_it_is_called() {
        let host = "22 1 8:1 / / rw - ext4 /dev/vda rw\n30 22 0:25 / /run rw - tmpfs tmpfs rw\n";
        let at = directory_place(host, Path::new("/run/vgpu/tenants/a")).unwrap();
        assert_eq!(at, DirectoryPlace { system: "0:25".into(), path: b"/vgpu/tenants/a".to_vec() });
        let dirs = [(at, "a".to_owned())];
        let inside =
            "1 0 0:40 / / rw - overlay overlay rw\n2 1 0:25 /vgpu/tenants/a /given\\040here ro - tmpfs tmpfs rw\n";
        assert_eq!(mounted_directories(inside, &dirs), ["a"]);
        for other in ["2 1 0:25 /vgpu/tenants/ab /g ro\n", "2 1 0:26 /vgpu/tenants/a /g ro\n", "nonsense\n"] {
            assert!(mounted_directories(other, &dirs).is_empty(), "{other}");
        }
    }
}
