//! Parses text into a [`RawFile`]: checks every key and value, and reports problems without stopping.
//!
//! Not here: the syntax of a single value ([`super::value`]) and whether values fit together ([`super::resolve`]).

mod labels;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::Section;
use super::problem::{At, Place, Problems};
use super::raw::{
    RawDaemon, RawDevice, RawFile, RawLog, RawMetrics, RawOverride, RawPolicy, RawProof, RawRecord, RawTemplate,
    RawTenant, RawTerms,
};
use super::suggest::nearest;
use super::time::{CONSTANTS, NOT_HERE, RawTime};
use super::value::{self, Reading, Written, Wrong};

/// Largest file that is read, in bytes.
pub const MAX_FILE: usize = 1 << 20;

/// Parses a file; `None` if it is not TOML, which is reported.
pub fn file(text: &str, problems: &mut Problems<'_>) -> Option<RawFile> {
    if text.len() > MAX_FILE {
        let what = format!("the file is {} bytes long; at most {MAX_FILE} are read", text.len());
        problems.syntax(Place::default(), what);
        return None;
    }
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        problems.syntax(error.span().unwrap_or_default().into(), format!("not TOML: {}", error.message()));
    }
    errors.is_empty().then(|| Reader { problems }.file(root.get_ref()))
}

struct Reader<'p, 'x> {
    problems: &'p mut Problems<'x>,
}

type Value<'t> = Spanned<DeValue<'t>>;

/// Converts a TOML value for the functions that read single values.
fn written<'a>(value: &'a DeValue<'_>) -> Written<'a> {
    match value {
        DeValue::String(text) => Written::Text(text),
        DeValue::Integer(number) if number.radix() == 10 => Written::Number(number.as_str().replace('_', "")),
        DeValue::Integer(_) => Written::Other("not a decimal number"),
        DeValue::Float(number) => Written::Number(number.as_str().replace('_', "")),
        DeValue::Boolean(truth) => Written::Truth(*truth),
        DeValue::Datetime(_) => Written::Other("a date or time"),
        DeValue::Array(_) => Written::Other("a list"),
        DeValue::Table(_) => Written::Other("a table"),
    }
}

impl Reader<'_, '_> {
    fn file(&mut self, root: &DeTable<'_>) -> RawFile {
        self.unknown(root, Section::File);
        let mut file = RawFile::default();
        if let Some((table, _)) = self.table(root, Section::File, "daemon") {
            file.daemon = self.daemon(table);
        }
        if let Some((table, _)) = self.table(root, Section::File, "log") {
            file.log = self.log(table);
        }
        if let Some((table, _)) = self.table(root, Section::File, "metrics") {
            file.metrics = self.metrics(table);
        }
        if let Some((table, _)) = self.table(root, Section::File, "proof") {
            file.proof = self.proof(table);
        }
        if let Some((table, _)) = self.table(root, Section::File, "record") {
            file.record = self.record(table);
        }
        let before = self.problems.len();
        if let Some((table, _)) = self.table(root, Section::File, "time") {
            file.time = self.time(table);
            file.arbitrate =
                table.get("arbitrate").and_then(|value| self.take(value, "time", "arbitrate", value::arbitrate));
        }
        file.time_is_wrong = self.problems.len() > before;
        if let Some((table, _)) = self.table(root, Section::File, "defaults") {
            self.unknown(table, Section::Defaults);
            file.defaults = self.policy(table, Section::Defaults);
        }
        if let Some((table, _)) = self.table(root, Section::File, "template") {
            file.templates = self.templates(table);
        }
        let before = self.problems.len();
        for (table, place) in self.tables(root, Section::File, "device") {
            file.devices.push(self.device(table, place));
        }
        file.devices_are_wrong = self.problems.len() > before;
        for (table, place) in self.tables(root, Section::File, "tenant") {
            file.tenants.push(self.tenant(table, place));
        }
        file
    }

    fn daemon(&mut self, table: &DeTable<'_>) -> RawDaemon {
        const S: Section = Section::Daemon;
        self.unknown(table, S);
        RawDaemon {
            run_dir: self.value(table, S, "run_dir", value::path),
            state_dir: self.value(table, S, "state_dir", value::directory),
            admin_socket: self.value(table, S, "admin_socket", value::socket),
            max_connections: self.value(table, S, "max_connections", value::connections),
            log: self.value(table, S, "log", value::log),
        }
    }

    fn log(&mut self, table: &DeTable<'_>) -> RawLog {
        const S: Section = Section::Log;
        self.unknown(table, S);
        RawLog {
            file: self.value(table, S, "file", value::file),
            format: self.value(table, S, "format", value::log_format),
            max_size: self.value(table, S, "max_size", value::log_size),
            keep: self.value(table, S, "keep", value::log_keep),
            audit: self.value(table, S, "audit", value::file),
        }
    }

    fn metrics(&mut self, table: &DeTable<'_>) -> RawMetrics {
        const S: Section = Section::Metrics;
        self.unknown(table, S);
        RawMetrics {
            listen: self.value(table, S, "listen", value::listen),
            hami_names: self.value(table, S, "hami_names", value::truth),
        }
    }

    fn record(&mut self, table: &DeTable<'_>) -> RawRecord {
        const S: Section = Section::Record;
        self.unknown(table, S);
        RawRecord {
            keep: self.value(table, S, "keep", value::long),
            keep_fine: self.value(table, S, "keep_fine", value::long),
            exact: self.value(table, S, "exact", value::truth),
        }
    }

    fn proof(&mut self, table: &DeTable<'_>) -> RawProof {
        const S: Section = Section::Proof;
        self.unknown(table, S);
        RawProof {
            enabled: self.value(table, S, "enabled", value::truth),
            interval: self.value(table, S, "interval", value::looks),
            devices: self.list(table, S, "devices", value::device_file),
            allow: self.list(table, S, "allow", value::program),
            slack: self.value(table, S, "slack", value::bytes),
            action: self.value(table, S, "action", value::action),
            grace: self.value(table, S, "grace", value::grace),
            dry_run: self.value(table, S, "dry_run", value::truth),
        }
    }

    fn time(&mut self, table: &DeTable<'_>) -> RawTime {
        let known = || std::iter::once("arbitrate").chain(CONSTANTS.iter().map(|constant| constant.name));
        let here = |key: &str| NOT_HERE.iter().find(|(name, _)| *name == key);
        for (key, value) in table.iter() {
            let Some((name, why)) = here(key.get_ref()) else { continue };
            let place = Place::from(key.span().start..value.span().end);
            self.problems.key(place, format!("time.{name}"), *why, "a file without it");
        }
        self.unknown_but(table, "time", known, |key| here(key).is_some());
        RawTime::read(|name, range| {
            let value = table.get(name)?;
            self.take(value, "time", name, |written| value::duration(written, &range))
        })
    }

    fn templates(&mut self, table: &DeTable<'_>) -> Vec<RawTemplate> {
        let mut templates = Vec::new();
        for (name, inner) in table.iter() {
            let place = Place::from(name.span());
            match (value::name(&Written::Text(name.get_ref())), inner.get_ref()) {
                (Err(wrong), _) => {
                    self.problems.key(place, format!("template.{}", shown(name)), wrong.what, wrong.accepted)
                }
                (Ok(_), other) if other.as_table().is_none() => {
                    let place = inner.span().into();
                    self.problems.value(
                        place,
                        format!("template.{}", shown(name)),
                        "is not a table",
                        "[template.NAME]",
                    );
                }
                (Ok(name), other) => {
                    let Some(table) = other.as_table() else { continue };
                    self.unknown(table, Section::Template);
                    templates.push(RawTemplate { name, policy: self.policy(table, Section::Template) });
                }
            }
        }
        templates
    }

    fn device(&mut self, table: &DeTable<'_>, place: Place) -> RawDevice {
        const S: Section = Section::Device;
        self.unknown(table, S);
        RawDevice {
            id: self.needed(table, place, S, "id", value::device),
            memory: self.value(table, S, "memory", value::bytes),
            overcommit: self.value(table, S, "overcommit", value::overcommit),
        }
    }

    fn tenant(&mut self, table: &DeTable<'_>, place: Place) -> RawTenant {
        const S: Section = Section::Tenant;
        self.unknown(table, S);
        let overrides = self.tables(table, S, "device").into_iter().map(|(table, place)| {
            const S: Section = Section::Override;
            self.unknown(table, S);
            RawOverride { id: self.needed(table, place, S, "id", value::device), terms: self.terms(table, S) }
        });
        let overrides = overrides.collect();
        RawTenant {
            place,
            name: self.needed(table, place, S, "name", value::name),
            template: self.value(table, S, "template", value::name),
            devices: self.list(table, S, "devices", value::device).map(|list| list.value),
            replicas: self.value(table, S, "replicas", value::replicas),
            policy: self.policy(table, S),
            overrides,
        }
    }

    fn policy(&mut self, table: &DeTable<'_>, section: Section) -> RawPolicy {
        let uids = self.list(table, section, "uids", value::uids);
        RawPolicy {
            gpu: self.value(table, section, "gpu", value::part),
            terms: self.terms(table, section),
            uids: uids.map(|At { value, place }| At { value: value.into_iter().map(|at| at.value).collect(), place }),
            mode: self.value(table, section, "mode", value::mode),
            strict: self.value(table, section, "strict", value::strict),
            on_error: self.value(table, section, "on_error", value::on_error),
            on_loss: self.value(table, section, "on_loss", value::on_loss),
            group: self.value(table, section, "group", value::group),
            labels: self.labels(table, section),
        }
    }

    fn terms(&mut self, table: &DeTable<'_>, section: Section) -> RawTerms {
        RawTerms {
            memory_limit: self.value(table, section, "memory_limit", value::amount),
            sm_limit: self.value(table, section, "sm_limit", value::ceiling),
            sm_request: self.value(table, section, "sm_request", value::floor),
            weight: self.value(table, section, "weight", value::weight),
            class: self.value(table, section, "class", value::class),
            quantum: self.value(table, section, "quantum", value::quantum),
        }
    }

    /// Reads an optional single value.
    fn value<T>(
        &mut self,
        table: &DeTable<'_>,
        section: Section,
        key: &'static str,
        reading: Reading<T>,
    ) -> Option<At<T>> {
        debug_assert!(section.has(key), "{key} is not in the table of keys");
        self.take(table.get(key)?, section.name(), key, reading)
    }

    /// Reads a value that must be present.
    fn needed<T>(
        &mut self,
        table: &DeTable<'_>,
        place: Place,
        section: Section,
        key: &'static str,
        reading: Reading<T>,
    ) -> Option<At<T>> {
        if table.get(key).is_none() {
            // Take the accepted forms from the error for a value that is never accepted.
            let accepted = reading(&Written::Other("")).err().map_or_else(String::new, |wrong| wrong.accepted);
            self.problems.key(place, format!("{}.{key}", section.name()), "is missing", accepted);
        }
        self.value(table, section, key, reading)
    }

    fn take<T>(
        &mut self,
        value: &Value<'_>,
        section: &str,
        key: &str,
        reading: impl FnOnce(&Written<'_>) -> Result<T, Wrong>,
    ) -> Option<At<T>> {
        let place = Place::from(value.span());
        match reading(&written(value.get_ref())) {
            Ok(value) => Some(At { value, place }),
            Err(wrong) => {
                self.problems.value(place, format!("{section}.{key}"), wrong.what, wrong.accepted);
                None
            }
        }
    }

    /// Reads a list of at least one value.
    fn list<T>(
        &mut self,
        table: &DeTable<'_>,
        section: Section,
        key: &'static str,
        reading: Reading<T>,
    ) -> Option<At<Vec<At<T>>>> {
        debug_assert!(section.has(key), "{key} is not in the table of keys");
        let value = table.get(key)?;
        let place = Place::from(value.span());
        let accepted = || reading(&Written::Other("")).err().map_or_else(String::new, |wrong| wrong.accepted);
        let Some(array) = value.get_ref().as_array() else {
            let accepted = format!("a list: [...] of {}", accepted());
            self.problems.value(place, format!("{}.{key}", section.name()), "is not a list", accepted);
            return None;
        };
        if array.is_empty() {
            let accepted = format!("a list of at least one: {}", accepted());
            self.problems.value(place, format!("{}.{key}", section.name()), "is empty", accepted);
            return None;
        }
        let all = array.iter().map(|value| self.take(value, section.name(), key, reading)).collect::<Vec<_>>();
        // A list with a wrong part is rejected as a whole: half of it would mean something else.
        let all = all.into_iter().collect::<Option<Vec<_>>>()?;
        Some(At { value: all, place })
    }

    /// Reads a table `[key]` of the file.
    fn table<'a, 'v>(
        &mut self,
        table: &'a DeTable<'v>,
        section: Section,
        key: &str,
    ) -> Option<(&'a DeTable<'v>, Place)> {
        debug_assert!(section.has(key), "{key} is not in the table of keys");
        let value = table.get(key)?;
        let place = Place::from(value.span());
        let inner = value.get_ref().as_table();
        if inner.is_none() {
            self.problems.value(place, key, "is not a table", format!("[{key}]"));
        }
        inner.map(|inner| (inner, place))
    }

    /// Reads a list of tables `[[key]]` of the file.
    fn tables<'a, 'v>(&mut self, table: &'a DeTable<'v>, section: Section, key: &str) -> Vec<(&'a DeTable<'v>, Place)> {
        debug_assert!(section.has(key), "{key} is not in the table of keys");
        let Some(value) = table.get(key) else { return Vec::new() };
        let name = if section == Section::File { key.to_owned() } else { format!("{}.{key}", section.name()) };
        let accepted = format!("[[{name}]], once for each");
        let Some(array) = value.get_ref().as_array() else {
            self.problems.value(value.span().into(), name, "is not a list of tables", accepted);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for value in array.iter() {
            match value.get_ref().as_table() {
                Some(table) => tables.push((table, Place::from(value.span()))),
                None => self.problems.value(value.span().into(), name.clone(), "is not a table", accepted.clone()),
            }
        }
        tables
    }

    fn unknown(&mut self, table: &DeTable<'_>, section: Section) {
        self.unknown_but(table, section.name(), || section.keys().map(|key| key.name), |_| false);
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
            let meant = if self.problems.is_full() { None } else { nearest(key.get_ref(), known()) };
            let what = match meant {
                Some(meant) => format!("is not a key (did you mean {meant}?)"),
                None => "is not a key".to_owned(),
            };
            let name = if section == Section::File.name() { shown(key) } else { format!("{section}.{}", shown(key)) };
            self.problems.key(key.span().into(), name, what, known().collect::<Vec<_>>().join(", "));
        }
    }
}

fn shown(key: &Spanned<std::borrow::Cow<'_, str>>) -> String {
    super::problem::shown(key.get_ref())
}
