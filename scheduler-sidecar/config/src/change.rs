//! A change of a tenant's terms while its members run: the text that an administrator wrote, and its parsed form.
//!
//! Values are written as in the file and parsed by [`crate::value`]. `vgpu set` parses them before it asks, the
//! daemon parses them again, so both refuse a value in the same words. [`crate::live`] checks whether everything fits
//! afterwards.

use serde::{Deserialize, Serialize};
use vgpu_core::limits::Mode;
use vgpu_core::time::arbiter::Class;
use vgpu_core::units::share::Share;

use crate::raw::Amount;
use crate::value::{self, WrittenValue, WrongValue};

/// The requested changes as written. A missing key stays unchanged. An unknown key is an error, so that no change is
/// applied in part.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenChange {
    /// A size, a percentage of the device, or `unlimited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<String>,
    /// Ceiling (most device time): 1 to 100 percent, or `unlimited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_limit: Option<String>,
    /// Floor (guaranteed device time): 1 to 100 percent, or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_request: Option<String>,
    /// Weight for sharing the time that guaranteed shares leave: 1 to 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<String>,
    /// Priority class: `latency`, `normal` or `batch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Lease length: a duration, or `default` for that of the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantum: Option<String>,
    /// `enforce` or `observe`; applies to the tenant on all its devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// `true` or `false`; applies to the tenant on all its devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<String>,
}

/// The requested changes, parsed. `None` leaves a value unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TermsChange {
    /// New memory limit.
    pub memory: Option<Amount>,
    /// New ceiling (most device time); the inner `None` removes it.
    pub ceiling: Option<Option<Share>>,
    /// New floor (guaranteed share of time); the inner `None` removes it.
    pub floor: Option<Option<Share>>,
    /// New weight for sharing the time that guaranteed shares (floors) leave.
    pub weight: Option<u32>,
    /// New priority class.
    pub class: Option<Class>,
    /// New lease length in ns; the inner `None` restores the default of the class.
    pub quantum: Option<Option<u64>>,
    /// New mode: limits are enforced, or use is only measured.
    pub mode: Option<Mode>,
    /// True to refuse bypasses of the library.
    pub strict: Option<bool>,
}

impl WrittenChange {
    /// Parses all values.
    ///
    /// # Errors
    /// Names the first value that is not accepted, and the accepted forms. `key` maps a key to its name where it was
    /// written.
    pub fn read(&self, key: impl Fn(&str) -> String) -> Result<TermsChange, String> {
        let one = |name: &str, text: &Option<String>| text.as_ref().map(|text| (key(name), text.clone()));
        Ok(TermsChange {
            memory: read(one("memory_limit", &self.memory_limit), |text| {
                value::read_amount(&WrittenValue::Text(text))
            })?,
            ceiling: read(one("sm_limit", &self.sm_limit), |text| value::read_ceiling(&WrittenValue::Text(text)))?,
            floor: read(one("sm_request", &self.sm_request), |text| value::read_floor(&WrittenValue::Text(text)))?,
            weight: read(one("weight", &self.weight), |text| {
                value::read_weight(&WrittenValue::Number(text.to_owned()))
            })?,
            class: read(one("class", &self.class), |text| value::read_class(&WrittenValue::Text(text)))?,
            quantum: read(one("quantum", &self.quantum), parse_quantum)?,
            mode: read(one("mode", &self.mode), |text| value::read_mode(&WrittenValue::Text(text)))?,
            strict: read(one("strict", &self.strict), value::strict_text)?,
        })
    }

    /// Returns the change as one would write it, for the record: `sm_limit=30 weight=2`, and the device if there is
    /// one.
    #[must_use]
    pub fn to_command_words(&self, device: Option<&str>) -> String {
        let all = [
            ("memory_limit", &self.memory_limit),
            ("sm_limit", &self.sm_limit),
            ("sm_request", &self.sm_request),
            ("weight", &self.weight),
            ("class", &self.class),
            ("quantum", &self.quantum),
            ("mode", &self.mode),
            ("strict", &self.strict),
        ];
        let words = all.into_iter().filter_map(|(name, text)| Some(format!("{name}={}", text.as_ref()?)));
        let on = device.map(|device| format!("on device {device}"));
        words.chain(on).collect::<Vec<_>>().join(" ")
    }

    /// Returns the change without the keys that `later` sets.
    #[must_use]
    pub fn without_keys_of(&self, later: &Self) -> Self {
        let keep = |own: &Option<String>, later: &Option<String>| own.clone().filter(|_| later.is_none());
        Self {
            memory_limit: keep(&self.memory_limit, &later.memory_limit),
            sm_limit: keep(&self.sm_limit, &later.sm_limit),
            sm_request: keep(&self.sm_request, &later.sm_request),
            weight: keep(&self.weight, &later.weight),
            class: keep(&self.class, &later.class),
            quantum: keep(&self.quantum, &later.quantum),
            mode: keep(&self.mode, &later.mode),
            strict: keep(&self.strict, &later.strict),
        }
    }

    /// Returns true if nothing is to change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn parse_quantum(text: &str) -> Result<Option<u64>, WrongValue> {
    if text == "default" {
        return Ok(None);
    }
    value::read_quantum(&WrittenValue::Text(text)).map(Some).map_err(|why| WrongValue {
        what: why.what,
        accepted: format!("{}, or \"default\" for that of its class", why.accepted),
    })
}

fn read<T>(
    word: Option<(String, String)>,
    reading: impl FnOnce(&str) -> Result<T, WrongValue>,
) -> Result<Option<T>, String> {
    let Some((key, text)) = word else { return Ok(None) };
    let WrongValue { what, accepted } = match reading(&text) {
        Ok(value) => return Ok(Some(value)),
        Err(why) => why,
    };
    Err(format!("{key} {:?} {what}; accepted: {accepted}", crate::problem::escape_value(&text)))
}

#[cfg(test)]
mod tests {
    use vgpu_core::units::bytes::{Bytes, Size};

    use super::*;

    fn read(words: &[(&str, &str)]) -> Result<TermsChange, String> {
        let object: serde_json::Map<_, _> =
            words.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
        let words: WrittenChange = serde_json::from_value(object.into()).map_err(|why| why.to_string())?;
        words.read(str::to_owned)
    }

    #[test]
    fn each_key_is_read_as_in_the_file_and_what_is_not_written_stays() {
        assert_eq!(read(&[]), Ok(TermsChange::default()));
        let change = read(&[
            ("memory_limit", "1.5GiB"),
            ("sm_limit", "unlimited"),
            ("sm_request", "12.5"),
            ("weight", "7"),
            ("class", "latency"),
            ("quantum", "500us"),
            ("mode", "observe"),
            ("strict", "true"),
        ]);
        let expected = TermsChange {
            memory: Some(Amount::Size(Size::Bytes(Bytes(3 << 29)))),
            ceiling: Some(None),
            floor: Some(Share::from_permille(125)),
            weight: Some(7),
            class: Some(Class::Latency),
            quantum: Some(Some(500_000)),
            mode: Some(Mode::Observe),
            strict: Some(true),
        };
        assert_eq!(change, Ok(expected));
        let none = read(&[("sm_request", "none"), ("quantum", "default")]).unwrap();
        assert_eq!((none.floor, none.quantum), (Some(None), Some(None)));
    }

    #[test]
    fn a_value_that_is_not_accepted_is_named_with_what_is() {
        for (key, value, what) in [
            ("memory_limit", "lots", "is not a size"),
            ("memory_limit", "0", "is zero"),
            ("sm_limit", "101", "is more than 100%"),
            ("sm_limit", "none", "is not a percentage"),
            ("sm_request", "unlimited", "is not a floor"),
            ("weight", "0", "is out of range"),
            ("weight", "x", "is not such a number"),
            ("class", "latncy", "did you mean \"latency\"?"),
            ("quantum", "1h", "is not a duration"),
            ("quantum", "1s", "is out of range"),
            ("mode", "off", "is not for a tenant of the daemon"),
            ("mode", "obsrve", "did you mean \"observe\"?"),
            ("strict", "1", "is not a boolean"),
        ] {
            let words = read(&[(key, value)]).unwrap_err();
            assert!(words.starts_with(&format!("{key} {value:?} ")) && words.contains(what), "{words}");
            assert!(words.contains("accepted: "), "{words}");
        }
        assert!(read(&[("memroy_limit", "1GiB")]).unwrap_err().contains("memroy_limit"), "nothing is done by half");
    }
}
