//! Reads `[[window]]` and `[[booking]]`.

use toml::de::DeTable;

use super::ConfigReader;
use crate::keys::ConfigSection;
use crate::problem::TextRange;
use crate::raw::{RawBooking, RawFile, RawWindow};
use crate::value;

impl ConfigReader<'_, '_> {
    /// Reads the sections that hold at certain times.
    pub(super) fn read_schedule(&mut self, root: &DeTable<'_>, file: &mut RawFile) {
        for (table, place) in self.table_array(root, ConfigSection::File, "window") {
            file.windows.push(self.read_window(table, place));
        }
        for (table, place) in self.table_array(root, ConfigSection::File, "booking") {
            file.bookings.push(self.read_booking(table, place));
        }
    }

    fn read_window(&mut self, table: &DeTable<'_>, place: TextRange) -> RawWindow {
        const SECTION: ConfigSection = ConfigSection::Window;
        self.report_unknown_keys(table, SECTION);
        RawWindow {
            place,
            name: self.read_needed(table, place, SECTION, "name", value::name),
            days: self.read_list(table, SECTION, "days", value::read_days),
            from: self.read_needed(table, place, SECTION, "from", value::read_clock),
            to: self.read_needed(table, place, SECTION, "to", value::read_clock),
            zone: self.read_value(table, SECTION, "time_zone", value::read_zone),
            tenants: self.read_list(table, SECTION, "tenants", value::name),
            groups: self.read_list(table, SECTION, "groups", value::read_group),
            devices: self.read_list(table, SECTION, "devices", value::read_device),
            paused: self.read_value(table, SECTION, "paused", value::read_truth),
            terms: self.read_terms(table, SECTION),
        }
    }

    fn read_booking(&mut self, table: &DeTable<'_>, place: TextRange) -> RawBooking {
        const SECTION: ConfigSection = ConfigSection::Booking;
        self.report_unknown_keys(table, SECTION);
        RawBooking {
            place,
            name: self.read_needed(table, place, SECTION, "name", value::name),
            tenant: self.read_needed(table, place, SECTION, "tenant", value::name),
            devices: self.read_list(table, SECTION, "devices", value::read_device),
            from: self.read_needed(table, place, SECTION, "from", value::read_date_time),
            length: self.read_needed(table, place, SECTION, "for", value::read_length),
            zone: self.read_value(table, SECTION, "time_zone", value::read_zone),
            sm_request: self.read_value(table, SECTION, "sm_request", value::read_floor),
            memory_limit: self.read_value(table, SECTION, "memory_limit", value::read_amount),
        }
    }
}
