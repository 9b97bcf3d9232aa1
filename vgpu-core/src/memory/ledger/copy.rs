//! Reads a ledger from a copy of its file's bytes, for reports by processes that are not members.
//!
//! The bytes were copied while members went on. So the numbers are approximate, not those of one instant, and must
//! not be used to enforce a limit. Bytes do not show which members are alive.

use core::mem::offset_of;

use super::layout::{Header, Share, Slot, is_one};
use super::sum::distance;
use super::{HEADER_SIZE, MemberView, SHARE_SIZE, SHARES, SLOT_SIZE, SLOTS};

/// Contents of a ledger's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
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

impl Copied {
    /// Bytes that count against the limit: those of the members for which `lives` returns true, and all shares.
    pub fn used(&self, lives: impl Fn(&MemberView) -> bool) -> u64 {
        let alive = self.members.iter().filter(|member| lives(member));
        alive.fold(self.shared, |sum, member| sum.saturating_add(member.used))
    }
}

/// Byte ranges of the used slots and the used shares, from the file's header. `None`: not a ledger of this version.
#[must_use]
pub fn extent(header: &[u8]) -> Option<(core::ops::Range<usize>, core::ops::Range<usize>)> {
    let half = |at: usize| header.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied().map(u32::from_le_bytes);
    if !is_one(header) {
        return None;
    }
    let slots = usize::try_from(half(offset_of!(Header, high_slot))?).unwrap_or(SLOTS).min(SLOTS);
    let shares = usize::try_from(half(offset_of!(Header, high_share))?).unwrap_or(SHARES).min(SHARES);
    let first = HEADER_SIZE + SLOTS * SLOT_SIZE;
    Some((HEADER_SIZE..HEADER_SIZE + slots * SLOT_SIZE, first..first + shares * SHARE_SIZE))
}

/// The word `account_zero` in the bytes of a ledger's beginning; `None`: they are no ledger of this version, or too
/// short.
pub(crate) fn account_zero(bytes: &[u8]) -> Option<u64> {
    let at = offset_of!(Header, account_zero);
    let zero = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()).copied().map(u64::from_le_bytes);
    zero.filter(|_| is_one(bytes))
}

/// Parses the bytes of a whole ledger. `None`: not a ledger of this version.
#[must_use]
pub fn copied(bytes: &[u8]) -> Option<Copied> {
    let word = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()).copied().map(u64::from_le_bytes);
    let half = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied().map(u32::from_le_bytes);
    if !is_one(bytes) {
        return None;
    }
    let (peak, refused) = (word(offset_of!(Header, peak))?, word(offset_of!(Header, refused))?);
    let mut copied = Copied { peak, refused, ..Copied::default() };
    let slots = usize::try_from(half(offset_of!(Header, high_slot))?).unwrap_or(SLOTS).min(SLOTS);
    for index in 0..slots {
        let at = HEADER_SIZE + index * SLOT_SIZE;
        let pid = half(at + offset_of!(Slot, pid))?;
        let claimed = word(at + offset_of!(Slot, claimed))?;
        copied.claimed = copied.claimed.wrapping_add(claimed);
        let used = distance(claimed, word(at + offset_of!(Slot, dropped))?);
        if pid != 0 {
            copied.members.push(MemberView {
                index,
                pid,
                birth: word(at + offset_of!(Slot, birth))?,
                used,
                shared: 0,
                overhead: word(at + offset_of!(Slot, overhead))?,
                high: word(at + offset_of!(Slot, high))?,
                busy_ns: word(at + offset_of!(Slot, busy))?,
            });
        }
    }
    let shares = usize::try_from(half(offset_of!(Header, high_share))?).unwrap_or(SHARES).min(SHARES);
    for index in 0..shares {
        let at = HEADER_SIZE + SLOTS * SLOT_SIZE + index * SHARE_SIZE;
        let used = distance(word(at + offset_of!(Share, gained))?, word(at + offset_of!(Share, lost))?);
        copied.shared = copied.shared.saturating_add(used);
    }
    Some(copied)
}

#[cfg(test)]
mod tests {
    use super::super::{LEDGER_SIZE, MAGIC, VERSION};
    use super::*;

    fn put(bytes: &mut [u8], at: usize, word: u64) {
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    fn put_half(bytes: &mut [u8], at: usize, half: u32) {
        bytes[at..at + 4].copy_from_slice(&half.to_le_bytes());
    }

    #[test]
    fn what_is_no_ledger_says_nothing() {
        assert_eq!(copied(&[]), None);
        let mut bytes = vec![0; LEDGER_SIZE];
        assert_eq!(copied(&bytes), None);
        put(&mut bytes, 0, MAGIC);
        assert_eq!(copied(&bytes), None, "another version");
        put_half(&mut bytes, offset_of!(Header, version), VERSION);
        assert_eq!(copied(&bytes), Some(Copied::default()));
        put_half(&mut bytes, offset_of!(Header, high_slot), u32::MAX);
        put_half(&mut bytes, offset_of!(Header, high_share), u32::MAX);
        assert_eq!(copied(&bytes), Some(Copied::default()), "marks that are too high lead nowhere");
        assert_eq!(copied(&bytes[..HEADER_SIZE]), None, "cut off");
    }

    #[test]
    fn members_and_what_they_share_are_read_where_they_lie() {
        let mut bytes = vec![0; LEDGER_SIZE];
        put(&mut bytes, 0, MAGIC);
        put_half(&mut bytes, offset_of!(Header, version), VERSION);
        put_half(&mut bytes, offset_of!(Header, high_slot), 3);
        put_half(&mut bytes, offset_of!(Header, high_share), 1);
        let slot = HEADER_SIZE + 2 * SLOT_SIZE;
        put(&mut bytes, slot + offset_of!(Slot, claimed), 900);
        put(&mut bytes, slot + offset_of!(Slot, dropped), 200);
        put(&mut bytes, slot + offset_of!(Slot, overhead), 50);
        put(&mut bytes, slot + offset_of!(Slot, high), 800);
        put(&mut bytes, slot + offset_of!(Slot, busy), 77);
        put_half(&mut bytes, slot + offset_of!(Slot, pid), 4711);
        put(&mut bytes, HEADER_SIZE + SLOTS * SLOT_SIZE, 64);
        let member =
            MemberView { index: 2, pid: 4711, birth: 0, used: 700, shared: 0, overhead: 50, high: 800, busy_ns: 77 };
        put(&mut bytes, offset_of!(Header, peak), 5_000);
        put(&mut bytes, offset_of!(Header, refused), 3);
        let read = Copied { members: vec![member], shared: 64, peak: 5_000, refused: 3, claimed: 900 };
        assert_eq!(copied(&bytes), Some(read.clone()));
        assert_eq!((read.used(|_| true), read.used(|member| member.pid != 4711)), (764, 64));
        // Only the ranges that `extent` names affect the result.
        let (slots, shares) = extent(&bytes[..HEADER_SIZE]).unwrap();
        let mut part = vec![0xff; LEDGER_SIZE];
        for range in [0..HEADER_SIZE, slots, shares] {
            part[range.clone()].copy_from_slice(&bytes[range]);
        }
        assert_eq!(copied(&part), Some(read));
    }
}
