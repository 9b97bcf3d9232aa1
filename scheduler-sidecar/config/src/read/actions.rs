//! Reads the sections `[[on_event]]`.

use toml::de::DeTable;

use super::ConfigReader;
use crate::action::{MAX_ACTIONS, RawAction};
use crate::keys::ConfigSection;
use crate::problem::{At, TextRange};
use crate::value::{self, WrittenValue};

impl ConfigReader<'_, '_> {
    /// Reads all sections `[[on_event]]`; too many are reported and not read.
    pub(super) fn read_actions(&mut self, root: &DeTable<'_>) -> Vec<RawAction> {
        let tables = self.table_array(root, ConfigSection::File, "on_event");
        if let Some((_, place)) = tables.get(MAX_ACTIONS) {
            let what = format!("is given {} times", tables.len());
            self.problems.wrong_key(*place, "on_event", what, format!("at most {MAX_ACTIONS} times"));
        }
        tables.into_iter().take(MAX_ACTIONS).map(|(table, place)| self.read_action(table, place)).collect()
    }

    fn read_action(&mut self, table: &DeTable<'_>, place: TextRange) -> RawAction {
        const SECTION: ConfigSection = ConfigSection::OnEvent;
        self.report_unknown_keys(table, SECTION);
        for (key, accepted) in [("events", value::EVENT_FORMS), ("exec", value::EXEC_FORMS)] {
            if table.get(key).is_none() {
                self.problems.wrong_key(place, format!("{}.{key}", SECTION.name()), "is missing", accepted);
            }
        }
        RawAction {
            place,
            events: self.read_list(table, SECTION, "events", value::read_event).map(|list| list.value),
            exec: self.read_command(table, SECTION, "exec"),
            timeout: self.read_value(table, SECTION, "timeout", value::read_action_timeout),
            at_once: self.read_value(table, SECTION, "at_once", value::read_runs_at_once),
        }
    }

    /// Reads a program with its arguments. The first word is the absolute path of one program.
    pub(super) fn read_command(
        &mut self,
        table: &DeTable<'_>,
        section: ConfigSection,
        key: &'static str,
    ) -> Option<Vec<At<String>>> {
        let words = self.read_list(table, section, key, value::read_argument)?.value;
        let program = words.first()?;
        match value::program(&WrittenValue::Text(&program.value)) {
            Ok(_) => Some(words),
            Err(wrong) => {
                let key = format!("{}.{key}", section.name());
                self.problems.wrong_value(program.place, key, wrong.what, wrong.accepted);
                None
            }
        }
    }
}
