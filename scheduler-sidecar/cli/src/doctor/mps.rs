//! Reports a list of memory limits for MPS that MPS would drop. The library keeps the entries of visible devices, and
//! MPS drops a list that names any other device.

use super::seen::SeenDevice;
use super::{DoctorReport, environment_text};
use vgpu_core::limits::{ListedLimit, NamedDevice};

const MPS_LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

/// Returns the list of the environment.
pub fn environment_list() -> Option<String> {
    environment_text(MPS_LIMIT)
}

/// Returns the names of a device, as limits refer to it.
pub fn names_of(device: &SeenDevice) -> NamedDevice<'_> {
    NamedDevice { index: device.index, cuda: Some(device.ordinal), uuid: &device.uuid }
}

/// Reports an entry of the list that names none of the visible devices.
pub fn examine_devices(report: &mut DoctorReport, list: &str, visible: &[SeenDevice]) {
    let is_absent = |entry: &&str| {
        ListedLimit::parse(entry).is_some_and(|listed| !visible.iter().any(|device| listed.is_of(&names_of(device))))
    };
    let Some(entry) = list.split(',').find(is_absent) else { return };
    let devices = match visible.len() {
        0 => "none".to_owned(),
        1 => "device 0 alone".to_owned(),
        count => format!("devices 0 to {}", count - 1),
    };
    report.add_finding(
        "limits",
        format!(
            "{MPS_LIMIT}={list:?}: {entry:?} names a device that is not visible here: CUDA shows {devices}; MPS drops such \
             a list and limits nothing; vgpu keeps the other entries"
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the finding about a list, next to `count` visible devices.
    fn finding(list: &str, count: u32) -> Option<String> {
        let device = |ordinal| {
            let uuid = format!("GPU-0{ordinal}aa");
            SeenDevice { ordinal, uuid, index: None, total: 0, memory: None, control: None }
        };
        let devices: Vec<_> = (0..count).map(device).collect();
        let mut report = DoctorReport::default();
        examine_devices(&mut report, list, &devices);
        report.lines.pop().map(|line| line.words)
    }

    #[test]
    fn a_list_of_visible_devices_is_no_finding() {
        for list in ["0=1G", "0=1G,1=512MB", "1=512m, 0=1g", "0=1073741824", "GPU-00AA=1G,GPU-01=1G", "1G"] {
            assert_eq!(finding(list, 2), None, "{list}");
        }
    }

    #[test]
    fn a_list_that_names_another_device_is_a_finding_with_the_entry_and_the_visible_devices() {
        for (list, count, entry, shown) in [
            ("0=1G,2=512M", 2, "2=512M", "devices 0 to 1"),
            ("1=1G", 1, "1=1G", "device 0 alone"),
            ("GPU-02=1G", 2, "GPU-02=1G", "devices 0 to 1"),
            ("0=1G", 0, "0=1G", "none"),
        ] {
            let words = finding(list, count).unwrap_or_else(|| panic!("{list}"));
            assert!(
                words.starts_with(&format!(
                    "{MPS_LIMIT}={list:?}: {entry:?} names a device that is not visible here: CUDA shows {shown}; MPS drops"
                )),
                "{words}"
            );
        }
    }
}
