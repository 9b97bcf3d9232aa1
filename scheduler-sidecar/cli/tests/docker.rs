//! Tests of `vgpu docker run` with a fake engine that prints its arguments. CDI: cdi.rs. Real engines:
//! tests/tests/container.

#[path = "docker/lab.rs"]
mod lab;
#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use lab::Lab;
use support::{Daemon, texts};
use vgpu_cli::arch;

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
    let machine = lab.path("machine");
    let out = lab.vgpu(&["docker", "run", "--print", "--sim", "--sim-dir", machine.to_str().unwrap(), "--", "img"]);
    assert!(texts(&out).0.contains("VGPU_SIM_DIR=/vgpu-sim") && !machine.exists(), "nothing is made either");
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
    // An equal preload list gets the same file on the host, so that a stopped container can be started again.
    let again = lab.told(&["--preload", "file", "--", "--gpus", "all", "img"]);
    assert_eq!(again, told);
}

#[test]
fn a_link_where_the_images_list_should_be_never_shows_a_file_of_the_host() {
    let lab = Lab::new();
    fs::write(lab.path("secret"), "/secret/of/the/host\n").unwrap();
    fs::create_dir_all(lab.path("files/etc")).unwrap();
    std::os::unix::fs::symlink(lab.path("secret"), lab.path("files/etc/ld.so.preload")).unwrap();
    // In the image the link is dangling, and an engine that follows links finds nothing.
    let told = lab.told(&["--preload", "file", "--", "--gpus", "all", "img"]);
    let mount = told.iter().find_map(|word| word.strip_suffix(":/etc/ld.so.preload:ro")).unwrap();
    assert_eq!(fs::read_to_string(mount).unwrap(), "/vgpu/libvgpu.so\n");
    // An engine without that option copies the link itself.
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
    fs::remove_file(lab.path(&format!("files{}", arch::GLIBC_LOADER))).unwrap();
    let (code, words) = lab.refused(&["--", "img"]);
    assert!(code == 125 && words.contains("static"), "{code} {words}");
    lab.file(arch::MUSL_LOADER, "loader");
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
    let ledgers = lab.mount("run/tenants/train/vgpud.sock.ledgers", "/run/vgpu-tenant/vgpud.sock.ledgers");
    assert!(told.windows(4).any(|all| all == ["-v", &room, "-v", &ledgers]), "{told:?}");
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
    // The caller's search path follows ours and does not replace it; without --sim it is the only one.
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
fn a_mode_and_a_preload_of_the_callers_reach_the_container_however_ours_gets_in() {
    let lab = Lab::new();
    let told = lab.told(&["--mode", "observe", "--", "--gpus", "all", "img"]);
    assert!(told.iter().any(|word| word == "VGPU_MODE=observe"), "{told:?}");
    let told = lab.told(&["--preload", "file", "--", "--gpus=all", "-e", "LD_PRELOAD=/x.so", "img"]);
    assert_eq!(told.iter().filter(|word| word.starts_with("LD_PRELOAD=")).collect::<Vec<_>>(), ["LD_PRELOAD=/x.so"]);
    // A list that already names our library, as in a committed container, still names it once.
    lab.file("/etc/ld.so.preload", "/vgpu/libvgpu.so\n/opt/theirs.so\n");
    let told = lab.told(&["--preload", "file", "--", "--gpus", "all", "img"]);
    let list = told.iter().find_map(|word| word.strip_suffix(":/etc/ld.so.preload:ro")).unwrap();
    assert_eq!(fs::read_to_string(list).unwrap(), "/vgpu/libvgpu.so\n/opt/theirs.so\n");
}

#[test]
fn an_image_that_is_not_there_is_asked_for_unless_that_was_forbidden() {
    let lab = Lab::new();
    let asked = |words: &[&str]| {
        let (code, said) = lab.refused(words);
        assert!(code == 125 && said.contains("No such image: other"), "{code} {said}");
        fs::read_to_string(lab.path("asked")).unwrap().lines().any(|line| line == "pull other")
    };
    assert!(asked(&["--", "other"]));
    assert!(!asked(&["--", "--pull", "never", "other"]));
}

#[test]
fn who_gives_the_container_no_gpu_is_told_so() {
    let lab = Lab::new();
    let noted = |words: &[&str]| {
        let out = lab.vgpu(&[&["docker", "run"], words].concat());
        assert!(out.status.success(), "{words:?}: {}", texts(&out).1);
        texts(&out).1.contains("no --gpus, --runtime or --device")
    };
    assert!(noted(&["--", "img"]));
    assert!(!noted(&["--", "--gpus", "all", "img"]));
    assert!(!noted(&["--sim", "--sim-dir", lab.path("machine").to_str().unwrap(), "--", "img"]));
}

#[test]
fn a_tenants_name_leads_nowhere_else_and_a_path_that_an_engine_would_cut_is_refused() {
    let lab = Lab::new();
    let elsewhere = lab.path("run/elsewhere/vgpud.sock");
    fs::create_dir_all(elsewhere.parent().unwrap()).unwrap();
    fs::create_dir_all(lab.path("run/tenants")).unwrap();
    fs::write(&elsewhere, "").unwrap();
    let (code, words) = lab.refused(&["--tenant", "../elsewhere", "--", "img"]);
    assert!(code == 2 && words.contains("--tenant \"../elsewhere\""), "{code} {words}");
    fs::rename(lab.path("run/elsewhere"), lab.path("run/else:where")).unwrap();
    let socket = lab.path("run/else:where/vgpud.sock");
    let (code, words) = lab.refused(&["--socket", socket.to_str().unwrap(), "--", "--gpus", "all", "img"]);
    assert!(code == 2 && words.contains("has a colon in its path"), "{code} {words}");
}
