//! Holds the limits, the ledger and the gate of each device, by UUID.
//!
//! A device is registered when CUDA or NVML first shows it, and stays for the life of the process. A device without a
//! limit is not registered, and a hook that does not find its device here passes the call through. Two cases register
//! every device: in observe mode none has a limit, and with a daemon the limits may change at any time.

use crate::boot::{Asked, Trouble};
use crate::daemon::{Post, Start, renew};
use crate::governor::Governor;
use crate::holdings::Holding;
use crate::ledger::{Ledger, Unjoined};
use crate::lock::Lock;
use crate::mode::{self, Mode};
use crate::{clock, counted, pools, say, share, slabs, uuid};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicUsize, Ordering::*};
use shim_sys::cuda::{CUdevice, CUresult};
use vgpu_core::limits::{self, DeviceLimits};
use vgpu_core::memory::charging;
use vgpu_core::memory::ledger::{OUTCOME_WAIT_NS, Reservation, Slot};
use vgpu_core::protocol::wire::terms_file::FILE_NAME;
use vgpu_core::protocol::wire::two;
use vgpu_core::units::bytes::Bytes;

/// Most devices a process can have.
const MAX: usize = 64;

/// Properties of a device that CUDA or NVML reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
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
    /// Its index in `DEVICES`.
    pub index: u8,
    /// Its CUDA ordinal; -1: CUDA has not shown it.
    cuda: AtomicI32,
    /// Memory limit in bytes from the environment; all ones: no limit. See [`Device::limit`].
    own: u64,
    /// The tenant's charges.
    pub ledger: Ledger,
    /// The launch gate, if device time has a ceiling or is measured.
    pub governor: Option<Governor>,
    /// Charges that no ledger counts, because in observe mode the ledger could not take them. Read only if `is_beside`.
    beside: Slot,
    /// True once `beside` was used.
    is_beside: AtomicBool,
}

/// UUIDs of devices that the machine shows and the daemon does not let this tenant use. They are leaked, and in the
/// order in which they were found.
static FOREIGN: [AtomicPtr<[u8; 16]>; MAX] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX];

static DEVICES: [AtomicPtr<Device>; MAX] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static REGISTERING: Lock<()> = Lock::new(());
/// Index in [`DEVICES`] plus 1, by CUDA ordinal; 0: no limit on that device.
static BY_CUDA: [AtomicU8; MAX] = [const { AtomicU8::new(0) }; MAX];

/// Registers the devices in `shown` that have limits, each with its ledger and gate.
///
/// # Errors
/// [`Trouble`] with the limit that does not fit a device, or the reason why the ledger cannot be kept.
#[allow(clippy::cast_possible_truncation)] // a device number is below MAX
pub fn register(asked: &Asked, shown: &[Facts]) -> Result<(), Trouble> {
    let (limits, observed) = (&asked.limits, asked.mode() == limits::Mode::Observe);
    let mut refused = None;
    for facts in shown {
        if by_uuid(&facts.uuid).is_none() {
            let limits = match limits.for_device(facts.ordinal.unwrap_or(u32::MAX), Bytes(facts.total)) {
                Err(error) if observed => {
                    say::once(&format!("{error}; use is measured without it (VGPU_MODE=observe)"));
                    DeviceLimits::default()
                }
                limits => limits.map_err(|e| Trouble::Variable(e.to_string()))?,
            };
            if limits.is_unlimited() && !observed && asked.daemon.is_none() {
                continue;
            }
            let Some(tenant) = &asked.tenant else { return Err(Trouble::NotKept("the tenant is not known".into())) };
            // The ledger is opened before the lock is taken. If two threads register the device, one of them drops its
            // ledger.
            let ledger = match Ledger::open(tenant, &facts.uuid) {
                // The daemon will hand the ledger over, or refuse the device.
                Err(Unjoined { ledger: Some(ledger), .. }) if matches!(asked.daemon, Some(Start::Session(_))) => ledger,
                Err(Unjoined { reason, ledger }) if observed => {
                    say::once(&format!("{reason}; this device is not measured (VGPU_MODE=observe)"));
                    // The daemon may set a limit later. The device is registered so that the limit can then be
                    // enforced.
                    match ledger.filter(|_| asked.daemon.is_some()) {
                        Some(ledger) => ledger,
                        None => continue,
                    }
                }
                ledger => ledger.map_err(|unjoined| Trouble::NotKept(unjoined.reason))?,
            };
            let post = match post(asked, &facts.uuid, &ledger) {
                // NVML shows every device of the machine, so a device that the tenant may not use is only hidden. CUDA
                // shows the devices that the program will use, so there it is an error.
                Err(Unposted::NotIts(words)) if facts.cuda.is_none() => {
                    hide(facts.uuid);
                    refused = Some(words);
                    continue;
                }
                Err(Unposted::NotIts(words) | Unposted::Other(words)) => return Err(Trouble::NotKept(words)),
                Ok(post) => post,
            };
            let governor = match post {
                None if limits.sm.is_none() && !observed => None,
                post => Some(Governor::new(limits.sm, post.unwrap_or(Post::none()))),
            };
            let _registering = REGISTERING.lock();
            if by_uuid(&facts.uuid).is_none() {
                let index = COUNT.load(Relaxed);
                if index == MAX {
                    return Err(Trouble::NotKept(format!("more than {MAX} devices")));
                }
                let device = Box::new(Device {
                    uuid: facts.uuid,
                    index: index as u8,
                    cuda: AtomicI32::new(-1),
                    own: limits.memory.map_or(u64::MAX, |bytes| bytes.0),
                    ledger,
                    governor,
                    beside: Slot::zeroed(),
                    is_beside: AtomicBool::new(false),
                });
                DEVICES[index].store(Box::into_raw(device), Release);
                COUNT.store(index + 1, Release);
            }
        }
        if let (Some(cuda), Some(device)) = (facts.cuda, by_uuid(&facts.uuid))
            && let Some(slot) = usize::try_from(cuda).ok().and_then(|at| BY_CUDA.get(at))
        {
            device.cuda.store(cuda, Release);
            slot.store(device.index + 1, Release);
        }
    }
    // If the tenant may use no device of the machine, registration fails.
    match refused {
        Some(words) if all().next().is_none() => Err(Trouble::NotKept(words)),
        _ => Ok(()),
    }
}

/// Reason why the daemon link of a device cannot be made.
enum Unposted {
    /// The tenant may not use the device.
    NotIts(String),
    /// Any other reason.
    Other(String),
}

/// Joins the device at the daemon, or takes its terms from the terms file while the daemon is away. `None`: no daemon
/// with pages.
fn post(asked: &Asked, uuid: &[u8; 16], ledger: &Ledger) -> Result<Option<Post>, Unposted> {
    let name = uuid::text(uuid);
    let refused =
        |words: String| if two::is_not_its_device(&words) { Unposted::NotIts(words) } else { Unposted::Other(words) };
    match &asked.daemon {
        None => Ok(None),
        Some(Start::Session(_)) => renew::join(&name, ledger).map(Post::joined).map(Some).map_err(refused),
        Some(Start::File(file)) => {
            if let Some(place) = renew::join_if_there(&name, ledger) {
                return Ok(Some(Post::joined(place)));
            }
            let terms = file
                .of(&name)
                .ok_or_else(|| Unposted::NotIts(format!("{FILE_NAME} does not let this tenant use device {name}")))?;
            Ok(Some(Post::left(terms.memory_limit, file.on_loss, terms.sm_request, terms.sm_limit)))
        }
    }
}

/// Hides a device from this process.
fn hide(uuid: [u8; 16]) {
    let name = Box::into_raw(Box::new(uuid));
    for place in &FOREIGN {
        let there = place.compare_exchange(core::ptr::null_mut(), name, Release, Acquire);
        // SAFETY: a UUID that was leaked here.
        if there.is_ok() || there.is_err_and(|known| unsafe { *known } == uuid) {
            return;
        }
    }
}

/// Returns the hidden devices' UUIDs, up to the first empty entry.
fn foreign() -> impl Iterator<Item = &'static [u8; 16]> {
    // SAFETY: null, or a UUID that was leaked by `hide` and is never changed.
    FOREIGN.iter().map_while(|place| unsafe { place.load(Acquire).as_ref() })
}

/// True if devices are hidden from this process. In observe mode none is.
///
/// # Cost
/// One load if there are none.
pub fn hides_any() -> bool {
    foreign().next().is_some() && all().any(|device| !device.observed())
}

/// True if the device is hidden, because the daemon does not let this tenant use it.
pub fn is_foreign(uuid: &[u8; 16]) -> bool {
    hides_any() && foreign().any(|name| name == uuid)
}

/// Returns all registered devices.
pub fn all() -> impl Iterator<Item = &'static Device> {
    (0..COUNT.load(Acquire)).filter_map(at)
}

/// Returns the device at this index.
#[inline]
pub fn at(index: usize) -> Option<&'static Device> {
    // SAFETY: null, or a leaked Device that is never changed.
    unsafe { DEVICES.get(index)?.load(Acquire).as_ref() }
}

/// Returns the device with this UUID, if it is registered.
pub fn by_uuid(uuid: &[u8; 16]) -> Option<&'static Device> {
    all().find(|device| device.uuid == *uuid)
}

/// Returns the device with CUDA ordinal `dev`, if it is registered.
#[inline]
pub fn by_cuda(dev: CUdevice) -> Option<&'static Device> {
    match BY_CUDA.get(usize::try_from(dev).ok()?)?.load(Acquire) {
        0 => None,
        number => at(usize::from(number) - 1),
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
    pub fn limit(&self) -> u64 {
        // The daemon's limit is read first, because that also updates the mode.
        let said = self.governor.as_ref().map_or(u64::MAX, |governor| governor.post.memory());
        if mode::observing() { u64::MAX } else { self.own.min(said) }
    }

    /// Returns the most bytes that charges may reach: the limit minus [`Device::uncharged`].
    ///
    /// # Cost
    /// [`Device::limit`] and one load.
    #[inline(always)]
    pub fn room(&self) -> u64 {
        let limit = self.limit();
        if limit == u64::MAX { limit } else { limit.saturating_sub(self.uncharged()) }
    }

    /// Returns the bytes that, as the daemon reports, the driver holds for the tenant in addition to its charges.
    #[inline(always)]
    pub fn uncharged(&self) -> u64 {
        self.governor.as_ref().map_or(0, |governor| governor.post.uncharged(|| self.overhead()))
    }

    #[cold]
    fn overhead(&self) -> u64 {
        self.ledger.joined().map_or(0, |joined| joined.member().ledger().overhead())
    }

    /// True in observe mode: use is measured, and nothing is refused, delayed or shown differently. A change by the
    /// daemon takes effect at the next call.
    pub fn observed(&self) -> bool {
        self.governor.as_ref().map(|governor| governor.post.memory());
        mode::observing()
    }

    /// Reserves `bytes` for one driver call. Before a refusal, this process's pools and graph memory give back their
    /// unused bytes, as they would if the device itself were full.
    ///
    /// # Errors
    /// The program gets "out of memory", or "not permitted" if the ledger itself is unusable.
    #[inline(always)] // hot, and the library is made for size
    pub fn reserve(&'static self, bytes: u64) -> Result<Reservation<'static>, CUresult> {
        match self.ledger.reserve_at_once(bytes, self.room()) {
            Some(reservation) => Ok(reservation),
            None => self.reserve_after_trim(bytes),
        }
    }

    #[cold]
    fn reserve_after_trim(&'static self, bytes: u64) -> Result<Reservation<'static>, CUresult> {
        let outcome = self.trim_and_reserve(bytes, Self::room);
        if outcome.is_err() {
            self.ledger.note_refused();
        }
        outcome
    }

    /// As [`Device::reserve`], for overhead that the driver already took. It compares with the limit and not with
    /// [`Device::room`], because the daemon may already count this overhead as uncharged.
    ///
    /// # Errors
    /// As [`Device::reserve`].
    pub fn reserve_taken(&'static self, bytes: u64) -> Result<Reservation<'static>, CUresult> {
        self.trim_and_reserve(bytes, Self::limit).inspect_err(|_| self.ledger.note_refused())
    }

    /// Counts a refused request and returns "out of memory".
    #[cold]
    pub fn refused(&self) -> CUresult {
        self.ledger.note_refused();
        CUresult::OUT_OF_MEMORY
    }

    fn trim_and_reserve(&'static self, bytes: u64, room: fn(&Self) -> u64) -> Result<Reservation<'static>, CUresult> {
        self.look();
        match self.reserve_below(bytes, room(self)) {
            // A request above the limit never fits, so only a smaller one trims the pools.
            Err(CUresult::OUT_OF_MEMORY) if bytes <= self.limit() && pools::give_back(self) => {
                self.reserve_below(bytes, room(self))
            }
            other => other,
        }
    }

    /// Checks whether the daemon is alive, and looks for a new one if not. Called before a request is refused or a
    /// number is shown.
    pub fn look(&self) {
        if let Some(governor) = &self.governor {
            governor.post.look();
        }
    }

    /// Trims the pools if `bytes` would not fit otherwise. For calls whose growth is measured: a trim between the first
    /// reading and the call would falsify the measurement.
    pub fn make_room(&'static self, bytes: u64) {
        if self.ledger.reserve_at_once(bytes, self.room()).is_none() {
            drop(self.trim_and_reserve(bytes, Self::room));
        }
    }

    /// As [`Device::reserve`], without trimming the pools.
    ///
    /// # Errors
    /// As [`Device::reserve`].
    pub fn try_reserve(&'static self, bytes: u64) -> Result<Reservation<'static>, CUresult> {
        self.reserve_below(bytes, self.room())
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
            Ok(Err(_)) if limit == u64::MAX && self.observed() => Ok(Reservation::apart(&self.beside, bytes)),
            // The daemon lifted the limit after it was read here. Charge without a limit, as observed use is charged.
            Ok(Err(_)) if self.observed() => self.reserve_below(bytes, u64::MAX),
            Ok(outcome) => outcome.map_err(|_| CUresult::OUT_OF_MEMORY),
            // The daemon may set a limit later, so only this call proceeds and the mode stays.
            Err(reason) if self.observed() && self.is_governed() => {
                say::once(&format!("{reason}; not all is measured (the daemon's observe)"));
                Ok(self.ledger.reserve_as_joined(bytes).unwrap_or_else(|| self.beside(bytes)))
            }
            Err(reason) if self.observed() => {
                say::once(&format!("{reason}; nothing is measured any more (VGPU_MODE=observe)"));
                mode::set(Mode::Off);
                Ok(self.beside(bytes))
            }
            Err(reason) => {
                say::once(&reason);
                Err(CUresult::NOT_PERMITTED)
            }
        }
    }

    /// True if the tenant is within its limit now.
    pub fn fits(&self) -> bool {
        self.ledger.used().is_ok_and(|used| used <= self.room())
    }

    /// As [`Device::fits`], but waits up to [`OUTCOME_WAIT_NS`] for undecided requests of other members, as every
    /// refusal does.
    pub fn fits_in_the_end(&self) -> bool {
        let since = clock::now();
        while !self.fits() {
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
        if let Ok(joined) = self.ledger.joined() {
            joined.member().release(bytes);
        }
    }

    /// Returns the part of `bytes` to release in the ledger. Charges that no ledger counts are released first, so the
    /// ledger never releases bytes that it did not charge.
    ///
    /// # Cost
    /// One load, unless the ledger was unusable before.
    #[inline(always)]
    pub fn to_ledger(&self, bytes: u64) -> u64 {
        if self.has_beside() { self.beside.take_committed(bytes) } else { bytes }
    }

    /// Returns a reservation that no ledger counts, for a call that proceeds although its ledger is unusable.
    #[cold]
    fn beside(&'static self, bytes: u64) -> Reservation<'static> {
        self.is_beside.store(true, Relaxed);
        Reservation::apart(&self.beside, bytes)
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
pub fn release(holding: Holding) {
    match (holding.slab(), at(usize::from(holding.device))) {
        (Some((device, slab)), _) => {
            if slabs::leave(slab)
                && let Some(device) = at(usize::from(device))
            {
                device.release(charging::SLAB);
            }
        }
        (None, Some(device)) => device.release(holding.bytes),
        (None, None) => release_hold(holding),
    }
}

#[cold]
fn release_hold(holding: Holding) {
    holding.share().into_iter().for_each(share::let_go);
    holding.counted().and_then(counted::end).into_iter().for_each(release);
}

/// Gives up the parent's memberships in a forked child.
pub fn reborn() {
    // SAFETY: runs in the child's thread that resets it after the fork, before any other thread runs.
    unsafe { REGISTERING.reset(()) };
    for device in all() {
        device.ledger.forget();
        device.beside.take_committed(u64::MAX);
        if let Some(governor) = &device.governor {
            governor.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_core::time::gate::loss::OnLoss;

    fn device(path: &std::path::Path) -> &'static Device {
        let post = Post::left(None, OnLoss::Open, None, None);
        Box::leak(Box::new(Device {
            uuid: [0; 16],
            index: 0,
            cuda: AtomicI32::new(-1),
            own: u64::MAX,
            ledger: Ledger::of_a_test(path.to_path_buf()),
            governor: Some(Governor::new(None, post)),
            beside: Slot::zeroed(),
            is_beside: AtomicBool::new(false),
        }))
    }

    /// One test for all cases, because the observe mode applies to the whole process.
    #[test]
    fn what_is_observed_is_charged_or_stands_beside_the_ledger_and_ends_nothing() {
        let folder = std::env::temp_dir().join(format!("vgpu-device-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        mode::observe(true);

        // The second reservation is refused by a limit that was read just before the daemon lifted it.
        let lifted = device(&folder.join("a"));
        let used = || lifted.ledger.joined().unwrap().member().used();
        lifted.reserve_below(100, u64::MAX).unwrap().commit();
        lifted.reserve_below(200, 150).unwrap().commit();
        assert_eq!(used(), 300, "it is charged");
        lifted.release(200);
        assert_eq!(used(), 100, "and given back once");

        // The ledger cannot be joined for a while.
        let before = mode::mode();
        let gone = device(&folder.join("b/ledger"));
        gone.reserve_below(200, u64::MAX).unwrap().commit();
        drop(gone.reserve_below(50, u64::MAX).unwrap());
        assert_eq!(mode::mode(), before, "the daemon's next word is heard");
        std::fs::create_dir(folder.join("b")).unwrap();
        let used = || gone.ledger.joined().unwrap().member().used();
        gone.reserve_below(300, u64::MAX).unwrap().commit();
        assert_eq!(used(), 300);
        gone.release(200);
        assert_eq!(used(), 300, "what it never had is not taken off");
        gone.release(300);
        assert_eq!(used(), 0);
        mode::observe(false);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
