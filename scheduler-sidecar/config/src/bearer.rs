//! The group and labels that a tenant's cost is charged to, as the daemon's file gives them.
//!
//! They are stored with every recorded row. So renaming a group, or moving a tenant to another group, does not change
//! rows recorded earlier.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::problem::escape_value;
use crate::raw::MAX_LABELS;
use crate::value::{WrittenValue, is_label_name, read_label};

/// Label with the UID of the Kubernetes pod, which the daemon finds by itself.
pub const POD_LABEL: &str = "pod-uid";

/// Labels that name the Kubernetes pod and its container to people.
pub const POD_NAME_LABELS: [&str; 3] = ["namespace", "pod", "container"];

/// New values of labels by name; `None` takes back the label that a command set.
pub type LabelChanges = BTreeMap<String, Option<String>>;

/// A tenant's group and labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CostBearer {
    /// Department, team or project; `None` if the file gives none.
    #[serde(default)]
    pub group: Option<String>,
    /// Label values by label name.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

impl CostBearer {
    /// Returns the group as stored in the record; an empty string means no group.
    #[must_use]
    pub fn group_column(&self) -> &str {
        self.group.as_deref().unwrap_or_default()
    }

    /// Returns the labels as stored in the record: a JSON object sorted by name, so that equal labels are equal text.
    #[must_use]
    pub fn labels_column(&self) -> String {
        serde_json::to_string(&self.labels).unwrap_or_else(|_| "{}".into())
    }

    /// Reads both columns back; text that is no JSON object of strings yields no labels.
    #[must_use]
    pub fn of_columns(group: &str, labels: &str) -> Self {
        let group = Some(group.to_owned()).filter(|group| !group.is_empty());
        Self { group, labels: serde_json::from_str(labels).unwrap_or_default() }
    }

    /// Returns the bearer with the labels that commands set: their values count before those of the file.
    #[must_use]
    pub fn with_labels(mut self, set: &BTreeMap<String, String>) -> Self {
        self.labels.extend(set.iter().map(|(name, value)| (name.clone(), value.clone())));
        self
    }

    /// Applies changes to the labels that commands set for this bearer.
    ///
    /// # Errors
    /// A message: a name or a value is not accepted, or there would be too many labels; `set` is unchanged.
    pub fn change_labels(&self, set: &mut BTreeMap<String, String>, changes: &LabelChanges) -> Result<(), String> {
        let mut fresh = set.clone();
        for (name, value) in changes {
            check_label(name, value.as_deref())?;
            match value {
                Some(value) => drop(fresh.insert(name.clone(), value.clone())),
                None => drop(fresh.remove(name)),
            }
        }
        let count = self.clone().with_labels(&fresh).labels.len();
        if count > MAX_LABELS {
            return Err(format!("the tenant would have {count} labels; accepted: at most {MAX_LABELS}"));
        }
        *set = fresh;
        Ok(())
    }
}

/// Checks the name of a label and its value; `None` has nothing to check.
///
/// # Errors
/// A message with the accepted forms.
pub fn check_label(name: &str, value: Option<&str>) -> Result<(), String> {
    if !is_label_name(name) {
        let name = escape_value(name);
        return Err(format!(
            "{name:?} cannot be a label's name; accepted: 1 to 64 letters, digits, '-', '_', '.' and '/'"
        ));
    }
    let Some(value) = value else { return Ok(()) };
    let refused = |wrong: crate::value::WrongValue| {
        format!("label {name} = {:?} {}; accepted: {}", escape_value(value), wrong.what, wrong.accepted)
    };
    read_label(&WrittenValue::Text(value)).map(|_| ()).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_say_the_same_as_what_they_were_made_of() {
        let labels = BTreeMap::from([("cost".to_owned(), "a \"b\", ü".to_owned()), ("a".to_owned(), "1".to_owned())]);
        for bearer in [CostBearer::default(), CostBearer { group: Some("lab/vision".into()), labels }] {
            assert_eq!(CostBearer::of_columns(bearer.group_column(), &bearer.labels_column()), bearer);
        }
        assert_eq!(CostBearer::of_columns("", "no JSON"), CostBearer::default());
    }

    #[test]
    fn labels_of_commands_lie_over_those_of_the_file_and_give_them_back() {
        let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let file = CostBearer { group: None, labels: BTreeMap::from([own("site", "here"), own("namespace", "none")]) };
        let changes = |all: &[(&str, Option<&str>)]| {
            all.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned))).collect::<LabelChanges>()
        };
        let mut set = BTreeMap::new();
        file.change_labels(&mut set, &changes(&[("namespace", Some("lab")), ("pod", Some("a"))])).unwrap();
        let shown = file.clone().with_labels(&set).labels_column();
        assert_eq!(shown, r#"{"namespace":"lab","pod":"a","site":"here"}"#);
        file.change_labels(&mut set, &changes(&[("namespace", None), ("pod", None), ("never", None)])).unwrap();
        assert_eq!(file.clone().with_labels(&set), file);
    }

    #[test]
    fn labels_that_the_file_would_refuse_are_refused_and_change_nothing() {
        let many: LabelChanges = (0..=MAX_LABELS).map(|number| (format!("l{number}"), Some("x".to_owned()))).collect();
        let long = "x".repeat(257);
        for (changes, words) in [
            (LabelChanges::from([("a b".into(), Some("x".into()))]), "\"a b\" cannot be a label's name"),
            (LabelChanges::from([("a b".into(), None)]), "\"a b\" cannot be a label's name"),
            (LabelChanges::from([("a".into(), Some("x\ny".into()))]), "accepted: a text of 1 to 256"),
            (LabelChanges::from([("a".into(), Some(long))]), "accepted: a text of 1 to 256"),
            (LabelChanges::from([("a".into(), Some(String::new()))]), "accepted: a text of 1 to 256"),
            (many, "would have 17 labels; accepted: at most 16"),
        ] {
            let mut set = BTreeMap::from([("pod".to_owned(), "a".to_owned())]);
            let bearer = CostBearer { labels: set.clone(), ..CostBearer::default() };
            let refused = bearer.change_labels(&mut set, &changes);
            assert!(refused.as_ref().is_err_and(|said| said.contains(words)) || words.contains("17"), "{refused:?}");
            assert!(refused.is_err() && set.len() == 1, "{set:?}");
        }
    }
}
