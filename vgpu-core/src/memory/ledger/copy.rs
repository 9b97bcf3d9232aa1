//! Reads a ledger from a copy of its file's bytes, for reports by processes that are not members.
//!
//! The bytes were copied while members went on. So the numbers are approximate, not those of one instant, and must
//! not be used to enforce a limit. Bytes do not show which members are alive.

use core::mem::offset_of;

use super::layout::{LedgerHeader, LedgerSlot, SharedCharge, is_one};
use super::sum::counter_distance;
use super::{LEDGER_HEADER_BYTES, LEDGER_SLOT_BYTES, LEDGER_SLOTS, MemberView, SHARED_CHARGE_BYTES, SHARED_CHARGES};

/// Contents of a ledger's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerCopy {
    /// Members in the order of their slots, without their shares. Dead members are included until they are reclaimed.
    pub members: Vec<MemberView>,
    /// Bytes in shares, charged once for all their holders.
    pub shared: u64,
    /// Most bytes the tenant ever held at once since the file was made; 0 from older libraries.
    pub peak: u64,
    /// Requests refused to programs since the file was made.
    pub refused: u64,
    /// Bytes that members ever requested, modulo 2^64. The difference of two readings is the amount requested in
    /// between.
    pub claimed: u64,
}

impl LedgerCopy {
    /// Bytes that count against the limit: those of the members for which `lives` returns true, and all shares.
    pub fn used_by_living(&self, lives: impl Fn(&MemberView) -> bool) -> u64 {
        let alive = self.members.iter().filter(|member| lives(member));
        alive.fold(self.shared, |sum, member| sum.saturating_add(member.used))
    }
}

/// Byte ranges of the used slots and the used shares, from the file's header. `None`: not a ledger of this version.
#[must_use]
pub fn used_ranges(header: &[u8]) -> Option<(core::ops::Range<usize>, core::ops::Range<usize>)> {
    let half = |at: usize| header.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied().map(u32::from_le_bytes);
    if !is_one(header) {
        return None;
    }
    let slots = usize::try_from(half(offset_of!(LedgerHeader, high_slot))?).unwrap_or(LEDGER_SLOTS).min(LEDGER_SLOTS);
    let shares =
        usize::try_from(half(offset_of!(LedgerHeader, high_share))?).unwrap_or(SHARED_CHARGES).min(SHARED_CHARGES);
    let first = LEDGER_HEADER_BYTES + LEDGER_SLOTS * LEDGER_SLOT_BYTES;
    Some((
        LEDGER_HEADER_BYTES..LEDGER_HEADER_BYTES + slots * LEDGER_SLOT_BYTES,
        first..first + shares * SHARED_CHARGE_BYTES,
    ))
}

/// The word `account_zero` in the bytes of a ledger's beginning; `None`: they are no ledger of this version, or too
/// short.
pub(crate) fn account_zero(bytes: &[u8]) -> Option<u64> {
    let at = offset_of!(LedgerHeader, account_zero);
    let zero = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()).copied().map(u64::from_le_bytes);
    zero.filter(|_| is_one(bytes))
}

/// Parses the bytes of a whole ledger. `None`: not a ledger of this version.
#[must_use]
pub fn parse_ledger(bytes: &[u8]) -> Option<LedgerCopy> {
    let word = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()).copied().map(u64::from_le_bytes);
    let half = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied().map(u32::from_le_bytes);
    if !is_one(bytes) {
        return None;
    }
    let (peak, refused) = (word(offset_of!(LedgerHeader, peak))?, word(offset_of!(LedgerHeader, refused))?);
    let mut copied = LedgerCopy { peak, refused, ..LedgerCopy::default() };
    let slots = usize::try_from(half(offset_of!(LedgerHeader, high_slot))?).unwrap_or(LEDGER_SLOTS).min(LEDGER_SLOTS);
    for index in 0..slots {
        let at = LEDGER_HEADER_BYTES + index * LEDGER_SLOT_BYTES;
        let pid = half(at + offset_of!(LedgerSlot, pid))?;
        let claimed = word(at + offset_of!(LedgerSlot, claimed))?;
        copied.claimed = copied.claimed.wrapping_add(claimed);
        let used = counter_distance(claimed, word(at + offset_of!(LedgerSlot, dropped))?);
        if pid != 0 {
            copied.members.push(MemberView {
                index,
                pid,
                birth: word(at + offset_of!(LedgerSlot, birth))?,
                used,
                shared: 0,
                overhead: word(at + offset_of!(LedgerSlot, overhead))?,
                high: word(at + offset_of!(LedgerSlot, high))?,
                busy_ns: word(at + offset_of!(LedgerSlot, busy))?,
            });
        }
    }
    let shares =
        usize::try_from(half(offset_of!(LedgerHeader, high_share))?).unwrap_or(SHARED_CHARGES).min(SHARED_CHARGES);
    for index in 0..shares {
        let at = LEDGER_HEADER_BYTES + LEDGER_SLOTS * LEDGER_SLOT_BYTES + index * SHARED_CHARGE_BYTES;
        let used =
            counter_distance(word(at + offset_of!(SharedCharge, gained))?, word(at + offset_of!(SharedCharge, lost))?);
        copied.shared = copied.shared.saturating_add(used);
    }
    Some(copied)
}

#[cfg(test)]
mod tests {
    use super::super::{LEDGER_BYTES, LEDGER_MAGIC, LEDGER_VERSION};
    use super::*;

    fn put(bytes: &mut [u8], at: usize, word: u64) {
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    fn put_half(bytes: &mut [u8], at: usize, half: u32) {
        bytes[at..at + 4].copy_from_slice(&half.to_le_bytes());
    }

    #[test]
    fn what_is_no_ledger_says_nothing() {
        assert_eq!(parse_ledger(&[]), None);
        let mut bytes = vec![0; LEDGER_BYTES];
        assert_eq!(parse_ledger(&bytes), None);
        put(&mut bytes, 0, LEDGER_MAGIC);
        assert_eq!(parse_ledger(&bytes), None, "another version");
        put_half(&mut bytes, offset_of!(LedgerHeader, version), LEDGER_VERSION);
        assert_eq!(parse_ledger(&bytes), Some(LedgerCopy::default()));
        put_half(&mut bytes, offset_of!(LedgerHeader, high_slot), u32::MAX);
        put_half(&mut bytes, offset_of!(LedgerHeader, high_share), u32::MAX);
        assert_eq!(parse_ledger(&bytes), Some(LedgerCopy::default()), "marks that are too high lead nowhere");
        assert_eq!(parse_ledger(&bytes[..LEDGER_HEADER_BYTES]), None, "cut off");
    }

    #[test]
    fn members_and_what_they_share_are_read_where_they_lie() {
        let mut bytes = vec![0; LEDGER_BYTES];
        put(&mut bytes, 0, LEDGER_MAGIC);
        put_half(&mut bytes, offset_of!(LedgerHeader, version), LEDGER_VERSION);
        put_half(&mut bytes, offset_of!(LedgerHeader, high_slot), 3);
        put_half(&mut bytes, offset_of!(LedgerHeader, high_share), 1);
        let slot = LEDGER_HEADER_BYTES + 2 * LEDGER_SLOT_BYTES;
        put(&mut bytes, slot + offset_of!(LedgerSlot, claimed), 900);
        put(&mut bytes, slot + offset_of!(LedgerSlot, dropped), 200);
        put(&mut bytes, slot + offset_of!(LedgerSlot, overhead), 50);
        put(&mut bytes, slot + offset_of!(LedgerSlot, high), 800);
        put(&mut bytes, slot + offset_of!(LedgerSlot, busy), 77);
        put_half(&mut bytes, slot + offset_of!(LedgerSlot, pid), 4711);
        put(&mut bytes, LEDGER_HEADER_BYTES + LEDGER_SLOTS * LEDGER_SLOT_BYTES, 64);
        let member =
            MemberView { index: 2, pid: 4711, birth: 0, used: 700, shared: 0, overhead: 50, high: 800, busy_ns: 77 };
        put(&mut bytes, offset_of!(LedgerHeader, peak), 5_000);
        put(&mut bytes, offset_of!(LedgerHeader, refused), 3);
        let read = LedgerCopy { members: vec![member], shared: 64, peak: 5_000, refused: 3, claimed: 900 };
        assert_eq!(parse_ledger(&bytes), Some(read.clone()));
        assert_eq!((read.used_by_living(|_| true), read.used_by_living(|member| member.pid != 4711)), (764, 64));
        // Only the ranges that `extent` names affect the result.
        let (slots, shares) = used_ranges(&bytes[..LEDGER_HEADER_BYTES]).unwrap();
        let mut part = vec![0xff; LEDGER_BYTES];
        for range in [0..LEDGER_HEADER_BYTES, slots, shares] {
            part[range.clone()].copy_from_slice(&bytes[range]);
        }
        assert_eq!(parse_ledger(&part), Some(read));
    }
}
