//! The file of a job: its tenant and its socket, or the reason why the job must not run.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Content of a job's file. A job without GPUs has neither tenant nor refusal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobFile {
    /// Name of its tenant, also if the addition may have failed.
    pub tenant: Option<String>,
    /// Socket where the job's programs connect.
    pub socket: Option<PathBuf>,
    /// Reason why the job must not run.
    pub refused: Option<String>,
}

impl JobFile {
    fn path(dir: &Path, job: u32) -> PathBuf {
        dir.join(job.to_string())
    }

    /// Writes the file, and the directory if it is not there. Users can read it and not change it.
    ///
    /// # Errors
    /// It cannot be written; the old file may be there.
    pub fn write(&self, dir: &Path, job: u32) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
        let new = dir.join(format!("{job}.new"));
        fs::write(&new, serde_json::to_string(self)?)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644))?;
        fs::rename(new, Self::path(dir, job))
    }

    /// Reads the file; `None`: there is none.
    ///
    /// # Errors
    /// It cannot be read or understood.
    pub fn read(dir: &Path, job: u32) -> io::Result<Option<Self>> {
        match fs::read_to_string(Self::path(dir, job)) {
            Ok(text) => Ok(Some(serde_json::from_str(&text)?)),
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// Removes the file. A file that is not there is no error.
    ///
    /// # Errors
    /// It is there and cannot be removed.
    pub fn remove(dir: &Path, job: u32) -> io::Result<()> {
        match fs::remove_file(Self::path(dir, job)) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
            _ => Ok(()),
        }
    }
}

/// Returns the name under which the tenant of an ended job is kept until a daemon answers.
fn ended_path(dir: &Path, tenant: &str) -> PathBuf {
    dir.join(format!("{tenant}.ended"))
}

/// Keeps the name of an ended job's tenant that no daemon could remove.
///
/// # Errors
/// The file cannot be written.
pub(super) fn keep_ended(dir: &Path, tenant: &str) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    fs::write(ended_path(dir, tenant), "")
}

/// Forgets the tenant of an ended job.
pub(super) fn forget_ended(dir: &Path, tenant: &str) {
    // A file that stays makes a later Epilog remove the tenant again, which is no error.
    let _ = fs::remove_file(ended_path(dir, tenant));
}

/// Returns the tenants of ended jobs that no daemon has removed.
pub(super) fn ended_tenants(dir: &Path) -> Vec<String> {
    let Ok(files) = fs::read_dir(dir) else { return Vec::new() };
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.strip_suffix(".ended").map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_file_is_read_back_and_one_that_is_not_understood_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("run");
        assert_eq!(JobFile::read(&dir, 7).unwrap(), None);
        let file = JobFile { tenant: Some("slurm-7".into()), refused: Some("why".into()), socket: None };
        file.write(&dir, 7).unwrap();
        assert_eq!(JobFile::read(&dir, 7).unwrap(), Some(file));
        assert_eq!(fs::metadata(dir.join("7")).unwrap().permissions().mode() & 0o777, 0o644);
        fs::write(dir.join("7"), "{\"tenant\":").unwrap();
        assert!(JobFile::read(&dir, 7).is_err());
        JobFile::remove(&dir, 7).unwrap();
        JobFile::remove(&dir, 7).unwrap();
    }

    #[test]
    fn the_tenants_of_ended_jobs_are_kept_until_they_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        assert!(ended_tenants(&dir.path().join("none")).is_empty());
        keep_ended(dir.path(), "slurm-7-r1").unwrap();
        JobFile::default().write(dir.path(), 8).unwrap();
        assert_eq!(ended_tenants(dir.path()), ["slurm-7-r1"]);
        forget_ended(dir.path(), "slurm-7-r1");
        assert!(ended_tenants(dir.path()).is_empty());
    }
}
