//! Row by row: variables that are accepted without effect have none and are reported. Variables that are honoured for
//! other projects take effect.

use crate::ledger;
use serde_json::Value;
use vgpu_core::limits::variables::{VARIABLES, VariableOwner, VariableRow, WORD_VARIABLES};
use vgpu_tests::artefacts::vgpu;
use vgpu_tests::{GIB, Lab, OUT_OF_MEMORY};

fn limited() -> Lab {
    Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB")
}

/// The doctor's lines about limits and mode.
fn doctor(lab: &Lab) -> Vec<String> {
    let out = lab.command(vgpu()).args(["doctor", "--json"]).env("VGPU_LIBRARY", lab.lib()).output().unwrap();
    let report: Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", vgpu_tests::text(&out)));
    let lines = report["lines"].as_array().unwrap().iter();
    lines.map(|line| format!("{}: {}", line["subject"].as_str().unwrap(), line["words"].as_str().unwrap())).collect()
}

#[test]
fn what_is_accepted_without_effect_changes_nothing_and_is_told() {
    let ignored: Vec<&VariableRow> = VARIABLES.iter().filter(|row| row.reason_ignored().is_some()).collect();
    let mut all = limited();
    for row in &ignored {
        let lab = limited().with(row.name, "true");
        let mut m = lab.member();
        m.begin();
        assert_eq!(m.info().1, GIB, "{}", row.name);
        assert_eq!(m.code(&format!("alloc {GIB}")), OUT_OF_MEMORY, "{}", row.name);
        assert_eq!(m.errors(), "", "{}", row.name);
        all.set(row.name, "true");
    }
    let lines = doctor(&all);
    let told = lines.iter().find(|line| line.starts_with("limits: set, without effect: ")).expect("a line");
    for row in ignored {
        assert!(told.contains(&format!("{} ({})", row.name, row.reason_ignored().unwrap())), "{}: {told}", row.name);
    }
    assert!(!doctor(&limited()).iter().any(|line| line.contains("without effect")));
}

/// Rows whose values are words, the library's own and HAMi's. A program starts with each word, and the memory limit
/// stays in force unless the row is a mode.
#[test]
fn each_word_of_each_row_lets_programs_start() {
    for row in WORD_VARIABLES {
        for word in row.words {
            let lab = limited().with(row.name, word);
            let mut m = lab.member();
            m.begin();
            let all = m.info().1 > GIB;
            let loosens = match row.name {
                "VGPU_MODE" => *word != "enforce",
                "CUDA_DISABLE_CONTROL" => ["1", "t", "T", "true", "True", "TRUE"].contains(word),
                _ => false,
            };
            assert_eq!(all, loosens, "{}={word}", row.name);
            assert_eq!(m.errors(), "", "{}={word}", row.name);
        }
    }
}

#[test]
fn every_foreign_row_can_be_set_beside_a_limit_at_once() {
    // All variables that HAMi's plugin and webhook, Volcano and KAI set, as a scheduler would.
    let mut lab = Lab::new("h200");
    for row in VARIABLES {
        let value = match (row.owner, row.name) {
            (_, "CUDA_DEVICE_MEMORY_LIMIT") => "1024m",
            (_, "CUDA_DEVICE_SM_LIMIT") => "50",
            (_, "NVIDIA_GPU_MEMORY_LIMIT") => "2048",
            (_, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") => "0=3G,5=1M",
            (_, "CUDA_DEVICE_MEMORY_SHARED_CACHE") => "/usr/local/vgpu/0c1f.cache",
            (_, "CUDA_TASK_PRIORITY" | "CUDA_VISIBLE_DEVICES") => "0",
            (_, "GPU_CORE_UTILIZATION_POLICY") => "force",
            (_, "CUDA_DISABLE_CONTROL") => "false",
            (_, "CUDA_DEVICE_ORDER") => "PCI_BUS_ID",
            (VariableOwner::Hami | VariableOwner::Volcano | VariableOwner::Kai | VariableOwner::Nvidia, _) => "1",
            _ => continue,
        };
        lab.set(row.name, value);
    }
    let mut m = lab.member();
    m.begin();
    assert_eq!(m.info().1, GIB);
    assert_eq!(m.code(&format!("alloc {GIB}")), OUT_OF_MEMORY);
    assert_eq!(m.errors(), "");
}

/// Number of launches of 5 ms that a program completes in a second.
fn launches(lab: &Lab) -> u64 {
    let mut m = lab.member();
    m.begin();
    m.ok("work 5000000 1000 8 0").number(0)
}

#[test]
fn hamis_policy_disable_lifts_its_ceiling_and_force_does_not() {
    let lab =
        |policy: &str| Lab::new("h200").with("CUDA_DEVICE_SM_LIMIT", "5").with("GPU_CORE_UTILIZATION_POLICY", policy);
    let (forced, disabled) = (launches(&lab("force")), launches(&lab("disable")));
    assert!(disabled > forced * 3, "{disabled} launches with the ceiling off, {forced} under it");
    // HAMi's policy lifts only HAMi's ceiling, not one set by `VGPU_SM_LIMIT`.
    let ours = launches(&lab("disable").with("VGPU_SM_LIMIT", "5"));
    assert!(disabled > ours * 3, "{disabled} launches without a ceiling, {ours} under our own");
    assert!(doctor(&lab("disable")).iter().any(|line| line.contains("CUDA_DEVICE_SM_LIMIT is not kept")));
}

/// A ceiling is never exceeded, not even by a tenant that is alone on an idle device.
#[test]
fn default_and_force_are_the_same_ceiling() {
    for policy in ["default", "force"] {
        let lab = Lab::new("h200").with("CUDA_DEVICE_SM_LIMIT", "5").with("GPU_CORE_UTILIZATION_POLICY", policy);
        let got = launches(&lab);
        // 200 launches in a second are the whole device. A ceiling of a twentieth allows 10, plus a burst and the last
        // batch.
        assert!(got < 100, "{policy}: {got} launches of 5 ms in a second under 5 %");
    }
}

#[test]
fn the_ledger_lies_beside_hamis_cache_file() {
    let lab = limited();
    let place = lab.path().join("cache");
    std::fs::create_dir(&place).unwrap();
    let mut m = vgpu_tests::Member::start(
        lab.command(vgpu_tests::program::compile("member", vgpu_tests::program::Kind::Program, &[]))
            .arg("dlsym")
            .env_remove("VGPU_STATE_DIR")
            .env("CUDA_DEVICE_MEMORY_SHARED_CACHE", place.join("0c1f.cache")),
    );
    m.begin();
    let names: Vec<_> = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(names[0].to_str().unwrap().ends_with(".ledger"), "{names:?}");
    assert!(ledger(&lab).is_none(), "nowhere else");
}

#[test]
fn a_floor_that_nobody_guarantees_stops_programs_with_what_to_do() {
    let lab = Lab::new("h200").with("VGPU_SM_REQUEST", "30");
    let mut m = lab.member();
    assert_eq!(m.code("init"), vgpu_tests::NOT_PERMITTED);
    let said = m.errors();
    assert!(said.starts_with("vgpu: VGPU_SM_REQUEST=\"30\" asks for guaranteed time"), "{said}");
    assert!(said.contains("VGPU_SOCKET") && said.contains("VGPU_SM_LIMIT"), "{said}");
}
