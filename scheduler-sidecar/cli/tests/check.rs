//! Tests of `vgpu check`: yes only if the loader maps the library, no with a reason, and nothing is executed.

#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use support::{Guard, compile, eventually, script, texts, vgpu, with_library};
use tempfile::TempDir;
use vgpu_cli::arch;

/// A program that creates the file named in its environment.
const TOUCH: &str = r#"#include <stdio.h>
#include <stdlib.h>
int main(void) { char *ran = getenv("RAN"); if (ran) fclose(fopen(ran, "w")); return 0; }"#;

/// Checks a program with a preload; returns exit code, stdout and stderr, and asserts that the program did not run.
fn check(preload: Option<&str>, program: &Path) -> (i32, String, String) {
    let dir = TempDir::new().unwrap();
    let ran = dir.path().join("ran");
    let mut command = vgpu();
    command.args(["check", "--"]).arg(program).env("RAN", &ran);
    if let Some(preload) = preload {
        command.env("LD_PRELOAD", preload);
    }
    let output = command.output().unwrap();
    assert!(!ran.exists(), "the program ran");
    let (out, err) = texts(&output);
    (output.status.code().unwrap(), out, err)
}

/// Asserts that the answer is no with these words.
fn refused(preload: Option<&str>, program: &Path, words: &[&str]) {
    let (code, out, err) = check(preload, program);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    for word in words {
        assert!(err.contains(word), "{err:?} lacks {word:?}");
    }
}

#[test]
fn a_dynamic_program_with_the_library_preloaded_is_a_yes() {
    let (dir, library) = with_library();
    let program = dir.path().join("dynamic");
    compile(TOUCH, &program, &[]);
    let (code, out, err) = check(library.to_str(), &program);
    assert_eq!(code, 0, "{err}");
    assert_eq!(out, format!("mapped: {} in {}\n", library.display(), program.display()));
    // Found in PATH, among other preloads, and through vgpu run.
    assert_eq!(check(Some(&format!("{}:{}", "libc.so.6", library.display())), Path::new("env")).0, 0);
    let status = vgpu()
        .args(["run", "--library"])
        .arg(&library)
        .args(["--", env!("CARGO_BIN_EXE_vgpu"), "check", "--"])
        .arg(&program)
        .arg("--its-own-option")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_program_without_any_preload_is_a_no_that_says_how_to_start_it() {
    let (dir, library) = with_library();
    let program = dir.path().join("dynamic");
    compile(TOUCH, &program, &[]);
    refused(None, &program, &["LD_PRELOAD is not set", "vgpu run"]);
    refused(Some("libc.so.6"), &program, &["LD_PRELOAD=\"libc.so.6\" does not name libvgpu.so"]);
    drop(library);
}

#[test]
fn a_preload_without_a_path_is_a_no_that_names_the_absolute_path() {
    let (dir, _library) = with_library();
    let program = dir.path().join("dynamic");
    compile(TOUCH, &program, &[]);
    refused(Some("libvgpu.so"), &program, &["without a path", "absolute"]);
}

#[test]
fn a_preload_that_does_not_exist_or_does_not_load_is_a_no() {
    let (dir, library) = with_library();
    let program = dir.path().join("dynamic");
    compile(TOUCH, &program, &[]);
    refused(Some("/nowhere/libvgpu.so"), &program, &["/nowhere/libvgpu.so", "does not exist"]);
    let broken = dir.path().join("broken");
    fs::create_dir(&broken).unwrap();
    let broken = broken.join("libvgpu.so");
    fs::write(&broken, &fs::read(&library).unwrap()[..300]).unwrap();
    refused(broken.to_str(), &program, &["the loader says", "cannot be preloaded"]);
    let spaced = dir.path().join("a b");
    fs::create_dir(&spaced).unwrap();
    fs::copy(&library, spaced.join("libvgpu.so")).unwrap();
    refused(spaced.join("libvgpu.so").to_str(), &program, &["does not exist"]);
}

#[test]
fn a_static_program_is_a_no_and_is_not_run() {
    let (dir, library) = with_library();
    for flags in [&["-static"][..], &["-static-pie"]] {
        let program = dir.path().join("static");
        compile(TOUCH, &program, flags);
        refused(library.to_str(), &program, &["static program", "nothing can be preloaded"]);
    }
}

#[test]
fn a_script_is_judged_by_its_interpreter_and_is_not_run() {
    let (dir, library) = with_library();
    let path = dir.path().join("script");
    for line in ["#!/bin/sh", "#!/usr/bin/env sh", "#!/usr/bin/env -S sh -e", "#! /bin/sh -e"] {
        script(&path, &format!("{line}\ntouch \"$RAN\"\n"));
        let (code, out, err) = check(library.to_str(), &path);
        assert_eq!(code, 0, "{line}: {err}");
        assert!(out.contains("the interpreter of") && out.contains("script"), "{out}");
        refused(None, &path, &["LD_PRELOAD is not set"]);
    }
    // Without an interpreter line, the shell runs it.
    script(&path, "touch \"$RAN\"\n");
    assert_eq!(check(library.to_str(), &path).0, 0);
    // A script whose interpreter is a script.
    let outer = dir.path().join("outer");
    script(&outer, &format!("#!{}\n", path.display()));
    assert_eq!(check(library.to_str(), &outer).0, 0);
}

#[test]
fn a_script_whose_interpreter_is_static_or_loses_the_environment_is_a_no() {
    let (dir, library) = with_library();
    let interpreter = dir.path().join("static");
    compile(TOUCH, &interpreter, &["-static"]);
    let path = dir.path().join("script");
    script(&path, &format!("#!{}\n", interpreter.display()));
    refused(library.to_str(), &path, &["static program", interpreter.to_str().unwrap()]);
    script(&path, "#!/usr/bin/env -S -i sh\n");
    refused(library.to_str(), &path, &["without the environment"]);
    script(&path, "#!/usr/bin/env -S -u LD_PRELOAD sh\n");
    refused(library.to_str(), &path, &["unsets LD_PRELOAD"]);
}

#[test]
fn a_program_for_another_machine_or_for_musl_is_a_no() {
    let (dir, library) = with_library();
    let program = dir.path().join("program");
    compile(TOUCH, &program, &[]);
    let mut bytes = fs::read(&program).unwrap();
    bytes[18] = 243; // e_machine: RISC-V
    let foreign = dir.path().join("foreign");
    fs::write(&foreign, &bytes).unwrap();
    fs::set_permissions(&foreign, fs::Permissions::from_mode(0o755)).unwrap();
    refused(library.to_str(), &foreign, &["built for riscv", "libvgpu.so for"]);
    let musl = dir.path().join("musl");
    compile(TOUCH, &musl, &[&format!("-Wl,--dynamic-linker={}", arch::MUSL_LOADER)]);
    refused(library.to_str(), &musl, &["musl"]);
}

#[test]
fn a_program_with_another_users_rights_is_a_no() {
    let (dir, library) = with_library();
    if !rustix::process::geteuid().is_root() {
        // Only root can create a file of another user; other users test a setuid program of root that every machine
        // has.
        refused(library.to_str(), Path::new("/bin/su"), &["more rights", "ignores LD_PRELOAD"]);
        return;
    }
    let program = dir.path().join("setuid");
    compile(TOUCH, &program, &[]);
    std::os::unix::fs::chown(&program, Some(1234), None).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    refused(library.to_str(), &program, &["more rights", "ignores LD_PRELOAD"]);
    // Where the process cannot gain rights, LD_PRELOAD applies.
    let output = Command::new("setpriv")
        .args(["--no-new-privs", env!("CARGO_BIN_EXE_vgpu"), "check"])
        .arg(&program)
        .env("LD_PRELOAD", &library)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", texts(&output).1);
    // Root's own setuid program gains root nothing.
    std::os::unix::fs::chown(&program, Some(0), None).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(check(library.to_str(), &program).0, 0);
}

#[test]
fn what_cannot_be_found_out_is_neither_yes_nor_no() {
    let (dir, library) = with_library();
    let (code, _, err) = check(library.to_str(), Path::new("no-such-program-anywhere"));
    assert_eq!(code, 3, "{err}");
    let plain = dir.path().join("plain");
    fs::write(&plain, "x").unwrap();
    assert_eq!(check(library.to_str(), &plain).0, 3, "not executable");
    // A loader with unknown handling of --list is not started.
    let strange = dir.path().join("strange");
    let loader = dir.path().join("loader");
    script(&loader, "#!/bin/sh\ntouch \"$RAN\"\n");
    compile(TOUCH, &strange, &[&format!("-Wl,--dynamic-linker={}", loader.display())]);
    let (code, _, err) = check(library.to_str(), &strange);
    assert_eq!(code, 3, "{err}");
    assert!(err.contains("is not known"), "{err}");
    assert_eq!(vgpu().arg("check").output().unwrap().status.code(), Some(2));
}

#[test]
fn a_certain_library_can_be_demanded() {
    let (dir, library) = with_library();
    let (_other_dir, other) = with_library();
    let link = dir.path().join("link.so");
    std::os::unix::fs::symlink(&library, &link).unwrap();
    let code = |wanted: &Path| {
        let mut command = vgpu();
        command.args(["check", "--library"]).arg(wanted).args(["--", "env"]).env("LD_PRELOAD", &library);
        command.output().unwrap().status.code()
    };
    assert_eq!(code(&library), Some(0));
    assert_eq!(code(&link), Some(0), "the same file by another name");
    assert_eq!(code(&other), Some(1));
}

#[test]
fn a_running_process_is_looked_at_by_its_pid() {
    let (dir, library) = with_library();
    let start = |preload: bool| {
        let mut command = Command::new("sleep");
        command.arg("1000").env_remove("LD_PRELOAD");
        if preload {
            command.env("LD_PRELOAD", &library);
        }
        Guard(command.spawn().unwrap())
    };
    let (with, without) = (start(true), start(false));
    let check = |pid: u32| vgpu().args(["check", "--json", "--pid", &pid.to_string()]).output().unwrap();
    eventually("the loader is done", || check(with.0.id()).status.code() == Some(0));
    assert_eq!(check(without.0.id()).status.code(), Some(1));
    // The answer stays the same after the file was replaced or removed.
    fs::remove_file(&library).unwrap();
    let (out, _) = texts(&check(with.0.id()));
    assert!(out.contains("\"mapped\": true") && out.contains(dir.path().to_str().unwrap()), "{out}");
    assert_eq!(check(u32::MAX / 2).status.code(), Some(3));
}

#[test]
fn json_says_the_same() {
    let (dir, library) = with_library();
    let path = dir.path().join("script");
    script(&path, "#!/bin/sh\n");
    let ask = |preload: &Path| {
        let output = vgpu().args(["check", "--json"]).arg(&path).env("LD_PRELOAD", preload).output().unwrap();
        (output.status.code().unwrap(), serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap())
    };
    let (code, yes) = ask(&library);
    assert_eq!((code, &yes["mapped"]), (0, &true.into()));
    assert_eq!(yes["library"].as_str(), library.to_str());
    assert_eq!(yes["scripts"][0].as_str(), path.to_str());
    let (code, no) = ask(Path::new("/nowhere/libvgpu.so"));
    assert_eq!((code, &no["mapped"], &no["library"]), (1, &false.into(), &serde_json::Value::Null));
    assert!(no["reason"].as_str().unwrap().contains("does not exist"));
}
