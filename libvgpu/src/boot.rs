//! From the environment to enforcement, once: what was asked for (before the driver initialises), then what that means
//! for each device (after it did).
//!
//! If something was asked for that is not understood or cannot be kept, initialisation fails for good (invariant 8),
//! unless `VGPU_ON_ERROR=open`. Where use is only measured (`VGPU_MODE=observe`) only what is not understood does. With
//! nothing asked for, and with `VGPU_MODE=off`, no file, socket or device is touched.

use crate::daemon::{self, Start};
use crate::device::{self, Facts};
use crate::environment::{self, variable};
use crate::lock::Lock;
use crate::mode::{self, Denied, Mode};
use crate::{door, doors, fork, hooks, inventory, say, tenant};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use vgpu_core::limits::{self, RawLimits};

/// What was asked for.
pub struct Asked {
    /// The limits as written.
    pub limits: RawLimits,
    /// The tenant, known only if there is something to enforce.
    pub tenant: Option<vgpu_core::tenant::TenantKey>,
    /// What the daemon says, if one was named.
    pub daemon: Option<Start>,
}

impl Asked {
    /// What is done about limits: the daemon's word, if one was named.
    pub fn mode(&self) -> limits::Mode {
        self.daemon.as_ref().map_or_else(|| self.limits.mode(), Start::mode)
    }

    /// Whether anything is to be enforced or measured.
    fn asks_for_anything(&self) -> bool {
        match &self.daemon {
            None => self.limits.asked_for_anything(),
            Some(daemon) => daemon.mode() != limits::Mode::Off,
        }
    }
}

/// Why initialisation fails.
pub enum Trouble {
    /// A value that has no meaning: an error in every mode but off.
    NotUnderstood(String),
    /// A variable asks for what cannot be kept. Where use is only measured, it is said and left out.
    Variable(String),
    /// As [`Trouble::Variable`], for a reason that is not in the environment.
    NotKept(String),
}

/// The answer, leaked; null until somebody asked.
static ASKED: AtomicPtr<Result<Asked, Denied>> = AtomicPtr::new(core::ptr::null_mut());
/// Held while the environment is read and the daemon is asked, which may take its 2 s.
static ASKING: Lock<()> = Lock::new(());
/// Whether the daemon says that what cannot be kept becomes a warning.
static OPEN_ON_ERROR: AtomicBool = AtomicBool::new(false);
/// Whether the program changed what the start's environment asks: then nothing that fails lifts what the start asks.
static CHANGED: AtomicBool = AtomicBool::new(false);
/// Which libraries' devices were registered, so that repeated initialisation costs nothing.
static READY: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// Says the line and decides what becomes of it: with `VGPU_ON_ERROR=open` the process runs on without limits, and where
/// use is only measured it runs on unmeasured. Beside a daemon a variable cannot loosen what happens, also not by being
/// wrong; nor can the program, by what it adds to its environment.
fn fail(trouble: &Trouble) -> Result<(), Denied> {
    let open = if variable("VGPU_SOCKET").is_some() {
        OPEN_ON_ERROR.load(Relaxed) && matches!(trouble, Trouble::NotKept(_))
    } else {
        variable("VGPU_ON_ERROR").is_some_and(|value| value.as_bytes() == b"open")
    };
    let open = open && !CHANGED.load(Relaxed);
    match trouble {
        Trouble::NotKept(text) | Trouble::Variable(text) if mode::observing() => {
            say::once(&format!("{text}; nothing is measured (VGPU_MODE=observe)"));
            // What is measured already stays so: another of the two libraries began before.
            if mode::mode() != Mode::On {
                mode::set(Mode::Off);
            }
            Ok(())
        }
        Trouble::NotKept(text) | Trouble::Variable(text) | Trouble::NotUnderstood(text) if open => {
            say::once(&format!("{text}; running WITHOUT limits (VGPU_ON_ERROR=open, or the daemon's on_error)"));
            mode::set(Mode::Off);
            Ok(())
        }
        Trouble::NotKept(text) | Trouble::Variable(text) | Trouble::NotUnderstood(text) => {
            say::once(text);
            mode::set(Mode::Failed);
            crate::governor::activate(); // launches must look, in order to be refused
            Err(Denied)
        }
    }
}

/// First stage, before the real initialisation: reads what was asked for.
///
/// # Errors
/// [`Denied`], after the line was said.
pub fn ask() -> Result<&'static Asked, Denied> {
    // SAFETY: null, or leaked below.
    let known = || unsafe { ASKED.load(Acquire).as_ref() };
    let asked = known().unwrap_or_else(|| {
        fork::watch();
        let _asking = ASKING.lock();
        known().unwrap_or_else(|| {
            door::silence();
            let asked = Box::leak(Box::new(first_stage()));
            ASKED.store(asked, Release);
            asked
        })
    });
    asked.as_ref().map_err(|denied| *denied)
}

fn first_stage() -> Result<Asked, Denied> {
    match read() {
        Ok(asked) => {
            if asked.asks_for_anything() {
                hooks::charge_copies();
            } else {
                mode::set(Mode::Off);
            }
            Ok(asked)
        }
        Err(trouble) => fail(&trouble).map(|()| Asked { limits: RawLimits::default(), tenant: None, daemon: None }),
    }
}

/// Opens the lock in a forked child.
pub fn reborn() {
    // SAFETY: the child's thread that settles it, before any other goes on.
    unsafe { ASKING.reset(()) };
}

fn read() -> Result<Asked, Trouble> {
    let limits = environment::limits().map_err(|(error, is_changed)| {
        CHANGED.store(is_changed, Relaxed);
        Trouble::NotUnderstood(error.to_string())
    })?;
    CHANGED.store(limits.is_changed(), Relaxed);
    let mut daemon = None;
    if let Some(socket) = variable("VGPU_SOCKET") {
        let start = daemon::start(Path::new(&socket)).map_err(Trouble::NotKept)?;
        OPEN_ON_ERROR.store(start.is_open_on_error(), Relaxed);
        if start.is_strict() {
            doors::shut();
            if let (limits::Mode::Enforce, Some(name)) = (start.mode(), doors::passed()) {
                return Err(Trouble::NotKept(format!(
                    "the daemon is strict, and {name} leads around the limits and was found before it could be asked; \
                     VGPU_STRICT=1 in this environment refuses it from the start"
                )));
            }
        }
        daemon = Some(start);
    }
    let mut asked = Asked { limits, tenant: None, daemon };
    if asked.mode() == limits::Mode::Observe {
        mode::observe(true);
    }
    if asked.asks_for_anything() {
        tenant::check_name().map_err(Trouble::NotUnderstood)?;
        if let Err(error) = asked.limits.check_requests() {
            keep_measuring(Trouble::Variable(error.to_string()))?;
        }
        // Who this is, is the daemon's to say.
        let named = asked.daemon.as_ref().map(Start::tenant);
        asked.tenant = Some(tenant::key(named).map_err(Trouble::NotKept)?);
    }
    Ok(asked)
}

/// Where use is only measured: says what cannot be kept and goes on.
fn keep_measuring(trouble: Trouble) -> Result<(), Trouble> {
    match trouble {
        Trouble::NotKept(text) | Trouble::Variable(text) if mode::observing() => {
            say::once(&format!("{text}; use is measured without it (VGPU_MODE=observe)"));
            Ok(())
        }
        trouble => Err(trouble),
    }
}

/// Second stage, after a successful `cuInit`.
///
/// # Errors
/// [`Denied`], after the line was said.
pub fn cuda_ready() -> Result<(), Denied> {
    ready(&READY[0], inventory::cuda_devices)
}

/// Second stage, after a successful `nvmlInit`.
///
/// # Errors
/// [`Denied`], after the line was said.
pub fn nvml_ready() -> Result<(), Denied> {
    ready(&READY[1], inventory::all_devices)
}

fn ready(done: &AtomicBool, devices: impl Fn(&RawLimits) -> Result<Vec<Facts>, String>) -> Result<(), Denied> {
    let asked = ask()?;
    match mode::mode() {
        Mode::Off => return Ok(()),
        Mode::Failed => return Err(Denied),
        Mode::On if done.load(Acquire) => return Ok(()),
        Mode::Asleep | Mode::On => {}
    }
    let shown = devices(&asked.limits).or_else(|text| {
        // Without the variables it works: they are why.
        let facts = devices(&RawLimits::default()).map_err(Trouble::NotKept)?;
        keep_measuring(Trouble::Variable(text)).map(|()| facts)
    });
    let registered = shown.and_then(|facts| device::register(asked, &facts));
    match registered {
        Ok(()) => {
            done.store(true, Release);
            mode::set(Mode::On);
            Ok(())
        }
        Err(trouble) => fail(&trouble),
    }
}
