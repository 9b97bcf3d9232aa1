//! Growth around a call, when several calls of this process overlap: each byte is attributed once, and none is lost.
//!
//! What counts is NVML's entry of this process minus what it was charged, compared at two moments. Calls that overlap on
//! one device form a *group*: its first one takes the reading to compare with, whoever is done attributes what has become
//! visible and that nobody has attributed yet, and the last one finds whatever the others could not see. No lock is held
//! while the driver or NVML work: a number that grows with every change of a device's groups says whether a reading was
//! taken in a quiet moment.
//!
//! A call that only gives back joins too, without a reading of its own; a measurement that meets one waits for its end,
//! for 20 ms at most, after which what is given back may blur it. Readings are taken in moments in which no other thread
//! of this process allocates or frees. Where there is no such moment within some 10 ms (a free waits for kernels that
//! run), one is taken all the same: growth is counted as far as it is beyond what is under way, see [`Sample::doubt`], and
//! a group that begins so goes on comparing with the reading of the one before where that is doubtful no more, so that
//! what stays under way is not taken off each time. Where other threads allocated or freed *between* two readings, the
//! driver's slabs may have changed by up to 2 MiB for each address or array: growth is counted as far as it is beyond that.

use super::reading::{self, Reading};
use crate::device::Device;
use crate::holdings;
use crate::inventory;
use crate::lock::Lock;
use crate::{pools, quiet, share};

/// How often a measurement looks again, 50 us apart, whether what it met has ended.
const PATIENCE: u32 = 400;
/// So much is not counted for each address or array that another thread allocated or freed meanwhile: the driver's slabs
/// are larger than what is charged.
const SLAB: i64 = 2 << 20;
/// How often a reading is tried while other threads allocate.
const TRIES: u32 = 100;

/// A reading of the list, and what this process was charged for itself at that moment.
#[derive(Clone)]
pub struct Sample {
    /// The list.
    pub list: Reading,
    /// Bytes charged, without overhead.
    pub charges: u64,
    /// Of them, what other processes may hold too.
    pub shared: u64,
    /// See [`holdings::events`].
    pub events: u64,
    /// A number that moves with every charge and release but the caller's own; `None`: other threads were at work, and list
    /// and charges need not belong together.
    pub moment: Option<u64>,
    /// Bytes reserved by others whose driver calls had not ended.
    under_way: u64,
    /// Bytes charged or released while the list was read.
    moved: u64,
    /// Bytes ever released.
    released: u64,
    /// Whether frees were under way.
    leaving: bool,
}

impl Sample {
    /// How much growth until `after` may be none: slabs that have changed; where this was no quiet moment, also what was
    /// charged then and came to the device later, and what had left the device and was released later.
    pub fn doubt(&self, after: &Sample) -> i64 {
        let events = i64::try_from(after.events.wrapping_sub(self.events)).unwrap_or(i64::MAX);
        let freed = if self.leaving { after.released.saturating_sub(self.released).min(self.charges) } else { 0 };
        // A request that has not ended is no event yet and may have its slab.
        let events = events.saturating_add(i64::from(after.under_way > 0));
        let sure = events.saturating_mul(SLAB).saturating_add(bytes(freed));
        sure.saturating_add(self.unsure()).saturating_add(bytes(after.moved))
    }

    /// What of it is known from the beginning.
    fn unsure(&self) -> i64 {
        if self.moment.is_some() { 0 } else { bytes(self.under_way.saturating_add(self.moved)) }
    }

    /// Whether growth may be counted from here as well as from `fresh`, which is no quiet moment: this one was in doubt by
    /// no more since.
    fn is_as_good_as(&self, fresh: &Sample) -> bool {
        self.shared == fresh.shared && self.doubt(fresh).saturating_sub(self.unsure()) <= fresh.unsure()
    }
}

fn bytes(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The calls that overlap on one device.
struct Group {
    /// Grows with every change.
    changes: u64,
    /// Calls under way.
    open: u32,
    /// Whether there was ever a second one.
    shared: bool,
    /// Whether any of them asks for growth that nobody knows beforehand.
    measured: bool,
    /// What to compare with; `None`: nobody in it measures, or there was nothing to read.
    before: Option<Box<Sample>>,
    /// Overhead charged in the group's time, less what was given back.
    attributed: i64,
}

static GROUPS: [Lock<Group>; 64] =
    [const { Lock::new(Group { changes: 0, open: 0, shared: false, measured: false, before: None, attributed: 0 }) };
        64];

/// A call under way.
#[must_use]
pub struct Watch {
    device: &'static Device,
}

fn group(device: &Device) -> &'static Lock<Group> {
    &GROUPS[usize::from(device.index) % GROUPS.len()]
}

/// What this process is charged for itself on the device, without overhead, which the groups count; and of it, what others
/// may hold too. Whose that is changes when one of them ends, so the dead are looked for first.
fn charges(device: &Device) -> (u64, u64) {
    let Ok(joined) = device.ledger.joined() else { return (0, 0) };
    if share::any() {
        joined.reclaim_dead();
    }
    let member = joined.member();
    let shared = member.used_and_shared().saturating_sub(member.used());
    (member.used().saturating_sub(member.overhead()) + shared, shared)
}

/// A sample of a quiet moment: no request of another thread was under way, none came or went for a little while around
/// the reading, and nothing was on its way back, from a pool or in stream order. `pending`: what the caller itself has
/// reserved. `None` where there is no such moment, or no list.
pub fn sample(device: &Device, pending: u64, read: fn(&Device) -> Option<Reading>) -> Option<Sample> {
    for round in 0..TRIES {
        let waits = pools::settle(device);
        let (before, requests) = (activity(device)?, pools::requests());
        if !waits && before.0 == pending && quiet::is_now() {
            let moment = Some(before.1.wrapping_sub(pending).wrapping_add(requests));
            let sample =
                Sample { moment, under_way: 0, moved: 0, leaving: false, ..any_sample(device, pending, read)? };
            (0..500).for_each(|_| core::hint::spin_loop());
            // What has gone back since shows here, as activity.
            let waits = pools::settle(device);
            let same = activity(device)? == before
                && pools::requests() == requests
                && holdings::events() == sample.events
                && charges(device) == (sample.charges + pending, sample.shared);
            if !waits && same && quiet::is_now() {
                return Some(sample);
            }
        }
        // At first without sleep: the shorter the time between two samples, the less has happened.
        if round < TRIES / 2 { crate::clock::give_way() } else { crate::clock::sleep(20_000) }
    }
    None
}

/// A sample of any moment.
pub fn any_sample(device: &Device, pending: u64, read: fn(&Device) -> Option<Reading>) -> Option<Sample> {
    let (under_way, before) = activity(device)?;
    let waits = pools::settle(device) || !quiet::is_now();
    let ((charges, shared), events) = (charges(device), holdings::events());
    let released = released(device);
    let charges = charges.saturating_sub(pending);
    let list = inventory::with_nvml_kept(|| read(device)).flatten()?;
    let leaving = waits || !quiet::is_now();
    let moved = activity(device)?.1.wrapping_sub(before);
    let under_way = under_way.saturating_sub(pending);
    Some(Sample { list, charges, shared, events, moment: None, under_way, moved, released, leaving })
}

fn quiet_sample(device: &Device) -> Option<Sample> {
    sample(device, 0, reading::list)
}

/// A sample of a quiet moment, or else of any.
fn best_sample(device: &Device) -> Option<Sample> {
    quiet_sample(device).or_else(|| any_sample(device, 0, reading::list))
}

/// Bytes ever released by this process: of what was ever charged and what was released, and what is charged.
fn released(device: &Device) -> u64 {
    let Ok(joined) = device.ledger.joined() else { return 0 };
    let member = joined.member();
    member.activity().1.saturating_sub(member.used()) / 2
}

/// See [`Member::activity`](vgpu_core::ledger::Member::activity).
fn activity(device: &Device) -> Option<(u64, u64)> {
    device.ledger.joined().ok().map(|joined| joined.member().activity())
}

impl Group {
    fn open(&mut self, device: &'static Device, before: Option<Box<Sample>>) -> Watch {
        self.changes += 1;
        if self.open == 0 {
            let goes_on = match (&self.before, &before) {
                (Some(old), Some(fresh)) => fresh.moment.is_none() && old.is_as_good_as(fresh),
                _ => false,
            };
            let (before, attributed) = if goes_on { (self.before.take(), self.attributed) } else { (before, 0) };
            *self = Group { open: 1, shared: false, measured: false, before, attributed, ..*self };
        } else {
            self.open += 1;
            self.shared = true;
        }
        Watch { device }
    }
}

impl Watch {
    /// Begins a call whose growth will be asked for.
    ///
    /// # Cost
    /// One reading of NVML's list, none beside another measurement.
    pub fn begin(device: &'static Device) -> Watch {
        let mut noisy = 0;
        for _ in 0..PATIENCE {
            let changes = {
                let mut group = group(device).lock();
                match group.open {
                    0 => Some(group.changes),
                    _ if group.before.is_some() => return group.open(device, None),
                    _ => None,
                }
            };
            if let Some(changes) = changes {
                let before =
                    if noisy < 4 { best_sample(device) } else { any_sample(device, 0, reading::list) }.map(Box::new);
                noisy += u32::from(before.as_ref().is_some_and(|before| before.moment.is_none()));
                let mut group = group(device).lock();
                if before.is_none() || (group.open == 0 && group.changes == changes) {
                    return group.open(device, before);
                }
                continue;
            }
            crate::clock::sleep(50_000);
        }
        // Something gives back all this time: whatever becomes visible from now on.
        let before = best_sample(device).map(Box::new);
        let mut group = group(device).lock();
        if group.open > 0 && group.before.is_none() {
            (group.before, group.attributed) = (before.clone(), 0);
        }
        group.open(device, before)
    }

    /// Begins a call that only gives back.
    pub fn ending(device: &'static Device) -> Watch {
        group(device).lock().open(device, None)
    }

    /// The sample that this call began with, if it is alone so far and that was a quiet moment.
    pub fn before(&self) -> Option<Sample> {
        let group = group(self.device).lock();
        group
            .before
            .as_ref()
            .filter(|before| !group.shared && before.moment.is_some())
            .map(|before| Sample::clone(before))
    }

    /// Whether another call overlapped with this one so far.
    pub fn shared(&self) -> bool {
        group(self.device).lock().shared
    }

    /// Notes overhead that is charged (or, negative, given back) by another measure than [`Watch::growth`].
    pub fn attributed(&self, bytes: i64) {
        let mut group = group(self.device).lock();
        group.changes += 1;
        group.attributed += bytes;
    }

    /// By how much this process has changed beyond what was charged and attributed; `None` where it cannot be seen.
    fn change(&self, after: &Sample, group: &Group) -> Option<i64> {
        let before = group.before.as_ref()?;
        if before.shared != after.shared {
            // The driver may count what is shared as another process's than the ledger does.
            return None;
        }
        let own = before.list.change_of(&after.list, reading::own_pid()?)?;
        let change = own - after.charges.wrapping_sub(before.charges).cast_signed() - group.attributed;
        let doubt = before.doubt(after);
        Some(change - change.clamp(-doubt, doubt))
    }

    /// Bytes that have appeared and that nobody has attributed: they are attributed to the caller, who charges them or
    /// takes them back with [`Watch::attributed`].
    pub fn growth(&self) -> u64 {
        self.growth_seen().0
    }

    /// As [`Watch::growth`]; and whether nothing has blurred it.
    pub fn growth_seen(&self) -> (u64, bool) {
        group(self.device).lock().measured = true;
        let (bytes, exact) = self.take(false, |change| change.max(0)).unwrap_or((0, false));
        (bytes.unsigned_abs(), exact)
    }

    /// Bytes that have gone and that nobody has given back; attributed to the caller, who gives them back. `None` where
    /// that cannot be seen.
    pub fn shrinkage(&self) -> Option<u64> {
        self.take(true, |change| change.min(0)).map(|(bytes, _)| bytes.unsigned_abs())
    }

    fn change_now(&self) -> i64 {
        let Some(after) = best_sample(self.device) else { return 0 };
        self.change(&after, &group(self.device).lock()).unwrap_or(0)
    }

    fn take(&self, exactly: bool, part: impl Fn(i64) -> i64) -> Option<(i64, bool)> {
        let after = if exactly { quiet_sample(self.device)? } else { best_sample(self.device)? };
        let mut group = group(self.device).lock();
        let before = group.before.as_ref()?;
        let exact = before.events == after.events && before.moment.is_some() && after.moment.is_some();
        if exactly && !exact {
            return None;
        }
        let taken = self.change(&after, &group).map(part)?;
        group.attributed += taken;
        group.changes += 1;
        Some((taken, exact))
    }

    /// Ends the call. The last of several that overlapped says what none of them could see.
    pub fn close(self) -> u64 {
        let (last, shared) = {
            let group = group(self.device).lock();
            (group.open == 1, group.shared && group.measured)
        };
        // What nobody saw must be there for a while: a thread that was stopped in the middle of a free is not growth.
        let mut rest = 0;
        if last && shared && self.change_now() > 0 {
            crate::clock::sleep(1_000_000);
            rest = self.growth();
        }
        let mut group = group(self.device).lock();
        group.changes += 1;
        group.open = group.open.saturating_sub(1);
        rest
    }
}

/// Forgets the parent's calls, in a forked child.
pub fn forget() {
    for group in &GROUPS {
        // SAFETY: called in a forked child, whose only thread this is.
        unsafe {
            group.reset(Group { changes: 0, open: 0, shared: false, measured: false, before: None, attributed: 0 });
        }
    }
}
