//! Contracts of other schedulers, replayed in containers of a real containerd, and their page.
//!
//! `UPDATE=1 cargo test --test contracts` writes the generated part of docs/contracts.md.

#[path = "runtime/cri.rs"]
#[allow(dead_code, reason = "each test program uses a part")]
mod cri;
#[path = "runtime/node.rs"]
#[allow(dead_code, reason = "each test program uses a part")]
mod node;
#[path = "stubs/programs.rs"]
mod programs;
#[path = "contracts/table.rs"]
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use node::{MIB, Node, checkout};
use table::{CONTRACTS, Case, Contract, Evidence, Sees};

const FILE: &str = "[[device]]\nid = 0\n[[tenant]]\nname = \"fixed\"\nmemory_limit = \"4GiB\"\n";

/// Memory of the simulated H200, in MiB.
const DEVICE_MEBIBYTES: u64 = 143_771;

/// Makes the host's files of the contracts in the node's directory.
fn make_host_files(node: &Node) {
    let make = |name: &str, text: &str| fs::write(node.path(name), text).unwrap();
    for dir in ["hami/containers/uid_main", "hami/vgpulock", "isolator"] {
        fs::create_dir_all(node.path(dir)).unwrap();
    }
    let library = node.path("vgpu/libvgpu.so");
    for place in ["hami/libvgpu.so.v2.10.0", "isolator/libvgpu.so"] {
        fs::copy(&library, node.path(place)).unwrap();
    }
    make("own.preload", "/vgpu/libvgpu.so\n");
    make("hami/ld.so.preload", "/usr/local/vgpu/libvgpu.so\n");
    make("isolator/ld.so.preload", "/usr/local/vgpu/libvgpu.so\n");
    // Another project's library; what it does is not judged here.
    let mut other = Command::new("cc");
    other.args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(node.path("hami/copied-back.so"));
    assert!(other.status().unwrap().success());
}

/// Runs the case's container, and returns the device memory that a program in it sees. A limit is exhausted too.
async fn run_case(node: &mut Node, case: &Case, name: &str) -> Result<u64, String> {
    if let Some(options) = case.plugin {
        node.start_plugin(options).await;
    }
    let hosts: Vec<(PathBuf, &str)> = case.mounts.iter().map(|(place, host)| (node.path(host), *place)).collect();
    let mounts: Vec<(&Path, &str)> = hosts.iter().map(|(host, place)| (host.as_path(), *place)).collect();
    let pod = node.run_pod(name, case.annotations).await;
    let seen = match node.run_container(&pod, 0, case.variables, &mounts).await {
        Ok(container) => {
            let total = node.total(&container).await;
            if let (Sees::Mebibytes(_), Ok(bytes)) = (case.sees, &total) {
                node.assert_held(&container, *bytes).await;
            }
            total
        }
        Err(why) => Err(why.message().to_owned()),
    };
    node.cri.remove_pod(&pod.sandbox).await;
    node.plugin = None;
    seen
}

/// The runtime alone, or with the NRI plugin.
const ALONE: bool = false;
const WITH_PLUGIN: bool = true;

/// Outcome of a case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Enforced,
    Refused,
    NoLimit,
}

fn effect_of(case: &Case) -> Effect {
    match case.sees {
        Sees::Mebibytes(_) => Effect::Enforced,
        Sees::Refused(_) => Effect::Refused,
        Sees::WholeDevice => Effect::NoLimit,
    }
}

/// Runs the cases of a contract that have this effect, with the plugin or without it.
async fn replay(title: &str, has_plugin: bool, effect: Effect, cases: usize) {
    let Some(mut node) = Node::start(FILE).await else { return };
    make_host_files(&node);
    let contract = CONTRACTS.iter().find(|contract| contract.title.starts_with(title)).unwrap();
    let is_meant = |case: &&Case| case.plugin.is_some() == has_plugin && effect_of(case) == effect;
    let meant: Vec<&Case> = contract.cases.iter().filter(is_meant).collect();
    assert_eq!(meant.len(), cases, "{title}");
    for (count, case) in meant.into_iter().enumerate() {
        let seen = run_case(&mut node, case, &format!("case-{count}")).await;
        let is_so = match (case.sees, &seen) {
            (Sees::Mebibytes(mebibytes), Ok(bytes)) => bytes / MIB == mebibytes,
            (Sees::WholeDevice, Ok(bytes)) => bytes / MIB == DEVICE_MEBIBYTES,
            (Sees::Refused(words), Err(why)) => why.contains(words),
            _ => false,
        };
        assert!(is_so, "{}: {seen:?}", case.words);
    }
}

/// Engine: containerd (CRI), HAMi: enforced
#[tokio::test]
async fn hamis_answer_limits_a_container_with_this_library_in_the_place_of_hamis() {
    replay("HAMi 2.x", ALONE, Effect::Enforced, 1).await;
}

/// Engine: containerd with the NRI plugin, HAMi: enforced
#[tokio::test]
async fn hamis_answer_limits_a_container_in_which_the_plugin_replaces_hamis_library() {
    replay("HAMi 2.x", WITH_PLUGIN, Effect::Enforced, 1).await;
}

/// Engine: containerd (CRI), KAI hamicore: enforced
#[tokio::test]
async fn kais_hamicore_limits_a_container_of_the_resource_isolator() {
    replay("KAI 0.17: its plugin hamicore", ALONE, Effect::Enforced, 1).await;
}

/// Engine: containerd (CRI), KAI GPU_PORTION: no limit
#[tokio::test]
async fn kais_portion_by_itself_limits_nothing() {
    replay("KAI: GPU_PORTION", ALONE, Effect::NoLimit, 1).await;
}

/// Engine: containerd with the NRI plugin, KAI GPU_PORTION: enforced
#[tokio::test]
async fn kais_portion_is_a_limit_with_the_plugin() {
    replay("KAI: GPU_PORTION", WITH_PLUGIN, Effect::Enforced, 1).await;
}

/// Engine: containerd with the NRI plugin, KAI GPU_PORTION: refused
#[tokio::test]
async fn kais_portion_without_a_limit_is_refused_if_the_plugin_is_told_so() {
    replay("KAI: GPU_PORTION", WITH_PLUGIN, Effect::Refused, 1).await;
}

/// Engine: containerd (CRI), GPU fractioning: enforced
#[tokio::test]
async fn variables_of_gpu_fractioning_limit_a_container() {
    replay("GPU fractioning", ALONE, Effect::Enforced, 1).await;
}

/// Engine: containerd with the NRI plugin, GPU fractioning: enforced
#[tokio::test]
async fn annotations_of_gpu_fractioning_limit_a_container_with_the_plugin() {
    replay("GPU fractioning", WITH_PLUGIN, Effect::Enforced, 1).await;
}

/// Engine: containerd (CRI), Volcano: enforced
#[tokio::test]
async fn volcanos_vgpu_plugin_limits_a_container() {
    replay("Volcano", ALONE, Effect::Enforced, 1).await;
}

/// Engine: containerd (CRI), Volcano: no limit
#[tokio::test]
async fn volcanos_older_sharing_limits_nothing() {
    replay("Volcano", ALONE, Effect::NoLimit, 1).await;
}

/// Engine: containerd (CRI), vgpu-manager: no limit
#[tokio::test]
async fn variables_of_vgpu_manager_limit_nothing_here() {
    replay("vgpu-manager", ALONE, Effect::NoLimit, 1).await;
}

/// Engine: containerd (CRI), ours: enforced
#[tokio::test]
async fn our_own_variable_limits_a_container_next_to_those_of_vgpu_manager() {
    replay("vgpu-manager", ALONE, Effect::Enforced, 1).await;
}

#[test]
fn each_case_of_the_table_is_replayed_by_a_test() {
    // Each replay counts its cases, and there are twelve with one each.
    assert_eq!(CONTRACTS.iter().map(|contract| contract.cases.len()).sum::<usize>(), 12);
}

#[tokio::test]
async fn a_library_that_another_pod_copies_back_limits_nothing_here_until_ours_takes_its_place() {
    let Some(mut node) = Node::start(FILE).await else { return };
    make_host_files(&node);
    let copied_back = CONTRACTS[0].cases.iter().find(|case| case.plugin.is_some()).unwrap();
    let alone = Case { plugin: None, sees: Sees::WholeDevice, ..*copied_back };
    assert_eq!(run_case(&mut node, &alone, "alone").await.map(|bytes| bytes / MIB), Ok(DEVICE_MEBIBYTES));
}

fn page_of(contract: &Contract) -> String {
    let evidence = match contract.evidence {
        Evidence::WordForWord => "word for word",
        Evidence::Documentation => "by documentation",
    };
    let mut text = format!("## {}\n\nReplayed {evidence}: [source]({}).\n\n", contract.title, contract.source);
    let names = |names: &str| names.split(", ").map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    text.push_str("| variable | form | here |\n|---|---|---|\n");
    for variable in contract.variables {
        text.push_str(&format!("| {} | {} | {} |\n", names(variable.name), variable.form, variable.does));
    }
    if !contract.files.is_empty() {
        text.push_str("\n| file in the container | on the host | here |\n|---|---|---|\n");
        for file in contract.files {
            text.push_str(&format!("| `{}` | {} | {} |\n", file.place, file.host, file.does));
        }
    }
    text.push_str("\n| container | a program sees |\n|---|---|\n");
    for case in contract.cases {
        let sees = match case.sees {
            Sees::Mebibytes(mebibytes) => format!("{mebibytes} MiB"),
            Sees::WholeDevice => format!("{DEVICE_MEBIBYTES} MiB: the whole device"),
            Sees::Refused(words) => format!("the container does not start: `{words}`"),
        };
        text.push_str(&format!("| {} | {sees} |\n", case.words));
    }
    text + "\n"
}

#[test]
fn the_page_of_the_contracts_is_this_table() {
    const MARK: &str = "<!-- written by integrations/kubernetes/tests/contracts.rs -->\n";
    let file = checkout().join("docs/contracts.md");
    let page = fs::read_to_string(&file).unwrap();
    let (head, _) = page.split_once(MARK).expect("the mark");
    let sections: String = CONTRACTS.iter().map(page_of).collect();
    let fresh = format!("{head}{MARK}\n{}\n", sections.trim_end());
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&file, &fresh).unwrap();
    } else {
        assert!(page == fresh, "docs/contracts.md is not this table; UPDATE=1 writes it");
    }
}
