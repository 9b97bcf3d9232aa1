//! Compares device names.
//!
//! NVML names a MIG instance `MIG-...`. CUDA returns only the sixteen bytes, and its callers print them as `GPU-...`.
//! The digits are the same, and no two devices share them.

/// The digits, which identify the device under any prefix.
#[must_use]
pub fn hex_digits(name: &str) -> &str {
    let (Some(kind), Some(digits)) = (name.get(..4), name.get(4..)) else { return name };
    if ["GPU-", "MIG-"].iter().any(|known| kind.eq_ignore_ascii_case(known)) { digits } else { name }
}

/// A key that is equal for all names of a device: its digits in lower case.
#[must_use]
pub fn uuid_key(name: &str) -> String {
    hex_digits(name).to_ascii_lowercase()
}

/// True if both names are of one device.
#[must_use]
pub fn is_same_device(one: &str, other: &str) -> bool {
    hex_digits(one).eq_ignore_ascii_case(hex_digits(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_the_same_under_both_names_and_two_devices_are_not() {
        assert!(
            is_same_device("MIG-00aa", "GPU-00AA")
                && is_same_device("gpu-00aa", "GPU-00AA")
                && is_same_device("*", "*")
        );
        assert!(
            !is_same_device("GPU-00aa", "GPU-00ab") && !is_same_device("*", "GPU-00aa") && !is_same_device("MIG-", "*")
        );
        assert_eq!(
            (uuid_key("MIG-00aA"), uuid_key("gpu-00AA"), uuid_key("*")),
            ("00aa".into(), "00aa".into(), "*".into())
        );
        assert_eq!((hex_digits("GPU-"), hex_digits("GP"), hex_digits("ü-GPU")), ("", "GP", "ü-GPU"));
    }
}
