//! Turns the environment into enforcement, once. The first stage reads the request before the driver initialises; the
//! second applies it to each device afterwards.
//!
//! A request that is not understood or cannot be kept makes initialisation fail permanently (invariant 8), unless
//! `VGPU_ON_ERROR=open`. With `VGPU_MODE=observe` only a request that is not understood does. With no request, and
//! with `VGPU_MODE=off`, no file, socket or device is touched.

use super::configuration::{Configuration, StartError};
use super::register::register;
use crate::daemon::start::{self, DaemonStart};
use crate::device::list;
use crate::device::list::DeviceFacts;
use crate::ffi::guard;
use crate::ffi::lock::Lock;
use crate::lookup::bypasses;
use crate::process::copies;
use crate::process::environment::{self, decisive_variable};
use crate::process::mode::{self, Denied, ProcessMode};
use crate::process::strictness::set_daemon_strict;
use crate::process::{fork, message, tenant};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use vgpu_core::limits::{self, RawLimits};

/// The result of the first stage, leaked; null until it ran.
static CONFIGURATION: AtomicPtr<Result<Configuration, Denied>> = AtomicPtr::new(core::ptr::null_mut());
/// Held while the environment is read and the daemon is asked, which may take up to 2 s.
static CONFIGURING: Lock<()> = Lock::new(());
/// Whether the daemon turns requests that cannot be kept into warnings.
static OPEN_ON_ERROR: AtomicBool = AtomicBool::new(false);
/// Whether the program changed the variables it was started with. Then no failure lifts the limits they ask for.
static ENVIRONMENT_CHANGED: AtomicBool = AtomicBool::new(false);
/// Whether the devices of each library (CUDA, NVML) are registered, so that repeated initialisation is cheap.
static DEVICES_REGISTERED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// Reports a failure and decides its effect. With `VGPU_ON_ERROR=open` the process runs on without limits; with
/// `VGPU_MODE=observe` it runs on unmeasured. Under a daemon no variable can loosen this, not even by an invalid
/// value. Variables that the program adds later cannot either.
fn fail_start(trouble: &StartError) -> Result<(), Denied> {
    let open = if decisive_variable("VGPU_SOCKET").is_some() {
        OPEN_ON_ERROR.load(Relaxed) && matches!(trouble, StartError::NotKept(_))
    } else {
        decisive_variable("VGPU_ON_ERROR").is_some_and(|value| value.as_bytes() == b"open")
    };
    let open = open && !ENVIRONMENT_CHANGED.load(Relaxed);
    match trouble {
        StartError::NotKept(text) | StartError::Variable(text) if mode::is_observing() => {
            message::warn_once(&format!("{text}; nothing is measured (VGPU_MODE=observe)"));
            // If the other library (CUDA or NVML) was initialised before, its devices stay measured.
            if mode::process_mode() != ProcessMode::On {
                mode::set(ProcessMode::Off);
            }
            Ok(())
        }
        StartError::NotKept(text) | StartError::Variable(text) | StartError::NotUnderstood(text) if open => {
            message::warn_once(&format!(
                "{text}; running WITHOUT limits (VGPU_ON_ERROR=open, or the daemon's on_error)"
            ));
            mode::set(ProcessMode::Off);
            Ok(())
        }
        StartError::NotKept(text) | StartError::Variable(text) | StartError::NotUnderstood(text) => {
            message::warn_once(text);
            mode::set(ProcessMode::Failed);
            crate::time::governor::activate_gates(); // launches must check the mode, to be refused
            Err(Denied)
        }
    }
}

/// First stage, before the real initialisation: reads the request.
///
/// # Errors
/// [`Denied`], after the reason was reported.
pub fn configuration() -> Result<&'static Configuration, Denied> {
    // SAFETY: null, or leaked below.
    let known = || unsafe { CONFIGURATION.load(Acquire).as_ref() };
    let asked = known().unwrap_or_else(|| {
        fork::place_mark();
        let _asking = CONFIGURING.lock();
        known().unwrap_or_else(|| {
            guard::silence_panics();
            let asked = Box::leak(Box::new(first_stage()));
            CONFIGURATION.store(asked, Release);
            asked
        })
    });
    asked.as_ref().map_err(|denied| *denied)
}

/// Reads the request and sets the mode for it.
fn first_stage() -> Result<Configuration, Denied> {
    match read() {
        Ok(asked) => {
            if asked.asks_for_anything() {
                copies::charge_copies();
            } else {
                mode::set(ProcessMode::Off);
            }
            Ok(asked)
        }
        Err(trouble) => {
            fail_start(&trouble).map(|()| Configuration { limits: RawLimits::default(), tenant: None, daemon: None })
        }
    }
}

/// Resets the lock in a forked child.
pub fn reset_after_fork() {
    // SAFETY: called by the child's settling thread, before any other thread continues.
    unsafe { CONFIGURING.reset(()) };
}

/// Reads the environment and asks the daemon.
fn read() -> Result<Configuration, StartError> {
    let limits = environment::read_limits().map_err(|(error, is_changed)| {
        ENVIRONMENT_CHANGED.store(is_changed, Relaxed);
        StartError::NotUnderstood(error.to_string())
    })?;
    ENVIRONMENT_CHANGED.store(limits.is_changed(), Relaxed);
    let mut daemon = None;
    if let Some(socket) = decisive_variable("VGPU_SOCKET") {
        let start = start::start(Path::new(&socket)).map_err(StartError::NotKept)?;
        OPEN_ON_ERROR.store(start.is_open_on_error(), Relaxed);
        if start.is_strict() {
            set_daemon_strict();
            if let (limits::Mode::Enforce, Some(name)) = (start.enforcement_mode(), bypasses::passed_bypass()) {
                return Err(StartError::NotKept(format!(
                    "the daemon is strict, and {name} bypasses the limits and was found before the daemon could be \
                     asked; \
                     VGPU_STRICT=1 in this environment refuses it from the start"
                )));
            }
        }
        daemon = Some(start);
    }
    let mut asked = Configuration { limits, tenant: None, daemon };
    if asked.enforcement_mode() == limits::Mode::Observe {
        mode::set_observing(true);
    }
    if asked.asks_for_anything() {
        tenant::check_name().map_err(StartError::NotUnderstood)?;
        if let Err(error) = asked.limits.check_requests() {
            keep_measuring(StartError::Variable(error.to_string()))?;
        }
        // The daemon decides the tenant's identity.
        let named = asked.daemon.as_ref().map(DaemonStart::tenant_name);
        asked.tenant = Some(tenant::tenant_key(named).map_err(StartError::NotKept)?);
    }
    Ok(asked)
}

/// With `VGPU_MODE=observe`: reports a request that cannot be kept and continues.
fn keep_measuring(trouble: StartError) -> Result<(), StartError> {
    match trouble {
        StartError::NotKept(text) | StartError::Variable(text) if mode::is_observing() => {
            message::warn_once(&format!("{text}; use is measured without it (VGPU_MODE=observe)"));
            Ok(())
        }
        trouble => Err(trouble),
    }
}

/// Second stage, after a successful `cuInit`.
///
/// # Errors
/// [`Denied`], after the reason was reported.
pub fn cuda_ready() -> Result<(), Denied> {
    register_devices(&DEVICES_REGISTERED[0], list::cuda_devices)
}

/// Second stage, after a successful `nvmlInit`.
///
/// # Errors
/// [`Denied`], after the reason was reported.
pub fn nvml_ready() -> Result<(), Denied> {
    register_devices(&DEVICES_REGISTERED[1], list::all_devices)
}

fn register_devices(
    done: &AtomicBool,
    devices: impl Fn(&RawLimits) -> Result<Vec<DeviceFacts>, String>,
) -> Result<(), Denied> {
    let asked = configuration()?;
    match mode::process_mode() {
        ProcessMode::Off => return Ok(()),
        ProcessMode::Failed => return Err(Denied),
        ProcessMode::On if done.load(Acquire) => return Ok(()),
        ProcessMode::Asleep | ProcessMode::On => {}
    }
    let shown = devices(&asked.limits).or_else(|text| {
        // If reading the devices works without the variables, the variables are the cause.
        let facts = devices(&RawLimits::default()).map_err(StartError::NotKept)?;
        keep_measuring(StartError::Variable(text)).map(|()| facts)
    });
    let registered = shown.and_then(|facts| register(asked, &facts));
    match registered {
        Ok(()) => {
            done.store(true, Release);
            mode::set(ProcessMode::On);
            Ok(())
        }
        Err(trouble) => fail_start(&trouble),
    }
}
