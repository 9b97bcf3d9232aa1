//! The limits that were asked for, and why they cannot be kept.

use crate::daemon::start::DaemonStart;
use vgpu_core::limits::{self, RawLimits};

/// The limits that were asked for, and their sources.
pub struct Configuration {
    /// The limits as the environment has them.
    pub limits: RawLimits,
    /// The tenant, known only if there is something to enforce.
    pub tenant: Option<vgpu_core::limits::tenant::TenantKey>,
    /// The daemon's answer, if a daemon was named.
    pub daemon: Option<DaemonStart>,
}

impl Configuration {
    /// The mode for limits: the daemon's, if a daemon was named, else the environment's.
    pub fn enforcement_mode(&self) -> limits::Mode {
        self.daemon.as_ref().map_or_else(|| self.limits.asked_mode(), DaemonStart::enforcement_mode)
    }

    /// Whether anything is to be enforced or measured.
    pub fn asks_for_anything(&self) -> bool {
        match &self.daemon {
            None => self.limits.asked_for_anything(),
            Some(daemon) => daemon.enforcement_mode() != limits::Mode::Off,
        }
    }
}

/// The reason why initialisation fails.
pub enum StartError {
    /// A value that has no meaning. An error in every mode but off.
    NotUnderstood(String),
    /// A variable asks for something that cannot be kept. With `VGPU_MODE=observe` it is reported and ignored.
    Variable(String),
    /// As [`StartError::Variable`], for a reason that is not in the environment.
    NotKept(String),
}
