//! Keeps what administrators decided for a while, so that the next daemon knows it: overrides with an end, bookings,
//! cordons, labels, and which processes they suspended.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use tracing::warn;
use vgpu_config::schedule::WrittenBooking;
use vgpu_policy::cordons::Cordon;
use vgpu_policy::overrides::TermsOverride;

use crate::state_file::StateFile;
use crate::suspended::SuspendedProcess;

/// Name of the file, in the directory of state.
const FILE_NAME: &str = "changes.json";

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
    /// Labels that commands set, by tenant and name.
    #[serde(default)]
    pub labels: BTreeMap<String, BTreeMap<String, String>>,
    /// Processes that are suspended.
    #[serde(default, deserialize_with = "read_suspended")]
    pub suspended: Vec<SuspendedProcess>,
}

/// Reads the suspended processes one by one, so that a daemon of another version loses only those that it does not
/// understand, and no decision of an administrator. `vgpu-checkpoint suspend` tells them again.
fn read_suspended<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<SuspendedProcess>, D::Error> {
    let written = match Value::deserialize(reader)? {
        Value::Array(all) => all,
        other => vec![other],
    };
    let read = |one: Value| {
        let words = one.to_string();
        let lost =
            |why| warn!(%why, one = words, "a suspended process in changes.json cannot be read and is forgotten");
        serde_json::from_value(one).map_err(lost).ok()
    };
    Ok(written.into_iter().filter_map(read).collect())
}

/// The file of the decisions.
#[derive(Debug)]
pub struct ChangeStore(StateFile);

impl ChangeStore {
    /// The store in the directory of state.
    pub fn below(state_dir: &Path) -> Self {
        Self(StateFile::below(state_dir, FILE_NAME))
    }

    /// Reads what the last daemon kept. A file that cannot be understood is put aside and reported, so that nothing is
    /// lost.
    pub fn read_all(&self) -> KeptChanges {
        self.0
            .read_or_put_aside("overrides, bookings, cordons, labels and suspensions cannot be read and have no effect")
    }

    /// Writes everything, complete or not at all. It is on the disk when this returns.
    ///
    /// # Errors
    /// The directory or the file cannot be written; the old content is unchanged.
    pub fn save(&self, kept: &KeptChanges) -> io::Result<()> {
        self.0.save(kept)
    }
}

#[cfg(test)]
mod tests {
    use vgpu_control::finding::ProcessId;
    use vgpu_policy::overrides::OverrideAction;

    use super::*;
    use crate::proof::image::Image;

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
        let suspended = SuspendedProcess {
            image: Image { process: ProcessId { pid: 7, began: 9 }, program: (1, 2), code: 3, stack: 4 },
            boot: "b".into(),
            tenant: "a".into(),
            since: 5,
            is_locked: true,
            learned: 0,
            resumed_by: None,
        };
        let kept = KeptChanges {
            overrides: vec![change],
            bookings: vec![WrittenBooking::default()],
            labels: BTreeMap::from([("a".into(), BTreeMap::from([("pod".into(), "x".into())]))]),
            suspended: vec![suspended],
            ..KeptChanges::default()
        };
        store.save(&kept).unwrap();
        assert_eq!(ChangeStore::below(&dir.path().join("state")).read_all(), kept);
        let file = dir.path().join("state/changes.json");
        let mut other: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let suspended = other["suspended"].as_array_mut().unwrap();
        suspended.extend([serde_json::json!({"pid": 8}), 9.into()]);
        std::fs::write(&file, other.to_string()).unwrap();
        assert_eq!(store.read_all(), kept, "only what another version wrote is lost");
        other["suspended"] = serde_json::json!({"8": "b"});
        std::fs::write(&file, other.to_string()).unwrap();
        assert_eq!(store.read_all(), KeptChanges { suspended: vec![], ..kept });
        std::fs::write(file, "{").unwrap();
        assert_eq!(store.read_all(), KeptChanges::default());
        assert_eq!(std::fs::read_to_string(dir.path().join("state/changes.unreadable")).unwrap(), "{");
    }
}
