//! Turns log lines that have a kind into events.

use std::fmt::{self, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::EventJournal;
use vgpu_control::event::{Administrator, DaemonEvent};

/// The tracing layer that finds log lines with a kind.
pub struct EventLayer(pub EventJournal);

impl<S: Subscriber> Layer<S> for EventLayer {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.fields().all(|field| field.name() != "kind") {
            return;
        }
        let mut fields = EventFields::default();
        event.record(&mut fields);
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            _ => "info",
        };
        self.0.add_event(fields.into_event(level));
    }
}

/// A time as text. A clock set to before 1970 gives 1970, the earliest time in this format.
fn stamp(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at.max(UNIX_EPOCH)).to_string()
}

#[derive(Default)]
struct EventFields {
    words: String,
    all: Map<String, Value>,
}

impl EventFields {
    fn into_event(mut self, level: &str) -> DaemonEvent {
        let text = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let number = |value: Value| value.as_u64();
        let small = |value: Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        let (by_uid, by_pid) = (self.all.remove("by_uid"), self.all.remove("by_pid"));
        let by = by_uid.and_then(small).map(|uid| Administrator { uid, pid: by_pid.and_then(small).unwrap_or(0) });
        // Zero suppressed log lines are not worth a field.
        if self.all.get("suppressed").is_some_and(|suppressed| suppressed == 0) {
            self.all.remove("suppressed");
        }
        DaemonEvent {
            seq: 0,
            at: stamp(SystemTime::now()),
            kind: self.all.remove("kind").map(text).unwrap_or_default(),
            level: level.to_owned(),
            tenant: self.all.remove("tenant").map(text),
            device: self.all.remove("device").map(text),
            pid: self.all.remove("pid").and_then(number),
            by,
            words: self.words,
            more: self.all,
        }
    }

    fn put_field(&mut self, field: &Field, value: Value) {
        self.all.insert(field.name().to_owned(), value);
    }
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Writing to a string does not fail.
            let _ = write!(self.words, "{value:?}");
            return;
        }
        let text = format!("{value:?}");
        // A tenant named `7` must not become a number, so the fields that hold names stay text.
        if ["tenant", "device", "why", "what"].contains(&field.name()) {
            return self.put_field(field, text.into());
        }
        // A value in an `Option` arrives as the text `Some(...)`.
        let text = text.strip_prefix("Some(").and_then(|rest| rest.strip_suffix(')')).unwrap_or(&text);
        if text != "None" {
            let value = text.parse::<u64>().map_or_else(|_| text.trim_matches('"').into(), Value::from);
            self.put_field(field, value);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.words.push_str(value);
        } else {
            self.put_field(field, value.into());
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put_field(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put_field(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put_field(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put_field(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use tracing::{info, warn};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn a_clock_before_1970_shows_1970() {
        let before = UNIX_EPOCH - std::time::Duration::from_secs(5);
        assert_eq!(stamp(before), "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn a_line_with_a_kind_is_an_event_with_all_it_says_and_one_without_is_none() {
        let journal = EventJournal::new();
        let subscriber = tracing_subscriber::registry().with(EventLayer(journal.clone()));
        let why = "a \"quoted\" reason";
        tracing::subscriber::with_default(subscriber, || {
            info!(tenant = "a", "nothing");
            let (pid, none): (Option<u32>, Option<u32>) = (Some(12), None);
            warn!(kind = "member.refused", tenant = %"a", pid, none, uid = 5_u32, %why, suppressed = 0_u32, "turned away");
            info!(kind = "tenant.paused", by_uid = 0_u32, by_pid = 7_u32, tenant = "b", "{}", "held");
        });
        let all = journal.from(1, 9);
        assert_eq!(all.len(), 2);
        let first = &all[0];
        assert_eq!((first.kind.as_str(), first.level.as_str()), ("member.refused", "warning"));
        assert_eq!((first.tenant.as_deref(), first.pid, first.words.as_str()), (Some("a"), Some(12), "turned away"));
        assert_eq!(first.more["uid"], 5);
        assert_eq!(first.more["why"], why);
        assert_eq!(first.more.len(), 2, "{:?}", first.more);
        assert!(first.at.ends_with('Z') && first.at.len() == 24, "{}", first.at);
        let second = &all[1];
        assert_eq!((second.by, second.words.as_str()), (Some(Administrator { uid: 0, pid: 7 }), "held"));
    }
}
