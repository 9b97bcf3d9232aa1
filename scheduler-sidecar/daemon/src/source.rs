//! The configuration file: read at startup and at each reload.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use jiff::tz::TimeZone;
use rustix::fs::{Mode, OFlags};
use vgpu_accounting::clock;

use vgpu_config::inventory::Inventory;
use vgpu_config::options::Options;
use vgpu_config::paths;
use vgpu_config::plan::{ConfigPlan, TenantPlan};
use vgpu_config::problem::{ConfigReport, ProblemList, escape_value};
use vgpu_config::read::MAX_FILE;
use vgpu_config::resolve::Surroundings;
use vgpu_config::{self as config, inventory};
use vgpu_policy::active::PolicyInputs;
use vgpu_policy::forecast::{find_booking_conflicts, find_window_conflicts};
use vgpu_policy::stage::PolicyStage;
use vgpu_policy::words::format_time;

use crate::kept_deadlines::DeadlineStore;

/// Time for which windows are checked, in seconds: they return every week.
const CHECKED_SECONDS: i64 = 8 * 86_400;

/// A configuration file, and the options and devices that it is resolved against.
#[derive(Debug)]
pub struct ConfigSource {
    /// Absolute path of the file.
    pub path: PathBuf,
    /// The file as named on the command line, for messages.
    name: String,
    around: Surroundings,
    /// Why the driver did not answer; `None`: it answered or was not asked.
    silent: Option<String>,
    /// True if the driver must not be asked (`--driver none`).
    asks_nobody: bool,
}

/// Deadlines that may be over. Others in the past are errors.
#[derive(Debug, Clone, Copy)]
pub enum PastDeadlines<'a> {
    /// All of them: a time that passed must not keep a daemon from starting.
    All,
    /// Those of the plan in force.
    InForce(&'a ConfigPlan),
    /// Those whose work a daemon counts.
    Counted,
}

/// Why the file gives no plan.
#[derive(Debug)]
pub enum SourceError {
    /// The file cannot be read; the message names it.
    Unreadable(String),
    /// The file has errors.
    Wrong {
        /// Name of the file, for messages.
        file: String,
        /// All errors of the file.
        report: ConfigReport,
    },
}

/// One line for each error.
impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(why) => f.write_str(why),
            Self::Wrong { file, report } => f.write_str(report.to_lines(file).trim_end()),
        }
    }
}

impl std::error::Error for SourceError {}

/// Returns the text of a configuration file. `name` is the file's name in messages.
///
/// # Errors
/// [`SourceError::Unreadable`].
pub fn read_file(path: &Path, name: &str) -> Result<String, SourceError> {
    let unreadable = |why: &dyn fmt::Display| SourceError::Unreadable(format!("{name}: {why}"));
    let mut bytes = Vec::new();
    let most = u64::try_from(MAX_FILE).unwrap_or(u64::MAX) + 1;
    // Opening a pipe without a writer would block the daemon.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let open = rustix::fs::open(path, flags, Mode::empty()).map_err(|why| unreadable(&io::Error::from(why)))?;
    let open = File::from(open);
    if !open.metadata().map_err(|why| unreadable(&why))?.is_file() {
        return Err(unreadable(&"is not a file"));
    }
    open.take(most).read_to_end(&mut bytes).map_err(|why| unreadable(&why))?;
    String::from_utf8(bytes)
        .map_err(|why| unreadable(&format_args!("is not UTF-8 text: byte {}", why.utf8_error().valid_up_to())))
}

impl ConfigSource {
    /// Reads the options, and asks the driver once unless `--driver none` is given. If the driver does not answer,
    /// every plan gets a note of that.
    #[must_use]
    pub fn new(path: &Path, options: &Options) -> Self {
        let (inventory, silent) = match options.driver.as_str() {
            "none" => (None, None),
            _ => match inventory::ask_driver() {
                Ok(inventory) => (Some(inventory), None),
                Err(why) => (None, Some(why)),
            },
        };
        // A relative path is relative to the directory of the command, also at a reload.
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let around = Surroundings {
            run_dir: paths::runtime_dir(),
            run_dir_option: options.runtime_dir.as_ref().map(absolute),
            state_option: options.state_dir.as_ref().map(|path| match path.as_os_str() {
                none if none == "none" => path.clone(),
                _ => absolute(path),
            }),
            admin_option: options.admin_socket.as_ref().map(|path| match path.as_os_str() {
                none if none == "none" => path.clone(),
                _ => absolute(path),
            }),
            log_option: options.log.clone(),
            zone: Some(TimeZone::system()),
            inventory,
            event_kinds: vgpu_control::event::triggering_kinds(),
            ..Surroundings::default()
        };
        let asks_nobody = options.driver == "none";
        let name = escape_value(&path.display().to_string());
        Self { path: absolute(&path.to_owned()), name, around, silent, asks_nobody }
    }

    /// The plan of the file as it is now, for a check.
    ///
    /// # Errors
    /// [`SourceError`]; all errors of the file at once.
    pub fn read(&self) -> Result<ConfigPlan, SourceError> {
        self.make_plan(&self.read_text()?, PastDeadlines::Counted)
    }

    /// Number of devices that the driver has identified.
    #[must_use]
    pub fn count_identified(&self) -> usize {
        self.around.inventory.as_ref().map_or(0, |inventory| inventory.found.len())
    }

    /// True if the driver has not answered for one of its devices, or not at all and the plan has a device that only
    /// the driver can identify.
    #[must_use]
    pub fn waits_for_driver(&self, plan: &ConfigPlan) -> bool {
        if let Some(inventory) = &self.around.inventory {
            return !inventory.silent.is_empty();
        }
        self.silent.is_some() && plan.devices.iter().any(|device| device.uuid.is_none() && device.index.is_some())
    }

    /// True if the driver was asked and has not answered yet.
    #[must_use]
    pub fn driver_is_silent(&self) -> bool {
        self.silent.is_some()
    }

    /// The driver answered: later plans are resolved against its devices.
    pub fn driver_answered(&mut self, inventory: Inventory) {
        (self.around.inventory, self.silent) = (Some(inventory), None);
    }

    /// Reads the configuration file again and returns its text.
    ///
    /// # Errors
    /// [`SourceError::Unreadable`].
    pub fn read_text(&self) -> Result<String, SourceError> {
        read_file(&self.path, &self.name)
    }

    /// Checks that windows fit for a week, and bookings until they end, next to the terms of the file.
    fn check_schedule(&self, text: &str, plan: &ConfigPlan) -> Result<(), ConfigReport> {
        let inputs = self.policy_inputs(plan);
        let now = clock::unix_seconds();
        let mut problems = ProblemList::new(text);
        let mut conflicts = find_window_conflicts(&inputs, now, CHECKED_SECONDS);
        conflicts.extend(find_booking_conflicts(&inputs, now));
        for conflict in conflicts {
            let (key, place) = match conflict.stage {
                PolicyStage::Window => {
                    ("window.name", plan.windows.iter().find(|it| it.name == conflict.name).map(|it| it.place))
                }
                _ => ("booking.name", plan.bookings.iter().find(|it| it.name == conflict.name).map(|it| it.place)),
            };
            let beside = conflict.beside_words();
            let what =
                format!("does not fit{beside} from {} on: {}", format_time(self.zone(), conflict.at), conflict.words);
            let accepted = "terms that fit at every moment; vgpud --check shows which hold when";
            problems.wrong_value(place.unwrap_or_default(), key, what, accepted);
        }
        if problems.is_empty() { Ok(()) } else { Err(problems.into_report()) }
    }

    /// Inputs of the policies that the file alone gives.
    pub fn policy_inputs<'a>(&'a self, plan: &'a ConfigPlan) -> PolicyInputs<'a> {
        PolicyInputs {
            devices: &plan.devices,
            tenants: &plan.tenants,
            leaving: &[],
            windows: &plan.windows,
            bookings: &plan.bookings,
            usage: &[],
            overrides: &[],
            zone: self.zone(),
        }
    }

    /// Time zone of the host.
    #[must_use]
    pub fn zone(&self) -> &TimeZone {
        static UTC: TimeZone = TimeZone::UTC;
        self.around.zone.as_ref().unwrap_or(&UTC)
    }

    /// The plan of a text that was read from the file.
    ///
    /// # Errors
    /// [`SourceError::Wrong`]; all errors at once.
    pub fn make_plan(&self, text: &str, past: PastDeadlines<'_>) -> Result<ConfigPlan, SourceError> {
        let wrong = |report| SourceError::Wrong { file: self.name.clone(), report };
        let mut plan = self.plan_at(text, past, clock::unix_seconds()).map_err(wrong)?;
        self.check_schedule(text, &plan).map_err(wrong)?;
        let note = |why: &String| {
            format!(
                "the driver does not answer, so only the file says which devices exist and how large they are: {why}"
            )
        };
        let nobody = plan.devices.iter().filter(|device| device.uuid.is_none()).filter_map(|device| device.index);
        let numbers: Vec<String> = nobody.map(|index| index.to_string()).collect();
        let unknown = (!numbers.is_empty()).then(|| {
            let then = if self.asks_nobody { "the driver is not asked (--driver none)" } else { "it is asked again" };
            format!(
                "device.id, tenant.devices: only the driver knows which device is {}, so processes are refused there; {then}; a UUID (`nvidia-smi -L`) instead of the number needs no driver",
                numbers.join(", ")
            )
        });
        let lost = self.around.inventory.iter().flat_map(|inventory| &inventory.silent).map(|device| {
            format!(
                "device {} does not answer, so nobody is served there until it does; it is asked again: {}",
                device.index, device.why
            )
        });
        plan.notes.splice(..0, self.silent.as_ref().map(note).into_iter().chain(unknown).chain(lost));
        Ok(plan)
    }

    /// The plan of this text. A deadline that is over at `now` is an error, except those of `past`.
    fn plan_at(&self, text: &str, past: PastDeadlines<'_>, now: i64) -> Result<ConfigPlan, ConfigReport> {
        let plan = config::make_plan(text, &self.around)?;
        let due = |tenant: &TenantPlan| tenant.usage.deadline.map(|deadline| deadline.due);
        if !plan.tenants.iter().filter_map(due).any(|due| due <= now) {
            return Ok(plan);
        }
        let due_times = |plan: &ConfigPlan| -> Vec<(String, i64)> {
            plan.tenants.iter().filter_map(|tenant| Some((tenant.name.clone(), due(tenant)?))).collect()
        };
        let kept_deadlines = match past {
            PastDeadlines::All => due_times(&plan),
            PastDeadlines::InForce(before) => due_times(before),
            PastDeadlines::Counted => {
                // Only the plan says where the counts are.
                let store = plan.daemon.state_dir.as_deref().map(DeadlineStore::below);
                store.map(|store| store.read_due_times()).unwrap_or_default()
            }
        };
        config::make_plan(text, &Surroundings { now: Some(now), kept_deadlines, ..self.around.clone() })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn a_past_deadline_keeps_no_daemon_from_starting_and_is_refused_where_a_reload_or_a_check_finds_it_new() {
        let dir = "/nonexistent";
        let options = Options::parse_from(["vgpud", "--driver", "none", "--state-dir", dir, "--runtime-dir", dir]);
        let source = ConfigSource::new(Path::new("/nonexistent/vgpud.toml"), &options);
        let text = |due| format!("[[tenant]]\nname = \"a\"\ndeadline = \"{due} 09:00\"\ngpu_hours_needed = 1\n");
        let served = source.make_plan(&text("2020-12-01"), PastDeadlines::All).expect("a daemon starts");
        assert!(served.notes.iter().any(|note| note == "tenant a: its deadline is over and has no effect"));
        let again = |due| source.make_plan(&text(due), PastDeadlines::InForce(&served)).is_ok();
        assert!(again("2020-12-01") && again("2099-12-01"), "it is in force, and another is to come");
        assert!(!again("2020-12-02"), "a reload brings it");
        assert!(source.make_plan(&text("2020-12-01"), PastDeadlines::Counted).is_err(), "nobody counts it");
    }
}
