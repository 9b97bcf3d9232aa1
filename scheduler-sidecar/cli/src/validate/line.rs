//! Parses the durations of iterations in a program's output, by a pattern or as JSON.

use serde_json::Value;

/// The source of an iteration's duration.
#[derive(Debug, Clone, PartialEq)]
pub enum DurationMeasure {
    /// The wall time of the whole run counts as one iteration.
    Run,
    /// Lines with a JSON object that has `seconds` or `milliseconds`.
    Json,
    /// Lines that contain this pattern.
    Pattern(LinePattern),
}

impl DurationMeasure {
    /// Describes in words where the duration of an iteration comes from.
    #[must_use]
    pub fn to_words(&self) -> String {
        match self {
            Self::Run => "the wall time of each run, from its start to its end".into(),
            Self::Json => "the programs' own times of each iteration, as lines of JSON".into(),
            Self::Pattern(pattern) => {
                format!("the programs' own times of each iteration, by the pattern {:?}", pattern.text)
            }
        }
    }

    /// Returns the seconds of the iteration that a line reports; `None` if it reports none.
    #[must_use]
    pub fn duration_of(&self, line: &str) -> Option<f64> {
        let seconds = match self {
            Self::Run => None,
            Self::Json => {
                let line = line.trim();
                let object = line.starts_with('{').then(|| serde_json::from_str::<Value>(line).ok()).flatten()?;
                let milliseconds = || Some(object.get("milliseconds")?.as_f64()? / 1000.0);
                object.get("seconds").and_then(Value::as_f64).or_else(milliseconds)
            }
            Self::Pattern(pattern) => pattern.duration_of(line),
        };
        seconds.filter(|seconds| seconds.is_finite() && *seconds > 0.0)
    }
}

/// A text with one number in it: `step took {ms} ms`.
#[derive(Debug, Clone, PartialEq)]
pub struct LinePattern {
    text: String,
    before: String,
    after: String,
    unit: TimeUnit,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum TimeUnit {
    Seconds(f64),
    PerSecond,
}

/// Accepted forms of a [`LinePattern`], in words.
pub const PATTERN_FORMS: &str = "text with one {s}, {ms} or {us} where the number of seconds, milliseconds or microseconds stands, or {/s} for a number a second";

impl LinePattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// [`PATTERN_FORMS`].
    pub fn read(text: &str) -> Result<Self, String> {
        let units = [
            ("{s}", TimeUnit::Seconds(1.0)),
            ("{ms}", TimeUnit::Seconds(1e-3)),
            ("{us}", TimeUnit::Seconds(1e-6)),
            ("{/s}", TimeUnit::PerSecond),
        ];
        let found: Vec<_> = units.iter().filter(|(mark, _)| text.contains(mark)).collect();
        let [(mark, unit)] = found[..] else { return Err(PATTERN_FORMS.to_owned()) };
        let (before, after) = text.split_once(mark).unwrap_or((text, ""));
        if after.contains(mark) {
            return Err(PATTERN_FORMS.to_owned());
        }
        Ok(Self { text: text.to_owned(), before: before.into(), after: after.into(), unit: *unit })
    }

    fn duration_of(&self, line: &str) -> Option<f64> {
        let mut rest = line;
        loop {
            let (_, behind) = rest.split_once(self.before.as_str())?;
            if let Some(number) = self.leading_number(behind) {
                return Some(match self.unit {
                    TimeUnit::Seconds(unit) => number * unit,
                    TimeUnit::PerSecond => 1.0 / number,
                });
            }
            // The text before the number may also occur earlier, without a number.
            let mut letters = rest.chars();
            letters.next()?;
            rest = letters.as_str();
        }
    }

    /// Parses the number at the start of `text`, if the text that must follow it does.
    fn leading_number(&self, text: &str) -> Option<f64> {
        let text = text.trim_start();
        let end = text.find(|letter: char| !letter.is_ascii_digit() && !".+-eE".contains(letter)).unwrap_or(text.len());
        // `1.5e` of `1.5extra` is 1.5.
        let number = (1..=end).rev().find_map(|end| Some((text.get(..end)?.parse::<f64>().ok()?, end)));
        let (number, end) = number?;
        let behind = text.get(end..)?;
        let follows =
            behind.starts_with(self.after.as_str()) || behind.trim_start().starts_with(self.after.trim_start());
        follows.then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_where_the_pattern_has_it_and_nowhere_else() {
        let of =
            |pattern: &str, line: &str| DurationMeasure::Pattern(LinePattern::read(pattern).unwrap()).duration_of(line);
        assert_eq!(of("step took {ms} ms", "12:00 step took 12.5 ms, loss 3"), Some(0.0125));
        assert_eq!(of("took {s}s", "it took long; took 2s"), Some(2.0));
        assert_eq!(of("{/s} tokens/s", "50 tokens/s"), Some(0.02));
        assert_eq!(of("time={us}", "time=1e3"), Some(1e3 * 1e-6));
        for (pattern, line) in
            [("took {ms} ms", "took 5 s"), ("took {ms} ms", "took  ms"), ("{/s} it/s", "0 it/s"), ("a{s}", "")]
        {
            assert_eq!(of(pattern, line), None, "{pattern} in {line}");
        }
        for wrong in ["took", "{s} {s}", "{s} {ms}", "{}"] {
            assert_eq!(LinePattern::read(wrong), Err(PATTERN_FORMS.into()), "{wrong}");
        }
    }

    #[test]
    fn a_line_of_json_is_an_iteration_if_it_says_how_long() {
        for (line, seconds) in [
            ("{\"seconds\": 0.5, \"loss\": 2}", Some(0.5)),
            (" {\"milliseconds\": 20}", Some(0.02)),
            ("{\"seconds\": -1}", None),
            ("{\"seconds\": \"1\"}", None),
            ("{\"step\": 1}", None),
            ("seconds: 1", None),
            ("{", None),
        ] {
            assert_eq!(DurationMeasure::Json.duration_of(line), seconds, "{line}");
        }
        assert_eq!(DurationMeasure::Run.duration_of("{\"seconds\": 1}"), None);
    }
}
