//! Stage one: the variables as written; stage two: what they mean for one device.

use std::collections::BTreeMap;

use super::error::Problem;
use super::variable::Name;
use super::{DeviceLimits, Family, LimitError, Quantity, Source, Variable};
use crate::bytes::{Bytes, Size, parse_hami_size, parse_size};
use crate::share::{Share, parse_hami_share, parse_share};

/// Every limit that was written, understood but not yet applied to a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawLimits {
    memory: BTreeMap<Variable, Size>,
    sm: BTreeMap<Variable, Option<Share>>,
    daemon_memory: Option<Bytes>,
    daemon_sm: Option<Share>,
    /// As written, escaped, for messages that need a device count to be found out.
    written: BTreeMap<Variable, String>,
}

impl RawLimits {
    /// Reads the limit variables out of an environment; everything else in it is ignored.
    ///
    /// Names and values are bytes as the kernel passes them. A name that occurs twice counts once,
    /// the first time, as for `getenv`.
    ///
    /// # Errors
    /// [`LimitError`] if a value is not understood, or if a name begins like a limit variable and
    /// is none (`VGPU_MEMORY_LIMIT_x`). With several faults, the one whose name sorts first: the
    /// same environment always gives the same line.
    pub fn from_vars<N, V>(vars: impl IntoIterator<Item = (N, V)>) -> Result<Self, LimitError>
    where
        N: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        let mut limits = Self::default();
        let mut first_error: Option<LimitError> = None;
        for (name, value) in vars {
            let (name, value) = (name.as_ref(), value.as_ref());
            let outcome = match Variable::classify(name) {
                Name::Foreign => continue,
                Name::Malformed(variable) => Err(LimitError::malformed(variable, name, value)),
                Name::Ours(variable) if limits.written.contains_key(&variable) => continue,
                Name::Ours(variable) => {
                    limits.written.insert(variable, super::error::escape(value));
                    limits.read(variable, value)
                }
            };
            if let Err(error) = outcome
                && first_error.as_ref().is_none_or(|first| error.name < first.name)
            {
                first_error = Some(error);
            }
        }
        first_error.map_or(Ok(limits), Err)
    }

    fn read(&mut self, variable: Variable, value: &[u8]) -> Result<(), LimitError> {
        let refused = |problem| LimitError::value(variable, value, problem);
        let text = str::from_utf8(value).map_err(|_| refused(Problem::NotUtf8(variable)))?;
        match variable.quantity {
            Quantity::Memory => {
                let parse = if variable.family == Family::Vgpu { parse_size } else { parse_hami_size };
                let size = parse(text).map_err(|error| refused(Problem::Size(variable, error)))?;
                self.memory.insert(variable, size);
            }
            Quantity::Sm => {
                let parse = if variable.family == Family::Vgpu { parse_share } else { parse_hami_share };
                let share = parse(text).map_err(|error| refused(Problem::Share(variable, error)))?;
                self.sm.insert(variable, share);
            }
        }
        Ok(())
    }

    /// Adds the daemon's terms, which hold for every device; the lower of all still wins.
    #[must_use]
    pub fn with_daemon(mut self, memory_limit: Option<Bytes>, sm_limit: Option<Share>) -> Self {
        self.daemon_memory = memory_limit;
        self.daemon_sm = sm_limit;
        self
    }

    /// Is any limit in force for any device? If not, there is nothing to enforce anywhere.
    #[must_use]
    pub fn asked_for_anything(&self) -> bool {
        self.daemon_memory.is_some()
            || self.daemon_sm.is_some_and(|share| !share.is_all())
            || self.memory.values().any(|size| *size != Size::Unlimited)
            || self.sm.values().any(|share| share.is_some_and(|share| !share.is_all()))
    }

    /// Does any variable name a single device, so that ordinals must be resolved?
    #[must_use]
    pub fn has_ordinals(&self) -> bool {
        self.written.keys().any(|variable| variable.ordinal.is_some())
    }

    /// Every limit variable that was set, with its value as written (escaped for printing).
    pub fn written(&self) -> impl Iterator<Item = (Variable, &str)> {
        self.written.iter().map(|(variable, value)| (*variable, value.as_str()))
    }

    /// Checks that every ordinal named by a variable is one of `count` devices.
    ///
    /// # Errors
    /// [`LimitError`] naming the first variable without a device, and how many devices there are.
    pub fn check_devices(&self, count: u32) -> Result<(), LimitError> {
        let missing = |variable: &Variable| variable.ordinal.is_some_and(|ordinal| ordinal >= count);
        match self.written.iter().find(|(variable, _)| missing(variable)) {
            None => Ok(()),
            Some((variable, value)) => Err(LimitError {
                name: variable.to_string(),
                value: value.clone(),
                problem: Problem::NoSuchDevice { count },
            }),
        }
    }

    /// The limits of the device with this ordinal and this much memory.
    ///
    /// A memory limit above `total` is legal and means all of the device. A ceiling of 100 % is none.
    ///
    /// # Errors
    /// [`LimitError`] if what was written comes to less than one byte of this device.
    pub fn for_device(&self, ordinal: u32, total: Bytes) -> Result<DeviceLimits, LimitError> {
        let mut limits = DeviceLimits::default();
        if let Some(memory) = self.daemon_memory {
            limits.memory = Some(memory.min(total));
            limits.memory_from = Some(Source::Daemon);
        }
        limits.sm = self.daemon_sm.filter(|share| !share.is_all());
        limits.sm_from = limits.sm.map(|_| Source::Daemon);

        for family in [Family::Vgpu, Family::Hami] {
            if let Some((variable, size)) = in_force(&self.memory, family, Quantity::Memory, ordinal)
                && let Some(bytes) = size.resolve(total)
            {
                if bytes == Bytes::ZERO {
                    let value = self.written.get(&variable).cloned().unwrap_or_default();
                    let problem = Problem::Size(variable, crate::bytes::SizeError::TooSmall);
                    return Err(LimitError { name: variable.to_string(), value, problem });
                }
                let bytes = bytes.min(total);
                if limits.memory.is_none_or(|lowest| bytes < lowest) {
                    limits.memory = Some(bytes);
                    limits.memory_from = Some(Source::Variable(variable));
                }
            }
            if let Some((variable, Some(share))) = in_force(&self.sm, family, Quantity::Sm, ordinal)
                && !share.is_all()
                && limits.sm.is_none_or(|lowest| share < lowest)
            {
                limits.sm = Some(share);
                limits.sm_from = Some(Source::Variable(variable));
            }
        }
        Ok(limits)
    }
}

/// The variable of one family that holds for one device: its own, else the global one.
fn in_force<T: Copy>(
    written: &BTreeMap<Variable, T>,
    family: Family,
    quantity: Quantity,
    ordinal: u32,
) -> Option<(Variable, T)> {
    let own = Variable { family, quantity, ordinal: Some(ordinal) };
    let global = Variable { family, quantity, ordinal: None };
    [own, global].into_iter().find_map(|variable| Some((variable, *written.get(&variable)?)))
}
