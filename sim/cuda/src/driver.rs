//! The driver's state in this process: made by `cuInit`, kept until the end, unusable in a forked child.
//!
//! Not here: the calls that use it (`calls`), the machine itself (vgpu-sim).

use crate::arrays::{Array, Mipmap};
use crate::calls::green::{Description, Green};
use crate::capture::Captures;
use crate::code::Code;
use crate::content::Memory;
use crate::context::Context;
use crate::door::Answer;
use crate::graph::Graphs;
use crate::managed::Managed;
use crate::objects::{Event, Function, Library, Link, Module, Pool, Registry, Stream};
use crate::visible;
use parking_lot::{Mutex, MutexGuard};
use shim_sys::cuda::CUresult;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use vgpu_sim::engine::Engine;
use vgpu_sim::faults::Faults;
use vgpu_sim::{Identity, Machine, Profile};

/// A device as this process sees it.
pub(crate) struct Device {
    /// Index of the device on the machine.
    pub(crate) index: usize,
    pub(crate) profile: Profile,
    pub(crate) identity: Identity,
    pub(crate) engine: Arc<Engine>,
    pub(crate) state: Mutex<DeviceState>,
}

/// Contexts and pools of a device.
#[derive(Default)]
pub(crate) struct DeviceState {
    /// Number of contexts of all kinds.
    pub(crate) contexts: u32,
    /// Number of retains of the primary context.
    pub(crate) retained: u32,
    pub(crate) primary: Option<Arc<Context>>,
    pub(crate) primary_flags: u32,
    /// The default pool and the current pool, once requested.
    pub(crate) pools: Option<(Arc<Pool>, Arc<Pool>)>,
}

/// The state of the initialised driver.
pub(crate) struct Driver {
    pub(crate) machine: Arc<Machine>,
    pub(crate) devices: Vec<Device>,
    pub(crate) memory: Memory,
    pub(crate) managed: Managed,
    pub(crate) code: Code,
    pub(crate) arrays: Registry<Array>,
    pub(crate) mipmaps: Registry<Mipmap>,
    pub(crate) contexts: Registry<Context>,
    pub(crate) descriptions: Registry<Description>,
    pub(crate) greens: Registry<Green>,
    pub(crate) streams: Registry<Stream>,
    pub(crate) events: Registry<Event>,
    pub(crate) modules: Registry<Module>,
    pub(crate) functions: Registry<Function>,
    pub(crate) libraries: Registry<Library>,
    pub(crate) links: Registry<Link>,
    pub(crate) pools: Registry<Pool>,
    pub(crate) graphs: Graphs,
    pub(crate) captures: Captures,
    next_id: AtomicU64,
}

impl Driver {
    /// The device with CUDA ordinal `dev`.
    pub(crate) fn device(&self, dev: i32) -> Result<&Device, CUresult> {
        usize::try_from(dev).ok().and_then(|d| self.devices.get(d)).ok_or(CUresult::INVALID_DEVICE)
    }

    /// A number that this process did not use before.
    pub(crate) fn fresh(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

/// Locks a mutex even after a panic; the entry point (`door`) has turned that panic into an error code.
pub(crate) fn hold<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock()
}

static DRIVER: AtomicPtr<Driver> = AtomicPtr::new(std::ptr::null_mut());
static FORKED: AtomicBool = AtomicBool::new(false);
static MAKING: Mutex<()> = Mutex::new(());

/// The driver, if `cuInit` succeeded in this process.
pub(crate) fn current() -> Option<&'static Driver> {
    // SAFETY: null, or a leaked box that is never freed.
    unsafe { DRIVER.load(Ordering::Acquire).as_ref() }
}

/// The failures that `VGPU_SIM_FAULTS` requests.
pub(crate) fn faults() -> &'static Faults {
    static FAULTS: OnceLock<Faults> = OnceLock::new();
    FAULTS.get_or_init(|| {
        Faults::from_env().unwrap_or_else(|e| {
            eprintln!("vgpu-sim: {e}");
            Faults::default()
        })
    })
}

/// Carries out `cuInit`. A failed call changes nothing and may be repeated.
///
/// After a fork the child of an initialised process gets `NOT_INITIALIZED`, as with the real driver.
pub(crate) fn initialise() -> Answer {
    let _one = hold(&MAKING);
    if FORKED.load(Ordering::Relaxed) {
        return Err(CUresult::NOT_INITIALIZED);
    }
    if current().is_some() {
        return Ok(());
    }
    let machine = match Machine::open() {
        Ok(m) => Arc::new(m),
        Err(e) => {
            eprintln!("vgpu-sim: {e}");
            return Err(CUresult::NO_DEVICE);
        }
    };
    let all: Vec<(Profile, Identity)> =
        (0..machine.device_count()).map(|i| (machine.profile(i), machine.identity(i))).collect();
    let order = std::env::var("CUDA_DEVICE_ORDER").unwrap_or_default();
    let mask = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let devices: Vec<Device> = visible::choose(&all, &order, mask.as_deref())
        .into_iter()
        .map(|index| Device {
            index,
            profile: all[index].0,
            identity: all[index].1,
            engine: Engine::new(machine.clone(), index),
            state: Mutex::default(),
        })
        .collect();
    if devices.is_empty() {
        return Err(CUresult::NO_DEVICE);
    }
    let memory = Memory::new(devices.iter().map(|d| (d.index, d.profile)))?;
    let managed = Managed::new(devices.iter().map(|d| (d.index, d.profile)))?;
    let descriptor = machine.descriptor();
    let driver = Driver {
        machine,
        devices,
        memory,
        managed,
        code: Code::default(),
        arrays: Registry::default(),
        mipmaps: Registry::default(),
        contexts: Registry::default(),
        descriptions: Registry::default(),
        greens: Registry::default(),
        streams: Registry::default(),
        events: Registry::default(),
        modules: Registry::default(),
        functions: Registry::default(),
        libraries: Registry::default(),
        links: Registry::default(),
        pools: Registry::default(),
        graphs: Graphs::default(),
        captures: Captures::default(),
        next_id: AtomicU64::new(1),
    };
    DESCRIPTOR.store(u64::try_from(descriptor).unwrap_or(u64::MAX), Ordering::Relaxed);
    // SAFETY: the handler only stores and closes: async-signal-safe, as a fork handler must be in a threaded process.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    DRIVER.store(Box::into_raw(Box::new(driver)), Ordering::Release);
    Ok(())
}

static DESCRIPTOR: AtomicU64 = AtomicU64::new(u64::MAX);

/// In a forked child: marks the driver uninitialised, and closes the inherited descriptor, which would otherwise
/// keep the parent's slot alive.
extern "C" fn in_child() {
    DRIVER.store(std::ptr::null_mut(), Ordering::Release);
    FORKED.store(true, Ordering::Relaxed);
    if let Ok(fd) = i32::try_from(DESCRIPTOR.swap(u64::MAX, Ordering::Relaxed)) {
        // SAFETY: the copy this child got by fork; nothing here uses it any more.
        unsafe { libc::close(fd) };
    }
}
