//! Tests of `vgpud --check`: it prints the plan, or all errors, word for word.
//!
//! Each `tests/config/NAME.toml` has its expected output in `NAME.out`. `UPDATE=1 cargo test -p vgpu-daemon --test
//! config_check` rewrites them.

#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Guard, eventually, texts, vgpud};
use vgpu_config as config;
use vgpu_config::inventory::{FoundDevice, Inventory};
use vgpu_config::keys::ConfigSection;
use vgpu_config::plan::ConfigPlan;
use vgpu_config::resolve::Surroundings;
use vgpu_config::time::{CONSTANTS, TimeConfig, values_of};
use vgpu_core::units::bytes::{Bytes, GIB};
use vgpu_core::units::share::Share;

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config")
}

/// Exit code, standard output, standard error.
fn check(file: &str, more: &[&str]) -> (Option<i32>, String, String) {
    let output = vgpud()
        .current_dir(cases())
        .env("VGPU_RUNTIME_DIR", "/run/vgpu")
        .env("NO_COLOR", "1")
        .args(["--check", file, "--driver", "none"])
        .args(more)
        .output()
        .unwrap();
    let (out, err) = texts(&output);
    (output.status.code(), out, err)
}

fn plan_with(text: &str, inventory: Option<Vec<FoundDevice>>) -> Result<ConfigPlan, String> {
    let around = Surroundings {
        run_dir: "/run/vgpu".into(),
        inventory: inventory.map(|found| Inventory { found, silent: Vec::new() }),
        ..Default::default()
    };
    config::make_plan(text, &around).map_err(|report| report.to_lines("f"))
}

#[test]
fn every_file_is_answered_word_for_word_with_its_exit_code() {
    let mut seen = 0;
    for entry in fs::read_dir(cases()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        seen += 1;
        let name = path.file_name().unwrap().to_str().unwrap();
        let (code, out, err) = check(name, &[]);
        assert_eq!(code == Some(0), err.is_empty(), "{name}: {code:?} {err}");
        assert!(out.is_empty() != err.is_empty(), "{name}: {out} {err}");
        let said = format!("exit code {}\n{out}{err}", code.unwrap());
        let golden = path.with_extension("out");
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&golden, &said).unwrap();
        }
        let expected = fs::read_to_string(&golden).unwrap_or_else(|why| panic!("{}: {why}", golden.display()));
        assert!(said == expected, "{name} is answered\n{said}\nand not\n{expected}UPDATE=1 rewrites it");
    }
    assert!(seen >= 12, "{seen}");
}

/// A plan resolved without the driver must not look like one that was checked against the devices.
#[test]
fn that_the_driver_did_not_answer_is_a_note_of_the_plan() {
    let dir = tempfile::TempDir::new().unwrap();
    let file = dir.path().join("f.toml");
    fs::write(&file, "[[device]]\nid = 0\nmemory = \"80GiB\"\n[[tenant]]\nname = \"a\"\n").unwrap();
    for library in ["libnvidia-ml.so", "libnvidia-ml.so.1"] {
        fs::write(dir.path().join(library), "no library").unwrap();
    }
    let note = "the driver does not answer, so only the file says which devices exist and how large they are";
    for (driver, told) in [("auto", true), ("none", false)] {
        let check = |more: &[&str]| {
            let mut c = vgpud();
            c.env("LD_LIBRARY_PATH", dir.path()).arg("--check").arg(&file).args(["--driver", driver]).args(more);
            let output = c.output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", texts(&output).1);
            texts(&output).0
        };
        assert_eq!(check(&[]).contains(&format!("note: {note}: ")), told, "{driver}");
        assert_eq!(check(&["--json"]).contains(note), told, "{driver}");
    }
}

#[test]
fn all_errors_are_told_at_once_each_with_its_place_key_value_and_what_is_accepted() {
    let (code, out, _) = check("every-kind-of-error.toml", &["--json"]);
    assert_eq!(code, Some(1));
    let json: Value = serde_json::from_str(&out).unwrap();
    let problems = json["problems"].as_array().unwrap();
    assert_eq!((json["file"].as_str(), json["more"].as_u64()), (Some("every-kind-of-error.toml"), Some(0)));
    assert!(problems.len() > 35, "{}", problems.len());
    let text = fs::read_to_string(cases().join("every-kind-of-error.toml")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut last = (0, 0);
    for problem in problems {
        let place = (problem["line"].as_u64().unwrap(), problem["column"].as_u64().unwrap());
        assert!(place >= last, "in the order of the file");
        last = place;
        assert!(problem["accepted"].as_str().is_some_and(|accepted| !accepted.is_empty()), "{problem}");
        let line = lines[usize::try_from(place.0).unwrap() - 1];
        let there = &line[usize::try_from(place.1).unwrap() - 1..];
        match problem["value"].as_str() {
            Some(value) => assert!(there.starts_with(value), "{problem} is not at {there:?}"),
            None => {
                let key = problem["key"].as_str().unwrap().rsplit('.').next().unwrap();
                assert!(there.trim_start_matches(['[', '"']).starts_with(key) || there.starts_with("[["), "{problem}");
            }
        }
    }
}

#[test]
fn a_file_that_cannot_be_read_is_no_file_with_errors() {
    let dir = tempfile::TempDir::new().unwrap();
    let binary = dir.path().join("binary");
    fs::write(&binary, b"name = \"\xff\"").unwrap();
    for (file, words) in [
        ("/does/not/exist", "No such file"),
        (binary.to_str().unwrap(), "is not UTF-8 text: byte 8"),
        ("/", "is not a file"),
    ] {
        let (code, out, err) = check(file, &[]);
        assert_eq!((code, out.as_str()), (Some(3), ""), "{err}");
        assert!(err.contains(file) && err.contains(words), "{err}");
    }
    let (code, _, _) = check("plan.toml", &["--socket", "/s"]);
    assert_eq!(code, Some(2), "a file and the flags of tenants do not go together");
}

#[test]
fn a_pipe_that_nobody_writes_to_is_refused_and_not_waited_for() {
    let dir = tempfile::TempDir::new().unwrap();
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut child = Guard(vgpud().arg("--check").arg(&pipe).stderr(Stdio::null()).spawn().unwrap());
    let mut code = None;
    eventually("the answer", || {
        code = child.0.try_wait().unwrap().map(|status| status.code());
        code.is_some()
    });
    assert_eq!(code, Some(Some(3)));
}

#[test]
fn the_plan_is_there_for_programs_too() {
    let (code, out, _) = check("plan.toml", &["--json"]);
    assert_eq!(code, Some(0));
    let plan: Value = serde_json::from_str(&out).unwrap();
    let tenant = |name: &str| plan["tenants"].as_array().unwrap().iter().find(|tenant| tenant["name"] == name).unwrap();
    assert_eq!(tenant("chat")["uids"], serde_json::json!([[0, 0], [1000, 1999]]));
    assert_eq!(tenant("slot-2")["terms"][0]["memory_limit"], 80 * GIB / 3);
    assert_eq!(tenant("part")["terms"][0]["sm_request"], 20.0, "as far as its ceiling allows");
    assert_eq!(tenant("free")["terms"][0]["sm_limit"], Value::Null, "all of the device is no ceiling");
    assert_eq!((&plan["time"]["quantum"], &plan["time"]["drain"]), (&8_000_000.into(), &20_000_000.into()));
    assert_eq!(plan["daemon"]["admin_socket"], Value::Null);
}

/// A value of a type that no key accepts.
const NEVER: &str = "1979-05-27";

#[test]
fn every_key_of_the_table_is_read_and_a_wrong_value_for_it_is_told() {
    for section in ConfigSection::ALL {
        let (head, tail) = match section {
            ConfigSection::File => ("", ""),
            ConfigSection::Daemon => ("[daemon]\n", ""),
            ConfigSection::Log => ("[log]\n", ""),
            ConfigSection::Metrics => ("[metrics]\n", ""),
            ConfigSection::Proof => ("[proof]\n", ""),
            ConfigSection::Record => ("[record]\n", ""),
            ConfigSection::Defaults => ("[defaults]\n", ""),
            ConfigSection::Template => ("[template.x]\n", ""),
            ConfigSection::Device => ("[[device]]\n", ""),
            ConfigSection::Tenant => ("[[tenant]]\n", ""),
            ConfigSection::Override => ("[[tenant]]\nname = 'x'\n[[tenant.device]]\n", ""),
            ConfigSection::Group => ("[[group]]\n", ""),
            ConfigSection::Quota => ("[[group]]\nname = 'x'\n[[group.quota]]\n", ""),
            ConfigSection::Window => ("[[window]]\n", ""),
            ConfigSection::Booking => ("[[booking]]\n", ""),
            ConfigSection::OnEvent => ("[[on_event]]\n", ""),
        };
        for key in section.section_keys() {
            let text = format!("{head}{} = {NEVER}\n{tail}", key.name);
            let told = plan_with(&text, None).unwrap_err();
            let name = if section == ConfigSection::File {
                key.name.into()
            } else {
                format!("{}.{}", section.name(), key.name)
            };
            assert!(told.contains(&format!("{name} = {NEVER} is ")), "{text}{told}");
            assert!(!told.contains("is not a key"), "{text}{told}");
        }
    }
    for constant in CONSTANTS {
        let told = plan_with(&format!("[time]\n{} = {NEVER}\n", constant.name), None).unwrap_err();
        assert!(told.contains(&format!("time.{} = {NEVER} is a date or time", constant.name)), "{told}");
    }
}

#[test]
fn the_constants_defaults_lie_in_their_ranges_and_go_together() {
    let plan = plan_with("[[tenant]]\nname = 'a'\nweight = 2\n", None).unwrap();
    let values = serde_json::to_value(values_of(&plan.time)).unwrap();
    assert_eq!(values.as_object().unwrap().len(), CONSTANTS.len());
    for constant in CONSTANTS {
        let value = values[constant.name].as_u64().unwrap();
        assert!((constant.range.0..=constant.range.1).contains(&value), "{}: {value}", constant.name);
    }
    assert_eq!(plan.time, TimeConfig::DEFAULT);
    assert!(plan.notes.is_empty(), "{:?}", plan.notes);
}

#[test]
fn what_the_arbiter_is_to_be_told_is_what_was_written() {
    let text = "[[tenant]]\nname = 'a'\nsm_request = 20\nsm_limit = 50\nweight = 7\nclass = 'batch'\nquantum = '9ms'\n";
    let plan = plan_with(text, None).unwrap();
    let terms = vgpu_core::time::arbiter::Terms::from(&plan.tenants[0].terms[0]);
    let expected = vgpu_core::time::arbiter::Terms {
        class: vgpu_core::time::arbiter::Class::Batch,
        floor: Share::from_percent(20),
        ceiling: Share::from_percent(50),
        weight: 7,
        quantum: Some(9_000_000),
    };
    assert_eq!(terms, expected);
}

fn found(memory: &[u64]) -> Vec<FoundDevice> {
    let each = |(index, gib): (u32, &u64)| {
        let uuid = format!("GPU-{index}");
        FoundDevice { index, parent: None, uuid, memory: Some(Bytes(gib * GIB)), model: None }
    };
    (0..).zip(memory).map(each).collect()
}

#[test]
fn where_the_driver_answers_its_devices_and_their_sizes_count() {
    let text =
        "[[device]]\nid = 1\nmemory = '12GiB'\n[[device]]\nid = '*'\n[[tenant]]\nname = 'a'\nmemory_limit = '25%'\n";
    let plan = plan_with(text, Some(found(&[80, 16]))).unwrap();
    let limits: Vec<_> = plan.tenants[0].terms.iter().map(|terms| (terms.device.as_str(), terms.memory)).collect();
    assert_eq!(limits, [("0", Some(Bytes(20 * GIB))), ("1", Some(Bytes(3 * GIB)))], "the file's size, if it is less");
    assert_eq!(plan.devices[0].uuid.as_deref(), Some("GPU-0"));

    // The number and the UUID name the same device.
    let both = "[[device]]\nid = 0\n[[device]]\nid = 'GPU-0'\n[[tenant]]\nname = 'a'\n";
    assert!(plan_with(both, Some(found(&[80]))).unwrap_err().contains("is device 0, which is described as 0 already"));
    let listed = "[[tenant]]\nname = 'a'\ndevices = [0, 'GPU-0']\n";
    assert!(plan_with(listed, Some(found(&[80]))).unwrap_err().contains("is listed twice"));

    let none = "[[device]]\nid = 2\n[[tenant]]\nname = 'a'\ndevices = [2]\n";
    let told = plan_with(none, Some(found(&[80]))).unwrap_err();
    assert!(told.contains("device.id = 2 is not a device of this machine"), "{told}");
    let more = "[[device]]\nid = 0\nmemory = '81GiB'\n[[tenant]]\nname = 'a'\n";
    assert!(
        plan_with(more, Some(found(&[80])))
            .unwrap_err()
            .contains("is more than device 0 has; accepted: at most 80 GiB")
    );

    // A device that uses the host's memory has no size of its own; the file may give it one.
    let shared = || Some(vec![FoundDevice { memory: None, ..found(&[1])[0].clone() }]);
    let part = "[[tenant]]\nname = 'a'\nmemory_limit = '25%'\n";
    assert!(plan_with(part, shared()).unwrap_err().contains("is a part of device 0, whose size is not known"));
    let plan = plan_with(&format!("[[device]]\nid = 0\nmemory = '100GiB'\n{part}"), shared()).unwrap();
    assert_eq!(plan.tenants[0].terms[0].memory, Some(Bytes(25 * GIB)));

    // If any device is described, only described ones are served.
    let one = "[[device]]\nid = 0\n[[tenant]]\nname = 'a'\n";
    assert_eq!(plan_with(one, Some(found(&[80, 80]))).unwrap().devices.len(), 1);
    // A driver that reports no devices does not limit the file.
    assert!(plan_with("[[tenant]]\nname = 'a'\n", Some(Vec::new())).is_ok());
}

/// A whole device with number 0, and two MIG instances of the device with number 1.
fn partitioned() -> Vec<FoundDevice> {
    let instance = |name: &str, gib: u64| FoundDevice {
        index: 1,
        parent: Some("GPU-1".into()),
        uuid: format!("MIG-{name}"),
        memory: Some(Bytes(gib * GIB)),
        model: None,
    };
    [found(&[16]), vec![instance("b", 40), instance("a", 10)]].concat()
}

#[test]
fn a_device_with_mig_is_its_instances_by_its_number_by_its_uuid_and_by_theirs() {
    let terms = |text: &str| {
        let plan = plan_with(text, Some(partitioned())).unwrap_or_else(|why| panic!("{why}"));
        let of = |tenant: &vgpu_config::plan::TenantPlan| {
            let one = |terms: &vgpu_config::plan::TermsPlan| {
                format!("{}={}", terms.device, terms.memory.unwrap().get() / GIB)
            };
            tenant.terms.iter().map(one).collect::<Vec<_>>().join(" ")
        };
        plan.tenants.iter().map(of).collect::<Vec<_>>()
    };
    let tenant = |more: &str| format!("[[tenant]]\nname = 'a'\nmemory_limit = '50%'\n{more}\n");
    assert_eq!(terms(&tenant("")), ["0=8 MIG-b=20 MIG-a=5"], "in the driver's order");
    for board in ["1", "'GPU-1'", "'MIG-b', 'MIG-a'"] {
        assert_eq!(terms(&tenant(&format!("devices = [{board}]"))), ["MIG-b=20 MIG-a=5"], "{board}");
    }
    assert_eq!(terms(&tenant("devices = [0, 'GPU-a']")), ["0=8 MIG-a=5"], "as CUDA names it");
    assert_eq!(terms(&tenant("[[tenant.device]]\nid = 1\nmemory_limit = '10%'")), ["0=8 MIG-b=4 MIG-a=1"]);
    // A description of the device applies to each of its instances.
    let described = "[[device]]\nid = 1\nmemory = '8GiB'\n";
    assert_eq!(terms(&(described.to_owned() + &tenant(""))), ["MIG-b=4 MIG-a=4"]);
    let mixed = "[[device]]\nid = 'MIG-a'\nmemory = '8GiB'\n[[device]]\nid = '*'\n";
    assert_eq!(terms(&(mixed.to_owned() + &tenant(""))), ["0=8 MIG-b=20 MIG-a=4"]);

    let refused = |text: &str| plan_with(text, Some(partitioned())).unwrap_err();
    let both = "[[device]]\nid = 1\n[[device]]\nid = 'MIG-a'\n";
    assert!(refused(&(both.to_owned() + &tenant(""))).contains("is device MIG-a, which is described as 1 already"));
    assert!(refused(&tenant("devices = [1, 'MIG-a']")).contains("is listed twice"));
    let twice = "[[tenant.device]]\nid = 1\n[[tenant.device]]\nid = 'MIG-a'\n";
    assert!(refused(&tenant(twice)).contains("is overridden twice"));
    let large = "[[device]]\nid = 1\nmemory = '11GiB'\n";
    assert!(
        refused(&(large.to_owned() + &tenant(""))).contains("is more than device MIG-a has; accepted: at most 10 GiB")
    );
    let gone = refused("[[device]]\nid = 'MIG-c'\n[[tenant]]\nname = 'a'\ndevices = ['MIG-c']\n");
    assert!(gone.contains("device.id = 'MIG-c' is not a device of this machine"), "{gone}");
    let none = refused(&tenant("devices = ['MIG-c']"));
    assert!(none.contains("accepted: 0 (GPU-0), MIG-b (an instance of 1), MIG-a (an instance of 1), \"*\""), "{none}");
    // Case: 50 % and 60 % of one MIG instance are promised. Each instance has its own memory, so that is too much.
    let crowd = "[[tenant]]\nname = 'b'\nmemory_limit = '60%'\ndevices = ['MIG-a']\n";
    let crowded = refused(&(tenant("") + crowd));
    assert!(crowded.contains("on device MIG-a to"), "{crowded}");
}

#[test]
fn four_slots_are_a_quarter_each_in_memory_and_in_time() {
    let plan = plan_with("[[tenant]]\nname = 's'\nreplicas = 4\n", Some(found(&[80]))).unwrap();
    let slots: Vec<_> = plan.tenants.iter().map(|tenant| (tenant.name.as_str(), &tenant.terms[0])).collect();
    assert_eq!(slots.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["s-0", "s-1", "s-2", "s-3"]);
    for (_, terms) in slots {
        assert_eq!(terms.memory, Some(Bytes(20 * GIB)));
        assert_eq!((terms.floor.map(|floor| floor.as_permille()), terms.ceiling, terms.weight), (Some(250), None, 1));
    }
}
