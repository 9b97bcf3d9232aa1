//! The claims that are prepared, in a file that is replaced as a whole.
//!
//! The file lives as long as the tenants do: both end with a restart of the host. So it lies in a directory of /run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vgpu_config::added::TenantSection;

use crate::api::dra::Device;

/// Version of the file.
const CHECKPOINT_VERSION: u32 = 1;

/// A claim that is prepared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PreparedClaim {
    /// Namespace of the claim.
    pub namespace: String,
    /// Name of the claim.
    pub name: String,
    /// The tenant, as vgpud was asked for it.
    pub section: TenantSection,
    /// UUIDs of the tenant's devices, as far as they are known.
    pub uuids: Vec<String>,
    /// The answer to the kubelet.
    pub devices: Vec<Device>,
}

/// Content of the file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct CheckpointFile {
    version: u32,
    /// Claims by their UID.
    claims: BTreeMap<String, PreparedClaim>,
}

/// The prepared claims and their file.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    claims: BTreeMap<String, PreparedClaim>,
}

impl Checkpoint {
    /// Reads the file; without one, no claim is prepared.
    ///
    /// # Errors
    /// A message: the file cannot be read or has another version. Its claims are not known then, and an empty list
    /// would end the tenants of running pods.
    pub fn open(path: PathBuf) -> Result<Self, String> {
        let cannot =
            |why: String| format!("{}: {why}; if it is removed, the tenants of the claims in it end", path.display());
        let file = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|why| cannot(why.to_string()))?,
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                CheckpointFile { version: CHECKPOINT_VERSION, ..CheckpointFile::default() }
            }
            Err(why) => return Err(cannot(why.to_string())),
        };
        if file.version != CHECKPOINT_VERSION {
            return Err(cannot(format!("it has version {}, this program reads {CHECKPOINT_VERSION}", file.version)));
        }
        Ok(Self { path, claims: file.claims })
    }

    /// The prepared claims by their UID.
    #[must_use]
    pub fn claims(&self) -> &BTreeMap<String, PreparedClaim> {
        &self.claims
    }

    /// Notes that a claim is prepared.
    ///
    /// # Errors
    /// A message: the file cannot be written. The claim is not noted then.
    pub fn insert(&mut self, uid: &str, claim: PreparedClaim) -> Result<(), String> {
        let mut claims = self.claims.clone();
        claims.insert(uid.to_owned(), claim);
        self.replace(claims)
    }

    /// Notes that a claim is no longer prepared.
    ///
    /// # Errors
    /// A message: the file cannot be written. The claim stays noted then.
    pub fn remove(&mut self, uid: &str) -> Result<(), String> {
        if !self.claims.contains_key(uid) {
            return Ok(());
        }
        let mut claims = self.claims.clone();
        claims.remove(uid);
        self.replace(claims)
    }

    fn replace(&mut self, claims: BTreeMap<String, PreparedClaim>) -> Result<(), String> {
        let file = CheckpointFile { version: CHECKPOINT_VERSION, claims };
        let text = serde_json::to_vec_pretty(&file).map_err(|why| why.to_string())?;
        replace_file(&self.path, &text).map_err(|why| format!("{}: {why}", self.path.display()))?;
        self.claims = file.claims;
        Ok(())
    }
}

/// Replaces a file as a whole: whoever reads it sees the old content or the new one, also after a kill.
///
/// # Errors
/// Any error of writing or renaming.
pub fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    // Engines read every *.json of a directory.
    temporary.push(".new");
    let mut file = File::create(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str) -> PreparedClaim {
        let section = TenantSection { name: format!("claim-{name}"), ..TenantSection::default() };
        let (uuids, devices) = (vec!["GPU-0".into()], vec![Device::default()]);
        PreparedClaim { namespace: "lab".into(), name: name.into(), section, uuids, devices }
    }

    #[test]
    fn the_next_driver_knows_the_prepared_claims() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("claims.json");
        let mut first = Checkpoint::open(path.clone()).unwrap();
        first.insert("a", claim("a")).unwrap();
        first.insert("b", claim("b")).unwrap();
        first.remove("a").unwrap();
        first.remove("never").unwrap();
        let second = Checkpoint::open(path.clone()).unwrap();
        assert_eq!(second.claims(), &BTreeMap::from([("b".to_owned(), claim("b"))]));
        assert!(!dir.path().join("claims.json.new").exists());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_an_empty_list() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("claims.json");
        for text in ["{", "", "{\"version\":2,\"claims\":{}}", "[]"] {
            fs::write(&path, text).unwrap();
            assert!(Checkpoint::open(path.clone()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_claim_that_cannot_be_written_is_not_noted() {
        let dir = tempfile::tempdir().unwrap();
        let mut checkpoint = Checkpoint::open(dir.path().join("gone/claims.json")).unwrap();
        assert!(checkpoint.insert("a", claim("a")).is_err());
        assert!(checkpoint.claims().is_empty());
    }
}
