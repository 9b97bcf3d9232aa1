//! What is enforced on each device, by UUID: the limits, the ledger, the gate.
//!
//! Devices are registered when CUDA or NVML first shows them and stay for the life of the process. A device that has
//! no limit is not registered: whoever does not find one here passes the call through. Where use is only measured every
//! device is registered, none with a limit; with a daemon every device is, since its limits may change at any time.

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
use vgpu_core::bytes::Bytes;
use vgpu_core::charging;
use vgpu_core::ledger::{OUTCOME_WAIT_NS, Reservation, Slot};
use vgpu_core::limits::{self, DeviceLimits};
use vgpu_core::wire::terms_file::FILE_NAME;
use vgpu_core::wire::two;

/// Most devices a process can have.
const MAX: usize = 64;

/// What CUDA or NVML tells of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its NVML index, where it is known.
    pub ordinal: Option<u32>,
    /// Its memory in bytes: the base of percentages.
    pub total: u64,
    /// Its ordinal in CUDA, where CUDA showed it.
    pub cuda: Option<CUdevice>,
}

/// A device with limits.
pub struct Device {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its number here.
    pub index: u8,
    /// Its ordinal in CUDA, -1: CUDA has not shown it.
    cuda: AtomicI32,
    /// Most bytes that the tenant may hold by the environment, all ones: no limit. See [`Device::limit`].
    own: u64,
    /// The tenant's charges.
    pub ledger: Ledger,
    /// The gate of launches, if there is a ceiling on device time or it is measured.
    pub governor: Option<Governor>,
    /// What a ledger that was gone for a moment could not take, while use was only measured. Not looked at before
    /// `is_beside`.
    beside: Slot,
    is_beside: AtomicBool,
}

/// Devices that the machine shows and the daemon does not let this tenant use: leaked names, in the order in which they came.
static FOREIGN: [AtomicPtr<[u8; 16]>; MAX] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX];

static DEVICES: [AtomicPtr<Device>; MAX] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static REGISTERING: Lock<()> = Lock::new(());
/// Device number + 1 by CUDA ordinal, 0: no limit there.
static BY_CUDA: [AtomicU8; MAX] = [const { AtomicU8::new(0) }; MAX];

/// Registers what is to be enforced on the devices that were shown.
///
/// # Errors
/// [`Trouble`]: which limit does not fit which device, or why the ledger cannot be kept.
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
            // The file is opened before the lock is taken; of two threads that do so one keeps its own.
            let ledger = match Ledger::open(tenant, &facts.uuid) {
                // The daemon hands it over, or refuses the device.
                Err(Unjoined { ledger: Some(ledger), .. }) if matches!(asked.daemon, Some(Start::Session(_))) => ledger,
                Err(Unjoined { reason, ledger }) if observed => {
                    say::once(&format!("{reason}; this device is not measured (VGPU_MODE=observe)"));
                    // What the daemon says next may be a limit: then nobody is let past it unseen.
                    match ledger.filter(|_| asked.daemon.is_some()) {
                        Some(ledger) => ledger,
                        None => continue,
                    }
                }
                ledger => ledger.map_err(|unjoined| Trouble::NotKept(unjoined.reason))?,
            };
            let post = match post(asked, &facts.uuid, &ledger) {
                // NVML shows what the machine has, whatever the tenant may use; CUDA what the program will use.
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
    // A machine on which nothing is the tenant's is refused as a whole.
    match refused {
        Some(words) if all().next().is_none() => Err(Trouble::NotKept(words)),
        _ => Ok(()),
    }
}

/// Why a device has no post.
enum Unposted {
    /// It is not one of the tenant's.
    NotIts(String),
    /// Something else.
    Other(String),
}

/// What the daemon says of a device; `None`: there is none that has pages.
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

/// Keeps a device from this process's eyes.
fn hide(uuid: [u8; 16]) {
    let name = Box::into_raw(Box::new(uuid));
    for place in &FOREIGN {
        let there = place.compare_exchange(core::ptr::null_mut(), name, Release, Acquire);
        // SAFETY: a name that was leaked here.
        if there.is_ok() || there.is_err_and(|known| unsafe { *known } == uuid) {
            return;
        }
    }
}

/// Their names, up to the first place that is empty.
fn foreign() -> impl Iterator<Item = &'static [u8; 16]> {
    // SAFETY: null, or a name that was leaked by `hide` and is never changed.
    FOREIGN.iter().map_while(|place| unsafe { place.load(Acquire).as_ref() })
}

/// Whether devices are kept from this process's eyes: not where use is only measured.
///
/// # Cost
/// One load where there are none.
pub fn hides_any() -> bool {
    foreign().next().is_some() && all().any(|device| !device.observed())
}

/// Whether the daemon does not let this tenant use the device.
pub fn is_foreign(uuid: &[u8; 16]) -> bool {
    hides_any() && foreign().any(|name| name == uuid)
}

/// All devices with limits.
pub fn all() -> impl Iterator<Item = &'static Device> {
    (0..COUNT.load(Acquire)).filter_map(at)
}

/// The device of that number.
#[inline]
pub fn at(index: usize) -> Option<&'static Device> {
    // SAFETY: null, or a leaked Device that is never changed.
    unsafe { DEVICES.get(index)?.load(Acquire).as_ref() }
}

/// The device of that UUID, if it has limits.
pub fn by_uuid(uuid: &[u8; 16]) -> Option<&'static Device> {
    all().find(|device| device.uuid == *uuid)
}

/// The device that CUDA counts as `dev`, if it has limits.
#[inline]
pub fn by_cuda(dev: CUdevice) -> Option<&'static Device> {
    match BY_CUDA.get(usize::try_from(dev).ok()?)?.load(Acquire) {
        0 => None,
        number => at(usize::from(number) - 1),
    }
}

impl Device {
    /// Its ordinal in CUDA, -1 where CUDA has not shown it.
    pub fn cuda(&self) -> CUdevice {
        self.cuda.load(Acquire)
    }

    /// Most bytes that the tenant may hold here, all ones: no limit. What the daemon changes is in force at the next call.
    ///
    /// # Cost
    /// Two loads; with a daemon five more, some thirty after a change.
    #[inline(always)]
    pub fn limit(&self) -> u64 {
        // The daemon's word first: the mode comes with it.
        let said = self.governor.as_ref().map_or(u64::MAX, |governor| governor.post.memory());
        if mode::observing() { u64::MAX } else { self.own.min(said) }
    }

    /// Most bytes that charges may come to: the limit, less what the daemon saw that the driver holds beside them.
    ///
    /// # Cost
    /// That of [`Device::limit`] and one load.
    #[inline(always)]
    pub fn room(&self) -> u64 {
        let limit = self.limit();
        if limit == u64::MAX { limit } else { limit.saturating_sub(self.uncharged()) }
    }

    /// Bytes that the driver holds for the tenant beside its charges, by the daemon's word.
    #[inline(always)]
    pub fn uncharged(&self) -> u64 {
        self.governor.as_ref().map_or(0, |governor| governor.post.uncharged(|| self.overhead()))
    }

    #[cold]
    fn overhead(&self) -> u64 {
        self.ledger.joined().map_or(0, |joined| joined.member().ledger().overhead())
    }

    /// Whether it is only measured: nothing is refused, delayed or shown differently. What the daemon changes is in force
    /// at the next call.
    pub fn observed(&self) -> bool {
        self.governor.as_ref().map(|governor| governor.post.memory());
        mode::observing()
    }

    /// Reserves `bytes` for one driver call. Before anything is refused, this process's pools and graph memory give back
    /// what they do not use, as they would if the device itself were full.
    ///
    /// # Errors
    /// What the program sees: out of memory, or not permitted where the ledger itself is gone.
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

    /// As [`Device::reserve`], for overhead that the driver has taken already: the daemon may have seen it.
    ///
    /// # Errors
    /// As [`Device::reserve`].
    pub fn reserve_taken(&'static self, bytes: u64) -> Result<Reservation<'static>, CUresult> {
        self.trim_and_reserve(bytes, Self::limit).inspect_err(|_| self.ledger.note_refused())
    }

    /// Counts a request that the program is refused: out of memory.
    #[cold]
    pub fn refused(&self) -> CUresult {
        self.ledger.note_refused();
        CUresult::OUT_OF_MEMORY
    }

    fn trim_and_reserve(&'static self, bytes: u64, room: fn(&Self) -> u64) -> Result<Reservation<'static>, CUresult> {
        self.look();
        match self.reserve_below(bytes, room(self)) {
            // More than the limit never fits.
            Err(CUresult::OUT_OF_MEMORY) if bytes <= self.limit() && pools::give_back(self) => {
                self.reserve_below(bytes, room(self))
            }
            other => other,
        }
    }

    /// Looks whether the daemon lives, and for another one if it does not: before something is refused or shown.
    pub fn look(&self) {
        if let Some(governor) = &self.governor {
            governor.post.look();
        }
    }

    /// Gives back what pools keep if `bytes` would not fit otherwise: for calls whose growth is measured, so that nothing
    /// goes between the first reading and the call.
    pub fn make_room(&'static self, bytes: u64) {
        if self.ledger.reserve_at_once(bytes, self.room()).is_none() {
            drop(self.trim_and_reserve(bytes, Self::room));
        }
    }

    /// As [`Device::reserve`], as things are.
    ///
    /// # Errors
    /// As [`Device::reserve`].
    pub fn try_reserve(&'static self, bytes: u64) -> Result<Reservation<'static>, CUresult> {
        self.reserve_below(bytes, self.room())
    }

    /// Reserves what the driver has spent already, whatever the limit.
    ///
    /// # Errors
    /// Not permitted where the ledger itself is gone.
    pub fn reserve_spent(&'static self, bytes: u64) -> Result<Reservation<'static>, CUresult> {
        self.reserve_below(bytes, u64::MAX)
    }

    fn reserve_below(&'static self, bytes: u64, limit: u64) -> Result<Reservation<'static>, CUresult> {
        // Nothing fits even where the daemon sees more than the limit.
        let limit = if bytes == 0 { u64::MAX } else { limit };
        match self.ledger.reserve(bytes, limit) {
            // More than any ledger counts: the driver will say what it thinks of it.
            Ok(Err(_)) if limit == u64::MAX && self.observed() => Ok(Reservation::apart(&self.beside, bytes)),
            // The limit was read before the daemon lifted it: it is charged like everything that is measured.
            Ok(Err(_)) if self.observed() => self.reserve_below(bytes, u64::MAX),
            Ok(outcome) => outcome.map_err(|_| CUresult::OUT_OF_MEMORY),
            // What the daemon says next may be a limit: this call alone goes on.
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

    /// Whether the tenant is within its limit, as things are.
    pub fn fits(&self) -> bool {
        self.ledger.used().is_ok_and(|used| used <= self.room())
    }

    /// As [`Device::fits`]; requests of others that are undecided are waited for, as before any refusal.
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

    /// Gives back what was charged on this device.
    #[inline]
    pub fn release(&self, bytes: u64) {
        let bytes = self.to_ledger(bytes);
        if let Ok(joined) = self.ledger.joined() {
            joined.member().release(bytes);
        }
    }

    /// Of bytes that go back, those that the ledger has: what stands beside it goes first, so that the ledger never counts
    /// less than what it was told of.
    ///
    /// # Cost
    /// One load, unless the ledger was gone.
    #[inline(always)]
    pub fn to_ledger(&self, bytes: u64) -> u64 {
        if self.has_beside() { self.beside.take_committed(bytes) } else { bytes }
    }

    /// A reservation that no ledger counts, for a call that goes on all the same.
    #[cold]
    fn beside(&'static self, bytes: u64) -> Reservation<'static> {
        self.is_beside.store(true, Relaxed);
        Reservation::apart(&self.beside, bytes)
    }

    /// Whether this process may hold what the ledger does not know of.
    pub fn has_beside(&self) -> bool {
        self.is_beside.load(Relaxed)
    }

    /// Whether a daemon speaks for it, present or away.
    fn is_governed(&self) -> bool {
        self.governor.as_ref().is_some_and(|governor| governor.post.is_governed())
    }
}

/// Gives a holding's charge back to its device, or its hold on a share back to the others.
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

/// Gives up the parent's memberships, in a forked child.
pub fn reborn() {
    // SAFETY: the child's thread that settles it, before any other goes on.
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
    use vgpu_core::gate::loss::OnLoss;

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

    /// One test: what is observed is so in all of the process.
    #[test]
    fn what_is_observed_is_charged_or_stands_beside_the_ledger_and_ends_nothing() {
        let folder = std::env::temp_dir().join(format!("vgpu-device-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        mode::observe(true);

        // Refused by a limit that was read just before the daemon lifted it.
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
