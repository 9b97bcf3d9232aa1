//! Tests of `vgpu cdi generate`. Tests with real engines: tests/tests/container.

#[path = "docker/lab.rs"]
mod lab;
#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use lab::Lab;
use support::{Peer, eventually, texts, vgpud};

/// Starts a daemon with two tenants.
fn served(dir: &Path) -> (support::Guard, PathBuf) {
    serve(dir, "[[tenant]]\nname = \"chat\"\n[[tenant]]\nname = \"7\"\n")
}

/// Starts a daemon with these tenants; one of them has the name 7.
fn serve(dir: &Path, tenants: &str) -> (support::Guard, PathBuf) {
    let file = dir.join("vgpud.toml");
    fs::write(&file, format!("[daemon]\nrun_dir = {:?}\n{tenants}", dir.join("run"))).unwrap();
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
fn a_cdi_device_names_the_only_instance_of_its_tenant_by_the_daemon_and_by_the_file() {
    let lab = Lab::new();
    let [one, other] = ["01", "02"].map(|end| format!("MIG-5ae3917e-0f6b-4c44-9c7e-5d1f2b00c0{end}"));
    let tenants = format!(
        "[[tenant]]\nname = \"7\"\ndevices = [{one:?}]\n[[tenant]]\nname = \"both\"\ndevices = [{one:?}, {other:?}]\n"
    );
    let (_daemon, file) = serve(lab.dir.path(), &tenants);
    for words in [&[][..], &["--config", file.to_str().unwrap()]] {
        let out = lab.vgpu(&[&["cdi", "generate"], words].concat());
        let spec: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let env = |at: usize| spec["devices"][at]["containerEdits"]["env"].as_array().unwrap().clone();
        assert_eq!(env(0)[1..], [format!("CUDA_VISIBLE_DEVICES={one}")], "{spec}");
        assert_eq!(env(1).len(), 1, "a container of two instances chooses one itself: {spec}");
    }
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
    // A process that is reading the file reads the old content to its end.
    let mut reader = fs::File::open(&output).unwrap();
    assert!(lab.vgpu(&[&words[..], &["--kind", "example.com/tenant"]].concat()).status.success());
    let mut read = String::new();
    reader.read_to_string(&mut read).unwrap();
    assert!(read == before && fs::read_to_string(&output).unwrap() != before, "{read}");
    assert!(lab.vgpu(&words).status.success());
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
fn without_a_daemon_cdi_says_where_it_asked() {
    let lab = Lab::new();
    let out = lab.vgpu(&["cdi", "generate"]);
    assert!(out.status.code() == Some(1) && texts(&out).1.contains("admin.sock"), "{}", texts(&out).1);
}

#[test]
fn a_tenant_that_was_taken_out_and_lives_on_in_its_processes_is_no_device() {
    let lab = Lab::new();
    let (daemon, file) = served(lab.dir.path());
    let mut member = Peer::connect(&lab.path("run/tenants/chat/vgpud.sock"));
    assert!(member.hello().contains("\"chat\""));
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("[[tenant]]\nname = \"chat\"\n", "")).unwrap();
    let hangup = rustix::process::Signal::HUP;
    rustix::process::kill_process(rustix::process::Pid::from_child(&daemon.0), hangup).unwrap();
    let devices = || {
        let out = lab.vgpu(&["cdi", "generate"]);
        let spec: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        spec["devices"].as_array().unwrap().iter().map(|one| one["name"].to_string()).collect::<Vec<_>>()
    };
    eventually("one is left", || devices() == ["\"7\""]);
    let status = vgpu_control::ask_status(&lab.path("run/admin.sock")).unwrap();
    assert!(status.tenants.iter().any(|tenant| tenant.name == "chat" && tenant.removed), "{status:?}");
}
