//! Holds the limits, the ledger and the gate of each device, by UUID.
//!
//! A device is registered when CUDA or NVML first shows it, and stays for the life of the process. A device without a
//! limit is not registered, and a hook that does not find its device here passes the call through. Two cases register
//! every device: in observe mode none has a limit, and with a daemon the limits may change at any time.

use crate::daemon::link::DaemonLink;
use crate::daemon::reconnect;
use crate::daemon::start::DaemonStart;
use crate::ffi::lock::Lock;
use crate::ffi::{clock, uuid};
use crate::ledger::file::{JoinFailure, Ledger};
use crate::member::boot::{Configuration, StartError};
use crate::memory::allocation_records::AllocationRecord;
use crate::memory::{pools, refcounted_charge, shares, slabs};
use crate::process::message;
use crate::process::mode::{self, ProcessMode};
use crate::time::governor::Governor;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicUsize, Ordering::*};
use shim_sys::cuda::{CUdevice, CUresult};
use vgpu_core::limits::{self, DeviceLimits};
use vgpu_core::memory::charging;
use vgpu_core::memory::ledger::{LedgerSlot, OUTCOME_WAIT_NS, Reservation};
use vgpu_core::protocol::wire::terms_file::TERMS_FILE_NAME;
use vgpu_core::protocol::wire::two;
use vgpu_core::units::bytes::Bytes;

/// Most devices a process can have.
const MAX_DEVICES: usize = 64;

/// Properties of a device that CUDA or NVML reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceFacts {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its NVML index, if known.
    pub ordinal: Option<u32>,
    /// Its memory in bytes, from which limits in percent are computed.
    pub total: u64,
    /// Its CUDA ordinal, if CUDA showed it.
    pub cuda: Option<CUdevice>,
}

/// A device with limits.
pub struct Device {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its index in `DEVICE_TABLE`.
    pub index: u8,
    /// Its CUDA ordinal; -1: CUDA has not shown it.
    cuda: AtomicI32,
    /// Memory limit in bytes from the environment; all ones: no limit. See [`Device::memory_limit`].
    own: u64,
    /// The tenant's charges.
    pub ledger: Ledger,
    /// The launch gate, if device time has a ceiling or is measured.
    pub governor: Option<Governor>,
    /// Charges that no ledger counts, because in observe mode the ledger could not take them. Read only if `is_beside`.
    outside_ledger: LedgerSlot,
    /// True once `beside` was used.
    is_beside: AtomicBool,
}

/// UUIDs of devices that the machine shows and the daemon does not let this tenant use. They are leaked, and in the
/// order in which they were found.
static HIDDEN_DEVICES: [AtomicPtr<[u8; 16]>; MAX_DEVICES] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_DEVICES];

static DEVICE_TABLE: [AtomicPtr<Device>; MAX_DEVICES] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_DEVICES];
static DEVICE_COUNT: AtomicUsize = AtomicUsize::new(0);
static REGISTERING_DEVICES: Lock<()> = Lock::new(());
/// Index in [`DEVICE_TABLE`] plus 1, by CUDA ordinal; 0: no limit on that device.
static DEVICE_BY_ORDINAL: [AtomicU8; MAX_DEVICES] = [const { AtomicU8::new(0) }; MAX_DEVICES];

/// Registers the devices in `shown` that have limits, each with its ledger and gate.
///
/// # Errors
/// [`StartError`] with the limit that does not fit a device, or the reason why the ledger cannot be kept.
#[allow(clippy::cast_possible_truncation)] // a device number is below MAX
pub fn register(asked: &Configuration, shown: &[DeviceFacts]) -> Result<(), StartError> {
    let (limits, observed) = (&asked.limits, asked.enforcement_mode() == limits::Mode::Observe);
    let mut refused = None;
    for facts in shown {
        if by_uuid(&facts.uuid).is_none() {
            let limits = match limits.for_device(facts.ordinal.unwrap_or(u32::MAX), Bytes(facts.total)) {
                Err(error) if observed => {
                    message::warn_once(&format!("{error}; use is measured without it (VGPU_MODE=observe)"));
                    DeviceLimits::default()
                }
                limits => limits.map_err(|e| StartError::Variable(e.to_string()))?,
            };
            if limits.is_unlimited() && !observed && asked.daemon.is_none() {
                continue;
            }
            let Some(tenant) = &asked.tenant else { return Err(StartError::NotKept("the tenant is not known".into())) };
            // The ledger is opened before the lock is taken. If two threads register the device, one of them drops its
            // ledger.
            let mut unjoined = None;
            let ledger = match Ledger::open(tenant, &facts.uuid) {
                // The daemon may hand the ledger over, or the device may not be the tenant's.
                Err(JoinFailure { reason, ledger: Some(ledger) }) if asked.daemon.is_some() => {
                    unjoined = Some(reason);
                    ledger
                }
                Err(JoinFailure { reason, .. }) if observed => {
                    message::warn_once(&format!("{reason}; this device is not measured (VGPU_MODE=observe)"));
                    continue;
                }
                ledger => ledger.map_err(|unjoined| StartError::NotKept(unjoined.reason))?,
            };
            let post = match link_daemon(asked, &facts.uuid, &ledger) {
                // NVML shows every device of the machine, so a device that the tenant may not use is only hidden. CUDA
                // shows the devices that the program will use, so there it is an error.
                Err(LinkError::NotIts(words)) if facts.cuda.is_none() => {
                    hide_device(facts.uuid);
                    refused = Some(words);
                    continue;
                }
                Err(LinkError::NotIts(words) | LinkError::Other(words)) => return Err(StartError::NotKept(words)),
                Ok(post) => post,
            };
            if let Some(reason) = unjoined.filter(|_| ledger.membership().is_err()) {
                if !observed {
                    return Err(StartError::NotKept(reason));
                }
                // The daemon may set a limit later. The device is registered so that the limit can then be enforced.
                message::warn_once(&format!("{reason}; this device is not measured (VGPU_MODE=observe)"));
            }
            let governor = match post {
                None if limits.sm.is_none() && !observed => None,
                post => Some(Governor::new(limits.sm, post.unwrap_or(DaemonLink::without_daemon()))),
            };
            let _registering = REGISTERING_DEVICES.lock();
            if by_uuid(&facts.uuid).is_none() {
                let index = DEVICE_COUNT.load(Relaxed);
                if index == MAX_DEVICES {
                    return Err(StartError::NotKept(format!("more than {MAX_DEVICES} devices")));
                }
                let device = Box::new(Device {
                    uuid: facts.uuid,
                    index: index as u8,
                    cuda: AtomicI32::new(-1),
                    own: limits.memory.map_or(u64::MAX, |bytes| bytes.0),
                    ledger,
                    governor,
                    outside_ledger: LedgerSlot::zeroed(),
                    is_beside: AtomicBool::new(false),
                });
                DEVICE_TABLE[index].store(Box::into_raw(device), Release);
                DEVICE_COUNT.store(index + 1, Release);
            }
        }
        if let (Some(cuda), Some(device)) = (facts.cuda, by_uuid(&facts.uuid))
            && let Some(slot) = usize::try_from(cuda).ok().and_then(|at| DEVICE_BY_ORDINAL.get(at))
        {
            device.cuda.store(cuda, Release);
            slot.store(device.index + 1, Release);
        }
    }
    // If the tenant may use no device of the machine, registration fails.
    match refused {
        Some(words) if all().next().is_none() => Err(StartError::NotKept(words)),
        _ => Ok(()),
    }
}

/// Reason why the daemon link of a device cannot be made.
enum LinkError {
    /// The tenant may not use the device.
    NotIts(String),
    /// Any other reason.
    Other(String),
}

/// Joins the device at the daemon, or takes its terms from the terms file while the daemon is away. `None`: no daemon
/// with pages.
fn link_daemon(asked: &Configuration, uuid: &[u8; 16], ledger: &Ledger) -> Result<Option<DaemonLink>, LinkError> {
    let name = uuid::uuid_text(uuid);
    let refused =
        |words: String| if two::is_not_its_device(&words) { LinkError::NotIts(words) } else { LinkError::Other(words) };
    match &asked.daemon {
        None => Ok(None),
        Some(DaemonStart::Session(_)) => {
            reconnect::join(&name, ledger).map(DaemonLink::with_slot).map(Some).map_err(refused)
        }
        Some(DaemonStart::File(file)) => {
            if let Some(place) = reconnect::join_if_there(&name, ledger) {
                return Ok(Some(DaemonLink::with_slot(place)));
            }
            let terms = file.terms_of_device(&name).ok_or_else(|| {
                LinkError::NotIts(format!("{TERMS_FILE_NAME} does not let this tenant use device {name}"))
            })?;
            Ok(Some(DaemonLink::with_left_terms(terms.memory_limit, file.on_loss, terms.sm_request, terms.sm_limit)))
        }
    }
}

/// Hides a device from this process.
fn hide_device(uuid: [u8; 16]) {
    let name = Box::into_raw(Box::new(uuid));
    for place in &HIDDEN_DEVICES {
        let there = place.compare_exchange(core::ptr::null_mut(), name, Release, Acquire);
        // SAFETY: a UUID that was leaked here.
        if there.is_ok() || there.is_err_and(|known| unsafe { *known } == uuid) {
            return;
        }
    }
}

/// Returns the hidden devices' UUIDs, up to the first empty entry.
fn hidden_devices() -> impl Iterator<Item = &'static [u8; 16]> {
    // SAFETY: null, or a UUID that was leaked by `hide` and is never changed.
    HIDDEN_DEVICES.iter().map_while(|place| unsafe { place.load(Acquire).as_ref() })
}

/// True if devices are hidden from this process. In observe mode none is.
///
/// # Cost
/// One load if there are none.
pub fn hides_any() -> bool {
    hidden_devices().next().is_some() && all().any(|device| !device.is_observed())
}

/// True if the device is hidden, because the daemon does not let this tenant use it.
pub fn is_foreign(uuid: &[u8; 16]) -> bool {
    hides_any() && hidden_devices().any(|name| name == uuid)
}

/// Returns all registered devices.
pub fn all() -> impl Iterator<Item = &'static Device> {
    (0..DEVICE_COUNT.load(Acquire)).filter_map(by_index)
}

/// Returns the device at this index.
#[inline]
pub fn by_index(index: usize) -> Option<&'static Device> {
    // SAFETY: null, or a leaked Device that is never changed.
    unsafe { DEVICE_TABLE.get(index)?.load(Acquire).as_ref() }
}

/// Returns the device with this UUID, if it is registered.
pub fn by_uuid(uuid: &[u8; 16]) -> Option<&'static Device> {
    all().find(|device| device.uuid == *uuid)
}

/// Returns the device with CUDA ordinal `dev`, if it is registered.
#[inline]
pub fn by_cuda(dev: CUdevice) -> Option<&'static Device> {
    match DEVICE_BY_ORDINAL.get(usize::try_from(dev).ok()?)?.load(Acquire) {
        0 => None,
        number => by_index(usize::from(number) - 1),
    }
}

impl Device {
    /// Returns its CUDA ordinal; -1: CUDA has not shown it.
    pub fn cuda(&self) -> CUdevice {
        self.cuda.load(Acquire)
    }

    /// Returns the tenant's memory limit on this device in bytes; all ones: no limit. A change by the daemon takes
    /// effect at the next call.
    ///
    /// # Cost
    /// Two loads; with a daemon five more, some thirty after a change.
    #[inline(always)]
    pub fn memory_limit(&self) -> u64 {
        // The daemon's limit is read first, because that also updates the mode.
        let said = self.governor.as_ref().map_or(u64::MAX, |governor| governor.post.memory_limit());
        if mode::is_observing() { u64::MAX } else { self.own.min(said) }
    }

    /// Returns the most bytes that charges may reach: the limit minus [`Device::uncharged_bytes`].
    ///
    /// # Cost
    /// [`Device::memory_limit`] and one load.
    #[inline(always)]
    pub fn chargeable_bytes(&self) -> u64 {
        let limit = self.memory_limit();
        if limit == u64::MAX { limit } else { limit.saturating_sub(self.uncharged_bytes()) }
    }

    /// Returns the bytes that, as the daemon reports, the driver holds for the tenant in addition to its charges.
    #[inline(always)]
    pub fn uncharged_bytes(&self) -> u64 {
        self.governor.as_ref().map_or(0, |governor| governor.post.uncharged_bytes(|| self.ledger_overhead()))
    }

    #[cold]
    fn ledger_overhead(&self) -> u64 {
        self.ledger.membership().map_or(0, |joined| joined.joined_member().member_ledger().overhead())
    }

    /// True in observe mode: use is measured, and nothing is refused, delayed or shown differently. A change by the
    /// daemon takes effect at the next call.
    pub fn is_observed(&self) -> bool {
        self.governor.as_ref().map(|governor| governor.post.memory_limit());
        mode::is_observing()
    }

    /// Reserves `bytes` for one driver call. Before a refusal, this process's pools and graph memory give back their
    /// unused bytes, as they would if the device itself were full.
    ///
    /// # Errors
    /// The program gets "out of memory", or "not permitted" if the ledger itself is unusable.
    #[inline(always)] // hot, and the library is made for size
    pub fn reserve(&'static self, bytes: u64) -> Result<Reservation<'static>, CUresult> {
        match self.ledger.reserve_at_once(bytes, self.chargeable_bytes()) {
            Some(reservation) => Ok(reservation),
            None => self.reserve_after_trim(bytes),
        }
    }

    #[cold]
    fn reserve_after_trim(&'static self, bytes: u64) -> Result<Reservation<'static>, CUresult> {
        let outcome = self.trim_and_reserve(bytes, Self::chargeable_bytes);
        if outcome.is_err() {
            self.ledger.note_refused();
        }
        outcome
    }

    /// As [`Device::reserve`], for overhead that the driver already took. It compares with the limit and not with
    /// [`Device::chargeable_bytes`], because the daemon may already count this overhead as uncharged.
    ///
    /// # Errors
    /// As [`Device::reserve`].
    pub fn reserve_taken(&'static self, bytes: u64) -> Result<Reservation<'static>, CUresult> {
        self.trim_and_reserve(bytes, Self::memory_limit).inspect_err(|_| self.ledger.note_refused())
    }

    /// Counts a refused request and returns "out of memory".
    #[cold]
    pub fn refuse_request(&self) -> CUresult {
        self.ledger.note_refused();
        CUresult::OUT_OF_MEMORY
    }

    fn trim_and_reserve(&'static self, bytes: u64, room: fn(&Self) -> u64) -> Result<Reservation<'static>, CUresult> {
        self.look_for_daemon();
        match self.reserve_below(bytes, room(self)) {
            // A request above the limit never fits, so only a smaller one trims the pools.
            Err(CUresult::OUT_OF_MEMORY) if bytes <= self.memory_limit() && pools::give_back(self) => {
                self.reserve_below(bytes, room(self))
            }
            other => other,
        }
    }

    /// Checks whether the daemon is alive, and looks for a new one if not. Called before a request is refused or a
    /// number is shown.
    pub fn look_for_daemon(&self) {
        if let Some(governor) = &self.governor {
            governor.post.look_for_daemon();
        }
    }

    /// Trims the pools if `bytes` would not fit otherwise. For calls whose growth is measured: a trim between the first
    /// reading and the call would falsify the measurement.
    pub fn make_room(&'static self, bytes: u64) {
        if self.ledger.reserve_at_once(bytes, self.chargeable_bytes()).is_none() {
            drop(self.trim_and_reserve(bytes, Self::chargeable_bytes));
        }
    }

    /// As [`Device::reserve`], without trimming the pools.
    ///
    /// # Errors
    /// As [`Device::reserve`].
    pub fn try_reserve(&'static self, bytes: u64) -> Result<Reservation<'static>, CUresult> {
        self.reserve_below(bytes, self.chargeable_bytes())
    }

    /// Reserves bytes that the driver already spent, without a limit.
    ///
    /// # Errors
    /// "Not permitted" if the ledger itself is unusable.
    pub fn reserve_spent(&'static self, bytes: u64) -> Result<Reservation<'static>, CUresult> {
        self.reserve_below(bytes, u64::MAX)
    }

    fn reserve_below(&'static self, bytes: u64, limit: u64) -> Result<Reservation<'static>, CUresult> {
        // A request for 0 bytes fits even if the daemon sees the tenant above its limit.
        let limit = if bytes == 0 { u64::MAX } else { limit };
        match self.ledger.reserve(bytes, limit) {
            // The sum is larger than any ledger can count. The driver decides about the request.
            Ok(Err(_)) if limit == u64::MAX && self.is_observed() => {
                Ok(Reservation::outside_ledger(&self.outside_ledger, bytes))
            }
            // The daemon lifted the limit after it was read here. Charge without a limit, as observed use is charged.
            Ok(Err(_)) if self.is_observed() => self.reserve_below(bytes, u64::MAX),
            Ok(outcome) => outcome.map_err(|_| CUresult::OUT_OF_MEMORY),
            // The daemon may set a limit later, so only this call proceeds and the mode stays.
            Err(reason) if self.is_observed() && self.is_governed() => {
                message::warn_once(&format!("{reason}; not all is measured (the daemon's observe)"));
                Ok(self.ledger.reserve_as_joined(bytes).unwrap_or_else(|| self.reserve_outside_ledger(bytes)))
            }
            Err(reason) if self.is_observed() => {
                message::warn_once(&format!("{reason}; nothing is measured any more (VGPU_MODE=observe)"));
                mode::set(ProcessMode::Off);
                Ok(self.reserve_outside_ledger(bytes))
            }
            Err(reason) => {
                message::warn_once(&reason);
                Err(CUresult::NOT_PERMITTED)
            }
        }
    }

    /// True if the tenant is within its limit now.
    pub fn fits_limit(&self) -> bool {
        self.ledger.tenant_used().is_ok_and(|used| used <= self.chargeable_bytes())
    }

    /// As [`Device::fits_limit`], but waits up to [`OUTCOME_WAIT_NS`] for undecided requests of other members, as every
    /// refusal does.
    pub fn fits_in_the_end(&self) -> bool {
        let since = clock::now();
        while !self.fits_limit() {
            if clock::now().saturating_sub(since) > OUTCOME_WAIT_NS {
                return false;
            }
            clock::sleep(100_000);
        }
        true
    }

    /// Releases a charge on this device.
    #[inline]
    pub fn release(&self, bytes: u64) {
        let bytes = self.to_ledger(bytes);
        if let Ok(joined) = self.ledger.membership() {
            joined.joined_member().release(bytes);
        }
    }

    /// Returns the part of `bytes` to release in the ledger. Charges that no ledger counts are released first, so the
    /// ledger never releases bytes that it did not charge.
    ///
    /// # Cost
    /// One load, unless the ledger was unusable before.
    #[inline(always)]
    pub fn to_ledger(&self, bytes: u64) -> u64 {
        if self.has_beside() { self.outside_ledger.take_committed(bytes) } else { bytes }
    }

    /// Returns a reservation that no ledger counts, for a call that proceeds although its ledger is unusable.
    #[cold]
    fn reserve_outside_ledger(&'static self, bytes: u64) -> Reservation<'static> {
        self.is_beside.store(true, Relaxed);
        Reservation::outside_ledger(&self.outside_ledger, bytes)
    }

    /// True if this process may hold charges that no ledger counts.
    pub fn has_beside(&self) -> bool {
        self.is_beside.load(Relaxed)
    }

    /// True if a daemon sets this device's limits, whether it runs or is away.
    fn is_governed(&self) -> bool {
        self.governor.as_ref().is_some_and(|governor| governor.post.is_governed())
    }
}

/// Releases an allocation record's charge on its device, or its hold on a share or refcounted charge.
#[inline(always)]
pub fn release(holding: AllocationRecord) {
    match (holding.as_slab(), by_index(usize::from(holding.device))) {
        (Some((device, slab)), _) => {
            if slabs::leave_slab(slab)
                && let Some(device) = by_index(usize::from(device))
            {
                device.release(charging::SLAB_BYTES);
            }
        }
        (None, Some(device)) => device.release(holding.bytes),
        (None, None) => release_hold(holding),
    }
}

#[cold]
fn release_hold(holding: AllocationRecord) {
    holding.as_share().into_iter().for_each(shares::let_go);
    holding.as_refcounted().and_then(refcounted_charge::drop_name).into_iter().for_each(release);
}

/// Gives up the parent's memberships in a forked child.
pub fn reset_after_fork() {
    // SAFETY: runs in the child's thread that resets it after the fork, before any other thread runs.
    unsafe { REGISTERING_DEVICES.reset(()) };
    for device in all() {
        device.ledger.reset_after_fork();
        device.outside_ledger.take_committed(u64::MAX);
        if let Some(governor) = &device.governor {
            governor.forget_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_core::time::gate::loss::OnLoss;

    fn device(path: &std::path::Path) -> &'static Device {
        let post = DaemonLink::with_left_terms(None, OnLoss::Open, None, None);
        Box::leak(Box::new(Device {
            uuid: [0; 16],
            index: 0,
            cuda: AtomicI32::new(-1),
            own: u64::MAX,
            ledger: Ledger::of_a_test(path.to_path_buf()),
            governor: Some(Governor::new(None, post)),
            outside_ledger: LedgerSlot::zeroed(),
            is_beside: AtomicBool::new(false),
        }))
    }

    /// One test for all cases, because the observe mode applies to the whole process.
    #[test]
    fn what_is_observed_is_charged_or_stands_beside_the_ledger_and_ends_nothing() {
        let folder = std::env::temp_dir().join(format!("vgpu-device-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        mode::set_observing(true);

        // The second reservation is refused by a limit that was read just before the daemon lifted it.
        let lifted = device(&folder.join("a"));
        let used = || lifted.ledger.membership().unwrap().joined_member().used_bytes();
        lifted.reserve_below(100, u64::MAX).unwrap().commit();
        lifted.reserve_below(200, 150).unwrap().commit();
        assert_eq!(used(), 300, "it is charged");
        lifted.release(200);
        assert_eq!(used(), 100, "and given back once");

        // The ledger cannot be joined for a while.
        let before = mode::process_mode();
        let gone = device(&folder.join("b/ledger"));
        gone.reserve_below(200, u64::MAX).unwrap().commit();
        drop(gone.reserve_below(50, u64::MAX).unwrap());
        assert_eq!(mode::process_mode(), before, "the daemon's next word is heard");
        std::fs::create_dir(folder.join("b")).unwrap();
        let used = || gone.ledger.membership().unwrap().joined_member().used_bytes();
        gone.reserve_below(300, u64::MAX).unwrap().commit();
        assert_eq!(used(), 300);
        gone.release(200);
        assert_eq!(used(), 300, "what it never had is not taken off");
        gone.release(300);
        assert_eq!(used(), 0);
        mode::set_observing(false);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
