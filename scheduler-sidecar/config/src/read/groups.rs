//! Reads `[[group]]` and `[[group.quota]]`.

use toml::de::DeTable;

use super::ConfigReader;
use crate::keys::ConfigSection;
use crate::problem::TextRange;
use crate::raw::{RawFile, RawGroup, RawQuota};
use crate::value;

impl ConfigReader<'_, '_> {
    /// Reads the groups of tenants.
    pub(super) fn read_groups(&mut self, root: &DeTable<'_>, file: &mut RawFile) {
        const SECTION: ConfigSection = ConfigSection::Group;
        for (table, place) in self.table_array(root, ConfigSection::File, "group") {
            self.report_unknown_keys(table, SECTION);
            let name = self.read_needed(table, place, SECTION, "name", value::read_group_name);
            let weight = self.read_value(table, SECTION, "weight", value::read_weight);
            let memory_limit = self.read_value(table, SECTION, "memory_limit", value::read_amount);
            let sm_limit = self.read_value(table, SECTION, "sm_limit", value::read_ceiling);
            let quotas = self.table_array(table, SECTION, "quota");
            let quotas = quotas.into_iter().map(|(table, place)| self.read_quota(table, place)).collect();
            file.groups.push(RawGroup { place, name, weight, memory_limit, sm_limit, quotas });
        }
    }

    fn read_quota(&mut self, table: &DeTable<'_>, place: TextRange) -> RawQuota {
        const SECTION: ConfigSection = ConfigSection::Quota;
        self.report_unknown_keys(table, SECTION);
        RawQuota {
            place,
            period: self.read_needed(table, place, SECTION, "per", value::read_period),
            zone: self.read_value(table, SECTION, "time_zone", value::read_zone),
            gpu_hours: self.read_value(table, SECTION, "gpu_hours", value::read_hours),
            gib_hours: self.read_value(table, SECTION, "gib_hours", value::read_hours),
            effect: self.read_value(table, SECTION, "then", value::read_quota_effect),
        }
    }
}
