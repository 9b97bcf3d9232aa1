//! Reads the keys about idle tenants.

use toml::de::DeTable;

use super::ConfigReader;
use crate::keys::ConfigSection;
use crate::usage::RawIdle;
use crate::value;

impl ConfigReader<'_, '_> {
    /// Reads a section's keys about idle tenants.
    pub(super) fn read_idle(&mut self, table: &DeTable<'_>, section: ConfigSection) -> RawIdle {
        RawIdle {
            idle_minutes: self.read_value(table, section, "idle_minutes", value::read_minutes),
            idle_threshold: self.read_value(table, section, "idle_threshold", value::read_threshold),
            over_minutes: self.read_value(table, section, "over_minutes", value::read_minutes),
            over_threshold: self.read_value(table, section, "over_threshold", value::read_threshold),
            stalled_minutes: self.read_value(table, section, "stalled_minutes", value::read_minutes),
            idle_steps: self.read_list(table, section, "idle_steps", value::read_idle_step),
            idle_suspend: self.read_command(table, section, "idle_suspend"),
            idle_grace: self.read_value(table, section, "idle_grace", value::read_idle_grace),
            idle_dry_run: self.read_value(table, section, "idle_dry_run", value::read_truth),
        }
    }
}
