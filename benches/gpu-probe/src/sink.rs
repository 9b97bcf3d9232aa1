//! The lines in which a step's process reports its results to the probe, and their parser.
//!
//! One JSON object per line: `{"put": "a.b", "value": ...}` as soon as a value is known, `{"error": "..."}` for a part
//! that failed, `{"end": true}` as the last line. So the values of a step that hangs or crashes later are kept.

use std::fmt::Display;
use std::io::Write;

use serde_json::{Map, Value, json};

/// Writes the results of a step.
pub struct StepSink<W: Write> {
    out: W,
}

impl<W: Write> StepSink<W> {
    /// A sink that writes lines to `out`.
    pub fn new(out: W) -> Self {
        Self { out }
    }

    /// Reports one value under a dotted key.
    pub fn put_value(&mut self, key: &str, value: Value) {
        self.write_line(&json!({ "put": key, "value": value }));
    }

    /// Reports that a part of the step failed.
    pub fn put_failure(&mut self, what: impl Display) {
        self.write_line(&json!({ "error": what.to_string() }));
    }

    /// Runs one part of a step. Stores its value under `key` or its failure among the errors; the step continues either
    /// way.
    pub fn run_part(&mut self, key: &str, part: impl FnOnce() -> Result<Value, String>) -> bool {
        match part() {
            Ok(value) => {
                self.put_value(key, value);
                true
            }
            Err(error) => {
                self.put_failure(format_args!("{key}: {error}"));
                false
            }
        }
    }

    /// Reports that the step is complete.
    pub fn end_step(&mut self) {
        self.write_line(&json!({ "end": true }));
    }

    fn write_line(&mut self, value: &Value) {
        // A write error means that the probe gave this step up, and there is no one to report it to.
        let _ = writeln!(self.out, "{value}").and_then(|()| self.out.flush());
    }
}

/// Collected lines of one step.
#[derive(Debug, Default, PartialEq)]
pub struct GatheredStep {
    /// The values, nested by their dotted keys.
    pub data: Map<String, Value>,
    /// Messages of the parts that failed.
    pub errors: Vec<String>,
    /// True if the last line has arrived.
    pub ended: bool,
}

impl GatheredStep {
    /// Parses one line of a step's output and adds its value.
    pub fn take_line(&mut self, line: &str) {
        let Ok(Value::Object(object)) = serde_json::from_str::<Value>(line) else {
            if !line.trim().is_empty() {
                self.errors.push(format!("not a line of the probe: {}", line.chars().take(200).collect::<String>()));
            }
            return;
        };
        if let (Some(Value::String(key)), Some(value)) = (object.get("put"), object.get("value")) {
            insert(&mut self.data, key, value.clone());
        } else if let Some(Value::String(error)) = object.get("error") {
            self.errors.push(error.clone());
        } else if object.get("end") == Some(&Value::Bool(true)) {
            self.ended = true;
        } else {
            self.errors.push(format!("a line of an unknown kind: {}", line.chars().take(200).collect::<String>()));
        }
    }
}

/// Stores `value` under a dotted key. A plain value on the path is replaced by an object.
fn insert(map: &mut Map<String, Value>, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            map.insert(key.to_owned(), value);
        }
        Some((head, tail)) => {
            let entry = map.entry(head).or_insert_with(|| Value::Object(Map::new()));
            if !entry.is_object() {
                *entry = Value::Object(Map::new());
            }
            if let Value::Object(inner) = entry {
                insert(inner, tail, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(text: &[u8]) -> GatheredStep {
        let mut gathered = GatheredStep::default();
        for line in String::from_utf8(text.to_vec()).unwrap().lines() {
            gathered.take_line(line);
        }
        gathered
    }

    #[test]
    fn what_is_put_comes_back_nested() {
        let mut bytes = Vec::new();
        let mut sink = StepSink::new(&mut bytes);
        sink.put_value("a.b", json!(1));
        sink.put_value("a.c", json!([2, 3]));
        sink.put_value("d", json!("x"));
        sink.end_step();
        let got = gather(&bytes);
        assert_eq!(Value::Object(got.data), json!({"a": {"b": 1, "c": [2, 3]}, "d": "x"}));
        assert!(got.ended);
        assert!(got.errors.is_empty());
    }

    #[test]
    fn a_failed_part_is_an_error_with_its_key_and_the_next_goes_on() {
        let mut bytes = Vec::new();
        let mut sink = StepSink::new(&mut bytes);
        assert!(!sink.run_part("broken", || Err("no".into())));
        assert!(sink.run_part("whole", || Ok(json!(5))));
        let got = gather(&bytes);
        assert_eq!(got.errors, ["broken: no"]);
        assert_eq!(got.data["whole"], json!(5));
        assert!(!got.ended, "the end was never written");
    }

    #[test]
    fn a_stray_line_is_reported_and_spoils_nothing() {
        let got = gather(b"{\"put\":\"a\",\"value\":1}\nhello from a library\n{\"odd\":1}\n");
        assert_eq!(got.data["a"], json!(1));
        assert_eq!(got.errors.len(), 2);
    }
}
