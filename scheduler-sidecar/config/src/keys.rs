//! Lists every key of the configuration file, by section.
//!
//! [`super::read`] refuses keys that are not listed here. Tests compare this list with docs/vgpud.md, which documents
//! the accepted values, defaults and effects, and compare the documented values with the program
//! (tests/config_docs.rs, tests/config_reference.rs). The constants of `[time]` have their own table,
//! [`super::time::CONSTANTS`].

/// A key that a section of the configuration file accepts.
#[derive(Debug, Clone, Copy)]
pub struct ConfigKey {
    /// The key as written in the file.
    pub name: &'static str,
}

const fn obeyed_key(name: &'static str) -> ConfigKey {
    ConfigKey { name }
}

/// A section of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigSection {
    /// The file's top level, whose keys are the sections.
    File,
    /// `[daemon]`
    Daemon,
    /// `[log]`
    Log,
    /// `[metrics]`
    Metrics,
    /// `[proof]`
    Proof,
    /// `[record]`
    Record,
    /// `[defaults]`
    Defaults,
    /// `[template.NAME]`
    Template,
    /// `[[device]]`
    Device,
    /// `[[tenant]]`
    Tenant,
    /// `[[tenant.device]]`
    Override,
    /// `[[group]]`
    Group,
    /// `[[group.quota]]`
    Quota,
    /// `[[window]]`
    Window,
    /// `[[booking]]`
    Booking,
    /// `[[on_event]]`
    OnEvent,
}

impl ConfigSection {
    /// All sections.
    pub const ALL: [Self; 16] = [
        Self::File,
        Self::Daemon,
        Self::Log,
        Self::Metrics,
        Self::Proof,
        Self::Record,
        Self::Defaults,
        Self::Template,
        Self::Device,
        Self::Tenant,
        Self::Override,
        Self::Group,
        Self::Quota,
        Self::Window,
        Self::Booking,
        Self::OnEvent,
    ];

    /// Returns the section's name as messages show it before a key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Daemon => "daemon",
            Self::Log => "log",
            Self::Metrics => "metrics",
            Self::Proof => "proof",
            Self::Record => "record",
            Self::Defaults => "defaults",
            Self::Template => "template",
            Self::Device => "device",
            Self::Tenant => "tenant",
            Self::Override => "tenant.device",
            Self::Group => "group",
            Self::Quota => "group.quota",
            Self::Window => "window",
            Self::Booking => "booking",
            Self::OnEvent => "on_event",
        }
    }

    /// Returns the section's keys.
    pub fn section_keys(self) -> impl Iterator<Item = &'static ConfigKey> {
        let (own, shared): (&[ConfigKey], &[&[ConfigKey]]) = match self {
            Self::File => (FILE_KEYS, &[]),
            Self::Daemon => (DAEMON_KEYS, &[]),
            Self::Log => (LOG_KEYS, &[]),
            Self::Metrics => (METRICS_KEYS, &[]),
            Self::Proof => (PROOF_KEYS, &[]),
            Self::Record => (RECORD_KEYS, &[]),
            Self::Defaults | Self::Template => (&[], &[POLICY_KEYS, TERMS_KEYS]),
            Self::Device => (DEVICE_KEYS, &[]),
            Self::Tenant => (TENANT_KEYS, &[POLICY_KEYS, TERMS_KEYS]),
            Self::Override => (OVERRIDE_KEYS, &[TERMS_KEYS]),
            Self::Group => (GROUP_KEYS, &[]),
            Self::Quota => (QUOTA_KEYS, &[]),
            Self::Window => (WINDOW_KEYS, &[TERMS_KEYS]),
            Self::Booking => (BOOKING_KEYS, &[]),
            Self::OnEvent => (ON_EVENT_KEYS, &[]),
        };
        own.iter().chain(shared.iter().copied().flatten())
    }

    /// Returns true if `name` is a key of the section.
    #[must_use]
    pub fn has_key(self, name: &str) -> bool {
        self.section_keys().any(|key| key.name == name)
    }
}

const FILE_KEYS: &[ConfigKey] = &[
    obeyed_key("daemon"),
    obeyed_key("log"),
    obeyed_key("metrics"),
    obeyed_key("proof"),
    obeyed_key("record"),
    obeyed_key("time"),
    obeyed_key("defaults"),
    obeyed_key("template"),
    obeyed_key("device"),
    obeyed_key("tenant"),
    obeyed_key("group"),
    obeyed_key("window"),
    obeyed_key("booking"),
    obeyed_key("on_event"),
];

const DAEMON_KEYS: &[ConfigKey] = &[
    obeyed_key("run_dir"),
    obeyed_key("state_dir"),
    obeyed_key("admin_socket"),
    obeyed_key("max_connections"),
    obeyed_key("log"),
];

const RECORD_KEYS: &[ConfigKey] =
    &[obeyed_key("keep"), obeyed_key("keep_fine"), obeyed_key("exact"), obeyed_key("half_life")];

const LOG_KEYS: &[ConfigKey] =
    &[obeyed_key("file"), obeyed_key("format"), obeyed_key("max_size"), obeyed_key("keep"), obeyed_key("audit")];

const METRICS_KEYS: &[ConfigKey] = &[obeyed_key("listen"), obeyed_key("hami_names")];

const PROOF_KEYS: &[ConfigKey] = &[
    obeyed_key("enabled"),
    obeyed_key("interval"),
    obeyed_key("devices"),
    obeyed_key("allow"),
    obeyed_key("slack"),
    obeyed_key("action"),
    obeyed_key("grace"),
    obeyed_key("dry_run"),
];

const DEVICE_KEYS: &[ConfigKey] = &[obeyed_key("id"), obeyed_key("memory"), obeyed_key("overcommit")];

const TENANT_KEYS: &[ConfigKey] = &[
    obeyed_key("name"),
    obeyed_key("template"),
    obeyed_key("devices"),
    obeyed_key("replicas"),
    obeyed_key("gang"),
    obeyed_key("deadline"),
    obeyed_key("gpu_hours_needed"),
    obeyed_key("device"),
];

const OVERRIDE_KEYS: &[ConfigKey] = &[obeyed_key("id")];

const GROUP_KEYS: &[ConfigKey] = &[
    obeyed_key("name"),
    obeyed_key("weight"),
    obeyed_key("memory_limit"),
    obeyed_key("sm_limit"),
    obeyed_key("quota"),
];

const QUOTA_KEYS: &[ConfigKey] =
    &[obeyed_key("per"), obeyed_key("time_zone"), obeyed_key("gpu_hours"), obeyed_key("gib_hours"), obeyed_key("then")];

const WINDOW_KEYS: &[ConfigKey] = &[
    obeyed_key("name"),
    obeyed_key("days"),
    obeyed_key("from"),
    obeyed_key("to"),
    obeyed_key("time_zone"),
    obeyed_key("tenants"),
    obeyed_key("groups"),
    obeyed_key("devices"),
    obeyed_key("paused"),
];

const BOOKING_KEYS: &[ConfigKey] = &[
    obeyed_key("name"),
    obeyed_key("tenant"),
    obeyed_key("devices"),
    obeyed_key("from"),
    obeyed_key("for"),
    obeyed_key("time_zone"),
    obeyed_key("sm_request"),
    obeyed_key("memory_limit"),
];
const ON_EVENT_KEYS: &[ConfigKey] =
    &[obeyed_key("events"), obeyed_key("exec"), obeyed_key("timeout"), obeyed_key("at_once")];

/// Keys that tenants, templates and the defaults share.
const POLICY_KEYS: &[ConfigKey] = &[
    obeyed_key("gpu"),
    obeyed_key("uids"),
    obeyed_key("mode"),
    obeyed_key("strict"),
    obeyed_key("on_error"),
    obeyed_key("on_loss"),
    obeyed_key("group"),
    obeyed_key("labels"),
    obeyed_key("idle_minutes"),
    obeyed_key("idle_threshold"),
    obeyed_key("over_minutes"),
    obeyed_key("over_threshold"),
    obeyed_key("stalled_minutes"),
    obeyed_key("idle_steps"),
    obeyed_key("idle_suspend"),
    obeyed_key("idle_grace"),
    obeyed_key("idle_dry_run"),
];

/// Keys whose value may differ from device to device.
const TERMS_KEYS: &[ConfigKey] = &[
    obeyed_key("memory_limit"),
    obeyed_key("sm_limit"),
    obeyed_key("sm_request"),
    obeyed_key("weight"),
    obeyed_key("class"),
    obeyed_key("quantum"),
];
