//! Exported memory that several processes of the tenant hold: the ledger's shares that this process holds, with a
//! count of names.
//!
//! When an allocation or a pool is exported, its charge moves to a share ([`begin_share`]). Importers of the tenant
//! find the share by its identity ([`hold_share`]) and hold it too. The share ends with its last holder, in
//! whichever process: vgpu-core's `ledger/shares.rs`.
//!
//! An imported allocation has no share if it belongs to another tenant or to a process without limits, or if its
//! exporter died before the import. Its first importer *founds* a share ([`hold_or_found`]) and charges the bytes that
//! it uses ([`lacking_bytes`], [`charge_reserved`]). Further imports by the tenant, in this process or another, cost
//! nothing. When all places for shares are taken, each importer is charged as for an allocation of its own. That may
//! count memory twice, but never misses any.
//!
//! An open descriptor keeps memory alive, in the driver and here. If the last name of a share ends while a descriptor
//! of it is open somewhere, even in a socket's buffer, the share is kept until the descriptor is closed. The process
//! that keeps it checks during its own calls ([`end_closed`]). The tenant's other processes check the keeper's
//! descriptor before they refuse a request, where /proc lets them. If the keeping process dies first, memory in
//! transit is charged to nobody until it is imported. A founded share is not kept for a descriptor: any open
//! descriptors belong to another tenant, which is charged for them.
//!
//! Not here: the marks on descriptors ([`descriptor_marks`]), which pointer or handle holds which share
//! (`memory/allocation_records`, `memory/physical`), and the calls themselves (`hooks/share`).

use super::descriptor_marks::{self, DescriptorWatch};
use super::joined::JoinedLedger;
use crate::ffi::lock::Lock;
use crate::ffi::sorted_map::SortedMap;
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU32, Ordering::*};
use vgpu_core::limits::tenant::hash64;
use vgpu_core::memory::ledger::{HeldCharge, Release, Reservation, SharedChargeId};

/// A share that this process holds, by a process-local number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LocalShare(NonZeroU32);

/// A share that this process holds.
struct ShareRecord {
    device: u8,
    /// The identity of the exported memory, as importers know it.
    identity: u64,
    /// Created by an importer: its full size is only known when the memory is mapped or used.
    founded: bool,
    /// The ledger that has the share.
    joined: &'static JoinedLedger,
    /// The share in that ledger.
    id: SharedChargeId,
    /// Names of the share in this process; 0: kept only for an open descriptor.
    names: u32,
    /// Detects whether a descriptor of the share is open.
    watch: Option<DescriptorWatch>,
}

impl ShareRecord {
    /// The share's identity in the ledger.
    fn name(&self) -> u64 {
        if self.founded { founded_name(self.identity) } else { self.identity }
    }
}

/// The ledger identity of a founded share. It differs from the exporter's, so that a process which finds an
/// exporter's share knows that it is fully charged.
fn founded_name(identity: u64) -> u64 {
    hash64([identity.to_le_bytes(), *b"imported"].as_flattened()).max(1)
}

struct ShareState {
    held: SortedMap<LocalShare, ShareRecord>,
    /// Shares by the identity that importers look up.
    named: SortedMap<u64, LocalShare>,
    next: u32,
}

impl ShareState {
    const NO_SHARES: ShareState = ShareState { held: SortedMap::new(), named: SortedMap::new(), next: 1 };

    fn insert(&mut self, held: ShareRecord) -> Option<LocalShare> {
        let share = LocalShare(NonZeroU32::new(self.next)?);
        self.next += 1;
        self.named.insert(held.identity, share);
        self.held.insert(share, held);
        Some(share)
    }

    fn remove(&mut self, share: LocalShare) {
        if let Some(held) = self.held.remove(&share) {
            self.named.remove(&held.identity);
        }
    }

    /// Adds a name to a share that this process already holds.
    fn hold_known(&mut self, identity: u64) -> Option<LocalShare> {
        let share = *self.named.get(&identity)?;
        let held = self.held.get_mut(&share)?;
        if held.names == 0 {
            KEPT_SHARES.fetch_sub(1, Relaxed);
            // The share may have ended meanwhile with another process that had held it.
            match held.joined.hold_again(held.name()) {
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

static SHARE_STATE: Lock<ShareState> = Lock::new(ShareState::NO_SHARES);
/// Shares that are kept only for an open descriptor.
static KEPT_SHARES: AtomicU32 = AtomicU32::new(0);
/// Serialises exports: of two exports of one allocation, the second finds the first one's share.
static EXPORT_TURN: Lock<()> = Lock::new(());

/// Whether this process holds any share.
pub fn any() -> bool {
    !SHARE_STATE.lock().held.is_empty()
}

/// Runs `act`, which checks whether something is exported and exports it if not, while no other thread exports. Must
/// not call into the driver.
pub fn with_export_turn<T>(act: impl FnOnce() -> T) -> T {
    let _turn = EXPORT_TURN.lock();
    act()
}

/// Moves `bytes` of this process's charge in the ledger of a device to a new share. `None`: the charge has not moved.
pub fn begin_share(device: u8, joined: &'static JoinedLedger, identity: u64, bytes: u64) -> Option<LocalShare> {
    let mut all = SHARE_STATE.lock();
    let id = joined.begin_shared(identity, bytes)?;
    all.insert(ShareRecord { device, identity, founded: false, joined, id, names: 1, watch: None })
}

/// Holds the share of that identity once more, in whichever of the `ledgers`, given with their devices' numbers.
pub fn hold_share(identity: u64, ledgers: &mut dyn Iterator<Item = (u8, &'static JoinedLedger)>) -> Option<LocalShare> {
    let mut all = SHARE_STATE.lock();
    if let Some(share) = all.hold_known(identity) {
        return Some(share);
    }
    let mut found = ledgers.filter_map(|(device, joined)| {
        let exported = joined.hold_again(identity).map(|id| (id, false));
        let (id, founded) = exported.or_else(|| joined.hold_again(founded_name(identity)).map(|id| (id, true)))?;
        Some(ShareRecord { device, identity, founded, joined, id, names: 1, watch: None })
    });
    all.insert(found.next()?)
}

/// Founds a share in the ledger of a device for imported memory of that identity, or holds one that another importer
/// has founded meanwhile. `None`: all places for shares are taken.
pub fn hold_or_found(device: u8, joined: Option<&'static JoinedLedger>, identity: u64) -> Option<LocalShare> {
    let mut all = SHARE_STATE.lock();
    if let Some(share) = all.hold_known(identity) {
        return Some(share);
    }
    let joined = joined?;
    let id = joined.hold_or_begin(founded_name(identity))?;
    all.insert(ShareRecord { device, identity, founded: true, joined, id, names: 1, watch: None })
}

/// Whether an importer created the share, so that part of its memory may not be charged yet.
pub fn is_founded(share: LocalShare) -> bool {
    SHARE_STATE.lock().held.get(&share).is_some_and(|held| held.founded)
}

/// The number of the device, and the bytes still missing from the charge of a share that is to hold `whole`. Only
/// founded shares can lack any.
pub fn lacking_bytes(share: LocalShare, whole: u64) -> Option<(u8, u64)> {
    let all = SHARE_STATE.lock();
    let held = all.held.get(&share).filter(|held| held.founded)?;
    let lack = whole.saturating_sub(held.joined.joined_member().held_charge(held.id).used_bytes());
    (lack > 0).then_some((held.device, lack))
}

/// Charges the reserved bytes to the share, minus what others have charged meanwhile.
pub fn charge_reserved(share: LocalShare, whole: u64, reservation: Option<Reservation<'static>>) {
    if let (Some(reservation), Some(place)) = (reservation, share_slot(share)) {
        reservation.commit_up_to(place, whole);
    }
}

/// Marks a descriptor of an exported allocation, so that importers can find the share by it.
pub fn mark_descriptor(share: LocalShare, descriptor: i32) {
    let identity = SHARE_STATE.lock().held.get(&share).map(|held| held.identity);
    if identity.is_some_and(|identity| descriptor_marks::mark_descriptor(descriptor, identity)) {
        watch_descriptor(share, descriptor);
    }
}

/// Watches whether the marked descriptor is open anywhere.
pub fn watch_descriptor(share: LocalShare, descriptor: i32) {
    let lacks = |held: &&ShareRecord| held.watch.is_none() && !held.founded;
    let unwatched = SHARE_STATE.lock().held.get(&share).filter(lacks).map(|held| held.identity);
    if let Some(watch) = unwatched.and_then(|identity| DescriptorWatch::watch_marks(descriptor, identity))
        && let Some(held) = SHARE_STATE.lock().held.get_mut(&share)
    {
        held.watch = Some(watch);
    }
}

/// Removes one name of the share in this process.
pub fn let_go(share: LocalShare) {
    let mut all = SHARE_STATE.lock();
    let Some(held) = all.held.get_mut(&share) else { return };
    held.names = held.names.saturating_sub(1);
    if held.names > 0 {
        return;
    }
    let open = held.watch.as_ref().and_then(DescriptorWatch::open);
    match held.joined.let_go(held.id, open) {
        Release::Kept => _ = KEPT_SHARES.fetch_add(1, Relaxed),
        Release::ToOthers | Release::Ended => all.remove(share),
    }
}

/// Ends shares that were kept for descriptors which are closed by now. Returns whether there were any.
///
/// # Cost
/// One load where nothing is kept; else one or two system calls for each share.
#[inline]
pub fn end_closed() -> bool {
    KEPT_SHARES.load(Relaxed) > 0 && tidy_kept()
}

#[cold]
fn tidy_kept() -> bool {
    let mut all = SHARE_STATE.lock();
    let closed = |held: &ShareRecord| held.names == 0 && held.watch.as_ref().and_then(DescriptorWatch::open).is_none();
    let closed: Vec<LocalShare> = all.held.iter().filter(|(_, held)| closed(held)).map(|(share, _)| *share).collect();
    let mut any = false;
    for share in closed {
        // A share that cannot be checked now is checked next time.
        if all.held.get(&share).is_some_and(|held| held.joined.keep_no_longer(held.id, held.name()) != Release::Kept) {
            KEPT_SHARES.fetch_sub(1, Relaxed);
            all.remove(share);
            any = true;
        }
    }
    any
}

/// Moves `bytes` that this process is charged on the share's device to the share.
pub fn hand_over(share: LocalShare, bytes: u64) {
    if let Some(held) = SHARE_STATE.lock().held.get(&share) {
        let member = held.joined.joined_member();
        member.hand_over(member.held_charge(held.id), bytes);
    }
}

/// The share's byte counter, in which an exported pool grows and shrinks.
pub fn share_slot(share: LocalShare) -> Option<HeldCharge<'static>> {
    SHARE_STATE.lock().held.get(&share).map(|held| held.joined.joined_member().held_charge(held.id))
}

/// The number of the device that the share's memory is on.
pub fn device_of(share: LocalShare) -> Option<u8> {
    SHARE_STATE.lock().held.get(&share).map(|held| held.device)
}

/// Follows a re-created ledger file: every share of this process in the old ledger is held, or charged, in the new
/// one.
pub fn follow_ledger(old: &'static JoinedLedger, fresh: &'static JoinedLedger) {
    let mut all = SHARE_STATE.lock();
    for held in all.held.values_mut().filter(|held| core::ptr::eq(held.joined, old)) {
        let there = fresh.hold_again(held.name()).or_else(|| {
            let bytes = old.joined_member().held_charge(held.id).used_bytes();
            fresh.charge_spent(bytes);
            fresh.begin_shared(held.name(), bytes)
        });
        // Without a place for shares in the new ledger, the charge remains in this process's own slot there until the
        // process ends.
        if let Some(id) = there {
            (held.joined, held.id) = (fresh, id);
            if held.names == 0 {
                fresh.let_go(id, held.watch.as_ref().and_then(DescriptorWatch::open));
            }
        }
    }
}

/// Clears everything in a forked child: the shares are the parent's.
pub fn reset_after_fork() {
    // SAFETY: called by the child's settling thread, before any other thread continues.
    unsafe {
        SHARE_STATE.reset(ShareState::NO_SHARES);
        EXPORT_TURN.reset(());
    }
    KEPT_SHARES.store(0, Relaxed);
}
