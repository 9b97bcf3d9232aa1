//! Writes the terms file of each tenant, next to its socket, for members that start while the daemon is away.
//!
//! The format is [`vgpu_core::protocol::wire::terms_file`]'s. The file is written under another name and then
//! renamed, so that a reader sees the old or the new content. Its mode is 0644, because members may be any user. The
//! file stays when the daemon ends, and is removed with the tenant. A file with the same content is not rewritten.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tracing::warn;
use vgpu_core::protocol::wire::terms_file::{ALL_DEVICES, DeviceTerms, TERMS_FILE_NAME, TermsFile};

use super::Reactor;
use crate::config::{DeviceName, DeviceTermsConfig, OnError, TenantConfig};
use crate::kept_ledger;
use crate::room::remove_dir;

/// Returns the content of a tenant's terms file.
fn terms_of_tenant(tenant: &TenantConfig, epoch: u64) -> TermsFile {
    let line = |on: &DeviceTermsConfig| {
        let device = match &on.device {
            DeviceName::Uuid(uuid, _) => uuid.clone(),
            DeviceName::Any => ALL_DEVICES.to_owned(),
            // The UUID of this number is not known, and the daemon does not grant such a device either.
            DeviceName::Number(_) => return None,
        };
        let (sm_limit, sm_request) = (on.terms.ceiling, on.terms.floor);
        Some(DeviceTerms { device, memory_limit: on.memory, sm_limit, sm_request })
    };
    let devices = tenant.on.iter().filter_map(line).collect();
    TermsFile {
        epoch,
        tenant: tenant.name.clone(),
        mode: tenant.mode,
        open_on_error: tenant.on_error == OnError::Open,
        on_loss: tenant.on_loss,
        strict: tenant.strict,
        users: tenant.uids.clone(),
        user_namespace: std::fs::metadata("/proc/self/ns/user").map_or(0, |namespace| namespace.ino()),
        devices,
    }
}

impl Reactor {
    /// Removes the terms files and ledgers of tenants that were removed from the configuration while no daemon ran.
    pub(super) fn sweep_terms(&self) {
        let Some(loaded) = &self.loaded else { return };
        let served: BTreeSet<&str> = self.rooms.values().map(|room| room.tenant.name.as_str()).collect();
        let is_kept = |name: &str| served.contains(name) || self.added.is_stored(name);
        sweep_unserved(&loaded.plan.daemon.run_dir.join("tenants"), is_kept);
    }

    /// Updates the ledgers and the terms file of a room's tenant. Tenants whose sockets are in one directory have no
    /// terms file, because it could not be told which tenant it belongs to.
    pub(super) fn keep_terms(&self, id: u64) {
        let Some(room) = self.rooms.get(&id) else { return };
        let (tenant, dir) = (&room.tenant, room.tenant.socket.parent());
        let devices = tenant.on.iter().flat_map(|on| match &on.device {
            DeviceName::Uuid(uuid, _) => vec![uuid.as_str()],
            DeviceName::Any => self.leases.device_names().collect(),
            DeviceName::Number(_) => Vec::new(),
        });
        kept_ledger::prepare(tenant, devices);
        // With a configuration file each tenant has a directory of its own, so no other tenant is looked for.
        let open =
            self.rooms.iter().filter(|(other, room)| self.loaded.is_none() && **other != id && room.door.is_some());
        match open.map(|(_, room)| &room.tenant).find(|other| other.socket.parent() == dir) {
            None => write_terms(tenant, self.leases.page_epoch()),
            Some(other) => {
                remove(&tenant.socket);
                warn!(tenant = %tenant.name, other = %other.name, "their sockets are in one directory, so there is \
                     no terms file; a member that starts while no daemon runs will fail");
            }
        }
    }
}

/// Removes the terms files and ledgers that an earlier daemon left for tenants that are no longer served, and their
/// directories if nothing else is in them. `dir` contains the tenants' directories. A directory with a socket is left
/// alone, because another daemon may serve that tenant.
pub(super) fn sweep_unserved(dir: &Path, served: impl Fn(&str) -> bool) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let socket = entry.path().join("vgpud.sock");
        if entry.file_name().to_str().is_some_and(|name| !served(name)) && socket.symlink_metadata().is_err() {
            remove(&socket);
            remove_dir(&socket);
        }
    }
}

/// Writes the terms file, or logs why it cannot. A tenant without a terms file is served all the same; only members
/// that start without the daemon fail.
fn write_terms(tenant: &TenantConfig, epoch: u64) {
    let path = terms_path(&tenant.socket);
    let written = terms_of_tenant(tenant, epoch)
        .encode()
        .map_err(|why| io::Error::other(why.to_string()))
        .and_then(|text| write(&path, text.as_bytes()));
    if let Err(why) = written {
        warn!(tenant = %tenant.name, file = %path.display(), %why, "the terms file cannot be written; a member that starts while no daemon runs will fail");
    }
}

/// Removes the terms file. A missing file is no error.
pub(super) fn remove(socket: &Path) {
    let _ = std::fs::remove_file(terms_path(socket));
}

fn terms_path(socket: &Path) -> PathBuf {
    socket.with_file_name(TERMS_FILE_NAME)
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    if has_text(path, text).unwrap_or(false) {
        return Ok(());
    }
    let temporary = path.with_file_name(format!(".{TERMS_FILE_NAME}-{}", std::process::id()));
    // A daemon with this process id that was killed may have left the file.
    let _ = std::fs::remove_file(&temporary);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let readable = Mode::from_raw_mode(0o644);
    let mut file = File::from(rustix::fs::open(&temporary, flags, readable)?);
    let written = rustix::fs::fchmod(&file, readable)
        .map_err(io::Error::from)
        .and_then(|()| file.write_all(text))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// True if the file has exactly this content. Every user that can write the directory may have put something else
/// there. So it follows no link, waits for no pipe, and reads at most one byte more than `text` has.
fn has_text(path: &Path, text: &[u8]) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Ok(false);
    }
    let mut there = Vec::new();
    file.take(text.len() as u64 + 1).read_to_end(&mut there)?;
    Ok(there == text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use vgpu_core::time::arbiter::Terms;
    use vgpu_core::units::bytes::Bytes;
    use vgpu_core::units::share::Share;

    use super::*;

    fn on(device: DeviceName, gib: Option<u64>, ceiling: u32, floor: Option<u32>) -> DeviceTermsConfig {
        let terms = Terms {
            ceiling: Share::from_percent(ceiling),
            floor: floor.and_then(Share::from_percent),
            ..Terms::default()
        };
        DeviceTermsConfig { device, memory: gib.map(|gib| Bytes(gib << 30)), terms }
    }

    fn tenant(dir: &Path, on: Vec<DeviceTermsConfig>) -> TenantConfig {
        TenantConfig { on, ..TenantConfig::on_all_devices("a", dir.join("vgpud.sock"), None, None) }
    }

    #[test]
    fn it_is_written_whole_readable_by_all_and_left_alone_if_it_says_the_same() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join(TERMS_FILE_NAME);
        let mut tenant = tenant(dir.path(), vec![on(DeviceName::Uuid("GPU-1".into(), Some(0)), Some(4), 30, None)]);
        write_terms(&tenant, 7);
        let read = || TermsFile::decode(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(read(), terms_of_tenant(&tenant, 7));
        assert_eq!(read().terms_of_device("GPU-1").unwrap().memory_limit, Some(Bytes(4 << 30)));
        assert_eq!(read().terms_of_device("GPU-2"), None, "a device that is not listed may not be used");
        let meta = || std::fs::metadata(&path).unwrap();
        assert_eq!(meta().permissions().mode() & 0o777, 0o644);
        let inode = meta().ino();
        write_terms(&tenant, 7);
        assert_eq!(meta().ino(), inode);
        tenant.on_error = OnError::Open;
        // Links at the temporary name and at the file's own name are not followed.
        let precious = dir.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        std::os::unix::fs::symlink(&precious, dir.path().join(format!(".{TERMS_FILE_NAME}-{}", std::process::id())))
            .unwrap();
        write_terms(&tenant, 7);
        assert!(read().open_on_error && std::fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left under another name");
        remove(&tenant.socket);
        assert!(!path.exists());
        remove(&tenant.socket);
    }

    #[test]
    fn what_a_daemon_left_for_a_tenant_that_is_served_no_more_is_removed_and_nothing_else() {
        let dir = tempfile::TempDir::new().unwrap();
        let place = |name: &str, file: &str| dir.path().join(name).join(file);
        for name in ["gone", "served", "elsewhere", "kept"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(place(name, TERMS_FILE_NAME), "x").unwrap();
        }
        std::fs::write(place("elsewhere", "vgpud.sock"), "").unwrap();
        std::fs::write(place("kept", "precious"), "").unwrap();
        sweep_unserved(dir.path(), |name| name == "served");
        assert!(!dir.path().join("gone").exists() && !place("kept", TERMS_FILE_NAME).exists());
        assert!(place("kept", "precious").exists() && place("served", TERMS_FILE_NAME).exists());
        assert!(place("elsewhere", TERMS_FILE_NAME).exists(), "another daemon may serve it");
        sweep_unserved(Path::new("/does/not/exist"), |_| false);
    }

    #[test]
    fn a_tenant_that_puts_links_to_pipes_in_the_files_place_holds_nobody_up() {
        let dir = tempfile::TempDir::new().unwrap();
        let [path, pipe, new] = ["terms.json", "pipe", "new"].map(|name| dir.path().join(name));
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let hostile = {
            let (path, pipe, new) = (path.clone(), pipe.clone(), new.clone());
            move |over: &std::sync::atomic::AtomicBool| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::fs::write(&new, "1234").unwrap();
                    std::fs::rename(&new, &path).unwrap();
                    std::os::unix::fs::symlink(&pipe, &new).unwrap();
                    std::fs::rename(&new, &path).unwrap();
                }
            }
        };
        let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (told, tell) = std::sync::mpsc::channel();
        std::thread::spawn({
            let over = over.clone();
            move || hostile(&over)
        });
        std::thread::spawn(move || {
            let begin = std::time::Instant::now();
            while begin.elapsed() < std::time::Duration::from_millis(500) {
                let _ = write(&path, b"5678");
            }
            told.send(()).unwrap();
        });
        let came = tell.recv_timeout(std::time::Duration::from_secs(20));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(came.is_ok(), "it waits for a pipe");
    }

    #[test]
    fn a_device_that_is_known_by_number_only_is_nobodys_without_the_daemon_too() {
        let named = on(DeviceName::Uuid("GPU-1".into(), None), Some(9), 90, Some(10));
        let file =
            terms_of_tenant(&tenant(Path::new("/d"), vec![named, on(DeviceName::Number(0), Some(4), 50, Some(20))]), 1);
        assert_eq!((file.devices.len(), file.terms_of_device("GPU-9")), (1, None));
        let here = file.terms_of_device("gpu-1").unwrap();
        assert_eq!(
            (here.memory_limit, here.sm_limit, here.sm_request),
            (Some(Bytes(9 << 30)), Share::from_percent(90), Share::from_percent(10))
        );
    }
}
