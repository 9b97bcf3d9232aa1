//! Two jobs that wait for each other crosswise on two devices, on a busy host. Not here: a single job, other ceilings
//! and the end of every collective (collective.rs; vgpu-core/tests/shares/collective.rs).

#[path = "collective/job.rs"]
mod job;
#[path = "leases/world.rs"]
mod world;

use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use job::{WORK, end, lab, ranks, tell};
use vgpu_tests::Member;
use world::{World, alone, tenant};

/// Loops that keep processors busy until they are dropped.
struct BusyLoops(Vec<Child>);

impl BusyLoops {
    fn start(count: usize) -> Self {
        let start = |_| Command::new("/bin/sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
        Self((0..count).map(start).collect())
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Lets both jobs do rounds for `span`. Returns the rounds a second of each, and the longest time that five rounds took.
fn rounds_per_second(jobs: &mut [[Member; 2]; 2], span: Duration) -> ([f64; 2], Duration) {
    const EACH: u32 = 5;
    let run = |job: &mut [Member; 2]| {
        let (begin, mut done, mut longest) = (Instant::now(), 0, Duration::ZERO);
        while begin.elapsed() < span {
            let before = Instant::now();
            tell(job, 1 + done, EACH);
            end(job, before);
            (done, longest) = (done + EACH, longest.max(before.elapsed()));
        }
        (f64::from(done) / begin.elapsed().as_secs_f64(), longest)
    };
    let [one, other] = jobs;
    let (one, other) = thread::scope(|scope| {
        let here = scope.spawn(|| run(one));
        let there = run(other);
        (here.join().expect("the job's own test"), there)
    });
    ([one.0, other.0], one.1.max(other.1))
}

/// Two jobs that wait crosswise on two devices, under a ceiling of 30 % each, on a host with six busy loops, without a
/// daemon and with one. None stands still. Under the daemon each does a quarter of the rounds that are due. Due is the
/// ceiling's part, or the rounds that both do without a ceiling next to the same loops, if those are fewer.
///
/// On two cores the daemon gave 45 to 52 %, and 68 to 70 % without the loops. A ceiling without a daemon gave 2 to 7 %.
#[test]
fn jobs_that_wait_crosswise_go_on_on_a_busy_host() {
    const PERCENT: u32 = 30;
    /// No job may stand still for so long.
    const LONGEST: Duration = Duration::from_secs(10);
    let _alone = alone();
    let span = Duration::from_secs(6);
    let _loops = BusyLoops::start(6);
    let bare = {
        let lab = lab(None);
        let mut jobs = ["a", "b"].map(|job| ranks(&lab, job));
        rounds_per_second(&mut jobs, span / 2).0
    };
    let own = {
        let mut lab = lab(Some(PERCENT));
        let mut jobs = ["a", "b"].map(|job| {
            lab.set("VGPU_TENANT", job);
            ranks(&lab, job)
        });
        rounds_per_second(&mut jobs, span)
    };
    let daemon = {
        let limit = format!("sm_limit = {PERCENT}");
        let mut world = World::start_on("2xh200", &(tenant("a", &limit) + &tenant("b", &limit)));
        let mut jobs = ["a", "b"].map(|job| {
            world.lab.set("VGPU_SOCKET", world.socket(job));
            ranks(&world.lab, job)
        });
        rounds_per_second(&mut jobs, span)
    };
    #[allow(clippy::cast_precision_loss)] // a few hundred
    let ceiling = f64::from(PERCENT) / 100.0 * 1e9 / WORK as f64;
    eprintln!("rounds a second: bare {bare:.1?}, own ceiling {own:.1?}, daemon {daemon:.1?}; ceiling {ceiling:.0}");
    for (got, bare) in daemon.0.into_iter().zip(bare) {
        assert!(got >= 0.25 * ceiling.min(bare), "under the daemon: {got:.1} of {:.1} a second", ceiling.min(bare));
    }
    for (of, (_, longest)) in [("its own account", own), ("the daemon", daemon)] {
        assert!(longest < LONGEST, "under {of} five rounds took {longest:?}");
    }
}
