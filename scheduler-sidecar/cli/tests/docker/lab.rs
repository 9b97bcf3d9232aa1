//! A test directory with a library, an image, and a fake engine that prints its arguments.
#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;
use vgpu_cli::arch;

use crate::support::{texts, vgpu};

/// A fake engine with one image, whose variables are in `env` and whose files are below `files`.
const ENGINE: &str = r#"#!/bin/sh
here=$(dirname "$0")
printf '%s\n' "$*" >>"$here/asked"
case $1 in
image) [ "$5" = img ] || { echo "No such image: $5" >&2; exit 1; }; cat "$here/env" ;;
pull) echo "pull access denied" >&2; exit 1 ;;
create) echo 4711 ;;
cp)
  if [ "$2" = --follow-link ]; then
    [ ! -e "$here/podman" ] || { echo "Error: unknown flag: --follow-link" >&2; exit 125; }
    shift
    [ ! -L "$here/files${2#4711:}" ] || { echo "Could not find the file" >&2; exit 1; }
  fi
  cp -a "$here/files${2#4711:}" "$3"
  ;;
rm) ;;
run) for word; do printf '%s\n' "$word"; done ;;
esac
"#;

pub struct Lab {
    pub dir: TempDir,
}

impl Lab {
    pub fn new() -> Self {
        let lab = Self { dir: TempDir::new().unwrap() };
        let engine = lab.path("engine");
        fs::write(&engine, ENGINE).unwrap();
        fs::set_permissions(&engine, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(lab.path("env"), "[\"PATH=/bin\"]\n").unwrap();
        lab.file(arch::GLIBC_LOADER, "loader");
        // A library that can be preloaded; its content does not matter here.
        fs::create_dir(lab.path("lib")).unwrap();
        let cc = Command::new("cc").args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(lab.library()).status();
        assert!(cc.unwrap().success());
        lab
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn library(&self) -> PathBuf {
        self.path("lib/libvgpu.so")
    }

    /// Adds a file to the image.
    pub fn file(&self, name: &str, text: &str) {
        let file = self.path("files").join(name.trim_start_matches('/'));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    pub fn vgpu(&self, words: &[&str]) -> Output {
        let mut command = vgpu();
        command.args(words).env("VGPU_LIBRARY", self.library()).env("VGPU_DOCKER", self.path("engine"));
        command.env("VGPU_RUNTIME_DIR", self.path("run")).output().unwrap()
    }

    /// Returns the arguments that the engine received.
    pub fn told(&self, words: &[&str]) -> Vec<String> {
        let out = self.vgpu(&[&["docker", "run"], words].concat());
        let (stdout, stderr) = texts(&out);
        assert!(out.status.success(), "{words:?}: {stderr}");
        stdout.lines().map(str::to_owned).collect()
    }

    /// Returns the error and exit code instead; asserts that nothing was started.
    pub fn refused(&self, words: &[&str]) -> (i32, String) {
        fs::write(self.path("asked"), "").unwrap();
        let out = self.vgpu(&[&["docker", "run"], words].concat());
        let asked = fs::read_to_string(self.path("asked")).unwrap();
        assert!(!asked.lines().any(|line| line.starts_with("run ")), "nothing is started: {asked}");
        (out.status.code().unwrap(), texts(&out).1)
    }

    pub fn mount(&self, name: &str, to: &str) -> String {
        format!("{}:{to}", self.path(name).display())
    }
}
