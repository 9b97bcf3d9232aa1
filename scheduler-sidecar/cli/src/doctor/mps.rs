//! Reports a memory limit for MPS that the driver would drop. MPS alone keeps `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`, and a
//! list with an entry that it does not accept limits nothing.

use super::{DoctorReport, environment_text};

const MPS_LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

/// Returns the entries of the list with their ordinals, or the first entry that is malformed.
fn parse_list(list: &str) -> Result<Vec<(usize, &str)>, &str> {
    let parse_entry = |entry: &str| {
        let (ordinal, size) = entry.split_once('=')?;
        let (ordinal, size) = (ordinal.trim(), size.trim());
        let unit = size.trim_start_matches(|c: char| c.is_ascii_digit());
        let digits = &size[..size.len() - unit.len()];
        let is_size = digits.bytes().any(|digit| digit != b'0');
        let is_unit = ["", "K", "KB", "M", "MB", "G", "GB"].iter().any(|known| known.eq_ignore_ascii_case(unit));
        let is_ordinal = !ordinal.is_empty() && ordinal.bytes().all(|digit| digit.is_ascii_digit());
        (is_size && is_unit && is_ordinal).then(|| ordinal.parse().ok()).flatten()
    };
    list.split(',').map(|entry| parse_entry(entry).map(|ordinal| (ordinal, entry)).ok_or(entry)).collect()
}

/// Adds a finding if the list is dropped. `visible` is the number of devices that CUDA shows here, if it is known.
fn judge_list(report: &mut DoctorReport, list: &str, visible: Option<usize>) {
    let why = match parse_list(list) {
        Err(entry) => format!("{entry:?} is no pair"),
        Ok(entries) => {
            let absent = |(ordinal, _): &&(usize, &str)| visible.is_some_and(|visible| *ordinal >= visible);
            let Some((_, entry)) = entries.iter().find(absent) else { return };
            let devices = match visible {
                Some(1) => "device 0 alone".to_owned(),
                visible => format!("devices 0 to {}", visible.unwrap_or_default().saturating_sub(1)),
            };
            format!("{entry:?} names a device that is not visible here: CUDA shows {devices}")
        }
    };
    report.add_finding(
        "limits",
        format!(
            "{MPS_LIMIT}={list:?}: {why}; MPS drops such a list and limits nothing; accepted: ORDINAL=SIZE, separated by \
             commas, with CUDA's numbers of visible devices, like 0=1G,1=512MB"
        ),
    );
}

/// Returns the list of the environment.
pub fn environment_list() -> Option<String> {
    environment_text(MPS_LIMIT)
}

/// Reports a malformed list.
pub fn examine_form(report: &mut DoctorReport) {
    if let Some(list) = environment_list() {
        judge_list(report, &list, None);
    }
}

/// Reports a well-formed list that names a device beyond the `visible` ones.
pub fn examine_devices(report: &mut DoctorReport, visible: usize) {
    if let Some(list) = environment_list().filter(|list| parse_list(list).is_ok()) {
        judge_list(report, &list, Some(visible));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the finding about a list, next to `visible` devices.
    fn finding(list: &str, visible: Option<usize>) -> Option<String> {
        let mut report = DoctorReport::default();
        judge_list(&mut report, list, visible);
        report.lines.pop().map(|line| line.words)
    }

    #[test]
    fn a_list_that_mps_keeps_is_no_finding() {
        for list in ["0=1G", "0=1G,1=512MB", "1=512m, 0=1g", "0=1073741824"] {
            assert_eq!(finding(list, Some(2)), None, "{list}");
            assert_eq!(finding(list, None), None, "{list}");
        }
        assert_eq!(finding("7=1G", None), None, "the number of devices is not known");
    }

    #[test]
    fn a_list_that_mps_drops_is_a_finding_with_its_name_value_and_what_is_accepted() {
        for (list, why) in [
            ("1G", r#""1G" is no pair"#),
            ("0=", r#""0=" is no pair"#),
            ("=1G", r#""=1G" is no pair"#),
            ("0=1G,", r#""" is no pair"#),
            ("0=1G;1=1G", r#""0=1G;1=1G" is no pair"#),
            ("0=much", r#""0=much" is no pair"#),
            ("0=-1G", r#""0=-1G" is no pair"#),
            ("0=0", r#""0=0" is no pair"#),
            ("0=1.5G", r#""0=1.5G" is no pair"#),
            ("GPU-1=1G", r#""GPU-1=1G" is no pair"#),
            ("+0=1G", r#""+0=1G" is no pair"#),
            ("99999999999999999999=1G", r#""99999999999999999999=1G" is no pair"#),
            ("0=1G,2=512M", r#""2=512M" names a device that is not visible here: CUDA shows devices 0 to 1"#),
        ] {
            let words = finding(list, Some(2)).unwrap_or_else(|| panic!("{list}"));
            assert!(words.starts_with(&format!("{MPS_LIMIT}={list:?}: {why}; ")), "{words}");
            assert!(words.ends_with("like 0=1G,1=512MB") && words.contains("accepted: ORDINAL=SIZE"), "{words}");
        }
        assert!(finding("1=1G", Some(1)).is_some_and(|words| words.contains("CUDA shows device 0 alone")));
    }
}
