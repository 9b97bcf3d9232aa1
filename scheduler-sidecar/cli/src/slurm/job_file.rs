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
    /// Time when the tenant was added, in seconds since 1970.
    #[serde(default)]
    pub since: Option<i64>,
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

/// A job that has ended, as far as its bill needs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndedJob {
    /// ID of the job.
    pub job: u32,
    /// Name of its tenant.
    pub tenant: String,
    /// Time when the tenant was added, in seconds since 1970.
    pub since: Option<i64>,
    /// Name of this node in Slurm.
    pub node: Option<String>,
    /// Number of the job's nodes.
    pub nodes: Option<usize>,
    /// Name of the job's user.
    pub user: Option<String>,
    /// ID of the job's user.
    pub uid: Option<String>,
    /// File that gets the bill.
    pub log: PathBuf,
    /// True to write the bill into the job's AdminComment too.
    pub sacctmgr: bool,
}

impl EndedJob {
    fn path(dir: &Path, tenant: &str) -> PathBuf {
        dir.join(format!("{tenant}.ended"))
    }

    /// Keeps the job until a daemon answers, which removes its tenant.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&self, dir: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
        fs::write(Self::path(dir, &self.tenant), serde_json::to_string(self)?)
    }

    /// Forgets the job.
    pub fn forget(dir: &Path, tenant: &str) {
        // A file that stays makes a later Epilog remove the tenant again, which is no error.
        let _ = fs::remove_file(Self::path(dir, tenant));
    }

    /// Returns the tenants of ended jobs that no daemon has removed. `None`: the file of the job is not understood.
    pub fn read_all(dir: &Path) -> Vec<(String, Option<Self>)> {
        let Ok(files) = fs::read_dir(dir) else { return Vec::new() };
        let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
        let tenants = names.filter_map(|name| name.strip_suffix(".ended").map(str::to_owned));
        let read = |tenant: &str| serde_json::from_str(&fs::read_to_string(Self::path(dir, tenant)).ok()?).ok();
        tenants.map(|tenant| (tenant.clone(), read(&tenant))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_file_is_read_back_and_one_that_is_not_understood_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("run");
        assert_eq!(JobFile::read(&dir, 7).unwrap(), None);
        let refused = Some("why".into());
        let file = JobFile { tenant: Some("slurm-7".into()), since: Some(7), refused, socket: None };
        file.write(&dir, 7).unwrap();
        assert_eq!(JobFile::read(&dir, 7).unwrap(), Some(file));
        assert_eq!(fs::metadata(dir.join("7")).unwrap().permissions().mode() & 0o777, 0o644);
        fs::write(dir.join("7"), "{\"tenant\":").unwrap();
        assert!(JobFile::read(&dir, 7).is_err());
        JobFile::remove(&dir, 7).unwrap();
        JobFile::remove(&dir, 7).unwrap();
    }

    #[test]
    fn ended_jobs_are_kept_until_they_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        assert!(EndedJob::read_all(&dir.path().join("none")).is_empty());
        let (tenant, log) = ("slurm-7-r1".to_owned(), "/bills".into());
        let (node, user, uid) = (Some("n1".into()), Some("ada".into()), Some("1000".into()));
        let job = EndedJob { job: 7, tenant, since: Some(9), node, nodes: Some(2), user, uid, log, sacctmgr: true };
        job.keep(dir.path()).unwrap();
        JobFile::default().write(dir.path(), 8).unwrap();
        assert_eq!(EndedJob::read_all(dir.path()), [("slurm-7-r1".to_owned(), Some(job))]);
        fs::write(dir.path().join("slurm-7-r1.ended"), "{").unwrap();
        assert_eq!(EndedJob::read_all(dir.path()), [("slurm-7-r1".to_owned(), None)]);
        EndedJob::forget(dir.path(), "slurm-7-r1");
        assert!(EndedJob::read_all(dir.path()).is_empty());
    }
}
