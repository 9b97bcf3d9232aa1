//! Resolves a [`RawFile`] to a [`ConfigPlan`]: turns templates, slots and overrides into terms for each device, and
//! checks that they fit.
//!
//! For each key the most specific section wins: the tenant's override for the device, the tenant, its template, the
//! defaults. Within one section, `gpu` and `replicas` stand for a memory limit and a floor that the section does not
//! set itself.

mod actions;
pub(super) mod admission;
mod groups;
mod layers;
mod schedule;
mod unmeasured;
mod usage;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::tz::TimeZone;

use super::devices::{self, DescribedDevice};
use super::groups::DEFAULT_HALF_LIFE_SECONDS;
use super::inventory::Inventory;
use super::paths::{self, MAX_SOCKET_PATH};
use super::plan::{ConfigPlan, DaemonPlan, DevicePlan, Keep, LogPlan, MetricsPlan, ProofPlan, TenantPlan};
use super::problem::{At, ProblemList, TextRange};
use super::raw::{DeviceId, MAX_LABELS, RawFile, RawTemplate, RawTenant, RawTerms};
use super::suggest::nearest_word;
use super::templates::all_templates;
use super::time::TimeConfig;
use super::usage::UsagePlan;
use super::value::{format_span, is_name};
use layers::{TenantLayers, TermsPlaces};

/// Most tenants, with each slot counted.
pub const MAX_TENANTS: usize = 4096;

/// Most names that a message lists.
const MAX_TENANTS_LISTED: usize = 20;

/// Inputs to a plan besides the file.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// Directory of the sockets if the file names none.
    pub run_dir: PathBuf,
    /// `--runtime-dir`, which overrides the file.
    pub run_dir_option: Option<PathBuf>,
    /// `--state-dir`, which overrides the file; `none` keeps no state.
    pub state_option: Option<PathBuf>,
    /// The administrative socket of the command line, which overrides the file; `none` for no such socket.
    pub admin_option: Option<PathBuf>,
    /// The log level of the command line, which overrides the file.
    pub log_option: Option<String>,
    /// Time zone of the host; `None` is UTC.
    pub zone: Option<TimeZone>,
    /// Devices that the driver reports; `None` if it was not asked or did not answer.
    pub inventory: Option<Inventory>,
    /// Kinds of events that may start the program of an action.
    pub event_kinds: Vec<&'static str>,
    /// Wall clock, in seconds since 1970; `None`: deadlines are not compared with it.
    pub now: Option<i64>,
    /// Tenants whose deadline may be over, each with its due time in seconds since 1970.
    pub kept_deadlines: Vec<(String, i64)>,
}

/// A tenant, with the places of its settings in the file.
struct PlacedTenant {
    plan: TenantPlan,
    /// Place of the tenant's name in the file, or of its section.
    place: TextRange,
    /// For each entry of [`TenantPlan::terms`]: the device, and the places that set the terms.
    origins: Vec<TenantOrigin>,
}

struct TenantOrigin {
    device: usize,
    places: TermsPlaces,
}

/// Resolves a file. The returned plan is valid only if `problems` is empty.
pub(super) fn resolve_plan(raw: &RawFile, around: &Surroundings, problems: &mut ProblemList<'_>) -> ConfigPlan {
    let daemon = resolve_daemon(raw, around, problems);
    let time = resolve_time(raw, problems);
    let mut devices = devices::resolve_devices(raw, around.inventory.as_ref(), problems);
    let group_limits = groups::group_limits(raw);
    devices.iter_mut().for_each(|device| device.plan.group_limits.clone_from(&group_limits));
    let templates = all_templates(&raw.templates).map(|template| (template.name.as_str(), template)).collect();
    let inventory = around.inventory.as_ref();
    let resolver = TenantResolver { raw, daemon: &daemon, devices: &devices, inventory, templates, problems };
    let mut tenants = resolver.resolve_tenants();
    let mut notes = Vec::new();
    let deadlines = usage::resolve_deadlines(raw, around, problems, &mut notes);
    for tenant in &mut tenants {
        tenant.plan.usage.deadline = deadlines.get(&tenant.place).copied();
    }
    if problems.is_empty() {
        admission::check(raw, &devices, &tenants, problems, &mut notes);
    }
    let (windows, bookings) = schedule::ScheduleResolver {
        zone: around.zone.clone().unwrap_or(TimeZone::UTC),
        tenants: tenants.iter().map(|tenant| &tenant.plan).collect(),
        devices: &devices,
        problems,
        notes: &mut notes,
    }
    .resolve_schedule(raw);
    let arbitrate = raw.arbitrate.as_ref().is_none_or(|at| at.value);
    let zone = around.zone.clone().unwrap_or(TimeZone::UTC);
    let resolver =
        groups::GroupResolver { zone, daemon: &daemon, devices: &devices, arbitrate, problems, notes: &mut notes };
    let groups = resolver.resolve_groups(raw);
    let devices: Vec<DevicePlan> = devices.into_iter().map(|device| device.plan).collect();
    let actions = actions::resolve_actions(&raw.actions, &around.event_kinds, problems);
    let (log, metrics, proof) = (log(raw, problems), resolve_metrics(raw), resolve_proof(raw));
    notes.extend(metrics.listen.filter(|at| !at.ip().is_loopback()).map(|at| {
        format!(
            "metrics.listen = \"{at}\": every host that reaches this address can read the names and usage of all \
             tenants, without authentication"
        )
    }));
    let tenants: Vec<TenantPlan> = tenants.into_iter().map(|tenant| tenant.plan).collect();
    notes.extend(unmeasured::note_unmeasured(arbitrate, &devices, &tenants));
    notes.extend(unmeasured::note_blind_needs(daemon.exact && arbitrate, &tenants));
    let (defaults, templates) = (raw.defaults.clone(), raw.templates.clone());
    ConfigPlan {
        daemon,
        log,
        metrics,
        proof,
        time,
        arbitrate,
        devices,
        tenants,
        groups,
        windows,
        bookings,
        actions,
        defaults,
        templates,
        notes,
    }
}

/// Resolves the tenants of `raw` against the devices and directories of a plan that is in force. The result is valid
/// only if `problems` is empty. Whether the tenants fit is not checked.
pub(super) fn resolve_tenants(
    raw: &RawFile,
    plan: &ConfigPlan,
    zone: &TimeZone,
    problems: &mut ProblemList<'_>,
) -> Vec<TenantPlan> {
    let devices: Vec<_> = plan.devices.iter().map(|plan| DescribedDevice { plan: plan.clone() }).collect();
    let templates = all_templates(&raw.templates).map(|template| (template.name.as_str(), template)).collect();
    let resolver =
        TenantResolver { raw, daemon: &plan.daemon, devices: &devices, inventory: None, templates, problems };
    let tenants = resolver.resolve_tenants();
    let around = Surroundings { zone: Some(zone.clone()), ..Surroundings::default() };
    let deadlines = usage::resolve_deadlines(raw, &around, problems, &mut Vec::new());
    let with_deadline = |mut tenant: PlacedTenant| {
        tenant.plan.usage.deadline = deadlines.get(&tenant.place).copied();
        tenant.plan
    };
    tenants.into_iter().map(with_deadline).collect()
}

fn resolve_daemon(raw: &RawFile, around: &Surroundings, problems: &mut ProblemList<'_>) -> DaemonPlan {
    let written = &raw.daemon;
    let run_dir = around.run_dir_option.clone();
    let run_dir = run_dir.or_else(|| written.run_dir.as_ref().map(|at| at.value.clone()));
    let run_dir = run_dir.unwrap_or_else(|| around.run_dir.clone());
    let admin = match (&around.admin_option, &written.admin_socket) {
        (Some(path), _) if path.as_os_str() == "none" => None,
        (Some(path), _) => Some(path.clone()),
        (None, Some(at)) => at.value.clone(),
        (None, None) => Some(paths::admin_socket(&run_dir)),
    };
    if let (Some(admin), Some(at)) = (&admin, &written.admin_socket)
        && admin.as_os_str().len() > MAX_SOCKET_PATH
    {
        problems.wrong_value(
            at.place,
            "daemon.admin_socket",
            "is too long",
            format!("at most {MAX_SOCKET_PATH} bytes"),
        );
    }
    let state_dir = match (&around.state_option, &written.state_dir) {
        (Some(path), _) => Some(path.clone()).filter(|path| path.as_os_str() != "none"),
        (None, Some(at)) => at.value.clone(),
        (None, None) => Some(paths::state_dir(&run_dir)),
    };
    DaemonPlan {
        run_dir,
        state_dir,
        exact: raw.record.exact.as_ref().is_none_or(|at| at.value),
        half_life: raw.record.half_life.as_ref().map_or(DEFAULT_HALF_LIFE_SECONDS, |at| at.value),
        keep: resolve_keep(raw, problems),
        admin,
        max_connections: written.max_connections.as_ref().map_or(1024, |at| at.value),
        log: around.log_option.clone().unwrap_or_else(|| written.log.as_ref().map_or("info", |at| at.value).to_owned()),
    }
}

fn log(raw: &RawFile, problems: &mut ProblemList<'_>) -> LogPlan {
    let (written, usual) = (&raw.log, LogPlan::default());
    let plan = LogPlan {
        file: written.file.as_ref().map_or(usual.file, |at| at.value.clone()),
        format: written.format.as_ref().map_or(usual.format, |at| at.value),
        max_size: written.max_size.as_ref().map_or(usual.max_size, |at| at.value.into()),
        keep: written.keep.as_ref().map_or(usual.keep, |at| at.value),
        audit: written.audit.as_ref().map_or(usual.audit, |at| at.value.clone()),
    };
    if let (Some(file), Some(audit), Some(at)) = (&plan.file, &plan.audit, &written.audit) {
        // Log lines would break the audit log's hash chain, and rotating one file would overwrite the other.
        if file == audit || is_put_aside(file, audit) || is_put_aside(audit, file) {
            let what = "is the file of the log, or a rotated file of one of the two";
            problems.wrong_value(at.place, "log.audit", what, "a file of its own");
        }
    }
    plan
}

/// Returns true if `other` is the name of a rotated `file`: the same path with a dot and a number appended.
fn is_put_aside(file: &Path, other: &Path) -> bool {
    let number =
        other.to_str().zip(file.to_str()).and_then(|(other, file)| other.strip_prefix(file)?.strip_prefix('.'));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
}

fn resolve_metrics(raw: &RawFile) -> MetricsPlan {
    let (written, usual) = (&raw.metrics, MetricsPlan::default());
    MetricsPlan {
        listen: written.listen.as_ref().map_or(usual.listen, |at| at.value),
        hami_names: written.hami_names.as_ref().map_or(usual.hami_names, |at| at.value),
    }
}

/// Returns how long rows of the record are kept.
fn resolve_keep(raw: &RawFile, problems: &mut ProblemList<'_>) -> Keep {
    let (usual, written) = (Keep::default(), &raw.record);
    let all = written.keep.as_ref().map_or(usual.all, |at| at.value);
    let fine = written.keep_fine.as_ref().map_or(usual.fine.min(all), |at| at.value);
    if let Some(at) = written.keep_fine.as_ref().filter(|at| at.value > all) {
        let what = format!("is longer than keep, {} s", all);
        problems.wrong_value(at.place, "record.keep_fine", what, "at most as long as keep");
    }
    Keep { fine, all }
}

fn resolve_proof(raw: &RawFile) -> Option<ProofPlan> {
    let (written, usual) = (&raw.proof, ProofPlan::default());
    if written.enabled.as_ref().is_some_and(|at| !at.value) {
        return None;
    }
    let span = |at: &Option<At<u64>>, usual| at.as_ref().map_or(usual, |at| Duration::from_nanos(at.value));
    let list = |at: &Option<At<Vec<At<PathBuf>>>>| {
        at.as_ref().map(|list| list.value.iter().map(|at| at.value.clone()).collect::<Vec<_>>())
    };
    let files = list(&written.devices).map(|paths| paths.iter().map(|path| path.display().to_string()).collect());
    Some(ProofPlan {
        interval: span(&written.interval, usual.interval),
        devices: files.unwrap_or(usual.devices),
        allow: list(&written.allow).unwrap_or_default(),
        slack: written.slack.as_ref().map_or(usual.slack, |at| at.value.into()),
        stop: written.action.as_ref().map_or(usual.stop, |at| at.value),
        grace: span(&written.grace, usual.grace),
        dry_run: written.dry_run.as_ref().map_or(usual.dry_run, |at| at.value),
        driver: usual.driver,
    })
}

/// Returns the constants of device time, and checks that they fit together.
fn resolve_time(raw: &RawFile, problems: &mut ProblemList<'_>) -> TimeConfig {
    let written = &raw.time;
    let mut time = written.or_default();
    if raw.time_is_wrong {
        return time;
    }
    let half = time.quantum / 2;
    match &written.in_flight {
        None => time.in_flight = time.in_flight.min(half),
        Some(at) if at.value > half => {
            let what = format!("is more than half of quantum, {}", format_span(time.quantum));
            problems.wrong_value(at.place, "time.in_flight", what, format!("at most {}", format_span(half)));
        }
        Some(_) => {}
    }
    match &written.drain {
        None => time.drain = time.drain.max(2 * time.quantum),
        Some(at) if at.value < 2 * time.quantum => {
            let what = format!("is less than two leases of {}", format_span(time.quantum));
            problems.wrong_value(at.place, "time.drain", what, format!("at least {}", format_span(2 * time.quantum)));
        }
        Some(_) => {}
    }
    time
}

/// Combines the tenants with their devices.
struct TenantResolver<'a, 't> {
    raw: &'a RawFile,
    daemon: &'a DaemonPlan,
    devices: &'a [DescribedDevice],
    /// The machine's devices, if the driver was asked.
    inventory: Option<&'a Inventory>,
    templates: HashMap<&'a str, &'a RawTemplate>,
    problems: &'a mut ProblemList<'t>,
}

impl<'a> TenantResolver<'a, '_> {
    fn resolve_tenants(mut self) -> Vec<PlacedTenant> {
        let raw = self.raw;
        let mut tenants = Vec::new();
        let mut taken: HashMap<String, TextRange> = HashMap::new();
        let mut told = HashSet::new();
        for entry in &raw.tenants {
            let layers = TenantLayers::new(raw, entry, self.find_template(entry));
            let devices = self.devices_of(entry);
            let idle = layers.resolve_idle(self.problems);
            let Some(name) = &entry.name else { continue };
            for name in slot_names(name, entry.replicas.as_ref()) {
                if tenants.len() == MAX_TENANTS {
                    let what = format!("exceeds the maximum number of tenants (slots included), {MAX_TENANTS}");
                    self.problems.wrong_key(entry.place, "tenant", what, "fewer tenants or fewer replicas");
                    return tenants;
                }
                if taken.insert(name.value.clone(), name.place).is_some() {
                    let what = match &entry.replicas {
                        Some(_) => format!("makes a slot {:?}, a name that is given already", name.value),
                        None => "is given already".to_owned(),
                    };
                    self.problems.wrong_value(name.place, "tenant.name", what, "a unique name for each tenant");
                    continue;
                }
                let gang = entry.gang.as_ref().map(|at| &at.value);
                if let Some(mut placed) = self.place_tenant(&name, &layers, &devices, &mut told, gang) {
                    placed.plan.usage.idle = idle.clone();
                    tenants.push(placed);
                }
            }
        }
        tenants
    }

    /// Returns the tenant's template, and reports an unknown name.
    fn find_template(&mut self, entry: &RawTenant) -> Option<&'a RawTemplate> {
        let at = entry.template.as_ref()?;
        if let Some(template) = self.templates.get(at.value.as_str()) {
            return Some(template);
        }
        let listed = self.raw.templates.len().min(MAX_TENANTS_LISTED);
        let known = || {
            let here = self.raw.templates.iter().take(listed).map(|template| template.name.as_str());
            let built_in = all_templates(&self.raw.templates).skip(self.raw.templates.len());
            here.chain(built_in.map(|template| template.name.as_str()))
        };
        let meant = if self.problems.is_full() { None } else { nearest_word(&at.value, known()) };
        let what = match meant {
            Some(meant) => format!("is not a template (did you mean {meant:?}?)"),
            None => "is not a template".to_owned(),
        };
        let mut accepted = known().collect::<Vec<_>>().join(", ");
        if self.raw.templates.len() > listed {
            accepted.push_str(", ...");
        }
        self.problems.wrong_value(at.place, "tenant.template", what, accepted);
        None
    }

    /// Returns a tenant's devices as indices into the list of devices, each with the tenant's override for it.
    fn devices_of<'r>(&mut self, entry: &'r RawTenant) -> BTreeMap<usize, Option<&'r RawTerms>> {
        let all = || (0..self.devices.len()).map(|device| (device, None));
        let mut own: BTreeMap<usize, Option<&RawTerms>> = BTreeMap::new();
        match &entry.devices {
            None => own.extend(all()),
            Some(list) if list.iter().any(|at| at.value == DeviceId::Any) => own.extend(all()),
            Some(list) => {
                for at in list {
                    let named: Vec<usize> = devices::find(self.devices, &at.value).collect();
                    if named.is_empty() && devices::may_be_silent(self.inventory, &at.value) {
                        continue;
                    }
                    if named.is_empty() {
                        let accepted = format!("{}, \"*\"", devices::device_names(self.devices));
                        let what = "is not a device of this configuration";
                        self.problems.wrong_value(at.place, "tenant.devices", what, accepted);
                    } else if named.iter().any(|device| own.contains_key(device)) {
                        self.problems.wrong_value(at.place, "tenant.devices", "is listed twice", "each device once");
                    }
                    own.extend(named.into_iter().map(|device| (device, None)));
                }
            }
        }
        for over in &entry.overrides {
            let Some(at) = &over.id else { continue };
            let (mut named, mut twice) = (false, false);
            for device in devices::find(self.devices, &at.value) {
                if let Some(terms) = own.get_mut(&device) {
                    (named, twice) = (true, twice || terms.is_some());
                    *terms = Some(&over.terms);
                }
            }
            if twice {
                let accepted = "one [[tenant.device]] for each device";
                self.problems.wrong_value(at.place, "tenant.device.id", "is overridden twice", accepted);
            } else if !named && !devices::may_be_silent(self.inventory, &at.value) {
                let names = own.keys().take(MAX_TENANTS_LISTED).map(|device| self.devices[*device].plan.name());
                let accepted = names.collect::<Vec<_>>().join(", ");
                self.problems.wrong_value(at.place, "tenant.device.id", "is not a device of this tenant", accepted);
            }
        }
        own
    }

    /// Resolves one tenant, or one slot.
    fn place_tenant(
        &mut self,
        name: &At<String>,
        layers: &TenantLayers<'_>,
        own: &BTreeMap<usize, Option<&RawTerms>>,
        told: &mut HashSet<TextRange>,
        gang: Option<&String>,
    ) -> Option<PlacedTenant> {
        if !is_name(&name.value) {
            if told.insert(name.place) {
                let what = format!("makes a slot {:?}, which cannot be a name", name.value);
                let accepted = "a shorter name: the name of a slot also has at most 64 letters";
                self.problems.wrong_value(name.place, "tenant.name", what, accepted);
            }
            return None;
        }
        let socket = self.daemon.run_dir.join("tenants").join(&name.value).join("vgpud.sock");
        let length = socket.as_os_str().len();
        if length > MAX_SOCKET_PATH {
            let what = format!(
                "makes a socket's path of {length} bytes, {}",
                super::problem::escape_value(&socket.to_string_lossy())
            );
            let accepted =
                format!("a shorter name or a shorter run_dir: a socket's path has at most {MAX_SOCKET_PATH} bytes");
            self.problems.wrong_value(name.place, "tenant.name", what, accepted);
            return None;
        }
        if self.daemon.admin.iter().zip(socket.parent()).any(|(admin, dir)| admin.starts_with(dir)) {
            let at = self.raw.daemon.admin_socket.as_ref().map_or(name.place, |at| at.place);
            let what = format!("lies in the directory that is mounted into the containers of tenant {}", name.value);
            self.problems.wrong_value(at, "daemon.admin_socket", what, "a path elsewhere");
        }
        let (mut terms, mut origins) = (Vec::new(), Vec::new());
        for (&device, over) in own {
            let described = &self.devices[device];
            match layers.resolve_terms(*over, &described.plan) {
                Ok((plan, places)) => {
                    terms.push(plan);
                    origins.push(TenantOrigin { device, places });
                }
                Err(word) if self.raw.devices_are_wrong || !told.insert(word.place) => {}
                Err(word) => {
                    let what = format!("is a part of device {}, whose size is not known", described.plan.name());
                    let accepted = "bytes or a number with a unit, or [[device]] with its memory";
                    self.problems.wrong_value(word.place, word.key, what, accepted);
                }
            }
        }
        let bearer = layers.resolve_bearer();
        if bearer.labels.len() > MAX_LABELS && told.insert(name.place) {
            let what = format!("has {} labels, with those of its template and of [defaults]", bearer.labels.len());
            self.problems.wrong_value(name.place, "tenant.name", what, format!("at most {MAX_LABELS} labels together"));
        }
        let plan = TenantPlan {
            name: name.value.clone(),
            socket,
            replicas: layers.slot_count(),
            gang: gang.cloned(),
            bearer,
            uids: layers.allowed_uids(),
            mode: layers.resolve_mode(),
            strict: layers.resolve_strict(),
            on_error: layers.on_error(),
            on_loss: layers.on_loss(),
            usage: UsagePlan::default(),
            terms,
        };
        Some(PlacedTenant { plan, place: name.place, origins })
    }
}

/// Returns the names of a tenant's slots, or its own name if it has none.
fn slot_names(name: &At<String>, replicas: Option<&At<u32>>) -> Vec<At<String>> {
    match replicas {
        None => vec![name.clone()],
        Some(replicas) => {
            let slot = |slot| At { value: format!("{}-{slot}", name.value), place: name.place };
            (0..replicas.value).map(slot).collect()
        }
    }
}
