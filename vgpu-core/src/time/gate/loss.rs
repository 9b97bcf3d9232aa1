//! Rules for a missing daemon: no process hangs, and no process takes time that was promised to others.

use crate::time::config::{DAEMON_GONE_NS, HOST_RESUME_NS};
use crate::units::share::Share;

/// A member's behaviour without the daemon, which the daemon set in advance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// Continue by its own account.
    #[default]
    Local,
    /// Continue without a limit on time.
    Open,
    /// Without the daemon, launch nothing.
    Block,
}

/// The limit that a member applies to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AloneMode {
    /// The tenant's own account limits launches, at this ceiling.
    Ceiling(Share),
    /// Launches have no limit.
    Unlimited,
    /// No launch is allowed.
    Blocked,
}

/// True if the daemon is gone, given its last heartbeat at `beat`.
#[must_use]
pub const fn is_gone(beat: u64, now: u64) -> bool {
    now.saturating_sub(beat) > DAEMON_GONE_NS
}

/// True if the daemon is gone for a member that has seen the last heartbeat, already too old, at `seen` for the first
/// time.
#[must_use]
pub const fn stays_gone(seen: u64, now: u64) -> bool {
    now.saturating_sub(seen) > HOST_RESUME_NS
}

/// The limit for a member with this floor and ceiling. Without the daemon nobody knows which time is idle. The member
/// may only use its floor, which is promised in any case; without a floor it uses its ceiling.
#[must_use]
pub fn alone_mode(on_loss: OnLoss, floor: Option<Share>, ceiling: Option<Share>) -> AloneMode {
    match on_loss {
        OnLoss::Open => AloneMode::Unlimited,
        OnLoss::Block => AloneMode::Blocked,
        OnLoss::Local => match (floor, ceiling) {
            (Some(floor), Some(ceiling)) => AloneMode::Ceiling(floor.min(ceiling)),
            (Some(share), None) | (None, Some(share)) => AloneMode::Ceiling(share),
            (None, None) => AloneMode::Unlimited,
        },
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_a_second_without_a_beat_is_a_loss() {
        assert!(!is_gone(1_000_000_000, 1_250_000_000));
        assert!(is_gone(1_000_000_000, 1_250_000_001));
        assert!(!is_gone(5, 0), "a beat from the future is a beat");
    }

    #[test]
    fn a_member_goes_on_with_what_was_promised_to_it() {
        let percent = Share::from_percent;
        assert_eq!(alone_mode(OnLoss::Local, percent(20), percent(50)), AloneMode::Ceiling(percent(20).unwrap()));
        assert_eq!(alone_mode(OnLoss::Local, None, percent(50)), AloneMode::Ceiling(percent(50).unwrap()));
        assert_eq!(alone_mode(OnLoss::Local, None, None), AloneMode::Unlimited);
        assert_eq!(alone_mode(OnLoss::Open, percent(20), percent(50)), AloneMode::Unlimited);
        assert_eq!(alone_mode(OnLoss::Block, percent(20), None), AloneMode::Blocked);
    }
}
