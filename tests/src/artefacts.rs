//! Locates the built libraries and programs for the tests, and builds them where nobody did. The directories in
//! `VGPU_LIB_DIR` and `VGPU_SIM_LIB_DIR` win; otherwise cargo builds once per test program, into the test's target
//! directory and with the test's profile.
//!
//! The loader looks for sonames, so the built libraries get links with those names in `<target>/<profile>/vgpu-tests`.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Root of the source tree.
pub fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent")
}

/// `<target>/<profile>` of the running test.
pub fn profile_dir() -> PathBuf {
    let exe = env::current_exe().expect("the test knows its own path");
    // The test's own path is <target>/<profile>/deps/<name>.
    exe.ancestors().nth(2).expect("a test lies in deps/").to_owned()
}

fn profile() -> String {
    match profile_dir().file_name().and_then(|name| name.to_str()) {
        None | Some("debug") => "dev".to_owned(),
        Some(name) => name.to_owned(),
    }
}

/// Directory in the target directory for compiled test programs and links.
pub fn scratch() -> PathBuf {
    let dir = profile_dir().join("vgpu-tests");
    fs::create_dir_all(&dir).expect("the target directory is writable");
    dir
}

/// Builds packages, once for all tests of a program. If the build fails, cargo prints the reason once and every test
/// fails with it.
fn cargo_build(packages: &[&str], profile: &str) -> Result<(), String> {
    let target = profile_dir().parent().expect("a profile lies in the target directory").to_owned();
    let mut c = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    c.arg("build").arg("--quiet").args(["--profile", profile]).arg("--target-dir").arg(target).current_dir(checkout());
    for package in packages {
        c.args(["-p", package]);
    }
    // Variables that cargo set for this test would make the nested cargo rebuild everything.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text == "CARGO_MANIFEST_DIR" || text == "LD_PRELOAD" {
            c.env_remove(&name);
        }
    }
    let status = c.status().map_err(|e| format!("cargo: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo build --profile {profile} of {packages:?}: {status}")) }
}

fn built() -> &'static Path {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        cargo_build(&["libvgpu", "sim-cuda", "sim-nvml", "vgpu-daemon", "vgpu-cli"], &profile()).map(|()| profile_dir())
    });
    built.as_ref().unwrap_or_else(|e| panic!("{e}"))
}

fn setting(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(|value| {
        let path = PathBuf::from(value);
        fs::canonicalize(&path).unwrap_or_else(|e| panic!("{name}={}: {e}", path.display()))
    })
}

/// Absolute path of the libvgpu.so under test.
pub fn libvgpu() -> PathBuf {
    match setting("VGPU_LIB_DIR") {
        Some(dir) => dir.join("libvgpu.so"),
        None => built().join("libvgpu.so"),
    }
}

/// libvgpu.so built with the `dist` profile, as it is shipped.
pub fn libvgpu_dist() -> PathBuf {
    static DIST: OnceLock<Result<(), String>> = OnceLock::new();
    DIST.get_or_init(|| cargo_build(&["libvgpu"], "dist")).as_ref().unwrap_or_else(|e| panic!("{e}"));
    profile_dir().parent().expect("a profile lies in the target directory").join("dist/libvgpu.so")
}

/// Directory with libcuda.so.1 and libnvidia-ml.so.1 of the simulated device, and `libcuda.so` to link with.
pub fn sim_dir() -> PathBuf {
    if let Some(dir) = setting("VGPU_SIM_LIB_DIR") {
        return dir;
    }
    let dir = scratch().join("sim");
    fs::create_dir_all(&dir).expect("the target directory is writable");
    for (name, built_name) in [
        ("libcuda.so.1", "libcuda.so"),
        ("libcuda.so", "libcuda.so"),
        ("libnvidia-ml.so.1", "libnvidia_ml.so"),
        ("libnvidia-ml.so", "libnvidia_ml.so"),
    ] {
        let (link, to) = (dir.join(name), built().join(built_name));
        if fs::read_link(&link).ok().as_ref() != Some(&to) {
            let fresh = dir.join(format!(".{name}.{}.{:?}", std::process::id(), std::thread::current().id()));
            symlink(&to, &fresh).expect("a link can be made");
            fs::rename(&fresh, &link).expect("a link can be renamed");
        }
    }
    dir
}

/// Path of the daemon: in `VGPU_BUILD`, the directory of a complete build, else as cargo builds it.
pub fn vgpud() -> PathBuf {
    program("vgpud")
}

/// Path of the command line `vgpu`, found as [`vgpud`] is.
pub fn vgpu() -> PathBuf {
    program("vgpu")
}

/// Path of the program that moves processes off their devices, found as [`vgpud`] is.
pub fn vgpu_checkpoint() -> PathBuf {
    program("vgpu-checkpoint")
}

fn program(name: &str) -> PathBuf {
    let there = setting("VGPU_BUILD").map(|dir| dir.join(name)).filter(|path| path.exists());
    there.unwrap_or_else(|| built().join(name))
}

/// Path of a program of examples/: in `VGPU_BUILD`, else next to this test, else as cargo builds it.
pub fn example(name: &str) -> PathBuf {
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    let there = setting("VGPU_BUILD").map(|dir| dir.join(name)).filter(|path| path.exists());
    let beside = profile_dir().join(name);
    there.unwrap_or_else(|| {
        if !beside.exists() {
            BUILT
                .get_or_init(|| cargo_build(&["vgpu-examples"], &profile()))
                .as_ref()
                .unwrap_or_else(|e| panic!("{e}"));
        }
        beside
    })
}
