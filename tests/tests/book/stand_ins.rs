//! Programs that replace those which a test machine may lack: an engine that knows the real one's options, a service
//! manager that obeys unit files, and the reader's own programs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use vgpu_tests::optional;

/// docker and podman. They accept the options of the real engine's `run --help`. For a CDI device of vgpu they require
/// the CDI file.
const ENGINE: &str = r#"#!/usr/bin/env python3
import json, os, re, shutil, sys
here = os.environ["STAND_INS"]
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
verb = words[0]

def wrong(text):
    print(f"{name}: {text}", file=sys.stderr)
    sys.exit(125)

if verb == "image":
    print('["PATH=/bin"]')
elif verb == "create":
    print("4711")
elif verb == "cp":
    source = [word for word in words if word.startswith("4711:")][0].removeprefix("4711:")
    if not source.startswith("/lib64/ld-linux"):
        wrong(f"Could not find the file {source}")
    with open(words[-1], "w", encoding="utf-8") as file:
        file.write("loader")
elif verb == "run":
    path = f"{here}/{name}.help"
    known = open(path, encoding="utf-8").read() if os.path.exists(path) else None
    words, devices = words[1:], []
    while words and words[0].startswith("-"):
        option, _, value = words.pop(0).partition("=")
        found = known is None or re.search(rf"(^|[ ,]){re.escape(option)}(, --[a-z-]+)?( [a-zA-Z<\[]+[^ ]*)?(  |$)", known, re.M)
        if not found:
            wrong(f"unknown flag: {option}")
        takes = option in ("-v", "-e", "--name", "--gpus", "--device", "--network") if known is None else found[3]
        if takes and not value:
            value = words.pop(0)
        if option == "--device" and value.startswith("vgpu.internal/"):
            devices.append(value.partition("=")[2])
    if not words:
        wrong("no image is named")
    for device in devices:
        with open(f"{here}/etc/cdi/vgpu.json", encoding="utf-8") as file:
            if device not in [one["name"] for one in json.load(file)["devices"]]:
                wrong(f"unresolvable CDI devices {device}")
elif verb not in ("rm", "ps", "exec"):
    wrong(f"'{verb}' is not a command")
"#;

/// systemctl: starts the unit's command and reloads it as the unit file says.
const SYSTEMCTL: &str = r#"#!/bin/bash
fail() { echo "systemctl: $*" >&2; exit 1; }
now= verb= units=()
for word; do
    case $word in
    --now) now=1 ;;
    -*) fail "unrecognized option '$word'" ;;
    *) if [ -z "$verb" ]; then verb=$word; else units+=("$word"); fi ;;
    esac
done
[ "$verb" != daemon-reload ] || exit 0
for unit in "${units[@]}"; do
    case $unit in *.*) ;; *) unit=$unit.service ;; esac
    file=$(find "$STAND_INS/etc" "$CHECKOUT/examples" -name "$unit" | head -n 1)
    [ -n "$file" ] || fail "Unit $unit could not be found."
    exec_of() { sed -n "s|^$1=||p" "$file" | sed "s|/usr/local/bin/||; s|/usr/bin/||; s|/etc/vgpu|$STAND_INS/etc/vgpu|g"; }
    start() { $(exec_of ExecStart) --log warn >"$STAND_INS/journal" 2>&1 &
        echo $! >"$STAND_INS/pid"
        for _ in $(seq 600); do vgpu status >/dev/null 2>&1 && return; kill -0 $! || return; sleep 0.05; done; return 1; }
    case $verb in
    enable) grep -q '^WantedBy=' "$file" || fail "nothing wants $unit"; [ -z "$now" ] || start || fail "$unit failed" ;;
    start) start || fail "$unit failed" ;;
    reload) export MAINPID=$(cat "$STAND_INS/pid"); eval "$(exec_of ExecReload)" || fail "$unit is not active" ;;
    stop | disable) kill "$(cat "$STAND_INS/pid")" ;;
    status | is-active) kill -0 "$(cat "$STAND_INS/pid")" && echo active ;;
    *) fail "Unknown command verb '$verb'" ;;
    esac || exit
done
"#;

/// Replaces a program of the reader's that uses device time: it prints the time of a step. One text per language that
/// the pages use.
const PROGRAM: &str = "#!/bin/sh\necho 'step 1.25 ms'\n";
const TRAIN: &str = "print('step 1.25 ms')\n";

/// sqlite3 for machines without it.
const SQLITE: &str = "#!/usr/bin/env python3\nimport sqlite3, sys\nassert sys.argv[1] == '-readonly', sys.argv\n\
    for row in sqlite3.connect(f'file:{sys.argv[2]}?mode=ro', uri=True).execute(sys.argv[3]):\n    print(*row, sep='|')\n";

/// Writes an executable script.
pub fn script(path: &Path, text: &str) {
    fs::write(path, text).expect("a directory of our own");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("our own file");
}

/// Writes all stand-in programs below `dir`, for a page.
pub fn put(dir: &Path, page: &str) {
    let bin = |name: &str| dir.join("bin").join(name);
    for (name, variable) in [("docker", "VGPU_DOCKER"), ("podman", "VGPU_PODMAN")] {
        script(&bin(name), ENGINE);
        let asked = page.contains(&format!("{name} run"));
        if let Some(real) = asked.then(|| optional::part(variable, &format!("options of {name} in the book"))).flatten()
        {
            let help = Command::new(real).args(["run", "--help"]).output().expect("it was there");
            fs::write(dir.join(format!("{name}.help")), help.stdout).expect("a directory of our own");
        }
    }
    script(&bin("systemctl"), SYSTEMCTL);
    script(&bin("journalctl"), "#!/bin/sh\ncat \"$STAND_INS/journal\"\n");
    script(&bin("sudo"), "#!/bin/sh\nexec \"$@\"\n");
    script(&bin("sudoedit"), "#!/bin/sh\ntest -f \"$1\"\n");
    if !Path::new("/usr/bin/sqlite3").exists() {
        script(&bin("sqlite3"), SQLITE);
    }
    for name in ["job", "serve", "a", "b"] {
        script(&dir.join("work").join(name), PROGRAM);
    }
    fs::write(dir.join("work/train.py"), TRAIN).expect("a directory of our own");
}
