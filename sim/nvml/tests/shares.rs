//! Tests of memory that several processes hold, in NVML: it counts once, with the process that owns it. Uses a
//! machine of its own, because the library attaches to one machine per process.

mod common;

use common::MIB;
use nvml_wrapper::{Device, Nvml, enums::device::UsedGpuMemory};
use vgpu_sim::MachineView;
use vgpu_sim::memory::{RecordChange, signed_bytes};
use vgpu_sim::share::{NewShare, ShareKind};

/// Bytes of each process, oldest first, and the used bytes that the device reports.
fn shown(device: &Device) -> (Vec<u64>, u64) {
    let bytes = |p: &UsedGpuMemory| if let UsedGpuMemory::Used(n) = p { *n } else { 0 };
    let all = device.running_compute_processes().unwrap();
    (all.iter().map(|p| bytes(&p.used_gpu_memory)).collect(), device.memory_info().unwrap().used)
}

#[test]
fn shared_memory_stands_with_its_creator_and_then_with_a_holder() {
    let lab = common::lab_of_this_process("t4");
    let nvml = Nvml::builder().lib_path(common::library().as_os_str()).init().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let idle = device.memory_info().unwrap().used;
    let [first, second] = [(), ()].map(|()| {
        let m = MachineView::open_at(lab.dir(), None).unwrap();
        m.adjust_device(0, &RecordChange { contexts: 1, overhead: signed_bytes(100 * MIB), ..RecordChange::default() })
            .unwrap();
        m
    });
    first.adjust_device(0, &RecordChange { large: signed_bytes(64 * MIB), ..RecordChange::default() }).unwrap();
    let new = NewShare { kind: ShareKind::Memory, device: Some(0), bytes: 64 * MIB, small: false, words: [0; 4] };
    let (info, _) = first.make_share(&new).unwrap();
    second.hold_share(info.id).unwrap();
    let used = idle + 264 * MIB;
    assert_eq!(shown(&device), (vec![164 * MIB, 100 * MIB], used));
    first.drop_share(info.id);
    assert_eq!(shown(&device), (vec![100 * MIB, 164 * MIB], used));
    drop(first);
    assert_eq!(shown(&device), (vec![164 * MIB], used - 100 * MIB));
    second.drop_share(info.id);
    assert_eq!(shown(&device), (vec![100 * MIB], idle + 100 * MIB));
}
