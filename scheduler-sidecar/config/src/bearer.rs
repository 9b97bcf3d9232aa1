//! The group and labels that a tenant's cost is charged to, as the daemon's file gives them.
//!
//! They are stored with every recorded row. So renaming a group, or moving a tenant to another group, does not change
//! rows recorded earlier.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
}
