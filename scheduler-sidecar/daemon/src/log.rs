//! Limits how many log lines, or answers, one tenant can cause.

use std::time::{Duration, Instant};

/// Log lines or answers that a tenant may cause in one second.
const LINES_PER_SECOND: u32 = 20;

/// Counts the lines that a tenant causes, drops those beyond the limit, and reports how many were dropped.
#[derive(Debug, Default)]
pub struct LineQuota {
    second: Option<Instant>,
    lines: u32,
    suppressed: u32,
}

impl LineQuota {
    /// Allows a line at `now`; `None`: drop it. The first line of a new second gets the number dropped before.
    pub fn allow_line(&mut self, now: Instant) -> Option<u32> {
        if self.second.is_none_or(|second| now.duration_since(second) >= Duration::from_secs(1)) {
            self.second = Some(now);
            self.lines = 0;
        }
        if self.lines == LINES_PER_SECOND {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_twenty_lines_and_the_next_one_says_what_was_suppressed() {
        let mut quota = LineQuota::default();
        let start = Instant::now();
        assert_eq!((0..100).filter(|_| quota.allow_line(start).is_some()).count(), 20);
        assert_eq!(quota.allow_line(start + Duration::from_secs(1)), Some(80));
        assert_eq!(quota.allow_line(start + Duration::from_secs(1)), Some(0));
    }
}
