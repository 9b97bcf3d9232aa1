//! Contracts of other schedulers, replayed in containers of a real containerd, and their page.
//!
//! `UPDATE=1 cargo test --test contracts` writes the generated part of docs/contracts.md.

#[path = "runtime/cri.rs"]
#[allow(dead_code, reason = "each test program uses a part")]
mod cri;
#[path = "runtime/node.rs"]
#[allow(dead_code, reason = "each test program uses a part")]
mod node;
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

/// Runs the case's container, and returns the device memory that a program in it sees.
async fn run_case(node: &mut Node, case: &Case, name: &str) -> Result<u64, String> {
    if let Some(options) = case.plugin {
        node.start_plugin(options).await;
    }
    let hosts: Vec<(PathBuf, &str)> = case.mounts.iter().map(|(place, host)| (node.path(host), *place)).collect();
    let mounts: Vec<(&Path, &str)> = hosts.iter().map(|(host, place)| (host.as_path(), *place)).collect();
    let pod = node.run_pod(name, case.annotations).await;
    let seen = match node.run_container(&pod, 0, case.variables, &mounts).await {
        Ok(container) => node.total(&container).await,
        Err(why) => Err(why.message().to_owned()),
    };
    node.cri.remove_pod(&pod.sandbox).await;
    node.plugin = None;
    seen
}

#[tokio::test]
async fn each_contract_has_the_effect_that_its_row_says() {
    let Some(mut node) = Node::start(FILE).await else { return };
    make_host_files(&node);
    let mut count = 0;
    for case in CONTRACTS.iter().flat_map(|contract| contract.cases) {
        count += 1;
        let seen = run_case(&mut node, case, &format!("case-{count}")).await;
        let is_so = match (case.sees, &seen) {
            (Sees::Mebibytes(mebibytes), Ok(bytes)) => bytes / MIB == mebibytes,
            (Sees::WholeDevice, Ok(bytes)) => bytes / MIB == DEVICE_MEBIBYTES,
            (Sees::Refused(words), Err(why)) => why.contains(words),
            _ => false,
        };
        assert!(is_so, "{}: {seen:?}", case.words);
    }
    assert!(count >= 10);
}

#[tokio::test]
async fn a_library_that_another_pod_copies_back_limits_nothing_here_until_ours_takes_its_place() {
    let Some(mut node) = Node::start(FILE).await else { return };
    make_host_files(&node);
    let copied_back = CONTRACTS[0].cases.iter().find(|case| case.plugin.is_some()).unwrap();
    let alone = Case { plugin: None, ..*copied_back };
    assert_eq!(run_case(&mut node, &alone, "alone").await.map(|bytes| bytes / MIB), Ok(DEVICE_MEBIBYTES));
}

fn page_of(contract: &Contract) -> String {
    let evidence = match contract.evidence {
        Evidence::WordForWord => "word for word",
        Evidence::Documentation => "by documentation",
    };
    let mut text = format!("## {}\n\nReplayed {evidence}.\n\n", contract.title);
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
