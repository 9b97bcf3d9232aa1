//! Charges the device memory that the driver takes beyond the program's requests: contexts, code and its globals, and
//! limits of a context. It is measured at the call that causes it, charged as overhead, and released with its cause.
//!
//! - [`reading`]: NVML's process list of a device, this process's entry in it, and growth between two readings
//! - [`figures`]: sizes of contexts, known before the driver is asked
//! - [`watch`]: growth around a call, also when several calls overlap
//! - [`code`]: which context holds which overhead besides its own
//! - here: a context's own charge
//!
//! A context's size is the growth of this process's entry in NVML's list over the creation. If the process had no
//! entry, it is the entry that appeared meanwhile, if only one did. The first context of a process and further ones
//! have separate figures. Later members reserve by the figures that an earlier one left in the ledger. Without an
//! entry, the size is the growth of the device's used memory, provided that the rest of the list did not change and
//! two consecutive readings agree on either side. A size found this way is used for this one context only.
//!
//! Where NVML cannot be used, or its list does not show this process, overhead counts as zero, except for figures of
//! other members and the heap of a context. Memory that the driver takes outside the watched calls is not counted
//! either. Examples are code loaded by a first launch, local memory that a launch enlarges, and code that libcudart
//! loads through the driver's private tables. A library's code counts from the call that brings it into a context.

pub mod code;
pub mod figures;
mod reading;
mod watch;

use crate::device::table::Device;
use crate::driver::library::DriverCall;
use crate::ffi::lock::Lock;
use crate::ledger::held_shares;
use crate::process::message;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use reading::ContextGrowth;
use shim_sys::cuda::{CUcontext, CUresult};
use vgpu_core::memory::ledger::Reservation;
use vgpu_core::units::bytes::Bytes;
use watch::OverheadSample;
pub use watch::OverheadWatch;

/// The charge of each living context.
static CHARGED_CONTEXTS: Lock<Vec<ContextCharge>> = Lock::new(Vec::new());

/// Whether this process has a context on the device.
fn has_context(device: &Device) -> bool {
    CHARGED_CONTEXTS.lock().iter().any(|entry| entry.device == device.index)
}

/// Whether the size of the process's next context on the device must be measured.
pub fn is_size_unknown(device: &Device) -> bool {
    figures::known_figure(device, has_context(device)).is_none()
}

/// Returns "out of memory" and reports why: the program did not ask for these bytes and would not understand.
fn refuse_overhead(device: &Device, bytes: u64) -> CUresult {
    let beside = if bytes > device.memory_limit() { "" } else { " in addition to the memory in use" };
    message::warn_once(&format!(
        "a context takes {} of device memory, which does not fit the limit of {}{beside}; give this tenant a larger one",
        Bytes(bytes),
        Bytes(device.memory_limit())
    ));
    CUresult::OUT_OF_MEMORY
}

/// Creates a context with its overhead charged. `real` creates it, `created` returns its handle, `undo` destroys it
/// again and returns whether it is gone. If another holder keeps it alive, it is charged whatever the limit.
pub fn create_charged(
    device: &'static Device,
    real: DriverCall<'_>,
    created: &dyn Fn() -> CUcontext,
    undo: &dyn Fn(CUcontext) -> bool,
) -> CUresult {
    let further = has_context(device);
    let figure = figures::known_figure(device, further);
    figure.into_iter().for_each(|figure| device.make_room(figure.bytes));
    let watch = OverheadWatch::begin_growth(device);
    let ahead = match figure.map(|figure| device.reserve(figure.bytes).map_err(|_| figure.bytes)).transpose() {
        Ok(ahead) => ahead,
        Err(bytes) => {
            watch.finish_call(device, CUcontext::NULL);
            return refuse_overhead(device, bytes);
        }
    };
    // A process with its own figure need not measure again. One that uses another member's must still learn its entry
    // in the list.
    let looks = figure.is_none_or(|figure| !figure.own);
    let read = reading::list_or_none;
    let expected = ahead.as_ref().map_or(0, Reservation::reserved_bytes);
    let look =
        || watch::sample_when_quiet(device, expected, read).or_else(|| watch::any_sample(device, expected, read));
    let mut before = if looks { watch.first_sample().or_else(look) } else { None };
    if figure.is_none() {
        before.iter_mut().for_each(|before| before.list.add_used(device, false));
    }
    let overhead = || device.ledger.membership().map_or(0, |joined| joined.joined_member().overhead_bytes());
    let spent = overhead();
    let result = real();
    if !result.ok() {
        drop(ahead);
        watch.finish_call(device, CUcontext::NULL);
        return result;
    }
    let context = created();
    let mut after = before.as_ref().and_then(|_| look());
    if let (None, Some(before), Some(after)) = (figure, &before, &mut after)
        && before.list.processes_are_those_of(&after.list)
    {
        after.list.add_used(device, before.list.has_used());
    }
    let found = match before.zip(after) {
        Some((before, after)) => measure_creation(
            device,
            &ContextCreation { figure, further, spent, shared: watch.has_overlapped() },
            &before,
            &after,
        ),
        None => MeasuredOverhead::exactly(expected),
    };
    let blurred = found.blurred.then_some(further);
    let found = found.bytes;
    let rest = match device.reserve_taken(found.saturating_sub(expected)) {
        Ok(rest) => rest,
        Err(_) => {
            let gone = undo(context);
            drop(ahead);
            if !gone {
                charge_survivor(
                    ContextCharge { context: context.0 as usize, device: device.index, bytes: found, blurred },
                    &watch,
                );
            }
            watch.finish_call(device, CUcontext::NULL);
            return refuse_overhead(device, found);
        }
    };
    commit_creation([ahead, Some(rest)], expected.saturating_sub(found), context, device, &watch, blurred);
    watch.finish_call(device, context);
    crate::device::watch::start_beside_daemon();
    result
}

/// The facts about a context's creation.
struct ContextCreation {
    figure: Option<figures::ContextFigure>,
    further: bool,
    /// Overhead that was charged before the context's creation.
    spent: u64,
    /// Whether other measurements overlapped with the creation, so that the readings are uncertain.
    shared: bool,
}

/// The size of a context, from readings before and after. A figure is stored only if no other thread was active.
/// Allocations take whole slabs of the driver, memory from pools is seen late, and the owner of exported memory may
/// change whenever a process ends. Each of these would make the figure wrong for good. If the measurement was
/// disturbed, a known figure is used. If none is known, the reading is used until one is: `correct`.
fn measure_creation(
    device: &Device,
    call: &ContextCreation,
    before: &OverheadSample,
    after: &OverheadSample,
) -> MeasuredOverhead {
    let known = call.figure.map(|figure| figure.bytes);
    let own = reading::own_pid();
    match before.list.growth_to(&after.list, own.unwrap_or(std::process::id()), own.is_some()) {
        Some(ContextGrowth::Own { pid, bytes }) => {
            reading::set_own_pid(pid);
            // A new entry also shows memory that this process held on the device without a context.
            let listed = before.list.lists_pid(pid);
            let bytes = if listed { bytes } else { bytes.saturating_sub(before.charges + call.spent) };
            let meanwhile = after.charges.saturating_sub(before.charges);
            let quiet = before.moment.is_some() && after.moment.is_some() && !call.shared;
            let same = (before.moment, before.charges) == (after.moment, after.charges);
            if quiet && same && !held_shares::any() {
                figures::note_figure(device, call.further, bytes);
                return MeasuredOverhead { bytes, blurred: false };
            }
            let blurred = MeasuredOverhead { bytes: bytes.saturating_sub(meanwhile), blurred: true };
            known.map_or(blurred, MeasuredOverhead::exactly)
        }
        Some(ContextGrowth::Device(bytes)) => MeasuredOverhead::exactly(known.unwrap_or(bytes)),
        None => MeasuredOverhead::exactly(known.unwrap_or(0)),
    }
}

/// The measured size of a context.
#[derive(Clone, Copy)]
struct MeasuredOverhead {
    bytes: u64,
    /// Other threads were active, and no figure was known.
    blurred: bool,
}

impl MeasuredOverhead {
    fn exactly(bytes: u64) -> Self {
        Self { bytes, blurred: false }
    }
}

/// Number of contexts whose charge is a disturbed measurement.
static BLURRED_COUNT: AtomicU32 = AtomicU32::new(0);

/// Corrects contexts charged by a disturbed measurement, once a figure is known: downwards always, upwards if it
/// fits.
fn correct_blurred(device: &'static Device) {
    if BLURRED_COUNT.load(Relaxed) == 0 {
        return;
    }
    for further in [false, true] {
        let Some(figure) = figures::known_figure(device, further) else { continue };
        let blurred = |one: &&ContextCharge| one.device == device.index && one.blurred == Some(further);
        loop {
            let seen = CHARGED_CONTEXTS.lock().iter().find(blurred).copied();
            let Some(seen) = seen else { break };
            // Without the lock: a reservation that does not fit at first asks the driver.
            let Ok(more) = device.try_reserve(figure.bytes.saturating_sub(seen.bytes)) else { return };
            let same = |one: &mut ContextCharge| (one.bytes, one.blurred) = (figure.bytes, None);
            if CHARGED_CONTEXTS.lock().iter_mut().find(|one| **one == seen).map(same).is_none() {
                continue; // it ended, or another thread was faster; the reservation is dropped
            }
            BLURRED_COUNT.fetch_sub(1, Relaxed);
            more.commit_overhead();
            release(device.index, seen.bytes.saturating_sub(figure.bytes));
        }
    }
}

/// The overhead charged for one context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextCharge {
    context: usize,
    device: u8,
    bytes: u64,
    /// If the charge is a disturbed measurement: whether it was a further context of the process.
    blurred: Option<bool>,
}

impl ContextCharge {
    /// The device that the context is on.
    pub fn charged_device(&self) -> Option<&'static Device> {
        crate::device::table::by_index(usize::from(self.device))
    }
}

/// A context's charge, if it has one.
pub fn charge_of(context: CUcontext) -> Option<ContextCharge> {
    CHARGED_CONTEXTS.lock().iter().find(|entry| entry.context == context.0 as usize).copied()
}

/// Removes and releases the charge of a context that has ended. The memory of a process's first context stays until
/// its last context on the device ends, whichever was created first. So the larger charge stays with a living
/// context.
fn end_charge(context: CUcontext) -> u64 {
    let taken = {
        let mut all = CHARGED_CONTEXTS.lock();
        let Some(at) = all.iter().position(|entry| entry.context == context.0 as usize) else { return 0 };
        let mut taken = all.swap_remove(at);
        let others = all.iter_mut().filter(|entry| entry.device == taken.device);
        if let Some(other) = others.min_by_key(|entry| entry.bytes)
            && other.bytes < taken.bytes
        {
            core::mem::swap(&mut other.bytes, &mut taken.bytes);
            core::mem::swap(&mut other.blurred, &mut taken.blurred);
        }
        BLURRED_COUNT.fetch_sub(u32::from(taken.blurred.is_some()), Relaxed);
        taken
    };
    release(taken.device, taken.bytes)
}

/// Watches a call that may end a context. `real` makes the call, releases the program's own memory if the context has
/// ended, and returns whether it has. Then all its overhead is released, code and limits too, except for memory that
/// other contexts share.
pub fn end_charged(context: CUcontext, real: &mut dyn FnMut() -> (CUresult, bool)) -> CUresult {
    let device = charge_of(context).and_then(|charged| charged.charged_device());
    let heir = || {
        let device = device?.index;
        CHARGED_CONTEXTS
            .lock()
            .iter()
            .find(|one| one.device == device && one.context != context.0 as usize)
            .map(|one| one.context)
    };
    // The memory that the context's end frees must be measured only if other contexts may share its code memory.
    let shares = device.is_some_and(code::any) && heir().is_some();
    let watch =
        device.map(
            |device| if shares { OverheadWatch::begin_growth(device) } else { OverheadWatch::begin_shrinkage(device) },
        );
    let (result, ended) = real();
    if ended {
        let returned = end_charge(context);
        let gone = watch.as_ref().and_then(|watch| {
            watch.note_attributed(-returned.cast_signed());
            if shares { watch.take_shrinkage() } else { None }
        });
        let own = code::end_of_context(context, gone, heir());
        let others = match (device, gone) {
            // More than its own share: a block of code that it shared with contexts that ended before.
            (Some(device), Some(gone)) => {
                code::give_back_of(code::CodeSource::Inherited, None, device, gone.saturating_sub(own))
            }
            _ => 0,
        };
        let left = device.map_or(0, code::beyond_what_is_loaded);
        if let Some(watch) = &watch {
            watch.note_attributed(gone.unwrap_or(0).cast_signed() - (own + others + left).cast_signed());
        }
    }
    if let (Some(device), Some(watch)) = (device, watch) {
        watch.finish_call(device, CUcontext::NULL);
    }
    result
}

/// Releases bytes that were charged as overhead; returns their number.
fn release(device: u8, bytes: u64) -> u64 {
    if let Some(device) = crate::device::table::by_index(usize::from(device))
        && let Ok(joined) = device.ledger.membership()
    {
        joined.joined_member().release_overhead(device.to_ledger(bytes));
    }
    bytes
}

/// Commits the charge of a new context, less `surplus`. A primary context that several threads retained at once is
/// charged once, by the largest of their readings, because the last reading may show no growth.
fn commit_creation(
    parts: [Option<Reservation<'static>>; 2],
    surplus: u64,
    context: CUcontext,
    device: &Device,
    watch: &OverheadWatch,
    blurred: Option<bool>,
) {
    let reserved: u64 = parts.iter().flatten().map(Reservation::reserved_bytes).sum();
    let bytes = reserved.saturating_sub(surplus);
    let fewer = {
        let mut all = CHARGED_CONTEXTS.lock();
        match all.iter_mut().find(|entry| entry.context == context.0 as usize) {
            Some(entry) if entry.bytes >= bytes => return, // the reservations are dropped, which rolls them back
            Some(entry) => core::mem::replace(&mut entry.bytes, bytes),
            None => {
                all.push(ContextCharge { context: context.0 as usize, device: device.index, bytes, blurred });
                BLURRED_COUNT.fetch_add(u32::from(blurred.is_some()), Relaxed);
                0
            }
        }
    };
    watch.note_attributed((bytes - fewer).cast_signed());
    parts.into_iter().flatten().for_each(Reservation::commit_overhead);
    release(device.index, fewer + surplus);
}

/// Charges a context that did not fit and could not be destroyed again, unless it is charged already.
#[cold]
fn charge_survivor(one: ContextCharge, watch: &OverheadWatch) {
    {
        let mut all = CHARGED_CONTEXTS.lock();
        if all.iter().any(|entry| entry.context == one.context) {
            return;
        }
        all.push(one);
        BLURRED_COUNT.fetch_add(u32::from(one.blurred.is_some()), Relaxed);
    }
    watch.note_attributed(one.bytes.cast_signed());
    if let Some(Ok(joined)) = one.charged_device().map(|device| device.ledger.membership()) {
        joined.joined_member().charge_spent_overhead(one.bytes);
    }
}

impl OverheadWatch {
    /// Ends the call. Growth that overlapping calls caused and none could see is charged to `context` whatever the
    /// limit, because the driver has taken the memory already.
    pub fn finish_call(self, device: &'static Device, context: CUcontext) {
        let rest = self.close();
        correct_blurred(device);
        if rest > 0 {
            charge_spent(device, context, rest);
        }
    }
}

/// Charges memory that the driver has taken already, whatever the limit.
pub fn charge_spent(device: &'static Device, context: CUcontext, bytes: u64) {
    let living = || {
        CHARGED_CONTEXTS
            .lock()
            .iter()
            .find(|one| one.device == device.index)
            .map(|one| CUcontext(one.context as *mut _))
    };
    let context = if context.is_null() { living().unwrap_or(context) } else { context };
    if let Ok(joined) = device.ledger.membership() {
        joined.joined_member().charge_spent_overhead(bytes);
        code::note_loaded(code::LoadedHandle::Part, context, device, bytes, false);
        code::add(code::CodeSource::Code, context, device, bytes);
    }
}

/// Clears the parent's overhead in a forked child.
pub fn reset_after_fork() {
    // SAFETY: called in a forked child, which has only this thread.
    unsafe { CHARGED_CONTEXTS.reset(Vec::new()) };
    BLURRED_COUNT.store(0, Relaxed);
    code::reset_after_fork();
    watch::reset_after_fork();
    reading::reset_after_fork();
}
