//! Keeps what administrators decided for a while, so that the next daemon knows it: overrides with an end, bookings, and
//! cordons.
//!
//! One file of JSON in the directory of state. It is written under another name and then renamed, so a killed daemon
//! leaves the old or the new content.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use tracing::warn;
use vgpu_config::schedule::WrittenBooking;
use vgpu_policy::cordons::Cordon;
use vgpu_policy::overrides::TermsOverride;

/// Name of the file, in the directory of state.
const FILE_NAME: &str = "changes.json";

/// Largest file that is read, in bytes: the most overrides, with reasons of the longest request.
const MAX_FILE_BYTES: u64 = 32 << 20;

/// The decisions that outlive the daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptChanges {
    /// Overrides, the earliest first.
    pub overrides: Vec<TermsOverride>,
    /// Bookings that commands made.
    pub bookings: Vec<WrittenBooking>,
    /// Cordons, the earliest first.
    #[serde(default)]
    pub cordons: Vec<Cordon>,
}

/// The file of the decisions.
#[derive(Debug)]
pub struct ChangeStore {
    path: PathBuf,
}

impl ChangeStore {
    /// The store in the directory of state.
    pub fn below(state_dir: &Path) -> Self {
        Self { path: state_dir.join(FILE_NAME) }
    }

    /// Reads what the last daemon kept. A file that cannot be understood is put aside and reported, so that nothing is
    /// lost.
    pub fn read_all(&self) -> KeptChanges {
        match self.read_file() {
            Ok(kept) => kept,
            Err(why) if why.kind() == io::ErrorKind::NotFound => KeptChanges::default(),
            Err(why) => {
                let aside = self.path.with_extension("unreadable");
                let moved = fs::rename(&self.path, &aside);
                warn!(file = %self.path.display(), %why, aside = %aside.display(), moved = moved.is_ok(), "overrides, bookings and cordons cannot be read and have no effect");
                KeptChanges::default()
            }
        }
    }

    fn read_file(&self) -> io::Result<KeptChanges> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&self.path, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        let mut text = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Writes everything, complete or not at all. It is on the disk when this returns.
    ///
    /// # Errors
    /// The directory or the file cannot be written; the old content is unchanged.
    pub fn save(&self, kept: &KeptChanges) -> io::Result<()> {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(dir)?;
        let temporary = self.path.with_extension("new");
        let _ = fs::remove_file(&temporary);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(&temporary, flags, Mode::from_raw_mode(0o600))?);
        let written = serde_json::to_vec(kept)
            .map_err(io::Error::from)
            .and_then(|text| file.write_all(&text))
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&temporary, &self.path))
            .and_then(|()| File::open(dir)?.sync_all());
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use vgpu_policy::overrides::OverrideAction;

    use super::*;

    #[test]
    fn the_next_daemon_finds_what_was_kept_and_a_damaged_file_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let store = ChangeStore::below(&dir.path().join("state"));
        assert_eq!(store.read_all(), KeptChanges::default());
        let change = TermsOverride {
            tenant: "a".into(),
            device: None,
            action: OverrideAction::Pause,
            since: 1,
            until: Some(2),
            by_uid: 3,
            reason: Some("why".into()),
        };
        let kept = KeptChanges {
            overrides: vec![change],
            bookings: vec![WrittenBooking::default()],
            ..KeptChanges::default()
        };
        store.save(&kept).unwrap();
        assert_eq!(ChangeStore::below(&dir.path().join("state")).read_all(), kept);
        std::fs::write(dir.path().join("state/changes.json"), "{").unwrap();
        assert_eq!(store.read_all(), KeptChanges::default());
        assert_eq!(std::fs::read_to_string(dir.path().join("state/changes.unreadable")).unwrap(), "{");
    }
}
