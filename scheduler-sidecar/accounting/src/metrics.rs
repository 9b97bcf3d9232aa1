//! Renders the daemon's status as OpenMetrics text. No I/O.
//!
//! Values are in base units. A tenant without members has samples of zero; an unknown value has no sample.
//! [`FAMILY_NAMES`] lists all metrics; tests compare the documentation, the dashboard and the alert rules with it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use vgpu_config::bearer::POD_NAME_LABELS;
use vgpu_control::finding::FindingKind;
use vgpu_control::service::{BUCKET_BOUNDS_NS, TimeHistogram};
use vgpu_control::status::GroupStatus;
use vgpu_control::{DaemonStatus, DeviceStatus, TenantStatus, TermsStatus, TimeStatus};

type SampleLabels = Vec<(Cow<'static, str>, String)>;
type LevelMetric = Gauge<f64, AtomicU64>;
type SumMetric = Counter<f64, AtomicU64>;
type MetricFamily<M> = Family<SampleLabels, M, fn() -> M>;

/// A metric as exported: name, labels and description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FamilyName {
    /// Name as exported.
    pub name: &'static str,
    /// Names of the metric's labels.
    pub labels: &'static str,
    /// Description of the metric, exported as its help text.
    pub says: &'static str,
}

const DEVICE_LABELS: &str = "device";
const TENANT_LABELS: &str = "tenant";
const TENANT_DEVICE_LABELS: &str = "tenant, device";
const GROUP_LABELS: &str = "group";
const HAMI_LABELS: &str = "podnamespace, podname, ctrname, vdeviceid, deviceuuid";

const fn name(name: &'static str, labels: &'static str, says: &'static str) -> FamilyName {
    FamilyName { name, labels, says }
}

/// All metric families, those with HAMi's names last.
pub const FAMILY_NAMES: &[FamilyName] = &[
    name("vgpu_build_info", "version", "Always 1: the version of the daemon."),
    name("vgpu_uptime_seconds", "", "How long the daemon has been running."),
    name(
        "vgpu_faults",
        "what",
        "1 if a service of the daemon other than enforcement does not work: usage record, audit log, metrics, proof.",
    ),
    name("vgpu_findings", "kind", "Findings about processes that use devices: uncontrolled, unregistered, over, time."),
    name(
        "vgpu_configuration_refused",
        "",
        "1 if the last reading of the configuration was refused because of its errors.",
    ),
    name("vgpu_queued_additions", "", "Tenants that wait until they fit (vgpu tenant add --wait)."),
    name("vgpu_device_memory_bytes", DEVICE_LABELS, "Memory of the device."),
    name("vgpu_device_memory_promised_bytes", DEVICE_LABELS, "Memory limits of its tenants together."),
    name("vgpu_device_arbitrated", DEVICE_LABELS, "1 if the device is shared by leases."),
    name("vgpu_device_lost", DEVICE_LABELS, "1 while the driver says that the device is lost."),
    name("vgpu_tenant_memory_limit_bytes", TENANT_DEVICE_LABELS, "Memory limit; no sample if there is none."),
    name("vgpu_tenant_memory_used_bytes", TENANT_DEVICE_LABELS, "Memory charged."),
    name("vgpu_tenant_memory_peak_bytes", TENANT_DEVICE_LABELS, "Most memory charged at once."),
    name(
        "vgpu_tenant_sm_limit_ratio",
        TENANT_DEVICE_LABELS,
        "Ceiling on the device's time, 0 to 1; no sample if \
         there is none.",
    ),
    name(
        "vgpu_tenant_sm_request_ratio",
        TENANT_DEVICE_LABELS,
        "Floor of the device's time, 0 to 1; no sample if \
         there is none.",
    ),
    name("vgpu_tenant_weight", TENANT_DEVICE_LABELS, "The tenant's part of the time that floors leave."),
    name(
        "vgpu_tenant_gpu_seconds_total",
        TENANT_DEVICE_LABELS,
        "Device time used, by the driver's events; no sample if none was measured.",
    ),
    name(
        "vgpu_tenant_wait_seconds_total",
        TENANT_DEVICE_LABELS,
        "Time that the tenant waited at the gate without the device.",
    ),
    name(
        "vgpu_tenant_wanted_ratio",
        TENANT_DEVICE_LABELS,
        "Part of the last seconds in which the tenant wanted the device, 0 to 1; no sample if not measured.",
    ),
    name(
        "vgpu_tenant_got_ratio",
        TENANT_DEVICE_LABELS,
        "Part of the last seconds in which the tenant got the device, 0 to 1; no sample if not measured.",
    ),
    name(
        "vgpu_tenant_unmeasured",
        TENANT_DEVICE_LABELS,
        "1 while the tenant's processes launch without leases, so their device time is not measured.",
    ),
    name("vgpu_tenant_waiting", TENANT_DEVICE_LABELS, "Members that wait at the gate."),
    name(
        "vgpu_tenant_energy_joules_total",
        "tenant, device, use",
        "Energy of the tenant's work (use=\"work\") and of the idle device while it held memory (use=\"idle\"); no \
         sample if the device's energy is not known.",
    ),
    name(
        "vgpu_tenant_lease_wait_seconds",
        TENANT_DEVICE_LABELS,
        "Times from a process's request to launch to its lease; no sample before the first.",
    ),
    name(
        "vgpu_tenant_lease_gap_seconds",
        TENANT_DEVICE_LABELS,
        "Times from the end of a lease of the tenant to its next lease; no sample before the first.",
    ),
    name(
        "vgpu_tenant_promised_seconds_total",
        TENANT_DEVICE_LABELS,
        "Device time that the tenant was promised while it wanted the device; no sample before a promise.",
    ),
    name(
        "vgpu_tenant_delivered_seconds_total",
        TENANT_DEVICE_LABELS,
        "Device time that the tenant got of the device while time was promised; no sample before a promise.",
    ),
    name(
        "vgpu_tenant_promise_minutes_total",
        TENANT_DEVICE_LABELS,
        "Minutes in which the tenant was promised time; no sample before a promise.",
    ),
    name(
        "vgpu_tenant_promise_kept_minutes_total",
        TENANT_DEVICE_LABELS,
        "Minutes in which it got 95 % of the promised time or more; no sample before a promise.",
    ),
    name("vgpu_tenant_launches_total", TENANT_DEVICE_LABELS, "Launches, as counted by the tenant's processes."),
    name(
        "vgpu_tenant_allocations_refused_total",
        TENANT_DEVICE_LABELS,
        "Allocations refused because they were beyond the limit.",
    ),
    name(
        "vgpu_tenant_info",
        "tenant, group, label_NAME",
        "Always 1: the tenant's group, empty if it has none, and each of its labels.",
    ),
    name("vgpu_tenant_members", TENANT_LABELS, "Processes that are connected."),
    name("vgpu_tenant_connections_refused_total", TENANT_LABELS, "Connections refused."),
    name(
        "vgpu_tenant_enforced",
        TENANT_LABELS,
        "1 if the tenant's limits are enforced, 0 if its use is only measured or it cannot be served.",
    ),
    name("vgpu_tenant_paused", TENANT_LABELS, "1 while the tenant is paused and launches nothing."),
    name("vgpu_group_share_ratio", GROUP_LABELS, "Part that the weights of groups give it, 0 to 1."),
    name(
        "vgpu_group_used_ratio",
        GROUP_LABELS,
        "Part of all use that the group had, recent use counting more, 0 to 1.",
    ),
    name("vgpu_group_effective_ratio", GROUP_LABELS, "Part that its running tenants get now if all want time, 0 to 1."),
    name("vgpu_group_quota_used_ratio", "group, per, unit, then", "Used part of a quota; above 1 if more was used."),
    name(
        "vgpu_tenant_idle_seconds",
        TENANT_LABELS,
        "For how long the tenant has been idle or stalled; 0 if it is not, no sample if nobody looks.",
    ),
    name(
        "vgpu_tenant_memory_reclaimable_bytes",
        TENANT_LABELS,
        "Memory of an idle tenant that an idle step marked as reclaimable; no sample if nobody looks.",
    ),
    name(
        "hami_vgpu_memory_used_bytes",
        "zone, namespace, pod, container, vdevice_index, device_uuid",
        "As vgpu_tenant_memory_used_bytes.",
    ),
    name(
        "hami_vgpu_memory_limit_bytes",
        "zone, namespace, pod, container, vdevice_index, device_uuid",
        "As vgpu_tenant_memory_limit_bytes; the device's memory without a limit.",
    ),
    name(
        "hami_container_device_utilization_ratio",
        "zone, namespace, pod, container, vdevice_index, device_uuid",
        "As vgpu_tenant_got_ratio, in percent.",
    ),
    name("vGPU_device_memory_usage_in_bytes", HAMI_LABELS, "As vgpu_tenant_memory_used_bytes."),
    name("vGPU_device_memory_limit_in_bytes", HAMI_LABELS, "As hami_vgpu_memory_limit_bytes."),
    name("Device_utilization_desc_of_container", HAMI_LABELS, "As vgpu_tenant_got_ratio, in percent."),
];

/// Registers metric families on first use, so that families without a sample are not exported.
struct MetricsPage {
    registry: Registry,
    levels: HashMap<&'static str, MetricFamily<LevelMetric>>,
    sums: HashMap<&'static str, MetricFamily<SumMetric>>,
    times: HashMap<&'static str, MetricFamily<TimesMetric>>,
}

/// A histogram that was counted elsewhere.
#[derive(Debug, Clone, Default)]
struct TimesMetric(Arc<Mutex<TimeHistogram>>);

impl TypedMetric for TimesMetric {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for TimesMetric {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let times = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The encoder writes the greatest number as infinity.
        let bounds = BUCKET_BOUNDS_NS.map(to_exact_seconds).into_iter().chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> = bounds.zip(times.counts).collect();
        encoder.encode_histogram::<NoLabelSet>(to_exact_seconds(times.sum_ns), times.total(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// Converts ns to seconds, rounded above 2^53 ns.
fn to_exact_seconds(ns: u64) -> f64 {
    to_sample(ns) / 1e9
}

/// Returns the name without the unit and the `_total` that the encoder appends.
fn name_stem(shown: &'static str) -> (&'static str, Option<Unit>) {
    let short = shown.strip_suffix("_total").unwrap_or(shown);
    for (unit, word) in
        [(Unit::Bytes, "_bytes"), (Unit::Seconds, "_seconds"), (Unit::Ratios, "_ratios"), (Unit::Joules, "_joules")]
    {
        // HAMi's names are fixed and encode no unit.
        if shown.starts_with("vgpu_")
            && let Some(stem) = short.strip_suffix(word)
        {
            return (stem, Some(unit));
        }
    }
    (short, None)
}

impl MetricsPage {
    fn new() -> Self {
        Self { registry: Registry::default(), levels: HashMap::new(), sums: HashMap::new(), times: HashMap::new() }
    }

    fn add_level(&mut self, name: &'static str, labels: SampleLabels, value: f64) {
        let registry = &mut self.registry;
        let made = self.levels.entry(name).or_insert_with(|| make_family(registry, name, LevelMetric::default));
        made.get_or_create(&labels).set(value);
    }

    fn sum(&mut self, name: &'static str, labels: SampleLabels, value: f64) {
        let registry = &mut self.registry;
        let made = self.sums.entry(name).or_insert_with(|| make_family(registry, name, SumMetric::default));
        made.get_or_create(&labels).inc_by(value);
    }

    fn add_times(&mut self, name: &'static str, labels: SampleLabels, times: TimeHistogram) {
        let registry = &mut self.registry;
        let made = self.times.entry(name).or_insert_with(|| make_family(registry, name, TimesMetric::default));
        *made.get_or_create(&labels).0.lock().unwrap_or_else(PoisonError::into_inner) = times;
    }
}

fn make_family<M>(registry: &mut Registry, name: &'static str, one: fn() -> M) -> MetricFamily<M>
where
    M: TypedMetric + Clone + Send + Sync + fmt::Debug + EncodeMetric + 'static,
    fn() -> M: MetricConstructor<M>,
{
    let family = MetricFamily::<M>::new_with_constructor(one);
    let says =
        FAMILY_NAMES.iter().find(|known| known.name == name).map_or("", |known| known.says.trim_end_matches('.'));
    debug_assert!(!says.is_empty(), "{name} is not in the table");
    match name_stem(name) {
        (stem, Some(unit)) => registry.register_with_unit(stem, says, unit, family.clone()),
        (stem, None) => registry.register(stem, says, family.clone()),
    }
    family
}

/// Converts a size or a count to a sample, rounded above 2^53.
#[allow(clippy::cast_precision_loss)]
fn to_sample(number: u64) -> f64 {
    number as f64
}

fn truth_sample(truth: bool) -> f64 {
    f64::from(u8::from(truth))
}

/// Returns the status as text; `hami` adds HAMi's names.
#[must_use]
pub fn metrics_text(status: &DaemonStatus, hami: bool) -> String {
    let mut page = MetricsPage::new();
    page.add_level("vgpu_build_info", vec![("version".into(), status.version.clone())], 1.0);
    page.add_level("vgpu_uptime_seconds", vec![], to_sample(status.uptime_seconds));
    if let Some(configuration) = &status.configuration {
        page.add_level("vgpu_configuration_refused", vec![], truth_sample(configuration.refused.is_some()));
    }
    for fault in &status.faults {
        page.add_level("vgpu_faults", vec![("what".into(), fault.what.clone())], 1.0);
    }
    for what in [FindingKind::Uncontrolled, FindingKind::Unregistered, FindingKind::Over, FindingKind::Time] {
        let found = status.findings.iter().filter(|finding| finding.what == what).count();
        page.add_level("vgpu_findings", vec![("kind".into(), what.kind_word().to_owned())], to_sample(found as u64));
    }
    status.groups.iter().for_each(|group| of_group(&mut page, group));
    page.add_level("vgpu_queued_additions", vec![], to_sample(status.queued_additions as u64));
    for device in &status.devices {
        let labels = vec![("device".into(), device_label(device))];
        if let Some(memory) = device.memory {
            page.add_level("vgpu_device_memory_bytes", labels.clone(), to_sample(memory));
        }
        page.add_level("vgpu_device_arbitrated", labels.clone(), truth_sample(device.arbitrated));
        page.add_level("vgpu_device_lost", labels.clone(), truth_sample(device.lost_since.is_some()));
        let promised = status.tenants.iter().flat_map(|tenant| &tenant.devices);
        let promised = promised.filter(|terms| terms.device == device.name).filter_map(|terms| terms.memory_limit);
        let promised = to_sample(promised.fold(0, u64::saturating_add));
        page.add_level("vgpu_device_memory_promised_bytes", labels, promised);
    }
    for tenant in status.tenants.iter().filter(|tenant| !tenant.removed || !tenant.members.is_empty()) {
        of_tenant(&mut page, tenant);
        for (at, terms) in tenant.devices.iter().enumerate() {
            let device = status.devices.iter().find(|device| device.name == terms.device);
            on_device(&mut page, tenant, terms, device);
            if hami {
                as_hami(&mut page, tenant, terms, device, at);
            }
        }
    }
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &page.registry);
    text
}

/// Returns a device's UUID, or its name in the configuration.
fn device_label(device: &DeviceStatus) -> String {
    device.uuid.clone().unwrap_or_else(|| device.name.clone())
}

/// Returns a tenant's name, and the namespace, pod and container that its labels name.
fn tenant_labels(tenant: &TenantStatus) -> SampleLabels {
    let named = POD_NAME_LABELS.into_iter().filter_map(|name| Some((name.into(), pod_label(tenant, name)?)));
    vec![("tenant".into(), tenant.name.clone())].into_iter().chain(named).collect()
}

/// Returns the value of one of [`POD_NAME_LABELS`], if the tenant has the label.
fn pod_label(tenant: &TenantStatus, name: &str) -> Option<String> {
    tenant.bearer.labels.get(name).map(|value| escape_label(value))
}

/// The encoder does not escape values. A label's value has no line break.
fn escape_label(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"")
}

fn of_tenant(page: &mut MetricsPage, tenant: &TenantStatus) {
    let labels = || tenant_labels(tenant);
    page.add_level("vgpu_tenant_info", info(tenant), 1.0);
    page.add_level("vgpu_tenant_members", labels(), to_sample(tenant.members.len() as u64));
    page.sum("vgpu_tenant_connections_refused_total", labels(), to_sample(tenant.refused));
    page.add_level(
        "vgpu_tenant_enforced",
        labels(),
        truth_sample(tenant.mode == "enforce" && tenant.unusable.is_none()),
    );
    page.add_level("vgpu_tenant_paused", labels(), truth_sample(tenant.paused));
    if let Some(idle) = &tenant.idle {
        page.add_level("vgpu_tenant_idle_seconds", labels(), to_sample(idle.idle_seconds));
        page.add_level("vgpu_tenant_memory_reclaimable_bytes", labels(), to_sample(idle.reclaimable));
    }
}

fn of_group(page: &mut MetricsPage, group: &GroupStatus) {
    let labels = || vec![("group".into(), group.name.clone())];
    for (name, value) in [
        ("vgpu_group_share_ratio", group.share),
        ("vgpu_group_used_ratio", group.used),
        ("vgpu_group_effective_ratio", group.effective),
    ] {
        if let Some(percent) = value {
            page.add_level(name, labels(), percent / 100.0);
        }
    }
    for quota in &group.quotas {
        let labels = [("per", &quota.per), ("unit", &quota.unit), ("then", &quota.then)];
        let labels = labels.map(|(name, value)| (name.into(), value.clone()));
        let labels = vec![("group".into(), group.name.clone())].into_iter().chain(labels).collect();
        page.add_level("vgpu_group_quota_used_ratio", labels, quota.used / quota.limit);
    }
}

/// Returns a tenant's group and labels as metric labels. Those names allow only letters, digits and `_`; names that
/// become equal get a number appended, in the order of the original names.
fn info(tenant: &TenantStatus) -> SampleLabels {
    let group = tenant.bearer.group.clone().unwrap_or_default();
    let mut labels: SampleLabels = vec![("tenant".into(), tenant.name.clone()), ("group".into(), group)];
    for (name, value) in &tenant.bearer.labels {
        let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let named = |number: u32| match number {
            1 => format!("label_{plain}"),
            number => format!("label_{plain}_{number}"),
        };
        let free = (1..).map(named).find(|name| labels.iter().all(|(taken, _)| taken != name));
        labels.extend(free.map(|name| (name.into(), escape_label(value))));
    }
    labels
}

fn on_device(page: &mut MetricsPage, tenant: &TenantStatus, terms: &TermsStatus, device: Option<&DeviceStatus>) {
    let name = device.map_or_else(|| terms.device.clone(), device_label);
    let labels = || {
        let mut labels = tenant_labels(tenant);
        labels.push(("device".into(), name.clone()));
        labels
    };
    let mut level = |name, value: Option<f64>| {
        if let Some(value) = value {
            page.add_level(name, labels(), value);
        }
    };
    // Before a member joins there is nothing to measure, so zero is exact.
    let none = || TimeStatus { gpu_seconds: Some(0.0), wanted: Some(0.0), got: Some(0.0), ..TimeStatus::default() };
    let time = terms.time.clone().unwrap_or_else(none);
    level("vgpu_tenant_memory_limit_bytes", terms.memory_limit.map(to_sample));
    level("vgpu_tenant_memory_used_bytes", terms.memory_used.map(to_sample));
    level("vgpu_tenant_memory_peak_bytes", terms.memory_peak.map(to_sample));
    level("vgpu_tenant_sm_limit_ratio", terms.sm_limit.map(|percent| percent / 100.0));
    level("vgpu_tenant_sm_request_ratio", terms.sm_request.map(|percent| percent / 100.0));
    level("vgpu_tenant_weight", Some(f64::from(terms.weight)));
    level("vgpu_tenant_wanted_ratio", time.wanted.map(|percent| percent / 100.0));
    level("vgpu_tenant_got_ratio", time.got.map(|percent| percent / 100.0));
    level("vgpu_tenant_unmeasured", Some(truth_sample(time.unmeasured)));
    level("vgpu_tenant_waiting", Some(to_sample(time.waiting as u64)));
    let mut sum = |name, value: Option<f64>| {
        if let Some(value) = value {
            page.sum(name, labels(), value);
        }
    };
    sum("vgpu_tenant_gpu_seconds_total", time.gpu_seconds);
    sum("vgpu_tenant_wait_seconds_total", Some(time.waited_seconds));
    sum("vgpu_tenant_launches_total", terms.launches.map(to_sample));
    sum("vgpu_tenant_allocations_refused_total", terms.refused_allocations.map(to_sample));
    let service = time.service;
    let promised = |value: f64| (service.promised_ns > 0).then_some(value);
    sum("vgpu_tenant_promised_seconds_total", promised(to_exact_seconds(service.promised_ns)));
    sum("vgpu_tenant_delivered_seconds_total", promised(to_exact_seconds(service.delivered_ns)));
    sum("vgpu_tenant_promise_minutes_total", promised(to_sample(service.minutes)));
    sum("vgpu_tenant_promise_kept_minutes_total", promised(to_sample(service.minutes_kept)));
    for (name, times) in
        [("vgpu_tenant_lease_wait_seconds", service.waits), ("vgpu_tenant_lease_gap_seconds", service.gaps)]
    {
        if times.total() > 0 {
            page.add_times(name, labels(), times);
        }
    }
    for (of, millijoules) in terms.energy.iter().flat_map(|energy| energy.uses()) {
        let mut labels = labels();
        labels.push(("use".into(), of.to_owned()));
        page.sum("vgpu_tenant_energy_joules_total", labels, to_sample(millijoules) / 1000.0);
    }
}

/// Exports the metrics that HAMi's dashboards query. Without labels that name them, the tenant stands for pod and
/// container, and the namespace is empty.
fn as_hami(
    page: &mut MetricsPage,
    tenant: &TenantStatus,
    terms: &TermsStatus,
    device: Option<&DeviceStatus>,
    at: usize,
) {
    let uuid = device.map_or_else(|| terms.device.clone(), device_label);
    let [namespace, pod, container] = POD_NAME_LABELS.map(|name| pod_label(tenant, name));
    let [pod, container] = [pod, container].map(|named| named.unwrap_or_else(|| tenant.name.clone()));
    let (namespace, at) = (namespace.unwrap_or_default(), at.to_string());
    let new = || {
        vec![
            ("zone".into(), "vGPU".to_owned()),
            ("namespace".into(), namespace.clone()),
            ("pod".into(), pod.clone()),
            ("container".into(), container.clone()),
            ("vdevice_index".into(), at.clone()),
            ("device_uuid".into(), uuid.clone()),
        ]
    };
    let old = || {
        vec![
            ("podnamespace".into(), namespace.clone()),
            ("podname".into(), pod.clone()),
            ("ctrname".into(), container.clone()),
            ("vdeviceid".into(), at.clone()),
            ("deviceuuid".into(), uuid.clone()),
        ]
    };
    let limit = terms.memory_limit.or(device.and_then(|device| device.memory));
    let got = terms.time.as_ref().map_or(Some(0.0), |time| time.got);
    for (value, first, second) in [
        (terms.memory_used.map(to_sample), "hami_vgpu_memory_used_bytes", "vGPU_device_memory_usage_in_bytes"),
        (limit.map(to_sample), "hami_vgpu_memory_limit_bytes", "vGPU_device_memory_limit_in_bytes"),
        (got, "hami_container_device_utilization_ratio", "Device_utilization_desc_of_container"),
    ] {
        if let Some(value) = value {
            page.add_level(first, new(), value);
            page.add_level(second, old(), value);
        }
    }
}
