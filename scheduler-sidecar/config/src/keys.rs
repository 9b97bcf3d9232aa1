//! Lists every key of the configuration file, by section.
//!
//! [`super::read`] refuses keys that are not listed here. Tests compare this list with docs/vgpud.md, which documents
//! the accepted values, defaults and effects, and compare the documented values with the program
//! (tests/config_docs.rs, tests/config_reference.rs). The constants of `[time]` have their own table,
//! [`super::time::CONSTANTS`].

/// A key that a section of the configuration file accepts.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// The key as written in the file.
    pub name: &'static str,
}

const fn obeyed(name: &'static str) -> Key {
    Key { name }
}

/// A section of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
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
}

impl Section {
    /// All sections.
    pub const ALL: [Self; 11] = [
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
        }
    }

    /// Returns the section's keys.
    pub fn keys(self) -> impl Iterator<Item = &'static Key> {
        let (own, shared): (&[Key], &[&[Key]]) = match self {
            Self::File => (FILE, &[]),
            Self::Daemon => (DAEMON, &[]),
            Self::Log => (LOG, &[]),
            Self::Metrics => (METRICS, &[]),
            Self::Proof => (PROOF, &[]),
            Self::Record => (RECORD, &[]),
            Self::Defaults | Self::Template => (&[], &[POLICY, TERMS]),
            Self::Device => (DEVICE, &[]),
            Self::Tenant => (TENANT, &[POLICY, TERMS]),
            Self::Override => (OVERRIDE, &[TERMS]),
        };
        own.iter().chain(shared.iter().copied().flatten())
    }

    /// Returns true if `name` is a key of the section.
    #[must_use]
    pub fn has(self, name: &str) -> bool {
        self.keys().any(|key| key.name == name)
    }
}

const FILE: &[Key] = &[
    obeyed("daemon"),
    obeyed("log"),
    obeyed("metrics"),
    obeyed("proof"),
    obeyed("record"),
    obeyed("time"),
    obeyed("defaults"),
    obeyed("template"),
    obeyed("device"),
    obeyed("tenant"),
];

const DAEMON: &[Key] =
    &[obeyed("run_dir"), obeyed("state_dir"), obeyed("admin_socket"), obeyed("max_connections"), obeyed("log")];

const RECORD: &[Key] = &[obeyed("keep"), obeyed("keep_fine"), obeyed("exact")];

const LOG: &[Key] = &[obeyed("file"), obeyed("format"), obeyed("max_size"), obeyed("keep"), obeyed("audit")];

const METRICS: &[Key] = &[obeyed("listen"), obeyed("hami_names")];

const PROOF: &[Key] = &[
    obeyed("enabled"),
    obeyed("interval"),
    obeyed("devices"),
    obeyed("allow"),
    obeyed("slack"),
    obeyed("action"),
    obeyed("grace"),
    obeyed("dry_run"),
];

const DEVICE: &[Key] = &[obeyed("id"), obeyed("memory"), obeyed("overcommit")];

const TENANT: &[Key] = &[obeyed("name"), obeyed("template"), obeyed("devices"), obeyed("replicas"), obeyed("device")];

const OVERRIDE: &[Key] = &[obeyed("id")];

/// Keys that tenants, templates and the defaults share.
const POLICY: &[Key] = &[
    obeyed("gpu"),
    obeyed("uids"),
    obeyed("mode"),
    obeyed("strict"),
    obeyed("on_error"),
    obeyed("on_loss"),
    obeyed("group"),
    obeyed("labels"),
];

/// Keys whose value may differ from device to device.
const TERMS: &[Key] = &[
    obeyed("memory_limit"),
    obeyed("sm_limit"),
    obeyed("sm_request"),
    obeyed("weight"),
    obeyed("class"),
    obeyed("quantum"),
];
