//! The file of NVIDIA's device plugin for Kubernetes.

use saphyr::{LoadableYamlNode as _, MarkedYaml};

use super::yaml::Node;
use super::{DeviceRef, ImportError, Imported, MAX_REPLICAS, Slots, select_devices};
use crate::inventory::Inventory;

/// A plugin's file.
pub enum PluginFile<'a> {
    /// The document itself.
    Document(Node<'a>),
    /// An entry of a ConfigMap: its text, and the number of lines of the ConfigMap before it.
    Entry(String, usize),
}

/// Returns the plugin's file in a document; `None` if it is none.
///
/// # Errors
/// A ConfigMap has several entries, and only the cluster knows which one is meant.
pub fn find_file<'a>(root: &Node<'a>) -> Result<Option<PluginFile<'a>>, ImportError> {
    if root.get("sharing").is_some() {
        return Ok(Some(PluginFile::Document(root.clone())));
    }
    let is_map = root.get("kind").is_some_and(|kind| kind.text("").is_ok_and(|kind| kind == "ConfigMap"));
    let Some(data) = root.get("data").filter(|_| is_map) else { return Ok(None) };
    let entries: Vec<_> = data.entries().collect();
    match entries.as_slice() {
        [(_, entry)] => {
            let text = entry.text("the text of a file of NVIDIA's device plugin")?;
            Ok(Some(PluginFile::Entry(text, entry.line() - 1)))
        }
        _ => {
            let names: Vec<&str> = entries.iter().map(|(name, _)| *name).collect();
            Err(data.wrong(&format!("a ConfigMap with one entry; this one has {}", names.join(", "))))
        }
    }
}

impl PluginFile<'_> {
    /// Reads the file.
    pub fn import(&self, inventory: Option<&Inventory>, imported: &mut Imported) -> Result<(), ImportError> {
        match self {
            Self::Document(root) => import(root, inventory, imported),
            Self::Entry(text, before) => {
                let shift = |why: ImportError| ImportError { line: why.line + before, ..why };
                let documents = MarkedYaml::load_from_str(text).map_err(|why| {
                    shift(ImportError { line: why.marker().line(), words: format!("is not YAML: {why}") })
                })?;
                let mut inner = Imported::default();
                for document in &documents {
                    import(&Node::root(document), inventory, &mut inner).map_err(shift)?;
                }
                imported.notes.extend(inner.notes.into_iter().map(|(line, words)| (line + before, words)));
                let slots = inner.slots.into_iter().map(|slots| Slots { line: slots.line + before, ..slots });
                imported.slots.extend(slots);
                Ok(())
            }
        }
    }
}

fn import(root: &Node<'_>, inventory: Option<&Inventory>, imported: &mut Imported) -> Result<(), ImportError> {
    let mut strategy = String::from("none");
    for (key, value) in root.entries() {
        match key {
            "version" if value.text("v1")? != "v1" => return Err(value.wrong("v1")),
            "version" | "sharing" => {}
            "flags" => {
                for (key, flag) in value.entries() {
                    if key == "migStrategy" {
                        strategy = read_strategy(&flag, imported)?;
                    } else {
                        imported.note(flag.line(), format!("{} has no counterpart", flag.path()));
                    }
                }
            }
            _ => imported.note(value.line(), format!("{} has no counterpart", value.path())),
        }
    }
    let sharing = root.get("sharing").ok_or_else(|| root.wrong("a table sharing with timeSlicing or mps"))?;
    let mut found = false;
    for (key, value) in sharing.entries() {
        if !["timeSlicing", "mps"].contains(&key) {
            return Err(value.wrong("timeSlicing or mps in its place"));
        }
        found = true;
        import_sharing(&value, &strategy, inventory, imported)?;
    }
    if found { Ok(()) } else { Err(sharing.wrong("a table with timeSlicing or mps")) }
}

fn read_strategy(flag: &Node<'_>, imported: &mut Imported) -> Result<String, ImportError> {
    const ACCEPTED: &str = "none, single or mixed";
    let strategy = flag.text(ACCEPTED)?;
    let words = match strategy.as_str() {
        "none" => "a device with MIG enabled is its instances here in any case",
        "single" => "the MIG instances take the place of the devices, as here",
        "mixed" => "MIG instances have resources of their own, named after their profile",
        _ => return Err(flag.wrong(ACCEPTED)),
    };
    imported.note(flag.line(), format!("{} = {strategy}: {words}", flag.path()));
    Ok(strategy)
}

fn import_sharing(
    sharing: &Node<'_>,
    strategy: &str,
    inventory: Option<&Inventory>,
    imported: &mut Imported,
) -> Result<(), ImportError> {
    for (key, value) in sharing.entries() {
        let words = match key {
            "resources" => continue,
            "renameByDefault" => "the names of resources are the cluster's; tenants are named after the resource",
            "failRequestsGreaterThanOne" => "a container gets one slot; for a larger part give it a tenant of its own",
            _ => "no counterpart",
        };
        imported.note(value.line(), format!("{} = {}: {words}", value.path(), value.shown()));
    }
    let resources = sharing.get("resources").ok_or_else(|| sharing.wrong("a table with a list of resources"))?;
    let items = resources.items().ok_or_else(|| resources.wrong("a list of resources"))?;
    for item in items {
        import_resource(&item, strategy, inventory, imported)?;
    }
    Ok(())
}

fn import_resource(
    resource: &Node<'_>,
    strategy: &str,
    inventory: Option<&Inventory>,
    imported: &mut Imported,
) -> Result<(), ImportError> {
    let needed = |key: &str| resource.get(key).ok_or_else(|| resource.wrong(&format!("a table with {key}")));
    let (name_node, replicas) = (needed("name")?, needed("replicas")?);
    let name = name_node.text("the name of a resource, like nvidia.com/gpu")?;
    let count = replicas.number(2..=MAX_REPLICAS)?;
    let short = name.rsplit('/').next().unwrap_or_default();
    let mut shown = short.to_owned();
    let mut chosen = None;
    for (key, value) in resource.entries() {
        match key {
            "name" | "replicas" => {}
            "rename" => {
                let renamed = value.text("a name")?;
                shown = renamed.rsplit('/').next().unwrap_or_default().to_owned();
            }
            "devices" => chosen = Some(value),
            _ => imported.note(value.line(), format!("{} = {} has no counterpart", value.path(), value.shown())),
        }
    }
    let is_name = |part: char| part.is_ascii_alphanumeric() || "-_.".contains(part);
    let shown: String = shown.chars().map(|part| if is_name(part) { part } else { '-' }).collect();
    let profile = short.strip_prefix("mig-");
    if profile.is_none() && short != "gpu" {
        return Err(name_node.wrong("nvidia.com/gpu, or nvidia.com/mig-PROFILE"));
    }
    let devices = match (inventory, chosen) {
        (Some(inventory), chosen) => {
            let all = match profile {
                None if strategy == "single" => inventory.found.iter().collect(),
                profile => select_devices(inventory, profile),
            };
            let all: Vec<DeviceRef> = all.into_iter().map(DeviceRef::of).collect();
            match chosen {
                None => all,
                Some(node) => choose_devices(&node, inventory, all)?,
            }
        }
        (None, Some(node)) => choose_devices(&node, &Inventory::default(), Vec::new())?,
        (None, None) => Vec::new(),
    };
    let devices = if devices.is_empty() && inventory.is_none() && profile.is_none() {
        imported.note(
            resource.line(),
            "the driver did not answer, so these are slots of device 0; repeat them for each device",
        );
        vec![DeviceRef::Number(0)]
    } else {
        devices
    };
    if devices.is_empty() {
        imported.note(resource.line(), format!("{name}: this machine has no such device"));
    }
    imported.slots.extend(devices.into_iter().map(|device| Slots {
        name: format!("{shown}-{}", device.suffix()),
        device,
        replicas: count,
        line: resource.line(),
    }));
    Ok(())
}

/// Reads the key `devices`: `all`, a number of devices, or a list of numbers, `NUMBER:INSTANCE` and UUIDs.
fn choose_devices(node: &Node<'_>, inventory: &Inventory, all: Vec<DeviceRef>) -> Result<Vec<DeviceRef>, ImportError> {
    const ACCEPTED: &str = "all, a number of devices, or a list of device numbers, NUMBER:INSTANCE and UUIDs";
    let Some(items) = node.items() else {
        if node.text(ACCEPTED)? == "all" {
            return Ok(all);
        }
        let count = node.number(1..=u32::MAX).map_err(|_| node.wrong(ACCEPTED))?;
        return Ok(all.into_iter().take(count as usize).collect());
    };
    let one = |item: Node<'_>| {
        let text = item.text(ACCEPTED)?;
        if text.starts_with("GPU-") || text.starts_with("MIG-") {
            return Ok(DeviceRef::Uuid(text));
        }
        match text.split_once(':') {
            None => text.parse().map(DeviceRef::Number).map_err(|_| item.wrong(ACCEPTED)),
            Some((device, instance)) => {
                let (device, instance): (u32, usize) =
                    device.parse().ok().zip(instance.parse().ok()).ok_or_else(|| item.wrong(ACCEPTED))?;
                let mut of_device =
                    inventory.found.iter().filter(|found| found.index == device && found.parent.is_some());
                let found = of_device.nth(instance);
                found.map(DeviceRef::of).ok_or_else(|| item.wrong("a MIG instance of this machine"))
            }
        }
    };
    items.into_iter().map(one).collect()
}
