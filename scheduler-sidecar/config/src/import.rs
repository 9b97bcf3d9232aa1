//! Turns the configuration of another way to share a device into one of this daemon.
//!
//! Two forms are known: the file of NVIDIA's device plugin for Kubernetes, alone or in a ConfigMap, and the block
//! `x-internal-integrations` of a compose file. Every key that is read gets a place in the result, or a comment there
//! that says why it has none.

mod compose;
mod nvidia;
mod yaml;

use std::fmt::Write as _;

use saphyr::{LoadableYamlNode as _, MarkedYaml};

use self::yaml::Node;
use super::inventory::{FoundDevice, Inventory};

/// Most slots of one device.
const MAX_REPLICAS: u32 = 100;

/// Errors of an imported file, each with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportError {
    /// Line of the error, from 1.
    pub line: usize,
    /// The key, its value, and the accepted values.
    pub words: String,
}

/// One `[[tenant]]` section of the result: `replicas` equal slots (tenants) on one device, from `line` of the import.
#[derive(Debug, PartialEq, Eq)]
struct Slots {
    name: String,
    device: DeviceRef,
    replicas: u32,
    line: usize,
}

/// A device as the file of this daemon names it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DeviceRef {
    Number(u32),
    Uuid(String),
}

impl DeviceRef {
    fn of(device: &FoundDevice) -> Self {
        if device.parent.is_some() { Self::Uuid(device.uuid.clone()) } else { Self::Number(device.index) }
    }

    /// The last part of the name of its slots.
    fn suffix(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Uuid(uuid) => uuid.clone(),
        }
    }

    fn to_toml(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Uuid(uuid) => format!("{uuid:?}"),
        }
    }
}

/// The result, before it is written.
#[derive(Debug, Default)]
struct Imported {
    slots: Vec<Slots>,
    /// Further keys of each entry, as lines of the file.
    settings: Vec<String>,
    /// Line, and words about something without a counterpart.
    notes: Vec<(usize, String)>,
}

impl Imported {
    fn note(&mut self, line: usize, words: impl Into<String>) {
        self.notes.push((line, words.into()));
    }
}

/// Returns a configuration file of this daemon for `text`. `inventory` are the machine's devices; without it, slots
/// are of device 0.
///
/// # Errors
/// Names the line, the key, the value and what is accepted: the text is not YAML, is of no known form, or has a wrong
/// value.
pub fn import_text(text: &str, inventory: Option<&Inventory>) -> Result<String, ImportError> {
    let documents = MarkedYaml::load_from_str(text)
        .map_err(|why| ImportError { line: why.marker().line(), words: format!("is not YAML: {why}") })?;
    let mut imported = Imported::default();
    let mut source = None;
    for document in &documents {
        let root = Node::root(document);
        let found = if let Some(block) = compose::find_block(&root) {
            compose::import(&block?, inventory, &mut imported)?;
            "the block x-internal-integrations of a compose file"
        } else if let Some(file) = nvidia::find_file(&root)? {
            file.import(inventory, &mut imported)?;
            "a file of NVIDIA's device plugin"
        } else {
            continue;
        };
        source = Some(found);
    }
    match source {
        Some(source) => Ok(write_toml(source, &imported)),
        None => Err(ImportError {
            line: 1,
            words:
                "is of no known form; accepted: a file of NVIDIA's device plugin (sharing.timeSlicing or sharing.mps), \
                 a ConfigMap with one, or a compose file with x-internal-integrations.multiTenantGpu"
                    .into(),
        }),
    }
}

/// Devices that programs compute on: whole ones, or the MIG instances of one profile.
fn select_devices<'a>(inventory: &'a Inventory, profile: Option<&str>) -> Vec<&'a FoundDevice> {
    let is_wanted = |device: &&FoundDevice| match profile {
        None => device.parent.is_none(),
        Some(profile) => device.parent.is_some() && profile_of(device) == Some(profile),
    };
    inventory.found.iter().filter(is_wanted).collect()
}

/// The profile of a MIG instance, as its model's name ends: `MIG 1g.5gb`.
fn profile_of(device: &FoundDevice) -> Option<&str> {
    device.model.as_deref()?.rsplit_once("MIG ").map(|(_, profile)| profile)
}

/// Reads the name of a MIG profile, like `1g.5gb`.
fn read_profile(node: &Node<'_>) -> Result<String, ImportError> {
    const ACCEPTED: &str = "the name of a MIG profile, like 1g.5gb: 1, 2, 3, 4 or 7 slices and the memory";
    let text = node.text(ACCEPTED)?;
    let is_profile = || {
        let (slices, rest) = text.split_once("g.")?;
        let (memory, _) = rest.split_once("gb")?;
        let is_known = ["1", "2", "3", "4", "7"].contains(&slices) && memory.parse::<u16>().is_ok();
        is_known.then_some(())
    };
    if is_profile().is_some() { Ok(text) } else { Err(node.wrong(ACCEPTED)) }
}

fn write_toml(source: &str, imported: &Imported) -> String {
    let mut text = format!("# Imported from {source}.\n");
    for (line, words) in &imported.notes {
        let _ = writeln!(text, "# line {line}: {words}");
    }
    for slots in &imported.slots {
        let Slots { name, device, replicas, line } = slots;
        let _ = write!(text, "\n[[tenant]] # line {line}\nname = {name:?}\ndevices = [{}]\n", device.to_toml());
        if *replicas > 1 {
            let _ = writeln!(
                text,
                "# Each slot has 1/{replicas} of the memory, and is guaranteed 1/{replicas} of the time.\nreplicas = {replicas}"
            );
        }
        for line in &imported.settings {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

#[cfg(test)]
mod tests;
