//! Errors in limit variables, each as one line on which a person can act.

use core::fmt::{self, Write as _};

use super::listed::LIST_FORM;
use super::{Family, MAX_ORDINAL, Quantity, Variable};
use crate::units::bytes::{HAMI_SIZE_FORMS, MEBIBYTES_FORM, SIZE_FORMS, SizeError};
use crate::units::share::{HAMI_SHARE_FORMS, REQUEST_FORMS, SHARE_FORMS, Share, ShareError};

/// A limit variable that cannot be applied.
///
/// `Display` writes exactly one line of printable ASCII: variable, value, error, accepted values. Values are quoted,
/// escaped and cut after 48 characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitError {
    /// Escaped, since a malformed name also comes from outside.
    pub(super) name: String,
    /// Escaped, since the value comes from outside.
    pub(super) value: String,
    pub(super) problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    NotUtf8(Variable),
    Size(Variable, SizeError),
    Share(Variable, ShareError),
    /// Not a list of devices and sizes.
    List,
    Name(Variable),
    NoSuchDevice {
        count: u32,
    },
    /// A percentage of a device whose memory NVML does not tell.
    UnknownTotal,
    /// Not one of the variable's words.
    Word(&'static [&'static str]),
    /// A relative path, which would be a different place in each working directory.
    Relative,
    /// A floor above this ceiling.
    AboveCeiling {
        limit: Variable,
        value: String,
    },
    /// A floor that nobody can guarantee.
    NoGuarantee,
    /// The variable asks for a higher floor than the daemon grants the tenant.
    BeyondGrant {
        granted: Option<Share>,
    },
}

impl LimitError {
    pub(super) fn bad_value(variable: Variable, value: &[u8], problem: Problem) -> Self {
        Self { name: variable.to_string(), value: escape_bytes(value), problem }
    }

    pub(super) fn bad_word(name: &str, value: &[u8], problem: Problem) -> Self {
        Self { name: name.to_owned(), value: escape_bytes(value), problem }
    }

    pub(super) fn bad_name(variable: Variable, name: &[u8], value: &[u8]) -> Self {
        Self { name: escape_bytes(name), value: escape_bytes(value), problem: Problem::Name(variable) }
    }

    /// The name of the faulty variable, printable.
    #[must_use]
    pub fn variable_name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=\"{}\" ", self.name, self.value)?;
        match &self.problem {
            Problem::NotUtf8(variable) => write!(f, "is not UTF-8 text; accepted: {}", accepted_forms(*variable)),
            Problem::Size(variable, error) => write!(f, "{error}; accepted: {}", accepted_forms(*variable)),
            Problem::Share(variable, error) => write!(f, "{error}; accepted: {}", accepted_forms(*variable)),
            Problem::List => write!(f, "is not a list of DEVICE=SIZE; accepted: {LIST_FORM}"),
            Problem::Name(variable) => {
                let base = variable.base_name();
                write!(
                    f,
                    "is not a limit variable; accepted: {base}, or {base}_<i> with a device ordinal i from 0 to {MAX_ORDINAL}"
                )
            }
            Problem::NoSuchDevice { count: 0 } => f.write_str("names a device that does not exist; there is none"),
            Problem::NoSuchDevice { count: 1 } => {
                f.write_str("names a device that does not exist; there is one, accepted ordinal: 0")
            }
            Problem::NoSuchDevice { count } => {
                write!(
                    f,
                    "names a device that does not exist; there are {count}, accepted ordinals: 0 to {}",
                    count - 1
                )
            }
            Problem::UnknownTotal => f.write_str(
                "is a percentage, and the driver does not tell this device's memory (NVML: not supported); accepted: a size \
                 like 1.5GiB, or unlimited",
            ),
            Problem::Word(words) => write!(f, "is not understood; accepted: {}", words.join(", ")),
            Problem::Relative => f.write_str(
                "is not an absolute path, so that programs in different directories would not share their limit; accepted: \
                 a directory that begins with /",
            ),
            Problem::AboveCeiling { limit, value } => {
                write!(f, "is more than {limit}=\"{value}\" allows; accepted: a request up to the limit of the same device")
            }
            Problem::NoGuarantee => f.write_str(
                "asks for guaranteed time, which only the daemon can give; accepted: VGPU_SM_LIMIT for a ceiling alone, or \
                 a tenant of vgpud with a guarantee, named by VGPU_SOCKET",
            ),
            Problem::BeyondGrant { granted: Some(granted) } => {
                write!(f, "asks for more guaranteed time than the daemon gives this tenant; accepted: up to {granted}")
            }
            Problem::BeyondGrant { granted: None } => f.write_str(
                "asks for guaranteed time, and the daemon gives this tenant none; accepted: no request, or an sm_request \
                 for the tenant in the daemon's file",
            ),
        }
    }
}

impl core::error::Error for LimitError {}

fn accepted_forms(variable: Variable) -> &'static str {
    match (variable.family, variable.quantity) {
        (Family::Vgpu, Quantity::Memory) => SIZE_FORMS,
        (Family::Hami, Quantity::Memory) => HAMI_SIZE_FORMS,
        (Family::Toolkit, Quantity::Memory) => MEBIBYTES_FORM,
        (Family::Mps, Quantity::Memory) => LIST_FORM,
        (Family::Hami, Quantity::Sm) => HAMI_SHARE_FORMS,
        (_, Quantity::Sm) => SHARE_FORMS,
        (_, Quantity::SmRequest) => REQUEST_FORMS,
    }
}

/// Keeps printable ASCII and escapes everything else; at most 48 characters of the original.
///
/// Terminals and logs show this text, so it must not contain control characters, bidirectional marks or newlines.
pub(crate) fn escape_bytes(raw: &[u8]) -> String {
    const MAX_ESCAPED_CHARS: usize = 48;
    let mut out = String::new();
    let mut left = MAX_ESCAPED_CHARS;
    for chunk in raw.utf8_chunks() {
        for c in chunk.valid().chars() {
            if left == 0 {
                return out + "...";
            }
            left -= 1;
            match c {
                '\'' => out.push(c),
                _ => _ = write!(out, "{}", c.escape_default()),
            }
        }
        for byte in chunk.invalid() {
            if left == 0 {
                return out + "...";
            }
            left -= 1;
            _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}
