//! Floors on device time that a process asks for by its environment.
//!
//! A ceiling concerns only this process. A floor limits the other tenants, so only the daemon can grant one, with the
//! tenant's `sm_request`. This file refuses a floor above the ceiling, a floor without a daemon, and a floor above the
//! granted one.

use super::error::Problem;
use super::raw::{Entry, Limit};
use super::{Family, LimitError, Quantity, RawLimits};
use crate::units::share::Share;

impl RawLimits {
    /// The floor on one device's time, if there is one.
    #[must_use]
    pub fn requested_share(&self, ordinal: u32) -> Option<Share> {
        self.winning_floor(Some(ordinal)).map(|(_, floor)| floor)
    }

    fn winning_floor(&self, ordinal: Option<u32>) -> Option<(&Entry, Share)> {
        let entry = self.in_force(Family::Vgpu, Quantity::SmRequest, ordinal)?;
        if let Limit::Time(Some(floor)) = entry.limit { Some((entry, floor)) } else { None }
    }

    /// Refuses every floor where no daemon is named, because nobody can guarantee one. With a daemon
    /// [`Self::check_granted`] decides.
    ///
    /// # Errors
    /// [`LimitError`] naming the first such variable and what to do.
    pub fn check_requests(&self) -> Result<(), LimitError> {
        match self.every_entry().find(|entry| entry.variable.quantity == Quantity::SmRequest) {
            Some(entry) if !self.daemon_named => Err(entry.refuse(Problem::NoGuarantee)),
            _ => Ok(()),
        }
    }

    /// Refuses a floor on this device that is more than the daemon guarantees the tenant (`granted`).
    ///
    /// # Errors
    /// [`LimitError`] naming the variable and the daemon's guarantee.
    pub fn check_granted(&self, ordinal: u32, granted: Option<Share>) -> Result<(), LimitError> {
        match self.winning_floor(Some(ordinal)) {
            Some((entry, floor)) if granted.is_none_or(|granted| floor > granted) => {
                Err(entry.refuse(Problem::BeyondGrant { granted }))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a floor above the ceiling of the same device: nobody could keep both.
    pub(super) fn check_floors(&self) -> Result<(), LimitError> {
        let about_time = |entry: &&Entry| entry.variable.quantity != Quantity::Memory;
        for ordinal in self.entries.iter().filter(about_time).map(|entry| entry.variable.ordinal) {
            let Some((entry, floor)) = self.winning_floor(ordinal) else { continue };
            for family in [Family::Vgpu, Family::Hami] {
                if let Some((limit, Some(ceiling))) = self.ceiling_of_family(family, ordinal)
                    && floor > ceiling
                {
                    let written = self.entries.iter().find(|other| other.variable == limit);
                    let value = written.map_or_else(String::new, |other| other.written.clone());
                    return Err(entry.refuse(Problem::AboveCeiling { limit, value }));
                }
            }
        }
        Ok(())
    }
}
