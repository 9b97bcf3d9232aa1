//! The driver's state in this process: made by `cuInit`, kept until the end, unusable in a forked child.
//!
//! Not here: the calls that use it (`calls`), graphs and captures (`graph`, `capture`), the machine itself (vgpu-sim).

use crate::arrays::{ArrayView, MipmappedArray};
use crate::code::CodeSlabs;
use crate::content::ProcessMemory;
use crate::context::{CudaContext, stack_top};
use crate::devices::{DriverDevice, VisibleDevices};
use crate::errors::CallResult;
use crate::managed::ManagedMemory;
use crate::objects::{
    EventObject, FunctionObject, GreenContext, GreenDescription, HandleRegistry, LibraryObject, LinkObject,
    ModuleObject, PoolHandle, StreamObject,
};
use crate::visible;
use parking_lot::Mutex;
use shim_sys::cuda::CUresult;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use vgpu_sim::engine::DeviceEngine;
use vgpu_sim::faults::FaultRules;
use vgpu_sim::{DeviceIdentity, DeviceProfile, MachineView};

/// The state of the initialised driver.
pub(crate) struct SimulatedDriver {
    pub(crate) devices: Arc<VisibleDevices>,
    pub(crate) memory: ProcessMemory,
    pub(crate) managed: ManagedMemory,
    pub(crate) code: CodeSlabs,
    pub(crate) arrays: HandleRegistry<ArrayView>,
    pub(crate) mipmaps: HandleRegistry<MipmappedArray>,
    pub(crate) contexts: HandleRegistry<CudaContext>,
    pub(crate) descriptions: HandleRegistry<GreenDescription>,
    pub(crate) greens: HandleRegistry<GreenContext>,
    pub(crate) streams: HandleRegistry<StreamObject>,
    pub(crate) events: HandleRegistry<EventObject>,
    pub(crate) modules: HandleRegistry<ModuleObject>,
    pub(crate) functions: HandleRegistry<FunctionObject>,
    pub(crate) libraries: HandleRegistry<LibraryObject>,
    pub(crate) links: HandleRegistry<LinkObject>,
    pub(crate) pools: HandleRegistry<PoolHandle>,
    next_id: AtomicU64,
}

impl SimulatedDriver {
    /// The device with CUDA ordinal `dev`, unless it is lost.
    pub(crate) fn device_of_ordinal(&self, dev: i32) -> Result<&DriverDevice, CUresult> {
        let device = self.devices.device_of_ordinal(dev)?;
        match self.devices.machine.lost_code(device.index) {
            0 => Ok(device),
            code => Err(CUresult(code)),
        }
    }

    /// The code that a fault of this process, or the loss of the current context's device, gives to a call.
    pub(crate) fn sticky_code(&self) -> Option<CUresult> {
        let machine = &self.devices.machine;
        let lost = || {
            let current = stack_top()?;
            Some(machine.lost_code(self.devices.device_of_ordinal(current.device).ok()?.index))
        };
        let code = match machine.own_fault() {
            0 => lost().unwrap_or(0),
            own => own,
        };
        (code != 0).then_some(CUresult(code))
    }

    /// The content of `len` bytes at `at`, managed or not, as pieces of host memory.
    pub(crate) fn content_or_managed(&self, at: u64, len: u64, write: bool) -> Result<Vec<(*mut u8, u64)>, CUresult> {
        if len > 0 && self.managed.is_managed(at) {
            return self.managed.managed_pieces(at, len);
        }
        self.memory.content_pieces(at, len, write)
    }

    /// A number that this process did not use before.
    pub(crate) fn next_number(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

static THE_DRIVER: AtomicPtr<SimulatedDriver> = AtomicPtr::new(std::ptr::null_mut());
static IS_FORKED: AtomicBool = AtomicBool::new(false);
static MAKING_DRIVER: Mutex<()> = Mutex::new(());

/// The driver, if `cuInit` succeeded in this process.
pub(crate) fn current() -> Option<&'static SimulatedDriver> {
    // SAFETY: null, or a leaked box that is never freed.
    unsafe { THE_DRIVER.load(Ordering::Acquire).as_ref() }
}

/// The failures that `VGPU_SIM_FAULTS` requests.
pub(crate) fn requested_faults() -> &'static FaultRules {
    static REQUESTED_FAULTS: OnceLock<FaultRules> = OnceLock::new();
    REQUESTED_FAULTS.get_or_init(|| {
        FaultRules::from_env().unwrap_or_else(|e| {
            eprintln!("vgpu-sim: {e}");
            FaultRules::default()
        })
    })
}

/// Carries out `cuInit`. A failed call changes nothing and may be repeated.
///
/// After a fork the child of an initialised process gets `NOT_INITIALIZED`, as with the real driver.
pub(crate) fn initialise_driver() -> CallResult {
    let _one = MAKING_DRIVER.lock();
    if IS_FORKED.load(Ordering::Relaxed) {
        return Err(CUresult::NOT_INITIALIZED);
    }
    if current().is_some() {
        return Ok(());
    }
    let machine = match MachineView::open() {
        Ok(m) => Arc::new(m),
        Err(e) => {
            eprintln!("vgpu-sim: {e}");
            return Err(CUresult::NO_DEVICE);
        }
    };
    let all: Vec<(DeviceProfile, DeviceIdentity)> =
        (0..machine.device_count()).map(|i| (machine.profile_of(i), machine.device_identity(i))).collect();
    let order = std::env::var("CUDA_DEVICE_ORDER").unwrap_or_default();
    let mask = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let devices: Vec<DriverDevice> = visible::choose_devices(&all, &order, mask.as_deref())
        .into_iter()
        .filter(|index| machine.lost_code(*index) == 0)
        .map(|index| DriverDevice {
            index,
            profile: all[index].0,
            identity: all[index].1,
            engine: DeviceEngine::new(machine.clone(), index),
            state: Mutex::default(),
        })
        .collect();
    if devices.is_empty() {
        return Err(CUresult::NO_DEVICE);
    }
    let descriptor = machine.liveness_descriptor();
    let devices = Arc::new(VisibleDevices { machine, all: devices });
    let memory = ProcessMemory::new(devices.clone())?;
    let managed = ManagedMemory::new(devices.clone())?;
    let driver = SimulatedDriver {
        devices,
        memory,
        managed,
        code: CodeSlabs::default(),
        arrays: HandleRegistry::default(),
        mipmaps: HandleRegistry::default(),
        contexts: HandleRegistry::default(),
        descriptions: HandleRegistry::default(),
        greens: HandleRegistry::default(),
        streams: HandleRegistry::default(),
        events: HandleRegistry::default(),
        modules: HandleRegistry::default(),
        functions: HandleRegistry::default(),
        libraries: HandleRegistry::default(),
        links: HandleRegistry::default(),
        pools: HandleRegistry::default(),
        next_id: AtomicU64::new(1),
    };
    DESCRIPTOR.store(u64::try_from(descriptor).unwrap_or(u64::MAX), Ordering::Relaxed);
    // SAFETY: the handler only stores and closes: async-signal-safe, as a fork handler must be in a threaded process.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    THE_DRIVER.store(Box::into_raw(Box::new(driver)), Ordering::Release);
    Ok(())
}

static DESCRIPTOR: AtomicU64 = AtomicU64::new(u64::MAX);

/// In a forked child: marks the driver uninitialised, and closes the inherited descriptor, which would otherwise
/// keep the parent's slot alive.
extern "C" fn in_child() {
    THE_DRIVER.store(std::ptr::null_mut(), Ordering::Release);
    IS_FORKED.store(true, Ordering::Relaxed);
    if let Ok(fd) = i32::try_from(DESCRIPTOR.swap(u64::MAX, Ordering::Relaxed)) {
        // SAFETY: the copy this child got by fork; nothing here uses it any more.
        unsafe { libc::close(fd) };
    }
}
