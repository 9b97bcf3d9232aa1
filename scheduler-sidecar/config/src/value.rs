//! Reads a single value: the TOML types it may have, its syntax, and the error message if it is wrong.
//!
//! Every function here takes a value as written, and fails with [`WrongValue`] if the value is not accepted.

use std::ops::RangeInclusive;

use vgpu_core::limits::Mode;
use vgpu_core::time::arbiter::Class;
use vgpu_core::units::bytes::{Bytes, SIZE_FORMS, Size, parse_size};
use vgpu_core::units::share::{SHARE_FORMS, Share, parse_share};

mod actions;
mod groups;
mod moments;
mod places;
mod usage;

pub use actions::*;
pub use groups::*;
pub use moments::*;
pub use places::*;
pub use usage::*;

use super::raw::{Amount, DeviceId, OnError, OnLoss};

/// A value as written in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WrittenValue<'t> {
    /// A string.
    Text(&'t str),
    /// A decimal number without underscores; otherwise in the notation of the file.
    Number(String),
    /// `true` or `false`.
    Truth(bool),
    /// Any other type, by its name: `a list`.
    Other(&'static str),
}

/// An error: the value is not accepted.
#[derive(Debug, PartialEq, Eq)]
pub struct WrongValue {
    /// The error, as a predicate: `is not a size`.
    pub what: String,
    /// Values that would be accepted, in words.
    pub accepted: String,
}

/// A function that reads one value.
pub type ValueReader<T> = fn(&WrittenValue<'_>) -> Result<T, WrongValue>;

fn wrong_value<T>(what: impl Into<String>, accepted: &str) -> Result<T, WrongValue> {
    Err(WrongValue { what: what.into(), accepted: accepted.to_owned() })
}

/// Message for a truth value where another type is expected.
const TRUTH_DESCRIPTION: &str = "is a boolean";

/// Returns the text of a string or a number.
fn text_of<'a>(written: &'a WrittenValue<'_>, accepted: &str) -> Result<&'a str, WrongValue> {
    match written {
        WrittenValue::Text(text) => Ok(text),
        WrittenValue::Number(number) => Ok(number),
        WrittenValue::Truth(_) => wrong_value(TRUTH_DESCRIPTION, accepted),
        WrittenValue::Other(kind) => wrong_value(format!("is {kind}"), accepted),
    }
}

/// Returns the text of a string.
fn read_string<'t>(written: &WrittenValue<'t>, accepted: &str) -> Result<&'t str, WrongValue> {
    match written {
        WrittenValue::Text(text) => Ok(text),
        WrittenValue::Number(_) => wrong_value("is a number", accepted),
        WrittenValue::Truth(_) => wrong_value(TRUTH_DESCRIPTION, accepted),
        WrittenValue::Other(kind) => wrong_value(format!("is {kind}"), accepted),
    }
}

/// Reads a memory limit: a number of bytes, or a string with a unit, a percentage, or `unlimited`.
pub fn read_amount(written: &WrittenValue<'_>) -> Result<Amount, WrongValue> {
    match parse_size(text_of(written, SIZE_FORMS)?) {
        Ok(size) => Ok(Amount::Size(size)),
        Err(why) => wrong_value(why.to_string(), SIZE_FORMS),
    }
}

const BYTES_FORMS: &str = "bytes or a number with K, M, G, T, KiB..TiB (1024) or KB..TB (1000) like \"80GiB\"";

/// Reads a number of bytes.
pub fn read_bytes(written: &WrittenValue<'_>) -> Result<Bytes, WrongValue> {
    match parse_size(text_of(written, BYTES_FORMS)?) {
        Ok(Size::Bytes(bytes)) => Ok(bytes),
        Ok(_) => wrong_value("is not a number of bytes", BYTES_FORMS),
        Err(why) => wrong_value(why.to_string(), BYTES_FORMS),
    }
}

/// Reads a ceiling on device time; `None` is `unlimited`.
pub fn read_ceiling(written: &WrittenValue<'_>) -> Result<Option<Share>, WrongValue> {
    parse_share(text_of(written, SHARE_FORMS)?).or_else(|why| wrong_value(why.to_string(), SHARE_FORMS))
}

/// Reads a floor (guaranteed share of device time); `None` is `none`.
pub fn read_floor(written: &WrittenValue<'_>) -> Result<Option<Share>, WrongValue> {
    const FORMS: &str = "a percentage of the device's time from 1 to 100 like 30 or 12.5, or \"none\"";
    match text_of(written, FORMS)? {
        "none" => Ok(None),
        text => match parse_share(text) {
            Ok(Some(share)) => Ok(Some(share)),
            Ok(None) => wrong_value("is not a floor", FORMS),
            Err(why) => wrong_value(why.to_string(), FORMS),
        },
    }
}

/// Reads a part of a device, in thousandths.
pub fn read_part(written: &WrittenValue<'_>) -> Result<u32, WrongValue> {
    const FORMS: &str = "a part of a device from 0.01 to 1 with at most three decimals, like 0.25";
    read_number(written, FORMS, 10..=1000)
}

/// Reads the ratio of memory that may be promised, in thousandths.
pub fn read_overcommit(written: &WrittenValue<'_>) -> Result<u32, WrongValue> {
    const FORMS: &str = "a ratio from 1 to 100 with at most three decimals, like 1.5";
    read_number(written, FORMS, 1000..=100_000)
}

/// Reads a decimal number, in thousandths.
fn read_number(written: &WrittenValue<'_>, forms: &str, accepted: RangeInclusive<u32>) -> Result<u32, WrongValue> {
    let WrittenValue::Number(text) = written else {
        let what = match written {
            WrittenValue::Other(kind) => format!("is {kind}"),
            WrittenValue::Truth(_) => TRUTH_DESCRIPTION.into(),
            WrittenValue::Text(_) | WrittenValue::Number(_) => "is a string".into(),
        };
        return wrong_value(what, forms);
    };
    let Some(thousandths) = parse_thousandths(text) else { return wrong_value("is not such a number", forms) };
    match u32::try_from(thousandths) {
        Ok(thousandths) if accepted.contains(&thousandths) => Ok(thousandths),
        _ => wrong_value("is out of range", forms),
    }
}

/// Reads a whole number in a range.
fn read_count(written: &WrittenValue<'_>, accepted: RangeInclusive<u32>, what: &str) -> Result<u32, WrongValue> {
    let forms = format!("{what} from {} to {}", accepted.start(), accepted.end());
    match written {
        WrittenValue::Number(text) => match text.parse::<u32>() {
            Ok(count) if accepted.contains(&count) => Ok(count),
            Ok(_) => wrong_value("is out of range", &forms),
            Err(_) => wrong_value("is not such a number", &forms),
        },
        WrittenValue::Text(_) => wrong_value("is a string", &forms),
        WrittenValue::Truth(_) => wrong_value(TRUTH_DESCRIPTION, &forms),
        WrittenValue::Other(kind) => wrong_value(format!("is {kind}"), &forms),
    }
}

/// Reads a tenant's weight.
pub fn read_weight(written: &WrittenValue<'_>) -> Result<u32, WrongValue> {
    read_count(written, 1..=10_000, "a whole number")
}

/// Reads a number of slots.
pub fn read_replicas(written: &WrittenValue<'_>) -> Result<u32, WrongValue> {
    read_count(written, 1..=100, "a whole number")
}

/// Reads a number of connections.
pub fn read_connections(written: &WrittenValue<'_>) -> Result<u32, WrongValue> {
    read_count(written, 1..=1_000_000, "a whole number")
}

/// Reads a duration, in nanoseconds.
pub fn read_duration(written: &WrittenValue<'_>, accepted: &RangeInclusive<u64>) -> Result<u64, WrongValue> {
    let forms = format!(
        "a duration with a unit (ns, us, ms, s) from {} to {}",
        format_span(*accepted.start()),
        format_span(*accepted.end())
    );
    let text = read_string(written, &forms)?;
    let digits = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let (amount, unit) = text.split_at(digits);
    let unit = match unit.trim_start() {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return wrong_value("is not a duration", &forms),
    };
    let whole =
        parse_thousandths(amount).and_then(|thousandths| thousandths.checked_mul(unit)).filter(|ns| ns % 1000 == 0);
    match whole.map(|ns| ns / 1000) {
        None => wrong_value("is not a duration", &forms),
        Some(ns) if accepted.contains(&ns) => Ok(ns),
        Some(_) => wrong_value("is out of range", &forms),
    }
}

/// Reads the length of a tenant's leases.
pub fn read_quantum(written: &WrittenValue<'_>) -> Result<u64, WrongValue> {
    read_duration(written, &vgpu_core::time::arbiter::QUANTUM_RANGE_NS)
}

/// Formats a duration in the largest unit that divides it.
#[must_use]
pub fn format_span(ns: u64) -> String {
    for (unit, name) in [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")] {
        if ns >= unit && ns.is_multiple_of(unit) {
            return format!("{}{name}", ns / unit);
        }
    }
    if ns == 0 { "0ms".into() } else { format!("{ns}ns") }
}

/// Returns a decimal number times 1000, if the result is whole and fits.
fn parse_thousandths(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 3 || text.ends_with('.') {
        return None;
    }
    let below: u64 = format!("{fraction:0<3}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(below)
}

/// Reads one of the given words.
fn read_word<T: Copy>(written: &WrittenValue<'_>, words: &[(&str, T)]) -> Result<T, WrongValue> {
    let forms = words.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(", ");
    let text = read_string(written, &forms)?;
    match words.iter().find(|(word, _)| *word == text) {
        Some((_, value)) => Ok(*value),
        None => match super::suggest::nearest_word(text, words.iter().map(|(word, _)| *word)) {
            Some(meant) => wrong_value(format!("is not known (did you mean {meant:?}?)"), &forms),
            None => wrong_value("is not known", &forms),
        },
    }
}

/// Reads a priority class.
pub fn read_class(written: &WrittenValue<'_>) -> Result<Class, WrongValue> {
    read_word(written, &[("latency", Class::Latency), ("normal", Class::Normal), ("batch", Class::Batch)])
}

/// Reads the behaviour of a member if a limit cannot be kept.
pub fn on_error(written: &WrittenValue<'_>) -> Result<OnError, WrongValue> {
    read_word(written, &[("closed", OnError::Closed), ("open", OnError::Open)])
}

/// Reads the behaviour of a member if the daemon is gone.
pub fn on_loss(written: &WrittenValue<'_>) -> Result<OnLoss, WrongValue> {
    read_word(written, &[("local", OnLoss::Local), ("open", OnLoss::Open), ("block", OnLoss::Block)])
}

/// Reads whether a tenant's limits are enforced. `off` is refused: without enforcement and measuring, a process needs
/// no daemon.
pub fn read_mode(written: &WrittenValue<'_>) -> Result<Mode, WrongValue> {
    const WORDS: [(&str, Mode); 2] = [("enforce", Mode::Enforce), ("observe", Mode::Observe)];
    match written {
        WrittenValue::Text("off") => wrong_value(
            "is not for a tenant of the daemon",
            "\"enforce\", \"observe\"; to switch vgpu off, start the program without VGPU_SOCKET",
        ),
        _ => read_word(written, &WORDS),
    }
}

/// Reads whether bypasses of the library are refused.
pub fn read_strict(written: &WrittenValue<'_>) -> Result<bool, WrongValue> {
    const FORMS: &str = "true, false";
    match written {
        WrittenValue::Truth(strict) => Ok(*strict),
        WrittenValue::Text(_) => wrong_value("is a string", FORMS),
        WrittenValue::Number(_) => wrong_value("is a number", FORMS),
        WrittenValue::Other(kind) => wrong_value(format!("is {kind}"), FORMS),
    }
}

/// Reads the same from a command line, where every value is text.
pub fn strict_text(text: &str) -> Result<bool, WrongValue> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => wrong_value("is not a boolean", "true, false"),
    }
}

/// Reads the name of a tenant or a template. It becomes a directory, a metric label and a word in messages.
pub fn name(written: &WrittenValue<'_>) -> Result<String, WrongValue> {
    const FORMS: &str = "1 to 64 letters, digits, '-', '_' and '.', not beginning with '.'";
    match read_string(written, FORMS)? {
        text if is_name(text) => Ok(text.to_owned()),
        _ => wrong_value("cannot be a name", FORMS),
    }
}

/// Returns true if `name` may be a tenant's name.
#[must_use]
pub fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Reads a group, which bears the cost.
pub fn read_group(written: &WrittenValue<'_>) -> Result<String, WrongValue> {
    const FORMS: &str = "1 to 64 letters, digits, '-', '_', '.' and '/', like \"research/vision\"";
    match read_string(written, FORMS)? {
        text if is_label_name(text) => Ok(text.to_owned()),
        _ => wrong_value("cannot be a group", FORMS),
    }
}

/// Returns true if `name` may be the name of a label or a group.
#[must_use]
pub fn is_label_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte))
}

/// Reads the value of a label.
pub fn read_label(written: &WrittenValue<'_>) -> Result<String, WrongValue> {
    const FORMS: &str = "a text of 1 to 256 letters without control characters";
    match read_string(written, FORMS)? {
        text if (1..=256).contains(&text.chars().count()) && !text.chars().any(char::is_control) => Ok(text.to_owned()),
        _ => wrong_value("cannot be a label's value", FORMS),
    }
}

/// Reads the name of a device.
pub fn read_device(written: &WrittenValue<'_>) -> Result<DeviceId, WrongValue> {
    const FORMS: &str = "an NVML number from 0 to 255, a UUID like \"GPU-...\" or \"MIG-...\", or \"*\"";
    let text = text_of(written, FORMS)?;
    let is_uuid = |text: &str| {
        (text.starts_with("GPU-") || text.starts_with("MIG-"))
            && (5..=96).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-/".contains(&byte))
    };
    match text {
        "*" => Ok(DeviceId::Any),
        text if text.starts_with("MIG-GPU-") => {
            wrong_value("is an instance's name as drivers before R470 wrote it, which programs do not know", FORMS)
        }
        text if is_uuid(text) => Ok(DeviceId::Uuid(text.to_owned())),
        text => match text.parse::<u8>() {
            Ok(index) => Ok(DeviceId::Index(index.into())),
            Err(_) => wrong_value("names no device", FORMS),
        },
    }
}

/// Reads a user id, or a range of them.
pub fn read_uids(written: &WrittenValue<'_>) -> Result<RangeInclusive<u32>, WrongValue> {
    const FORMS: &str = "a number like 1000, or numbers from one to another like \"100000-165535\"";
    let text = text_of(written, FORMS)?;
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        (Ok(_), Ok(_)) => wrong_value("ends before it begins", FORMS),
        _ => wrong_value("is not a user ID", FORMS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_exact_and_have_a_unit() {
        let all = 0..=u64::MAX;
        let read = |text| read_duration(&WrittenValue::Text(text), &all);
        assert_eq!(read("4ms"), Ok(4_000_000));
        assert_eq!(read("250us"), Ok(250_000));
        assert_eq!(read("1.5 s"), Ok(1_500_000_000));
        assert_eq!(read("0.5us"), Ok(500));
        for bad in ["4", "", "ms", "-1ms", "0.5ns", "1.2.3s", "1.s", ".5s", "1h", "99999999999999999999s", "1e3ms"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(read_duration(&WrittenValue::Number("4".into()), &all).is_err());
        let outside = read_duration(&WrittenValue::Text("51ms"), &(1_000_000..=50_000_000)).unwrap_err();
        assert!(outside.accepted.contains("from 1ms to 50ms"), "{}", outside.accepted);
    }

    #[test]
    fn parts_and_ratios_are_exact_to_a_thousandth() {
        let read = |text: &str| read_part(&WrittenValue::Number(text.into()));
        assert_eq!((read("0.25"), read("1"), read("0.333"), read("1.000")), (Ok(250), Ok(1000), Ok(333), Ok(1000)));
        for bad in ["0", "0.001", "1.1", "0.3333", "-0.5", "1e0", "nan", "inf", "0x1"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(read_part(&WrittenValue::Text("0.25")).is_err());
        assert_eq!(read_overcommit(&WrittenValue::Number("1.5".into())), Ok(1500));
        assert!(read_overcommit(&WrittenValue::Number("0.9".into())).is_err());
    }

    #[test]
    fn devices_users_and_words_are_read_and_what_is_near_a_word_is_suggested() {
        assert_eq!(read_device(&WrittenValue::Number("3".into())), Ok(DeviceId::Index(3)));
        assert_eq!(read_device(&WrittenValue::Text("*")), Ok(DeviceId::Any));
        assert!(read_device(&WrittenValue::Text("GPU-5a6b")).is_ok());
        for bad in ["", "GPU-", "gpu0", "256", "-1", "GPU-../x y"] {
            assert!(read_device(&WrittenValue::Text(bad)).is_err(), "{bad}");
        }
        assert_eq!(read_uids(&WrittenValue::Number("0".into())), Ok(0..=0));
        assert_eq!(read_uids(&WrittenValue::Text("10-20")), Ok(10..=20));
        assert!(read_uids(&WrittenValue::Text("20-10")).is_err());
        assert!(read_uids(&WrittenValue::Text("root")).is_err());
        assert!(read_class(&WrittenValue::Text("latncy")).unwrap_err().what.contains("\"latency\""));
    }

    #[test]
    fn a_slot_is_its_exact_part_of_the_device() {
        for slots in 1..=100 {
            let total = Bytes(80 << 30);
            let Some(Some(one)) = Amount::Slot(slots).bytes_on(Some(total)) else { panic!() };
            assert_eq!(one.get(), total.get() / u64::from(slots));
        }
        assert_eq!(Amount::Slot(4).bytes_on(None), None);
        assert_eq!(Amount::of_thousandths(250).bytes_on(Some(Bytes(1 << 30))), Some(Some(Bytes(1 << 28))));
    }
}
