//! Tests that every example runs unmodified on the simulated device, with and without a quota, and prints what
//! the README says.
//!
//! The libraries come from `make build` (`VGPU_BUILD`, default target/release of this checkout).

use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const GIB: u64 = 1 << 30;

fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn build() -> PathBuf {
    let build = std::env::var_os("VGPU_BUILD").map_or_else(|| checkout().join("target/release"), PathBuf::from);
    for part in ["libvgpu.so", "sim/libcuda.so.1", "sim/libnvidia-ml.so.1"] {
        assert!(build.join(part).exists(), "{} is missing: run make build", build.join(part).display());
    }
    build
}

/// A separate simulated device, for programs whose output is checked.
struct Lab(TempDir);

impl Lab {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    /// Runs a program with the simulated driver, and with the preloaded library if there are `limits`.
    fn run(&self, mut command: Command, limits: &[(&str, &str)]) -> String {
        command
            .env("LD_LIBRARY_PATH", build().join("sim"))
            .env("VGPU_SIM_DIR", self.0.path().join("gpu"))
            .env("VGPU_SIM_PROFILE", "h200")
            .env("VGPU_STATE_DIR", self.0.path())
            .env("VGPU_TENANT", "example");
        if !limits.is_empty() {
            command.env("LD_PRELOAD", build().join("libvgpu.so")).envs(limits.iter().copied());
        }
        let out = command.output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{command:?}: {}\n{text}{}", out.status, String::from_utf8_lossy(&out.stderr));
        text
    }
}

fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no line \"{key}: ...\" in:\n{text}"))
}

fn number(text: &str, key: &str) -> u64 {
    value(text, key).split(' ').next().unwrap().parse().unwrap()
}

/// Client: cudarc
#[test]
fn memory_is_taken_to_the_last_byte_of_the_quota_and_not_beyond() {
    let lab = Lab::new();
    let text = lab.run(Command::new(env!("CARGO_BIN_EXE_example-memory")), &[("VGPU_MEMORY_LIMIT", "1GiB")]);
    assert_eq!(number(&text, "total"), GIB);
    assert_eq!(number(&text, "allocated"), number(&text, "free"), "{text}");
    assert!(number(&text, "free") > GIB / 4, "{text}");
    assert_eq!(value(&text, "one byte more"), "refused, CUDA_ERROR_OUT_OF_MEMORY (2)");
    assert_eq!(number(&text, "free again"), number(&text, "free"), "{text}");
}

#[test]
fn without_the_library_the_same_program_has_the_whole_device() {
    let text = Lab::new().run(Command::new(env!("CARGO_BIN_EXE_example-memory")), &[]);
    assert!(number(&text, "total") > 100 * GIB, "{text}");
    assert!(number(&text, "allocated") > 100 * GIB, "{text}");
}

/// Client: nvml-wrapper
#[test]
fn nvml_shows_the_quota_as_the_device() {
    let (lab, program) = (Lab::new(), env!("CARGO_BIN_EXE_example-view"));
    assert_eq!(number(&lab.run(Command::new(program), &[("VGPU_MEMORY_LIMIT", "1GiB")]), "total"), 1024);
    assert!(number(&lab.run(Command::new(program), &[]), "total") > 100 * 1024);
}

/// Client: cudarc
#[test]
fn launches_keep_to_their_share() {
    let share = |limits: &[(&str, &str)]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_example-launches"));
        program.arg("4");
        let text = Lab::new().run(program, limits);
        assert!(number(&text, "kernels") > 0, "{text}");
        value(&text, "share of the device").trim_end_matches(" %").parse::<f64>().unwrap()
    };
    let (limited, bare) = (share(&[("VGPU_SM_LIMIT", "30")]), share(&[]));
    assert!((22.0..38.0).contains(&limited), "{limited} % under a ceiling of 30");
    assert!(bare > 60.0, "{bare} % without a ceiling");
}

#[test]
fn a_c_program_linked_with_the_driver_is_held_to_its_quota() {
    let lab = Lab::new();
    let program = lab.0.path().join("plain");
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or("cc".into()));
    compiler.arg(checkout().join("examples/04_plain.c")).arg("-L").arg(build().join("sim")).args(["-lcuda", "-o"]);
    // The simulated driver's own dependencies are resolved when it is loaded.
    compiler.arg(&program).arg("-Wl,--allow-shlib-undefined").args(["-Wall", "-Wextra", "-Werror"]);
    let out = compiler.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = lab.run(Command::new(program), &[("VGPU_MEMORY_LIMIT", "1GiB")]);
    assert_eq!(number(&text, "total"), GIB);
    assert_eq!(number(&text, "allocated"), number(&text, "free"));
    assert_eq!(value(&text, "one byte more"), "code 2");
}

#[test]
fn a_python_program_is_held_to_its_quota() {
    let mut python = Command::new("python3");
    python.arg(checkout().join("examples/05_ctypes.py"));
    let text = Lab::new().run(python, &[("VGPU_MEMORY_LIMIT", "1GiB")]);
    assert_eq!(number(&text, "total"), GIB);
    assert_eq!(number(&text, "allocated"), number(&text, "free"));
    assert_eq!(value(&text, "one byte more"), "code 2");
}

#[test]
fn the_readme_names_every_example() {
    let readme = std::fs::read_to_string(checkout().join("examples/README.md")).unwrap();
    for entry in std::fs::read_dir(checkout().join("examples")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.starts_with(|c: char| c.is_ascii_digit()) {
            assert!(readme.contains(&name), "examples/README.md does not name {name}");
        }
    }
}
