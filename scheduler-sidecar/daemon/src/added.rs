//! Stores the tenants that commands added, so that the next daemon serves them too, until the host restarts.
//!
//! Each tenant is one file of JSON in the directory `added`, next to the administrative socket, which no container
//! sees. A file is written under another name and then renamed, so a killed daemon leaves the old or the new content.
//! A file of an earlier boot of the host is removed. Not here: the sockets and the admission (`reactor::tenants`).

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use tracing::warn;
use vgpu_config::added::TenantSection;
use vgpu_config::value::is_name;
use vgpu_control::MAX_REQUEST_BYTES;
use vgpu_control::finding::ProcessId;

use crate::proof::image::Image;

/// Name of the directory, in the directory of the sockets.
const DIRECTORY_NAME: &str = "added";

/// Largest file that is read, in bytes: a request, and as much again for the members at the removal.
const MAX_SECTION_BYTES: u64 = 2 * MAX_REQUEST_BYTES as u64;

/// A tenant that a command added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedTenant {
    /// Its settings, as written.
    pub section: TenantSection,
    /// Time when it was added, in seconds since 1970.
    pub since: i64,
    /// Process with whose end the tenant is removed.
    pub owner: Option<ProcessId>,
    /// Time of the monotonic clock at which the tenant is removed, in ns.
    pub ends_ns: Option<u64>,
    /// Boot of the host in which the process and the clock have their meaning.
    pub boot: String,
    /// Members at the removal of the tenant, whose promise holds until the last of them has ended. `None`: the tenant
    /// was not removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<Vec<Image>>,
}

/// Directory of the stored tenants.
#[derive(Debug)]
pub struct AddedStore {
    dir: PathBuf,
}

impl AddedStore {
    /// The store below the directory of the sockets.
    pub fn below(run_dir: &Path) -> Self {
        Self { dir: run_dir.join(DIRECTORY_NAME) }
    }

    /// Returns the tenants of this boot in the order in which they were added. Removes files of earlier boots.
    pub fn read_all(&self, boot: &str) -> Vec<AddedTenant> {
        let mut tenants = Vec::new();
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_name().to_str().is_none_or(|name| name.starts_with('.')) {
                // The rest of a write that a killed daemon did not finish.
                let _ = fs::remove_file(&path);
                continue;
            }
            match read_file(&path) {
                Ok(tenant) if tenant.boot != boot => drop(fs::remove_file(&path)),
                Ok(tenant) if self.path_of(&tenant.section.name) == path => tenants.push(tenant),
                Ok(_) => warn!(file = %path.display(), "this file does not have the name of its tenant and is ignored"),
                Err(why) => warn!(file = %path.display(), %why, "an added tenant cannot be read and is not served"),
            }
        }
        tenants.sort_by(|one, other| (one.since, &one.section.name).cmp(&(other.since, &other.section.name)));
        tenants
    }

    /// Writes a tenant's file, complete or not at all.
    ///
    /// # Errors
    /// The directory or the file cannot be written; an older file of the tenant is unchanged.
    pub fn save(&self, tenant: &AddedTenant) -> io::Result<()> {
        let name = &tenant.section.name;
        if !is_name(name) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name cannot be the name of a file"));
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let temporary = self.dir.join(format!(".{name}"));
        let _ = fs::remove_file(&temporary);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(&temporary, flags, Mode::from_raw_mode(0o600))?);
        let written =
            file.write_all(&serde_json::to_vec(tenant)?).and_then(|()| fs::rename(&temporary, self.path_of(name)));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// Removes a tenant's file. A missing file is no error.
    ///
    /// # Errors
    /// The file cannot be removed; the next daemon would serve the tenant again.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path_of(name)) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
            _ => Ok(()),
        }
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.json"))
    }
}

fn read_file(path: &Path) -> io::Result<AddedTenant> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = Vec::new();
    file.take(MAX_SECTION_BYTES).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn tenant(name: &str, since: i64) -> AddedTenant {
        let section = TenantSection { name: name.into(), gpu: Some("0.5".into()), ..TenantSection::default() };
        let owner = Some(ProcessId { pid: 7, began: 9 });
        AddedTenant { section, since, owner, ends_ns: Some(11), boot: "now".into(), remaining: None }
    }

    #[test]
    fn the_next_daemon_finds_what_was_saved_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let store = AddedStore::below(dir.path());
        assert_eq!(store.read_all("now"), []);
        store.save(&tenant("b", 1)).unwrap();
        store.save(&tenant("a", 2)).unwrap();
        store.save(&tenant("gone", 3)).unwrap();
        store.remove("gone").unwrap();
        store.remove("gone").unwrap();
        let here = dir.path().join(DIRECTORY_NAME);
        std::fs::write(here.join(".half"), "{").unwrap();
        std::fs::write(here.join("bad.json"), "{").unwrap();
        std::fs::write(here.join("other.json"), serde_json::to_vec(&tenant("a", 2)).unwrap()).unwrap();
        std::os::unix::fs::symlink(here.join("a.json"), here.join("link.json")).unwrap();
        assert_eq!(AddedStore::below(dir.path()).read_all("now"), [tenant("b", 1), tenant("a", 2)]);
        assert!(!here.join(".half").exists());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&here), mode(&here.join("a.json"))), (0o700, 0o600));
    }

    #[test]
    fn tenants_of_an_earlier_boot_are_gone() {
        let dir = tempfile::tempdir().unwrap();
        let store = AddedStore::below(dir.path());
        store.save(&tenant("a", 1)).unwrap();
        assert_eq!(store.read_all("later"), []);
        assert_eq!(store.read_all("now"), [], "the file was removed");
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        assert!(AddedStore::below(dir.path()).save(&tenant("../x", 1)).is_err());
    }
}
