//! How a container gets its tenant: mounts and variables, or a device of a CDI file. Pure, except [`prepare_mounts`].

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::api::device_plugin::{CdiDevice, ContainerAllocateResponse, Mount};
use crate::slices::Slice;

/// Directory of the library in a container.
const LIBRARY_DIR: &str = "/vgpu";
/// Directory of the tenant in a container.
pub const TENANT_DIR: &str = "/run/vgpu-tenant";
/// File with the names of libraries that the loader preloads.
pub const PRELOAD_FILE: &str = "/etc/ld.so.preload";
/// Beginning of the annotation by which container runtimes find CDI devices.
const CDI_ANNOTATION: &str = "cdi.k8s.io/vgpu_";

/// How containers get the library and their tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Injection {
    /// Mounts and variables.
    Mounts {
        /// Directory of libvgpu.so on the host.
        library_dir: PathBuf,
        /// A file on the host that names the library as containers see it.
        preload_file: PathBuf,
    },
    /// Devices of a CDI file that `vgpu cdi generate` wrote.
    Cdi {
        /// Vendor and class of the devices.
        kind: String,
    },
}

/// Checks that the library is there, and writes the file that preloads it.
///
/// # Errors
/// A message: the library is not there, or the file cannot be written.
pub fn prepare_mounts(library: &Path, state_dir: &Path) -> Result<Injection, String> {
    let failed = |path: &Path, why: std::io::Error| format!("{}: {why}", path.display());
    fs::metadata(library).map_err(|why| failed(library, why))?;
    let is_named = library.file_name().is_some_and(|name| name == "libvgpu.so");
    let library_dir = library.parent().filter(|_| is_named && library.is_absolute()).ok_or_else(|| {
        format!("--library is {}; accepted: an absolute path that ends in libvgpu.so", library.display())
    })?;
    fs::create_dir_all(state_dir).map_err(|why| failed(state_dir, why))?;
    let preload_file = state_dir.join("ld.so.preload");
    // Running containers have the file mounted, so it is changed only if its text differs.
    if fs::read_to_string(&preload_file).ok().as_deref() != Some(&preload_text()) {
        fs::write(&preload_file, preload_text()).map_err(|why| failed(&preload_file, why))?;
    }
    Ok(Injection::Mounts { library_dir: library_dir.to_owned(), preload_file })
}

/// The text of the file that preloads the library in containers.
#[must_use]
pub fn preload_text() -> String {
    format!("{LIBRARY_DIR}/libvgpu.so\n")
}

/// Returns the changes of a container that gets these slices.
///
/// # Errors
/// A message: it gets none, several, or one that is not known or not healthy.
pub fn allocate(slices: &[Slice], ids: &[String], injection: &Injection) -> Result<ContainerAllocateResponse, String> {
    let [id] = ids else {
        return Err(format!("a container gets {} slices; accepted: one, of a larger resource if need be", ids.len()));
    };
    let slice = find_slice(slices, id)?;
    match injection {
        Injection::Mounts { library_dir, preload_file } => mounts(slice, library_dir, preload_file),
        Injection::Cdi { kind } => {
            let device = format!("{kind}={}", slice.tenant);
            Ok(ContainerAllocateResponse {
                annotations: HashMap::from([(format!("{CDI_ANNOTATION}{}", slice.tenant), device.clone())]),
                cdi_devices: vec![CdiDevice { name: device }],
                ..ContainerAllocateResponse::default()
            })
        }
    }
}

/// Returns the slice with this identifier.
///
/// # Errors
/// A message: there is none, or it is not healthy.
pub fn find_slice<'s>(slices: &'s [Slice], id: &str) -> Result<&'s Slice, String> {
    let slice = slices.iter().find(|slice| slice.tenant == id);
    let slice = slice.ok_or_else(|| format!("vgpud has no tenant {id:?} that is offered to the cluster"))?;
    match &slice.fault {
        None => Ok(slice),
        Some(why) => Err(format!("tenant {id:?} cannot be used: {why}")),
    }
}

/// Mounts and variables that bring a container into its tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantEdits {
    /// Names and values of variables.
    pub variables: Vec<(String, String)>,
    /// The mounts, outer ones first.
    pub mounts: Vec<Mount>,
}

/// Returns the mounts and variables of the tenant with this socket.
///
/// # Errors
/// A message: a path is not UTF-8.
pub fn tenant_edits(socket: &Path, library_dir: &Path, preload_file: &Path) -> Result<TenantEdits, String> {
    let text = |path: &Path| path.to_str().map(str::to_owned).ok_or_else(|| format!("{path:?} is not UTF-8"));
    let room = socket.parent().unwrap_or(Path::new("/"));
    let file = text(Path::new(socket.file_name().unwrap_or_default()))?;
    let ledgers = format!("{file}.ledgers");
    let mount = |from: &Path, to: String, read_only| {
        Ok::<_, String>(Mount { container_path: to, host_path: text(from)?, read_only })
    };
    Ok(TenantEdits {
        variables: vec![("VGPU_SOCKET".to_owned(), format!("{TENANT_DIR}/{file}"))],
        mounts: vec![
            mount(library_dir, LIBRARY_DIR.to_owned(), true)?,
            mount(preload_file, PRELOAD_FILE.to_owned(), true)?,
            mount(room, TENANT_DIR.to_owned(), true)?,
            mount(&room.join(&ledgers), format!("{TENANT_DIR}/{ledgers}"), false)?,
        ],
    })
}

fn mounts(slice: &Slice, library_dir: &Path, preload_file: &Path) -> Result<ContainerAllocateResponse, String> {
    let edits = tenant_edits(&slice.socket, library_dir, preload_file)?;
    let mut envs: HashMap<String, String> = edits.variables.into_iter().collect();
    envs.insert("NVIDIA_VISIBLE_DEVICES".to_owned(), slice.uuids.join(","));
    // CUDA takes the first device that a container shows, so its only instance is named.
    if let [uuid] = slice.uuids.as_slice()
        && uuid.starts_with("MIG-")
    {
        envs.insert("CUDA_VISIBLE_DEVICES".to_owned(), uuid.clone());
    }
    Ok(ContainerAllocateResponse { envs, mounts: edits.mounts, ..ContainerAllocateResponse::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(uuid: &str) -> Slice {
        Slice {
            tenant: "q-0".into(),
            resource: "quarter".into(),
            socket: "/run/vgpu/tenants/q-0/vgpud.sock".into(),
            uuids: vec![uuid.into()],
            members: 0,
            labels: Default::default(),
            fault: None,
        }
    }

    fn direct() -> Injection {
        Injection::Mounts { library_dir: "/usr/lib/vgpu".into(), preload_file: "/run/vgpu/k8s/ld.so.preload".into() }
    }

    #[test]
    fn a_container_gets_the_library_its_tenant_and_its_device() {
        let response = allocate(&[slice("GPU-0")], &["q-0".into()], &direct()).unwrap();
        let mounts: Vec<_> =
            response.mounts.iter().map(|it| (&*it.host_path, &*it.container_path, it.read_only)).collect();
        assert_eq!(
            mounts,
            [
                ("/usr/lib/vgpu", "/vgpu", true),
                ("/run/vgpu/k8s/ld.so.preload", "/etc/ld.so.preload", true),
                ("/run/vgpu/tenants/q-0", "/run/vgpu-tenant", true),
                ("/run/vgpu/tenants/q-0/vgpud.sock.ledgers", "/run/vgpu-tenant/vgpud.sock.ledgers", false),
            ]
        );
        assert_eq!(response.envs["VGPU_SOCKET"], "/run/vgpu-tenant/vgpud.sock");
        assert_eq!(response.envs["NVIDIA_VISIBLE_DEVICES"], "GPU-0");
        assert!(!response.envs.contains_key("CUDA_VISIBLE_DEVICES"));
        let instance = allocate(&[slice("MIG-0")], &["q-0".into()], &direct()).unwrap();
        assert_eq!(instance.envs["CUDA_VISIBLE_DEVICES"], "MIG-0");
    }

    #[test]
    fn cdi_names_the_tenant_for_old_and_new_kubelets() {
        let cdi = Injection::Cdi { kind: "vgpu.internal/tenant".into() };
        let response = allocate(&[slice("GPU-0")], &["q-0".into()], &cdi).unwrap();
        assert_eq!(response.annotations["cdi.k8s.io/vgpu_q-0"], "vgpu.internal/tenant=q-0");
        assert_eq!(response.cdi_devices[0].name, "vgpu.internal/tenant=q-0");
        assert!(response.mounts.is_empty() && response.envs.is_empty());
    }

    #[test]
    fn no_slice_several_an_unknown_one_and_a_faulty_one_are_refused_with_words() {
        let refused = |slices: &[Slice], ids: &[&str]| {
            let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
            allocate(slices, &ids, &direct()).unwrap_err()
        };
        assert!(refused(&[slice("GPU-0")], &[]).contains("gets 0 slices"));
        assert!(refused(&[slice("GPU-0")], &["q-0", "q-1"]).contains("gets 2 slices"));
        assert!(refused(&[slice("GPU-0")], &["q-9"]).contains("no tenant \"q-9\""));
        let faulty = Slice { fault: Some("device 0 is lost".into()), ..slice("GPU-0") };
        assert!(refused(&[faulty], &["q-0"]).contains("device 0 is lost"));
    }
}
