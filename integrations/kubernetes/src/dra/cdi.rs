//! The CDI file of a claim: how its containers get the library and the claim's tenant. Pure but for the two functions
//! at the end.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::checkpoint::replace_file;
use crate::allocate::{Injection, allocate};
use crate::slices::Slice;

/// Variable by which NVIDIA's container runtime adds devices.
const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// Vendor and class of the devices of a driver's claims.
#[must_use]
pub fn cdi_kind(driver: &str) -> String {
    format!("{driver}/claim")
}

/// Returns the file with the device of a claim. `shows_gpu`: the device also makes the GPU visible, by the variable of
/// NVIDIA's runtime; otherwise the GPU comes by another CDI device.
///
/// # Errors
/// A message: a path is not UTF-8.
pub fn claim_spec(
    driver: &str,
    uid: &str,
    slice: &Slice,
    injection: &Injection,
    shows_gpu: bool,
) -> Result<Value, String> {
    let changes = allocate(std::slice::from_ref(slice), std::slice::from_ref(&slice.tenant), injection)?;
    let mut env: Vec<String> = changes
        .envs
        .iter()
        .filter(|(name, _)| shows_gpu || *name != VISIBLE_DEVICES)
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    env.sort();
    let mount = |mount: &crate::api::device_plugin::Mount| {
        let access: &[&str] = if mount.read_only { &["ro"] } else { &["rw", "noexec"] };
        let options = [access, &["nosuid", "nodev", "bind"]].concat();
        json!({ "hostPath": mount.host_path, "containerPath": mount.container_path, "options": options })
    };
    let mounts: Vec<Value> = changes.mounts.iter().map(mount).collect();
    Ok(json!({
        // The oldest version that takes a name which begins with a digit.
        "cdiVersion": "0.5.0",
        "kind": cdi_kind(driver),
        "devices": [{ "name": uid, "containerEdits": { "env": env, "mounts": mounts } }],
    }))
}

/// Path of the file of a claim.
#[must_use]
pub fn claim_file(dir: &Path, driver: &str, uid: &str) -> PathBuf {
    dir.join(format!("{}{uid}.json", file_prefix(driver)))
}

fn file_prefix(driver: &str) -> String {
    format!("{driver}-claim-")
}

/// Writes the file of a claim, unless it has this content.
///
/// # Errors
/// A message: it cannot be written.
pub fn write_spec(file: &Path, spec: &Value) -> Result<(), String> {
    let failed = |why: io::Error| format!("{}: {why}", file.display());
    let text = serde_json::to_vec_pretty(spec).map_err(|why| why.to_string())?;
    if fs::read(file).is_ok_and(|before| before == text) {
        return Ok(());
    }
    fs::create_dir_all(file.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
    replace_file(file, &text).map_err(failed)
}

/// Files of a driver's claims that are not prepared, and those that a killed driver did not finish.
#[must_use]
pub fn stale_files(dir: &Path, driver: &str, is_prepared: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let prefix = file_prefix(driver);
    let is_stale = |name: &str| {
        name.strip_prefix(&prefix).is_some_and(|rest| match rest.strip_suffix(".json") {
            Some(uid) => !is_prepared(uid),
            None => rest.ends_with(".json.new"),
        })
    };
    let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_str().is_some_and(is_stale)).map(|name| dir.join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice() -> Slice {
        Slice {
            tenant: "claim-7".into(),
            socket: "/run/vgpu/tenants/claim-7/vgpud.sock".into(),
            uuids: vec!["GPU-0".into(), "GPU-1".into()],
            ..Slice::default()
        }
    }

    #[test]
    fn a_container_of_a_claim_gets_the_library_and_the_tenant_and_the_gpu_only_once() {
        let injection = Injection::Mounts { library_dir: "/usr/lib/vgpu".into(), preload_file: "/run/p".into() };
        let spec = |shows_gpu| claim_spec("vgpu.internal", "7", &slice(), &injection, shows_gpu).unwrap();
        let own = spec(true);
        assert_eq!((&own["kind"], &own["devices"][0]["name"]), (&json!("vgpu.internal/claim"), &json!("7")));
        let edits = &own["devices"][0]["containerEdits"];
        let socket = "VGPU_SOCKET=/run/vgpu-tenant/vgpud.sock";
        assert_eq!(edits["env"], json!(["NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-1", socket]));
        let mounts = edits["mounts"].as_array().unwrap();
        let written: Vec<_> = mounts.iter().filter(|mount| mount["options"][0] == "rw").collect();
        assert_eq!(written.len(), 1, "{mounts:?}");
        assert_eq!(written[0]["hostPath"], "/run/vgpu/tenants/claim-7/vgpud.sock.ledgers");
        assert_eq!(spec(false)["devices"][0]["containerEdits"]["env"], json!([socket]));
    }

    #[test]
    fn only_files_that_this_driver_left_are_stale() {
        let dir = tempfile::tempdir().unwrap();
        for uid in ["7", "8"] {
            write_spec(&claim_file(dir.path(), "vgpu.internal", uid), &json!({})).unwrap();
        }
        for other in ["limits.vgpu.internal-claim-8.json", "nvidia.yaml", "vgpu.internal-claim-7.json.new"] {
            fs::write(dir.path().join(other), "").unwrap();
        }
        let mut stale = stale_files(dir.path(), "vgpu.internal", |uid| uid == "7");
        stale.sort();
        let left = ["vgpu.internal-claim-7.json.new", "vgpu.internal-claim-8.json"];
        assert_eq!(stale, left.map(|name| dir.path().join(name)));
    }
}
