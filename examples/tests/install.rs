//! Tests that `make install` puts everything where the unit, the loader and people look for it, and that `make
//! uninstall` removes it.
//!
//! The installed files are those of `make build` (`VGPU_BUILD`) and this package's own programs.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A replacement for target/dist, whose build takes minutes.
fn dist(dir: &Path) -> PathBuf {
    let build = std::env::var_os("VGPU_BUILD").map_or_else(|| checkout().join("target/release"), PathBuf::from);
    let dist = dir.join("dist");
    fs::create_dir(&dist).unwrap();
    for part in ["vgpu", "vgpud", "vgpu-checkpoint", "libvgpu.so", "libcuda.so", "libnvidia_ml.so"] {
        assert!(build.join(part).exists(), "{} is missing: run make build", build.join(part).display());
        symlink(build.join(part), dist.join(part)).unwrap();
    }
    for (part, file) in [
        ("vgpu-demo", env!("CARGO_BIN_EXE_vgpu-demo")),
        ("example-memory", env!("CARGO_BIN_EXE_example-memory")),
        ("example-view", env!("CARGO_BIN_EXE_example-view")),
        ("example-launches", env!("CARGO_BIN_EXE_example-launches")),
    ] {
        symlink(file, dist.join(part)).unwrap();
    }
    dist
}

/// Runs `make TARGET` with `root` as the destination; returns what make printed.
fn make(target: &str, dist: &Path, root: &Path) -> String {
    let out = Command::new("make")
        .args(["-s", target, "PREFIX=/opt/x"])
        .arg(format!("DIST={}", dist.display()))
        .arg(format!("DESTDIR={}", root.display()))
        .env_remove("MAKEFLAGS")
        .env_remove("LD_PRELOAD")
        .current_dir(checkout())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "make {target}: {said}");
    said
}

/// Every file and link below `dir`, as relative paths.
fn files(dir: &Path) -> BTreeSet<String> {
    fn walk(dir: &Path, top: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                walk(&path, top, found);
            } else {
                found.insert(path.strip_prefix(top).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(dir, dir, &mut found);
    found
}

#[test]
fn what_is_installed_is_whole_and_finds_its_parts_and_uninstall_leaves_nothing() {
    let lab = TempDir::new().unwrap();
    let (dist, root) = (dist(lab.path()), lab.path().join("root"));
    make("install", &dist, &root);
    let installed = files(&root);
    for file in [
        "opt/x/bin/vgpu",
        "opt/x/bin/vgpud",
        "opt/x/bin/vgpu-checkpoint",
        "opt/x/share/man/man8/vgpu-checkpoint.8",
        "opt/x/share/bash-completion/completions/vgpu-checkpoint",
        "opt/x/bin/vgpu-demo",
        "opt/x/lib/vgpu/libvgpu.so",
        "opt/x/lib/vgpu/sim/libcuda.so.1",
        "opt/x/lib/vgpu/sim/libnvidia-ml.so.1",
        "opt/x/lib/systemd/system/vgpud.service",
        "opt/x/lib/systemd/system/vgpud.socket",
        "opt/x/lib/tmpfiles.d/vgpu.conf",
        "opt/x/share/man/man1/vgpu.1",
        "opt/x/share/man/man1/vgpu-run.1",
        "opt/x/share/man/man8/vgpud.8",
        "opt/x/share/bash-completion/completions/vgpud",
        "opt/x/share/zsh/site-functions/_vgpu",
        "opt/x/share/fish/vendor_completions.d/vgpud.fish",
        "opt/x/share/doc/vgpu/docs/vgpud.md",
        "etc/vgpu/vgpud.toml",
    ] {
        assert!(installed.contains(file), "{file} is not among {installed:?}");
    }
    // Every link refers to a file that is installed too.
    for file in installed.iter().filter(|file| fs::symlink_metadata(root.join(file)).unwrap().is_symlink()) {
        assert!(root.join(file).exists(), "{file} leads to {:?}", fs::read_link(root.join(file)));
    }
    let unit = fs::read_to_string(root.join("opt/x/lib/systemd/system/vgpud.service")).unwrap();
    assert!(unit.contains("\nExecStart=/opt/x/bin/vgpud ") && !unit.contains("/usr/local"), "{unit}");
    let mode = |file: &str| fs::metadata(root.join(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("opt/x/bin/vgpu"), mode("opt/x/lib/vgpu/libvgpu.so")), (0o755, 0o644));
    // The command line finds the library and the simulated driver at their installed paths.
    let out = Command::new(root.join("opt/x/bin/vgpu"))
        .args(["run", "--sim", "--memory-limit", "1GiB", "--"])
        .arg(root.join("opt/x/lib/vgpu/demo/example-memory"))
        .env("VGPU_SIM_DIR", lab.path().join("gpu"))
        .env("VGPU_STATE_DIR", lab.path())
        .env_remove("LD_PRELOAD")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(said.contains("total: 1073741824"), "{said}{}", String::from_utf8_lossy(&out.stderr));

    make("uninstall", &dist, &root);
    assert_eq!(files(&root), BTreeSet::new());
    make("uninstall", &dist, &root);
}

#[test]
fn a_file_that_an_administrator_changed_outlives_both() {
    let lab = TempDir::new().unwrap();
    let (dist, root) = (dist(lab.path()), lab.path().join("root"));
    let file = root.join("etc/vgpu/vgpud.toml");
    make("install", &dist, &root);
    fs::write(&file, "# mine\n").unwrap();
    make("install", &dist, &root);
    make("uninstall", &dist, &root);
    assert_eq!(fs::read_to_string(&file).unwrap(), "# mine\n");
    assert_eq!(files(&root).len(), 1);
}

#[test]
fn a_part_that_was_not_built_is_named_and_nothing_is_installed() {
    let lab = TempDir::new().unwrap();
    let (dist, root) = (dist(lab.path()), lab.path().join("root"));
    fs::remove_file(dist.join("vgpud")).unwrap();
    let out = Command::new("make")
        .args(["-s", "install", &format!("DIST={}", dist.display()), &format!("DESTDIR={}", root.display())])
        .env_remove("MAKEFLAGS")
        .current_dir(checkout())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("dist/vgpud is missing: run make dist first"), "{said}");
    assert!(!root.exists());
}
