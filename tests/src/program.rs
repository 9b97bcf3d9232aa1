//! C programs and libraries of `programs/`, compiled when first asked for. The compiled file stays in the target
//! directory under a name that hashes source and flags, so a changed source is compiled again.

use crate::artefacts::{checkout, scratch, sim_dir};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::Command;

/// Form in which a source is compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A program that loads the driver itself.
    Program,
    /// A program linked with the driver.
    Linked,
    /// A shared library that a test program loads.
    Library,
    /// A shared library linked with the driver.
    LinkedLibrary,
}

/// Compiles `programs/<name>.c` and returns its path.
pub fn compile(name: &str, kind: Kind, defines: &[&str]) -> PathBuf {
    compile_with(name, kind, defines, &[])
}

/// As [`compile`], with additional compiler flags.
pub fn compile_with(name: &str, kind: Kind, defines: &[&str], flags: &[&str]) -> PathBuf {
    let source = checkout().join("tests/programs").join(name).with_extension("c");
    let text = fs::read(&source).unwrap_or_else(|e| panic!("{}: {e}", source.display()));
    let compiler = std::env::var("VGPU_TEST_CC").unwrap_or_else(|_| "cc".to_owned());
    let mut hasher = DefaultHasher::new();
    (&text, defines, flags, format!("{kind:?}"), &compiler).hash(&mut hasher);
    let suffix = if matches!(kind, Kind::Library | Kind::LinkedLibrary) { ".so" } else { "" };
    let place = scratch().join("programs");
    fs::create_dir_all(&place).expect("the target directory is writable");
    let out = place.join(format!("{name}-{:016x}{suffix}", hasher.finish()));
    if out.exists() {
        return out;
    }
    let fresh = out.with_extension(format!("{}-{:?}", std::process::id(), std::thread::current().id()));
    let mut cc = Command::new(compiler);
    cc.args(["-std=gnu11", "-O1", "-w", "-pthread", "-o"]).arg(&fresh).arg(&source);
    cc.args(defines.iter().map(|d| format!("-D{d}")));
    match kind {
        Kind::Program => {}
        Kind::Linked => {
            cc.arg("-DLINKED").arg("-L").arg(sim_dir()).arg("-lcuda");
        }
        Kind::Library => {
            cc.args(["-shared", "-fPIC"]);
        }
        Kind::LinkedLibrary => {
            cc.args(["-shared", "-fPIC", "-Wl,--no-as-needed", "-L"]).arg(sim_dir()).arg("-lcuda");
        }
    }
    let ran = cc.args(flags).arg("-ldl").output().expect("a C compiler");
    assert!(ran.status.success(), "{cc:?}: {}", crate::text(&ran));
    fs::rename(&fresh, &out).expect("the target directory is writable");
    out
}
