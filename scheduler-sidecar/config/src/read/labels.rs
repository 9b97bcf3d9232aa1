//! Reads `labels = { name = "value", ... }`.

use std::collections::BTreeMap;

use toml::de::DeTable;

use super::{ConfigReader, shown_key};
use crate::keys::ConfigSection;
use crate::raw::MAX_LABELS;
use crate::value::{is_label_name, read_label};

impl ConfigReader<'_, '_> {
    /// Reads a section's labels; `None` if it has none, or if they had a problem, already reported.
    pub(super) fn read_labels(
        &mut self,
        table: &DeTable<'_>,
        section: ConfigSection,
    ) -> Option<BTreeMap<String, String>> {
        const KEY: &str = "labels";
        debug_assert!(section.has_key(KEY));
        let written = table.get(KEY)?;
        let here = format!("{}.{KEY}", section.name());
        let accepted = format!("at most {MAX_LABELS} of them: {{ NAME = \"VALUE\", ... }}");
        let Some(inner) = written.get_ref().as_table() else {
            self.problems.wrong_value(written.span().into(), here, "is not a table", accepted);
            return None;
        };
        if inner.iter().count() > MAX_LABELS {
            self.problems.wrong_key(written.span().into(), here, "are too many", accepted);
            return None;
        }
        let mut labels = BTreeMap::new();
        let before = self.problems.len();
        for (name, value) in inner.iter() {
            if is_label_name(name.get_ref()) {
                let value = self.take_value(value, &here, name.get_ref(), read_label);
                labels.extend(value.map(|at| (name.get_ref().to_string(), at.value)));
            } else {
                let accepted = "1 to 64 letters, digits, '-', '_', '.' and '/'";
                let key = format!("{here}.{}", shown_key(name));
                self.problems.wrong_key(name.span().into(), key, "cannot be a label's name", accepted);
            }
        }
        (self.problems.len() == before).then_some(labels)
    }
}

#[cfg(test)]
mod tests {
    use crate::make_plan;
    use crate::resolve::Surroundings;

    #[test]
    fn the_nearest_group_counts_and_of_each_label_the_nearest_word() {
        let file = "\
            [defaults]\ngroup = \"all\"\nlabels = { site = \"here\", cost = \"1\" }\n\
            [template.t]\ngroup = \"lab/vision\"\nlabels = { cost = \"2\" }\n\
            [[device]]\nid = 0\nmemory = \"80GiB\"\n\
            [[tenant]]\nname = \"a\"\nmemory_limit = \"1GiB\"\n\
            [[tenant]]\nname = \"b\"\nmemory_limit = \"1GiB\"\ntemplate = \"t\"\nlabels = { project = \"x y\" }\n";
        let plan = make_plan(file, &Surroundings::default()).unwrap();
        let said = |tenant: usize| {
            let bearer = &plan.tenants[tenant].bearer;
            (bearer.group.clone().unwrap(), bearer.labels_column())
        };
        assert_eq!(said(0), ("all".into(), r#"{"cost":"1","site":"here"}"#.into()));
        assert_eq!(said(1), ("lab/vision".into(), r#"{"cost":"2","project":"x y","site":"here"}"#.into()));
    }
}
