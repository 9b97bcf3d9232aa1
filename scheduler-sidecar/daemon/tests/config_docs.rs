//! Tests of docs/vgpud.md and examples/daemon: every key is documented and no other, and the examples are accepted.
//!
//! `UPDATE=1 cargo test -p vgpu-daemon --test config_docs` rewrites the table of `[time]`.

#[path = "../../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use support::{texts, vgpud};
use vgpu_config as config;
use vgpu_config::keys::ConfigSection;
use vgpu_config::options::Options;
use vgpu_config::resolve::Surroundings;
use vgpu_config::time::{CONSTANTS, TimeConfig, values_of};
use vgpu_config::value::format_span;

const BEGIN: &str = "<!-- generated: UPDATE=1 cargo test -p vgpu-daemon --test config_docs -->\n";
const END: &str = "<!-- end -->";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn page() -> String {
    fs::read_to_string(root().join("docs/vgpud.md")).unwrap()
}

/// Rows of the tables below a heading, with their keys.
fn rows<'p>(page: &'p str, heading: &str) -> Vec<(&'p str, &'p str)> {
    let (_, after) = page.split_once(&format!("### {heading}\n")).unwrap_or_else(|| panic!("no heading {heading}"));
    let part = after.split("\n### ").next().unwrap();
    let rows = part.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| (row.trim_start_matches("| `").split('`').next().unwrap(), row)).collect()
}

#[test]
fn every_key_is_in_the_reference_and_says_whether_it_is_in_force() {
    let page = page();
    const SHARED: &str = "`[template.NAME]` and `[defaults]`";
    for section in ConfigSection::ALL {
        let headings: &[&str] = match section {
            ConfigSection::File => continue,
            ConfigSection::Daemon => &["`[daemon]`"],
            ConfigSection::Log => &["`[log]`"],
            ConfigSection::Metrics => &["`[metrics]`"],
            ConfigSection::Proof => &["`[proof]`"],
            ConfigSection::Record => &["`[record]`"],
            ConfigSection::Defaults | ConfigSection::Template => &[SHARED],
            ConfigSection::Device => &["`[[device]]`"],
            ConfigSection::Tenant => &["`[[tenant]]`", SHARED],
            ConfigSection::Override => &["`[[tenant.device]]`"],
            ConfigSection::Group => &["`[[group]]`"],
            ConfigSection::Quota => &["`[[group.quota]]`"],
            ConfigSection::Window => &["`[[window]]`"],
            ConfigSection::Booking => &["`[[booking]]`"],
            ConfigSection::OnEvent => &["`[[on_event]]`"],
        };
        let rows: Vec<_> = headings.iter().flat_map(|heading| rows(&page, heading)).collect();
        let documented: Vec<&str> = rows.iter().map(|(key, _)| *key).collect();
        let there: BTreeSet<&str> = section.section_keys().map(|key| key.name).collect();
        assert_eq!(documented.iter().copied().collect::<BTreeSet<_>>(), there, "{section:?}");
        assert_eq!(documented.len(), there.len(), "{section:?}: each once");
        for (_, row) in rows {
            assert!(!row.contains("without effect"), "{section:?}: {row}");
        }
    }
    for section in ConfigSection::File.section_keys() {
        assert!(page.contains(&format!("[{}", section.name)), "{}", section.name);
    }
}

#[test]
fn the_table_of_constants_is_that_of_the_program() {
    let defaults = values_of(&TimeConfig::DEFAULT);
    let mut table = "| key | accepted | default | |\n|---|---|---|---|\n".to_owned();
    for constant in CONSTANTS {
        let default = format_span(defaults[constant.name]);
        let (least, most) = (format_span(constant.range.0), format_span(constant.range.1));
        let (name, what) = (constant.name, constant.what);
        table.push_str(&format!("| `{name}` | `\"{least}\"` to `\"{most}\"` | `\"{default}\"` | {what} |\n"));
    }
    let page = page();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let generated = format!("{before}{BEGIN}{table}{END}{after}");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(root().join("docs/vgpud.md"), &generated).unwrap();
    } else {
        assert!(page == generated, "docs/vgpud.md is not what the program says; UPDATE=1 rewrites it");
    }
}

#[test]
fn every_file_that_the_reference_shows_is_accepted() {
    let page = page();
    let files: Vec<&str> = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(files.len(), 2);
    for file in files {
        let around = Surroundings { run_dir: "/run/vgpu".into(), ..Default::default() };
        config::make_plan(file, &around)
            .unwrap_or_else(|report| panic!("{}\n{file}", report.to_lines("docs/vgpud.md")));
    }
}

#[test]
fn the_exit_codes_of_the_help_are_those_of_the_reference() {
    let (help, _) = texts(&vgpud().arg("--help").output().unwrap());
    let page = page();
    for (help_has, page_has) in [
        ("with --check, --import: no errors", "| 0 | the file can be served"),
        ("3  with --check, --import", "| 3 | it cannot be read"),
    ] {
        assert!(help.contains(help_has) && page.contains(page_has), "{help}");
    }
}

#[test]
fn the_example_can_be_served() {
    let output = vgpud()
        .args(["--driver", "none", "--json", "--check"])
        .arg(root().join("examples/daemon/vgpud.toml"))
        .output()
        .unwrap();
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{err}");
    let plan: serde_json::Value = serde_json::from_str(&out).unwrap();
    let names: Vec<_> =
        plan["tenants"].as_array().unwrap().iter().map(|tenant| tenant["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["chat", "train", "notebook-0", "notebook-1", "notebook-2", "notebook-3"]);
}

#[test]
fn the_unit_starts_the_daemon_with_options_it_has_and_directories_of_the_example() {
    let unit = fs::read_to_string(root().join("examples/daemon/vgpud.service")).unwrap();
    let lines = || unit.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut section = "";
    for line in lines() {
        match line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(name) => section = name,
            None => assert!(!section.is_empty() && line.contains('='), "{line}"),
        }
    }
    let value = |key: &str| {
        lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_else(|| panic!("{key}"))
    };
    let options = |key: &str| Options::try_parse_from(value(key).split(' ')).unwrap();
    let start = options("ExecStart");
    // A check before the start would fail with another exit code, and systemd would retry it every second.
    assert!(start.config.is_some() && !unit.contains("\nExecStartPre="));
    // The unit waits for READY, and does not restart after exit code 2, which a restart cannot fix.
    assert_eq!(
        (value("Type"), value("ExecReload"), value("RestartPreventExitStatus")),
        ("notify", "/bin/sh -c 'kill -HUP $MAINPID'", "2")
    );
    let text = fs::read_to_string(root().join("examples/daemon/vgpud.toml")).unwrap();
    let around = Surroundings { run_dir: "/elsewhere".into(), ..Default::default() };
    let plan = config::make_plan(&text, &around).unwrap();
    assert_eq!(plan.daemon.run_dir, Path::new("/run").join(value("RuntimeDirectory")));
    assert_eq!(plan.daemon.state_dir, Some(Path::new("/var/lib").join(value("StateDirectory"))));
}

#[test]
fn the_socket_unit_opens_the_place_where_the_command_line_looks_and_for_administrators_only() {
    let unit = fs::read_to_string(root().join("examples/daemon/vgpud.socket")).unwrap();
    let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap();
    let text = fs::read_to_string(root().join("examples/daemon/vgpud.toml")).unwrap();
    let around = Surroundings { run_dir: "/elsewhere".into(), ..Default::default() };
    let plan = config::make_plan(&text, &around).unwrap();
    assert_eq!(plan.daemon.admin.as_deref(), Some(Path::new(value("ListenStream"))));
    assert_eq!((value("SocketMode"), value("FileDescriptorName")), ("0600", "admin"));
    assert!(page().contains("examples/daemon/vgpud.socket"));
}

#[test]
fn the_file_that_is_installed_serves_whoever_takes_the_marks_away_and_nobody_as_it_stands() {
    let text = fs::read_to_string(root().join("packaging/vgpud.toml")).unwrap();
    let around = Surroundings { run_dir: "/elsewhere".into(), ..Default::default() };
    assert!(config::make_plan(&text, &around).unwrap().tenants.is_empty());
    let (above, below) = text.split_once("# Take the marks away").unwrap();
    let unmarked = |line: &str| line.strip_prefix("# ").unwrap_or_default().to_owned();
    let tenants: Vec<String> = below.lines().skip(1).map(unmarked).collect();
    let unit = fs::read_to_string(root().join("examples/daemon/vgpud.service")).unwrap();
    let plan = config::make_plan(&format!("{above}{}", tenants.join("\n")), &around).unwrap();
    assert_eq!(plan.tenants.len(), 1);
    assert_eq!(plan.daemon.run_dir, Path::new("/run/vgpu"));
    assert!(unit.contains("--config /etc/vgpu/vgpud.toml"));
}
