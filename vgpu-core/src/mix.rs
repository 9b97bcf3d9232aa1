//! The project's only key mixer, for indices into small tables and for hashes.

/// 2^64 divided by the golden ratio, made odd: Knuth's multiplier for Fibonacci hashing.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads a key over 64 bits. Only the highest bits depend on all bits of the key, so an index must use those.
#[inline]
#[must_use]
pub const fn spread_key(key: u64) -> u64 {
    key.wrapping_mul(MULTIPLIER)
}

/// The index of a key in a table of `slots` entries, from its highest bits. For a constant power of two: one
/// multiplication and one shift.
#[inline]
#[must_use]
#[allow(clippy::cast_possible_truncation)] // below `slots`
pub const fn slot_of(key: u64, slots: usize) -> usize {
    ((spread_key(key) >> 32).wrapping_mul(slots as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_addresses_fill_a_table_evenly() {
        // The numbers of keys and slots are equal: of random keys, at most about five share a slot.
        for (align, slots) in [(16, 64), (4096, 64), (1 << 20, 256), (64, 96)] {
            let mut used = vec![0u32; slots];
            for number in 0..slots as u64 {
                used[slot_of(0x7f00_0000_0000 + number * align, slots)] += 1;
            }
            let most = used.iter().max().copied().unwrap_or(0);
            assert!(most <= 6, "{most} of {slots} addresses with alignment {align} share a slot");
        }
    }
}
