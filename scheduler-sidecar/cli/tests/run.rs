//! Tests of `vgpu run`: the environment, the exit code, signals, and that a mistake starts nothing.

#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::{Guard, compile, copy, eventually, script, texts, vgpu, with_library};
use tempfile::TempDir;

fn run(library: &Path) -> Command {
    let mut command = vgpu();
    command.args(["run", "--library"]).arg(library);
    command
}

/// Returns the output of a shell under `vgpu run`.
fn printed(command: &mut Command, shell: &str) -> String {
    let output = command.args(["--", "sh", "-c", shell]).output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{err}");
    out
}

#[test]
fn the_library_is_mapped_and_the_limits_are_set() {
    let (_dir, library) = with_library();
    let mut command = run(&library);
    command.args(["--memory-limit", "1.5GiB", "--sm-limit=12.5", "--tenant", "team-a"]);
    let out = printed(
        &mut command,
        "echo $LD_PRELOAD; echo $VGPU_MEMORY_LIMIT $VGPU_SM_LIMIT $VGPU_TENANT; grep -c libvgpu.so /proc/self/maps",
    );
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[..2], [library.to_str().unwrap(), "1.5GiB 12.5 team-a"]);
    assert!(lines[2].parse::<u32>().unwrap() > 0);
}

#[test]
fn without_options_no_limit_is_set_and_the_library_is_mapped_all_the_same() {
    let (_dir, library) = with_library();
    let out = printed(&mut run(&library), "echo ${VGPU_MEMORY_LIMIT-none} ${VGPU_SM_LIMIT-none} ${VGPU_SOCKET-none}");
    assert_eq!(out, "none none none\n");
}

#[test]
fn each_run_is_a_tenant_of_its_own_unless_it_is_named() {
    let (_dir, library) = with_library();
    let tenant = |command: &mut Command| printed(command, "echo $VGPU_TENANT").trim().to_owned();
    let (one, other) = (tenant(&mut run(&library)), tenant(&mut run(&library)));
    assert!(one.starts_with("run-") && other.starts_with("run-"));
    assert_ne!(one, other);
    assert_eq!(tenant(run(&library).env("VGPU_TENANT", "inherited")), "inherited");
    assert_eq!(tenant(run(&library).env("VGPU_TENANT", "inherited").args(["--tenant", "given"])), "given");
    // The members of one socket are one tenant.
    let by_socket = |socket: &str| tenant(run(&library).args(["--socket", socket]));
    assert_eq!(by_socket("/run/a/s"), by_socket("/run/a/s"));
    assert_ne!(by_socket("/run/a/s"), by_socket("/run/b/s"));
    assert_eq!(tenant(run(&library).env("VGPU_SOCKET", "/run/a/s")), by_socket("/run/a/s"));
}

#[test]
fn what_was_preloaded_stays_behind_ours_and_a_run_in_a_run_changes_nothing() {
    let (dir, library) = with_library();
    let other = dir.path().join("other.so");
    compile("int other;", &other, &["-shared", "-fPIC", "-nostdlib"]);
    let list = format!("{}:{}", library.display(), other.display());
    assert_eq!(printed(run(&library).env("LD_PRELOAD", &other), "echo $LD_PRELOAD"), format!("{list}\n"));
    let mut nested = run(&library);
    nested.env("LD_PRELOAD", &other).args(["--tenant", "t", "--", env!("CARGO_BIN_EXE_vgpu"), "run", "--library"]);
    let nested = nested.arg(&library);
    assert_eq!(printed(nested, "echo $LD_PRELOAD $VGPU_TENANT"), format!("{list} t\n"));
}

#[test]
fn a_relative_library_becomes_absolute_and_a_variable_names_one_too() {
    let (dir, library) = with_library();
    let mut relative = vgpu();
    relative.current_dir(dir.path()).args(["run", "--library", "./libvgpu.so"]);
    assert_eq!(printed(&mut relative, "cd /; echo $LD_PRELOAD"), format!("{}\n", library.display()));
    let mut by_variable = vgpu();
    by_variable.env("VGPU_LIBRARY", &library).arg("run");
    assert_eq!(printed(&mut by_variable, "echo $LD_PRELOAD"), format!("{}\n", library.display()));
}

#[test]
fn the_library_and_the_simulated_driver_are_found_where_they_are_installed() {
    let (_build, library) = with_library();
    for (bin, lib) in [("bin", "lib/vgpu"), ("release", "release")] {
        let dir = TempDir::new().unwrap();
        fs::create_dir_all(dir.path().join(bin)).unwrap();
        fs::create_dir_all(dir.path().join(lib).join("sim")).unwrap();
        let program = dir.path().join(bin).join("vgpu");
        copy(env!("CARGO_BIN_EXE_vgpu"), &program);
        let installed = dir.path().join(lib).join("libvgpu.so");
        fs::copy(&library, &installed).unwrap();
        let sim = installed.with_file_name("sim");
        for driver in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            fs::copy(&library, sim.join(driver)).unwrap();
        }
        let mut command = Command::new(&program);
        command.args(["run", "--sim"]).env_remove("VGPU_LIBRARY").env("LD_LIBRARY_PATH", "/a b");
        let out = printed(&mut command, "echo $LD_PRELOAD; echo $LD_LIBRARY_PATH");
        assert_eq!(out, format!("{}\n{}:/a b\n", installed.display(), sim.display()));
    }
}

#[test]
fn the_exit_code_is_the_programs() {
    let (_dir, library) = with_library();
    for code in [0, 1, 42, 255] {
        let status = run(&library).args(["--", "sh", "-c", &format!("exit {code}")]).status().unwrap();
        assert_eq!(status.code(), Some(code));
    }
    let status = run(&library).args(["sh", "-c", "kill -SEGV $$"]).status().unwrap();
    assert_eq!(status.signal(), Some(11), "the two dashes may be left out");
}

#[test]
fn signals_reach_the_program_which_is_the_same_process_and_sigpipe_is_as_usual() {
    let (_dir, library) = with_library();
    let dir = TempDir::new().unwrap();
    let ready = dir.path().join("ready");
    let shell = format!(
        "trap 'exit 7' TERM; echo $$ > {0}.part; mv {0}.part {0}; while :; do sleep 0.05; done",
        ready.display()
    );
    let mut child = Guard(run(&library).args(["--", "sh", "-c", &shell]).spawn().unwrap());
    eventually("the program is there", || ready.exists());
    assert_eq!(fs::read_to_string(&ready).unwrap().trim(), child.0.id().to_string());
    kill_process(Pid::from_raw(child.0.id().try_into().unwrap()).unwrap(), Signal::TERM).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(7));
    // Bit 12 of the ignored signals is SIGPIPE.
    let ignored = printed(&mut run(&library), "grep SigIgn /proc/self/status");
    let mask = u64::from_str_radix(ignored.trim().rsplit('\t').next().unwrap(), 16).unwrap();
    assert_eq!(mask & (1 << 12), 0, "{ignored}");
}

#[test]
fn arguments_and_input_pass_through_as_they_are() {
    let (_dir, library) = with_library();
    let mut child = run(&library)
        .args(["--", "sh", "-c", "cat; printf '<%s>' \"$@\"", "sh", "--memory-limit", "a b", "", "--", "-x"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"in").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(texts(&output).0, "in<--memory-limit><a b><><--><-x>");
}

#[test]
fn a_mistake_starts_nothing_and_is_told_by_option_value_and_what_is_accepted() {
    let (dir, library) = with_library();
    let started = dir.path().join("started");
    let table: &[(&[&str], &[&str])] = &[
        (&["--memory-limit", "abc"], &["--memory-limit", "\"abc\"", "is not a size", "accepted:"]),
        (&["--memory-limit", ""], &["--memory-limit", "\"\"", "accepted:"]),
        (&["--memory-limit", "0"], &["--memory-limit", "\"0\"", "is zero", "accepted:"]),
        (&["--memory-limit", "-1G"], &["--memory-limit", "\"-1G\"", "accepted:"]),
        (&["--memory-limit", "101%"], &["--memory-limit", "\"101%\"", "more than 100%", "accepted:"]),
        (&["--memory-limit", "1GiBB"], &["--memory-limit", "\"1GiBB\"", "unit", "accepted:"]),
        (&["--memory-limit", "1 GiB"], &["--memory-limit", "\"1 GiB\"", "accepted:"]),
        (&["--memory-limit", "99999999999T"], &["--memory-limit", "\"99999999999T\"", "accepted:"]),
        (&["--memory-limit", "４GiB"], &["--memory-limit", "accepted:"]),
        (&["--sm-limit", "0"], &["--sm-limit", "\"0\"", "accepted:"]),
        (&["--sm-limit", "101"], &["--sm-limit", "\"101\"", "accepted:"]),
        (&["--sm-limit", "half"], &["--sm-limit", "\"half\"", "accepted:"]),
        (&["--tenant", "a/b"], &["--tenant", "\"a/b\"", "accepted:"]),
        (&["--tenant", ""], &["--tenant", "\"\"", "is empty", "accepted:"]),
    ];
    for (options, words) in table {
        let output = run(&library).args(*options).args(["--", "touch"]).arg(&started).output().unwrap();
        let (out, err) = texts(&output);
        assert_eq!((output.status.code(), out.as_str()), (Some(2), ""), "{options:?}: {err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        for word in *words {
            assert!(err.contains(word), "{options:?}: {err:?} lacks {word:?}");
        }
    }
    assert!(!started.exists());
}

#[test]
fn a_limit_in_the_environment_that_the_library_would_refuse_is_refused_before_the_start() {
    let (_dir, library) = with_library();
    for (name, value) in [("VGPU_MEMORY_LIMIT", "abc"), ("CUDA_DEVICE_SM_LIMIT", "x"), ("VGPU_MEMORY_LIMIT_x", "1G")] {
        let output = run(&library).env(name, value).args(["--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(texts(&output).1.contains(name), "{}", texts(&output).1);
        assert!(
            run(&library)
                .env(name, value)
                .env("VGPU_ON_ERROR", "open")
                .args(["--", "true"])
                .status()
                .unwrap()
                .success()
        );
    }
    // An option replaces the variable, so its value does not matter.
    let mut replaced = run(&library);
    replaced.env("VGPU_MEMORY_LIMIT", "abc").args(["--memory-limit", "1GiB"]);
    assert_eq!(printed(&mut replaced, "echo $VGPU_MEMORY_LIMIT"), "1GiB\n");
}

#[test]
fn the_mode_is_handed_on_and_beside_a_daemon_it_is_said_that_it_counts_for_nothing() {
    let (_dir, library) = with_library();
    for mode in ["enforce", "observe", "off"] {
        assert_eq!(printed(run(&library).args(["--mode", mode]), "echo $VGPU_MODE"), format!("{mode}\n"));
    }
    let refused = |command: &mut Command| {
        let output = command.args(["--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        texts(&output).1
    };
    assert!(refused(run(&library).args(["--mode", "watch"])).contains("enforce, observe, off"));
    for open in ["closed", "open"] {
        let mut beside = run(&library);
        beside.env("VGPU_ON_ERROR", open).args(["--mode", "observe", "--socket", "/nowhere/a.sock"]);
        let output = beside.args(["--", "true"]).output().unwrap();
        let said = texts(&output).1;
        assert!(output.status.success(), "{said}");
        assert_eq!(said, "vgpu: VGPU_MODE=observe has no effect with VGPU_SOCKET: the daemon sets the mode\n");
    }
    let said = refused(run(&library).env("VGPU_SM_REQUEST", "30"));
    assert!(said.contains("VGPU_SM_REQUEST=\"30\" asks for guaranteed time"), "{said}");
    assert_eq!(
        printed(run(&library).env("VGPU_SM_REQUEST", "30").args(["--mode", "observe"]), "echo $VGPU_MODE"),
        "observe\n"
    );
}

#[test]
fn a_library_that_cannot_be_preloaded_is_refused() {
    let (dir, library) = with_library();
    let text = dir.path().join("text.so");
    fs::write(&text, "not a library").unwrap();
    let foreign = dir.path().join("foreign.so");
    let mut bytes = fs::read(&library).unwrap();
    bytes[18] = 243; // e_machine: RISC-V
    fs::write(&foreign, bytes).unwrap();
    let spaced = dir.path().join("a b");
    fs::create_dir(&spaced).unwrap();
    let spaced = spaced.join("libvgpu.so");
    fs::copy(&library, &spaced).unwrap();
    for (path, words) in [
        (dir.path().join("missing.so"), "No such file"),
        (text, "is not a shared library"),
        (foreign, "is built for riscv"),
        (spaced, "white space"),
    ] {
        let output = run(&path).args(["--", "true"]).output().unwrap();
        let (_, err) = texts(&output);
        assert_eq!(output.status.code(), Some(125), "{err}");
        assert!(err.contains(words) && err.contains("--library"), "{err}");
    }
}

#[test]
fn a_program_that_is_not_there_or_not_executable_has_the_shells_codes() {
    let (dir, library) = with_library();
    let output = run(&library).args(["--", "no-such-program-anywhere"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{}", texts(&output).1);
    assert!(texts(&output).1.contains("no-such-program-anywhere"));
    let plain = dir.path().join("plain");
    fs::write(&plain, "x").unwrap();
    assert_eq!(run(&library).arg("--").arg(&plain).output().unwrap().status.code(), Some(126));
    script(&dir.path().join("ok"), "#!/bin/sh\nexit 3\n");
    assert_eq!(run(&library).arg("--").arg(dir.path().join("ok")).status().unwrap().code(), Some(3));
    assert_eq!(run(&library).output().unwrap().status.code(), Some(2), "no program at all is usage");
}

#[test]
fn ledgers_of_runs_that_ended_are_removed_and_no_others() {
    let (dir, library) = with_library();
    let state = dir.path().join("state");
    fs::create_dir(&state).unwrap();
    let make = |name: &str| {
        let path = state.join(format!("vgpu-{name}-GPU-1.ledger"));
        fs::write(&path, [0; 4096]).unwrap();
        path
    };
    // No process has this id: it exceeds the kernel's maximum.
    let ended = make("t-run-4194305-0123456789abcdef");
    let held = make("t-run-4194305-fedcba9876543210");
    let own = std::process::id();
    let others = [&format!("t-run-{own}-0123456789abcdef"), "t-team", "t-run-4194305-short", "c-1-2"].map(make);
    let member = lock_a_byte(&held);
    let status = run(&library).env("VGPU_STATE_DIR", &state).args(["--", "true"]).status().unwrap();
    assert!(status.success());
    assert!(!ended.exists(), "its run has ended");
    assert!(held.exists(), "a member still holds its slot");
    for other in others {
        assert!(other.exists(), "{}", other.display());
    }
    drop(member);
    assert!(run(&library).env("VGPU_STATE_DIR", &state).args(["--", "true"]).status().unwrap().success());
    assert!(!held.exists(), "the member is gone");
}

#[test]
fn clean_removes_every_ledger_that_nobody_holds_and_nothing_else() {
    let dir = TempDir::new().unwrap();
    let make = |name: &str| {
        let path = dir.path().join(name);
        fs::write(&path, [0; 4096]).unwrap();
        path
    };
    let held = make("vgpu-t-held-GPU-1.ledger");
    let free = ["vgpu-t-team-GPU-1.ledger", "vgpu-c-1-2-MIG-5.ledger", "vgpu-u-0-x0123456789abcdef.ledger"].map(make);
    let others = ["vgpu-notes.ledger", "other", "vgpu-t-team-GPU-1.ledger.old"].map(make);
    let precious = dir.path().join("vgpu-t-a-GPU-1.ledger");
    fs::write(&precious, "precious").unwrap();
    let link = dir.path().join("vgpu-t-link-GPU-1.ledger");
    std::os::unix::fs::symlink(&others[1], &link).unwrap();
    let member = lock_a_byte(&held);
    let clean = |args: &[&str]| {
        let output = vgpu().arg("clean").arg("--dir").arg(dir.path()).args(args).output().unwrap();
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{err}");
        out
    };
    let shown = clean(&["--dry-run"]);
    assert_eq!((shown.matches(" unused").count(), shown.matches(" in use").count()), (3, 1), "{shown}");
    assert!(free.iter().all(|path| path.exists()), "nothing was removed yet");
    let all: serde_json::Value = serde_json::from_str(&clean(&["--json"])).unwrap();
    let states: Vec<&str> = all.as_array().unwrap().iter().map(|one| one["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["removed", "no ledger", "in use", "no file", "removed", "removed"], "{all}");
    assert_eq!((&all[4]["tenant"], &all[4]["device"]), (&"t-team".into(), &"GPU-1".into()));
    assert!(free.iter().all(|path| !path.exists()));
    assert!(others.iter().chain([&held, &link, &precious]).all(|path| path.exists()), "{all}");
    drop(member);
    clean(&[]);
    assert!(!held.exists(), "its member has ended");
}

#[test]
fn clean_names_a_directory_that_is_not_there_and_finds_nothing_where_nothing_is() {
    let dir = TempDir::new().unwrap();
    let output = vgpu().args(["clean", "--dir", "/no/such"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(texts(&output).1.contains("--dir /no/such: No such file"), "{:?}", texts(&output));
    let output = vgpu().arg("clean").env("VGPU_STATE_DIR", dir.path()).output().unwrap();
    assert_eq!(texts(&output), ("no ledgers\n".into(), String::new()));
}

/// Starts a process that locks one byte of a file, as a member does.
fn lock_a_byte(path: &Path) -> Guard {
    let source = r#"#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>
int main(int count, char **words) {
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 777, .l_len = 1 };
    int file = open(words[1], O_RDWR);
    if (file < 0 || fcntl(file, F_OFD_SETLK, &lock) != 0) return 1;
    write(1, "held", 4);
    pause();
    return 0;
}"#;
    let program = path.with_file_name("member");
    compile(source, &program, &[]);
    let mut child = Guard(Command::new(&program).arg(path).stdout(Stdio::piped()).spawn().unwrap());
    let mut held = [0; 4];
    std::io::Read::read_exact(child.0.stdout.as_mut().unwrap(), &mut held).unwrap();
    assert_eq!(&held, b"held");
    child
}

#[test]
fn k8s_runs_the_agent_next_to_it_and_says_what_to_install_without_one() {
    let dir = TempDir::new().unwrap();
    let own = dir.path().join("vgpu");
    copy(vgpu().get_program(), &own);
    let agent = |words: &[&str]| Command::new(&own).arg("k8s").args(words).env("PATH", "/nowhere").output().unwrap();
    let (_, err) = texts(&agent(&["nri"]));
    assert!(err.contains("install the package vgpu-kubernetes"), "{err}");
    assert_eq!(agent(&["nri"]).status.code(), Some(127));
    script(&dir.path().join("vgpu-k8s"), "#!/bin/sh\necho \"agent: $*\"\nexit 7\n");
    let output = agent(&["nri", "--help", "--index", "10"]);
    assert_eq!((texts(&output).0.as_str(), output.status.code()), ("agent: nri --help --index 10\n", Some(7)));
}
