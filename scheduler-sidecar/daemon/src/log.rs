//! A bound on what one tenant can make the daemon write into its log, or answer.

use std::time::{Duration, Instant};

/// Lines, or answers, that a tenant may cause in a second.
const LINES: u32 = 20;

/// Counts the lines a tenant causes and swallows what is too much, saying how much that was.
#[derive(Debug, Default)]
pub struct Quota {
    second: Option<Instant>,
    lines: u32,
    swallowed: u32,
}

impl Quota {
    /// May a line be written at `now`? With the first of a new second comes the number swallowed before.
    pub fn allows(&mut self, now: Instant) -> Option<u32> {
        if self.second.is_none_or(|second| now.duration_since(second) >= Duration::from_secs(1)) {
            self.second = Some(now);
            self.lines = 0;
        }
        if self.lines == LINES {
            self.swallowed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.swallowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_twenty_lines_and_the_next_one_says_what_was_swallowed() {
        let mut quota = Quota::default();
        let start = Instant::now();
        assert_eq!((0..100).filter(|_| quota.allows(start).is_some()).count(), 20);
        assert_eq!(quota.allows(start + Duration::from_secs(1)), Some(80));
        assert_eq!(quota.allows(start + Duration::from_secs(1)), Some(0));
    }
}
