//! What `vgpu docker run` and `vgpu cdi generate` promise, with an engine that only says what it was told. Real engines:
//! tests/tests/container.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use scheduler_sidecar::cli::arch;
use support::{Daemon, eventually, texts, vgpu, vgpud};
use tempfile::TempDir;

/// An engine with one image, whose variables stand in `env` and whose files lie below `files`.
const ENGINE: &str = r#"#!/bin/sh
here=$(dirname "$0")
printf '%s\n' "$*" >>"$here/asked"
case $1 in
image) [ "$5" = img ] || { echo "No such image: $5" >&2; exit 1; }; cat "$here/env" ;;
pull) echo "pull access denied" >&2; exit 1 ;;
create) echo 4711 ;;
cp)
  if [ "$2" = --follow-link ]; then
    [ ! -e "$here/podman" ] || { echo "Error: unknown flag: --follow-link" >&2; exit 125; }
    shift
    [ ! -L "$here/files${2#4711:}" ] || { echo "Could not find the file" >&2; exit 1; }
  fi
  cp -a "$here/files${2#4711:}" "$3"
  ;;
rm) ;;
run) for word; do printf '%s\n' "$word"; done ;;
esac
"#;

struct Lab {
    dir: TempDir,
}

impl Lab {
    fn new() -> Self {
        let lab = Self { dir: TempDir::new().unwrap() };
        let engine = lab.path("engine");
        fs::write(&engine, ENGINE).unwrap();
        fs::set_permissions(&engine, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(lab.path("env"), "[\"PATH=/bin\"]\n").unwrap();
        lab.file(arch::LOADER, "loader");
        // A library that can be preloaded; what is in it does not matter here.
        fs::create_dir(lab.path("lib")).unwrap();
        let cc = Command::new("cc").args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(lab.library()).status();
        assert!(cc.unwrap().success());
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn library(&self) -> PathBuf {
        self.path("lib/libvgpu.so")
    }

    /// A file of the image.
    fn file(&self, name: &str, text: &str) {
        let file = self.path("files").join(name.trim_start_matches('/'));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn vgpu(&self, words: &[&str]) -> Output {
        let mut command = vgpu();
        command.args(words).env("VGPU_LIBRARY", self.library()).env("VGPU_DOCKER", self.path("engine"));
        command.env("VGPU_RUNTIME_DIR", self.path("run")).output().unwrap()
    }

    /// What the engine was told.
    fn told(&self, words: &[&str]) -> Vec<String> {
        let out = self.vgpu(&[&["docker", "run"], words].concat());
        let (stdout, stderr) = texts(&out);
        assert!(out.status.success(), "{words:?}: {stderr}");
        stdout.lines().map(str::to_owned).collect()
    }

    /// What was said instead, with its exit code.
    fn refused(&self, words: &[&str]) -> (i32, String) {
        fs::write(self.path("asked"), "").unwrap();
        let out = self.vgpu(&[&["docker", "run"], words].concat());
        let asked = fs::read_to_string(self.path("asked")).unwrap();
        assert!(!asked.lines().any(|line| line.starts_with("run ")), "nothing is started: {asked}");
        (out.status.code().unwrap(), texts(&out).1)
    }

    fn mount(&self, name: &str, to: &str) -> String {
        format!("{}:{to}", self.path(name).display())
    }
}

#[test]
fn the_library_and_limits_are_added_and_everything_else_is_passed_on() {
    let lab = Lab::new();
    let words = [
        "--memory-limit",
        "4GiB",
        "--sm-limit",
        "30",
        "--",
        "--rm",
        "--gpus",
        "all",
        "-v",
        "/a b:/c",
        "img",
        "sh",
        "-c",
        "x  y",
    ];
    let library = lab.mount("lib", "/vgpu:ro");
    let expected = [
        "run",
        "-v",
        &library,
        "-e",
        "LD_PRELOAD=/vgpu/libvgpu.so",
        "-e",
        "VGPU_MEMORY_LIMIT=4GiB",
        "-e",
        "VGPU_SM_LIMIT=30",
        "--rm",
        "--gpus",
        "all",
        "-v",
        "/a b:/c",
        "img",
        "sh",
        "-c",
        "x  y",
    ];
    assert_eq!(lab.told(&words), expected);
    let asked = fs::read_to_string(lab.path("asked")).unwrap();
    assert!(
        asked.contains("rm --force --volumes 4711\n"),
        "what was made to look at is removed, with the volumes that came of it: {asked}"
    );
}

#[test]
fn print_shows_a_line_for_a_shell_and_starts_nothing() {
    let lab = Lab::new();
    let out = lab.vgpu(&["docker", "run", "--print", "--sm-limit", "30", "--", "--gpus", "all", "img", "echo", "a b"]);
    let (line, _) = texts(&out);
    assert!(line.ends_with("-e VGPU_SM_LIMIT=30 --gpus all img echo 'a b'\n"), "{line}");
    assert!(!fs::read_to_string(lab.path("asked")).unwrap().contains("\nrun "));
    let shown = Command::new("sh").args(["-c", &line]).output().unwrap();
    assert!(texts(&shown).0.ends_with("img\necho\na b\n"), "{line}");
}

#[test]
fn what_the_image_preloads_and_what_the_caller_does_stay_behind_ours() {
    let lab = Lab::new();
    fs::write(lab.path("env"), "[\"LD_PRELOAD=/usr/lib/libjemalloc.so.2\"]\n").unwrap();
    let preload = |words: &[&str]| {
        let told = lab.told(words);
        told.into_iter().filter_map(|word| word.strip_prefix("LD_PRELOAD=").map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(preload(&["--", "--gpus", "all", "img"]), ["/vgpu/libvgpu.so:/usr/lib/libjemalloc.so.2"]);
    assert_eq!(preload(&["--", "--gpus=all", "-e", "LD_PRELOAD=/x.so", "img"]), ["/vgpu/libvgpu.so:/x.so"]);
    assert_eq!(preload(&["--unchecked", "--", "--gpus=all", "img"]), ["/vgpu/libvgpu.so"]);
}

#[test]
fn an_images_own_ld_so_preload_is_merged_into_the_one_that_is_mounted() {
    let lab = Lab::new();
    lab.file("/etc/ld.so.preload", "# theirs\n/opt/theirs.so");
    let told = lab.told(&["--preload", "file", "--", "--gpus", "all", "img"]);
    let mount =
        told.iter().find_map(|word| word.strip_suffix(":/etc/ld.so.preload:ro")).unwrap_or_else(|| panic!("{told:?}"));
    assert_eq!(fs::read_to_string(mount).unwrap(), "/vgpu/libvgpu.so\n# theirs\n/opt/theirs.so\n");
    assert_eq!(
        fs::metadata(mount).unwrap().permissions().mode() & 0o777,
        0o644,
        "whoever is in the container reads it"
    );
    assert!(!told.iter().any(|word| word.starts_with("LD_PRELOAD=")), "{told:?}");
    // The same list is the same file, so that a container can be started again.
    let again = lab.told(&["--preload", "file", "--", "--gpus", "all", "img"]);
    assert_eq!(again, told);
}

#[test]
fn a_link_where_the_images_list_should_be_never_shows_a_file_of_the_host() {
    let lab = Lab::new();
    fs::write(lab.path("secret"), "/secret/of/the/host\n").unwrap();
    fs::create_dir_all(lab.path("files/etc")).unwrap();
    std::os::unix::fs::symlink(lab.path("secret"), lab.path("files/etc/ld.so.preload")).unwrap();
    // In the image the link leads nowhere, and an engine that follows links finds nothing.
    let told = lab.told(&["--preload", "file", "--", "--gpus", "all", "img"]);
    let mount = told.iter().find_map(|word| word.strip_suffix(":/etc/ld.so.preload:ro")).unwrap();
    assert_eq!(fs::read_to_string(mount).unwrap(), "/vgpu/libvgpu.so\n");
    // One that has no option for it brings the link itself.
    fs::write(lab.path("podman"), "").unwrap();
    let (code, words) = lab.refused(&["--preload", "file", "--", "img"]);
    assert!(code == 125 && words.contains("/etc/ld.so.preload of the image is a link"), "{code} {words}");
    assert_eq!(lab.told(&["--", "img"]).last().unwrap(), "img", "nobody reads it without --preload file");
}

#[test]
fn an_images_list_that_is_no_text_of_a_list_s_size_is_refused_and_not_waited_for() {
    let lab = Lab::new();
    let list = lab.path("files/etc/ld.so.preload");
    fs::create_dir_all(list.parent().unwrap()).unwrap();
    assert!(Command::new("mkfifo").arg(&list).status().unwrap().success());
    let refused = |said: &str| {
        let (code, words) = lab.refused(&["--preload", "file", "--", "img"]);
        assert!(code == 125 && words.contains(said) && words.contains("--unchecked"), "{said}: {code} {words}");
    };
    refused("is not a regular file");
    fs::remove_file(&list).unwrap();
    fs::write(&list, "#".repeat(64 * 1024 + 1)).unwrap();
    refused("is larger than 64 KiB");
    fs::write(&list, b"/\xff.so\n").unwrap();
    refused("is not UTF-8");
    fs::write(&list, "#".repeat(64 * 1024)).unwrap();
    lab.told(&["--preload", "file", "--", "--gpus", "all", "img"]);
}

#[test]
fn an_image_that_would_ignore_the_library_is_refused_and_its_reason_said() {
    let lab = Lab::new();
    fs::remove_file(lab.path(&format!("files{}", arch::LOADER))).unwrap();
    let (code, words) = lab.refused(&["--", "img"]);
    assert!(code == 125 && words.contains("static"), "{code} {words}");
    lab.file(arch::MUSL, "loader");
    let (code, words) = lab.refused(&["--", "img"]);
    assert!(code == 125 && words.contains("musl") && words.contains("--unchecked"), "{code} {words}");
    assert_eq!(lab.told(&["--unchecked", "--", "img"]).last().unwrap(), "img");
}

#[test]
fn what_is_wrong_is_said_before_anything_is_started() {
    let lab = Lab::new();
    for (words, code, said) in [
        (&["--memory-limit", "lots", "--", "img"][..], 2, "--memory-limit \"lots\""),
        (&["--sm-limit", "130", "--", "img"], 2, "--sm-limit \"130\""),
        (&["--", "--rm"], 2, "no image"),
        (&["--tenant", "x", "--", "img"], 2, "no tenant is served below"),
        (&["--tenant", "../x", "--", "img"], 2, "--tenant \"../x\""),
        (&["--socket", "/nowhere/vgpud.sock", "--", "img"], 2, "is not there"),
        (&["--library", "/nowhere/libvgpu.so", "--", "img"], 125, "/nowhere/libvgpu.so"),
        (&["--", "other"], 125, "No such image: other"),
        (&["--engine", "/nowhere/docker", "--", "img"], 127, "--engine"),
    ] {
        let (got, stderr) = lab.refused(words);
        assert!(got == code && stderr.contains(said), "{words:?}: {got} {stderr}");
    }
    assert!(lab.vgpu(&["docker", "run", "img"]).status.code() == Some(2), "the engine's words stand behind --");
}

#[test]
fn a_tenants_directory_is_mounted_and_its_neighbours_are_named_to_whoever_mistypes() {
    let lab = Lab::new();
    let socket = lab.path("run/tenants/train/vgpud.sock");
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let _daemon = Daemon::start(&socket, &[]);
    let told = lab.told(&["--tenant", "train", "--", "--gpus", "all", "img"]);
    let room = lab.mount("run/tenants/train", "/run/vgpu-tenant:ro");
    assert!(told.windows(2).any(|pair| pair == ["-v", &room]), "{told:?}");
    assert!(told.contains(&"VGPU_SOCKET=/run/vgpu-tenant/vgpud.sock".to_owned()), "{told:?}");
    let (code, words) = lab.refused(&["--tenant", "trian", "--", "other"]);
    assert!(code == 2 && words.contains("accepted: train"), "{code} {words}");
}

#[test]
fn the_simulated_gpu_comes_with_the_library_and_its_machine() {
    let lab = Lab::new();
    fs::write(lab.path("env"), "[\"LD_LIBRARY_PATH=/opt/lib\"]\n").unwrap();
    let machine = lab.path("machine");
    let told = lab.told(&["--sim", "--sim-dir", machine.to_str().unwrap(), "--", "img"]);
    let mount = lab.mount("machine", "/vgpu-sim");
    for word in [mount.as_str(), "VGPU_SIM_DIR=/vgpu-sim", "LD_LIBRARY_PATH=/vgpu/sim:/opt/lib"] {
        assert!(told.iter().any(|known| known == word), "{word} is not in {told:?}");
    }
    // A search path of the caller's stands behind ours, and does not displace it; without --sim it is the caller's alone.
    let searched = |words: &[&str]| -> Vec<String> {
        lab.told(words).into_iter().filter(|word| word.starts_with("LD_LIBRARY_PATH=")).collect()
    };
    let sim_dir = machine.to_str().unwrap();
    let theirs = ["--", "--gpus", "all", "-ite", "LD_LIBRARY_PATH=/y", "img"];
    assert_eq!(searched(&[&["--sim", "--sim-dir", sim_dir], &theirs[..]].concat()), ["LD_LIBRARY_PATH=/vgpu/sim:/y"]);
    assert_eq!(searched(&theirs), ["LD_LIBRARY_PATH=/y"]);
    assert_eq!(
        fs::metadata(machine).unwrap().permissions().mode() & 0o7777,
        0o1777,
        "every user of a container may use it"
    );
}

/// A daemon by a file with two tenants.
fn served(dir: &Path) -> (support::Guard, PathBuf) {
    let file = dir.join("vgpud.toml");
    fs::write(
        &file,
        format!("[daemon]\nrun_dir = {:?}\n[[tenant]]\nname = \"chat\"\n[[tenant]]\nname = \"7\"\n", dir.join("run")),
    )
    .unwrap();
    let child = vgpud().args(["--driver", "none", "--log", "error", "--config"]).arg(&file).spawn().unwrap();
    eventually("the daemon opens its sockets", || {
        dir.join("run/admin.sock").exists() && dir.join("run/tenants/7/vgpud.sock").exists()
    });
    (support::Guard(child), file)
}

#[test]
fn cdi_devices_are_the_daemons_tenants_and_those_of_its_file() {
    let lab = Lab::new();
    let (_daemon, file) = served(lab.dir.path());
    let spec = |words: &[&str]| -> serde_json::Value {
        let out = lab.vgpu(&[&["cdi", "generate"], words].concat());
        assert!(out.status.success(), "{}", texts(&out).1);
        serde_json::from_slice(&out.stdout).unwrap()
    };
    let asked = spec(&[]);
    assert_eq!(asked["cdiVersion"], "0.5.0", "a name that begins with a digit needs it");
    let names: Vec<_> =
        asked["devices"].as_array().unwrap().iter().map(|device| device["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["7", "chat"]);
    assert_eq!(
        asked["devices"][1]["containerEdits"]["mounts"][0]["hostPath"],
        lab.path("run/tenants/chat").to_str().unwrap()
    );
    assert_eq!(spec(&["--config", file.to_str().unwrap()]), asked);
}

#[test]
fn a_cdi_file_is_written_whole_or_not_at_all() {
    let lab = Lab::new();
    let file = lab.path("vgpud.toml");
    fs::write(&file, "[[tenant]]\nname = \"chat\"\n").unwrap();
    let output = lab.path("cdi/vgpu.json");
    let words = ["cdi", "generate", "--config", file.to_str().unwrap(), "--output", output.to_str().unwrap()];
    assert!(lab.vgpu(&words).status.success());
    let before = fs::read_to_string(&output).unwrap();
    assert!(before.ends_with("}\n") && before.contains("\"vgpu.internal/tenant\""), "{before}");
    fs::write(&file, "[[tenant]]\nname = \"-\"\n").unwrap();
    let out = lab.vgpu(&words);
    assert!(out.status.code() == Some(2) && texts(&out).1.contains("CDI does not accept"), "{}", texts(&out).1);
    fs::write(&file, "[[tenant]]\nname = 1\n").unwrap();
    let out = lab.vgpu(&words);
    assert!(out.status.code() == Some(1) && texts(&out).1.contains("vgpud.toml:2:8"), "{}", texts(&out).1);
    assert_eq!(fs::read_to_string(&output).unwrap(), before);
    assert_eq!(fs::read_dir(lab.path("cdi")).unwrap().count(), 1, "nothing half written lies beside it");
}

#[test]
fn a_cdi_file_goes_where_a_link_leads_and_a_device_or_a_pipe_stays_one() {
    let lab = Lab::new();
    let (config, link) = (lab.path("vgpud.toml"), lab.path("vgpu.json"));
    fs::write(&config, "[[tenant]]\nname = \"chat\"\n").unwrap();
    std::os::unix::fs::symlink("/dev/stdout", &link).unwrap();
    let words = ["cdi", "generate", "--config", config.to_str().unwrap(), "--output", link.to_str().unwrap()];
    let (stdout, stderr) = texts(&lab.vgpu(&words));
    assert!(link.is_symlink() && stdout.contains("\"chat\""), "{stdout} {stderr}");
}

#[test]
fn a_machines_directory_that_was_there_keeps_its_mode_and_who_cannot_use_it_is_said() {
    let lab = Lab::new();
    let machine = lab.path("mine");
    fs::create_dir(&machine).unwrap();
    fs::set_permissions(&machine, fs::Permissions::from_mode(0o750)).unwrap();
    let out = lab.vgpu(&["docker", "run", "--sim", "--sim-dir", machine.to_str().unwrap(), "--", "img"]);
    assert_eq!(fs::metadata(&machine).unwrap().permissions().mode() & 0o7777, 0o750);
    assert!(out.status.success() && texts(&out).1.contains("closed to others"), "{}", texts(&out).1);
}

#[test]
fn without_a_daemon_cdi_says_where_it_asked() {
    let lab = Lab::new();
    let out = lab.vgpu(&["cdi", "generate"]);
    assert!(out.status.code() == Some(1) && texts(&out).1.contains("admin.sock"), "{}", texts(&out).1);
}
