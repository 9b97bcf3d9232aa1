//! The simulated machine as NVML needs it: attachment, handles, and one consistent [`DeviceView`] of a device per
//! query.
//!
//! All figures come from the model. Only the list of devices is kept between queries.

use crate::arguments::{IntoSafe, NvmlAnswer, code};
use parking_lot::{Mutex, MutexGuard};
use shim_sys::nvml::nvmlDevice_t;
use vgpu_sim::{
    layout::{DeviceUse, WINDOWS_KEPT, XidEvent, set_bits},
    machine::{MachineView, now, wall_ns},
    profile::{DeviceProfile, MAX_SIMULATED_DEVICES, c_text},
};

static OPEN_MACHINE: Mutex<Option<MachineView>> = Mutex::new(None);

/// Addresses that serve as handles, never read. One byte per device of the machine, then one per partitioned
/// board at the index of its first instance.
static HANDLE_BYTES: [u8; 2 * MAX_SIMULATED_DEVICES] = [0; 2 * MAX_SIMULATED_DEVICES];

fn lock_machine() -> MutexGuard<'static, Option<MachineView>> {
    OPEN_MACHINE.lock()
}

/// Opens the machine if it is not open; false if it has no device or cannot be opened.
///
/// It stays open until the process ends, as the driver's files do.
pub fn attach_machine() -> bool {
    with_machine(|machine| machine.device_count() > 0).unwrap_or(false)
}

/// Runs `f` on the machine; a forked child opens its own first.
fn with_machine<T>(f: impl FnOnce(&MachineView) -> T) -> NvmlAnswer<T> {
    let mut slot = lock_machine();
    if slot.as_ref().is_some_and(MachineView::is_inherited)
        && let Some(parents) = slot.take()
    {
        parents.forget_inherited();
    }
    if slot.is_none() {
        match MachineView::open() {
            Ok(machine) => *slot = Some(machine),
            Err(why) => {
                eprintln!("vgpu-sim: {why}");
                return Err(code::UNKNOWN);
            }
        }
    }
    slot.as_ref().map(f).ok_or(code::UNKNOWN)
}

/// The first device of each board, in PCI order, and whether the board is partitioned.
fn list_boards() -> NvmlAnswer<Vec<(u32, bool)>> {
    with_machine(|machine| {
        let body = machine.lock();
        let all = &body.devices[..body.device_count as usize];
        (0..).zip(all).filter(|(_, d)| d.profile.mig <= 1).map(|(at, d)| (at, d.profile.mig > 0)).collect()
    })
}

/// Number of Xids that the machine has reported so far.
pub fn xid_count() -> NvmlAnswer<u64> {
    with_machine(MachineView::xid_count)
}

/// Xid number `n`, counted from 0; `None`: not yet.
pub fn xid_event(n: u64) -> NvmlAnswer<Option<XidEvent>> {
    with_machine(|machine| machine.xid_event(n))
}

/// Number of boards (whole devices, partitioned or not).
pub fn board_count() -> NvmlAnswer<u32> {
    Ok(u32::try_from(list_boards()?.len()).unwrap_or(0))
}

/// The executable of a process that uses the machine.
pub fn process_name(pid: u32) -> Option<String> {
    with_machine(|machine| {
        let body = machine.lock_settled();
        set_bits(&body.live)
            .find(|s| body.slots[*s].touched != 0 && machine.number_of(&body, *s) == Some(pid))
            .map(|s| c_text(&body.slots[s].name).to_owned())
    })
    .ok()
    .flatten()
}

/// An existing device: a whole one, a partitioned board, or an instance of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NvmlGpu {
    /// Index of the device on the machine; for a partitioned board the index of its first instance.
    at: u32,
    partitioned: bool,
}

impl NvmlGpu {
    /// Board `index`, in PCI order.
    pub fn board_at(index: u32) -> NvmlAnswer<NvmlGpu> {
        let (at, partitioned) = list_boards()?.get(index as usize).copied().ok_or(code::ERROR_INVALID)?;
        Ok(NvmlGpu { at, partitioned })
    }

    /// All boards, in PCI order.
    pub fn all() -> NvmlAnswer<Vec<NvmlGpu>> {
        Ok(list_boards()?.into_iter().map(|(at, partitioned)| NvmlGpu { at, partitioned }).collect())
    }

    /// The instances of a partitioned board, in order.
    pub fn mig_instances(self) -> NvmlAnswer<Vec<NvmlGpu>> {
        if !self.partitioned {
            return Ok(Vec::new());
        }
        with_machine(|machine| {
            let body = machine.lock();
            let of_board = |at: &u32| body.devices.get(*at as usize).is_some_and(|d| d.profile.mig == at - self.at + 1);
            let end = body.device_count;
            (self.at..end).take_while(of_board).map(|at| NvmlGpu { at, partitioned: false }).collect()
        })
    }

    /// True if the board is partitioned into instances.
    pub fn is_partitioned(self) -> bool {
        self.partitioned
    }

    /// NVML index: of a board among the boards, of an instance on its board.
    pub fn index(self) -> NvmlAnswer<u32> {
        let instance = with_machine(|machine| machine.device_identity(self.at as usize).mig)?;
        if instance > 0 && !self.partitioned {
            return Ok(instance - 1);
        }
        let place = list_boards()?.iter().position(|(at, _)| *at == self.at);
        Ok(place.and_then(|n| u32::try_from(n).ok()).unwrap_or(0))
    }

    /// NVML handle of the device.
    pub fn device_handle(self) -> nvmlDevice_t {
        let place = self.at as usize + if self.partitioned { MAX_SIMULATED_DEVICES } else { 0 };
        nvmlDevice_t((&raw const HANDLE_BYTES[place]).cast_mut().cast())
    }

    /// The device of a handle that this library returned.
    pub fn from_handle(handle: nvmlDevice_t) -> NvmlAnswer<NvmlGpu> {
        for board in NvmlGpu::all()? {
            if let Some(found) =
                [board].into_iter().chain(board.mig_instances()?).find(|gpu| gpu.device_handle() == handle)
            {
                return Ok(found);
            }
        }
        Err(code::ERROR_INVALID)
    }

    /// True if the device is this one, or part of it.
    pub fn includes(self, device: u32) -> bool {
        let instances = || self.mig_instances().unwrap_or_default();
        self.at == device || instances().iter().any(|gpu| gpu.at == device)
    }

    /// Refuses a query of a lost device.
    pub fn require_present(self) -> NvmlAnswer {
        match with_machine(|machine| machine.lost_code(self.at as usize))? {
            0 => Ok(()),
            _ => Err(code::GPU_IS_LOST),
        }
    }

    /// The present state of the device. A partitioned board includes the processes of its instances.
    pub fn current_view(self) -> NvmlAnswer<DeviceView> {
        self.require_present()?;
        let parts: Vec<usize> = match self.partitioned {
            true => self.mig_instances()?.iter().map(|gpu| gpu.at as usize).collect(),
            false => vec![self.at as usize],
        };
        with_machine(|machine| {
            let body = machine.lock_settled();
            let device = &body.devices[self.at as usize];
            let mut processes = Vec::new();
            for at in &parts {
                let here =
                    set_bits(&body.live).map(|n| (n, &body.slots[n])).filter(|(_, s)| s.touched & (1 << at) != 0);
                processes.extend(here.map(|(n, s)| NvmlProcess {
                    pid: machine.number_of(&body, n),
                    serial: s.serial,
                    used: body.used_with_shares(n, *at),
                    instance: body.devices[*at].profile.mig,
                    window: s.devices[*at].window,
                    windows: s.devices[*at].windows,
                }));
            }
            processes.sort_by_key(|p| p.serial);
            let (mut identity, mut profile) = (device.engine_identity(), device.profile);
            if self.partitioned {
                identity = identity.whole_device();
                profile = DeviceProfile::built_in(profile.profile_key()).unwrap_or(profile);
            }
            let done: u64 = parts.iter().map(|at| body.devices[*at].done.busy).sum();
            DeviceView {
                profile,
                uuid: identity.uuid_text(),
                pci_domain: identity.domain,
                pci_bus: identity.bus,
                pci_device: identity.device,
                minor: identity.minor,
                used: parts.iter().map(|at| body.taken_bytes(*at)).sum(),
                busy_ns: done + processes.iter().map(|p| p.used.busy).sum::<u64>(),
                created_ns: body.created_ns,
                now: now(),
                wall_us: wall_ns() / 1000,
                processes,
            }
        })
    }
}

impl IntoSafe for nvmlDevice_t {
    type Safe = NvmlGpu;
    unsafe fn into_safe(self) -> NvmlAnswer<NvmlGpu> {
        NvmlGpu::from_handle(self)
    }
}

/// A process that has used the device.
#[derive(Clone)]
pub struct NvmlProcess {
    /// Process id in the caller's pid namespace; `None`: it has none there, and no list contains the process.
    pub pid: Option<u32>,
    /// Number on the machine; a lower one is older.
    pub serial: u64,
    /// Memory and work of the process on the device.
    pub used: DeviceUse,
    /// Number of the MIG instance that the process uses, 0: none.
    pub instance: u32,
    window: u64,
    windows: [u32; WINDOWS_KEPT],
}

impl NvmlProcess {
    /// Time the device worked for the process in window `w`, ns.
    pub fn busy_in(&self, w: u64) -> u64 {
        if w > self.window || self.window - w >= WINDOWS_KEPT as u64 {
            return 0;
        }
        usize::try_from(w).map_or(0, |w| u64::from(self.windows[w % WINDOWS_KEPT]))
    }
}

/// State of a device at one moment.
pub struct DeviceView {
    /// Sizes, names and costs of the device.
    pub profile: DeviceProfile,
    uuid: String,
    /// PCI domain of the device.
    pub pci_domain: u32,
    /// PCI bus of the device.
    pub pci_bus: u32,
    /// PCI device number.
    pub pci_device: u32,
    /// Minor number: the number of the device file.
    pub minor: u32,
    /// Bytes in use by living processes.
    pub used: u64,
    /// Time the device worked since the machine was made, ns.
    pub busy_ns: u64,
    created_ns: u64,
    /// Time of this view, CLOCK_MONOTONIC, ns.
    pub now: u64,
    /// Time of this view, microseconds since 1970.
    pub wall_us: u64,
    /// Processes on the device, oldest first.
    pub processes: Vec<NvmlProcess>,
}

impl DeviceView {
    /// The UUID as text, `GPU-` or `MIG-` and five groups.
    pub fn uuid_text(&self) -> String {
        self.uuid.clone()
    }

    /// Serial number of thirteen digits, derived from the UUID.
    pub fn serial_text(&self) -> String {
        let bits = self.uuid.bytes().fold(0u64, |sum, byte| sum.wrapping_mul(257).wrapping_add(u64::from(byte)));
        format!("{:013}", bits % 10_000_000_000_000)
    }

    /// True if any process has a context on the device.
    pub fn in_use(&self) -> bool {
        self.processes.iter().any(|p| p.used.contexts > 0)
    }

    /// Present graphics and multiprocessor clock: idle until a process has a context.
    pub fn sm_mhz(&self) -> u32 {
        if self.in_use() { self.profile.sm_mhz } else { self.profile.idle_mhz }
    }

    /// Power drawn at `percent` utilisation, milliwatt.
    pub fn power_milliwatts(&self, percent: u32) -> u32 {
        let p = &self.profile;
        let idle = if self.in_use() { p.power_idle_mw + p.power_idle_mw / 4 } else { p.power_idle_mw };
        idle + (p.power_limit_mw.saturating_sub(idle) / 10 * 9 / 100) * percent
    }

    /// Age of the machine, ns.
    pub fn up_ns(&self) -> u64 {
        (self.wall_us * 1000).saturating_sub(self.created_ns)
    }
}
