//! What holds when the daemon is gone: nobody hangs, nobody gets more than was promised to others.

use crate::share::Share;

/// Without a beat for so long the daemon counts as gone.
pub const GONE_NS: u64 = 250_000_000;

/// The daemon's own word about its absence, given in advance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// Go on by one's own account.
    #[default]
    Local,
    /// Go on without a limit of time.
    Open,
    /// Launch nothing.
    Block,
}

/// What a member goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// By its own account, at this ceiling.
    Ceiling(Share),
    /// Without any.
    Unlimited,
    /// Not at all.
    Blocked,
}

/// Is the daemon gone, if its last beat was at `beat`?
#[must_use]
pub const fn gone(beat: u64, now: u64) -> bool {
    now.saturating_sub(beat) > GONE_NS
}

/// What a member with this floor and ceiling goes on with. Nobody says any longer which time is idle, so the floor,
/// which is promised whoever else is there, is all that can be taken; without a floor it is the ceiling.
#[must_use]
pub fn alone(on_loss: OnLoss, floor: Option<Share>, ceiling: Option<Share>) -> Alone {
    match on_loss {
        OnLoss::Open => Alone::Unlimited,
        OnLoss::Block => Alone::Blocked,
        OnLoss::Local => match (floor, ceiling) {
            (Some(floor), Some(ceiling)) => Alone::Ceiling(floor.min(ceiling)),
            (Some(share), None) | (None, Some(share)) => Alone::Ceiling(share),
            (None, None) => Alone::Unlimited,
        },
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_a_second_without_a_beat_is_a_loss() {
        assert!(!gone(1_000_000_000, 1_250_000_000));
        assert!(gone(1_000_000_000, 1_250_000_001));
        assert!(!gone(5, 0), "a beat from the future is a beat");
    }

    #[test]
    fn a_member_goes_on_with_what_was_promised_to_it() {
        let percent = Share::from_percent;
        assert_eq!(alone(OnLoss::Local, percent(20), percent(50)), Alone::Ceiling(percent(20).unwrap()));
        assert_eq!(alone(OnLoss::Local, None, percent(50)), Alone::Ceiling(percent(50).unwrap()));
        assert_eq!(alone(OnLoss::Local, None, None), Alone::Unlimited);
        assert_eq!(alone(OnLoss::Open, percent(20), percent(50)), Alone::Unlimited);
        assert_eq!(alone(OnLoss::Block, percent(20), None), Alone::Blocked);
    }
}
