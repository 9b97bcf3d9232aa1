//! Registers the devices that CUDA or NVML shows: each with its limits, its ledger, and its launch gate.

use super::configuration::{Configuration, StartError};
use crate::daemon::link::DaemonLink;
use crate::daemon::session::PagesSlot;
use crate::daemon::start::DaemonStart;
use crate::device::list::DeviceFacts;
use crate::device::reconnect;
use crate::device::table::{self, MAX_DEVICES};
use crate::device::watch;
use crate::ffi::uuid;
use crate::ledger::file::{JoinFailure, Ledger};
use crate::process::message;
use crate::time::governor::{CallsAbove, Governor};
use vgpu_core::limits::{self, DeviceLimits, NamedDevice};
use vgpu_core::protocol::wire;
use vgpu_core::protocol::wire::terms_file::TERMS_FILE_NAME;
use vgpu_core::units::bytes::Bytes;
use vgpu_core::units::share::Share;

/// The functions of the devices' room that a thread at the gate calls.
const CALLS_ABOVE: CallsAbove = CallsAbove { start_helper: watch::start, reconnect: reconnect::reconnect_if_due };

/// Registers the devices in `shown` that have limits, each with its ledger and gate.
///
/// # Errors
/// [`StartError`] with the limit that does not fit a device, or the reason why the ledger cannot be kept.
pub fn register(asked: &Configuration, shown: &[DeviceFacts]) -> Result<(), StartError> {
    let (limits, observed) = (&asked.limits, asked.enforcement_mode() == limits::Mode::Observe);
    let mut refused = None;
    for facts in shown {
        // CUDA numbers devices. NVML's program knows CUDA's number of an only device.
        let number = facts.cuda.or((shown.len() == 1).then_some(0)).and_then(|number| u32::try_from(number).ok());
        let names = NamedDevice { index: facts.ordinal, cuda: number, uuid: &uuid::uuid_text(&facts.uuid) };
        let limits = match limits.for_named_device(&names, facts.total.map(Bytes)) {
            Err(error) if observed => {
                message::warn_once(&format!("{error}; use is measured without it (VGPU_MODE=observe)"));
                DeviceLimits::default()
            }
            limits => limits.map_err(|e| StartError::Variable(e.to_string()))?,
        };
        if let Some(device) = table::by_uuid(&facts.uuid) {
            // NVML showed the device before CUDA numbered it for a list.
            device.lower_limit(limits.memory);
        } else {
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
                    table::hide_device(facts.uuid);
                    refused = Some(words);
                    continue;
                }
                Err(LinkError::NotIts(words) | LinkError::Other(words)) => return Err(StartError::NotKept(words)),
                Ok(post) => post,
            };
            let post = match post {
                None => None,
                Some((post, granted)) => {
                    check_floor(asked, facts, granted, observed)?;
                    Some(post)
                }
            };
            if let Some(reason) = unjoined.filter(|_| ledger.membership().is_err()) {
                if !observed {
                    return Err(StartError::NotKept(reason));
                }
                // The daemon may set a limit later. The device is registered so that the limit can then be enforced.
                message::warn_once(&format!("{reason}; this device is not measured (VGPU_MODE=observe)"));
            }
            add_device(facts, &limits, ledger, post, observed)?;
        }
        if let Some(cuda) = facts.cuda {
            table::note_ordinal(&facts.uuid, cuda, shown.len() == 1);
        }
    }
    // If the tenant may use no device of the machine, registration fails.
    match refused {
        Some(words) if table::all().next().is_none() => Err(StartError::NotKept(words)),
        _ => Ok(()),
    }
}

/// Adds the device with its ledger and its launch gate.
///
/// Not inlined: the caller also opens the ledger and speaks to the daemon, and a thread may have 16 KiB of stack in
/// all.
#[inline(never)]
fn add_device(
    facts: &DeviceFacts,
    limits: &DeviceLimits,
    ledger: Ledger,
    post: Option<DaemonLink>,
    observed: bool,
) -> Result<(), StartError> {
    let governor = make_governor(limits, post, observed);
    match table::add_device(facts.uuid, limits.memory, ledger, governor) {
        Some(_) => Ok(()),
        None => Err(StartError::NotKept(format!("more than {MAX_DEVICES} devices"))),
    }
}

/// Makes the governor of a device. `None`: its time is neither limited nor measured. Not inlined: a governor takes a
/// kilobyte of stack, and as much for each part of it that is made before.
#[inline(never)]
fn make_governor(limits: &DeviceLimits, post: Option<DaemonLink>, observed: bool) -> Option<Governor> {
    match post {
        None if limits.sm.is_none() && !observed => None,
        post => Some(Governor::new(limits.sm, post.unwrap_or(DaemonLink::without_daemon()), CALLS_ABOVE)),
    }
}

/// Refuses a floor from the environment that exceeds the daemon's. In observe mode it only warns and ignores the floor.
#[inline(never)]
fn check_floor(
    asked: &Configuration,
    facts: &DeviceFacts,
    granted: Option<Share>,
    observed: bool,
) -> Result<(), StartError> {
    match asked.limits.check_granted(facts.ordinal.unwrap_or(u32::MAX), granted) {
        Err(error) if observed => {
            message::warn_once(&format!("{error}; use is measured without it (VGPU_MODE=observe)"));
            Ok(())
        }
        outcome => outcome.map_err(|error| StartError::Variable(error.to_string())),
    }
}

/// Reason why the daemon link of a device cannot be made.
enum LinkError {
    /// The tenant may not use the device.
    NotIts(String),
    /// Any other reason.
    Other(String),
}

/// Joins the device at the daemon. While the daemon is away, the terms file replaces it. Returns the link and the
/// guaranteed floor (inner `None`: no floor). Outer `None`: this process has no daemon.
fn link_daemon(
    asked: &Configuration,
    uuid: &[u8; 16],
    ledger: &Ledger,
) -> Result<Option<(DaemonLink, Option<Share>)>, LinkError> {
    let name = uuid::uuid_text(uuid);
    let refused = |words: String| {
        if wire::is_not_its_device(&words) { LinkError::NotIts(words) } else { LinkError::Other(words) }
    };
    match &asked.daemon {
        None => Ok(None),
        Some(DaemonStart::Session(_)) => reconnect::join(&name, ledger).map(with_floor).map(Some).map_err(refused),
        Some(DaemonStart::File(file)) => {
            if let Some(place) = reconnect::join_if_there(&name, ledger) {
                return Ok(Some(with_floor(place)));
            }
            let terms = file.terms_of_device(&name).ok_or_else(|| {
                LinkError::NotIts(format!("{TERMS_FILE_NAME} does not let this tenant use device {name}"))
            })?;
            let floor = terms.sm_request;
            Ok(Some((DaemonLink::with_left_terms(terms.memory_limit, file.on_loss, floor, terms.sm_limit), floor)))
        }
    }
}

/// The daemon link for a board slot, with the floor from the slot's terms.
fn with_floor(place: PagesSlot) -> (DaemonLink, Option<Share>) {
    let floor = place.granted_floor();
    (DaemonLink::with_slot(place), floor)
}
