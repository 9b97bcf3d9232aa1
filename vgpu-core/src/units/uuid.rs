//! Compares device names.
//!
//! NVML names a MIG instance `MIG-...`. CUDA returns only the sixteen bytes, and its callers print them as `GPU-...`.
//! The digits are the same, and no two devices share them.

/// The digits, which identify the device under any prefix.
#[must_use]
pub fn digits(name: &str) -> &str {
    let (Some(kind), Some(digits)) = (name.get(..4), name.get(4..)) else { return name };
    if ["GPU-", "MIG-"].iter().any(|known| kind.eq_ignore_ascii_case(known)) { digits } else { name }
}

/// A key that is equal for all names of a device: its digits in lower case.
#[must_use]
pub fn key(name: &str) -> String {
    digits(name).to_ascii_lowercase()
}

/// True if both names are of one device.
#[must_use]
pub fn same(one: &str, other: &str) -> bool {
    digits(one).eq_ignore_ascii_case(digits(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_the_same_under_both_names_and_two_devices_are_not() {
        assert!(same("MIG-00aa", "GPU-00AA") && same("gpu-00aa", "GPU-00AA") && same("*", "*"));
        assert!(!same("GPU-00aa", "GPU-00ab") && !same("*", "GPU-00aa") && !same("MIG-", "*"));
        assert_eq!((key("MIG-00aA"), key("gpu-00AA"), key("*")), ("00aa".into(), "00aa".into(), "*".into()));
        assert_eq!((digits("GPU-"), digits("GP"), digits("ü-GPU")), ("", "GP", "ü-GPU"));
    }
}
