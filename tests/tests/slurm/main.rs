//! Slurm's shards are held: a real Slurm on this host runs the shipped scripts, on simulated devices.
//!
//! The device's own record judges memory and time, never vgpu's.

mod cluster;

use std::cell::RefCell;
use std::fs;
use std::time::Duration;

use cluster::{Cluster, DAEMON_USER, NOBODY, Remote};
use serde_json::Value;
use vgpu_tests::timed::measured;
use vgpu_tests::{GIB, NOT_PERMITTED, OUT_OF_MEMORY, eventually, is_root, optional};

/// More than the host time of a launch, in ns. The library knows no closer when a kernel on an idle stream began.
const CALL_NS: u64 = 10_000;

/// A cluster; `None`: Slurm is not installed, or this is not root.
fn cluster() -> Option<Cluster> {
    if !is_root() {
        optional::skipped("Slurm: needs root");
        return None;
    }
    optional::slurmctld()?;
    Some(Cluster::start())
}

/// Memory limit of a tenant with so many of a GPU's four shards.
fn quarters(cluster: &Cluster, shards: u64) -> u64 {
    cluster.node(0).lab.device(0).cuda_total * shards / 4
}

/// True if the process has not ended. One that nobody has waited for yet has ended.
fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z') && !line.contains('X'))
}

/// Engine: Slurm, ours: enforced
#[test]
fn shards_are_limits_of_memory_and_shares_of_time_and_the_bill_is_that_of_the_record() {
    let Some(cluster) = cluster() else { return };
    // In place of sacctmgr, which needs a database.
    let comments = cluster.path().join("comments");
    cluster.write_script("sacctmgr", &format!("#!/bin/sh\necho \"$@\" >> {}\n", comments.display()));
    cluster.write_scripts("", "--sacctmgr");
    let on_n1 = |gres| vec!["-w", "n1", gres];
    let users = [NOBODY, NOBODY, DAEMON_USER];
    let sizes = ["--gres=shard:1", "--gres=shard:1", "--gres=shard:2"];
    let mut jobs: Vec<_> =
        users.iter().zip(sizes).map(|(user, size)| cluster.submit_member(*user, &on_n1(size))).collect();
    for ((_, inside), parts) in jobs.iter_mut().zip([1, 1, 2]) {
        inside.begin();
        // A kernel's code takes memory too, so it is loaded before all memory is taken.
        assert_eq!(inside.ask("launch 1000")[0], 0);
        let info = inside.ask("info");
        assert_eq!((info[0], info[2]), (0, quarters(&cluster, parts)), "a quarter of the memory for each shard");
        let free = info[1];
        assert_eq!(inside.ask(&format!("alloc {free}"))[0], 0, "all of it");
        assert_eq!(i64::try_from(inside.ask("alloc 1")[0]), Ok(OUT_OF_MEMORY), "one byte more");
        let truth = cluster.node(0).lab.process(0, inside.pid);
        assert!(truth.physical_bytes <= quarters(&cluster, parts), "{truth:?}");
    }
    // A fourth job waits in Slurm, and a user outside the job is refused at its socket.
    let (fourth, mut waits) = cluster.submit_member(NOBODY, &on_n1("--gres=shard:1"));
    let socket = cluster.node(0).daemon.socket(&format!("slurm-{}", jobs[0].0.id));
    {
        let mut node = cluster.node_mut(0);
        node.lab.set("VGPU_SOCKET", &socket);
        node.lab.become_user(DAEMON_USER);
        let mut stranger = node.lab.member();
        assert_eq!(stranger.code("init"), NOT_PERMITTED);
        let said = stranger.errors();
        assert!(said.contains("does not accept user 1"), "{said}");
    }
    let jobs = RefCell::new(jobs);
    measured(|| {
        let mut jobs = jobs.borrow_mut();
        let busy = |pids: &[u32]| -> Vec<u64> {
            let node = cluster.node(0);
            pids.iter().map(|pid| node.lab.process(0, *pid).busy_ns).collect()
        };
        jobs.iter_mut().for_each(|(_, inside)| inside.tell("work 500000 4000 16"));
        let pids: Vec<u32> = jobs.iter().map(|(_, inside)| inside.pid).collect();
        std::thread::sleep(Duration::from_millis(700));
        let before = busy(&pids);
        std::thread::sleep(Duration::from_millis(2500));
        let used: Vec<u64> = busy(&pids).iter().zip(before).map(|(after, before)| after - before).collect();
        jobs.iter_mut().for_each(|(_, inside)| assert_eq!(inside.answer()[0], 0));
        let total: u64 = used.iter().sum();
        let percent: Vec<u64> = used.iter().map(|ns| ns * 100 / total).collect();
        eprintln!("1+1+2 shards: {percent:?} % of {} ms", total / 1_000_000);
        for (percent, due) in percent.iter().zip([25, 25, 50]) {
            assert!(percent.abs_diff(due) <= 5, "{used:?}");
        }
    });
    let mut jobs = jobs.into_inner();
    assert_eq!((fourth.state().as_str(), fourth.reason().as_str()), ("PENDING", "Resources"));
    let (first, mut inside) = jobs.remove(0);
    let truth = cluster.node(0).lab.process(0, inside.pid);
    inside.tell("exit 0");
    first.wait_for_end("COMPLETED");
    assert!(!socket.exists(), "its tenant is gone");
    let bills = cluster.bills(first.id);
    assert_eq!(bills.len(), 1, "{bills:?}");
    let name = format!("slurm-{}", first.id);
    let record: Value = serde_json::from_str(&cluster.node(0).daemon.tell(&["usage", &name, "--json"])).unwrap();
    for key in ["gpu_ns", "memory_byte_seconds", "peak_bytes"] {
        assert_eq!(bills[0]["usage"][key], record["total"][key], "{key}: {bills:?}");
    }
    let (billed, worked) = (bills[0]["usage"]["gpu_ns"].as_u64().unwrap(), truth.busy_ns);
    // On a busy host the library measures a few percent more than the device worked.
    assert!(billed.abs_diff(worked) <= worked / 4, "billed {billed} ns, the device worked {worked} ns");
    let seconds: f64 = bills[0]["gpu_seconds"].as_str().unwrap().parse().unwrap();
    #[expect(clippy::cast_precision_loss, reason = "some seconds")]
    let exact = billed as f64 / 1e9;
    assert!((seconds - exact).abs() <= 0.0006, "{seconds} {exact}");
    let comment = fs::read_to_string(&comments).unwrap();
    let begin = format!("-i modify job where JobID={} set AdminComment=vgpu n1: {seconds:.3} GPU-seconds, ", first.id);
    assert!(comment.starts_with(&begin), "{comment}");
    assert_eq!((&bills[0]["user"], &bills[0]["killed"]), (&"nobody".into(), &0.into()));
    waits.begin();
    assert_eq!(waits.ask("info")[2], quarters(&cluster, 1));
    // Memory that was asked for is the limit, next to the shard's share of the time.
    jobs.iter_mut().for_each(|(_, inside)| inside.tell("exit 0"));
    let (asked, mut inside) = cluster.submit_member(NOBODY, &on_n1("--gres=shard:1,vgpu_mem:20G"));
    inside.begin();
    assert_eq!(inside.ask("info")[2], 20 * GIB);
    let status: Value = serde_json::from_str(&cluster.node(0).daemon.tell(&["status", "--json"])).unwrap();
    let name = format!("slurm-{}", asked.id);
    let tenant = status["tenants"].as_array().unwrap().iter().find(|tenant| tenant["name"] == *name).unwrap();
    assert_eq!(tenant["devices"][0]["sm_request"], 25.0, "{tenant}");
    assert_eq!((&tenant["group"], &tenant["labels"]["user"]), (&"main".into(), &"nobody".into()));
}

/// Engine: Slurm, ours: refused
#[test]
fn a_job_without_a_tenant_fails_with_the_reason_and_its_node_serves_on() {
    let Some(cluster) = cluster() else { return };
    let fails = |options: &[&str], why: &str| {
        let job = cluster.submit(NOBODY, options, "echo it ran");
        job.wait_for_end("FAILED");
        let said = job.output();
        assert!(said.contains("vgpu: this job cannot run here: ") && said.contains(why), "{options:?}: {said}");
        assert!(!said.contains("it ran"), "{said}");
        assert_eq!(cluster.bills(job.id), [] as [Value; 0], "it had no tenant");
    };
    // Slurm starts gpu:1 next to a running shard:1.
    let (_shard, mut inside) = cluster.submit_member(NOBODY, &["-w", "n1", "--gres=shard:1"]);
    inside.begin();
    fails(&["-w", "n1", "--gres=gpu:1"], "memory_limit brings");
    fails(&["-w", "n1", "--gres=gpu:1"], "125 %");
    assert_eq!(inside.ask("launch 1000")[0], 0, "the other job is not disturbed");
    inside.tell("exit 0");
    // A job's name that says what Slurm says.
    let forged = "x Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:4(IDX:0)";
    fails(&["-w", "n1", "--gres=shard:1", "-J", forged], "has the node n1 twice");
    // A daemon that answers too late adds a tenant for a job that has failed. It is removed all the same.
    let pid = libc::pid_t::try_from(cluster.node(1).daemon.pid()).unwrap();
    // SAFETY: the daemon is a child of this test that was not waited for.
    let signal = |signal| unsafe { libc::kill(pid, signal) };
    signal(libc::SIGSTOP);
    fails(&["-w", "n2", "--gres=shard:4"], "does not answer within 2 s");
    signal(libc::SIGCONT);
    let next = cluster.submit(NOBODY, &["-w", "n2", "--gres=shard:1"], "echo it ran");
    next.wait_for_end("COMPLETED");
    assert_eq!(cluster.tenants(1), [] as [String; 0]);
    // A job without a GPU does not need a daemon. One with a GPU does.
    cluster.node_mut(1).daemon.stop();
    let plain = cluster.submit(NOBODY, &["-w", "n2"], "echo ran with ${LD_PRELOAD:-nothing}");
    plain.wait_for_end("COMPLETED");
    assert_eq!(plain.output(), "ran with nothing\n");
    fails(&["-w", "n2", "--gres=shard:1"], "no daemon answers");
    for node in ["n1", "n2"] {
        let (state, reason) = cluster.node_state(node);
        assert!(!state.contains("DRAIN"), "{node} is {state}: {reason}");
    }
    // The policy may say that such a node is drained. GPU 0 has 8 shards here.
    cluster.write_scripts("--drain-without-daemon --shards-per-gpu 0=8", "");
    let held = cluster.submit(
        NOBODY,
        &["-w", "n2", "--gres=shard:1"],
        "printf 'init 0\nretain 0\ninfo\n' | \"$MEMBER\" dlsym",
    );
    cluster.wait_until("the node is drained", || cluster.node_state("n2").0.contains("DRAIN"));
    let (_, reason) = cluster.node_state("n2");
    assert!(reason.contains("Prolog error"), "{reason}");
    held.wait_for("PENDING");
    cluster.node_mut(1).daemon.again();
    cluster.tell("scontrol", &["update", "NodeName=n2", "State=RESUME"]);
    cluster.tell("scontrol", &["release", &held.id.to_string()]);
    held.shorten_delay();
    held.wait_for_end("COMPLETED");
    let eighth = cluster.node(1).lab.device(0).cuda_total / 8;
    assert!(held.output().ends_with(&format!(" {eighth}\n")), "an eighth of the memory: {}", held.output());
}

#[test]
fn nothing_of_a_job_outlives_its_epilog() {
    let Some(cluster) = cluster() else { return };
    let empty = |what: &str| {
        eventually(what, || cluster.node(0).lab.device(0).processes.is_empty());
        assert_eq!(cluster.tenants(0), [] as [String; 0], "{what}");
    };
    let shard = ["-w", "n1", "--gres=shard:2"];
    // A process that left its job, and is deaf.
    let mut left = Remote::make(&cluster.path().join("jobs"), "left");
    let orphan = cluster.submit(
        NOBODY,
        &shard,
        "(trap '' TERM; setsid \"$MEMBER\" dlsym < $JOBS/left.in > $JOBS/left.said 2>&1 &)\n\
         while [ ! -e $JOBS/go ]; do sleep 0.05; done",
    );
    left.begin();
    assert_eq!(left.ask(&format!("alloc {GIB}"))[0], 0);
    fs::write(cluster.path().join("jobs/go"), "").unwrap();
    orphan.wait_for_end("COMPLETED");
    assert!(!is_alive(left.pid), "the process that left its job is killed");
    let bill = &cluster.bills(orphan.id)[0];
    assert_eq!((&bill["killed"], &bill["usage"]["is_final"]), (&1.into(), &true.into()), "{bill}");
    assert!(bill["usage"]["peak_bytes"].as_u64() >= Some(GIB), "the last row of the record is in it: {bill}");
    empty("after a process that left its job");
    // scancel, also of a job that ignores SIGTERM.
    for trap in ["true", "trap '' TERM"] {
        let mut inside = Remote::make(&cluster.path().join("jobs"), &format!("in{}", trap.len()));
        let pipe = format!("$JOBS/in{}", trap.len());
        let job = cluster.submit(NOBODY, &shard, &format!("{trap}; exec \"$MEMBER\" dlsym < {pipe}.in > {pipe}.said"));
        inside.begin();
        job.cancel();
        job.wait_for_end("CANCELLED");
        assert!(!is_alive(inside.pid), "{trap}");
        assert_eq!(cluster.bills(job.id).len(), 1);
        empty(trap);
    }
    // The same job again.
    let (job, mut inside) = cluster.submit_member(NOBODY, &[&shard[..], &["--requeue"]].concat());
    inside.begin();
    inside.ask("launch 50000000");
    let first = inside.pid;
    cluster.tell("scontrol", &["requeue", &job.id.to_string()]);
    cluster.wait_until("the first start has its bill", || cluster.bills(job.id).len() == 1);
    assert!(!is_alive(first));
    inside.follow_restart();
    job.shorten_delay();
    inside.begin();
    assert_ne!(inside.pid, first);
    assert_eq!(inside.ask("info")[2], quarters(&cluster, 2));
    // The Epilog also finds the tenant of a restarted job whose file cannot be read.
    fs::write(cluster.path().join(format!("run-n1/{}", job.id)), "{").unwrap();
    inside.tell("exit 0");
    job.wait_for_end("COMPLETED");
    let bills = cluster.bills(job.id);
    let names: Vec<_> = bills.iter().map(|bill| bill["tenant"].as_str().unwrap()).collect();
    assert_eq!(names, [format!("slurm-{}", job.id), format!("slurm-{}-r1", job.id)]);
    assert!(bills[0]["usage"]["gpu_ns"].as_u64() >= Some(50_000_000 - CALL_NS), "{bills:?}");
    assert_eq!(bills[1]["usage"]["gpu_ns"], 0, "each start has a bill of its own: {bills:?}");
    empty("after a restart");
}

#[test]
fn a_job_over_two_nodes_has_a_tenant_on_each_and_killed_daemons_lose_none() {
    let Some(cluster) = cluster() else { return };
    let script = "srun sh -c 'printf \"init 0\\nretain 0\\ninfo\\nlaunch 20000000\\n\" | \"$MEMBER\" dlsym'";
    // Each task takes the paths of its own node.
    let script = script.replace("sh -c '", "sh -c 'eval \"$(cat $JOBS/place.$SLURMD_NODENAME)\"; ");
    for index in 0..2 {
        let node = cluster.node(index);
        let (gpu, state) = (node.lab.gpu(), node.lab.state());
        let place = format!("export VGPU_SIM_DIR={} VGPU_STATE_DIR={}\n", gpu.display(), state.display());
        fs::write(cluster.path().join(format!("jobs/place.{}", node.name)), place).unwrap();
    }
    // In place of sacctmgr and sacct, which need a database. As Slurm's, the comment is in small letters.
    let comment = cluster.path().join("comment");
    let keep = "#!/bin/sh\nfor word; do case $word in AdminComment=*) echo \"${word#*=}\" | tr A-Z a-z";
    cluster.write_script("sacctmgr", &format!("{keep} > {0}.$$; mv {0}.$$ {0} ;; esac; done\n", comment.display()));
    cluster.write_script("sacct", &format!("#!/bin/sh\ncat {} 2> /dev/null || echo\n", comment.display()));
    cluster.write_scripts("", "--sacctmgr");
    let both = cluster.submit(NOBODY, &["-N2", "--gres=shard:1"], &script);
    both.wait_for_end("COMPLETED");
    let bills_of = |job| {
        let mut bills: Vec<String> = cluster
            .bills(job)
            .iter()
            .map(|bill| {
                let word = |key: &str| bill[key].as_str().unwrap().to_owned();
                format!("vgpu {}: {} gpu-seconds, {} gib-hours", word("node"), word("gpu_seconds"), word("gib_hours"))
            })
            .collect();
        bills.sort();
        bills
    };
    let comment = fs::read_to_string(comment).unwrap();
    let mut entries: Vec<&str> = comment.trim_end().split("; ").collect();
    entries.sort_unstable();
    assert_eq!(entries, bills_of(both.id), "the comment has the bills of both nodes");
    cluster.write_scripts("", "");
    let said = both.output();
    assert_eq!(said.matches(&format!(" {}\n", quarters(&cluster, 1))).count(), 2, "a quarter on each node: {said}");
    let mut nodes: Vec<_> =
        cluster.bills(both.id).iter().map(|bill| bill["node"].as_str().unwrap().to_owned()).collect();
    nodes.sort();
    assert_eq!(nodes, ["n1", "n2"]);
    for bill in cluster.bills(both.id) {
        assert!(bill["usage"]["gpu_ns"].as_u64() >= Some(20_000_000 - CALL_NS), "{bill}");
    }
    // vgpud and slurmd are killed under a job. The job goes on, and stays held.
    let (job, mut inside) = cluster.submit_member(NOBODY, &["-w", "n1", "--gres=shard:1"]);
    inside.begin();
    inside.ask("launch 30000000");
    let name = format!("slurm-{}", job.id);
    let wait_for_record = |name: &str| {
        eventually("the work is in the record", || {
            let usage: Value = serde_json::from_str(&cluster.node(0).daemon.tell(&["usage", name, "--json"])).unwrap();
            usage["total"]["gpu_ns"].as_u64().unwrap() >= 30_000_000 - CALL_NS
        });
    };
    wait_for_record(&name);
    cluster.kill_slurmd(0);
    cluster.node_mut(0).daemon.kill();
    assert_eq!(
        inside.ask(&format!("alloc {}", quarters(&cluster, 1)))[0],
        u64::try_from(OUT_OF_MEMORY).unwrap(),
        "it stays held"
    );
    cluster.start_slurmd(0);
    job.cancel();
    // Its Epilog finds no daemon. The next Prolog of the node removes the tenant.
    job.wait_for_end("CANCELLED");
    assert_eq!(cluster.bills(job.id), [] as [Value; 0]);
    assert!(cluster.path().join(format!("run-n1/{name}.ended")).exists());
    cluster.node_mut(0).daemon.again();
    assert_eq!(cluster.tenants(0), [format!("slurm-{}", job.id)], "the daemon serves it again");
    let (next, mut inside) = cluster.submit_member(NOBODY, &["-w", "n1", "--gres=shard:4"]);
    inside.begin();
    assert_eq!(inside.ask("info")[2], quarters(&cluster, 4), "the whole device is free");
    assert_eq!(cluster.tenants(0), [format!("slurm-{}", next.id)]);
    let late = cluster.bills(job.id);
    assert_eq!(late.len(), 1, "the bill is late: {late:?}");
    assert!(late[0]["usage"]["gpu_ns"].as_u64() >= Some(30_000_000 - CALL_NS), "{late:?}");
    assert_eq!((&late[0]["user"], &late[0]["node"]), (&"nobody".into(), &"n1".into()));
    // As if the daemon was lost after it removed the tenant: it no longer knows when the job began, but its file does.
    let name = format!("slurm-{}", next.id);
    inside.ask("launch 30000000");
    wait_for_record(&name);
    cluster.node_mut(0).daemon.kill();
    next.cancel();
    next.wait_for_end("CANCELLED");
    fs::remove_file(cluster.node(0).lab.path().join(format!("run/added/{name}.json"))).unwrap();
    cluster.node_mut(0).daemon.again();
    cluster.submit(NOBODY, &["-w", "n1"], "true").wait_for_end("COMPLETED");
    let late = cluster.bills(next.id);
    assert!(late.len() == 1 && late[0]["usage"]["gpu_ns"].as_u64() >= Some(30_000_000 - CALL_NS), "{late:?}");
    cluster.wait_for_empty_queue();
    for node in ["n1", "n2"] {
        cluster.wait_until("the node is idle", || cluster.node_state(node).0 == "IDLE");
    }
}
