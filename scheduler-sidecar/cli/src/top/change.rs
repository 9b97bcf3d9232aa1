//! Parses the text typed after `s`, like `sm=40 memory=6GiB`, into the change that `vgpu set` would ask for.

use vgpu_config::change::WrittenChange;
use vgpu_config::{problem, suggest};

/// The keys as typed, with their other names.
const CHANGE_KEYS: [(&str, &[&str]); 8] = [
    ("memory", &["memory_limit"]),
    ("sm", &["sm_limit", "ceiling", "ceil"]),
    ("request", &["sm_request", "floor"]),
    ("weight", &[]),
    ("class", &[]),
    ("quantum", &[]),
    ("mode", &[]),
    ("strict", &[]),
];

/// Parses the typed text; values are read as by `vgpu set`.
///
/// # Errors
/// A message: the part that is not accepted, and the accepted forms.
pub fn read(text: &str) -> Result<WrittenChange, String> {
    let accepted = || CHANGE_KEYS.map(|(key, _)| key).join(", ");
    let mut words = WrittenChange::default();
    for word in text.split([' ', '\t', ',']).filter(|word| !word.is_empty()) {
        let Some((key, value)) = word.split_once('=') else {
            let word = problem::escape_value(word);
            return Err(format!("{word:?} is no key=value; accepted: {} like sm=40 memory=6GiB", accepted()));
        };
        let plain = key.trim_start_matches('-').replace('-', "_").to_lowercase();
        let known = CHANGE_KEYS.iter().find(|(name, others)| *name == plain || others.contains(&&*plain));
        let Some((name, _)) = known else {
            let meant = suggest::nearest_word(&plain, CHANGE_KEYS.map(|(name, _)| name));
            let meant = meant.map_or(String::new(), |meant| format!(" (did you mean {meant:?}?)"));
            return Err(format!("there is no key {:?}{meant}; accepted: {}", problem::escape_value(key), accepted()));
        };
        let place = match *name {
            "memory" => &mut words.memory_limit,
            "sm" => &mut words.sm_limit,
            "request" => &mut words.sm_request,
            "weight" => &mut words.weight,
            "class" => &mut words.class,
            "quantum" => &mut words.quantum,
            "mode" => &mut words.mode,
            _ => &mut words.strict,
        };
        if place.replace(value.to_owned()).is_some() {
            return Err(format!("{name} is there twice; give it once"));
        }
    }
    if words.is_empty() {
        return Err(format!("nothing to set; accepted: one or more of {} like sm=40 memory=6GiB", accepted()));
    }
    words.read(|key| key.trim_start_matches("sm_").replace("memory_limit", "memory").replace("limit", "sm"))?;
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_becomes_what_vgpu_set_asks_for() {
        let words = read("sm=40 memory=6GiB,floor=10  --class=batch").unwrap();
        assert_eq!(words.to_command_words(None), "memory_limit=6GiB sm_limit=40 sm_request=10 class=batch");
        assert_eq!(read("memory_limit=unlimited mode=observe").unwrap().mode.as_deref(), Some("observe"));
    }

    #[test]
    fn what_is_not_accepted_is_named_with_what_is() {
        for (text, said) in [
            ("", "nothing to set; accepted: one or more of memory, sm"),
            ("sm", "\"sm\" is no key=value; accepted: memory, sm"),
            ("wieght=3", "there is no key \"wieght\" (did you mean \"weight\"?); accepted: memory"),
            ("sm=40 sm=50", "sm is there twice"),
            ("sm=101", "sm \"101\" is more than 100%"),
            ("memory=lots", "memory \"lots\" is not a size; accepted: "),
            ("request=x", "request \"x\" is not"),
        ] {
            let words = read(text).unwrap_err();
            assert!(words.contains(said), "{text:?}: {words}");
        }
    }
}
