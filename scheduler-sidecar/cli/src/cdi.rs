//! `vgpu cdi generate`: writes a CDI specification with a device for each tenant of vgpud.
//!
//! CDI (Container Device Interface) is a JSON file that container engines read: `--device KIND=NAME` then adds mounts
//! and variables. The output needs CDI 0.3.0, the oldest version that tools read, unless a tenant's name begins with
//! a digit.
//!
//! The file has no device nodes: the GPU is another device, of the file that NVIDIA's tool writes. It does name the MIG
//! instance of a tenant that has one device, in `CUDA_VISIBLE_DEVICES`. Without it, CUDA takes the first device that
//! the container shows, and the library refuses it. `NVIDIA_VISIBLE_DEVICES` would be wrong: NVIDIA's file sets it to
//! `void`, so that NVIDIA's runtime does not add the GPU a second time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::Subcommand;
use serde::Serialize;

use super::ask::{DaemonAddress, no_answer};
use super::configuration::read_configuration;
use super::docker::{LIBRARY_DIR, TENANT_DIR};
use super::ledgers::ledgers_of;
use super::library;
use vgpu_control::ControlCommand;
use vgpu_output::say::{self, EXIT_FINDINGS, EXIT_RUN_FAILED, EXIT_USAGE, Failure};

/// Describes tenants to container engines, by the Container Device Interface.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu cdi generate --output /etc/cdi/vgpu.json

Exit codes:
  see vgpu cdi generate --help")]
pub struct Args {
    #[command(subcommand)]
    verb: CdiVerb,
}

#[derive(Debug, Subcommand)]
enum CdiVerb {
    Generate(GenerateArgs),
}

/// Writes a CDI specification with a device for each tenant of vgpud.
///
/// A container with `--device vgpu.internal/tenant=NAME` gets the preloaded library and the tenant's socket. The GPU
/// itself comes as before, by `--gpus` or by the device of NVIDIA's own CDI file. If the tenant's only device is a MIG
/// instance, the container also gets CUDA_VISIBLE_DEVICES with its UUID; NVIDIA's file names the instance by it too.
/// Write the file again when tenants are added or removed, or when their devices change.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu cdi generate --output /etc/cdi/vgpu.json
  podman run --device nvidia.com/gpu=all --device vgpu.internal/tenant=train IMAGE python3 train.py
  podman run --device nvidia.com/gpu=MIG-5ae3917e-... --device vgpu.internal/tenant=chat IMAGE
  vgpu cdi generate --config /etc/vgpu/vgpud.toml | jq '.devices[].name'

Exit codes:
  0    written
  1    no daemon answers, the file of --config has errors, or the output cannot be written
  2    usage: a kind or a tenant's name is not one that CDI accepts
  125  libvgpu.so was not found")]
struct GenerateArgs {
    #[command(flatten)]
    daemon: SocketArg,

    /// Takes the tenants from this file of vgpud instead of asking the daemon; only MIG instances that it names by UUID
    /// are known.
    #[arg(long, value_name = "FILE", conflicts_with = "socket")]
    config: Option<PathBuf>,

    /// Vendor and class of the devices.
    #[arg(long, value_name = "VENDOR/CLASS", default_value = "vgpu.internal/tenant")]
    kind: String,

    /// libvgpu.so to use; its directory is mounted [default: $VGPU_LIBRARY, else the one next to this program].
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,

    /// Output file, written as a whole or not at all; engines read *.json in /etc/cdi and /var/run/cdi [default:
    /// standard output].
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct SocketArg {
    /// The administrative socket [default: $VGPU_ADMIN_SOCKET, or admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu or
    /// $XDG_RUNTIME_DIR/vgpu].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// A tenant, as far as a container needs to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CdiTenant {
    /// Path of the tenant's socket.
    socket: PathBuf,
    /// UUID of the MIG instance that is the tenant's only device; `None`: it has other devices, or several.
    instance: Option<String>,
}

impl CdiTenant {
    fn new<'d>(socket: PathBuf, mut devices: impl Iterator<Item = &'d str>) -> Self {
        let only = devices.next().filter(|_| devices.next().is_none());
        Self { socket, instance: only.filter(|device| device.starts_with("MIG-")).map(str::to_owned) }
    }
}

/// The CDI file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CdiSpec {
    cdi_version: &'static str,
    kind: String,
    devices: Vec<CdiDevice>,
    container_edits: CdiEdits,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CdiDevice {
    name: String,
    container_edits: CdiEdits,
}

#[derive(Debug, Serialize)]
struct CdiEdits {
    env: Vec<String>,
    mounts: Vec<CdiMount>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CdiMount {
    host_path: String,
    container_path: String,
    options: Vec<&'static str>,
}

/// Generates the file.
///
/// # Errors
/// [`Failure`] with a message; an existing file is unchanged.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let CdiVerb::Generate(args) = &args.verb;
    check_kind(&args.kind).map_err(|why| Failure::new(EXIT_USAGE, format!("--kind {:?} {why}", args.kind)))?;
    let library = library::find(args.library.as_deref()).map_err(|why| Failure::new(EXIT_RUN_FAILED, why))?;
    let tenants = match &args.config {
        Some(file) => from_file(file)?,
        None => from_daemon(args.daemon.socket.clone())?,
    };
    let spec = build_spec(&args.kind, &library, &tenants)?;
    match &args.output {
        None => say::print_json(&spec)?,
        Some(file) => write(file, &spec)
            .map_err(|why| Failure::new(EXIT_FINDINGS, format!("--output {}: {why}", file.display())))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks the daemon for the tenants' names, sockets and devices.
fn from_daemon(socket: Option<PathBuf>) -> Result<BTreeMap<String, CdiTenant>, Failure> {
    let status =
        DaemonAddress { socket, json: false }.ask_daemon(&ControlCommand::Status)?.status.ok_or_else(no_answer)?;
    let served = status.tenants.into_iter().filter(|tenant| !tenant.removed);
    let described = served.map(|tenant| {
        let devices = tenant.devices.iter().map(|here| here.device.as_str());
        (tenant.name, CdiTenant::new(tenant.socket, devices))
    });
    Ok(described.collect())
}

/// Reads the tenants' names, sockets and devices from the file, without asking a driver.
fn from_file(file: &Path) -> Result<BTreeMap<String, CdiTenant>, Failure> {
    let plan = read_configuration(file)?;
    let described = plan.tenants.into_iter().map(|tenant| {
        let devices = tenant.terms.iter().map(|terms| terms.device.as_str());
        (tenant.name, CdiTenant::new(tenant.socket, devices))
    });
    Ok(described.collect())
}

fn build_spec(kind: &str, library: &Path, tenants: &BTreeMap<String, CdiTenant>) -> Result<CdiSpec, Failure> {
    let dir = library.parent().unwrap_or(Path::new("/"));
    let file = library.file_name().unwrap_or_default().to_string_lossy();
    let mut devices = Vec::new();
    for (name, CdiTenant { socket, instance }) in tenants {
        check_name(name)
            .map_err(|why| Failure::new(EXIT_USAGE, format!("the tenant {name:?} {why}; give it another name")))?;
        let room = socket.parent().unwrap_or(Path::new("/"));
        let file = socket.file_name().unwrap_or_default();
        let ledgers = ledgers_of(file).to_string_lossy().into_owned();
        let mut env = vec![format!("VGPU_SOCKET={TENANT_DIR}/{}", file.to_string_lossy())];
        env.extend(instance.iter().map(|uuid| format!("CUDA_VISIBLE_DEVICES={uuid}")));
        devices.push(CdiDevice {
            name: name.clone(),
            container_edits: CdiEdits {
                env,
                mounts: vec![
                    read_only_mount(room, TENANT_DIR, &["ro", "noexec"])?,
                    read_only_mount(&room.join(&ledgers), &format!("{TENANT_DIR}/{ledgers}"), &["rw", "noexec"])?,
                ],
            },
        });
    }
    let digit = |device: &CdiDevice| device.name.starts_with(|first: char| first.is_ascii_digit());
    Ok(CdiSpec {
        cdi_version: if devices.iter().any(digit) { "0.5.0" } else { "0.3.0" },
        kind: kind.to_owned(),
        devices,
        container_edits: CdiEdits {
            env: vec![format!("LD_PRELOAD={LIBRARY_DIR}/{file}")],
            mounts: vec![read_only_mount(dir, LIBRARY_DIR, &["ro"])?],
        },
    })
}

/// Returns a mount of a host directory.
fn read_only_mount(from: &Path, to: &str, how: &[&'static str]) -> Result<CdiMount, Failure> {
    let host_path =
        from.to_str().ok_or_else(|| Failure::new(EXIT_USAGE, format!("{from:?} is not UTF-8, and CDI files are")))?;
    let options = [how, &["nosuid", "nodev", "bind"]].concat();
    Ok(CdiMount { host_path: host_path.to_owned(), container_path: to.to_owned(), options })
}

/// Writes the file atomically, because engines may read it at any time.
fn write(file: &Path, spec: &CdiSpec) -> io::Result<()> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let mut text = serde_json::to_string_pretty(spec)?;
    text.push('\n');
    // The temporary name does not end in .json, so no engine reads a half-written file.
    say::replace_file(file, &text)
}

/// Checks that `kind` is `vendor/class` as CDI requires: a domain and a word.
fn check_kind(kind: &str) -> Result<(), &'static str> {
    let part = |text: &str, dots: bool| {
        let known = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c) || dots && c == '.';
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(known)
    };
    match kind.split_once('/') {
        Some((vendor, class)) if part(vendor, true) && part(class, false) => Ok(()),
        _ => Err("is not VENDOR/CLASS; accepted: a domain, a slash and a word, like vgpu.internal/tenant"),
    }
}

/// Checks that a device name is valid in CDI.
fn check_name(name: &str) -> Result<(), &'static str> {
    let edge = |c: char| c.is_ascii_alphanumeric();
    if name.starts_with(edge) && name.ends_with(edge) {
        Ok(())
    } else {
        Err("has a name that CDI does not accept: it must begin and end with a letter or a digit")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(names: &[&str]) -> Result<CdiSpec, Failure> {
        made_on(names, &["0"])
    }

    fn made_on(names: &[&str], devices: &[&str]) -> Result<CdiSpec, Failure> {
        let socket = |name: &str| PathBuf::from(format!("/run/vgpu/tenants/{name}/vgpud.sock"));
        let tenant = |name: &&str| ((*name).to_owned(), CdiTenant::new(socket(name), devices.iter().copied()));
        let tenants = names.iter().map(tenant).collect();
        build_spec("vgpu.internal/tenant", Path::new("/usr/lib/vgpu/libvgpu.so"), &tenants)
    }

    #[test]
    fn each_tenant_is_a_device_with_its_own_directory_and_the_library_belongs_to_all() {
        let json = serde_json::to_value(made(&["chat", "train"]).unwrap()).unwrap();
        let devices = ["chat", "train"].map(|name| {
            serde_json::json!({
                "name": name,
                "containerEdits": {
                    "env": ["VGPU_SOCKET=/run/vgpu-tenant/vgpud.sock"],
                    "mounts": [{
                        "hostPath": format!("/run/vgpu/tenants/{name}"),
                        "containerPath": "/run/vgpu-tenant",
                        "options": ["ro", "noexec", "nosuid", "nodev", "bind"],
                    }, {
                        "hostPath": format!("/run/vgpu/tenants/{name}/vgpud.sock.ledgers"),
                        "containerPath": "/run/vgpu-tenant/vgpud.sock.ledgers",
                        "options": ["rw", "noexec", "nosuid", "nodev", "bind"],
                    }],
                },
            })
        });
        let expected = serde_json::json!({
            "cdiVersion": "0.3.0",
            "kind": "vgpu.internal/tenant",
            "devices": devices,
            "containerEdits": {
                "env": ["LD_PRELOAD=/vgpu/libvgpu.so"],
                "mounts": [{
                    "hostPath": "/usr/lib/vgpu",
                    "containerPath": "/vgpu",
                    "options": ["ro", "nosuid", "nodev", "bind"],
                }],
            },
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn the_only_device_of_a_tenant_is_named_to_cuda_if_it_is_an_instance() {
        let instance = "MIG-5ae3917e-0f6b-4c44-9c7e-5d1f2b00c001";
        let env = |devices: &[&str]| made_on(&["a"], devices).unwrap().devices.remove(0).container_edits.env;
        let socket = "VGPU_SOCKET=/run/vgpu-tenant/vgpud.sock".to_owned();
        assert_eq!(env(&[instance]), [socket.clone(), format!("CUDA_VISIBLE_DEVICES={instance}")]);
        // A process uses one instance, so a container with a choice has to choose.
        let others: [&[&str]; 5] = [&[], &["0"], &["*"], &[instance, "MIG-00aa"], &["0", instance]];
        for devices in others {
            assert_eq!(env(devices), std::slice::from_ref(&socket), "{devices:?}");
        }
    }

    #[test]
    fn the_version_is_the_lowest_that_knows_what_is_in_it() {
        assert_eq!(made(&["a"]).unwrap().cdi_version, "0.3.0");
        assert_eq!(made(&["a", "7"]).unwrap().cdi_version, "0.5.0");
    }

    #[test]
    fn names_and_kinds_that_engines_refuse_are_refused_here_with_words() {
        for name in ["-a", "a-", "_", "a."] {
            assert!(made(&[name]).unwrap_err().words.contains("CDI does not accept"), "{name}");
        }
        for kind in ["vgpu.internal/tenant", "a/b", "example.com/c-d_e"] {
            assert!(check_kind(kind).is_ok(), "{kind}");
        }
        for kind in ["", "/", "a", "a/", "/b", "1a/b", "a/b/c", "a/b.c", "a b/c", "a./b"] {
            assert!(check_kind(kind).is_err(), "{kind}");
        }
    }
}
