//! Puts the library onto the host: each version in a directory of its own, and a link to the newest one.
//!
//! A container that runs has its version's directory mounted, and starts further programs from it. So a version that
//! was installed is never changed and never removed. The link is replaced by a rename: each container sees one whole
//! version.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{self, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use clap::Args;

/// Puts libvgpu.so onto the host, while containers with older versions run.
///
/// Each version gets a directory of its own. The link `current` leads to the newest one, for containers that start from
/// now on. Older versions stay.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  vgpu-k8s install-library --to /opt/vgpu
  vgpu-k8s device-plugin --library /opt/vgpu/current/libvgpu.so

Exit codes:
  0  installed, or already there
  1  a file cannot be read or written
  2  usage")]
pub struct InstallArgs {
    /// The library to install.
    #[arg(long, value_name = "PATH", default_value = "/usr/lib/vgpu/libvgpu.so")]
    from: PathBuf,

    /// Directory on the host.
    #[arg(long, value_name = "DIR", default_value = "/opt/vgpu")]
    to: PathBuf,
}

/// Name of the link to the newest version.
pub const CURRENT: &str = "current";

/// Name of the library's file.
const LIBRARY: &str = "libvgpu.so";

/// Installs the library, and prints the directory of its version.
///
/// # Errors
/// As [`install_library`].
pub fn run_install(args: &InstallArgs) -> Result<(), String> {
    install_library(&args.from, &args.to).map(|version| println!("{}", version.display()))
}

/// Installs the library into a directory of the host, and returns the directory of its version.
///
/// # Errors
/// A message: a file cannot be read or written.
pub fn install_library(library: &Path, dir: &Path) -> Result<PathBuf, String> {
    let failed = |path: &Path, why: io::Error| format!("{}: {why}", path.display());
    let bytes = fs::read(library).map_err(|why| failed(library, why))?;
    let name = version_name(&bytes);
    let version = dir.join(&name);
    fs::create_dir_all(&version).map_err(|why| failed(&version, why))?;
    let file = version.join(LIBRARY);
    // A copy that was cut off by a kill is under another name, so a file with this name is whole.
    if fs::read(&file).ok().as_deref() != Some(&bytes) {
        write_whole(&file, &bytes).map_err(|why| failed(&file, why))?;
    }
    let current = dir.join(CURRENT);
    if fs::read_link(&current).ok().as_deref() != Some(Path::new(&name)) {
        let fresh = dir.join(format!(".{CURRENT}.new"));
        let _ = fs::remove_file(&fresh);
        symlink(&name, &fresh).and_then(|()| fs::rename(&fresh, &current)).map_err(|why| failed(&current, why))?;
    }
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|why| failed(dir, why))?;
    Ok(version)
}

/// Name of a version: that of this program, and a hash of the library's bytes.
fn version_name(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    format!("{}-{:016x}", env!("CARGO_PKG_VERSION"), hasher.finish())
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    file.write_all(bytes)?;
    // Every user's programs load it.
    file.set_permissions(fs::Permissions::from_mode(0o755))?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_version_is_current_at_once_and_the_old_one_stays_for_those_that_have_it_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let (library, host) = (dir.path().join("lib"), dir.path().join("host"));
        fs::write(&library, "one").unwrap();
        let first = install_library(&library, &host).unwrap();
        assert_eq!(fs::read_to_string(host.join("current/libvgpu.so")).unwrap(), "one");
        let mode = fs::metadata(host.join("current/libvgpu.so")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        fs::write(&library, "two").unwrap();
        let second = install_library(&library, &host).unwrap();
        assert_ne!(first, second);
        assert_eq!(fs::read_to_string(host.join("current/libvgpu.so")).unwrap(), "two");
        assert_eq!(fs::read_to_string(first.join("libvgpu.so")).unwrap(), "one");
    }

    #[test]
    fn the_same_version_again_leaves_its_file_alone_and_a_torn_copy_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (library, host) = (dir.path().join("lib"), dir.path().join("host"));
        fs::write(&library, "one").unwrap();
        let version = install_library(&library, &host).unwrap();
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        let before = inode(&version.join("libvgpu.so"));
        assert_eq!(install_library(&library, &host).unwrap(), version);
        assert_eq!(inode(&version.join("libvgpu.so")), before, "programs have it mapped");
        fs::write(version.join("libvgpu.so"), "on").unwrap();
        install_library(&library, &host).unwrap();
        assert_eq!(fs::read_to_string(host.join("current/libvgpu.so")).unwrap(), "one");
    }

    #[test]
    fn a_library_that_is_not_there_is_named_and_the_current_version_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (library, host) = (dir.path().join("lib"), dir.path().join("host"));
        fs::write(&library, "one").unwrap();
        install_library(&library, &host).unwrap();
        let why = install_library(&dir.path().join("absent"), &host).unwrap_err();
        assert!(why.contains("absent"), "{why}");
        assert_eq!(fs::read_to_string(host.join("current/libvgpu.so")).unwrap(), "one");
    }
}
