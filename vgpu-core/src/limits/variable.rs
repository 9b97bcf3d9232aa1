//! The names of the limit variables, with and without a device ordinal.

use core::fmt;

use super::MAX_ORDINAL;

/// Origin of a variable; the families read values differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Our own: `VGPU_...`.
    Vgpu,
    /// `CUDA_DEVICE_...`, as HAMi's schedulers set them.
    Hami,
    /// `NVIDIA_GPU_MEMORY_LIMIT`, which NVIDIA's container toolkit gives to the driver.
    Toolkit,
    /// `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`, a list with a limit for each device that it names.
    Mps,
}

impl Family {
    /// Every family but the list. Each has one limit for a device, and the lowest holds.
    pub const EVERY_FAMILY: [Self; 3] = [Self::Vgpu, Self::Hami, Self::Toolkit];
}

/// The limited quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quantity {
    /// Limit on device memory.
    Memory,
    /// Ceiling on device time.
    Sm,
    /// Floor on device time.
    SmRequest,
}

/// A limit variable, with its ordinal if it names one device. `Display` writes its exact name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Variable {
    /// Origin of the variable.
    pub family: Family,
    /// Quantity that it limits.
    pub quantity: Quantity,
    /// Ordinal of the device; `None`: all devices.
    pub ordinal: Option<u32>,
}

/// Origin of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// An environment variable.
    Variable(Variable),
    /// The daemon's terms.
    Daemon,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(variable) => variable.fmt(f),
            Self::Daemon => f.write_str("the daemon"),
        }
    }
}

/// Classification of a variable's name.
pub(super) enum Name {
    /// Not a limit variable.
    Foreign,
    /// A limit variable.
    Ours(Variable),
    /// Begins like a limit variable but is none. An error, since a typo would silently limit nothing.
    Malformed(Variable),
}

const BASES: [(&str, Family, Quantity); 7] = [
    ("VGPU_MEMORY_LIMIT", Family::Vgpu, Quantity::Memory),
    ("VGPU_SM_LIMIT", Family::Vgpu, Quantity::Sm),
    ("VGPU_SM_REQUEST", Family::Vgpu, Quantity::SmRequest),
    ("CUDA_DEVICE_MEMORY_LIMIT", Family::Hami, Quantity::Memory),
    ("CUDA_DEVICE_SM_LIMIT", Family::Hami, Quantity::Sm),
    ("NVIDIA_GPU_MEMORY_LIMIT", Family::Toolkit, Quantity::Memory),
    ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", Family::Mps, Quantity::Memory),
];

impl Variable {
    /// The name without an ordinal.
    #[must_use]
    pub fn base_name(&self) -> &'static str {
        let found = BASES.iter().find(|(_, family, quantity)| (*family, *quantity) == (self.family, self.quantity));
        found.map_or("", |(base, ..)| base)
    }

    pub(super) fn classify_name(name: &[u8]) -> Name {
        for (base, family, quantity) in BASES {
            let Some(suffix) = name.strip_prefix(base.as_bytes()) else { continue };
            let global = Self { family, quantity, ordinal: None };
            return match suffix {
                [] => Name::Ours(global),
                // NVIDIA's other names, such as NVIDIA_GPU_MEMORY_LIMITS of early versions.
                _ if matches!(family, Family::Toolkit | Family::Mps) => Name::Foreign,
                [b'_', digits @ ..] => match parse_ordinal(digits) {
                    Some(ordinal) => Name::Ours(Self { ordinal: Some(ordinal), ..global }),
                    None => Name::Malformed(global),
                },
                _ => Name::Malformed(global),
            };
        }
        Name::Foreign
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.base_name())?;
        match self.ordinal {
            None => Ok(()),
            Some(ordinal) => write!(f, "_{ordinal}"),
        }
    }
}

/// Parses `0`, `7`, `12`: no sign, no leading zero (a device would have two names), nothing above [`MAX_ORDINAL`].
pub(crate) fn parse_ordinal(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() || digits.len() > 3 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    if digits.len() > 1 && digits[0] == b'0' {
        return None;
    }
    let value = digits.iter().fold(0, |value, digit| value * 10 + u32::from(digit - b'0'));
    (value <= MAX_ORDINAL).then_some(value)
}
