//! Holds the limits, the ledger and the gate of each device, by UUID.
//!
//! A device is registered when CUDA or NVML first shows it, and stays for the life of the process. A device without a
//! limit is not registered, and a hook that does not find its device here passes the call through. Two cases register
//! every device: in observe mode none has a limit, and with a daemon the limits may change at any time.

use crate::ffi::clock;
use crate::ffi::lock::Lock;
use crate::ledger::file::Ledger;
use crate::process::device_count;
use crate::process::message;
use crate::process::mode::{self, ProcessMode};
use crate::time::governor::Governor;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU64, Ordering::*};
use shim_sys::cuda::{CUdevice, CUresult};
use vgpu_core::memory::ledger::{LedgerSlot, OUTCOME_WAIT_NS, Reservation};
use vgpu_core::units::bytes::Bytes;

/// Most devices a process can have.
pub const MAX_DEVICES: usize = 64;

/// A device with limits.
pub struct Device {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its index in `DEVICE_TABLE`.
    pub index: u8,
    /// Its CUDA ordinal; -1: CUDA has not shown it.
    cuda: AtomicI32,
    /// Memory limit in bytes from the environment; all ones: no limit. See [`Device::memory_limit`].
    own: AtomicU64,
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
static REGISTERING_DEVICES: Lock<()> = Lock::new(());
/// Index in [`DEVICE_TABLE`] plus 1, by CUDA ordinal; 0: no limit on that device.
static DEVICE_BY_ORDINAL: [AtomicU8; MAX_DEVICES] = [const { AtomicU8::new(0) }; MAX_DEVICES];

/// Index in [`DEVICE_TABLE`] plus 1 of the driver's one device; 0: it has several, or no limit.
static ONLY_DEVICE: AtomicU8 = AtomicU8::new(0);

/// Registers a device with these limits, unless another thread was faster. `None`: there are too many devices.
#[allow(clippy::cast_possible_truncation)] // a device number is below MAX_DEVICES
pub fn add_device(uuid: [u8; 16], own: Option<Bytes>, ledger: Ledger, governor: Option<Governor>) -> Option<()> {
    let _registering = REGISTERING_DEVICES.lock();
    if by_uuid(&uuid).is_none() {
        let index = device_count::registered_devices();
        if index == MAX_DEVICES {
            return None;
        }
        let device = Box::new(Device {
            uuid,
            index: index as u8,
            cuda: AtomicI32::new(-1),
            own: AtomicU64::new(own.map_or(u64::MAX, u64::from)),
            ledger,
            governor,
            outside_ledger: LedgerSlot::zeroed(),
            is_beside: AtomicBool::new(false),
        });
        DEVICE_TABLE[index].store(Box::into_raw(device), Release);
        device_count::set_registered(index + 1);
    }
    Some(())
}

/// Records the CUDA ordinal of a registered device. `only`: the driver shows this process no other device.
pub fn note_ordinal(uuid: &[u8; 16], cuda: CUdevice, only: bool) {
    if let Some(device) = by_uuid(uuid)
        && let Some(slot) = usize::try_from(cuda).ok().and_then(|at| DEVICE_BY_ORDINAL.get(at))
    {
        device.cuda.store(cuda, Release);
        slot.store(device.index + 1, Release);
        if only {
            ONLY_DEVICE.store(device.index + 1, Release);
        }
    }
}

/// True if the driver shows no other device, so that every context and stream is on this one.
pub fn is_only(device: &Device) -> bool {
    ONLY_DEVICE.load(Acquire) == device.index + 1
}

/// Hides a device from this process.
pub fn hide_device(uuid: [u8; 16]) {
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
    (0..device_count::registered_devices()).filter_map(by_index)
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

    /// Lowers the memory limit from the environment to `memory`, if that is less.
    pub fn lower_limit(&self, memory: Option<Bytes>) {
        self.own.fetch_min(memory.map_or(u64::MAX, u64::from), Relaxed);
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
        if mode::is_observing() { u64::MAX } else { self.own.load(Relaxed).min(said) }
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

    /// Counts a refused request and returns "out of memory".
    #[cold]
    pub fn refuse_request(&self) -> CUresult {
        self.ledger.note_refused();
        CUresult::OUT_OF_MEMORY
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

    pub fn reserve_below(&'static self, bytes: u64, limit: u64) -> Result<Reservation<'static>, CUresult> {
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
    pub(super) fn is_governed(&self) -> bool {
        self.governor.as_ref().is_some_and(|governor| governor.post.is_governed())
    }
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
    use crate::daemon::link::DaemonLink;
    use crate::time::governor::CallsAbove;
    use vgpu_core::time::gate::loss::OnLoss;

    fn device(path: &std::path::Path) -> &'static Device {
        let post = DaemonLink::with_left_terms(None, OnLoss::Open, None, None);
        Box::leak(Box::new(Device {
            uuid: [0; 16],
            index: 0,
            cuda: AtomicI32::new(-1),
            own: AtomicU64::new(u64::MAX),
            ledger: Ledger::of_a_test(path.to_path_buf()),
            governor: Some(Governor::new(None, post, CallsAbove::NONE)),
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
