//! Environment of a page's shell: a simulated device instead of the machine's, private directories instead of the
//! system's, and the state that the page assumes.

use crate::pages::Page;
use crate::stand_ins;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_tests::artefacts::{checkout, example, libvgpu, sim_dir, vgpu, vgpu_checkpoint, vgpud};
use vgpu_tests::{Lab, optional};

/// Exit codes other than 0 that a command of the book may have, and the reason.
const CODES: &[(&str, i32, &str)] = &[
    ("vgpu doctor", 1, "findings: there is no driver but the simulated one, which is beside"),
    ("vgpu check", 1, "no is an answer"),
];

/// True if this command may exit with this code.
pub fn may_end_with(plain: &str, code: i32) -> bool {
    code == 0 || CODES.iter().any(|(command, allowed, _)| plain.starts_with(command) && *allowed == code)
}

/// Commands that set up the state a page assumes, in addition to /etc/vgpu/vgpud.toml. That file is the first one that
/// the page shows, else [`FILE`].
const BEFORE: &[(&str, &str)] = &[
    ("docs/docker.md", "vgpud --tenant train:memory=1GiB --log warn & served"),
    ("docs/kubernetes.md", SLICED),
    ("docs/observing.md", JOINED),
    ("docs/metrics.md", DAEMON),
    (
        "docs/troubleshooting.md",
        "vgpud --tenant train:memory=4GiB,sm=70 --tenant chat:memory=4GiB,sm=30 --log warn & served",
    ),
    ("docs/hami.md", "vgpud --tenant train:memory=4GiB,sm=30 --log warn & served"),
    ("docs/record.md", USED),
    ("docs/report.md", USED),
    ("docs/top.md", DAEMON),
    ("docs/validate.md", "vgpud --tenant chat --tenant train --tenant a --tenant b --log warn & served"),
];

const DAEMON: &str = "vgpud --config /etc/vgpu/vgpud.toml --log warn & served";
/// A process was there and left, so an event exists.
const JOINED: &str = "vgpud --config /etc/vgpu/vgpud.toml --log warn & served
vgpu run --socket /run/vgpu/tenants/train/vgpud.sock -- /usr/lib/vgpu/demo/example-view >/dev/null";
/// A process used device time, so the record holds an entry.
const USED: &str = "vgpud --config /etc/vgpu/vgpud.toml --log warn & served
vgpu run --socket /run/vgpu/tenants/train/vgpud.sock -- /usr/lib/vgpu/demo/example-launches 1 >/dev/null
for _ in $(seq 200); do vgpu usage 2>/dev/null | grep -q train && break; sleep 0.05; done";

/// A pod used device time in its slice.
const SLICED: &str = "vgpud --config /etc/vgpu/vgpud.toml --log warn & served
vgpu label quarter-0 namespace=lab pod=train >/dev/null
vgpu run --socket /run/vgpu/tenants/quarter-0/vgpud.sock -- /usr/lib/vgpu/demo/example-launches 1 >/dev/null
for _ in $(seq 200); do vgpu usage 2>/dev/null | grep -q quarter-0 && break; sleep 0.05; done";

/// /etc/vgpu/vgpud.toml for pages that show none.
const FILE: &str = "[log]\naudit = \"/var/log/vgpu/audit.log\"\n[[tenant]]\nname = \"train\"\nmemory_limit = \"8GiB\"\nsm_limit = 70\n\
    group = \"research\"\n[[tenant]]\nname = \"chat\"\nmemory_limit = \"4GiB\"\nsm_limit = 30\n";

/// Pages whose files or variables name a second device.
const TWO: &[&str] = &["docs/vgpud.md", "docs/hami.md", "docs/kubernetes.md"];

/// Pages whose commands need a driver that knows checkpoints.
const NEWER: &[&str] = &["docs/checkpoint.md"];

/// Shell functions for every page. `served` waits for the daemon that was just started. `follow` runs a command that
/// does not end by itself until it has printed something. `terminal` runs a command on a terminal and presses q.
const FUNCTIONS: &str = r#"
pidof() { [ "$1" = vgpud ] && echo "$VGPUD"; }
served() {
    VGPUD=$!
    for _ in $(seq 600); do
        command vgpu status >/dev/null 2>&1 && return 0
        kill -0 $VGPUD 2>/dev/null || { wait $VGPUD; return; }
        sleep 0.05
    done
    echo "the daemon does not answer"; return 1
}
follow() {
    local rc=0 pid
    eval "$1 >followed 2>&1 &"; pid=$!
    for _ in $(seq 400); do [ ! -s followed ] && kill -0 $pid 2>/dev/null || break; sleep 0.05; done
    kill -0 $pid 2>/dev/null || { cat followed; wait $pid; rc=$?; echo "it ended by itself"; return $((rc ? rc : 99)); }
    kill $pid; wait $pid
    [ -s followed ] || { echo "it said nothing"; rc=99; }
    cat followed; rm followed
    return $rc
}
terminal() {
    local rc=0 pid
    mkfifo keys; TERM=xterm script -qfec "stty rows 40 columns 130; $1" /dev/null <keys >seen & pid=$!
    exec 9<>keys
    for _ in $(seq 400); do [ "$(wc -c <seen)" -lt 500 ] && kill -0 $pid 2>/dev/null || break; sleep 0.05; done
    printf q >&9; wait $pid; rc=$?
    exec 9>&-; [ $rc = 0 ] || cat seen; rm keys seen
    return $rc
}
"#;

/// Environment of one page. Dropping it removes the directories.
pub struct Setting {
    lab: Lab,
    before: &'static str,
    /// True if the output of nvidia-smi can be checked.
    pub has_smi: bool,
}

impl Setting {
    pub fn of(page: &Page) -> Setting {
        let mut lab = Lab::new(if TWO.contains(&page.name()) { "2xh200" } else { "h200" });
        if NEWER.contains(&page.name()) {
            lab.set("VGPU_SIM_DRIVER", "580");
        }
        for dir in ["bin", "lib/vgpu", "work", "run", "etc/vgpu", "etc/cdi", "log", "demo"] {
            fs::create_dir_all(lab.path().join(dir)).expect("a directory of our own");
        }
        let link = |from: &Path, to: &str| std::os::unix::fs::symlink(from, lab.path().join(to)).expect("a link");
        // The layout of an installed package: `vgpu` finds the other files relative to its own path.
        for (program, to) in [(vgpu(), "bin/vgpu"), (vgpud(), "bin/vgpud"), (vgpu_checkpoint(), "bin/vgpu-checkpoint")]
        {
            let to = lab.path().join(to);
            fs::hard_link(&program, &to).or_else(|_| fs::copy(&program, &to).map(drop)).expect("a copy");
        }
        link(&libvgpu(), "lib/vgpu/libvgpu.so");
        link(&sim_dir(), "lib/vgpu/sim");
        for name in ["example-memory", "example-view", "example-launches"] {
            link(&example(name), &format!("demo/{name}"));
        }
        let smi = page.text.contains("nvidia-smi").then(optional::nvidia_smi).flatten();
        match &smi {
            Some(smi) => link(smi, "bin/nvidia-smi"),
            None => stand_ins::script(&lab.path().join("bin/nvidia-smi"), "#!/bin/sh\n"),
        }
        stand_ins::put(lab.path(), &page.text);
        let before = BEFORE.iter().find(|(name, _)| *name == page.name()).map_or("", |(_, before)| before);
        let setting = Setting { lab, before, has_smi: smi.is_some() };
        let shown =
            page.blocks().into_iter().find(|block| block.language == "toml" && block.text.contains("[[tenant]]"));
        let file = shown.filter(|_| page.name() != "docs/report.md").map_or(FILE.to_owned(), |block| block.text);
        fs::write(setting.path().join("etc/vgpu/vgpud.toml"), setting.here(&file)).expect("a directory of our own");
        setting
    }

    pub fn path(&self) -> &Path {
        self.lab.path()
    }

    /// Directories of the system, and the private ones that replace them.
    fn places(&self) -> [(&'static str, PathBuf); 9] {
        let own = |name: &str| self.path().join(name);
        [
            ("/usr/lib/vgpu/demo", own("demo")),
            ("/usr/lib/vgpu", own("lib/vgpu")),
            ("/var/lib/vgpu", own("run/state")),
            ("/var/log/vgpu", own("log")),
            ("/run/vgpu", own("run")),
            ("/etc/vgpu", own("etc/vgpu")),
            ("/etc/cdi", own("etc/cdi")),
            ("/etc/systemd/system", own("etc")),
            ("target/release", vgpu().parent().expect("a directory").to_owned()),
        ]
    }

    /// Replaces the system's directories in a text of the book by the private ones.
    pub fn here(&self, text: &str) -> String {
        self.places()
            .iter()
            .fold(text.to_owned(), |text, (there, here)| text.replace(there, &here.display().to_string()))
    }

    /// Replaces the private directories in an output by the book's.
    pub fn there(&self, text: &str) -> String {
        self.places()
            .iter()
            .fold(text.to_owned(), |text, (there, here)| text.replace(&here.display().to_string(), there))
    }

    /// Shell text that runs before the page's own commands.
    pub fn prelude(&self) -> String {
        format!("cd {}/work || exit\n{FUNCTIONS}\n{}\n", self.path().display(), self.here(self.before))
    }

    /// bash in the environment that the book's commands expect.
    pub fn shell(&self) -> Command {
        let mut shell = self.lab.bare("bash");
        let path = std::env::var("PATH").unwrap_or_default();
        shell
            .env("PATH", format!("{}:{path}", self.path().join("bin").display()))
            .env("VGPU_RUNTIME_DIR", self.path().join("run"))
            .env("STAND_INS", self.path())
            .env("CHECKOUT", checkout())
            .env("NO_COLOR", "1");
        shell
    }
}
