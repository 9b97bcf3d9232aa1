//! Reads the values of sections `[[on_event]]`.

use super::{WrittenValue, WrongValue, read_count, read_duration, read_string, wrong_value};

/// Accepted values of `events`.
pub const EVENT_FORMS: &str =
    "kinds of events like \"tenant.paused\", or subjects that stand for all their kinds, like \"tenant\"";

/// Accepted values of `exec`.
pub const EXEC_FORMS: &str =
    "a program by its absolute path, and its arguments: texts of at most 4096 bytes without a zero byte";

/// Longest word of `exec`, in bytes.
const MAX_WORD_BYTES: usize = 4096;

/// Reads the name of a kind of events, or a subject. Whether there is such a kind is decided later.
pub fn read_event(written: &WrittenValue<'_>) -> Result<String, WrongValue> {
    read_string(written, EVENT_FORMS).map(str::to_owned)
}

/// Reads one word of a program's command.
pub fn read_argument(written: &WrittenValue<'_>) -> Result<String, WrongValue> {
    match read_string(written, EXEC_FORMS)? {
        text if text.contains('\0') => wrong_value("has a zero byte inside", EXEC_FORMS),
        text if text.len() > MAX_WORD_BYTES => wrong_value("is too long", EXEC_FORMS),
        text => Ok(text.to_owned()),
    }
}

/// Reads the time after which an action's program is killed, in ns.
pub fn read_action_timeout(written: &WrittenValue<'_>) -> Result<u64, WrongValue> {
    read_duration(written, &(100_000_000..=3_600_000_000_000))
}

/// Reads how many runs of an action may be under way at the same time.
pub fn read_runs_at_once(written: &WrittenValue<'_>) -> Result<u32, WrongValue> {
    read_count(written, 1..=64, "a whole number")
}
