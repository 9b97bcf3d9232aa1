//! A device's UUID: sixteen bytes, and its text form.

/// A UUID's text: `GPU-` and digits in groups.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut out = String::from("GPU");
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 0 | 4 | 6 | 8 | 10) {
            out.push('-');
        }
        out.push_str(&format!("{byte:02x}"));
    }
    out
}

/// The bytes of a UUID's text: `GPU-` or `MIG-` and 32 hexadecimal digits with dashes.
pub fn parse(text: &[u8]) -> Option<[u8; 16]> {
    let digits = text.strip_prefix(b"GPU-").or_else(|| text.strip_prefix(b"MIG-"))?;
    let mut uuid = [0u8; 16];
    let mut count = 0;
    for &c in digits {
        let value = match c {
            b'-' => continue,
            b'0'..=b'9' => c - b'0',
            b'a'..=b'f' => c - b'a' + 10,
            b'A'..=b'F' => c - b'A' + 10,
            _ => return None,
        };
        *uuid.get_mut(count / 2)? |= value << (4 * (1 - count % 2));
        count += 1;
    }
    (count == 32).then_some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_read_as_it_is_written() {
        let uuid: [u8; 16] = core::array::from_fn(|at| u8::try_from(at * 17).unwrap());
        let written = uuid_text(&uuid);
        assert_eq!(written, "GPU-00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(parse(written.as_bytes()), Some(uuid));
        assert_eq!(parse(written.replace("GPU", "MIG").to_uppercase().as_bytes()), Some(uuid));
    }

    #[test]
    fn what_is_not_a_uuid_is_none() {
        for text in [
            "",
            "GPU-",
            "00112233-4455-6677-8899-aabbccddeeff",
            "GPU-0011",
            "GPU-zz112233-4455-6677-8899-aabbccddeeff",
            "GPU-00112233-4455-6677-8899-aabbccddeeff0",
            "MIG-GPU-00112233-4455-6677-8899-aabbccddeeff/1/0",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}
