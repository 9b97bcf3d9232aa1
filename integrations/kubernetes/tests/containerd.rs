//! Tenants in containers of a real containerd, by CDI and by NRI. The tests play the kubelet; the device is simulated.

#[path = "runtime/cri.rs"]
mod cri;
#[path = "runtime/node.rs"]
#[allow(dead_code, reason = "each test program uses a part")]
mod node;
#[path = "stubs/programs.rs"]
mod programs;

use std::process::Command;

use cri::{CdiName, ContainerConfig};
use node::{GIB, Node, checkout, eventually};
use programs::built;

const FILE: &str = "[[device]]\nid = 0\n[[tenant]]\nname = \"fixed\"\nmemory_limit = \"4GiB\"\n";

const KAI_LIMIT: &str = "nvidia.com/container.main.gpu-memory.limit";

/// Engine: containerd (CRI), ours: enforced
#[tokio::test]
async fn a_cdi_device_brings_a_container_into_its_tenant_to_the_last_byte() {
    let Some(node) = Node::start(FILE).await else { return };
    let spec = node.runtime.path("cdi/vgpu.json");
    let mut generate = Command::new(built("vgpu"));
    generate.args(["cdi", "generate", "--kind", "test.internal/tenant", "--output"]).arg(&spec);
    generate.arg("--library").arg(node.path("vgpu/libvgpu.so")).arg("--socket").arg(node.admin());
    assert!(generate.status().unwrap().success());
    let pod = node.run_pod("cdi", &[]).await;
    let cdi_devices = vec![CdiName { name: "test.internal/tenant=fixed".into() }];
    let mut config = ContainerConfig::new(0);
    config.cdi_devices = cdi_devices;
    let container = node.run_config(&pod, config, &[], &[]).await.unwrap();
    node.assert_held(&container, 4 * GIB).await;
    node.cri.remove_pod(&pod.sandbox).await;
}

/// Engine: containerd with the NRI plugin, ours: enforced
/// Engine: containerd with the NRI plugin, GPU fractioning: enforced
#[tokio::test]
async fn annotations_make_a_tenant_that_ends_with_its_container() {
    let Some(mut node) = Node::start(FILE).await else { return };
    node.start_plugin(&[]).await;
    let own = [("vgpu.internal/container.main.memory-limit", "3GiB"), ("vgpu.internal/container.main.weight", "7")];
    for (name, annotations, limit) in [("kai", &[(KAI_LIMIT, "6Gi")][..], 6 * GIB), ("own", &own, 3 * GIB)] {
        let pod = node.run_pod(name, annotations).await;
        let container = node.run_container(&pod, 0, &[], &[]).await.unwrap();
        let [tenant] = node.added().try_into().unwrap();
        let label = |key: &str| tenant.bearer.labels[key].clone();
        assert_eq!((label("namespace"), label("pod"), label("container")), ("lab".into(), name.into(), "main".into()));
        node.assert_held(&container, limit).await;
        // A container that ends by itself and starts again is another one, in a tenant of its own.
        node.cri.exec(&container, &["/bin/sh", "-c", "kill -9 1"]).await;
        node.cri.stop_container(&container).await;
        eventually("its tenant is removed", async || node.added().is_empty()).await;
        let again = node.run_container(&pod, 1, &[], &[]).await.unwrap();
        node.assert_held(&again, limit).await;
        assert_ne!(node.added()[0].name, tenant.name);
        node.cri.remove_pod(&pod.sandbox).await;
        eventually("nothing is left", async || node.added().is_empty()).await;
    }
    let plain = node.run_pod("plain", &[]).await;
    let container = node.run_container(&plain, 0, &[], &[]).await.unwrap();
    assert!(node.added().is_empty() && node.total(&container).await.unwrap() > 100 * GIB, "it asks for nothing");
    node.cri.remove_pod(&plain.sandbox).await;
}

/// Why the runtime does not make a container.
async fn refused(node: &Node, name: &str, annotations: &[(&str, &str)], variables: &[(&str, &str)]) -> String {
    let pod = node.run_pod(name, annotations).await;
    let why = node.run_container(&pod, 0, variables, &[]).await.unwrap_err();
    node.cri.remove_pod(&pod.sandbox).await;
    why.message().to_owned()
}

/// Engine: containerd with the NRI plugin, ours: refused
/// Engine: containerd with the NRI plugin, GPU fractioning: refused
/// Engine: containerd with the NRI plugin, KAI GPU_PORTION: refused
#[tokio::test]
async fn a_container_that_asks_for_what_it_cannot_have_does_not_start() {
    let Some(mut node) = Node::start(FILE).await else { return };
    node.start_plugin(&["--gpu-portion", "refuse"]).await;
    let words = refused(&node, "typo", &[("vgpu.internal/container.main.memory", "1Gi")], &[]).await;
    assert!(words.contains("is no annotation of vgpu; accepted: "), "{words}");
    let words = refused(&node, "large", &[(KAI_LIMIT, "500Gi")], &[]).await;
    assert!(words.contains("container main of pod lab/large") && words.contains("is more than device"), "{words}");
    let words = refused(&node, "portion", &[], &[("GPU_PORTION", "0.05")]).await;
    assert!(words.contains("GPU_PORTION=0.05 and no memory limit"), "{words}");
    node.daemon = None;
    let words = refused(&node, "alone", &[(KAI_LIMIT, "1Gi")], &[]).await;
    assert!(words.contains("container main of pod lab/alone"), "{words}");
}

#[tokio::test]
async fn a_plugin_that_starts_again_leaks_no_tenant_keeps_those_of_the_living_and_names_containers_without_one() {
    let Some(mut node) = Node::start(FILE).await else { return };
    let nri = node.runtime.path("nri.sock");
    node.start_plugin(&[]).await;
    let annotations = [(KAI_LIMIT, "2Gi")];
    let (ending, living) = (node.run_pod("ending", &annotations).await, node.run_pod("living", &annotations).await);
    let ended = node.run_container(&ending, 0, &[], &[]).await.unwrap();
    let lives = node.run_container(&living, 0, &[], &[]).await.unwrap();
    assert_eq!(node.added().len(), 2);
    node.plugin = None;
    node.cri.stop_container(&ended).await;
    assert!(node.cri.has_ended(&ended).await && node.added().len() == 2, "nobody is asked");
    // A plugin that is not there is not asked: the container starts, without a tenant.
    let open = node.run_pod("open", &annotations).await;
    let without = node.run_container(&open, 0, &[], &[]).await.unwrap();
    assert!(node.total(&without).await.unwrap() > 100 * GIB);
    let audit =
        || Command::new(env!("CARGO_BIN_EXE_vgpu-k8s")).arg("audit").arg("--nri-socket").arg(&nri).output().unwrap();
    let found = "container main of pod lab/open runs without its limit: memory-limit 2048MiB";
    let audited = audit();
    // The other two have theirs.
    assert_eq!(String::from_utf8_lossy(&audited.stdout), format!("{found}\n"));
    assert_eq!(audited.status.code(), Some(1), "{audited:?}");
    // The page shows it for another pod.
    let shown = format!("{found}\n{}", String::from_utf8_lossy(&audited.stderr));
    let shown = format!("$ vgpu-k8s audit\n{}```\n", shown.replace("lab/open", "lab/train").replace("2048", "6144"));
    assert!(std::fs::read_to_string(checkout().join("docs/kubernetes.md")).unwrap().contains(&shown), "{shown}");
    node.start_plugin(&[]).await;
    eventually("the plugin names it too", async || node.text("nri.log").contains(found)).await;
    node.cri.remove_pod(&open.sandbox).await;
    let audited = audit();
    assert!(audited.status.success() && audited.stdout.is_empty(), "{audited:?}");
    let pods = |node: &Node| node.added().iter().map(|tenant| tenant.bearer.labels["pod"].clone()).collect::<Vec<_>>();
    eventually("the tenant of the ended container is removed", async || pods(&node) == ["living"]).await;
    node.assert_held(&lives, 2 * GIB).await;
    // It knows the tenants that the plugin before it made.
    node.cri.stop_container(&lives).await;
    eventually("the other one too", async || node.added().is_empty()).await;
    for pod in [ending, living] {
        node.cri.remove_pod(&pod.sandbox).await;
    }
}

#[tokio::test]
async fn tenants_of_containers_that_end_while_vgpud_is_away_are_removed_when_it_is_back() {
    let Some(mut node) = Node::start(FILE).await else { return };
    node.start_plugin(&[]).await;
    let pod = node.run_pod("away", &[(KAI_LIMIT, "2Gi")]).await;
    let container = node.run_container(&pod, 0, &[], &[]).await.unwrap();
    node.daemon = None;
    node.cri.stop_container(&container).await;
    node.start_daemon();
    let is_empty = async || vgpu_control::ask_status(&node.admin()).is_ok() && node.added().is_empty();
    eventually("it is removed", is_empty).await;
    node.cri.remove_pod(&pod.sandbox).await;
}

#[tokio::test]
async fn a_container_in_a_tenant_of_cdi_gets_no_other_and_a_variable_alone_gets_nobody_out() {
    let Some(mut node) = Node::start(FILE).await else { return };
    node.start_plugin(&[]).await;
    let pod = node.run_pod("both", &[(KAI_LIMIT, "2Gi")]).await;
    // As the device plugin mounts it.
    let room = node.path("run/tenants/fixed");
    let mounts = [(room.as_path(), "/run/vgpu-tenant")];
    node.run_container(&pod, 0, &[("VGPU_SOCKET", "/run/vgpu-tenant/vgpud.sock")], &mounts).await.unwrap();
    assert!(node.added().is_empty());
    let container = node.run_container(&pod, 1, &[("VGPU_SOCKET", "/nowhere")], &[]).await.unwrap();
    node.assert_held(&container, 2 * GIB).await;
    node.cri.remove_pod(&pod.sandbox).await;
}
