//! A Slurm of this host: munged, slurmctld, two slurmd, and for each node a simulated device and a vgpud. Dropping it
//! ends all of their processes and removes their files.

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use vgpu_tests::artefacts::{checkout, vgpu};
use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::{LONG_TIMEOUT, Lab, eventually, eventually_seen, text};

/// The users of the jobs: `nobody` and `daemon`, which every system has.
pub const NOBODY: u32 = 65534;
pub const DAEMON_USER: u32 = 1;
/// Pause between two questions to Slurm.
const POLL: Duration = Duration::from_millis(50);

/// A node: its device, its vgpud and its slurmd.
pub struct Node {
    pub name: &'static str,
    pub lab: Lab,
    pub daemon: Daemon,
    slurmd: Option<Child>,
}

pub struct Cluster {
    dir: TempDir,
    nodes: [RefCell<Node>; 2],
    children: Vec<Child>,
}

fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["VGPU_", "SLURM", "CUDA_", "LD_"].iter().any(|begin| text.starts_with(begin)) {
            command.env_remove(&name);
        }
    }
    command.env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
    // SAFETY: the call only concerns the child itself, and a test that dies leaves no daemon behind.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    command
}

fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("own file");
}

impl Cluster {
    /// Starts everything and waits until both nodes are idle.
    pub fn start() -> Cluster {
        let dir = TempDir::new().expect("a temporary directory");
        open_to_all(dir.path(), 0o755);
        for part in ["munge", "ctld", "dev", "jobs", "scripts"] {
            fs::create_dir(dir.path().join(part)).expect("a directory");
        }
        open_to_all(&dir.path().join("jobs"), 0o1777);
        let node = |name: &'static str| {
            let lab = Lab::new("h200").for_every_user();
            let plan = Plan { device: lab.device(0).uuid, time: String::new(), tenants: Vec::new() };
            let daemon = Daemon::start_on_machine(&lab, &plan);
            RefCell::new(Node { name, lab, daemon, slurmd: None })
        };
        let mut cluster = Cluster { nodes: [node("n1"), node("n2")], children: Vec::new(), dir };
        cluster.write_files();
        cluster.start_munged();
        let slurmctld = cluster.daemon_command("/usr/sbin/slurmctld", &["-D", "-i"]).spawn().expect("slurmctld");
        cluster.children.push(slurmctld);
        for index in 0..2 {
            cluster.start_slurmd(index);
        }
        let states = || text(&cluster.slurm("sinfo", &["-h", "-N", "-o", "%N %T %E"]));
        eventually_seen("both nodes are idle", states, || {
            let states = cluster.slurm("sinfo", &["-h", "-N", "-o", "%T"]).stdout;
            String::from_utf8_lossy(&states).split_whitespace().collect::<Vec<_>>() == ["idle", "idle"]
        });
        cluster
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn node(&self, index: usize) -> std::cell::Ref<'_, Node> {
        self.nodes[index].borrow()
    }

    pub fn node_mut(&self, index: usize) -> std::cell::RefMut<'_, Node> {
        self.nodes[index].borrow_mut()
    }

    fn daemon_command(&self, program: &str, arguments: &[&str]) -> Command {
        let log = OpenOptions::new().create(true).append(true).open(self.path().join("log")).expect("own file");
        let mut command = clean(program);
        let errors = log.try_clone().expect("a descriptor");
        command.args(arguments).env("SLURM_CONF", self.path().join("slurm.conf")).stdout(log).stderr(errors);
        command
    }

    fn start_munged(&mut self) {
        let munge = self.path().join("munge");
        fs::write(munge.join("key"), [7; 1024]).expect("own file");
        open_to_all(&munge.join("key"), 0o400);
        let file = |name: &str| munge.join(name).display().to_string();
        let (key, pid, log, seed) = (file("key"), file("pid"), file("log"), file("seed"));
        let mut arguments =
            vec!["-F", "--key-file", &key, "--pid-file", &pid, "--log-file", &log, "--seed-file", &seed];
        let socket = file("sock");
        arguments.extend(["--socket", &socket]);
        let munged = self.daemon_command("/usr/sbin/munged", &arguments).spawn().expect("munged");
        self.children.push(munged);
        eventually("munged listens", || Path::new(&socket).exists());
    }

    /// Starts the slurmd of a node.
    pub fn start_slurmd(&self, index: usize) {
        let mut node = self.node_mut(index);
        let arguments = ["-D", "-N", node.name];
        node.slurmd = Some(self.daemon_command("/usr/sbin/slurmd", &arguments).spawn().expect("slurmd"));
    }

    /// Kills the slurmd of a node with SIGKILL. Its jobs go on.
    pub fn kill_slurmd(&self, index: usize) {
        let mut slurmd = self.node_mut(index).slurmd.take().expect("it runs");
        slurmd.kill().expect("a child");
        slurmd.wait().expect("a child");
    }

    fn write_files(&self) {
        let dir = self.path().display();
        // Held until all are known, so that they differ.
        let held: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let ports: Vec<u16> = held.iter().map(|port| port.local_addr().expect("a port").port()).collect();
        let device = self.path().join("dev/nvidia0");
        vgpu_tests::run(Command::new("mknod").arg(&device).args(["c", "1", "3"]));
        let mut conf = format!(
            "ClusterName=test\nSlurmctldHost=localhost\nSlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\n\
             CredType=cred/munge\nAuthInfo=socket={dir}/munge/sock\nSlurmctldPort={}\nSlurmctldPidFile={dir}/ctld.pid\n\
             SlurmctldLogFile={dir}/ctld.log\nStateSaveLocation={dir}/ctld\nSlurmdPidFile={dir}/%n.pid\n\
             SlurmdLogFile={dir}/%n.log\nSlurmdSpoolDir={dir}/spool-%n\nSlurmdParameters=config_overrides\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectTypeParameters=CR_Core\n\
             SchedulerParameters=sched_min_interval=0,sched_interval=1,batch_sched_delay=0\nReturnToService=2\nMpiDefault=none\nKillWait=2\n\
             JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\nMailProg=/bin/true\n",
            ports[0]
        );
        // The lines of the example are used as they are, but for its paths and its nodes.
        for line in shipped("slurm.conf.example").lines().filter(|line| !line.starts_with("NodeName=")) {
            conf.push_str(&line.replace("/etc/slurm/vgpu", &format!("{dir}/scripts")));
            conf.push('\n');
        }
        for (node, port) in self.nodes.iter().zip(&ports[1..]) {
            conf.push_str(&format!(
                "NodeName={} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8 Gres=gpu:1,shard:4,vgpu_mem:140G\n",
                node.borrow().name
            ));
        }
        conf.push_str("PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP\n");
        fs::write(self.path().join("slurm.conf"), conf).expect("own file");
        let gres = shipped("gres.conf.example").replace("gpu[01-04]", "n1,n2").replace("80G", "140G");
        let gres = gres.replace("/dev/nvidia0", &device.display().to_string());
        fs::write(self.path().join("gres.conf"), gres).expect("own file");
        fs::copy(vgpu(), self.path().join("scripts/vgpu")).expect("a copy");
        self.write_scripts("", "");
    }

    /// Writes the three scripts that are shipped, with the paths of this test and additional options.
    pub fn write_scripts(&self, prolog: &str, epilog: &str) {
        let dir = self.path().display();
        let (mut run, mut socket) = (String::new(), String::new());
        for node in &self.nodes {
            let node = node.borrow();
            run.push_str(&format!("{}) run={dir}/run-{} ;; ", node.name, node.name));
            socket.push_str(&format!("{}) socket={} ;; ", node.name, node.daemon.admin().display()));
        }
        for (name, verb, options) in [
            ("prolog", "prolog", format!("--wait 1s {prolog} --socket \"$socket\"")),
            ("task-prolog", "task", format!("--library {}", self.nodes[0].borrow().lab.lib().display())),
            ("epilog", "epilog", format!("--wait 1s --log {dir}/bills {epilog} --socket \"$socket\"")),
        ] {
            let script = shipped(name).replace("PATH=/usr/local/bin:", &format!("PATH={dir}/scripts:"));
            let call = format!("exec vgpu slurm {verb}");
            assert!(script.contains(&call), "{script}");
            // The TaskProlog runs as several users, who could not share a file.
            let errors = match verb {
                "task" => String::new(),
                _ => format!("exec 2>> {dir}/jobs/$SLURMD_NODENAME.{verb}"),
            };
            let places = format!("case $SLURMD_NODENAME in {run}esac; case $SLURMD_NODENAME in {socket}esac");
            let script = script.replace(&call, &format!("{errors}\n{places}\n{call} --dir \"$run\" {options}"));
            self.write_script(name, &script);
        }
    }

    /// Writes a program into the directory that the scripts search first.
    pub fn write_script(&self, name: &str, text: &str) {
        let path = self.path().join("scripts").join(name);
        fs::write(&path, text).expect("own file");
        open_to_all(&path, 0o755);
    }

    /// Runs a command of Slurm.
    pub fn slurm(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = clean(&format!("/usr/bin/{program}"));
        command.args(arguments).env("SLURM_CONF", self.path().join("slurm.conf"));
        command.output().unwrap_or_else(|why| panic!("{program}: {why}"))
    }

    /// As [`Cluster::slurm`] for a command that must succeed.
    #[track_caller]
    pub fn tell(&self, program: &str, arguments: &[&str]) -> String {
        let out = self.slurm(program, arguments);
        assert!(out.status.success(), "{program} {arguments:?}: {}", text(&out));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Submits a script as user `uid`. `$MEMBER` is a program on the node's device.
    pub fn submit(&self, uid: u32, options: &[&str], script: &str) -> Job<'_> {
        let (first, second) = (self.node(0), self.node(1));
        let place = |node: &Node| {
            format!(
                "{}) export VGPU_SIM_DIR={} VGPU_STATE_DIR={}",
                node.name,
                node.lab.gpu().display(),
                node.lab.state().display()
            )
        };
        let copies = first.lab.lib().parent().expect("a directory").display().to_string();
        let jobs = self.path().join("jobs").display().to_string();
        let text = format!(
            "#!/bin/sh\nexport LD_LIBRARY_PATH={copies} MEMBER={copies}/member JOBS={jobs}\n\
             case $SLURMD_NODENAME in {} ;; {} ;; esac\n{script}\n",
            place(&first),
            place(&second)
        );
        let file = self.path().join("scripts/job");
        fs::write(&file, text).expect("own file");
        let (user, file) = (uid.to_string(), file.display().to_string());
        let mut arguments = vec!["--parsable", "--uid", &user, "--gid", &user, "-D", &jobs];
        arguments.extend(options);
        let name = format!("job{}", NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let named = options.contains(&"-J");
        if !named {
            arguments.extend(["-J", &name]);
        }
        let out = if named { "named.out".to_owned() } else { format!("{name}.out") };
        arguments.extend(["-o", &out, "--open-mode=append"]);
        arguments.push(&file);
        let id = self.tell("sbatch", &arguments).trim().parse().expect("a job's ID");
        Job { cluster: self, id, out: self.path().join("jobs").join(out) }
    }

    /// Submits a job that is one process on the device, which the test commands.
    pub fn submit_member(&self, uid: u32, options: &[&str]) -> (Job<'_>, Remote) {
        let name = format!("pipe{}", NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let remote = Remote::make(&self.path().join("jobs"), &name);
        let job = self.submit(
            uid,
            options,
            &format!("exec \"$MEMBER\" dlsym < $JOBS/{name}.in > $JOBS/{name}.said$SLURM_RESTART_COUNT"),
        );
        (job, remote)
    }

    /// The bills of a job, one for each node and start.
    pub fn bills(&self, job: u32) -> Vec<Value> {
        let bills = fs::read_to_string(self.path().join("bills")).unwrap_or_default();
        let lines = bills.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.filter(|bill| bill["job"] == job).collect()
    }

    /// State of a node in Slurm's words, such as `IDLE+DRAIN`, and the reason if it is drained.
    pub fn node_state(&self, name: &str) -> (String, String) {
        let text = self.tell("scontrol", &["-o", "show", "node", name]);
        let state = text.split_whitespace().find_map(|word| word.strip_prefix("State=")).unwrap_or_default().to_owned();
        let reason = text.split_once(" Reason=").map_or("", |(_, reason)| reason.trim());
        (state, reason.to_owned())
    }

    /// Waits until no job is on any node.
    #[track_caller]
    pub fn wait_for_empty_queue(&self) {
        self.wait_until("the queue is empty", || self.tell("squeue", &["-h"]).is_empty());
    }

    #[track_caller]
    pub fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !condition() {
            assert!(begin.elapsed() < LONG_TIMEOUT, "still not: {what}\n{}", self.logs());
            std::thread::sleep(POLL);
        }
    }

    /// Names of the tenants of a node's vgpud.
    pub fn tenants(&self, index: usize) -> Vec<String> {
        let list: Value =
            serde_json::from_str(&self.node(index).daemon.tell(&["tenant", "list", "--json"])).expect("JSON");
        list.as_array()
            .expect("a list")
            .iter()
            .map(|tenant| tenant["name"].as_str().expect("a name").to_owned())
            .collect()
    }

    fn logs(&self) -> String {
        let mut out = String::new();
        let files =
            ["ctld.log", "n1.log", "n2.log", "jobs/n1.prolog", "jobs/n1.epilog", "jobs/n2.prolog", "jobs/n2.epilog"];
        for file in files {
            let text = fs::read_to_string(self.path().join(file)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            out.push_str(&format!("--- {file}\n{}\n", lines[lines.len().saturating_sub(25)..].join("\n")));
        }
        for what in ["node", "job"] {
            out.push_str(&text(&self.slurm("scontrol", &["-d", "-o", "show", what])));
        }
        out
    }

    /// Kills every process that has this cluster's directory in its environment or its arguments: slurmstepd and jobs,
    /// which are children of nobody.
    fn kill_all(&self) {
        let needle = self.path().display().to_string().into_bytes();
        let has = |path: PathBuf| {
            let mut bytes = Vec::new();
            File::open(path)
                .and_then(|mut file| file.read_to_end(&mut bytes))
                .is_ok_and(|_| bytes.windows(needle.len()).any(|window| window == needle))
        };
        let own = std::process::id().to_string();
        for process in fs::read_dir("/proc").expect("/proc").filter_map(Result::ok) {
            let name = process.file_name().to_string_lossy().into_owned();
            let Ok(pid) = name.parse::<libc::pid_t>() else { continue };
            if name != own && (has(process.path().join("environ")) || has(process.path().join("cmdline"))) {
                // SAFETY: no precondition; the directory's name is of this test alone.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
    }
}

static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Text of a file that is shipped in integrations/slurm.
fn shipped(name: &str) -> String {
    fs::read_to_string(checkout().join("integrations/slurm").join(name)).expect("a shipped file")
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        for node in &self.nodes {
            self.children.extend(node.borrow_mut().slurmd.take());
        }
        for mut child in self.children.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Twice: a process may start another while the first search goes on.
        self.kill_all();
        self.kill_all();
    }
}

/// A job of Slurm.
pub struct Job<'a> {
    cluster: &'a Cluster,
    pub id: u32,
    out: PathBuf,
}

impl Job<'_> {
    /// A value of Slurm's text of the job.
    fn value(&self, key: &str) -> String {
        let text = self.cluster.tell("scontrol", &["show", "job", &self.id.to_string()]);
        let mut words = text.split_whitespace().filter_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        words.next_back().unwrap_or_default().to_owned()
    }

    pub fn state(&self) -> String {
        self.value("JobState")
    }

    pub fn reason(&self) -> String {
        self.value("Reason")
    }

    /// Waits for one of Slurm's states.
    #[track_caller]
    pub fn wait_for(&self, state: &str) {
        self.wait_with(state, || self.state());
    }

    /// Waits until the job has this state and its Epilogs have ended.
    #[track_caller]
    pub fn wait_for_end(&self, state: &str) {
        self.wait_with(state, || {
            let id = self.id.to_string();
            self.cluster.tell("squeue", &["-h", "-t", "all", "-o", "%T", "-j", &id]).trim().to_owned()
        });
    }

    #[track_caller]
    fn wait_with(&self, state: &str, now: impl Fn() -> String) {
        let ends = ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"];
        let mut last = String::new();
        self.cluster.wait_until(&format!("job {} is {state}", self.id), || {
            last = now();
            let is_other_end = ends.contains(&last.as_str()) && last != state;
            assert!(!is_other_end, "job {} is {last}, not {state}: {}", self.id, self.output());
            last == state
        });
    }

    /// Text that the job has written.
    pub fn output(&self) -> String {
        fs::read_to_string(&self.out).unwrap_or_default()
    }

    /// Shortens the delay that Slurm puts before the next start of a job that it queued again. Within the second of the
    /// first start's end it would refuse the next one.
    pub fn shorten_delay(&self) {
        self.wait_for("PENDING");
        self.cluster.tell("scontrol", &["update", &format!("JobId={}", self.id), "StartTime=now+3seconds"]);
    }

    pub fn cancel(&self) {
        self.cluster.tell("scancel", &[&self.id.to_string()]);
    }
}

/// Creates the file of answers, so that it can be read before the process starts.
fn open_answers(path: &Path) -> BufReader<File> {
    fs::write(path, "").expect("own file");
    open_to_all(path, 0o666);
    BufReader::new(File::open(path).expect("own file"))
}

/// The commands and answers of a process in a job.
pub struct Remote {
    commands: File,
    answers: BufReader<File>,
    place: (PathBuf, String),
    line: String,
    /// ID of the process.
    pub pid: u32,
}

impl Remote {
    pub fn make(dir: &Path, name: &str) -> Remote {
        let commands = dir.join(format!("{name}.in"));
        vgpu_tests::run(Command::new("mkfifo").arg("-m").arg("666").arg(&commands));
        // Opened for both, so that neither side waits for the other.
        let commands = OpenOptions::new().read(true).write(true).open(&commands).expect("own pipe");
        let answers = open_answers(&dir.join(format!("{name}.said")));
        Remote { commands, answers, place: (dir.to_owned(), name.to_owned()), line: String::new(), pid: 0 }
    }

    /// Reads the answers of the job's first restart, which writes a file of its own.
    pub fn follow_restart(&mut self) {
        let (dir, name) = &self.place;
        self.answers = open_answers(&dir.join(format!("{name}.said1")));
    }

    /// Waits for the process and creates its context.
    #[track_caller]
    pub fn begin(&mut self) {
        self.pid = u32::try_from(self.answer()[1]).expect("a process ID");
        for command in ["init 0", "retain 0"] {
            assert_eq!(self.ask(command)[0], 0, "{command}");
        }
    }

    pub fn tell(&mut self, command: &str) {
        self.commands.write_all(format!("{command}\n").as_bytes()).expect("a pipe");
    }

    /// The numbers of the next answer, the driver's code first.
    #[track_caller]
    pub fn answer(&mut self) -> Vec<u64> {
        let begin = Instant::now();
        loop {
            self.answers.read_line(&mut self.line).expect("own file");
            if self.line.ends_with('\n') {
                let line = std::mem::take(&mut self.line);
                return line.split_whitespace().map(|word| word.parse().unwrap_or(u64::MAX)).collect();
            }
            assert!(begin.elapsed() < LONG_TIMEOUT, "no answer");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    pub fn ask(&mut self, command: &str) -> Vec<u64> {
        self.tell(command);
        self.answer()
    }
}
