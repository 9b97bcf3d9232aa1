//! The machine and its devices as this process sees them.
//!
//! Not here: which devices the process sees (`visible`), the objects on them (`driver`).

use crate::context::CudaContext;
use crate::objects::PoolHandle;
use parking_lot::Mutex;
use shim_sys::cuda::CUresult;
use std::sync::Arc;
use vgpu_sim::engine::DeviceEngine;
use vgpu_sim::{DeviceIdentity, DeviceProfile, MachineView};

/// A device as this process sees it.
pub(crate) struct DriverDevice {
    /// Index of the device on the machine.
    pub(crate) index: usize,
    pub(crate) profile: DeviceProfile,
    pub(crate) identity: DeviceIdentity,
    pub(crate) engine: Arc<DeviceEngine>,
    pub(crate) state: Mutex<DeviceContexts>,
}

/// Contexts and pools of a device.
#[derive(Default)]
pub(crate) struct DeviceContexts {
    /// Number of contexts of all kinds.
    pub(crate) contexts: u32,
    /// Number of retains of the primary context.
    pub(crate) retained: u32,
    pub(crate) primary: Option<Arc<CudaContext>>,
    pub(crate) primary_flags: u32,
    /// The default pool and the current pool, once requested.
    pub(crate) pools: Option<(Arc<PoolHandle>, Arc<PoolHandle>)>,
}

/// The machine, and the devices that this process sees.
pub(crate) struct VisibleDevices {
    pub(crate) machine: Arc<MachineView>,
    /// The devices by CUDA ordinal.
    pub(crate) all: Vec<DriverDevice>,
}

impl VisibleDevices {
    /// The device with CUDA ordinal `dev`.
    pub(crate) fn device_of_ordinal(&self, dev: i32) -> Result<&DriverDevice, CUresult> {
        usize::try_from(dev).ok().and_then(|d| self.all.get(d)).ok_or(CUresult::INVALID_DEVICE)
    }
}
