//! The record's lines put together: by tenant, group, label or device, and what of each device's time nobody used.

use std::collections::BTreeMap;

use super::Period;
use crate::record::ask::Line;

/// Nanoseconds of a second.
pub const NS: u128 = 1_000_000_000;
/// Bytes of a GiB.
pub const GIB: u128 = 1 << 30;

/// What a report's lines are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum By {
    /// The tenant's name.
    Tenant,
    /// Its group, as it was then.
    Group,
    /// The value of its label of this name, as it was then.
    Label(String),
    /// The device's UUID.
    Device,
}

/// What is accepted as [`By`], in words.
pub const BY_FORMS: &str = "tenant, group, device or label:NAME, or several with commas between, like group,tenant";

impl By {
    /// As it is written.
    ///
    /// # Errors
    /// [`BY_FORMS`].
    pub fn read(text: &str) -> Result<Self, String> {
        match text {
            "tenant" => Ok(Self::Tenant),
            "group" => Ok(Self::Group),
            "device" => Ok(Self::Device),
            _ => match text.strip_prefix("label:") {
                Some(name) if crate::config::value::is_label_name(name) => Ok(Self::Label(name.to_owned())),
                _ => Err(BY_FORMS.to_owned()),
            },
        }
    }

    /// The column's name.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Tenant => "tenant".into(),
            Self::Group => "group".into(),
            Self::Label(name) => format!("label:{name}"),
            Self::Device => "device".into(),
        }
    }

    fn of(&self, line: &Line) -> Option<String> {
        match self {
            Self::Tenant => Some(line.tenant.clone()),
            Self::Group => line.bearer.group.clone(),
            Self::Label(name) => line.bearer.labels.get(name).cloned(),
            Self::Device => Some(line.device.clone()),
        }
    }
}

/// Whose a line is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// A part for each [`By`]; `None`: it had no group, no such label.
    Of(Vec<Option<String>>),
    /// Time of devices that nobody used: of this one, or of all.
    Nobody(Option<String>),
}

impl Whose {
    /// Its cells, one for each [`By`].
    #[must_use]
    pub fn cells(&self, by: &[By]) -> Vec<String> {
        match self {
            Self::Of(parts) => parts.iter().map(|part| part.clone().unwrap_or_else(|| "(none)".into())).collect(),
            Self::Nobody(device) => {
                let mut cells = vec![String::new(); by.len()];
                if let (Some(device), Some(at)) = (device, by.iter().position(|by| *by == By::Device)) {
                    cells[at].clone_from(device);
                }
                match cells.iter_mut().find(|cell| cell.is_empty()) {
                    Some(cell) => *cell = "(not used)".into(),
                    None => cells.iter_mut().take(1).for_each(|cell| cell.push_str(" (not used)")),
                }
                cells
            }
        }
    }
}

/// Sums of lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Used {
    /// In ns.
    pub gpu_ns: u128,
    /// In ns, summed over processes.
    pub wait_ns: u128,
    /// Bytes held, times seconds.
    pub byte_seconds: u128,
    /// Most bytes at once on one device.
    pub peak_bytes: u64,
    /// Refused allocations; `None`: not known of any line.
    pub refused: Option<u128>,
}

impl Used {
    fn add(&mut self, line: &Line) {
        self.gpu_ns += u128::from(line.gpu_ns);
        self.wait_ns += u128::from(line.wait_ns);
        self.byte_seconds += u128::from(line.memory_byte_seconds);
        self.peak_bytes = self.peak_bytes.max(line.peak_bytes);
        if let Some(refused) = line.refused {
            *self.refused.get_or_insert(0) += u128::from(refused);
        }
    }
}

/// Lines put together.
#[derive(Debug, Clone)]
pub struct Gathered {
    /// How.
    pub by: Vec<By>,
    /// By whose they are.
    pub lines: BTreeMap<Whose, Used>,
    /// Device time that was used of each device.
    pub devices: BTreeMap<String, u128>,
    /// Tenants that had no ceiling for a time: what they used alone may not have been measured.
    pub unmeasured: std::collections::BTreeSet<String>,
}

impl Gathered {
    /// Nothing yet.
    #[must_use]
    pub fn new(by: Vec<By>) -> Self {
        Self { by, lines: BTreeMap::new(), devices: BTreeMap::new(), unmeasured: Default::default() }
    }

    /// Adds a line.
    pub fn add(&mut self, line: &Line) {
        let whose = Whose::Of(self.by.iter().map(|by| by.of(line)).collect());
        self.lines.entry(whose).or_default().add(line);
        *self.devices.entry(line.device.clone()).or_default() += u128::from(line.gpu_ns);
        if line.sm_limit.is_none() && !self.unmeasured.contains(&line.tenant) {
            self.unmeasured.insert(line.tenant.clone());
        }
    }

    /// Adds the time of each device in this period that nobody used, as lines of their own.
    ///
    /// Only devices of which there are lines are known. What was used beyond the period's time (a minute at its end) makes
    /// nobody's time less than nil on none.
    pub fn add_nobodys(&mut self, period: Period) {
        let whole = period.seconds().saturating_mul(NS);
        let each = self.by.contains(&By::Device);
        for (device, used) in &self.devices {
            let whose = Whose::Nobody(each.then(|| device.clone()));
            self.lines.entry(whose).or_default().gpu_ns += whole.saturating_sub(*used);
        }
    }

    /// The lines by what they used, most first, nobody's last.
    #[must_use]
    pub fn sorted(&self, weight: impl Fn(&Used) -> u128) -> Vec<(Whose, Used)> {
        let mut lines: Vec<_> = self.lines.iter().map(|(whose, used)| (whose.clone(), used.clone())).collect();
        lines.sort_by_key(|(whose, used)| (matches!(whose, Whose::Nobody(_)), std::cmp::Reverse(weight(used))));
        lines
    }

    /// What a reader must know of times that the record does not hold.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let names: Vec<&str> = self.unmeasured.iter().take(8).map(String::as_str).collect();
        if names.is_empty() {
            return Vec::new();
        }
        let more = if self.unmeasured.len() > names.len() { ", ..." } else { "" };
        vec![format!(
            "Without an sm_limit for a time: {}{more}. What such a tenant used after its first second alone on a device is \
             in no line, but in that of nobody, where the daemon had exact = false in [record].",
            names.join(", ")
        )]
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::record::bearer::Bearer;

    /// A line of a minute.
    pub(crate) fn line(
        tenant: &str,
        group: Option<&str>,
        device: &str,
        start: i64,
        gpu_ms: u64,
        gib_seconds: u64,
    ) -> Line {
        Line {
            start,
            span: 60,
            tenant: tenant.into(),
            bearer: Bearer { group: group.map(str::to_owned), labels: BTreeMap::from([("kind".into(), "x".into())]) },
            device: device.into(),
            gpu_ns: gpu_ms * 1_000_000,
            memory_byte_seconds: gib_seconds << 30,
            peak_bytes: 1 << 30,
            sm_limit: Some(300),
            ..Line::default()
        }
    }

    #[test]
    fn a_tenant_that_moves_to_another_group_leaves_what_it_used_where_it_was() {
        let mut gathered = Gathered::new(vec![By::Group, By::Tenant]);
        for line in [
            line("a", Some("one"), "G", 0, 10, 0),
            line("a", Some("two"), "G", 60, 5, 0),
            line("b", None, "G", 60, 1, 0),
        ] {
            gathered.add(&line);
        }
        gathered.add_nobodys(Period { since: 0, until: 60 });
        let lines: Vec<(Vec<String>, u128)> = gathered
            .sorted(|used| used.gpu_ns)
            .iter()
            .map(|(whose, used)| (whose.cells(&gathered.by), used.gpu_ns / 1_000_000))
            .collect();
        let cells = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        assert_eq!(
            lines,
            [
                (cells("one", "a"), 10),
                (cells("two", "a"), 5),
                (cells("(none)", "b"), 1),
                (cells("(not used)", ""), 60_000 - 16)
            ]
        );
    }

    #[test]
    fn each_device_has_its_own_time_that_nobody_used_and_none_is_less_than_nil() {
        let mut gathered = Gathered::new(vec![By::Device]);
        gathered.add(&line("a", None, "G", 0, 70_000, 0));
        gathered.add(&line("a", None, "H", 0, 20_000, 0));
        gathered.add_nobodys(Period { since: 0, until: 60 });
        let nobody = |device: &str| gathered.lines[&Whose::Nobody(Some(device.into()))].gpu_ns / 1_000_000;
        assert_eq!((nobody("G"), nobody("H")), (0, 40_000));
        assert_eq!(Whose::Nobody(Some("G".into())).cells(&gathered.by), ["G (not used)"]);
        assert!(By::read("label:kind").is_ok() && By::read("label:").is_err() && By::read("user").is_err());
    }
}
