//! Tests of a partitioned device in NVML: the board counts as a device, its instances belong to it. Uses a
//! machine of its own, because the library attaches to one machine per process.

mod common;

use libloading::{Library, Symbol};
use nvml_wrapper::{Nvml, error::NvmlError};
use shim_sys::{nvml::*, table::nvml_fn};
use std::ptr::null_mut;

macro_rules! call {
    ($lib:expr, $name:ident($($arg:expr),*)) => {{
        // SAFETY: the signature is the table's; the arguments are live variables of the right types.
        unsafe {
            let f: Symbol<nvml_fn::$name> = $lib.get(stringify!($name).as_bytes()).unwrap();
            f($($arg),*)
        }.0
    }};
}

#[test]
fn instances_hang_from_their_board() {
    let lab = common::lab_of_this_process("a100:mig=3g.40gb+1g.10gb,t4,h100");
    let nvml = Nvml::builder().lib_path(common::library().as_os_str()).init().unwrap();
    assert_eq!(nvml.device_count().unwrap(), 3, "boards");
    let board = nvml.device_by_index(0).unwrap();
    assert_eq!(board.memory_info().unwrap().total, 80 << 30);
    assert!(board.uuid().unwrap().starts_with("GPU-"));
    let t4 = nvml.device_by_index(1).unwrap();
    assert_eq!(t4.name().unwrap(), "Tesla T4");
    assert_ne!(t4.pci_info().unwrap().bus_id, board.pci_info().unwrap().bus_id);
    // SAFETY: a library of ours without initialisers of its own.
    let lib = unsafe { Library::new(common::library()) }.unwrap();
    let mut dev = nvmlDevice_t(null_mut());
    assert_eq!(call!(lib, nvmlDeviceGetHandleByIndex_v2(0, &raw mut dev)), 0);
    let truth = lab.truth();
    for (index, gib) in [(0, 40), (1, 10)] {
        let (mut mig, mut is, mut memory) = (nvmlDevice_t(null_mut()), 0, nvmlMemory_t::default());
        assert_eq!(call!(lib, nvmlDeviceGetMigDeviceHandleByIndex(dev, index, &raw mut mig)), 0);
        assert_eq!(call!(lib, nvmlDeviceIsMigDeviceHandle(mig, &raw mut is)), 0);
        assert_eq!(is, 1);
        assert_eq!(call!(lib, nvmlDeviceGetMemoryInfo(mig, &raw mut memory)), 0);
        assert_eq!(memory.total, gib << 30);
        let mut uuid = [0; 96];
        assert_eq!(call!(lib, nvmlDeviceGetUUID(mig, uuid.as_mut_ptr(), 96)), 0);
        let text: String = uuid.iter().take_while(|c| **c != 0).map(|c| c.cast_unsigned() as char).collect();
        assert_eq!(text, truth.devices[index as usize].uuid);
        assert!(text.starts_with("MIG-"));
        assert_eq!(nvml.device_by_uuid(text).unwrap().index().unwrap(), index);
    }
    let mut mig = nvmlDevice_t(null_mut());
    assert_eq!(call!(lib, nvmlDeviceGetMigDeviceHandleByIndex(dev, 2, &raw mut mig)), nvmlReturn_t::NOT_FOUND.0);
    assert!(matches!(nvml.device_by_uuid("MIG-nonsense"), Err(NvmlError::NotFound)));
    // As nvml-wrapper asks: a device that is not partitioned has no instances, whether or not it can have some.
    let h100 = nvml.device_by_index(2).unwrap();
    assert_eq!((board.mig_mode().unwrap().current, h100.mig_mode().unwrap().current), (1, 0));
    assert!(matches!(t4.mig_mode(), Err(NvmlError::NotSupported)));
    let most = [&board, &t4, &h100].map(|device| device.mig_device_count().unwrap());
    assert_eq!(most, [7, 0, 0]);
    let work = lab.process(1, 1 << 30);
    let all = board.running_compute_processes().unwrap();
    assert_eq!(all.iter().map(|p| p.gpu_instance_id).collect::<Vec<_>>(), [Some(2)], "{all:?}");
    let of = |index| board.mig_device_by_index(index).unwrap().running_compute_processes().unwrap();
    assert_eq!((of(0).len(), of(1)), (0, all), "an instance has its own processes alone");
    drop(work);
}
