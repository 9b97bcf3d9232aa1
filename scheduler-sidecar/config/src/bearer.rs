//! Who bears what a tenant costs: its group and its labels, as the daemon's file says them.
//!
//! They are recorded with the rows, as they were when the rows were: a group that is renamed, and a tenant that moves to
//! another one, change nothing of what was.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A tenant's group and labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bearer {
    /// The department, team or project; `None`: none was given.
    #[serde(default)]
    pub group: Option<String>,
    /// By their names.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

impl Bearer {
    /// The group as the record's column has it: empty is none.
    #[must_use]
    pub fn group_column(&self) -> &str {
        self.group.as_deref().unwrap_or_default()
    }

    /// The labels as the record's column has them: a JSON object, sorted by name, so that equal labels are equal text.
    #[must_use]
    pub fn labels_column(&self) -> String {
        serde_json::to_string(&self.labels).unwrap_or_else(|_| "{}".into())
    }

    /// From both columns; labels that are no object of texts are none.
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
        for bearer in [Bearer::default(), Bearer { group: Some("lab/vision".into()), labels }] {
            assert_eq!(Bearer::of_columns(bearer.group_column(), &bearer.labels_column()), bearer);
        }
        assert_eq!(Bearer::of_columns("", "no JSON"), Bearer::default());
    }
}
