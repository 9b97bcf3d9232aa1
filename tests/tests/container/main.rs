//! The `docker run` line of examples/docker on a real engine with the simulated device. An ordinary Python program with
//! nvidia-ml-py and direct driver calls sees its limit and cannot exceed it.
//!
//! The engine is private (`tests/setup/docker`): its own data directory, no network, no registry; it needs root. The
//! image has no libgcc_s, so a preloaded library that needs it would break every program there.
//!
//! Client: Docker

mod added;
mod engine;
mod shown;
mod swarm;
mod tenants;

use engine::{Engine, build, text};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vgpu_sim::truth;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const HOLDER: &str = "/clients/container_holder.py";
/// Bytes that fit into 1 GiB together with a context of the simulated H200.
const FITS: u64 = 400 * MIB;
const TOO_MUCH: u64 = GIB;

/// Hardening options that cautious users run containers with.
const LOCKED_DOWN: &[&str] = &["--user", "1000", "--read-only", "--cap-drop", "ALL"];

/// One container under 1 GiB: all numbers agree, the request above the limit is refused, and the one that fits
/// succeeds.
fn is_held_to_one_gib(engine: &Engine, gpu: &Path, options: &[&str]) -> Value {
    let mut all = vec!["-e", "VGPU_MEMORY_LIMIT=1GiB"];
    all.extend(options);
    let seen = engine.client(gpu, &all, FITS, TOO_MUCH);
    for total in ["nvml_total", "nvml_total_v2", "device_total", "cuda_total"] {
        assert_eq!(seen[total], GIB, "{total} in {seen}");
    }
    assert_eq!(seen["mapped"], true, "{seen}");
    assert_eq!(seen["too_much"], 2, "CUDA_ERROR_OUT_OF_MEMORY: {seen}");
    assert_eq!((&seen["fits"], &seen["content"]), (&0.into(), &true.into()), "{seen}");
    let number = |key: &str| seen[key].as_u64().unwrap();
    assert_eq!(number("cuda_free_after"), number("cuda_free") - FITS, "{seen}");
    assert_eq!(number("nvml_used_after"), GIB - number("cuda_free_after"), "{seen}");
    assert_eq!(number("cuda_free_at_last"), number("cuda_free"), "{seen}");

    // Ground truth: memory that the simulated device really gave.
    let device = &truth::read(gpu).unwrap().devices[0];
    let pid = u32::try_from(number("pid")).unwrap();
    let process = device.finished.iter().rev().find(|p| p.pid == pid && p.peak_bytes > 0).unwrap();
    assert!((FITS..=GIB).contains(&process.peak_bytes), "{process:?}");
    assert_eq!(device.used, 0, "everything came back");
    seen
}

/// Engine: Docker, ours: enforced
#[test]
fn a_container_is_held_to_its_quota_as_root() {
    let Some(engine) = Engine::get() else { return };
    let gpu = TempDir::new().unwrap();
    let seen = is_held_to_one_gib(&engine, gpu.path(), &[]);
    assert_eq!((&seen["uid"], &seen["root_is_writable"]), (&0.into(), &true.into()));
}

#[test]
fn and_as_uid_1000_with_a_read_only_root_and_no_capabilities() {
    let Some(engine) = Engine::get() else { return };
    let gpu = TempDir::new().unwrap();
    let seen = is_held_to_one_gib(&engine, gpu.path(), LOCKED_DOWN);
    assert_eq!((&seen["uid"], &seen["root_is_writable"]), (&1000.into(), &false.into()));
}

#[test]
fn without_a_limit_it_sees_the_whole_device() {
    let Some(engine) = Engine::get() else { return };
    let gpu = TempDir::new().unwrap();
    let seen = engine.client(gpu.path(), &[], TOO_MUCH, 1 << 50);
    let device = &truth::read(gpu.path()).unwrap().devices[0];
    assert_eq!(seen["nvml_total"], device.nvml_total, "{seen}");
    assert_eq!(seen["device_total"], device.cuda_total, "{seen}");
    assert_eq!((&seen["fits"], &seen["too_much"]), (&0.into(), &2.into()), "{seen}");
}

/// A container that holds device memory until the test ends it.
struct Holder<'scope> {
    thread: Option<std::thread::ScopedJoinHandle<'scope, Output>>,
    enough: PathBuf,
}

impl<'scope> Holder<'scope> {
    /// Starts the container and waits until it holds its `bytes`.
    fn start<'env>(
        scope: &'scope std::thread::Scope<'scope, 'env>,
        engine: &'env Engine,
        gpu: &'env Path,
        options: &[&str],
        bytes: u64,
    ) -> Holder<'scope> {
        let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
        let thread = scope.spawn(move || {
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            engine.run(gpu, &options, &["/usr/bin/python3", HOLDER, &bytes.to_string()])
        });
        let holder = Holder { thread: Some(thread), enough: gpu.join("enough") };
        let end = Instant::now() + Duration::from_secs(60);
        while !gpu.join("holding").exists() && !holder.thread.as_ref().is_some_and(|t| t.is_finished()) {
            assert!(Instant::now() < end, "the container does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        holder
    }

    /// Ends the container and returns its output.
    fn end(mut self) -> String {
        let _ = fs::write(&self.enough, "");
        let out = self.thread.take().unwrap().join().unwrap();
        assert!(out.status.success(), "{}", text(&out));
        String::from_utf8(out.stdout).unwrap()
    }
}

impl Drop for Holder<'_> {
    /// Ends the container even if the test fails first.
    fn drop(&mut self) {
        let _ = fs::write(&self.enough, "");
    }
}

/// Enters a running container with a second process that asks for `bytes`. Returns the codes it got.
fn visit(engine: &Engine, container: &str, options: &[&str], bytes: u64) -> (String, String) {
    let mut all = vec!["exec"];
    all.extend(options);
    let request = format!("{bytes}:now");
    all.extend([container, "/usr/bin/python3", HOLDER, &request]);
    let out = engine.docker(&all);
    assert!(out.status.success(), "{}", text(&out));
    (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
}

#[test]
fn two_containers_on_one_device_have_a_quota_each() {
    let Some(engine) = Engine::get() else { return };
    let gpu = TempDir::new().unwrap();
    std::thread::scope(|scope| {
        let first = Holder::start(scope, &engine, gpu.path(), &["-e", "VGPU_MEMORY_LIMIT=1GiB"], FITS);
        let second = engine.client(gpu.path(), &["-e", "VGPU_MEMORY_LIMIT=1GiB"], FITS, TOO_MUCH);
        assert_eq!((&second["fits"], &second["too_much"]), (&0.into(), &2.into()), "{second}");
        assert_eq!(first.end(), "0 0 0\n2\n");
    });
}

#[test]
fn two_containers_that_share_dev_shm_have_a_quota_each_all_the_same() {
    let Some(engine) = Engine::get() else { return };
    let (gpu, shm) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mount = format!("{}:/dev/shm", shm.path().display());
    let options = ["-e", "VGPU_MEMORY_LIMIT=1GiB", "-v", &mount];
    std::thread::scope(|scope| {
        let first = Holder::start(scope, &engine, gpu.path(), &options, FITS);
        let second = engine.client(gpu.path(), &options, FITS, TOO_MUCH);
        assert_eq!((&second["fits"], &second["too_much"]), (&0.into(), &2.into()), "{second}");
        assert_eq!(first.end(), "0 0 0\n2\n");
    });
    assert_eq!(fs::read_dir(shm.path()).unwrap().count(), 2, "an account each");
}

#[test]
fn a_process_that_enters_a_container_shares_its_quota() {
    let Some(engine) = Engine::get() else { return };
    let gpu = TempDir::new().unwrap();
    let name = "vgpu-shared-quota";
    std::thread::scope(|scope| {
        let options = ["--name", name, "-e", "VGPU_MEMORY_LIMIT=3GiB"];
        let first = Holder::start(scope, &engine, gpu.path(), &options, GIB);
        // Less than 1 GiB is left: the first process holds 1 GiB, and two contexts take half a GiB.
        assert_eq!(visit(&engine, name, &[], GIB).0, "0 0 2\n");
        assert_eq!(visit(&engine, name, &[], GIB / 2).0, "0 0 0\n");
        assert_eq!(first.end(), "0 0 0\n0\n", "what the visitors had came back");
    });
}

#[test]
fn a_second_user_in_a_container_is_refused_with_words_unless_it_was_allowed() {
    let Some(engine) = Engine::get() else { return };
    let gpu = TempDir::new().unwrap();
    let name = "vgpu-second-user";
    std::thread::scope(|scope| {
        let options = ["--name", name, "-e", "VGPU_MEMORY_LIMIT=3GiB"];
        let first = Holder::start(scope, &engine, gpu.path(), &options, GIB);
        let (codes, words) = visit(&engine, name, &["--user", "1000"], MIB);
        assert_eq!(codes, "800\n", "{words}");
        assert!(words.contains("VGPU_SHARED_UIDS"), "{words:?}");
        first.end();
    });
    let gpu = TempDir::new().unwrap();
    let name = "vgpu-shared-users";
    std::thread::scope(|scope| {
        let options = ["--name", name, "-e", "VGPU_MEMORY_LIMIT=3GiB", "-e", "VGPU_SHARED_UIDS=1"];
        let first = Holder::start(scope, &engine, gpu.path(), &options, GIB);
        assert_eq!(visit(&engine, name, &["--user", "1000"], GIB).0, "0 0 2\n");
        assert_eq!(visit(&engine, name, &["--user", "1000"], MIB).0, "0 0 0\n");
        first.end();
    });
}

#[test]
fn where_no_account_can_be_kept_there_is_no_device() {
    let Some(engine) = Engine::get() else { return };
    let gpu = TempDir::new().unwrap();
    let limit = ["-e", "VGPU_MEMORY_LIMIT=1GiB"];
    let run = |options: &[&str]| {
        let mut all = limit.to_vec();
        all.extend(options);
        let out = engine.run(gpu.path(), &all, &["/usr/bin/python3", HOLDER, "1048576:now"]);
        (String::from_utf8_lossy(&out.stdout).into_owned(), text(&out))
    };
    // A full tmpfs: the ledger's page does not fit. The library notices at initialisation, not by a later SIGBUS.
    let full = ["--read-only", "--tmpfs", "/dev/shm:size=4k,mode=1777"];
    let (codes, all) = run(&full);
    assert_eq!(codes, "800\n", "{all}");
    assert!(all.contains("vgpu: "), "{all}");
    // A directory for ledgers that is not writable also fails the initialisation.
    let closed = ["--read-only", "--tmpfs", "/dev/shm:size=4m,mode=0555", "--user", "1000"];
    let (codes, all) = run(&closed);
    assert_eq!(codes, "800\n", "{all}");
    // The container with the full tmpfs runs if there is no limit.
    let out = engine.run(gpu.path(), &full, &["/usr/bin/python3", HOLDER, "1048576:now"]);
    assert_eq!(String::from_utf8_lossy(&out.stdout), "0 0 0\n", "{}", text(&out));
}

/// Engine: Docker, ours: refused
#[test]
fn a_limit_that_is_not_understood_stops_cuda_and_nvml_with_words() {
    let Some(engine) = Engine::get() else { return };
    let gpu = TempDir::new().unwrap();
    let program = "import ctypes
print(ctypes.CDLL('libcuda.so.1').cuInit(0), ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())";
    let out = engine.run(gpu.path(), &["-e", "VGPU_MEMORY_LIMIT=abc"], &["/usr/bin/python3", "-c", program]);
    assert_eq!(String::from_utf8_lossy(&out.stdout), "800 4\n", "{}", text(&out));
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(stderr.contains("VGPU_MEMORY_LIMIT=\"abc\""), "{}", text(&out));
    assert_eq!(stderr.matches("VGPU_MEMORY_LIMIT").count(), 1, "once per process: {}", text(&out));
}

#[test]
fn programs_without_a_gpu_run_as_ever_in_an_image_without_libgcc() {
    let Some(engine) = Engine::get() else { return };
    let gpu = TempDir::new().unwrap();
    let options: [&[&str]; 2] = [&[], LOCKED_DOWN];
    for options in options {
        let mut all = vec!["-e", "LD_LIBRARY_PATH=", "-e", "VGPU_MEMORY_LIMIT=1GiB"];
        all.extend(options);
        let out = engine.run(gpu.path(), &all, &["/bin/sh", "-c", "/bin/ls / >/dev/null && echo fine; ls /dev/shm"]);
        assert!(out.status.success(), "{}", text(&out));
        assert_eq!((out.stdout.as_slice(), out.stderr.as_slice()), (&b"fine\n"[..], &b""[..]), "{}", text(&out));
    }
}

/// Inside the container, with its own file system, the doctor prints the same lines as outside. The image has neither
/// libgcc_s nor any file of vgpu.
#[test]
fn the_doctor_proves_the_limit_inside_a_container() {
    let Some(engine) = Engine::get() else { return };
    let gpu = TempDir::new().unwrap();
    let program = format!("{}:/usr/local/bin/vgpu:ro", build().join("vgpu").display());
    let visit = |options: &[&str]| {
        let mut all = vec!["-v", program.as_str()];
        all.extend(options);
        let out = engine.run(gpu.path(), &all, &["/usr/local/bin/vgpu", "doctor"]);
        (out.status.code(), text(&out))
    };
    for locked in [&[][..], LOCKED_DOWN] {
        let (code, words) = visit(&[&["-e", "VGPU_MEMORY_LIMIT=1GiB"][..], locked].concat());
        assert_eq!(code, Some(0), "{words}");
        for word in
            ["this container's namespaces", "none bypasses the hooks", "from VGPU_MEMORY_LIMIT", "the limit holds"]
        {
            assert!(words.contains(word), "{words} lacks {word:?}");
        }
        assert!(visit(locked).1.contains("there is nothing to prove"));
    }
    let (code, words) = visit(&["-e", "VGPU_MEMORY_LIMIT=1GiB", "-e", "LD_PRELOAD="]);
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("run WITHOUT limits"), "{words}");
}
