//! Tasks of Docker Swarm under the entrypoint of integrations/swarm: a swarm of one node with four shares of a
//! simulated device.
//!
//! Client: Docker

use crate::engine::{Engine, IMAGE, checkout, text};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output};
use tempfile::TempDir;
use vgpu_tests::artefacts::{libvgpu, sim_dir};
use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::{GIB, Lab, eventually_seen};

/// The names that integrations/swarm/daemon.json.example gives Swarm, as options of dockerd.
fn resource_options() -> Vec<String> {
    let example = fs::read_to_string(checkout().join("integrations/swarm/daemon.json.example")).unwrap();
    let example: Value = serde_json::from_str(&example).unwrap();
    let names = example["node-generic-resources"].as_array().unwrap().iter();
    names.map(|name| format!("--node-generic-resource={}", name.as_str().unwrap())).collect()
}

/// A swarm of one node, its device and the daemon with the tenants.
struct Swarm {
    engine: Engine,
    lab: Lab,
    daemon: Daemon,
    /// Directories that the services mount: the library, and the simulated driver.
    stage: TempDir,
}

impl Swarm {
    fn start() -> Option<Swarm> {
        let options = resource_options();
        let engine = Engine::start_alone(&options.iter().map(String::as_str).collect::<Vec<_>>())?;
        let lab = Lab::new("h200").for_every_user();
        let tenants = vec![("share".to_owned(), "replicas = 4".to_owned())];
        let plan = Plan { device: lab.device(0).uuid, time: String::new(), tenants };
        let daemon = Daemon::start_on_machine(&lab, &plan);
        let stage = TempDir::new().unwrap();
        for dir in ["vgpu", "sim"] {
            fs::create_dir(stage.path().join(dir)).unwrap();
        }
        fs::copy(libvgpu(), stage.path().join("vgpu/libvgpu.so")).unwrap();
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            fs::copy(sim_dir().join(name), stage.path().join("sim").join(name)).unwrap();
        }
        // The simulated libraries may need it, and the image does not have it.
        let needs = Command::new("ldd").arg(stage.path().join("sim/libcuda.so.1")).output().unwrap();
        let needs = String::from_utf8_lossy(&needs.stdout).into_owned();
        let needed = needs.split_whitespace().find(|word| word.starts_with('/') && word.contains("libgcc_s"));
        if let Some(library) = needed {
            fs::copy(library, stage.path().join("sim/libgcc_s.so.1")).unwrap();
        }
        let swarm = Swarm { engine, lab, daemon, stage };
        swarm.docker(&["swarm", "init", "--advertise-addr", "127.0.0.1", "--listen-addr", "127.0.0.1"]);
        Some(swarm)
    }

    #[track_caller]
    fn docker(&self, words: &[&str]) -> Output {
        let out = self.engine.docker(words);
        assert!(out.status.success(), "{words:?}: {}", text(&out));
        out
    }

    /// Makes a service whose tasks run once. `options` come before the image.
    fn create_service(&self, name: &str, options: &[&str], command: &str) {
        let mount = |from: &std::path::Path, to: &str| format!("type=bind,src={},dst={to}", from.display());
        let clients = checkout().join("tests/clients");
        let mounts = [
            mount(&self.stage.path().join("vgpu"), "/vgpu,ro"),
            mount(&self.stage.path().join("sim"), "/sim,ro"),
            mount(&self.lab.gpu(), "/gpu"),
            mount(&clients, "/clients,ro"),
            mount(&checkout().join("integrations/swarm"), "/vgpu-swarm,ro"),
        ];
        let mut words = vec!["service", "create", "--detach", "--no-resolve-image", "--name", name];
        words.extend(["--restart-condition", "none", "--entrypoint", "/vgpu-swarm/entrypoint"]);
        words.extend(["--env", "LD_LIBRARY_PATH=/sim", "--env", "VGPU_SIM_DIR=/gpu"]);
        words.extend(mounts.iter().flat_map(|mount| ["--mount", mount.as_str()]));
        words.extend(options);
        words.extend([IMAGE, "sh", "-c", command]);
        self.docker(&words);
    }

    /// Mount of the tenants' directories.
    fn tenants(&self) -> String {
        format!("type=bind,src={},dst=/run/vgpu/tenants", self.lab.path().join("run/tenants").display())
    }

    /// Output of all tasks of a service so far.
    fn output(&self, name: &str) -> String {
        text(&self.engine.docker(&["service", "logs", "--raw", name]))
    }

    /// States of a service's tasks, with the reasons of those that do not run.
    fn states(&self, name: &str) -> String {
        let format = "{{.CurrentState}} {{.Error}}";
        text(&self.engine.docker(&["service", "ps", "--no-trunc", "--format", format, name]))
    }

    #[track_caller]
    fn wait_for_output(&self, name: &str, condition: impl Fn(&str) -> bool) -> String {
        let seen = || format!("{}{}\n{}", self.output(name), self.states(name), self.daemon.log());
        eventually_seen(name, seen, || condition(&self.output(name)));
        self.output(name)
    }
}

impl Drop for Swarm {
    fn drop(&mut self) {
        let _ = self.engine.docker(&["swarm", "leave", "--force"]);
    }
}

/// Engine: Docker Swarm, ours: enforced
/// Engine: Docker Swarm, ours: refused
#[test]
fn each_task_of_a_swarm_is_held_to_the_tenant_that_its_resource_names() {
    let Some(swarm) = Swarm::start() else { return };
    let quarter = swarm.lab.device(0).cuda_total / 4;
    let (fits, tenants) = (quarter - 4 * GIB, swarm.tenants());
    let command = format!(
        "echo share=$DOCKER_RESOURCE_VGPU; /usr/bin/python3 /clients/container_client.py {fits} {quarter}; exec sleep 600"
    );
    let options = ["--replicas", "5", "--generic-resource", "VGPU=1", "--mount", &tenants];
    swarm.create_service("chat", &options, &command);
    let said = swarm.wait_for_output("chat", |said| said.matches("cuda_free_at_last").count() == 4);
    let reports: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!(reports.len(), 4, "{said}");
    for seen in reports {
        assert_eq!((&seen["nvml_total"], &seen["cuda_total"]), (&quarter.into(), &quarter.into()), "{seen}");
        assert_eq!((&seen["fits"], &seen["too_much"]), (&0.into(), &2.into()), "{seen}");
    }
    let shares: BTreeSet<&str> = said.lines().filter_map(|line| line.strip_prefix("share=")).collect();
    assert_eq!(shares, BTreeSet::from(["share-0", "share-1", "share-2", "share-3"]));
    let states = swarm.states("chat");
    assert!(states.contains("no suitable node (insufficient resources"), "{states}");
    // By the daemon, each task is a member of its own tenant.
    let log = swarm.daemon.log();
    for share in shares {
        assert!(log.contains(&format!("member joined kind=\"member.joined\" tenant={share} ")), "{share}: {log}");
    }
    swarm.docker(&["service", "rm", "chat"]);
    let refused = |name: &str, options: &[&str], why: &str| {
        swarm.create_service(name, options, "echo it ran");
        let said = swarm.wait_for_output(name, |said| said.contains("vgpu: this task cannot run here: "));
        assert!(said.contains(why) && !said.contains("it ran"), "{said}");
    };
    refused("none", &["--mount", &tenants], "it has no share of a GPU");
    refused("two", &["--generic-resource", "VGPU=2", "--mount", &tenants], "accepted: one");
    refused("blind", &["--generic-resource", "VGPU=1"], "or /run/vgpu/tenants is not mounted");
    // One tenant for each task, and no other, where the swarm has one node with a GPU.
    let own = format!(
        "type=bind,src={}/share-{{{{.Task.Slot}}}},dst=/run/vgpu/tenants/own",
        swarm.lab.path().join("run/tenants").display()
    );
    let options = ["--replicas", "2", "--env", "DOCKER_RESOURCE_VGPU=own", "--mount", &own];
    swarm.create_service(
        "slots",
        &options,
        "echo there: $(ls /run/vgpu/tenants); exec /usr/bin/python3 /clients/container_client.py 1048576 999999999999",
    );
    let said = swarm.wait_for_output("slots", |said| said.matches("cuda_free_at_last").count() == 2);
    assert_eq!(said.matches("there: own\n").count(), 2, "{said}");
    assert_eq!(said.matches(&format!("\"cuda_total\": {quarter}")).count(), 2, "{said}");
}
