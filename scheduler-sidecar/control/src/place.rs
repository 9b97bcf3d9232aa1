//! Finds the container and the pod of a process from the path of its control group. Pure: text in, place out.
//!
//! Every engine names control groups after its containers, so no engine must be asked. An unrecognised path is no
//! container. A user who may create groups below its own (a systemd user, a container with writable groups) chooses
//! their names. Then the process can appear in another container, and its names are escaped before they reach a
//! terminal.

use serde::{Deserialize, Serialize};

use vgpu_config::problem::escape_value;

/// The engine that created the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContainerEngine {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// containerd, used by Kubernetes, by nerdctl or directly.
    Containerd,
    /// CRI-O.
    CriO,
    /// LXC.
    Lxc,
    /// systemd-nspawn.
    Nspawn,
    /// Slurm; the place is a job.
    Slurm,
    /// An unknown engine that names groups by 64 hexadecimal digits.
    Unknown,
}

/// Container, pod or systemd unit that a process runs in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessPlace {
    /// Engine of the process's container; null if it is in none.
    pub engine: Option<ContainerEngine>,
    /// Id of the container, or its name for engines without ids.
    pub id: Option<String>,
    /// Name of the container.
    pub name: Option<String>,
    /// UID of the Kubernetes pod of the container.
    pub pod: Option<String>,
    /// The systemd unit, for a process outside of containers.
    pub unit: Option<String>,
}

impl ProcessPlace {
    /// Returns the short text to show: the name, the beginning of the id, or the unit.
    #[must_use]
    pub fn short_text(&self) -> Option<String> {
        // Any user who may create groups can choose their names.
        let id = self.id.as_ref().map(|id| if is_id(id) { id.chars().take(12).collect() } else { escape_value(id) });
        self.name.clone().or(id).or_else(|| self.unit.as_deref().map(escape_value))
    }
}

/// Parses /proc/PID/cgroup. Of several hierarchies, one that names a container counts, else one that names a unit.
#[must_use]
pub fn parse_cgroup(cgroup: &str) -> ProcessPlace {
    let paths = || cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let places = || paths().map(of_path);
    places()
        .find(|place| place.engine.is_some())
        .or_else(|| places().find(|place| place.unit.is_some()))
        .unwrap_or_default()
}

fn of_path(path: &str) -> ProcessPlace {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    // containerd with the systemd driver names a group slice:cri-containerd:id.
    let pod = parts.iter().rev().flat_map(|part| part.split(':')).find_map(parse_pod);
    // Containers nest, and the innermost counts, so search from the end of the path.
    for (at, part) in parts.iter().enumerate().rev() {
        let above = at.checked_sub(1).and_then(|at| parts.get(at)).copied().unwrap_or_default();
        if let Some((engine, id)) = parse_container(part, above, pod.is_some()) {
            return ProcessPlace { engine: Some(engine), id: Some(id), pod, ..ProcessPlace::default() };
        }
    }
    let job = parts.iter().find_map(|part| part.strip_prefix("job_"));
    if let Some(job) = job.filter(|_| parts.iter().any(|part| part.starts_with("slurm"))) {
        return ProcessPlace {
            engine: Some(ContainerEngine::Slurm),
            id: Some(format!("job {job}")),
            ..ProcessPlace::default()
        };
    }
    let unit = parts.iter().rev().find(|part| part.ends_with(".service") || part.ends_with(".scope"));
    ProcessPlace { unit: unit.map(|unit| unescape_systemd(unit)), ..ProcessPlace::default() }
}

/// Parses a group that an engine created into engine and container; `above` is the enclosing group.
fn parse_container(part: &str, above: &str, in_pod: bool) -> Option<(ContainerEngine, String)> {
    let plain = part.strip_suffix(".scope").unwrap_or(part);
    for (prefix, engine) in [
        ("docker-", ContainerEngine::Docker),
        ("libpod-", ContainerEngine::Podman),
        ("cri-containerd-", ContainerEngine::Containerd),
        ("nerdctl-", ContainerEngine::Containerd),
        ("crio-", ContainerEngine::CriO),
    ] {
        if let Some(id) = plain.strip_prefix(prefix).filter(|id| is_id(id)) {
            return Some((engine, id.to_owned()));
        }
    }
    // containerd with the systemd driver: slice:cri-containerd:id.
    if let Some((_, id)) = plain.rsplit_once(":cri-containerd:").filter(|(_, id)| is_id(id)) {
        return Some((ContainerEngine::Containerd, id.to_owned()));
    }
    if is_id(part) {
        let engine = match above {
            "docker" => ContainerEngine::Docker,
            "libpod_parent" => ContainerEngine::Podman,
            _ if in_pod => ContainerEngine::Containerd,
            _ => ContainerEngine::Unknown,
        };
        return Some((engine, part.to_owned()));
    }
    let named = |engine, name: &str| (!name.is_empty()).then(|| (engine, unescape_systemd(name)));
    if let Some(name) = part.strip_prefix("lxc.payload.") {
        return named(ContainerEngine::Lxc, name);
    }
    if above == "lxc" {
        return named(ContainerEngine::Lxc, part);
    }
    if let Some(name) = part.strip_prefix("machine-").and_then(|rest| rest.strip_suffix(".scope")) {
        return named(ContainerEngine::Nspawn, name);
    }
    part.strip_prefix("systemd-nspawn@")
        .and_then(|rest| rest.strip_suffix(".service"))
        .and_then(|name| named(ContainerEngine::Nspawn, name))
}

/// Returns the UID in the name of a pod's group: `pod<uid>`, or `kubepods-burstable-pod<uid with underscores>.slice`,
/// which begins with the names of the slices around the kubelet, if it is in some.
fn parse_pod(part: &str) -> Option<String> {
    let plain = part.strip_suffix(".slice").unwrap_or(part);
    let uid = match plain.rsplit_once("-pod") {
        Some((slices, uid)) if slices.split('-').any(|slice| slice == "kubepods") => uid,
        _ => plain.strip_prefix("pod")?,
    };
    let uid = uid.replace('_', "-");
    let hex = uid.chars().all(|letter| letter.is_ascii_hexdigit() || letter == '-');
    (hex && (uid.len() == 36 || uid.len() == 32)).then_some(uid)
}

/// Returns true if the text has the form of a container id.
#[must_use]
pub fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Reverses systemd's escaping: `\x2d` is a hyphen.
fn unescape_systemd(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\\x") {
        out.push_str(before);
        let byte = after.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(u8::is_ascii_graphic);
        match byte {
            Some(byte) => {
                out.push(char::from(byte));
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                out.push_str("\\x");
                rest = after;
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const POD: &str = "7ac1d5a2-9b42-4f4c-8d0a-52a1b7e3c111";

    #[test]
    fn no_terminal_gets_what_somebody_called_a_group() {
        for path in ["0::/system.slice/\u{1b}]0;x\u{7}a.service", "0::/lxc.payload.a\u{1b}[2Jb/init"] {
            let shown = parse_cgroup(path).short_text().expect("a unit, a container");
            assert!(shown.contains("\\u{1b}") && !shown.contains(char::is_control), "{shown}");
        }
    }

    #[test]
    fn every_engine_is_known_by_the_groups_that_it_makes() {
        let slice = POD.replace('-', "_");
        for (text, engine, pod) in [
            // Version 2, with systemd and with cgroupfs.
            (format!("0::/system.slice/docker-{ID}.scope\n"), ContainerEngine::Docker, false),
            (format!("0::/docker/{ID}\n"), ContainerEngine::Docker, false),
            (format!("0::/machine.slice/libpod-{ID}.scope/container\n"), ContainerEngine::Podman, false),
            (
                format!("0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container"),
                ContainerEngine::Podman,
                false,
            ),
            (format!("0::/libpod_parent/libpod-{ID}"), ContainerEngine::Podman, false),
            (format!("0::/system.slice/nerdctl-{ID}.scope"), ContainerEngine::Containerd, false),
            (
                format!(
                    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-{ID}.scope"
                ),
                ContainerEngine::Containerd,
                true,
            ),
            (
                format!("0::/kubepods.slice/kubepods-pod{slice}.slice/crio-{ID}.scope/container"),
                ContainerEngine::CriO,
                true,
            ),
            (format!("0::/kubepods/besteffort/pod{POD}/{ID}"), ContainerEngine::Containerd, true),
            (
                format!("0::/system.slice/containerd.service/kubepods-burstable-pod{slice}.slice:cri-containerd:{ID}"),
                ContainerEngine::Containerd,
                true,
            ),
            (format!("0::/default/{ID}"), ContainerEngine::Unknown, false),
            // Seen from the namespace of another group.
            (format!("0::/../docker-{ID}.scope"), ContainerEngine::Docker, false),
            // Version 1: the empty second hierarchy names nothing, and the first may name a unit.
            (
                format!(
                    "12:pids:/docker/{ID}\n11:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/system.slice/containerd.service\n"
                ),
                ContainerEngine::Docker,
                false,
            ),
            (format!("9:name=systemd:/\n4:memory:/kubepods/pod{POD}/{ID}\n0::/\n"), ContainerEngine::Containerd, true),
            // Nested containers: the inner one counts.
            (format!("0::/docker/{}/system.slice/docker-{ID}.scope", "a".repeat(64)), ContainerEngine::Docker, false),
        ] {
            let place = parse_cgroup(&text);
            assert_eq!((place.engine, place.id.as_deref()), (Some(engine), Some(ID)), "{text}");
            assert_eq!(place.pod.as_deref(), pod.then_some(POD), "{text}");
            assert_eq!(place.short_text().as_deref(), Some("0123456789ab"));
        }
    }

    /// Pods on every kind of node: control groups of version 1 and 2, made by systemd and by the kubelet itself
    /// (cgroupfs), with containerd and with CRI-O, of each quality of service.
    #[test]
    fn the_pod_is_known_on_every_kind_of_node() {
        let slice = POD.replace('-', "_");
        let first_version = |path: &str| {
            let hierarchies = ["11:memory", "8:devices", "4:cpu,cpuacct", "1:name=systemd"];
            let lines: Vec<_> = hierarchies.iter().map(|hierarchy| format!("{hierarchy}:{path}\n")).collect();
            lines.concat()
        };
        let second_version = |path: &str| format!("0::{path}\n");
        for quality in ["", "-burstable", "-besteffort"] {
            let parent = quality.replace('-', "/");
            let slices = if quality.is_empty() { String::new() } else { format!("/kubepods{quality}.slice") };
            let systemd = format!("/kubepods.slice{slices}/kubepods{quality}-pod{slice}.slice");
            let within = format!("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods{quality}-pod{slice}.slice");
            let cgroupfs = format!("/kubepods{parent}/pod{POD}");
            for (path, engine) in [
                (format!("{systemd}/cri-containerd-{ID}.scope"), ContainerEngine::Containerd),
                (format!("{systemd}/crio-{ID}.scope"), ContainerEngine::CriO),
                (format!("{systemd}/crio-{ID}.scope/container"), ContainerEngine::CriO),
                (format!("{within}/cri-containerd-{ID}.scope"), ContainerEngine::Containerd),
                (format!("{systemd}/docker-{ID}.scope"), ContainerEngine::Docker),
                (format!("{cgroupfs}/{ID}"), ContainerEngine::Containerd),
                (format!("{cgroupfs}/crio-{ID}"), ContainerEngine::CriO),
                // A node that is a container itself: kind.
                (format!("/docker/{}{cgroupfs}/{ID}", "b".repeat(64)), ContainerEngine::Containerd),
                // The container made groups of its own.
                (format!("{cgroupfs}/{ID}/init.scope"), ContainerEngine::Containerd),
            ] {
                for text in [first_version(&path), second_version(&path)] {
                    let place = parse_cgroup(&text);
                    assert_eq!((place.engine, place.id.as_deref()), (Some(engine), Some(ID)), "{text}");
                    assert_eq!(place.pod.as_deref(), Some(POD), "{text}");
                }
            }
        }
        // A static pod has a hash for its UID.
        let hash = "0a1b2c3d".repeat(4);
        let place = parse_cgroup(&format!("0::/kubepods/burstable/pod{hash}/{ID}"));
        assert_eq!(place.pod.as_deref(), Some(&*hash));
        // A pod of Podman and a slice with the word in it are no pods of Kubernetes.
        for path in
            ["/machine.slice/machine-libpod_pod_x.slice", "/my-pod-tools.slice", "/kubepods.slice/kubepods-podx"]
        {
            let place = parse_cgroup(&second_version(&format!("{path}/libpod-{ID}.scope")));
            assert_eq!((place.pod, place.id.as_deref()), (None, Some(ID)), "{path}");
        }
    }

    #[test]
    fn places_without_ids_have_their_names() {
        for (text, engine, name) in [
            ("0::/lxc.payload.web", Some(ContainerEngine::Lxc), "web"),
            ("5:devices:/lxc/web/user.slice\n0::/", Some(ContainerEngine::Lxc), "web"),
            ("0::/machine.slice/machine-old\\x2ddebian.scope/payload", Some(ContainerEngine::Nspawn), "old-debian"),
            (
                "0::/machine.slice/systemd-nspawn@web.service/payload/system.slice/x.service",
                Some(ContainerEngine::Nspawn),
                "web",
            ),
            ("7:memory:/slurm/uid_1000/job_42/step_0/task_1\n0::/", Some(ContainerEngine::Slurm), "job 42"),
            ("0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", Some(ContainerEngine::Slurm), "job 42"),
            ("0::/system.slice/vgpud.service", None, "vgpud.service"),
            ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-x\\x2dy.service", None, "app-x-y.service"),
            ("0::/user.slice/user-0.slice/session-3.scope", None, "session-3.scope"),
        ] {
            let place = parse_cgroup(text);
            assert_eq!((place.engine, place.short_text().as_deref()), (engine, Some(name)), "{text}");
        }
    }

    #[test]
    fn what_is_not_recognised_is_no_container_and_nothing_is_taken_for_an_id_that_is_none() {
        for text in [
            "",
            "0::/",
            "x",
            "::",
            "0::/docker",
            "0::/docker/abc",
            "4:memory:/process/1234\n0::/",
            "0::/\\x",
            "0::/job_4",
        ] {
            assert_eq!(parse_cgroup(text), ProcessPlace::default(), "{text}");
        }
        for bad in ["docker-../../../etc", "crio-conmon-x.scope", "libpod-ABCDEF", "pod1/x"] {
            assert_eq!(parse_cgroup(&format!("0::/{bad}")).id, None, "{bad}");
        }
        assert_eq!(unescape_systemd("a\\x2db\\xzz\\x1b\\x"), "a-b\\xzz\\x1b\\x");
    }
}
