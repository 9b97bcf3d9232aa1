//! Reads values of groups: names in the tree, periods and effects of quotas, hours.

use vgpu_core::units::share::parse_share;

use super::{WrittenValue, WrongValue, read_number, read_string, read_word, text_of, wrong_value};
use crate::groups::{QuotaEffect, QuotaPeriod};

/// Reads the name of a group with its place in the tree: `lab/vision` is below `lab`.
pub fn read_group_name(written: &WrittenValue<'_>) -> Result<String, WrongValue> {
    const FORMS: &str = "1 to 64 letters, digits, '-', '_' and '.', with one '/' between a group and its subgroup, like \
                         \"research/vision\"";
    match read_string(written, FORMS)? {
        text if super::is_label_name(text) && text.split('/').all(|part| !part.is_empty()) => Ok(text.to_owned()),
        _ => wrong_value("cannot be a group", FORMS),
    }
}

/// Reads the period of a quota.
pub fn read_period(written: &WrittenValue<'_>) -> Result<QuotaPeriod, WrongValue> {
    read_word(written, &[QuotaPeriod::Day, QuotaPeriod::Week, QuotaPeriod::Month].map(|period| (period.word(), period)))
}

/// Reads the restriction of a used-up quota.
pub fn read_quota_effect(written: &WrittenValue<'_>) -> Result<QuotaEffect, WrongValue> {
    const FORMS: &str = "\"batch\", \"pause\", or a ceiling in percent from 1 to 100 like 30";
    match text_of(written, FORMS)? {
        "batch" => Ok(QuotaEffect::Batch),
        "pause" => Ok(QuotaEffect::Pause),
        text => match parse_share(text) {
            Ok(Some(share)) => Ok(QuotaEffect::Ceiling(share)),
            _ => wrong_value("is not known", FORMS),
        },
    }
}

/// Reads a number of hours, in thousandths.
pub fn read_hours(written: &WrittenValue<'_>) -> Result<u32, WrongValue> {
    const FORMS: &str = "a number from 0.001 to 4000000 with at most three decimals, like 100 or 0.5";
    read_number(written, FORMS, 1..=4_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_groups_have_no_empty_part_and_effects_are_words_or_a_ceiling() {
        let name = |text| read_group_name(&WrittenValue::Text(text)).is_ok();
        assert!(name("lab") && name("lab/vision.2/a_b"));
        for wrong in ["", "/lab", "lab/", "lab//vision", "la b"] {
            assert!(!name(wrong), "{wrong:?}");
        }
        let effect = |text| read_quota_effect(&WrittenValue::Text(text)).map(|effect| effect.to_string());
        assert_eq!(effect("batch").as_deref(), Ok("class batch"));
        assert_eq!(effect("12.5").as_deref(), Ok("at most 12.5 %"));
        assert!(effect("unlimited").is_err() && effect("0").is_err() && effect("stop").is_err());
        assert_eq!(read_hours(&WrittenValue::Number("0.5".into())), Ok(500));
        assert!(read_hours(&WrittenValue::Number("0".into())).is_err());
    }
}
