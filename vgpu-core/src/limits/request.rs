//! Floors on device time: what is wrong with one before anybody is asked to keep it.
//!
//! A ceiling is this process's own affair; a floor is a promise about others, which only the daemon can make. Here are the
//! two refusals: a floor above the ceiling, and a floor that nobody can guarantee.

use super::error::Problem;
use super::raw::{Entry, Limit};
use super::{Family, LimitError, Quantity, RawLimits};
use crate::share::Share;

impl RawLimits {
    /// The floor on one device's time, if one was asked for.
    #[must_use]
    pub fn request(&self, ordinal: u32) -> Option<Share> {
        self.floor(Some(ordinal)).map(|(_, floor)| floor)
    }

    fn floor(&self, ordinal: Option<u32>) -> Option<(&Entry, Share)> {
        let entry = self.in_force(Family::Vgpu, Quantity::SmRequest, ordinal)?;
        if let Limit::Time(Some(floor)) = entry.limit { Some((entry, floor)) } else { None }
    }

    /// Checks that no floor was asked for that nobody can guarantee: without a daemon there is none who could, and the
    /// daemon of this version does not hand floors out.
    ///
    /// # Errors
    /// [`LimitError`] naming the first such variable and what to do.
    pub fn check_requests(&self) -> Result<(), LimitError> {
        match self.every_entry().find(|entry| entry.variable.quantity == Quantity::SmRequest) {
            None => Ok(()),
            Some(entry) => Err(entry.refused(Problem::NoGuarantee { daemon: self.daemon_named })),
        }
    }

    /// Checks that no floor is above the ceiling of the same device: nobody could keep both.
    pub(super) fn check_floors(&self) -> Result<(), LimitError> {
        let about_time = |entry: &&Entry| entry.variable.quantity != Quantity::Memory;
        for ordinal in self.entries.iter().filter(about_time).map(|entry| entry.variable.ordinal) {
            let Some((entry, floor)) = self.floor(ordinal) else { continue };
            for family in [Family::Vgpu, Family::Hami] {
                if let Some((limit, Some(ceiling))) = self.ceiling(family, ordinal)
                    && floor > ceiling
                {
                    let written = self.entries.iter().find(|other| other.variable == limit);
                    let value = written.map_or_else(String::new, |other| other.written.clone());
                    return Err(entry.refused(Problem::AboveCeiling { limit, value }));
                }
            }
        }
        Ok(())
    }
}
