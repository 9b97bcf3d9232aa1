//! Exported memory that several processes of the tenant hold: which shares of the ledger this process holds, and how
//! often.
//!
//! When an allocation or a pool is exported its charge moves to a share ([`export`]), which importers of the tenant find
//! by its identity ([`import`]) and hold too. It ends with its last holder, whoever that is: vgpu-core's
//! `ledger/shares.rs`.
//!
//! Memory whose share is not found is another tenant's, or of a process without limits, or its exporter died while it was
//! under way. Its first importer *founds* a share for it ([`found`]) and charges what it sees of it ([`set_aside`],
//! [`pay`]); whoever of the tenant imports it again, in this process or another, has it for nothing. When all places for
//! shares are taken everybody is charged like for an allocation of its own, which counts too much, never too little.
//!
//! A descriptor keeps memory alive by itself, in the driver and here: a share whose last name goes while a descriptor of
//! it is open somewhere, a socket's buffer included, is kept until that is closed. The process that keeps it looks at its
//! own calls ([`tidy`]), the others through its descriptor before anything is refused, where /proc lets them. If the keeper
//! dies meanwhile, what is under way is nobody's until somebody imports it. A founded share is kept for no descriptor: what
//! may be open are another tenant's, which is charged for them.
//!
//! What lives elsewhere: the marks on descriptors (`descriptor`), which pointer or handle holds which share (`holdings`,
//! `physical`), the calls themselves (`hooks/share`).

use crate::descriptor::{self, Watch};
use crate::device::{self, Device};
use crate::holdings::{ADDRESSES, Holding};
use crate::ledger::Joined;
use crate::lock::Lock;
use crate::sorted::Map;
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU32, Ordering::*};
use shim_sys::cuda::CUresult;
use vgpu_core::ledger::{Left, Reservation, ShareId, Shared};
use vgpu_core::tenant::hash64;

/// A share that this process holds, by a number of our own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Share(NonZeroU32);

impl Share {
    /// The number, for a word of memory.
    pub fn number(self) -> u32 {
        self.0.get()
    }

    /// Back from [`Share::number`].
    pub fn numbered(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }
}

struct Held {
    device: u8,
    identity: u64,
    /// Begun by an importer: how much it is shows when it is used.
    founded: bool,
    joined: &'static Joined,
    id: ShareId,
    /// Names of it in this process; 0: kept for a descriptor alone.
    names: u32,
    watch: Option<Watch>,
}

impl Held {
    /// By what the ledger knows it.
    fn name(&self) -> u64 {
        if self.founded { founded_name(self.identity) } else { self.identity }
    }
}

/// Another name for what importers found: one that knows the exporter's share need not ask whether all of it is paid.
fn founded_name(identity: u64) -> u64 {
    hash64([identity.to_le_bytes(), *b"imported"].as_flattened()).max(1)
}

struct All {
    held: Map<Share, Held>,
    /// By what importers ask for.
    named: Map<u64, Share>,
    next: u32,
}

impl All {
    const EMPTY: All = All { held: Map::new(), named: Map::new(), next: 1 };

    fn insert(&mut self, held: Held) -> Option<Share> {
        let share = Share(NonZeroU32::new(self.next)?);
        self.next += 1;
        self.named.insert(held.identity, share);
        self.held.insert(share, held);
        Some(share)
    }

    fn remove(&mut self, share: Share) {
        if let Some(held) = self.held.remove(&share) {
            self.named.remove(&held.identity);
        }
    }

    fn again(&mut self, identity: u64) -> Option<Share> {
        let share = *self.named.get(&identity)?;
        let held = self.held.get_mut(&share)?;
        if held.names == 0 {
            KEPT.fetch_sub(1, Relaxed);
            // It may have ended with somebody who took it up meanwhile.
            match held.joined.hold(held.name()) {
                Some(id) => held.id = id,
                None => {
                    held.joined.keep_no_longer(held.id, held.name());
                    self.remove(share);
                    return None;
                }
            }
        }
        held.names += 1;
        Some(share)
    }
}

static ALL: Lock<All> = Lock::new(All::EMPTY);
/// Shares that are kept for a descriptor alone.
static KEPT: AtomicU32 = AtomicU32::new(0);
/// Exports take turns: of two for one allocation the second finds what the first has made.
static EXPORTING: Lock<()> = Lock::new(());

/// Whether this process holds any.
pub fn any() -> bool {
    !ALL.lock().held.is_empty()
}

/// Runs `act`, which looks whether something is exported already and exports it if not, with no other thread in between.
/// Not for calls into the driver.
pub fn exporting<T>(act: impl FnOnce() -> T) -> T {
    let _turn = EXPORTING.lock();
    act()
}

/// Moves `bytes` of this process's charge on the device to a new share. `None`: the charge is where it was.
pub fn export(device: &'static Device, identity: u64, bytes: u64) -> Option<Share> {
    if device.has_beside() {
        return None; // who knows whether these bytes are in the ledger
    }
    let joined = device.ledger.joined().ok()?;
    let mut all = ALL.lock();
    let id = joined.share(identity, bytes)?;
    all.insert(Held { device: device.index, identity, founded: false, joined, id, names: 1, watch: None })
}

/// Holds the share of that identity once more, on whichever device it is, whoever began it.
pub fn import(identity: u64) -> Option<Share> {
    let mut all = ALL.lock();
    if let Some(share) = all.again(identity) {
        return Some(share);
    }
    let mut found = device::all().filter_map(|device| {
        let joined = device.ledger.joined().ok()?;
        let exported = joined.hold(identity).map(|id| (id, false));
        let (id, founded) = exported.or_else(|| joined.hold(founded_name(identity)).map(|id| (id, true)))?;
        Some(Held { device: device.index, identity, founded, joined, id, names: 1, watch: None })
    });
    all.insert(found.next()?)
}

/// Begins a share on the device for imported memory of that identity, or holds the one that another importer has begun
/// meanwhile. `None`: all places for shares are taken.
pub fn found(device: &'static Device, identity: u64) -> Option<Share> {
    let mut all = ALL.lock();
    if let Some(share) = all.again(identity) {
        return Some(share);
    }
    let joined = device.ledger.joined().ok()?;
    let id = joined.found(founded_name(identity))?;
    all.insert(Held { device: device.index, identity, founded: true, joined, id, names: 1, watch: None })
}

/// Whether an importer has begun it, so that all of it may not be charged yet.
pub fn is_founded(share: Share) -> bool {
    ALL.lock().held.get(&share).is_some_and(|held| held.founded)
}

/// What is charged too little of a share, if it is to hold `whole`: only what importers have begun can be.
fn owed(share: Share, whole: u64) -> Option<(&'static Device, u64)> {
    let all = ALL.lock();
    let held = all.held.get(&share).filter(|held| held.founded)?;
    let lack = whole.saturating_sub(held.joined.member().shared(held.id).used());
    device::at(usize::from(held.device)).filter(|_| lack > 0).map(|device| (device, lack))
}

/// Reserves what is charged too little of a share, if it is to hold `whole`, until [`pay`].
///
/// # Errors
/// As [`Device::reserve`].
pub fn set_aside(share: Share, whole: u64) -> Result<Option<Reservation<'static>>, CUresult> {
    let Some((device, lack)) = owed(share, whole) else { return Ok(None) };
    match device.reserve(lack) {
        Ok(reservation) => Ok(Some(reservation)),
        // Who has paid for it meanwhile has paid for us.
        Err(_) if owed(share, whole).is_none() => Ok(None),
        Err(refused) => Err(refused),
    }
}

/// Charges to the share what was set aside, as far as nobody else has.
pub fn pay(share: Share, whole: u64, reservation: Option<Reservation<'static>>) {
    if let (Some(reservation), Some(place)) = (reservation, place(share)) {
        reservation.commit_up_to(place, whole);
    }
}

/// As [`import`], of what a descriptor is marked with.
pub fn import_descriptor(descriptor: i32, identity: u64) -> Option<Share> {
    let share = import(identity)?;
    watch(share, descriptor);
    Some(share)
}

/// Marks a descriptor of an exported allocation, so that importers find the share by it.
pub fn mark(share: Share, descriptor: i32) {
    let identity = ALL.lock().held.get(&share).map(|held| held.identity);
    if identity.is_some_and(|identity| descriptor::mark(descriptor, identity)) {
        watch(share, descriptor);
    }
}

fn watch(share: Share, descriptor: i32) {
    let lacks = |held: &&Held| held.watch.is_none() && !held.founded;
    let unwatched = ALL.lock().held.get(&share).filter(lacks).map(|held| held.identity);
    if let Some(watch) = unwatched.and_then(|identity| Watch::on(descriptor, identity))
        && let Some(held) = ALL.lock().held.get_mut(&share)
    {
        held.watch = Some(watch);
    }
}

/// One name of it in this process is gone.
pub fn let_go(share: Share) {
    let mut all = ALL.lock();
    let Some(held) = all.held.get_mut(&share) else { return };
    held.names = held.names.saturating_sub(1);
    if held.names > 0 {
        return;
    }
    let open = held.watch.as_ref().and_then(Watch::open);
    match held.joined.let_go(held.id, open) {
        Left::Kept => _ = KEPT.fetch_add(1, Relaxed),
        Left::ToOthers | Left::Ended => all.remove(share),
    }
}

/// Ends what was kept for a descriptor that is closed by now; whether there was any.
///
/// # Cost
/// One load where nothing is kept; else a system call or two for each.
#[inline]
pub fn tidy() -> bool {
    KEPT.load(Relaxed) > 0 && tidy_kept()
}

#[cold]
fn tidy_kept() -> bool {
    let mut all = ALL.lock();
    let closed = |held: &Held| held.names == 0 && held.watch.as_ref().and_then(Watch::open).is_none();
    let closed: Vec<Share> = all.held.iter().filter(|(_, held)| closed(held)).map(|(share, _)| *share).collect();
    let mut any = false;
    for share in closed {
        // What cannot be looked at now is looked at the next time.
        if all.held.get(&share).is_some_and(|held| held.joined.keep_no_longer(held.id, held.name()) != Left::Kept) {
            KEPT.fetch_sub(1, Relaxed);
            all.remove(share);
            any = true;
        }
    }
    any
}

/// Moves `bytes` that this process holds on the share's device to the share.
pub fn hand_over(share: Share, bytes: u64) {
    if let Some(held) = ALL.lock().held.get(&share) {
        let member = held.joined.member();
        member.hand_over(member.shared(held.id), bytes);
    }
}

/// The share as a place for bytes: what an exported pool grows and shrinks in.
pub fn place(share: Share) -> Option<Shared<'static>> {
    ALL.lock().held.get(&share).map(|held| held.joined.member().shared(held.id))
}

/// The number of the device that the share's memory is on.
pub fn device_of(share: Share) -> Option<u8> {
    ALL.lock().held.get(&share).map(|held| held.device)
}

/// How often each imported address is open: the driver gives the same one again and counts.
static OPENED: Lock<Map<u64, u32>> = Lock::new(Map::new());

/// Notes an address that an import was opened at; a holding that is not needed comes back: the address was open already.
pub fn opened(address: u64, holding: Holding) -> Option<Holding> {
    let mut all = OPENED.lock();
    let times = all.or_default(address);
    // A context that ended has closed what was open in it, and taken the holding.
    if *times > 0 && ADDRESSES.get(address).is_some() {
        *times += 1;
        return Some(holding);
    }
    *times = 1;
    ADDRESSES.put(address, holding)
}

/// An import on its way out: [`Closing::done`] or [`Closing::failed`], after the driver's answer.
#[must_use]
pub struct Closing {
    address: u64,
    last: Option<Holding>,
}

/// Counts an import out before the driver closes it: afterwards its address may come again at once.
pub fn closing(address: u64) -> Option<Closing> {
    let mut all = OPENED.lock();
    let times = all.get_mut(&address)?;
    *times -= 1;
    let last = if *times == 0 {
        all.remove(&address);
        ADDRESSES.take(address)
    } else {
        None
    };
    Some(Closing { address, last })
}

impl Closing {
    /// The driver closed it; the holding, if it was open no more often.
    pub fn done(self) -> Option<Holding> {
        self.last
    }

    /// The driver did not.
    pub fn failed(self) {
        let mut all = OPENED.lock();
        *all.or_default(self.address) += 1;
        // Another thread may have opened it meanwhile and noted a holding of its own.
        let spare = self.last.and_then(|holding| ADDRESSES.put(self.address, holding));
        drop(all);
        spare.into_iter().for_each(device::release);
    }
}

/// The ledger's file was made anew: what this process holds in the old one is held, or charged, in the new one.
pub fn follow(old: &'static Joined, fresh: &'static Joined) {
    let mut all = ALL.lock();
    for held in all.held.values_mut().filter(|held| core::ptr::eq(held.joined, old)) {
        let there = fresh.hold(held.name()).or_else(|| {
            let bytes = old.member().shared(held.id).used();
            fresh.charge_spent(bytes);
            fresh.share(held.name(), bytes)
        });
        // Without a place in the new one the charge stands in this process's own slot there, for its life.
        if let Some(id) = there {
            (held.joined, held.id) = (fresh, id);
            if held.names == 0 {
                fresh.let_go(id, held.watch.as_ref().and_then(Watch::open));
            }
        }
    }
}

/// Forgets everything, in a forked child: what the parent holds is the parent's.
pub fn forget() {
    // SAFETY: the child's thread that settles it, before any other goes on.
    unsafe {
        ALL.reset(All::EMPTY);
        EXPORTING.reset(());
        OPENED.reset(Map::new());
    }
    KEPT.store(0, Relaxed);
    descriptor::forget();
}
