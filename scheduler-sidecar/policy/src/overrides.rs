//! Overrides: the commands of administrators that change what a tenant may do, until they end.

use serde::{Deserialize, Serialize};
use vgpu_config::change::WrittenChange;

/// Largest number of overrides at the same time.
pub const MAX_OVERRIDES: usize = 4096;

/// The subject of an override.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverrideAction {
    /// The tenant has other terms.
    Terms(Box<WrittenChange>),
    /// The tenant may not launch.
    Pause,
    /// The tenant may launch although a policy pauses it.
    Run,
    /// No other tenant of the same devices may launch.
    Exclusive,
}

/// One command of an administrator, while it is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermsOverride {
    /// Name of the tenant.
    pub tenant: String,
    /// Only this device, as the tenant's terms name it; `None`: all of the tenant's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The change.
    pub action: OverrideAction,
    /// Time of the command, in seconds since 1970.
    pub since: i64,
    /// Time at which it ends, in seconds since 1970; `None`: the command gave no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
    /// User ID of the administrator.
    pub by_uid: u32,
    /// Reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl TermsOverride {
    /// True if the change is over.
    #[must_use]
    pub fn is_over(&self, now: i64) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// True if the change ends when the configuration is read again: new terms, or a tenant that may run, without an
    /// end.
    #[must_use]
    pub fn ends_with_the_file(&self) -> bool {
        self.until.is_none() && !matches!(self.action, OverrideAction::Pause | OverrideAction::Exclusive)
    }

    /// Number of the kind: overrides of terms, of the pause, of exclusive use.
    fn kind(&self) -> u8 {
        match self.action {
            OverrideAction::Terms(_) => 0,
            OverrideAction::Pause | OverrideAction::Run => 1,
            OverrideAction::Exclusive => 2,
        }
    }
}

/// Adds an override as the last one, and forgets those that are over. Of earlier ones for the same tenant and device
/// that end no later it replaces a pause or its contrary, and the keys that both set. So repeated commands do not add
/// up. The newest value always wins, and where it ends, an older one with a later end holds again.
///
/// # Errors
/// A message: there are [`MAX_OVERRIDES`] already.
pub fn add_override(all: &mut Vec<TermsOverride>, new: TermsOverride) -> Result<(), String> {
    all.retain_mut(|other| {
        if other.is_over(new.since) {
            return false;
        }
        if other.tenant != new.tenant || other.device != new.device || other.kind() != new.kind() {
            return true;
        }
        // One without an end may end before one with an end, with the file or the daemon. So neither replaces the
        // other.
        let ends_no_later = match (other.until, new.until) {
            (Some(other), Some(new)) => other <= new,
            (other, new) => other == new,
        };
        if !ends_no_later {
            return true;
        }
        match (&mut other.action, &new.action) {
            (OverrideAction::Terms(before), OverrideAction::Terms(later)) => {
                **before = before.without_keys_of(later);
                !before.is_empty()
            }
            _ => false,
        }
    });
    if all.len() >= MAX_OVERRIDES {
        return Err(format!("{MAX_OVERRIDES} overrides are in force; accepted: fewer, see `vgpu unset`"));
    }
    all.push(new);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(limit: &str, until: Option<i64>) -> TermsOverride {
        let written = WrittenChange { sm_limit: Some(limit.into()), ..WrittenChange::default() };
        let action = OverrideAction::Terms(Box::new(written));
        TermsOverride { tenant: "a".into(), device: None, action, since: 1, until, by_uid: 0, reason: None }
    }

    #[test]
    fn repeated_commands_do_not_add_up() {
        let mut all = Vec::new();
        for limit in ["10", "20", "30"] {
            add_override(&mut all, terms(limit, None)).unwrap();
        }
        assert_eq!(all, [terms("30", None)]);
        let weight = WrittenChange { weight: Some("5".into()), ..WrittenChange::default() };
        add_override(&mut all, TermsOverride { action: OverrideAction::Terms(Box::new(weight)), ..terms("", None) })
            .unwrap();
        assert_eq!(all.len(), 2, "another key is another override");
        add_override(&mut all, terms("40", Some(9))).unwrap();
        let weight = WrittenChange { weight: Some("6".into()), ..WrittenChange::default() };
        add_override(&mut all, TermsOverride { action: OverrideAction::Terms(Box::new(weight)), ..terms("", None) })
            .unwrap();
        let limits: Vec<_> = all
            .iter()
            .filter_map(|one| match &one.action {
                OverrideAction::Terms(written) => written.sm_limit.as_deref(),
                _ => None,
            })
            .collect();
        assert_eq!((all.len(), limits), (3, vec!["30", "40"]), "a later command about another key changes no order");
        for action in [OverrideAction::Pause, OverrideAction::Run, OverrideAction::Pause, OverrideAction::Exclusive] {
            add_override(&mut all, TermsOverride { action, ..terms("", Some(7)) }).unwrap();
        }
        let actions: Vec<_> = all[3..].iter().map(|change| change.action.clone()).collect();
        assert_eq!(actions, [OverrideAction::Pause, OverrideAction::Exclusive]);
    }

    #[test]
    fn a_pause_with_an_end_leaves_one_without_an_end_in_force() {
        for action in [OverrideAction::Pause, OverrideAction::Exclusive] {
            let mut all = Vec::new();
            for until in [None, Some(9)] {
                add_override(&mut all, TermsOverride { action: action.clone(), ..terms("", until) }).unwrap();
            }
            let ends = |all: &[TermsOverride]| all.iter().map(|change| change.until).collect::<Vec<_>>();
            assert_eq!(ends(&all), [None, Some(9)]);
            add_override(&mut all, TermsOverride { action: action.clone(), ..terms("", Some(10)) }).unwrap();
            assert_eq!(ends(&all), [None, Some(10)], "repeated commands do not add up");
            add_override(&mut all, TermsOverride { action, ..terms("", None) }).unwrap();
            assert_eq!(ends(&all), [Some(10), None], "a restart may end the newer one first");
        }
    }

    #[test]
    fn there_is_a_bound() {
        let mut all = Vec::new();
        let of = |number: usize, since| {
            let until = (number == 0).then_some(10);
            TermsOverride { tenant: format!("t{number}"), since, ..terms("10", until) }
        };
        for number in 0..MAX_OVERRIDES {
            add_override(&mut all, of(number, 1)).unwrap();
        }
        let one_more = |all: &mut Vec<_>, since| add_override(all, of(MAX_OVERRIDES, since));
        assert!(one_more(&mut all, 9).unwrap_err().contains("accepted: fewer"));
        one_more(&mut all, 10).unwrap(); // the first one is over
    }
}
