//! Measures growth around a call, also when several calls of this process overlap: each byte is attributed once, and
//! none is lost.
//!
//! The measure is NVML's entry of this process minus its charges, compared at two moments. Calls that overlap on one
//! device form a *group*. The first one takes the reading to compare with. Each call that ends attributes the growth
//! that is visible and not attributed yet. The last one takes the growth that the others could not see. No lock is
//! held during a call to the driver or NVML. Instead a change counter of the device's groups shows whether a reading
//! was undisturbed.
//!
//! A call that only gives memory back joins a group too, without a reading. A measurement that finds such a call waits
//! up to 20 ms for its end, and then takes its reading although the driver may have freed that memory already: see
//! [`CallGroup::unclear`].
//!
//! Readings are taken at moments when no other thread of this process allocates or frees. If there is none within some
//! 10 ms (a free waits for running kernels), one is taken all the same. Growth then counts only as far as it exceeds
//! the bytes in flight, see [`OverheadSample::uncertainty_until`]. A group that begins this way keeps the previous
//! group's reading if that is no more uncertain, so that bytes which stay in flight are not subtracted each time. If
//! other threads allocated or freed *between* two readings, the driver's slabs may have changed by up to 2 MiB for each
//! address or array. Growth counts only as far as it exceeds that.

use super::reading::{self, DeviceReading};
use crate::device::list;
use crate::device::table::Device;
use crate::ffi::lock::Lock;
use crate::ledger::held_shares;
use crate::memory::allocation_records;
use crate::memory::pools;

/// How often a measurement checks, 50 us apart, whether a call that only gives back has ended: 20 ms in all.
const MAX_WAITS: u32 = 400;
/// Bytes not counted for each address or array that another thread allocated or freed meanwhile: the driver's slabs
/// are larger than the charges.
const SLAB_TOLERANCE_BYTES: i64 = 2 << 20;
/// Number of tries for a reading while other threads allocate.
const MAX_READ_TRIES: u32 = 100;

/// A reading of the list, and this process's own charges at that moment.
#[derive(Clone)]
pub struct OverheadSample {
    /// NVML's process list.
    pub list: DeviceReading,
    /// Bytes charged, without overhead.
    pub charges: u64,
    /// The part of `charges` that other processes may hold too.
    pub shared: u64,
    /// Number of charges and releases so far: [`allocation_records::record_events`].
    pub events: u64,
    /// Changes with every charge and release except the caller's own. `None`: other threads were active, so list and
    /// charges may not match.
    pub moment: Option<u64>,
    /// Bytes reserved by other threads whose driver calls had not returned.
    under_way: u64,
    /// Bytes charged or released while the list was read.
    moved: u64,
    /// Bytes released since the process began.
    released: u64,
    /// Whether frees were in flight.
    leaving: bool,
}

impl OverheadSample {
    /// Upper bound of apparent growth until `after` that may be none: slabs that have changed. If this sample was
    /// disturbed, also bytes charged before it that reached the device later, and bytes that had left the device and
    /// were released later.
    pub fn uncertainty_until(&self, after: &OverheadSample) -> i64 {
        let events = i64::try_from(after.events.wrapping_sub(self.events)).unwrap_or(i64::MAX);
        let freed = if self.leaving { after.released.saturating_sub(self.released).min(self.charges) } else { 0 };
        // A request in flight has caused no event yet, but may already have its slab.
        let events = events.saturating_add(i64::from(after.under_way > 0));
        let sure = events.saturating_mul(SLAB_TOLERANCE_BYTES).saturating_add(to_signed(freed));
        sure.saturating_add(self.initial_uncertainty()).saturating_add(to_signed(after.moved))
    }

    /// The part of [`OverheadSample::uncertainty_until`] that was known when this sample was taken.
    fn initial_uncertainty(&self) -> i64 {
        if self.moment.is_some() { 0 } else { to_signed(self.under_way.saturating_add(self.moved)) }
    }

    /// Whether growth may be counted from here as well as from `fresh`, which was disturbed: true if this sample has
    /// not become more uncertain than `fresh`.
    fn is_as_good_as(&self, fresh: &OverheadSample) -> bool {
        self.shared == fresh.shared
            && self.uncertainty_until(fresh).saturating_sub(self.initial_uncertainty()) <= fresh.initial_uncertainty()
    }
}

fn to_signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A group: the calls that overlap on one device.
struct CallGroup {
    /// Counts changes to the group, so that a sample taken without the lock is used only if nothing changed.
    changes: u64,
    /// Calls of the group in flight.
    open: u32,
    /// True if calls of the group overlapped. A call that begins while no other is in flight starts a new group.
    shared: bool,
    /// Whether any of them asks for growth that is not known beforehand.
    measured: bool,
    /// The sample to compare with. `None`: no call in the group measures, or there was nothing to read.
    before: Option<Box<OverheadSample>>,
    /// Overhead charged during the group, less overhead given back.
    attributed: i64,
    /// The part given back by calls that were in flight when `before` was taken. The driver freed it before that
    /// sample or after it.
    unclear: i64,
    /// Number of samples taken while a call of the group was in flight.
    late_samples: u32,
}

impl CallGroup {
    const NONE: CallGroup = CallGroup {
        changes: 0,
        open: 0,
        shared: false,
        measured: false,
        before: None,
        attributed: 0,
        unclear: 0,
        late_samples: 0,
    };
}

static CALL_GROUPS: [Lock<CallGroup>; 64] = [const { Lock::new(CallGroup::NONE) }; 64];

/// A watched call in flight.
#[must_use]
pub struct OverheadWatch {
    device: &'static Device,
    /// [`CallGroup::late_samples`] when the call began.
    late_samples: u32,
}

fn group_of(device: &Device) -> &'static Lock<CallGroup> {
    &CALL_GROUPS[usize::from(device.index) % CALL_GROUPS.len()]
}

/// This process's own charges on the device without overhead, which the groups count; and the part that other
/// processes may hold too. The latter changes when one of them dies, so dead processes are reclaimed first.
fn own_charges(device: &Device) -> (u64, u64) {
    let Ok(joined) = device.ledger.membership() else { return (0, 0) };
    if held_shares::any() {
        joined.reclaim_dead();
    }
    let member = joined.joined_member();
    let shared = member.used_and_shared().saturating_sub(member.used_bytes());
    (member.used_bytes().saturating_sub(member.overhead_bytes()) + shared, shared)
}

/// An undisturbed sample. No request of another thread was in flight, or began or ended shortly before or after the
/// reading. No free from a pool or in stream order was pending. `pending`: bytes that the caller itself has reserved.
/// `None`: there was no such moment, or no list.
pub fn sample_when_quiet(
    device: &Device,
    pending: u64,
    read: fn(&Device) -> Option<DeviceReading>,
) -> Option<OverheadSample> {
    for round in 0..MAX_READ_TRIES {
        let waits = pools::settle_device(device);
        let (before, (requests, is_quiet)) = (member_activity(device)?, pools::activity());
        if !waits && before.0 == pending && is_quiet {
            let moment = Some(before.1.wrapping_sub(pending).wrapping_add(requests));
            let sample =
                OverheadSample { moment, under_way: 0, moved: 0, leaving: false, ..any_sample(device, pending, read)? };
            (0..500).for_each(|_| core::hint::spin_loop());
            // Memory that pools gave back since the sample shows here, as activity.
            let waits = pools::settle_device(device);
            let same = member_activity(device)? == before
                && pools::activity() == (requests, true)
                && allocation_records::record_events() == sample.events
                && own_charges(device) == (sample.charges + pending, sample.shared);
            if !waits && same {
                return Some(sample);
            }
        }
        // At first without sleep: the less time between two samples, the fewer changes.
        if round < MAX_READ_TRIES / 2 { crate::ffi::clock::give_way() } else { crate::ffi::clock::sleep(20_000) }
    }
    None
}

/// A sample taken at once, disturbed or not.
pub fn any_sample(device: &Device, pending: u64, read: fn(&Device) -> Option<DeviceReading>) -> Option<OverheadSample> {
    let (under_way, before) = member_activity(device)?;
    let waits = pools::settle_device(device) || !pools::activity().1;
    let ((charges, shared), events) = (own_charges(device), allocation_records::record_events());
    let released = released_bytes(device);
    let charges = charges.saturating_sub(pending);
    let list = list::with_nvml_kept(|| read(device)).flatten()?;
    let leaving = waits || !pools::activity().1;
    let moved = member_activity(device)?.1.wrapping_sub(before);
    let under_way = under_way.saturating_sub(pending);
    Some(OverheadSample { list, charges, shared, events, moment: None, under_way, moved, released, leaving })
}

fn quiet_sample(device: &Device) -> Option<OverheadSample> {
    sample_when_quiet(device, 0, reading::read_list)
}

/// An undisturbed sample, or else any.
fn best_sample(device: &Device) -> Option<OverheadSample> {
    quiet_sample(device).or_else(|| any_sample(device, 0, reading::read_list))
}

/// Bytes released by this process so far. Activity counts charged plus released bytes, so the rest over current use
/// is halved.
fn released_bytes(device: &Device) -> u64 {
    let Ok(joined) = device.ledger.membership() else { return 0 };
    let member = joined.joined_member();
    member.pending_and_moved().1.saturating_sub(member.used_bytes()) / 2
}

/// See [`Member::pending_and_moved`](vgpu_core::memory::ledger::Member::pending_and_moved).
fn member_activity(device: &Device) -> Option<(u64, u64)> {
    device.ledger.membership().ok().map(|joined| joined.joined_member().pending_and_moved())
}

impl CallGroup {
    fn open(&mut self, device: &'static Device, before: Option<Box<OverheadSample>>) -> OverheadWatch {
        self.changes += 1;
        if self.open == 0 {
            let goes_on = match (&self.before, &before) {
                (Some(old), Some(fresh)) => fresh.moment.is_none() && old.is_as_good_as(fresh),
                _ => false,
            };
            if !goes_on {
                (self.before, self.attributed, self.unclear) = (before, 0, 0);
            }
            (self.open, self.shared, self.measured) = (1, false, false);
        } else {
            self.open += 1;
            self.shared = true;
        }
        OverheadWatch { device, late_samples: self.late_samples }
    }

    /// Takes the sample to compare with while calls are in flight that only give memory back.
    fn sample_late(&mut self, before: Option<Box<OverheadSample>>) {
        (self.before, self.attributed, self.unclear) = (before, 0, 0);
        self.late_samples += 1;
    }

    /// Records overhead charged or, if negative, given back by a call that began after `late_samples` late samples.
    fn attribute(&mut self, bytes: i64, late_samples: u32) {
        self.changes += 1;
        self.attributed += bytes;
        if late_samples != self.late_samples {
            self.unclear += (-bytes).max(0);
        }
    }

    /// The change that is not attributed yet, of a list's entry that changed by `own` while charges changed by
    /// `charged`. Growth that includes all the unclear memory is that memory, which was free before the sample.
    fn unattributed(&self, own: i64, charged: i64) -> i64 {
        let change = own - charged - self.attributed;
        if change >= self.unclear { change - self.unclear } else { change }
    }
}

impl OverheadWatch {
    /// Begins a call whose growth will be measured.
    ///
    /// # Cost
    /// One reading of NVML's list; none while another measurement is in flight.
    pub fn begin_growth(device: &'static Device) -> OverheadWatch {
        let mut noisy = 0;
        for _ in 0..MAX_WAITS {
            let changes = {
                let mut group = group_of(device).lock();
                match group.open {
                    0 => Some(group.changes),
                    _ if group.before.is_some() => return group.open(device, None),
                    _ => None,
                }
            };
            if let Some(changes) = changes {
                let before = if noisy < 4 { best_sample(device) } else { any_sample(device, 0, reading::read_list) }
                    .map(Box::new);
                noisy += u32::from(before.as_ref().is_some_and(|before| before.moment.is_none()));
                let mut group = group_of(device).lock();
                if before.is_none() || (group.open == 0 && group.changes == changes) {
                    return group.open(device, before);
                }
                continue;
            }
            crate::ffi::clock::sleep(50_000);
        }
        // Calls that only give back are in flight all this time: count the growth that becomes visible from now on.
        let before = best_sample(device).map(Box::new);
        let mut group = group_of(device).lock();
        if group.open > 0 && group.before.is_none() {
            group.sample_late(before.clone());
        }
        group.open(device, before)
    }

    /// Begins a call that only gives memory back.
    pub fn begin_shrinkage(device: &'static Device) -> OverheadWatch {
        group_of(device).lock().open(device, None)
    }

    /// The sample with which this call began, if it is alone so far and the sample was undisturbed.
    pub fn first_sample(&self) -> Option<OverheadSample> {
        let group = group_of(self.device).lock();
        group
            .before
            .as_ref()
            .filter(|before| !group.shared && before.moment.is_some())
            .map(|before| OverheadSample::clone(before))
    }

    /// Whether another call has overlapped with this one so far.
    pub fn has_overlapped(&self) -> bool {
        group_of(self.device).lock().shared
    }

    /// Records overhead that was charged (or, if negative, released) by another measurement than
    /// [`OverheadWatch::take_growth`].
    pub fn note_attributed(&self, bytes: i64) {
        group_of(self.device).lock().attribute(bytes, self.late_samples);
    }

    /// The change of this process's memory beyond its charges and the attributed bytes. `None`: it cannot be seen.
    fn unattributed_change(&self, after: &OverheadSample, group: &CallGroup) -> Option<i64> {
        let before = group.before.as_ref()?;
        if before.shared != after.shared {
            // The driver may count shared memory for another process than the ledger does.
            return None;
        }
        let own = before.list.change_of(&after.list, reading::own_pid()?)?;
        let change = group.unattributed(own, after.charges.wrapping_sub(before.charges).cast_signed());
        let doubt = before.uncertainty_until(after);
        Some(change - change.clamp(-doubt, doubt))
    }

    /// Bytes that have appeared and are not attributed yet. They are attributed to the caller, who charges them or
    /// takes them back with [`OverheadWatch::note_attributed`].
    pub fn take_growth(&self) -> u64 {
        self.growth_seen().0
    }

    /// As [`OverheadWatch::take_growth`], with a flag that is true if nothing disturbed the measurement.
    pub fn growth_seen(&self) -> (u64, bool) {
        group_of(self.device).lock().measured = true;
        let (bytes, exact) = self.take_part(false, |change| change.max(0)).unwrap_or((0, false));
        (bytes.unsigned_abs(), exact)
    }

    /// Bytes that are gone from the device but not released yet. They are attributed to the caller, who releases
    /// them. `None`: this cannot be seen.
    pub fn take_shrinkage(&self) -> Option<u64> {
        self.take_part(true, |change| change.min(0)).map(|(bytes, _)| bytes.unsigned_abs())
    }

    fn change_now(&self) -> i64 {
        let Some(after) = best_sample(self.device) else { return 0 };
        self.unattributed_change(&after, &group_of(self.device).lock()).unwrap_or(0)
    }

    fn take_part(&self, exactly: bool, part: impl Fn(i64) -> i64) -> Option<(i64, bool)> {
        let after = if exactly { quiet_sample(self.device)? } else { best_sample(self.device)? };
        let mut group = group_of(self.device).lock();
        let before = group.before.as_ref()?;
        let exact = before.events == after.events && before.moment.is_some() && after.moment.is_some();
        if exactly && !exact {
            return None;
        }
        let taken = self.unattributed_change(&after, &group).map(part)?;
        group.attributed += taken;
        group.changes += 1;
        Some((taken, exact))
    }

    /// Ends the call. The last of several overlapping calls returns the growth that none of them could see.
    pub fn close(self) -> u64 {
        let (last, shared) = {
            let group = group_of(self.device).lock();
            (group.open == 1, group.shared && group.measured)
        };
        // Unseen growth must last 1 ms: a thread that was stopped in the middle of a free is not growth.
        let mut rest = 0;
        if last && shared && self.change_now() > 0 {
            crate::ffi::clock::sleep(1_000_000);
            rest = self.take_growth();
        }
        let mut group = group_of(self.device).lock();
        group.changes += 1;
        group.open = group.open.saturating_sub(1);
        rest
    }
}

/// Clears the parent's calls in a forked child.
pub fn reset_after_fork() {
    for group in &CALL_GROUPS {
        // SAFETY: called in a forked child, which has only this thread.
        unsafe {
            group.reset(CallGroup::NONE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_given_back_by_a_call_older_than_the_sample_is_no_growth() {
        let mut group = CallGroup::NONE;
        let begun = group.late_samples;
        group.sample_late(None);
        group.attribute(5, group.late_samples);
        group.attribute(-64, begun);
        assert_eq!(group.unattributed(5, 0), 0, "it was free before the sample");
        assert_eq!(group.unattributed(5 - 64, 0), 0, "it was free after the sample");
        assert_eq!(group.unattributed(5 + 2, 0), 2, "and something grew");
        assert_eq!(group.unattributed(5 - 64 + 2, 0), 2);
        group.attribute(-3, group.late_samples);
        assert_eq!(group.unattributed(2 - 64, 0), 0, "a younger call gives back what the sample has");
        assert_eq!(group.unattributed(5 - 64, 0), 3);
    }
}
