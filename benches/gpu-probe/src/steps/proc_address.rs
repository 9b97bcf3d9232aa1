//! Answers of cuGetProcAddress for every name x version x flag, as variants of exported functions.
//!
//! The question: is every answer the address of an export? Then substitution by returned address is complete on this
//! driver. Other answers are listed one by one. Needs no device.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;

use serde_json::{Map, Value, json};

use super::versions::{self, ASKED_VERSIONS};
use super::{StepOutput, elf};
use crate::args::Options;
use crate::driver::{ProbedDriver, file_at_address};

/// Base names of the interface that are asked in addition to the driver's own exports.
const NAMES: &str = include_str!("../names.txt");
/// Flags: default, legacy default stream, per-thread default stream.
const FLAGS: &[u64] = &[0, 1, 2];
/// Number of single answers that are listed; beyond it only their count is given.
const MAX_ANSWERS_LISTED: usize = 200;

/// Answer of one lookup: result code, symbol status, address.
type AddressAnswer = (i32, i32, usize);

pub fn run(_: &Options, sink: &mut StepOutput) -> Result<(), String> {
    let driver = ProbedDriver::load()?;
    let (file, _) = driver.library_file()?;
    sink.put_value("file", json!(file));
    let exports =
        std::fs::read(&file).map_err(|e| format!("{file}: {e}")).and_then(|bytes| elf::exported_functions(&bytes));
    let exports = match exports {
        Ok(exports) => exports,
        Err(error) => {
            // Without the file the list of names still finds most exports.
            sink.put_failure(format_args!("exports: {error}"));
            listed_names().map(str::to_owned).collect()
        }
    };
    let mut by_address: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for name in &exports {
        if let Some(address) = CString::new(name.as_str()).ok().and_then(|name| driver.export_address(&name)) {
            by_address.entry(address).or_default().push(name.clone());
        }
    }
    sink.put_value("exports", json!({ "functions": exports.len(), "addresses": by_address.len() }));
    let shared: Vec<&Vec<String>> = by_address.values().filter(|names| names.len() > 1).collect();
    sink.put_value("exports_that_share_an_address", json!(shared));
    // A driver may answer before cuInit too; the document states whether it was initialised.
    sink.put_value("initialised", json!(crate::gpu::init(&driver).is_ok()));

    let mut names: BTreeSet<String> = listed_names().map(str::to_owned).collect();
    for name in &exports {
        names.insert(name.clone());
        names.insert(versions::base_name(name).to_owned());
    }
    let mut survey = AddressSurvey { by_address, ..AddressSurvey::default() };
    for name in &names {
        survey.ask_all(&driver, name);
    }
    survey.report_answers(sink, &exports);
    Ok(())
}

fn listed_names() -> impl Iterator<Item = &'static str> {
    NAMES.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Lookups and their answers so far.
#[derive(Default)]
struct AddressSurvey {
    by_address: BTreeMap<usize, Vec<String>>,
    asked: u64,
    found: u64,
    /// Number of answers without an address, by (code, status).
    empty: BTreeMap<String, u64>,
    answers: Map<String, Value>,
    not_exports: Vec<Value>,
    not_exports_count: u64,
    old_differs: Vec<Value>,
    old_differs_count: u64,
    reached: BTreeSet<String>,
}

impl AddressSurvey {
    /// Asks for one name at every version and flag.
    fn ask_all(&mut self, driver: &ProbedDriver, name: &str) {
        let Ok(text) = CString::new(name) else { return };
        let mut by_flag = Vec::new();
        for &flags in FLAGS {
            let mut runs = Vec::new();
            for &version in ASKED_VERSIONS {
                let answer = answer_v2(driver, &text, version, flags);
                self.compare_old(driver, &text, version, flags, answer);
                let word = self.answer_word(name, version, flags, answer);
                versions::push(&mut runs, version, word);
            }
            by_flag.push(versions::runs_text(&runs));
        }
        // A name that no version knows gets no line.
        if by_flag.iter().any(|text| text.contains(":cu") || text.contains(":?")) {
            let mut entry = Map::from_iter([("0".to_owned(), json!(by_flag[0]))]);
            for (flag, text) in by_flag.iter().enumerate().skip(1) {
                if *text != by_flag[0] {
                    entry.insert(flag.to_string(), json!(text));
                }
            }
            self.answers.insert(name.to_owned(), Value::Object(entry));
        }
    }

    /// Text of an answer: the name of an export, `?` for an address that is no export, or `-code/status`.
    fn answer_word(&mut self, name: &str, version: i32, flags: u64, (code, status, address): AddressAnswer) -> String {
        self.asked += 1;
        if code != 0 || address == 0 {
            let word = format!("-{code}/{status}");
            *self.empty.entry(word.clone()).or_default() += 1;
            return word;
        }
        self.found += 1;
        if let Some(names) = self.by_address.get(&address) {
            self.reached.extend(names.iter().cloned());
            // Of several exports with this address, the one that resembles the question most.
            let best = names.iter().find(|export| versions::base_name(export) == name).unwrap_or(&names[0]);
            return best.clone();
        }
        self.not_exports_count += 1;
        if self.not_exports.len() < MAX_ANSWERS_LISTED {
            let place =
                file_at_address(address).map(|(file, base)| format!("{file}+{:#x}", address.wrapping_sub(base)));
            self.not_exports.push(json!({ "name": name, "version": version, "flags": flags, "place": place }));
        }
        "?".to_owned()
    }

    /// The old form of the call has no status, but should return the same address.
    fn compare_old(&mut self, driver: &ProbedDriver, name: &CString, version: i32, flags: u64, new: AddressAnswer) {
        let mut address = std::ptr::null_mut();
        // SAFETY: a terminated name and a pointer to a local address.
        let code = unsafe { driver.proc_address(name.as_ptr(), &raw mut address, version, flags) }.value;
        let found = if code == 0 { address.addr() } else { 0 };
        let wanted = if new.0 == 0 { new.2 } else { 0 };
        if found != wanted {
            self.old_differs_count += 1;
            if self.old_differs.len() < MAX_ANSWERS_LISTED {
                self.old_differs.push(json!({
                    "name": name.to_string_lossy(), "version": version, "flags": flags, "old_code": code,
                    "old_found": found != 0, "new_found": wanted != 0,
                }));
            }
        }
    }

    fn report_answers(self, sink: &mut StepOutput, exports: &[String]) {
        let unreached: Vec<&String> = exports.iter().filter(|name| !self.reached.contains(*name)).collect();
        sink.put_value("asked", json!(self.asked));
        sink.put_value("found", json!(self.found));
        sink.put_value("without_address", json!(self.empty));
        sink.put_value("not_exports_count", json!(self.not_exports_count));
        sink.put_value("not_exports", json!(self.not_exports));
        sink.put_value("old_call_differs_count", json!(self.old_differs_count));
        sink.put_value("old_call_differs", json!(self.old_differs));
        sink.put_value("exports_never_answered", json!(unreached));
        sink.put_value(
            "versions_asked",
            json!(ASKED_VERSIONS.iter().map(i32::to_string).collect::<Vec<_>>().join(" ")),
        );
        sink.put_value("answers", Value::Object(self.answers));
        if self.found == 0 {
            sink.put_failure("not one name was found");
        }
    }
}

fn answer_v2(driver: &ProbedDriver, name: &CString, version: i32, flags: u64) -> AddressAnswer {
    let mut address = std::ptr::null_mut();
    let mut status = -1;
    // SAFETY: a terminated name and pointers to a local address and a local number.
    let code = unsafe { driver.proc_address_v2(name.as_ptr(), &raw mut address, version, flags, &raw mut status) };
    (code.value, status, address.addr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_holds_base_names_only() {
        assert!(listed_names().count() > 400);
        for name in listed_names() {
            assert!(name.starts_with("cu"), "{name}");
            assert_eq!(versions::base_name(name), name);
        }
    }

    #[test]
    fn an_address_that_is_no_export_is_listed_and_marked() {
        let table = BTreeMap::from([(16, vec!["cuA_v2".to_owned(), "cuA".to_owned()])]);
        let mut survey = AddressSurvey { by_address: table, ..AddressSurvey::default() };
        assert_eq!(survey.answer_word("cuA", 2000, 0, (0, 0, 16)), "cuA_v2");
        assert_eq!(survey.answer_word("cuB", 2000, 0, (0, 0, 32)), "?");
        assert_eq!(survey.answer_word("cuB", 2000, 0, (0, 1, 0)), "-0/1");
        assert_eq!(survey.answer_word("cuB", 2000, 0, (500, -1, 0)), "-500/-1");
        assert_eq!((survey.asked, survey.found, survey.not_exports_count), (4, 2, 1));
        assert_eq!(survey.not_exports[0]["name"], "cuB");
        assert!(survey.reached.contains("cuA"));
    }
}
