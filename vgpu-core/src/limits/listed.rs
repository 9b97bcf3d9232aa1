//! The list of `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`, NVIDIA's limit for a client of MPS: `0=1G,GPU-8932f937=512MB`.
//!
//! A device is named by CUDA's number, which counts the devices that the process sees, or by the first digits of its
//! UUID. A size is a whole number of bytes, or of K, M or G (1024). No entry stands for all devices.

use super::parse_ordinal;
use crate::units::bytes::{Bytes, Size, parse_hami_size};
use crate::units::decimal::trim_spaces;
use crate::units::uuid::hex_digits;

/// The syntax of the list, for error messages.
pub const LIST_FORM: &str = "DEVICE=SIZE, separated by commas, where DEVICE is CUDA's number or a UUID and SIZE is \
                             bytes or a whole number with K, M or G (1024), like 0=1G,1=512MB";

/// A device by the names with which limits refer to it.
#[derive(Clone, Copy, Debug)]
pub struct NamedDevice<'a> {
    /// NVML's number; `None`: not known.
    pub index: Option<u32>,
    /// CUDA's number; `None`: not known.
    pub cuda: Option<u32>,
    /// UUID as text.
    pub uuid: &'a str,
}

/// One entry of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedLimit<'a> {
    /// Device as written.
    pub device: &'a str,
    /// Limit, at least one byte.
    pub bytes: Bytes,
}

impl<'a> ListedLimit<'a> {
    /// Parses an entry; `None` if it is not understood.
    #[must_use]
    pub fn parse(entry: &'a str) -> Option<Self> {
        let (device, size) = entry.split_once('=')?;
        let (device, size) = (trim_spaces(device), trim_spaces(size));
        let digits = hex_digits(device);
        let is_named = if digits.len() < device.len() {
            !digits.is_empty() && digits.bytes().all(|digit| digit == b'-' || digit.is_ascii_hexdigit())
        } else {
            parse_ordinal(device.as_bytes()).is_some()
        };
        match parse_hami_size(size) {
            Ok(Size::Bytes(bytes)) if is_named && !size.bytes().any(|byte| b".tTiI".contains(&byte)) => {
                Some(Self { device, bytes })
            }
            _ => None,
        }
    }

    /// True if the entry names this device.
    #[must_use]
    pub fn is_of(&self, device: &NamedDevice<'_>) -> bool {
        let digits = hex_digits(self.device);
        match parse_ordinal(digits.as_bytes()) {
            Some(number) if digits.len() == self.device.len() => device.cuda == Some(number),
            _ => hex_digits(device.uuid).get(..digits.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(digits)),
        }
    }
}

/// The lowest limit that a list has for a device.
pub(super) fn lowest_listed(list: &str, device: &NamedDevice<'_>) -> Option<Bytes> {
    let mut lowest = None;
    for entry in list.split(',') {
        if let Some(listed) = ListedLimit::parse(entry)
            && listed.is_of(device)
            && lowest.is_none_or(|lowest| listed.bytes < lowest)
        {
            lowest = Some(listed.bytes);
        }
    }
    lowest
}
