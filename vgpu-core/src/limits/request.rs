//! Floors on device time: what is wrong with one before anybody is asked to keep it.
//!
//! A ceiling is this process's own affair; a floor is a promise about others, which only the daemon can make. Here are the
//! two refusals: a floor above the ceiling, and a floor that nobody can guarantee.

use super::error::Problem;
use super::raw::in_force;
use super::{Family, LimitError, Quantity, RawLimits, Variable};
use crate::share::Share;

impl RawLimits {
    /// The floor on one device's time, if one was asked for.
    #[must_use]
    pub fn request(&self, ordinal: u32) -> Option<Share> {
        in_force(&self.requests, Family::Vgpu, Quantity::SmRequest, Some(ordinal)).and_then(|(_, share)| share)
    }

    /// Checks that no floor was asked for that nobody can guarantee: without a daemon there is none who could, and the
    /// daemon of this version does not hand floors out.
    ///
    /// # Errors
    /// [`LimitError`] naming the first such variable and what to do.
    pub fn check_requests(&self) -> Result<(), LimitError> {
        match self.requests.keys().next() {
            None => Ok(()),
            Some(variable) => Err(self.refused(*variable, Problem::NoGuarantee { daemon: self.daemon_named })),
        }
    }

    /// Checks that no floor is above the ceiling of the same device: nobody could keep both.
    pub(super) fn check_floors(&self) -> Result<(), LimitError> {
        let ordinals = self.requests.keys().chain(self.sm.keys()).map(|variable| variable.ordinal);
        for ordinal in ordinals {
            let Some((request, Some(floor))) = in_force(&self.requests, Family::Vgpu, Quantity::SmRequest, ordinal)
            else {
                continue;
            };
            for family in [Family::Vgpu, Family::Hami] {
                if let Some((limit, Some(ceiling))) = self.ceiling(family, ordinal)
                    && floor > ceiling
                {
                    let value = self.written.get(&limit).cloned().unwrap_or_default();
                    return Err(self.refused(request, Problem::AboveCeiling { limit, value }));
                }
            }
        }
        Ok(())
    }

    fn refused(&self, variable: Variable, problem: Problem) -> LimitError {
        let value = self.written.get(&variable).cloned().unwrap_or_default();
        LimitError { name: variable.to_string(), value, problem }
    }
}
