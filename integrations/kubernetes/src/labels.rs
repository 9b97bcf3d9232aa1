//! Labels of slices: namespace, pod and container of the owner, so that usage is billed by them.
//!
//! They are set before a container starts. The end of a pod is no call of the kubelet, so its list of pods is asked
//! each second: a slice that no container has any more loses its labels.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::sleep;
use tracing::{info, warn};
use vgpu_config::bearer::{LabelChanges, POD_NAME_LABELS};
use vgpu_control::{ControlCommand, ask_daemon};

use crate::pods::{SliceOwner, ask_pods, find_owner};
use crate::slices::Slice;

/// Time between two requests for the kubelet's list of pods.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// Lists without an owner after which a slice loses its labels. A kubelet that has just started may list no pods yet.
const MAX_ABSENT_LISTS: u32 = 5;

/// Sets the labels of slices.
#[derive(Debug)]
pub struct SliceLabeller {
    /// Administrative socket of vgpud.
    pub daemon: PathBuf,
    /// Socket of the kubelet's list of pods.
    pub pod_resources: PathBuf,
    /// Domain of the resources.
    pub domain: String,
    /// Held from a question to the kubelet until its answer is in force, so that no older answer replaces it.
    pub turn: Mutex<()>,
}

impl SliceLabeller {
    /// Labels a slice with its owner, and returns the owner. `None`: the kubelet names none, and nothing is changed.
    ///
    /// # Errors
    /// A message: vgpud does not answer, or refuses.
    pub async fn label_owner(&self, slice: &Slice) -> Result<Option<SliceOwner>, String> {
        let _turn = self.turn.lock().await;
        let list = match ask_pods(&self.pod_resources).await {
            Ok(list) => list,
            Err(why) => {
                warn!(tenant = slice.tenant, %why, "the kubelet does not list its pods; labels follow when it does");
                return Ok(None);
            }
        };
        let Some(owner) = find_owner(&list, &format!("{}/{}", self.domain, slice.resource), &slice.tenant) else {
            return Ok(None);
        };
        self.send_labels(&slice.tenant, owner_labels(&owner).into_iter().collect()).await?;
        Ok(Some(owner))
    }

    /// Keeps the labels of all slices as the kubelet lists their owners, without end.
    pub async fn follow_pods(&self, slices: watch::Receiver<Vec<Slice>>) {
        let (mut absent, mut told) = (BTreeMap::new(), String::new());
        loop {
            sleep(LOOK_PERIOD).await;
            let known = slices.borrow().clone();
            let now = match self.settle_labels(&known, &mut absent).await {
                Ok(()) => String::new(),
                Err(why) => why,
            };
            if now != told && !now.is_empty() {
                warn!(why = now, "labels of slices cannot be kept");
            }
            told = now;
        }
    }

    async fn settle_labels(&self, slices: &[Slice], absent: &mut BTreeMap<String, u32>) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        let list = ask_pods(&self.pod_resources).await?;
        let owner_of = |slice: &Slice| find_owner(&list, &format!("{}/{}", self.domain, slice.resource), &slice.tenant);
        for (tenant, changes) in needed_changes(slices, owner_of, absent) {
            let is_end = changes.values().all(Option::is_none);
            self.send_labels(&tenant, changes).await?;
            info!(tenant, "{}", if is_end { "no container has it any more" } else { "labelled again" });
        }
        Ok(())
    }

    async fn send_labels(&self, tenant: &str, labels: LabelChanges) -> Result<(), String> {
        let (socket, ask) = (self.daemon.clone(), ControlCommand::Label { tenant: tenant.to_owned(), labels });
        // The daemon's protocol blocks, for two seconds at most.
        let answer = tokio::task::spawn_blocking(move || ask_daemon(&socket, &ask)).await;
        let answer = answer.map_err(std::io::Error::other).and_then(|answer| answer);
        answer.map(|_| ()).map_err(|why| format!("tenant {tenant:?} cannot be labelled: {why}"))
    }
}

/// The labels of an owner, by name.
fn owner_labels(owner: &SliceOwner) -> BTreeMap<String, Option<String>> {
    let values = [&owner.namespace, &owner.pod, &owner.container];
    POD_NAME_LABELS.into_iter().zip(values).map(|(name, value)| (name.to_owned(), Some(value.clone()))).collect()
}

/// Returns the changes of labels that are needed now. `absent` counts the lists in which a labelled slice had no owner.
fn needed_changes(
    slices: &[Slice],
    owner_of: impl Fn(&Slice) -> Option<SliceOwner>,
    absent: &mut BTreeMap<String, u32>,
) -> Vec<(String, LabelChanges)> {
    absent.retain(|tenant, _| slices.iter().any(|slice| slice.tenant == *tenant));
    let mut needed = Vec::new();
    for slice in slices {
        let wanted = owner_of(slice).map(|owner| owner_labels(&owner));
        let count = absent.entry(slice.tenant.clone()).or_default();
        *count = if wanted.is_some() || slice.labels.is_empty() { 0 } else { *count + 1 };
        let changes = match wanted {
            Some(wanted) if wanted.iter().any(|(name, value)| slice.labels.get(name) != value.as_ref()) => wanted,
            None if *count >= MAX_ABSENT_LISTS => slice.labels.keys().map(|name| (name.clone(), None)).collect(),
            _ => continue,
        };
        needed.push((slice.tenant.clone(), changes));
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(labels: &[(&str, &str)]) -> Slice {
        Slice {
            tenant: "q-0".into(),
            resource: "quarter".into(),
            socket: "/s".into(),
            uuids: Vec::new(),
            members: 0,
            labels: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            fault: None,
        }
    }

    fn owner(pod: &str) -> SliceOwner {
        SliceOwner { namespace: "lab".into(), pod: pod.into(), container: "main".into() }
    }

    #[test]
    fn a_slice_without_its_owners_labels_gets_them_and_one_that_has_them_is_left_alone() {
        let mut absent = BTreeMap::new();
        let mut changes = |labels: &[(&str, &str)]| needed_changes(&[slice(labels)], |_| Some(owner("a")), &mut absent);
        let all = vec![("q-0".to_owned(), owner_labels(&owner("a")))];
        assert_eq!(changes(&[]), all);
        assert_eq!(changes(&[("namespace", "lab"), ("pod", "before"), ("container", "main")]), all);
        assert_eq!(changes(&[("namespace", "lab"), ("pod", "a"), ("container", "main")]), []);
    }

    #[test]
    fn a_slice_loses_its_labels_only_after_several_lists_without_its_owner() {
        let mut absent = BTreeMap::new();
        let labelled = slice(&[("pod", "a")]);
        for _ in 1..MAX_ABSENT_LISTS {
            assert_eq!(needed_changes(std::slice::from_ref(&labelled), |_| None, &mut absent), []);
        }
        let removed = vec![("q-0".to_owned(), LabelChanges::from([("pod".to_owned(), None)]))];
        assert_eq!(needed_changes(std::slice::from_ref(&labelled), |_| None, &mut absent), removed);
        // An owner in between begins the count again, and a slice without labels is not counted.
        let with = slice(&[("namespace", "lab"), ("pod", "a"), ("container", "main")]);
        assert_eq!(needed_changes(std::slice::from_ref(&with), |_| Some(owner("a")), &mut absent), []);
        assert_eq!(needed_changes(&[labelled], |_| None, &mut absent), []);
        assert_eq!(needed_changes(&[slice(&[])], |_| None, &mut absent), []);
        assert_eq!(absent, BTreeMap::from([("q-0".to_owned(), 0)]));
        needed_changes(&[], |_| None, &mut absent);
        assert!(absent.is_empty());
    }
}
