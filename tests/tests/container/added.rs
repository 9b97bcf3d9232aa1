//! `vgpu docker run` and `vgpu cdi generate` on real engines: the options they add are sufficient, and settings of the
//! image survive.
//!
//! Client: Docker

use crate::engine::{Engine, IMAGE, Podman, build, text};
use crate::{FITS, GIB, HOLDER, LOCKED_DOWN, TOO_MUCH};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;
use vgpu_sim::{MachineView, truth};
use vgpu_tests::daemon::{Daemon, Plan};

/// Runs `vgpu docker run OURS -- --rm --network none THEIRS` on the simulated device in `gpu`.
fn run(engine: &Engine, gpu: &Path, ours: &[&str], theirs: &[&str]) -> Output {
    let clients = format!("{}:/clients:ro", crate::engine::checkout().join("tests/clients").display());
    // An existing directory keeps its mode, and the container's user may be any user.
    fs::set_permissions(gpu, fs::Permissions::from_mode(0o1777)).unwrap();
    let mut command = Command::new(build().join("vgpu"));
    command.args(["docker", "run", "--sim", "--sim-dir"]).arg(gpu).args(ours);
    command.args(["--", "--rm", "--network", "none", "-v", &clients]).args(theirs);
    engine.around(&mut command).output().unwrap()
}

/// Derives an image from the usual one: adds `files` and applies a Dockerfile line.
fn image(engine: &Engine, name: &str, files: &[(&str, &str)], change: Option<&str>) -> String {
    let container = format!("vgpu-made-{name}");
    let done = |words: &[&str]| {
        let out = engine.docker(words);
        assert!(out.status.success(), "{words:?}: {}", text(&out));
    };
    done(&["create", "--name", &container, IMAGE, "true"]);
    let dir = TempDir::new().unwrap();
    for (to, what) in files {
        let from = dir.path().join("file");
        fs::write(&from, what).unwrap();
        done(&["cp", from.to_str().unwrap(), &format!("{container}:{to}")]);
    }
    let mut commit = vec!["commit"];
    commit.extend(change.iter().flat_map(|change| ["--change", change]));
    commit.extend([container.as_str(), name]);
    done(&commit);
    done(&["rm", &container]);
    name.to_owned()
}

/// Engine: Docker, ours: enforced
#[test]
fn what_vgpu_docker_run_adds_holds_a_container_to_its_quota_locked_down_too() {
    let Some(engine) = Engine::get() else { return };
    for options in [&[][..], LOCKED_DOWN] {
        let gpu = TempDir::new().unwrap();
        let (fits, too_much) = (FITS.to_string(), TOO_MUCH.to_string());
        let mut theirs = options.to_vec();
        theirs.extend([IMAGE, "/usr/bin/python3", "/clients/container_client.py", &fits, &too_much]);
        let out = run(&engine, gpu.path(), &["--memory-limit", "1GiB"], &theirs);
        assert!(out.status.success(), "{}", text(&out));
        let seen: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!((&seen["nvml_total"], &seen["cuda_total"]), (&GIB.into(), &GIB.into()), "{seen}");
        assert_eq!((&seen["fits"], &seen["too_much"]), (&0.into(), &2.into()), "{seen}");
        assert_eq!(truth::read(gpu.path()).unwrap().devices[0].used, 0, "everything came back");
    }
}

#[test]
fn the_exit_code_is_the_containers() {
    let Some(engine) = Engine::get() else { return };
    let gpu = TempDir::new().unwrap();
    let out = run(&engine, gpu.path(), &[], &[IMAGE, "sh", "-c", "exit 7"]);
    assert_eq!(out.status.code(), Some(7), "{}", text(&out));
}

#[test]
fn a_preload_of_the_images_own_stays_behind_ours() {
    let Some(engine) = Engine::get() else { return };
    let gpu = TempDir::new().unwrap();
    // `cat` needs no libm, so only a preload can load it.
    let name = image(&engine, "vgpu-own-variable", &[], Some("ENV LD_PRELOAD=libm.so.6"));
    let out = run(&engine, gpu.path(), &[], &[&name, "cat", "/proc/self/maps"]);
    let maps = text(&out);
    assert!(maps.contains("/vgpu/libvgpu.so") && maps.contains("/libm.so.6"), "{maps}");
}

#[test]
fn a_list_of_the_images_own_is_merged_and_reaches_programs_without_an_environment() {
    let Some(engine) = Engine::get() else { return };
    let gpu = TempDir::new().unwrap();
    let name = image(&engine, "vgpu-own-list", &[("/etc/ld.so.preload", "libm.so.6\n")], None);
    let out = run(&engine, gpu.path(), &["--preload", "file"], &[&name, "env", "-i", "/bin/cat", "/proc/self/maps"]);
    let maps = text(&out);
    assert!(maps.contains("/vgpu/libvgpu.so") && maps.contains("/libm.so.6"), "{maps}");
}

#[test]
fn an_image_without_a_loader_that_would_map_the_library_is_refused() {
    let Some(engine) = Engine::get() else { return };
    let (gpu, dir) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for (name, file, said) in [("vgpu-static", "bin/true", "static"), ("vgpu-musl", "lib/ld-musl-x86_64.so.1", "musl")]
    {
        let root = dir.path().join(name);
        fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        fs::write(root.join(file), "").unwrap();
        let tar = dir.path().join("tar");
        assert!(Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&tar).arg(".").status().unwrap().success());
        let out = engine.docker(&["import", tar.to_str().unwrap(), name]);
        assert!(out.status.success(), "{}", text(&out));
        let out = run(&engine, gpu.path(), &["--memory-limit", "1GiB"], &[name, "/bin/true"]);
        assert!(out.status.code() == Some(125) && text(&out).contains(said), "{}", text(&out));
        let left = engine.docker(&["ps", "--all", "--quiet", "--filter", &format!("ancestor={name}")]);
        assert!(left.status.success() && left.stdout.is_empty(), "what was looked at is removed: {}", text(&left));
    }
}

/// Client: Podman
/// Engine: Podman, ours: enforced
#[test]
fn a_cdi_device_gives_a_container_of_podmans_its_tenants_limits() {
    let (Some(podman), gpu, host) = (Podman::get(), TempDir::new().unwrap(), TempDir::new().unwrap()) else { return };
    drop(MachineView::open_at(gpu.path(), Some("h200")).unwrap());
    let device = truth::read(gpu.path()).unwrap().devices[0].uuid.clone();
    let tenants = ["small", "large"]
        .map(|name| (name.to_owned(), format!("memory_limit = \"{}GiB\"", if name == "small" { 1 } else { 3 })));
    let daemon = Daemon::start(host.path(), &Plan { device, time: String::new(), tenants: tenants.into() });
    let spec = podman.specs().join("vgpu.json");
    let out = Command::new(build().join("vgpu"))
        .args(["cdi", "generate", "--socket"])
        .arg(daemon.admin())
        .arg("--output")
        .arg(&spec)
        .env("VGPU_LIBRARY", build().join("libvgpu.so"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", text(&out));
    // This engine reads no CDI version after 0.5.0.
    assert!(fs::read_to_string(&spec).unwrap().contains("\"cdiVersion\": \"0.3.0\""));
    for (name, codes) in [("small", "0 0 2\n"), ("large", "0 0 0\n")] {
        let tenant = format!("vgpu.internal/tenant={name}");
        let out = podman.run(gpu.path(), &["--device", &tenant], &["/usr/bin/python3", HOLDER, &format!("{GIB}:now")]);
        assert_eq!(String::from_utf8_lossy(&out.stdout), codes, "{name}: {}", text(&out));
    }
}
