//! Commands that need more than a shell in a test: minutes of time, a real engine, root's packages. Each row names the
//! file that executes the command, and a test checks that this file contains it. A command that runs neither in the
//! book's shell nor elsewhere fails the test.

use crate::commands::Step;
use std::fs;
use std::process::{Command, Output};
use vgpu_tests::artefacts::checkout;

/// A command of the book that another test, or a script of make or CI, executes.
pub struct Row {
    /// Start of the command, or of a part of it between `&&`.
    pub command: &'static str,
    /// True if the book's shell executes the command too, with a stand-in engine that only checks options.
    here: bool,
    /// Files that execute the command, with the texts in them that do so.
    by: &'static [(&'static str, &'static [&'static str])],
}

/// A command that only other files execute.
const fn row(command: &'static str, by: &'static [(&'static str, &'static [&'static str])]) -> Row {
    Row { command, here: false, by }
}

/// A command that a real engine executes elsewhere and a stand-in engine executes here.
const fn engine(command: &'static str, by: &'static [(&'static str, &'static [&'static str])]) -> Row {
    Row { command, here: true, by }
}

const ADDED: &str = "tests/tests/container/added.rs";

const AGENT_PACKAGE: &str = "packaging/deb/test-kubernetes";

const RAY_PAGE: &str = "integrations/ray/tests/test_page.py";
const RAY_NODES: &str = "integrations/ray/tests/conftest.py";

pub const ROWS: &[Row] = &[
    // make: CI runs these, or the tests of the tool that make runs.
    row("make test", &[(".ci/run", &["make test || rc=$?"])]),
    row("make demo", &[("make/demo.mk", &["vgpu-demo"]), ("packaging/deb/test-in-root", &["inside vgpu-demo"])]),
    row("make deb", &[(".ci/run", &["make gpu-bundle deb"])]),
    row("make dist", &[("make/build.mk", &["--profile dist"]), ("make/test", &["build --profile dist -p libvgpu"])]),
    row("make bench-report", &[("benches/report/end_to_end.rs", &["vgpu-bench-report", "--only"])]),
    row("make bench-quick", &[("benches/shares/end_to_end.rs", &["vgpu-shares"])]),
    row("make bench-shares", &[("benches/shares/end_to_end.rs", &["vgpu-shares", "--points"])]),
    row("make bench-tenants", &[("benches/shares/end_to_end.rs", &["vgpu-shares", "tenants", "--only"])]),
    row("sudo make install", &[("examples/tests/install.rs", &["make(\"install\""])]),
    row("sudo make uninstall", &[("examples/tests/install.rs", &["make(\"uninstall\""])]),
    row(
        "target/release/vgpu-bench-report",
        &[("benches/report/end_to_end.rs", &["vgpu-bench-report", "--list", "--only"])],
    ),
    row("target/release/vgpu-shares", &[("benches/shares/end_to_end.rs", &["vgpu-shares", "tenants", "--list"])]),
    // The package: README's story installs it by apt, and the tests in clean roots use its contents.
    row(
        "sudo apt install ./target/vgpu_",
        &[("README.md", &["apt install ./target/vgpu_*.deb"]), (".ci/run", &["make story"])],
    ),
    row("vgpu-demo", &[("packaging/deb/test-in-root", &["inside vgpu-demo"])]),
    // Ray: make test-ray follows the page with a real Ray.
    row("make ray-wheel", &[("make/ray.mk", &["make/test-ray wheel"]), (".ci/run", &["make test-ray"])]),
    row("python3 -m venv ray-env", &[("tests/setup/ray", &["python3 -m venv"])]),
    row(". ray-env/bin/activate", &[(RAY_PAGE, &["python3 -m venv ray-env"])]),
    row("pip install target/ray/vgpu_", &[("make/test-ray", &["pip install", "\"$out\"/*.whl"])]),
    row("ray start", &[(RAY_PAGE, &["docs/ray.md"]), (RAY_NODES, &["\"start\"", "--head", "--num-gpus"])]),
    row("python3 quarters.py", &[(RAY_PAGE, &["docs/ray.md", "quarters.py"])]),
    row("ray stop", &[(RAY_PAGE, &["docs/ray.md", "ray stop"])]),
    row(
        "LD_PRELOAD=/usr/lib/vgpu/libvgpu.so VGPU_SOCKET=/run/vgpu/closed ray start",
        &[("integrations/ray/tests/test_cluster.py", &["LD_PRELOAD=str", "VGPU_SOCKET="]), (RAY_NODES, &["--head"])],
    ),
    row(
        "sudo systemd-run",
        &[("packaging/deb/test-systemd", &["systemd-run --wait --pipe", "vgpu tenant add once --gpu 0.25 --pid $$$$"])],
    ),
    // Kubernetes: make test-kubernetes, make test-deb-kubernetes and make test-containerd.
    row(
        "helm upgrade vgpu integrations/kubernetes/chart",
        &[(
            "tests/kubernetes/test_install.py",
            &["\"integrations/kubernetes/chart\"", "helm(\"upgrade\", \"vgpu\", CHART, \"--set-file\"", "--namespace"],
        )],
    ),
    row("make deb deb-kubernetes", &[("make/kubernetes.mk", &["test-deb-kubernetes: deb deb-kubernetes"])]),
    row("dpkg -i target/vgpu*.deb", &[(AGENT_PACKAGE, &["inside dpkg -i /given/vgpu.deb /given/agent.deb"])]),
    row(
        "systemctl enable --now vgpud vgpu-k8s-device-plugin vgpu-k8s-nri",
        &[(
            AGENT_PACKAGE,
            &[
                "units=(vgpu-k8s-device-plugin vgpu-k8s-nri)",
                "systemctl enable --now vgpud.service",
                "systemctl enable --now \"${units[@]}\"",
            ],
        )],
    ),
    row(
        "vgpu-k8s audit",
        &[("integrations/kubernetes/tests/containerd.rs", &["docs/kubernetes.md", "$ vgpu-k8s audit"])],
    ),
    // Engines: the stand-in checks options against the real engine's own list.
    engine("vgpu docker run --memory-limit", &[(ADDED, &["\"docker\", \"run\"", "--memory-limit"])]),
    engine("vgpu docker run --sim --memory-limit", &[(ADDED, &["\"docker\", \"run\", \"--sim\"", "--memory-limit"])]),
    engine(
        "vgpu docker run --tenant",
        &[("README.md", &["vgpu docker run --sim --tenant chat"]), (".ci/run", &["make story"])],
    ),
    engine("vgpu docker run --print", &[("scheduler-sidecar/cli/tests/docker.rs", &["--print"])]),
    engine("docker run", &[("tests/tests/container/main.rs", &["LD_PRELOAD", "VGPU_MEMORY_LIMIT"])]),
    engine("podman run", &[(ADDED, &["--device", "vgpu.internal/tenant="])]),
];

impl Row {
    /// True if `step` contains this command.
    pub fn is_of(&self, step: &Step) -> bool {
        step.plain().split(" && ").any(|part| self.has(part))
    }

    fn has(&self, part: &str) -> bool {
        part.strip_prefix(self.command)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(' ') || self.command.ends_with(['_', ' ']))
    }

    /// Checks that every file exists and contains its texts.
    fn is_kept(&self, part: &str) -> Result<(), String> {
        let mut all = String::new();
        for (file, words) in self.by {
            let text = fs::read_to_string(checkout().join(file)).map_err(|why| format!("{file}: {why}"))?;
            for word in *words {
                if !text.contains(word) {
                    return Err(format!("{file}, which is said to do it, has no `{word}`"));
                }
            }
            all.push_str(&text);
        }
        if !self.here && !part.contains("make ") {
            for option in part.split(' ').filter(|word| word.starts_with('-') && *word != "--") {
                if !all.contains(option) {
                    return Err(format!(
                        "no {option} in {:?}",
                        self.by.iter().map(|(file, _)| file).collect::<Vec<_>>()
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Runs `make -n` and returns its output. `make -n` still executes lines with `$(MAKE)`, so the shell is one without
/// effect.
fn make(words: &[&str]) -> Output {
    let mut make = Command::new("make");
    make.args(["-n", "SHELL=/bin/true"])
        .args(words)
        .current_dir(checkout())
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL")
        .output()
        .expect("make")
}

/// Checks that a make target exists and that each given variable changes its commands.
fn is_made(part: &str) -> Result<(), String> {
    let words: Vec<&str> = part.trim_start_matches("sudo ").split(' ').skip(1).collect();
    let all = make(&words);
    if !all.status.success() {
        return Err(String::from_utf8_lossy(&all.stderr).into_owned());
    }
    for variable in words.iter().filter(|word| word.contains('=')) {
        let others: Vec<&str> = words.iter().filter(|word| word != &variable).copied().collect();
        if make(&others).stdout == all.stdout {
            return Err(format!("{variable} changes nothing"));
        }
    }
    Ok(())
}

/// True if the book's shell must run this command. Fails if nothing runs it.
pub fn judged(step: &Step) -> Result<bool, String> {
    if let Some(mark) = step.mark.as_deref().and_then(|mark| mark.strip_prefix("story: ")) {
        let has =
            |file: &str, word: &str| fs::read_to_string(checkout().join(file)).is_ok_and(|text| text.contains(word));
        let followed =
            has("packaging/story/readme.py", &format!("block(text, \"{mark}\")")) && has(".ci/run", "make story");
        return if followed { Ok(false) } else { Err("nobody follows this story".into()) };
    }
    if step.mark.as_deref() == Some("cluster") {
        let has =
            |file: &str, word: &str| fs::read_to_string(checkout().join(file)).is_ok_and(|text| text.contains(word));
        let is_followed = has("tests/kubernetes/test_page.py", "<!-- cluster -->")
            && step.place.starts_with("docs/kubernetes.md:")
            && has("tests/kubernetes/test_page.py", "docs/kubernetes.md");
        return if is_followed { Ok(false) } else { Err("no test follows this page on a cluster".into()) };
    }
    let plain = step.plain();
    let mut here = Vec::new();
    for part in plain.split(" && ") {
        let made = part.starts_with("make ") || part.starts_with("sudo make ");
        if made {
            is_made(part)?;
        }
        let row = ROWS.iter().filter(|row| row.has(part)).max_by_key(|row| row.command.len());
        let engine = ["docker ", "podman ", "vgpu docker run "].iter().any(|begin| part.starts_with(begin));
        match row {
            None if made || engine => {
                return Err("no row says where it is executed (tests/tests/book/elsewhere.rs)".into());
            }
            None => here.push(true),
            Some(row) => {
                row.is_kept(part)?;
                here.push(row.here);
            }
        }
    }
    match (here.contains(&true), here.contains(&false)) {
        (true, true) => Err("one half is executed here and one elsewhere: write two commands".into()),
        (here, _) => Ok(here),
    }
}
