//! The limit of each device. No form of CUDA_VISIBLE_DEVICES, no device order and no order of initialisation gives a
//! device another device's limit. Only the simulated machine decides which device a CUDA ordinal is.

use vgpu_tests::lab::charged;
use vgpu_tests::{GIB, Lab, MIB, Member, OUT_OF_MEMORY};

/// CUDA's answer where no device is visible.
const NO_DEVICE: i64 = 100;
/// Slow, fast, slow: in CUDA's own order the second is first.
const MACHINE: &str = "l4,h200,t4";
/// Limits by ordinal, all different.
const LIMITS: [u64; 3] = [2 * GIB, 3 * GIB, 4 * GIB];

/// The library that the program initialises first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum First {
    Cuda,
    Nvml,
    CudaAlone,
    NvmlAlone,
}
use First::*;

fn start(member: &mut Member, first: First) -> i64 {
    match first {
        Nvml => {
            member.ok("nvinit");
            member.code("init")
        }
        Cuda => {
            let code = member.code("init");
            member.ok("nvinit");
            code
        }
        CudaAlone => member.code("init"),
        NvmlAlone => member.code("nvinit"),
    }
}

/// The device on which the process has one context more than in `before`.
fn landed(lab: &Lab, pid: u32, before: &[u64]) -> usize {
    let after = contexts(lab, pid);
    let grown: Vec<usize> = (0..after.len()).filter(|i| after[*i] > before[*i]).collect();
    assert_eq!(grown.len(), 1, "contexts {before:?} -> {after:?}");
    grown[0]
}

fn contexts(lab: &Lab, pid: u32) -> Vec<u64> {
    let truth = lab.truth();
    (0..truth.devices.len()).map(|i| truth.living_process(i, pid).map_or(0, |p| p.contexts)).collect()
}

/// Checks every visible device against its own limit: the shown total, the last byte, and one byte beyond.
#[track_caller]
fn judge(lab: &Lab, member: &mut Member, seen: &[usize], limits: &[u64], row: &str) {
    assert_eq!(member.ok("count").number(0), seen.len() as u64, "{row}");
    for (ordinal, expected) in seen.iter().enumerate() {
        let before = contexts(lab, member.pid);
        member.ok(&format!("retain {ordinal}"));
        let at = landed(lab, member.pid, &before);
        assert_eq!(at, *expected, "{row}: ordinal {ordinal}");
        let (free, total) = member.info();
        assert_eq!(total, limits[at], "{row}: ordinal {ordinal} is device {at}");
        assert_eq!(member.ok(&format!("total {ordinal}")).number(0), limits[at], "{row}");
        assert_eq!(member.code(&format!("alloc {}", free + 1)), OUT_OF_MEMORY, "{row}");
        member.alloc(free);
        let device = lab.device(at);
        let left = limits[at] - charged(&device);
        assert!(left < 2 * MIB, "{row}: device {at} by its own truth: {left} bytes are left");
    }
}

/// A form of the mask, made from the devices' names, and the devices that it shows, in order.
struct Row {
    name: &'static str,
    order: Option<&'static str>,
    mask: fn(&[String]) -> Option<String>,
    seen: &'static [usize],
}

const fn row(
    name: &'static str,
    order: Option<&'static str>,
    mask: fn(&[String]) -> Option<String>,
    seen: &'static [usize],
) -> Row {
    Row { name, order, mask, seen }
}

const PCI: Option<&str> = Some("PCI_BUS_ID");

fn rows() -> Vec<Row> {
    vec![
        row("no mask", None, |_| None, &[1, 0, 2]),
        row("no mask, in the bus's order", PCI, |_| None, &[0, 1, 2]),
        row("no mask, the default by its name", Some("FASTEST_FIRST"), |_| None, &[1, 0, 2]),
        row("one ordinal", PCI, |_| Some("1".into()), &[1]),
        row("one ordinal of the fastest first", None, |_| Some("1".into()), &[0]),
        row("reordered", PCI, |_| Some("2,0".into()), &[2, 0]),
        row("reordered, fastest first", None, |_| Some("2,1,0".into()), &[2, 0, 1]),
        row("cut by -1", PCI, |_| Some("2,1,-1,0".into()), &[2, 1]),
        row("cut by a stranger", PCI, |_| Some("1,7,0".into()), &[1]),
        row("cut by words", PCI, |_| Some("2,none,0".into()), &[2]),
        row("blanks, signs and what follows a number", PCI, |_| Some(" 2, +1x".into()), &[2, 1]),
        row("names", None, |u| Some(format!("{},{}", u[2], u[0])), &[2, 0]),
        row("the beginning of a name", PCI, |u| Some(u[2][..9].to_owned()), &[2]),
        row("names cut by an ordinal", PCI, |u| Some(format!("{},0", u[1])), &[1]),
        row("names cut by what is not unique", PCI, |u| Some(format!("{},GPU-,{}", u[1], u[0])), &[1]),
        row("empty", PCI, |_| Some(String::new()), &[]),
        row("-1", None, |_| Some("-1".into()), &[]),
        row("a device twice", PCI, |_| Some("0,1,0".into()), &[]),
        row("a device by two names", PCI, |u| Some(format!("{},{}", u[0], &u[0][..12])), &[]),
        row("only a stranger", PCI, |_| Some("NoDevFiles".into()), &[]),
    ]
}

/// The machine with this row's environment and a limit for each ordinal.
fn lab_of(row: &Row) -> Lab {
    let mut lab = Lab::new(MACHINE);
    for (ordinal, limit) in LIMITS.iter().enumerate() {
        lab.set(&format!("VGPU_MEMORY_LIMIT_{ordinal}"), limit.to_string());
    }
    apply(&mut lab, row);
    lab
}

fn apply(lab: &mut Lab, row: &Row) {
    let uuids: Vec<String> = lab.truth().devices.iter().map(|d| d.uuid.clone()).collect();
    if let Some(order) = row.order {
        lab.set("CUDA_DEVICE_ORDER", order);
    }
    if let Some(mask) = (row.mask)(&uuids) {
        lab.set("CUDA_VISIBLE_DEVICES", mask);
    }
}

/// NVML ignores the mask: it lists every device in bus order, with its own limit.
#[track_caller]
fn judge_nvml(member: &mut Member, limits: &[u64], row: &str) {
    assert_eq!(member.ok("nvcount").number(0), limits.len() as u64, "{row}");
    for (ordinal, limit) in limits.iter().enumerate() {
        assert_eq!(member.ok(&format!("nvmem {ordinal}")).number(0), *limit, "{row}: NVML's {ordinal}");
    }
}

#[test]
fn no_mask_and_no_order_shifts_a_limit_to_another_device() {
    for row in rows() {
        for first in [Cuda, Nvml, CudaAlone, NvmlAlone] {
            let name = format!("{}, {first:?}", row.name);
            let lab = lab_of(&row);
            let mut member = lab.member();
            let code = start(&mut member, first);
            if first != CudaAlone {
                judge_nvml(&mut member, &LIMITS, &name);
            }
            if first == NvmlAlone {
                assert_eq!(code, 0, "{name}");
                continue;
            }
            if row.seen.is_empty() {
                assert_eq!(code, NO_DEVICE, "{name}: {}", member.errors());
                continue;
            }
            assert_eq!(code, 0, "{name}: {}", member.errors());
            judge(&lab, &mut member, row.seen, &LIMITS, &name);
        }
    }
}

/// The rows are the driver's own answers: without the library they are the same.
#[test]
fn the_driver_alone_shows_the_same_devices() {
    for row in rows() {
        let lab = lab_of(&row);
        let mut member = lab.bare_member();
        let code = member.code("init");
        assert_eq!(code, if row.seen.is_empty() { NO_DEVICE } else { 0 }, "{}", row.name);
        for (ordinal, expected) in row.seen.iter().enumerate() {
            let before = contexts(&lab, member.pid);
            member.ok(&format!("retain {ordinal}"));
            assert_eq!(landed(&lab, member.pid, &before), *expected, "{}", row.name);
        }
    }
}

#[test]
fn a_percentage_is_of_the_device_that_it_lands_on() {
    for first in [Cuda, Nvml, CudaAlone] {
        let mut lab = Lab::new(MACHINE).with("VGPU_MEMORY_LIMIT", "25%").with("CUDA_VISIBLE_DEVICES", "2,0,1");
        let limits: Vec<u64> = lab.truth().devices.iter().map(|d| d.cuda_total / 4).collect();
        // One device has a limit by its ordinal in addition to the common one.
        lab.set("VGPU_MEMORY_LIMIT_2", "50%");
        let limits = [limits[0], limits[1], 2 * limits[2]];
        let mut member = lab.member();
        assert_eq!(start(&mut member, first), 0);
        judge(&lab, &mut member, &[2, 1, 0], &limits, &format!("{first:?}"));
    }
}

#[test]
fn a_limit_of_a_device_that_is_not_visible_limits_no_other() {
    for first in [Cuda, Nvml, CudaAlone] {
        let lab = Lab::new(MACHINE)
            .with("VGPU_MEMORY_LIMIT_0", "1GiB")
            .with("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            .with("CUDA_VISIBLE_DEVICES", "2");
        let mut member = lab.member();
        assert_eq!(start(&mut member, first), 0);
        member.ok("retain 0");
        assert_eq!(member.info().1, lab.device(2).cuda_total, "the T4 has no limit");
        member.alloc(2 * GIB);
        assert_eq!(lab.process(2, member.pid).live_bytes, 2 * GIB);
    }
}

/// HAMi's schedulers write limits with the same ordinals.
#[test]
fn hamis_limits_by_ordinal_follow_the_same_devices() {
    for first in [Cuda, Nvml, CudaAlone] {
        let lab = Lab::new(MACHINE)
            .with("CUDA_DEVICE_MEMORY_LIMIT_0", "2g")
            .with("CUDA_DEVICE_MEMORY_LIMIT_1", "3g")
            .with("CUDA_DEVICE_MEMORY_LIMIT_2", "4g")
            .with("CUDA_VISIBLE_DEVICES", "1,0");
        let mut member = lab.member();
        assert_eq!(start(&mut member, first), 0);
        judge(&lab, &mut member, &[0, 1], &LIMITS, &format!("{first:?}"));
    }
}

const LIST: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

/// A list for MPS counts the devices that CUDA shows, and entries for others change nothing. With a further limit NVML
/// registers the devices before CUDA numbers them.
#[test]
fn a_list_for_mps_follows_the_number_that_cuda_gives_a_device() {
    for row in rows() {
        for (first, further) in [(Cuda, false), (Nvml, false), (Nvml, true), (CudaAlone, true)] {
            let name = format!("{}, {first:?}, {further}", row.name);
            let mut lab = Lab::new(MACHINE).with(LIST, "0=2G,1=3072M,2=4GB");
            if further {
                lab.set("VGPU_MEMORY_LIMIT", "9GiB");
            }
            apply(&mut lab, &row);
            let mut member = lab.member();
            let code = start(&mut member, first);
            if row.seen.is_empty() {
                assert_eq!(code, NO_DEVICE, "{name}: {}", member.errors());
                continue;
            }
            assert_eq!((code, member.errors()), (0, String::new()), "{name}");
            let mut limits: Vec<u64> = lab.truth().devices.iter().map(|device| device.nvml_total).collect();
            if further {
                limits.fill(9 * GIB);
            }
            row.seen.iter().zip(LIMITS).for_each(|(at, limit)| limits[*at] = limit);
            judge(&lab, &mut member, row.seen, &limits, &name);
            if first != CudaAlone {
                judge_nvml(&mut member, &limits, &name);
            }
        }
    }
}

/// A program that never initialises CUDA does not learn CUDA's numbers. A UUID, and the number of an only device, are
/// known.
#[test]
fn nvml_alone_shows_what_a_list_says_of_a_name_and_of_an_only_device() {
    let mut lab = Lab::new(MACHINE);
    lab.set(LIST, format!("{}=2G,0=1G", lab.device(2).uuid));
    let mut limits: Vec<u64> = lab.truth().devices.iter().map(|device| device.nvml_total).collect();
    limits[2] = 2 * GIB;
    let mut member = lab.member();
    assert_eq!(start(&mut member, NvmlAlone), 0, "{}", member.errors());
    judge_nvml(&mut member, &limits, "a name");

    let lab = Lab::new("h200").with(LIST, "0=1G");
    let mut member = lab.member();
    assert_eq!(start(&mut member, NvmlAlone), 0, "{}", member.errors());
    judge_nvml(&mut member, &[GIB], "an only device");
}

#[test]
fn a_list_for_mps_names_a_mig_instance_by_its_uuid_or_its_number() {
    for by_number in [true, false] {
        let mut lab = Lab::new(PARTITIONED);
        let instance = lab.device(2).uuid;
        let name = if by_number { "0".to_owned() } else { instance.clone() };
        lab.set(LIST, format!("{name}=3G,1=1G"));
        lab.set("CUDA_VISIBLE_DEVICES", instance);
        let mut member = lab.member();
        assert_eq!(start(&mut member, CudaAlone), 0, "{}", member.errors());
        judge(&lab, &mut member, &[2], &[0, 0, 3 * GIB, 0], &name);
    }
}

/// MPS would give each process as much.
#[test]
fn a_list_for_mps_limits_the_tenants_processes_together() {
    let lab = Lab::new("h200").with(LIST, "0=4G");
    let (mut one, mut other) = (lab.member(), lab.member());
    one.begin();
    other.begin();
    one.alloc(2 * GIB);
    let free = other.info().0;
    assert!(free < 2 * GIB, "the first process's memory counts: {free}");
    assert_eq!(other.code(&format!("alloc {}", free + 1)), OUT_OF_MEMORY);
    other.alloc(free);
    assert_eq!(charged(&lab.device(0)), 4 * GIB);
}

/// Two processes that see the devices in different orders share each device's ledger.
#[test]
fn members_with_different_masks_share_the_devices_they_both_see() {
    let mut lab = Lab::new(MACHINE).with("VGPU_MEMORY_LIMIT", "4GiB").with("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    lab.set("CUDA_VISIBLE_DEVICES", "0,1");
    let mut one = lab.member();
    one.ok("init");
    one.ok("retain 1");
    one.alloc(GIB);
    lab.set("CUDA_VISIBLE_DEVICES", "1,2");
    let mut other = lab.member();
    other.ok("init");
    other.ok("retain 0");
    assert_eq!(one.info(), other.info());
    let (free, _) = other.info();
    other.alloc(free);
    assert_eq!(one.code("alloc 1"), OUT_OF_MEMORY);
    assert_eq!(charged(&lab.device(1)), 4 * GIB);
}

const PARTITIONED: &str = "t4,a100:mig=3g.40gb+3g.40gb,a100:mig=1g.10gb";

/// A MIG instance is a device of its own, with the ordinal of its board.
#[test]
fn a_mig_instance_has_the_limit_of_its_board_and_a_ledger_of_its_own() {
    // Devices of the machine: the T4, two instances on the board with ordinal 1, one on the board with ordinal 2.
    type Mask = fn(&[String]) -> String;
    let rows: [(Mask, usize); 5] = [
        (|u| u[1].clone(), 1),
        (|u| u[2].clone(), 2),
        (|u| format!("{},{}", u[3], u[1]), 3),
        (|_| "1".into(), 1),
        (|_| "2".into(), 3),
    ];
    for (mask, at) in rows {
        for first in [Cuda, Nvml, CudaAlone] {
            let mut lab = Lab::new(PARTITIONED)
                .with("VGPU_MEMORY_LIMIT_0", "2GiB")
                .with("VGPU_MEMORY_LIMIT_1", "3GiB")
                .with("VGPU_MEMORY_LIMIT_2", "4GiB")
                .with("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
            let uuids: Vec<String> = lab.truth().devices.iter().map(|d| d.uuid.clone()).collect();
            lab.set("CUDA_VISIBLE_DEVICES", mask(&uuids));
            let limits = [2 * GIB, 3 * GIB, 3 * GIB, 4 * GIB];
            let mut member = lab.member();
            assert_eq!(start(&mut member, first), 0, "{}", member.errors());
            judge(&lab, &mut member, &[at], &limits, &format!("{:?} {first:?}", mask(&uuids)));
        }
    }
}

#[test]
fn a_percentage_of_a_mig_instance_is_of_the_instance() {
    for first in [Cuda, Nvml, CudaAlone] {
        let mut lab = Lab::new(PARTITIONED).with("VGPU_MEMORY_LIMIT", "50%");
        let (instance, total) = (lab.device(2).uuid, lab.device(2).cuda_total);
        assert!(total < lab.device(2).nvml_total && total > 39 * GIB, "what the driver reserves is nobody's");
        lab.set("CUDA_VISIBLE_DEVICES", instance);
        let mut member = lab.member();
        assert_eq!(start(&mut member, first), 0, "{}", member.errors());
        judge(&lab, &mut member, &[2], &[0, 0, total / 2, 0], &format!("{first:?}"));
    }
}

#[test]
fn the_instances_of_a_board_do_not_share_a_ledger() {
    let mut lab = Lab::new(PARTITIONED).with("VGPU_MEMORY_LIMIT", "2GiB");
    let mut members = Vec::new();
    for at in [1, 2] {
        lab.set("CUDA_VISIBLE_DEVICES", lab.device(at).uuid);
        let mut member = lab.member();
        member.begin();
        let free = member.info().0;
        member.alloc(free);
        members.push(member);
    }
    for at in [1, 2] {
        assert_eq!(charged(&lab.device(at)), 2 * GIB);
        assert!(lab.device(at).processes[0].overhead_bytes >= 100 * MIB, "the context counts");
    }
}
