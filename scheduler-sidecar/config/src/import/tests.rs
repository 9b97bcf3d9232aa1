use super::*;
use vgpu_core::units::bytes::Bytes;

fn device(index: u32, parent: Option<&str>, uuid: &str, model: &str) -> FoundDevice {
    FoundDevice {
        index,
        parent: parent.map(str::to_owned),
        uuid: uuid.into(),
        memory: Some(Bytes(1 << 34)),
        model: Some(model.into()),
    }
}

/// Two whole devices, and two MIG instances of a third one.
fn machine() -> Inventory {
    let found = vec![
        device(0, None, "GPU-a", "NVIDIA T4"),
        device(1, None, "GPU-b", "NVIDIA T4"),
        device(2, Some("GPU-c"), "MIG-1", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
        device(2, Some("GPU-c"), "MIG-2", "NVIDIA A100-SXM4-40GB MIG 2g.10gb"),
    ];
    Inventory { found, silent: Vec::new() }
}

fn import(text: &str) -> Result<String, (usize, String)> {
    import_text(text, Some(&machine())).map_err(|why| (why.line, why.words))
}

#[track_caller]
fn refused(text: &str) -> (usize, String) {
    import(text).unwrap_err()
}

const PLUGIN: &str = "\
version: v1
flags:
  migStrategy: mixed
  plugin:
    passDeviceSpecs: false
sharing:
  timeSlicing:
    renameByDefault: false
    failRequestsGreaterThanOne: true
    resources:
      - name: nvidia.com/gpu
        replicas: 10
      - name: nvidia.com/mig-1g.5gb
        rename: nvidia.com/small
        replicas: 2
";

#[test]
fn replicas_of_time_slicing_become_slots_of_each_device_and_every_other_key_is_told() {
    let expected = "\
# Imported from a file of NVIDIA's device plugin.
# line 3: flags.migStrategy = mixed: MIG instances have resources of their own, named after their profile
# line 5: flags.plugin has no counterpart
# line 8: sharing.timeSlicing.renameByDefault = false: the names of resources are the cluster's; tenants are named after the resource
# line 9: sharing.timeSlicing.failRequestsGreaterThanOne = true: a container gets one slot; for a larger part give it a tenant of its own

[[tenant]] # line 11
name = \"gpu-0\"
devices = [0]
# Each slot has 1/10 of the memory, and is guaranteed 1/10 of the time.
replicas = 10

[[tenant]] # line 11
name = \"gpu-1\"
devices = [1]
# Each slot has 1/10 of the memory, and is guaranteed 1/10 of the time.
replicas = 10

[[tenant]] # line 13
name = \"small-MIG-1\"
devices = [\"MIG-1\"]
# Each slot has 1/2 of the memory, and is guaranteed 1/2 of the time.
replicas = 2
";
    assert_eq!(import(PLUGIN).unwrap(), expected);
}

#[test]
fn a_config_map_around_the_file_changes_the_lines_alone() {
    let indented: String = PLUGIN.lines().map(|line| format!("    {line}\n")).collect();
    let map = format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\ndata:\n  any: |-\n{indented}");
    let alone = import(PLUGIN).unwrap();
    let inside = import(&map).unwrap();
    assert!(inside.contains("[[tenant]] # line 17\nname = \"gpu-0\""), "{inside}");
    let without_lines = |text: &str| {
        let strip = |line: &str| line.split_once("line ").map_or(line.to_owned(), |(head, _)| head.to_owned());
        text.lines().map(strip).collect::<Vec<_>>()
    };
    assert_eq!(without_lines(&alone), without_lines(&inside));
    let two = format!("{map}  other: |-\n    version: v1\n");
    assert!(refused(&two).1.contains("one entry; this one has any, other"), "{:?}", refused(&two));
}

#[test]
fn devices_are_chosen_by_number_count_instance_and_uuid() {
    let chosen = |devices: &str, name: &str| {
        let text = format!(
            "version: v1\nsharing:\n  mps:\n    resources:\n    - name: nvidia.com/{name}\n      devices: {devices}\n      replicas: 3\n"
        );
        let result = import(&text).unwrap();
        result.lines().filter_map(|line| line.strip_prefix("devices = ").map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(chosen("all", "gpu"), ["[0]", "[1]"]);
    assert_eq!(chosen("1", "gpu"), ["[0]"]);
    assert_eq!(chosen("[1, GPU-a]", "gpu"), ["[1]", "[\"GPU-a\"]"]);
    assert_eq!(chosen("[\"2:1\"]", "mig-2g.10gb"), ["[\"MIG-2\"]"]);
}

#[test]
fn a_compose_file_with_multi_tenant_gpu_becomes_slots_of_the_instances_of_its_profile() {
    let both = "services: {}\nx-internal-integrations:\n  multiTenantGpu:\n    timeSlicingReplicas: 2\n    migProfile: 1g.5gb\n    idleMinutesBeforeScalingDown: 2\n    idleThreshold: 20\n    enableAutoStop: true\n";
    let expected = "\
# Imported from the block x-internal-integrations of a compose file.
# line 8: x-internal-integrations.multiTenantGpu.enableAutoStop = true: an [[on_event]] for idle.began stops it, see docs/actions.md

[[tenant]] # line 4
name = \"gpu-MIG-1\"
devices = [\"MIG-1\"]
# Each slot has 1/2 of the memory, and is guaranteed 1/2 of the time.
replicas = 2
idle_minutes = 2
idle_threshold = 20
";
    assert_eq!(import(both).unwrap(), expected);
    let alone =
        "services:\n  a:\n    x-internal-integrations:\n      multiTenantGpu:\n        timeSlicingReplicas: 4\n";
    assert_eq!(import(alone).unwrap().matches("replicas = 4").count(), 2, "one entry for each whole device");
}

#[test]
fn wrong_values_name_line_key_value_and_accepted_ones() {
    let plugin = |from: &str, to: &str| refused(&PLUGIN.replace(from, to));
    let (line, words) = plugin("replicas: 10", "replicas: 1");
    assert_eq!(
        (line, words.as_str()),
        (12, "sharing.timeSlicing.resources.replicas is 1; accepted: a whole number from 2 to 100")
    );
    assert_eq!(plugin("mixed", "some"), (3, "flags.migStrategy is \"some\"; accepted: none, single or mixed".into()));
    assert_eq!(plugin("version: v1", "version: v2"), (1, "version is \"v2\"; accepted: v1".into()));
    assert_eq!(plugin("timeSlicing:", "timeSlice:").0, 8);
    assert!(plugin("name: nvidia.com/gpu", "name: amd.com/cpu").1.contains("accepted: nvidia.com/gpu"));
    let compose = |block: &str| refused(&format!("x-internal-integrations:\n  multiTenantGpu:\n    {block}\n"));
    assert_eq!(compose("migProfile: 5g.5gb").0, 3);
    assert!(
        compose("migProfile: 7g.40gb")
            .1
            .ends_with("accepted: the profile of an instance of this machine: 1g.5gb, 2g.10gb")
    );
    assert!(compose("timeSlicingReplicas: many").1.contains("is \"many\"; accepted: a whole number from 1 to 100"));
    assert!(refused("a: 1\n").1.contains("no known form"));
    assert!(refused("a: [\n").1.contains("is not YAML"));
}

#[test]
fn without_a_driver_slots_are_of_device_0_and_the_file_says_so() {
    let text = import_text(PLUGIN, None).unwrap();
    assert!(text.contains("# line 11: the driver did not answer, so these are slots of device 0"), "{text}");
    assert_eq!(text.matches("[[tenant]]").count(), 1, "{text}");
    assert!(text.contains("# line 13: nvidia.com/mig-1g.5gb: this machine has no such device"), "{text}");
}
