//! Chooses the devices that a process sees, and their order: `CUDA_DEVICE_ORDER`, then `CUDA_VISIBLE_DEVICES`.
//!
//! The mask is a list of one kind of entry, that of its first entry. It has ordinals in that order, or names:
//! `GPU-` and any unique beginning of a UUID, or a MIG instance as `MIG-<uuid>` or the older
//! `MIG-GPU-<uuid>/<instance>/0`. An ordinal is parsed like `strtol`: blanks and a sign before it, anything after
//! it (`1gpu` is 1). The list ends at the first entry that names no device, at a negative number, and at an entry
//! of another kind. A device named twice empties the list. A process sees at most one MIG instance: the list ends
//! after it. A partitioned device that is named as a whole, or occurs without a mask, stands for its first
//! instance.
//!
//! The real driver's behaviour is unknown in two cases, chosen here. Shortened names of MIG instances are not
//! understood. Without a mask, partitioned and whole devices keep their order.

use std::cmp::Reverse;
use vgpu_sim::{DeviceIdentity, DeviceProfile};

/// Machine indices of the devices that `CUDA_VISIBLE_DEVICES` lets the program see.
pub(crate) fn choose_devices(all: &[(DeviceProfile, DeviceIdentity)], order: &str, mask: Option<&str>) -> Vec<usize> {
    // Boards by their first entry: a whole device, or the first of its instances.
    let mut boards: Vec<usize> = (0..all.len()).filter(|i| all[*i].1.mig <= 1).collect();
    boards.sort_by_key(|i| (all[*i].1.domain, all[*i].1.bus, all[*i].1.device));
    if order != "PCI_BUS_ID" {
        // Fastest device first; devices of equal speed stay in bus order.
        boards.sort_by_key(|i| Reverse(u64::from(all[*i].0.cores) * u64::from(all[*i].0.sm_mhz)));
    }
    let Some(mask) = mask else { return up_to_an_instance(all, &boards) };
    let named = ["GPU-", "MIG-"].into_iter().find(|kind| mask.starts_with(kind));
    let mut seen = Vec::new();
    for entry in mask.split(',') {
        let found = match named {
            Some("MIG-") => instance_of_name(all, entry),
            Some(_) => board_of_uuid(all, &boards, entry),
            None => leading_number(entry).and_then(|n| boards.get(n).copied()),
        };
        let Some(i) = found else { break };
        if seen.contains(&i) {
            return Vec::new();
        }
        seen.push(i);
    }
    up_to_an_instance(all, &seen)
}

fn up_to_an_instance(all: &[(DeviceProfile, DeviceIdentity)], list: &[usize]) -> Vec<usize> {
    let end = list.iter().position(|i| all[*i].1.mig > 0).map_or(list.len(), |at| at + 1);
    list[..end].to_vec()
}

/// The number at the start of an entry; `None`: there is none, or it is negative.
fn leading_number(entry: &str) -> Option<usize> {
    let entry = entry.trim_start();
    let (negative, digits) = match entry.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, entry.strip_prefix('+').unwrap_or(entry)),
    };
    let end = digits.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(digits.len());
    let number: usize = digits[..end].parse().ok()?;
    (!negative || number == 0).then_some(number)
}

/// The only board whose UUID starts with this entry.
fn board_of_uuid(all: &[(DeviceProfile, DeviceIdentity)], boards: &[usize], entry: &str) -> Option<usize> {
    entry.strip_prefix("GPU-")?;
    let mut hits = boards.iter().filter(|i| all[**i].1.whole_device().uuid_text().starts_with(entry));
    hits.next().copied().filter(|_| hits.next().is_none())
}

/// The MIG instance with this name.
fn instance_of_name(all: &[(DeviceProfile, DeviceIdentity)], entry: &str) -> Option<usize> {
    all.iter().position(|(_, id)| {
        id.mig > 0
            && (id.uuid_text() == entry || format!("MIG-{}/{}/0", id.whole_device().uuid_text(), id.mig) == entry)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(list: &str) -> Vec<(DeviceProfile, DeviceIdentity)> {
        let mut board = 0;
        let make = |p: DeviceProfile| {
            board += u8::from(p.mig <= 1);
            let mut uuid = [0xA0 + board - 1; 16];
            uuid[15] = if p.mig == 0 { uuid[15] } else { u8::try_from(p.mig).unwrap() };
            let bus = u32::from(board);
            (p, DeviceIdentity { uuid, domain: 0, bus, device: 0, minor: bus - 1, mig: p.mig })
        };
        vgpu_sim::profile::parse_list(list).unwrap().into_iter().map(make).collect()
    }

    fn pci(list: &str, mask: &str) -> Vec<usize> {
        choose_devices(&machine(list), "PCI_BUS_ID", Some(mask))
    }

    const NONE: [usize; 0] = [];

    #[test]
    fn the_fastest_device_is_first_unless_the_bus_order_is_asked_for() {
        let m = machine("t4,h200,h200");
        assert_eq!(choose_devices(&m, "", None), [1, 2, 0]);
        assert_eq!(choose_devices(&m, "FASTEST_FIRST", None), [1, 2, 0]);
        assert_eq!(choose_devices(&m, "PCI_BUS_ID", None), [0, 1, 2]);
    }

    #[test]
    fn the_mask_counts_in_the_order_and_ends_at_the_first_stranger() {
        let pci = |mask| pci("t4,h200,h200", mask);
        assert_eq!(pci("2,0"), [2, 0]);
        assert_eq!(choose_devices(&machine("t4,h200,h200"), "", Some("2")), [0]);
        assert_eq!(pci("1,7,0"), [1]);
        assert_eq!(pci("0,2,-1,1"), [0, 2]);
        assert_eq!(pci("2,,1"), [2]);
        for empty in ["", "-1", "NoDevFiles", "1,1", "0,1,0", ",0", "7,0"] {
            assert_eq!(pci(empty), NONE, "{empty}");
        }
    }

    #[test]
    fn an_ordinal_is_read_as_c_reads_numbers() {
        let pci = |mask| pci("t4,h200,h200", mask);
        assert_eq!(pci("1gpu2,2ampere"), [1, 2]);
        assert_eq!(pci(" 2, +1 ,-0"), [2, 1, 0]);
        assert_eq!(pci("two,1"), NONE);
        assert_eq!(pci("1,two,0"), [1]);
        assert_eq!(pci("0,00"), NONE, "the same device twice");
    }

    #[test]
    fn a_uuid_may_be_shortened_while_it_is_unique() {
        let m = machine("t4,h200,h200");
        assert_eq!(choose_devices(&m, "", Some("GPU-a2,GPU-a0")), [2, 0]);
        assert_eq!(choose_devices(&m, "", Some("GPU-a")), NONE);
        assert_eq!(choose_devices(&m, "", Some("GPU-a1,GPU-a,GPU-a0")), [1], "ends at what is not unique");
        assert_eq!(choose_devices(&m, "", Some("GPU-a1,GPU-a1a1")), NONE, "one device by two names");
        assert_eq!(choose_devices(&m, "", Some(&m[1].1.uuid_text())), [1]);
        assert_eq!(choose_devices(&m, "", Some("GPU-a1,2")), [1], "ordinals do not stand among names");
        assert_eq!(choose_devices(&m, "", Some("2,GPU-a1")), [0], "nor names among ordinals");
    }

    #[test]
    fn a_process_has_one_instance_at_most() {
        let m = machine("a100:mig=3g.40gb+3g.40gb,h100:mig=1g.10gb,t4");
        let name = |i: usize| m[i].1.uuid_text();
        let by = |mask: &str| choose_devices(&m, "PCI_BUS_ID", Some(mask));
        assert_eq!(by(&name(1)), [1]);
        assert_eq!(by(&format!("{},{}", name(1), name(0))), [1], "the second is not seen");
        assert_eq!(by(&name(1)[..12]), NONE);
        assert_eq!(by(&format!("MIG-{}/2/0", m[0].1.whole_device().uuid_text())), [1], "the older form");
        assert_eq!(by("MIG-nonsense"), NONE);
        assert_eq!(by("0"), [0], "a partitioned device stands for its first instance");
        assert_eq!(by("1"), [2]);
        assert_eq!(by("2,1,0"), [3, 2]);
        assert_eq!(by(&m[1].1.whole_device().uuid_text()), [0]);
        assert_eq!(choose_devices(&m, "PCI_BUS_ID", None), [0]);
    }
}
