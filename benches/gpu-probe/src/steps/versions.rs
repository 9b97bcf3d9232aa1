//! Runs of equal answers over versions, which shorten thousands of answers to a short list. Pure.

/// Versions of the interface at which a driver's answer may change, with some between and around them.
pub const ASKED_VERSIONS: &[i32] = &[
    0, 1000, 2000, 2010, 2020, 2030, 3000, 3010, 3020, 4000, 4010, 4020, 5000, 5050, 6000, 6050, 7000, 7050, 8000,
    9000, 9010, 9020, 10000, 10010, 10020, 11000, 11010, 11020, 11030, 11040, 11050, 11060, 11070, 11080, 12000, 12010,
    12020, 12030, 12040, 12050, 12060, 12070, 12080, 12090, 13000, 13010, 13020, 13030, 13040, 13050, 14000, 99000,
];

/// Appends an answer if it differs from the last one.
pub fn push(runs: &mut Vec<(i32, String)>, version: i32, answer: String) {
    if runs.last().is_none_or(|(_, last)| *last != answer) {
        runs.push((version, answer));
    }
}

/// The document's form: `2000:cuMemAlloc 3020:cuMemAlloc_v2`, the first version of each answer.
pub fn runs_text(runs: &[(i32, String)]) -> String {
    runs.iter().map(|(version, answer)| format!("{version}:{answer}")).collect::<Vec<_>>().join(" ")
}

/// A name without the suffixes that mark a variant.
pub fn base_name(name: &str) -> &str {
    let name = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")).unwrap_or(name);
    match name.rsplit_once("_v") {
        Some((head, digits)) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => head,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_answers_become_one_run() {
        let mut runs = Vec::new();
        for (version, answer) in [(1000, "too_new"), (2000, "a"), (2010, "a"), (3020, "a_v2"), (4000, "a_v2")] {
            push(&mut runs, version, answer.to_owned());
        }
        assert_eq!(runs_text(&runs), "1000:too_new 2000:a 3020:a_v2");
    }

    #[test]
    fn the_base_loses_variant_suffixes_only() {
        for (name, wanted) in [
            ("cuMemAlloc_v2", "cuMemAlloc"),
            ("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync"),
            ("cuStreamWaitValue32", "cuStreamWaitValue32"),
            ("cuGraphAddNode_v2", "cuGraphAddNode"),
            ("cuDevice_vx", "cuDevice_vx"),
            ("cuMemsetD8_v2_ptds", "cuMemsetD8"),
        ] {
            assert_eq!(base_name(name), wanted);
        }
    }

    #[test]
    fn versions_rise() {
        assert!(ASKED_VERSIONS.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
