//! Parses text into a [`RawFile`]: checks every key and value, and reports problems without stopping.
//!
//! Not here: the syntax of a single value ([`super::value`]) and whether values fit together ([`super::resolve`]).

mod actions;
mod groups;
mod labels;
mod schedule;
mod usage;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::ConfigSection;
use super::problem::{At, ProblemList, TextRange};
use super::raw::{
    RawDaemon, RawDevice, RawFile, RawLog, RawMetrics, RawOverride, RawPolicy, RawProof, RawRecord, RawTemplate,
    RawTenant, RawTerms,
};
use super::suggest::nearest_word;
use super::time::{CONSTANTS, REMOVED_KEYS, RawTime};
use super::value::{self, ValueReader, WrittenValue, WrongValue};

/// Largest file that is read, in bytes.
pub const MAX_FILE: usize = 1 << 20;

/// Parses a file; `None` if it is not TOML, which is reported.
pub fn read_file(text: &str, problems: &mut ProblemList<'_>) -> Option<RawFile> {
    if text.len() > MAX_FILE {
        let what = format!("the file is {} bytes long; at most {MAX_FILE} are read", text.len());
        problems.wrong_syntax(TextRange::default(), what);
        return None;
    }
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        problems.wrong_syntax(error.span().unwrap_or_default().into(), format!("not TOML: {}", error.message()));
    }
    errors.is_empty().then(|| ConfigReader { problems }.read_root(root.get_ref()))
}

struct ConfigReader<'p, 'x> {
    problems: &'p mut ProblemList<'x>,
}

type SpannedValue<'t> = Spanned<DeValue<'t>>;

/// Converts a TOML value for the functions that read single values.
fn as_written<'a>(value: &'a DeValue<'_>) -> WrittenValue<'a> {
    match value {
        DeValue::String(text) => WrittenValue::Text(text),
        DeValue::Integer(number) if number.radix() == 10 => WrittenValue::Number(number.as_str().replace('_', "")),
        DeValue::Integer(_) => WrittenValue::Other("not a decimal number"),
        DeValue::Float(number) => WrittenValue::Number(number.as_str().replace('_', "")),
        DeValue::Boolean(truth) => WrittenValue::Truth(*truth),
        DeValue::Datetime(_) => WrittenValue::Other("a date or time"),
        DeValue::Array(_) => WrittenValue::Other("a list"),
        DeValue::Table(_) => WrittenValue::Other("a table"),
    }
}

impl ConfigReader<'_, '_> {
    fn read_root(&mut self, root: &DeTable<'_>) -> RawFile {
        self.report_unknown_keys(root, ConfigSection::File);
        let mut file = RawFile::default();
        if let Some((table, _)) = self.sub_table(root, ConfigSection::File, "daemon") {
            file.daemon = self.read_daemon(table);
        }
        if let Some((table, _)) = self.sub_table(root, ConfigSection::File, "log") {
            file.log = self.log(table);
        }
        if let Some((table, _)) = self.sub_table(root, ConfigSection::File, "metrics") {
            file.metrics = self.read_metrics(table);
        }
        if let Some((table, _)) = self.sub_table(root, ConfigSection::File, "proof") {
            file.proof = self.read_proof(table);
        }
        if let Some((table, _)) = self.sub_table(root, ConfigSection::File, "record") {
            file.record = self.read_record(table);
        }
        let before = self.problems.len();
        if let Some((table, _)) = self.sub_table(root, ConfigSection::File, "time") {
            file.time = self.read_time(table);
            file.arbitrate =
                table.get("arbitrate").and_then(|value| self.take_value(value, "time", "arbitrate", value::read_truth));
        }
        file.time_is_wrong = self.problems.len() > before;
        if let Some((table, _)) = self.sub_table(root, ConfigSection::File, "defaults") {
            self.report_unknown_keys(table, ConfigSection::Defaults);
            file.defaults = self.read_policy(table, ConfigSection::Defaults);
        }
        if let Some((table, _)) = self.sub_table(root, ConfigSection::File, "template") {
            file.templates = self.read_templates(table);
        }
        let before = self.problems.len();
        for (table, place) in self.table_array(root, ConfigSection::File, "device") {
            file.devices.push(self.read_device(table, place));
        }
        file.devices_are_wrong = self.problems.len() > before;
        for (table, place) in self.table_array(root, ConfigSection::File, "tenant") {
            file.tenants.push(self.read_tenant(table, place));
        }
        self.read_groups(root, &mut file);
        self.read_schedule(root, &mut file);
        file.actions = self.read_actions(root);
        file
    }

    fn read_daemon(&mut self, table: &DeTable<'_>) -> RawDaemon {
        const SECTION: ConfigSection = ConfigSection::Daemon;
        self.report_unknown_keys(table, SECTION);
        RawDaemon {
            run_dir: self.read_value(table, SECTION, "run_dir", value::read_path),
            state_dir: self.read_value(table, SECTION, "state_dir", value::read_directory),
            admin_socket: self.read_value(table, SECTION, "admin_socket", value::read_socket),
            max_connections: self.read_value(table, SECTION, "max_connections", value::read_connections),
            log: self.read_value(table, SECTION, "log", value::log),
        }
    }

    fn log(&mut self, table: &DeTable<'_>) -> RawLog {
        const SECTION: ConfigSection = ConfigSection::Log;
        self.report_unknown_keys(table, SECTION);
        RawLog {
            file: self.read_value(table, SECTION, "file", value::read_file),
            format: self.read_value(table, SECTION, "format", value::log_format),
            max_size: self.read_value(table, SECTION, "max_size", value::log_size),
            keep: self.read_value(table, SECTION, "keep", value::log_keep),
            audit: self.read_value(table, SECTION, "audit", value::read_file),
        }
    }

    fn read_metrics(&mut self, table: &DeTable<'_>) -> RawMetrics {
        const SECTION: ConfigSection = ConfigSection::Metrics;
        self.report_unknown_keys(table, SECTION);
        RawMetrics {
            listen: self.read_value(table, SECTION, "listen", value::listen),
            hami_names: self.read_value(table, SECTION, "hami_names", value::read_truth),
        }
    }

    fn read_record(&mut self, table: &DeTable<'_>) -> RawRecord {
        const SECTION: ConfigSection = ConfigSection::Record;
        self.report_unknown_keys(table, SECTION);
        RawRecord {
            keep: self.read_value(table, SECTION, "keep", value::read_long_time),
            keep_fine: self.read_value(table, SECTION, "keep_fine", value::read_long_time),
            exact: self.read_value(table, SECTION, "exact", value::read_truth),
            half_life: self.read_value(table, SECTION, "half_life", value::read_length),
        }
    }

    fn read_proof(&mut self, table: &DeTable<'_>) -> RawProof {
        const SECTION: ConfigSection = ConfigSection::Proof;
        self.report_unknown_keys(table, SECTION);
        RawProof {
            enabled: self.read_value(table, SECTION, "enabled", value::read_truth),
            interval: self.read_value(table, SECTION, "interval", value::read_look_interval),
            devices: self.read_list(table, SECTION, "devices", value::device_file),
            allow: self.read_list(table, SECTION, "allow", value::program),
            slack: self.read_value(table, SECTION, "slack", value::read_bytes),
            action: self.read_value(table, SECTION, "action", value::read_action),
            grace: self.read_value(table, SECTION, "grace", value::read_grace),
            dry_run: self.read_value(table, SECTION, "dry_run", value::read_truth),
        }
    }

    fn read_time(&mut self, table: &DeTable<'_>) -> RawTime {
        let known = || std::iter::once("arbitrate").chain(CONSTANTS.iter().map(|constant| constant.name));
        let here = |key: &str| REMOVED_KEYS.iter().find(|(name, _)| *name == key);
        for (key, value) in table.iter() {
            let Some((name, why)) = here(key.get_ref()) else { continue };
            let place = TextRange::from(key.span().start..value.span().end);
            self.problems.wrong_key(place, format!("time.{name}"), *why, "a file without it");
        }
        self.unknown_but(table, "time", known, |key| here(key).is_some());
        RawTime::read(|name, range| {
            let value = table.get(name)?;
            self.take_value(value, "time", name, |written| value::read_duration(written, &range))
        })
    }

    fn read_templates(&mut self, table: &DeTable<'_>) -> Vec<RawTemplate> {
        let mut templates = Vec::new();
        for (name, inner) in table.iter() {
            let place = TextRange::from(name.span());
            match (value::name(&WrittenValue::Text(name.get_ref())), inner.get_ref()) {
                (Err(wrong), _) => {
                    self.problems.wrong_key(place, format!("template.{}", shown_key(name)), wrong.what, wrong.accepted)
                }
                (Ok(_), other) if other.as_table().is_none() => {
                    let place = inner.span().into();
                    self.problems.wrong_value(
                        place,
                        format!("template.{}", shown_key(name)),
                        "is not a table",
                        "[template.NAME]",
                    );
                }
                (Ok(name), other) => {
                    let Some(table) = other.as_table() else { continue };
                    self.report_unknown_keys(table, ConfigSection::Template);
                    templates.push(RawTemplate { name, policy: self.read_policy(table, ConfigSection::Template) });
                }
            }
        }
        templates
    }

    fn read_device(&mut self, table: &DeTable<'_>, place: TextRange) -> RawDevice {
        const SECTION: ConfigSection = ConfigSection::Device;
        self.report_unknown_keys(table, SECTION);
        RawDevice {
            id: self.read_needed(table, place, SECTION, "id", value::read_device),
            memory: self.read_value(table, SECTION, "memory", value::read_bytes),
            overcommit: self.read_value(table, SECTION, "overcommit", value::read_overcommit),
        }
    }

    fn read_tenant(&mut self, table: &DeTable<'_>, place: TextRange) -> RawTenant {
        const SECTION: ConfigSection = ConfigSection::Tenant;
        self.report_unknown_keys(table, SECTION);
        let overrides = self.table_array(table, SECTION, "device").into_iter().map(|(table, place)| {
            const SECTION: ConfigSection = ConfigSection::Override;
            self.report_unknown_keys(table, SECTION);
            RawOverride {
                id: self.read_needed(table, place, SECTION, "id", value::read_device),
                terms: self.read_terms(table, SECTION),
            }
        });
        let overrides = overrides.collect();
        RawTenant {
            place,
            name: self.read_needed(table, place, SECTION, "name", value::name),
            template: self.read_value(table, SECTION, "template", value::name),
            devices: self.read_list(table, SECTION, "devices", value::read_device).map(|list| list.value),
            replicas: self.read_value(table, SECTION, "replicas", value::read_replicas),
            gang: self.read_value(table, SECTION, "gang", value::name),
            deadline: self.read_value(table, SECTION, "deadline", value::read_date_time),
            gpu_hours_needed: self.read_value(table, SECTION, "gpu_hours_needed", value::read_gpu_hours),
            policy: self.read_policy(table, SECTION),
            overrides,
        }
    }

    fn read_policy(&mut self, table: &DeTable<'_>, section: ConfigSection) -> RawPolicy {
        let uids = self.read_list(table, section, "uids", value::read_uids);
        RawPolicy {
            gpu: self.read_value(table, section, "gpu", value::read_part),
            terms: self.read_terms(table, section),
            uids: uids.map(|At { value, place }| At { value: value.into_iter().map(|at| at.value).collect(), place }),
            mode: self.read_value(table, section, "mode", value::read_mode),
            strict: self.read_value(table, section, "strict", value::read_strict),
            on_error: self.read_value(table, section, "on_error", value::on_error),
            on_loss: self.read_value(table, section, "on_loss", value::on_loss),
            group: self.read_value(table, section, "group", value::read_group),
            labels: self.read_labels(table, section),
            idle: self.read_idle(table, section),
        }
    }

    fn read_terms(&mut self, table: &DeTable<'_>, section: ConfigSection) -> RawTerms {
        RawTerms {
            memory_limit: self.read_value(table, section, "memory_limit", value::read_amount),
            sm_limit: self.read_value(table, section, "sm_limit", value::read_ceiling),
            sm_request: self.read_value(table, section, "sm_request", value::read_floor),
            weight: self.read_value(table, section, "weight", value::read_weight),
            class: self.read_value(table, section, "class", value::read_class),
            quantum: self.read_value(table, section, "quantum", value::read_quantum),
        }
    }

    /// Reads an optional single value.
    fn read_value<T>(
        &mut self,
        table: &DeTable<'_>,
        section: ConfigSection,
        key: &'static str,
        reading: ValueReader<T>,
    ) -> Option<At<T>> {
        debug_assert!(section.has_key(key), "{key} is not in the table of keys");
        self.take_value(table.get(key)?, section.name(), key, reading)
    }

    /// Reads a value that must be present.
    fn read_needed<T>(
        &mut self,
        table: &DeTable<'_>,
        place: TextRange,
        section: ConfigSection,
        key: &'static str,
        reading: ValueReader<T>,
    ) -> Option<At<T>> {
        if table.get(key).is_none() {
            // Take the accepted forms from the error for a value that is never accepted.
            let accepted = reading(&WrittenValue::Other("")).err().map_or_else(String::new, |wrong| wrong.accepted);
            self.problems.wrong_key(place, format!("{}.{key}", section.name()), "is missing", accepted);
        }
        self.read_value(table, section, key, reading)
    }

    fn take_value<T>(
        &mut self,
        value: &SpannedValue<'_>,
        section: &str,
        key: &str,
        reading: impl FnOnce(&WrittenValue<'_>) -> Result<T, WrongValue>,
    ) -> Option<At<T>> {
        let place = TextRange::from(value.span());
        match reading(&as_written(value.get_ref())) {
            Ok(value) => Some(At { value, place }),
            Err(wrong) => {
                self.problems.wrong_value(place, format!("{section}.{key}"), wrong.what, wrong.accepted);
                None
            }
        }
    }

    /// Reads a list of at least one value.
    fn read_list<T>(
        &mut self,
        table: &DeTable<'_>,
        section: ConfigSection,
        key: &'static str,
        reading: ValueReader<T>,
    ) -> Option<At<Vec<At<T>>>> {
        debug_assert!(section.has_key(key), "{key} is not in the table of keys");
        let value = table.get(key)?;
        let place = TextRange::from(value.span());
        let accepted = || reading(&WrittenValue::Other("")).err().map_or_else(String::new, |wrong| wrong.accepted);
        let Some(array) = value.get_ref().as_array() else {
            let accepted = format!("a list: [...] of {}", accepted());
            self.problems.wrong_value(place, format!("{}.{key}", section.name()), "is not a list", accepted);
            return None;
        };
        if array.is_empty() {
            let accepted = format!("a list of at least one: {}", accepted());
            self.problems.wrong_value(place, format!("{}.{key}", section.name()), "is empty", accepted);
            return None;
        }
        let all = array.iter().map(|value| self.take_value(value, section.name(), key, reading)).collect::<Vec<_>>();
        // A list with a wrong part is rejected as a whole: half of it would mean something else.
        let all = all.into_iter().collect::<Option<Vec<_>>>()?;
        Some(At { value: all, place })
    }

    /// Reads a table `[key]` of the file.
    fn sub_table<'a, 'v>(
        &mut self,
        table: &'a DeTable<'v>,
        section: ConfigSection,
        key: &str,
    ) -> Option<(&'a DeTable<'v>, TextRange)> {
        debug_assert!(section.has_key(key), "{key} is not in the table of keys");
        let value = table.get(key)?;
        let place = TextRange::from(value.span());
        let inner = value.get_ref().as_table();
        if inner.is_none() {
            self.problems.wrong_value(place, key, "is not a table", format!("[{key}]"));
        }
        inner.map(|inner| (inner, place))
    }

    /// Reads a list of tables `[[key]]` of the file.
    fn table_array<'a, 'v>(
        &mut self,
        table: &'a DeTable<'v>,
        section: ConfigSection,
        key: &str,
    ) -> Vec<(&'a DeTable<'v>, TextRange)> {
        debug_assert!(section.has_key(key), "{key} is not in the table of keys");
        let Some(value) = table.get(key) else { return Vec::new() };
        let name = if section == ConfigSection::File { key.to_owned() } else { format!("{}.{key}", section.name()) };
        let accepted = format!("[[{name}]], once for each");
        let Some(array) = value.get_ref().as_array() else {
            self.problems.wrong_value(value.span().into(), name, "is not a list of tables", accepted);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for value in array.iter() {
            match value.get_ref().as_table() {
                Some(table) => tables.push((table, TextRange::from(value.span()))),
                None => {
                    self.problems.wrong_value(value.span().into(), name.clone(), "is not a table", accepted.clone())
                }
            }
        }
        tables
    }

    fn report_unknown_keys(&mut self, table: &DeTable<'_>, section: ConfigSection) {
        self.unknown_but(table, section.name(), || section.section_keys().map(|key| key.name), |_| false);
    }

    /// Reports every key that is unknown, except those that `told` says were reported already.
    fn unknown_but<I: Iterator<Item = &'static str>>(
        &mut self,
        table: &DeTable<'_>,
        section: &str,
        known: impl Fn() -> I,
        told: impl Fn(&str) -> bool,
    ) {
        for (key, _) in table.iter() {
            if known().any(|known| known == key.get_ref().as_ref()) || told(key.get_ref()) {
                continue;
            }
            let meant = if self.problems.is_full() { None } else { nearest_word(key.get_ref(), known()) };
            let what = match meant {
                Some(meant) => format!("is not a key (did you mean {meant}?)"),
                None => "is not a key".to_owned(),
            };
            let name = if section == ConfigSection::File.name() {
                shown_key(key)
            } else {
                format!("{section}.{}", shown_key(key))
            };
            self.problems.wrong_key(key.span().into(), name, what, known().collect::<Vec<_>>().join(", "));
        }
    }
}

fn shown_key(key: &Spanned<std::borrow::Cow<'_, str>>) -> String {
    super::problem::escape_value(key.get_ref())
}
