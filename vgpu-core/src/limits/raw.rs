//! Stage one: the variables as written. Stage two: their meaning for one device.

use super::error::Problem;
use super::listed::{ListedLimit, NamedDevice, lowest_listed};
use super::variable::Name;
use super::{DeviceLimits, Family, LimitError, Mode, Quantity, Source, Variable};
use crate::limits::variables::{CONTROL, MODE, POLICY, PRIORITY, WORD_VARIABLES};
use crate::units::bytes::{Bytes, Size, parse_hami_size, parse_mebibytes, parse_size};
use crate::units::share::{Share, ShareError, parse_hami_share, parse_request, parse_share};

/// Every limit variable that is set, parsed but not yet applied to a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawLimits {
    /// Sorted by variable. A list, since there are few: maps would be the largest part of the library.
    pub(super) entries: Vec<Entry>,
    /// The word of each variable in [`WORD_VARIABLES`]; empty if the value is not one of its words.
    words: [Option<&'static str>; WORD_VARIABLES.len()],
    /// True if `VGPU_SOCKET` is set.
    pub(super) daemon_named: bool,
    /// True if `VGPU_STATE_DIR` is set.
    placed: bool,
    daemon_memory: Option<Bytes>,
    daemon_sm: Option<Share>,
    /// The environment as the program changed it after its start, if that differs.
    pub(super) later: Option<Box<Self>>,
}

/// A limit variable that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) variable: Variable,
    pub(super) limit: Limit,
    /// The value as written, escaped, for errors that are found only once the device count is known.
    pub(super) written: String,
}

/// Meaning of a variable's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// A value that could not be parsed.
    Nonsense,
    /// HAMi's 0: treated as unset, so the global limit holds for the device.
    Unsaid,
    Memory(Size),
    /// A list of memory limits, which [`Entry::written`] holds unchanged.
    List,
    /// A ceiling or floor on device time; `None`: no limit.
    Time(Option<Share>),
}

impl Limit {
    fn is_limit(self) -> bool {
        match self {
            Self::Nonsense | Self::Unsaid => false,
            Self::List => true,
            Self::Memory(size) => size != Size::Unlimited,
            Self::Time(share) => share.is_some_and(|share| !share.is_all()),
        }
    }
}

impl Entry {
    pub(super) fn refuse(&self, problem: Problem) -> LimitError {
        LimitError { name: self.variable.to_string(), value: self.written.clone(), problem }
    }
}

impl RawLimits {
    /// Reads limits, and the variables that take words ([`crate::limits::variables`]), from an environment; ignores
    /// everything else.
    ///
    /// Names and values are bytes, as the kernel passes them. Of a name that occurs twice the first one counts, as
    /// for `getenv`. In [`Mode::Off`] everything else is ignored.
    ///
    /// # Errors
    /// [`LimitError`] in three cases: a value is not understood; a name begins like a limit variable and is none
    /// (`VGPU_MEMORY_LIMIT_x`); a floor is above its ceiling. With several errors, the one whose name sorts first:
    /// the same environment always gives the same line.
    ///
    /// With a daemon, a mode that enforces less has no effect and is no error ([`RawLimits::unheard_mode`]).
    pub fn from_vars<N, V>(vars: impl IntoIterator<Item = (N, V)>) -> Result<Self, LimitError>
    where
        N: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        let mut limits = Self::default();
        let mut first_error: Option<LimitError> = None;
        for (name, value) in vars {
            let (name, value) = (name.as_ref(), value.as_ref());
            let outcome = match Variable::classify_name(name) {
                Name::Foreign => limits.read_other(name, value),
                Name::Malformed(variable) => Err(LimitError::bad_name(variable, name, value)),
                Name::Ours(variable) => limits.read(variable, value),
            };
            if let Err(error) = outcome
                && first_error.as_ref().is_none_or(|first| error.name < first.name)
            {
                first_error = Some(error);
            }
        }
        match first_error {
            // The variable that switches the library off may itself be the faulty one.
            Some(error)
                if limits.asked_mode() == Mode::Off && ![MODE.name, CONTROL.name].contains(&error.variable_name()) =>
            {
                Ok(limits)
            }
            Some(error) => Err(error),
            None if limits.asked_mode() == Mode::Off => Ok(limits),
            None => limits.check_floors().map(|()| limits),
        }
    }

    /// Reads a variable that is not a limit. If it takes words, the value must be one of them.
    fn read_other(&mut self, name: &[u8], value: &[u8]) -> Result<(), LimitError> {
        self.daemon_named |= name == b"VGPU_SOCKET";
        if name == b"VGPU_STATE_DIR" && !core::mem::replace(&mut self.placed, true) && !value.starts_with(b"/") {
            // With a relative path each working directory would have its own ledger, each with the full limit.
            return Err(LimitError::bad_word("VGPU_STATE_DIR", value, Problem::Relative));
        }
        let Some(at) = WORD_VARIABLES.iter().position(|worded| worded.name.as_bytes() == name) else { return Ok(()) };
        if self.words[at].is_some() {
            return Ok(());
        }
        let words = WORD_VARIABLES[at].words;
        // HAMi passes on any number that a pod asks for: all numbers but 0 mean low priority.
        let number =
            WORD_VARIABLES[at].name == PRIORITY.name && !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let value_of = match (number, value.iter().all(|digit| *digit == b'0')) {
            (false, _) => value,
            (true, true) => b"0",
            (true, false) => b"1",
        };
        let word = words.iter().find(|word| word.as_bytes() == value_of).copied();
        self.words[at] = Some(word.unwrap_or_default());
        match word {
            Some(_) => Ok(()),
            None => Err(LimitError::bad_word(WORD_VARIABLES[at].name, value, Problem::Word(words))),
        }
    }

    fn read(&mut self, variable: Variable, value: &[u8]) -> Result<(), LimitError> {
        let Err(at) = self.entries.binary_search_by_key(&variable, |entry| entry.variable) else { return Ok(()) };
        let meaning = parse_value(variable, value);
        let (limit, outcome) = match meaning {
            Ok(limit) => (limit, Ok(())),
            Err(problem) => (Limit::Nonsense, Err(LimitError::bad_value(variable, value, problem))),
        };
        let written = match limit {
            // It is printable, and may be longer than an escaped value.
            Limit::List => str::from_utf8(value).unwrap_or_default().to_owned(),
            _ => super::error::escape_bytes(value),
        };
        self.entries.insert(at, Entry { variable, limit, written });
        outcome
    }

    /// Adds the daemon's terms, which hold for every device. The lowest limit still holds.
    #[must_use]
    pub fn with_daemon(mut self, memory_limit: Option<Bytes>, sm_limit: Option<Share>) -> Self {
        self.daemon_memory = memory_limit;
        self.daemon_sm = sm_limit;
        self
    }

    /// The enforcement mode. With a daemon named, the daemon sets it.
    #[must_use]
    pub fn asked_mode(&self) -> Mode {
        let own = if self.daemon_named { Mode::Enforce } else { self.written_mode() };
        // A later mode without any limit to enforce would only end the measuring, so it has no effect.
        let later = self.later.as_ref().filter(|later| later.limits_anything());
        later.map_or(own, |later| own.min(later.written_mode()))
    }

    fn written_mode(&self) -> Mode {
        match self.mode_from() {
            Some((name, word)) if name == MODE.name => Mode::from_word(word),
            Some(_) => Mode::Off,
            None => Mode::Enforce,
        }
    }

    /// The variable that decides [`RawLimits::asked_mode`], and its word; `None`: no variable does.
    #[must_use]
    pub fn mode_from(&self) -> Option<(&'static str, &'static str)> {
        let word = |name: &'static str| Some((name, self.word_of_variable(name)?));
        let disables = |word: &str| matches!(word, "1" | "t" | "T" | "true" | "True" | "TRUE");
        word(MODE.name).or_else(|| word(CONTROL.name).filter(|(_, word)| disables(word)))
    }

    /// The variable, and its word, that asks for less than enforcement although a daemon is named. It has no effect,
    /// since the daemon sets the mode.
    #[must_use]
    pub fn unheard_mode(&self) -> Option<(&'static str, &'static str)> {
        self.mode_from().filter(|_| self.daemon_named && self.written_mode() != Mode::Enforce)
    }

    /// The word of a variable that takes words, if it is set.
    #[must_use]
    pub fn word_of_variable(&self, name: &str) -> Option<&'static str> {
        self.words[WORD_VARIABLES.iter().position(|worded| worded.name == name)?]
    }

    /// True if `GPU_CORE_UTILIZATION_POLICY` switches HAMi's ceilings on device time off.
    #[must_use]
    pub fn hami_ceiling_is_off(&self) -> bool {
        self.word_of_variable(POLICY.name).is_some_and(|word| word.eq_ignore_ascii_case("disable"))
    }

    /// The ceiling of one family of variables, for one device or (`None`) for all unnamed devices. The inner `None`:
    /// no ceiling.
    #[must_use]
    pub(super) fn ceiling_of_family(&self, family: Family, ordinal: Option<u32>) -> Option<(Variable, Option<Share>)> {
        if family == Family::Hami && self.hami_ceiling_is_off() {
            return None;
        }
        match self.in_force(family, Quantity::Sm, ordinal)? {
            Entry { variable, limit: Limit::Time(share), .. } => Some((*variable, *share)),
            _ => None,
        }
    }

    /// True if any device has something to enforce or to measure.
    #[must_use]
    pub fn asked_for_anything(&self) -> bool {
        match self.asked_mode() {
            Mode::Off => false,
            Mode::Observe => true,
            Mode::Enforce => self.limits_anything(),
        }
    }

    /// True if any device has a limit or floor, whatever the mode.
    #[must_use]
    pub fn limits_anything(&self) -> bool {
        let limits = |entry: &Entry| match (entry.variable.family, entry.variable.quantity) {
            (_, Quantity::SmRequest) => true,
            (Family::Hami, Quantity::Sm) if self.hami_ceiling_is_off() => false,
            _ => entry.limit.is_limit(),
        };
        self.daemon_memory.is_some()
            || self.daemon_sm.is_some_and(|share| !share.is_all())
            || self.entries.iter().any(limits)
            || self.later.as_ref().is_some_and(|later| later.limits_anything())
    }

    /// True if a variable names a single device, so that ordinals must be resolved.
    #[must_use]
    pub fn has_ordinals(&self) -> bool {
        self.every_entry().any(|entry| entry.variable.ordinal.is_some())
    }

    /// Every limit variable that is set, with its value as written, escaped for printing.
    pub fn written_variables(&self) -> impl Iterator<Item = (Variable, &str)> {
        self.every_entry().map(|entry| (entry.variable, entry.written.as_str()))
    }

    /// The entries of the start, then those of the later environment.
    pub(super) fn every_entry(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().chain(self.later.iter().flat_map(|later| &later.entries))
    }

    /// Checks that every ordinal named by a variable is one of `count` devices.
    ///
    /// # Errors
    /// [`LimitError`] naming the first variable without a device, and how many devices there are.
    pub fn check_devices(&self, count: u32) -> Result<(), LimitError> {
        let missing = |entry: &&Entry| entry.variable.ordinal.is_some_and(|ordinal| ordinal >= count);
        match self.every_entry().find(missing) {
            None => Ok(()),
            Some(entry) => Err(entry.refuse(Problem::NoSuchDevice { count })),
        }
    }

    /// The limits of the device with this ordinal and `total` bytes of memory. `None`: NVML does not tell its memory.
    ///
    /// A memory limit above `total` is valid and means the whole device. A ceiling of 100 % is no ceiling.
    ///
    /// # Errors
    /// [`LimitError`] if a limit is less than one byte on this device, or a percentage of an unknown total.
    pub fn for_device(&self, ordinal: u32, total: impl Into<Option<Bytes>>) -> Result<DeviceLimits, LimitError> {
        let known_total = total.into();
        let mut limits = match &self.later {
            Some(later) => later.for_device(ordinal, known_total)?,
            None => DeviceLimits::default(),
        };
        let total = known_total.unwrap_or(Bytes(u64::MAX));
        if let Some(memory) = self.daemon_memory.map(|memory| memory.min(total))
            && limits.memory.is_none_or(|lowest| memory < lowest)
        {
            limits.memory = Some(memory);
            limits.memory_from = Some(Source::Daemon);
        }
        if let Some(share) = self.daemon_sm.filter(|share| !share.is_all())
            && limits.sm.is_none_or(|lowest| share < lowest)
        {
            limits.sm = Some(share);
            limits.sm_from = Some(Source::Daemon);
        }

        for family in Family::EVERY_FAMILY {
            if let Some(entry) = self.in_force(family, Quantity::Memory, Some(ordinal))
                && let Limit::Memory(size) = entry.limit
                && let Some(bytes) = size.to_bytes(total)
            {
                let variable = entry.variable;
                if known_total.is_none() && matches!(size, Size::Percent(_)) {
                    return Err(entry.refuse(Problem::UnknownTotal));
                }
                if bytes == Bytes::ZERO {
                    return Err(entry.refuse(Problem::Size(variable, crate::units::bytes::SizeError::TooSmall)));
                }
                let bytes = bytes.min(total);
                if limits.memory.is_none_or(|lowest| bytes < lowest) {
                    limits.memory = Some(bytes);
                    limits.memory_from = Some(Source::Variable(variable));
                }
            }
            if let Some((variable, Some(share))) = self.ceiling_of_family(family, Some(ordinal))
                && !share.is_all()
                && limits.sm.is_none_or(|lowest| share < lowest)
            {
                limits.sm = Some(share);
                limits.sm_from = Some(Source::Variable(variable));
            }
        }
        Ok(limits)
    }

    /// As [`RawLimits::for_device`], with the limits of lists, which name devices in other ways too.
    ///
    /// Not inlined: the library would be larger.
    ///
    /// # Errors
    /// As for [`RawLimits::for_device`].
    #[inline(never)]
    pub fn for_named_device(&self, device: &NamedDevice<'_>, total: Option<Bytes>) -> Result<DeviceLimits, LimitError> {
        let mut limits = self.for_device(device.index.unwrap_or(u32::MAX), total)?;
        let mut environment = Some(self);
        while let Some(raw) = environment {
            // A list has no ordinal, and its family is the last.
            if let Some(entry) = raw.entries.last().filter(|entry| entry.limit == Limit::List)
                && let Some(bytes) = lowest_listed(&entry.written, device)
                && limits.memory.is_none_or(|lowest| bytes < lowest)
            {
                limits.memory = Some(total.map_or(bytes, |total| bytes.min(total)));
                limits.memory_from = Some(Source::Variable(entry.variable));
            }
            environment = raw.later.as_deref();
        }
        Ok(limits)
    }

    /// The variable of one family that is in force for one device, or (`None`) for all unnamed devices: the device's
    /// own, else the global one. HAMi's 0 for a device counts as unset, so the global one holds.
    pub(super) fn in_force(&self, family: Family, quantity: Quantity, ordinal: Option<u32>) -> Option<&Entry> {
        let find = |ordinal| {
            let variable = Variable { family, quantity, ordinal };
            self.entries.iter().find(|entry| entry.variable == variable)
        };
        let own = find(ordinal);
        own.filter(|entry| entry.limit != Limit::Unsaid).or_else(|| find(None)).or(own)
    }

    /// As `in_force`: the variable and its value as written, escaped for printing.
    #[must_use]
    pub fn winning_entry(&self, family: Family, quantity: Quantity, ordinal: Option<u32>) -> Option<(Variable, &str)> {
        self.in_force(family, quantity, ordinal).map(|entry| (entry.variable, entry.written.as_str()))
    }
}

fn parse_value(variable: Variable, value: &[u8]) -> Result<Limit, Problem> {
    let text = str::from_utf8(value).map_err(|_| Problem::NotUtf8(variable))?;
    let size = |error| Problem::Size(variable, error);
    let share = |error| Problem::Share(variable, error);
    match (variable.quantity, variable.family) {
        (Quantity::Memory, Family::Vgpu) => parse_size(text).map(Limit::Memory).map_err(size),
        (Quantity::Memory, Family::Hami) => match parse_hami_size(text).map_err(size)? {
            Size::Unlimited => Ok(Limit::Unsaid),
            bytes => Ok(Limit::Memory(bytes)),
        },
        (Quantity::Memory, Family::Toolkit) => parse_mebibytes(text).map(Limit::Memory).map_err(size),
        (Quantity::Memory, Family::Mps)
            if text.split(',').all(|entry| ListedLimit::parse(entry).is_some())
                && !text.bytes().any(|byte| byte < b' ') =>
        {
            Ok(Limit::List)
        }
        (Quantity::Memory, Family::Mps) => Err(Problem::List),
        (Quantity::Sm, Family::Hami) => match parse_hami_share(text).map_err(share)? {
            None if parse_request(text) == Err(ShareError::Zero) => Ok(Limit::Unsaid),
            ceiling => Ok(Limit::Time(ceiling)),
        },
        (Quantity::Sm, _) => parse_share(text).map(Limit::Time).map_err(share),
        (Quantity::SmRequest, _) => parse_request(text).map(|floor| Limit::Time(Some(floor))).map_err(share),
    }
}
