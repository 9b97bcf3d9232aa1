//! Prepares claims: a tenant at vgpud, a CDI file, and a line of the checkpoint. Blocks.
//!
//! Each step may be repeated, and a driver may be killed between any two. The kubelet repeats what got no answer. A
//! driver that starts removes the tenants and files of claims that are not in the checkpoint: nobody was told of them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tracing::{info, warn};
use vgpu_config::value::is_name;
use vgpu_control::{ControlCommand, ask_daemon, ask_status};

use super::api_server::ApiServer;
use super::cdi::{cdi_kind, claim_file, claim_spec, stale_files, write_spec};
use super::checkpoint::{Checkpoint, PreparedClaim};
use super::claim::{
    CLAIM_LABEL, ClaimedDevice, CoresMeaning, DRIVER_LABEL, ResourceClaim, claimed_devices, prepared_devices,
    tenant_name, tenant_section,
};
use super::slice::{API_VERSION, find_uuid, offered_devices};
use crate::allocate::Injection;
use crate::api::dra::{Claim, Device};
use crate::slices::Slice;

/// Settings of a driver.
#[derive(Debug, Clone)]
pub struct DraSettings {
    /// Name of the driver.
    pub driver: String,
    /// The driver whose claims a companion limits; `None`: this driver has devices of its own.
    pub companion_of: Option<String>,
    /// Name of the node.
    pub node: String,
    /// The administrative socket of vgpud.
    pub socket: PathBuf,
    /// How containers get the library.
    pub injection: Injection,
    /// Directory of CDI files.
    pub cdi_dir: PathBuf,
    /// Vendor and class of the CDI devices that show the GPU; `None`: NVIDIA's runtime shows it.
    pub gpu_cdi: Option<String>,
    /// Use of the consumed percentage.
    pub cores: CoresMeaning,
    /// The API server.
    pub api: ApiServer,
}

/// The claims of a node.
#[derive(Debug)]
pub struct ClaimKeeper {
    settings: DraSettings,
    checkpoint: Checkpoint,
}

impl ClaimKeeper {
    /// Takes over the claims of the checkpoint.
    #[must_use]
    pub fn new(settings: DraSettings, checkpoint: Checkpoint) -> Self {
        Self { settings, checkpoint }
    }

    /// Makes tenants and files agree with the checkpoint.
    ///
    /// # Errors
    /// A message: vgpud does not answer, or a file cannot be removed. The same call may succeed later.
    pub fn reconcile_claims(&self) -> Result<(), String> {
        let status = ask_status(&self.settings.socket).map_err(|why| self.daemon_words(&why))?;
        let driver = &self.settings.driver;
        let own = status.tenants.iter().filter(|tenant| !tenant.removed);
        let own = own.filter(|tenant| tenant.bearer.labels.get(DRIVER_LABEL) == Some(driver));
        for tenant in own {
            let uid = tenant.bearer.labels.get(CLAIM_LABEL).map(String::as_str).unwrap_or_default();
            if !self.checkpoint.claims().contains_key(uid) {
                self.remove_tenant(&tenant.name)?;
                info!(tenant = tenant.name, "removed a tenant whose claim was not prepared to the end");
            }
        }
        for file in stale_files(&self.settings.cdi_dir, driver, |uid| self.checkpoint.claims().contains_key(uid)) {
            remove_file(&file)?;
        }
        for (uid, claim) in self.checkpoint.claims() {
            if let Err(why) = self.realise_claim(uid, claim) {
                warn!(claim = claim.name, namespace = claim.namespace, %why, "a prepared claim has lost its tenant");
            }
        }
        Ok(())
    }

    /// Prepares a claim, and returns its devices.
    ///
    /// # Errors
    /// A message for the pod's events. The kubelet repeats the call.
    pub fn prepare_claim(&mut self, named: &Claim) -> Result<Vec<Device>, String> {
        if !is_name(&tenant_name(&named.uid)) {
            return Err(format!("the claim's UID is {:?}; accepted: letters, digits and '-'", named.uid));
        }
        if let Some(claim) = self.checkpoint.claims().get(&named.uid) {
            self.realise_claim(&named.uid, claim)?;
            return Ok(claim.devices.clone());
        }
        let claim = self.read_claim(named)?;
        self.realise_claim(&named.uid, &claim)?;
        let devices = claim.devices.clone();
        self.checkpoint.insert(&named.uid, claim)?;
        info!(claim = named.name, namespace = named.namespace, uid = named.uid, "prepared");
        Ok(devices)
    }

    /// Ends a claim; one that is not known is no error.
    ///
    /// # Errors
    /// A message. The kubelet repeats the call.
    pub fn unprepare_claim(&mut self, named: &Claim) -> Result<(), String> {
        if !is_name(&tenant_name(&named.uid)) {
            return Ok(());
        }
        self.remove_tenant(&tenant_name(&named.uid))?;
        remove_file(&claim_file(&self.settings.cdi_dir, &self.settings.driver, &named.uid))?;
        self.checkpoint.remove(&named.uid)?;
        info!(claim = named.name, namespace = named.namespace, uid = named.uid, "unprepared");
        Ok(())
    }

    /// Asks the API server for a claim, and decides on its tenant.
    fn read_claim(&self, named: &Claim) -> Result<PreparedClaim, String> {
        let DraSettings { driver, cores, gpu_cdi, api, .. } = &self.settings;
        let path = format!("/apis/{API_VERSION}/namespaces/{}/resourceclaims/{}", named.namespace, named.name);
        let found = api.get(&path)?.ok_or("the claim is gone")?;
        let claim: ResourceClaim = serde_json::from_value(found).map_err(|why| format!("the claim: {why}"))?;
        if claim.metadata.uid != named.uid {
            return Err(format!("the claim has the UID {} now: it was deleted and made again", claim.metadata.uid));
        }
        let devices = claimed_devices(&claim, self.settings.companion_of.as_ref().unwrap_or(driver))?;
        let (names, uuids) = self.name_devices(&devices)?;
        let first = devices.first().ok_or("the claim has no device")?;
        let section = tenant_section(&claim, driver, first, names, *cores);
        let mut cdi = vec![format!("{}={}", cdi_kind(driver), named.uid)];
        if let Some(kind) = gpu_cdi {
            cdi.extend(uuids.iter().map(|uuid| format!("{kind}={uuid}")));
        }
        let devices = prepared_devices(&claim, driver, &cdi);
        let (namespace, name) = (named.namespace.clone(), named.name.clone());
        Ok(PreparedClaim { namespace, name, section, uuids, devices })
    }

    /// Returns vgpud's names of devices, and their UUIDs as far as they are known.
    fn name_devices(&self, devices: &[ClaimedDevice]) -> Result<(Vec<String>, Vec<String>), String> {
        let DraSettings { driver, companion_of, node, api, .. } = &self.settings;
        if let Some(theirs) = companion_of {
            let selector = format!("fieldSelector=spec.driver%3D{theirs}%2Cspec.nodeName%3D{node}");
            let slices = api.get(&format!("/apis/{API_VERSION}/resourceslices?{selector}"))?.unwrap_or_default();
            let uuid = |device: &ClaimedDevice| find_uuid(&slices, theirs, (&device.place.0, &device.place.1));
            let uuids: Vec<String> = devices.iter().map(uuid).collect::<Result<_, _>>()?;
            return Ok((uuids.clone(), uuids));
        }
        let status = ask_status(&self.settings.socket).map_err(|why| self.daemon_words(&why))?;
        let offered = offered_devices(&status, driver);
        let mut names = (Vec::new(), Vec::new());
        for ClaimedDevice { place: (pool, device), .. } in devices {
            let found = offered.iter().find(|offered| offered.name == *device && pool == node);
            let found = found.ok_or_else(|| format!("vgpud offers no device {pool}/{device} on this node"))?;
            names.0.push(found.daemon_name.clone());
            names.1.extend(found.uuid.clone());
        }
        Ok(names)
    }

    /// Adds the tenant of a claim and writes its CDI file, if they are not there.
    fn realise_claim(&self, uid: &str, claim: &PreparedClaim) -> Result<(), String> {
        let DraSettings { driver, companion_of, gpu_cdi, injection, cdi_dir, .. } = &self.settings;
        let section = Box::new(claim.section.clone());
        let ask = ControlCommand::Add { section, pid: None, seconds: None, replace: false, waits: false };
        let answer = ask_daemon(&self.settings.socket, &ask).map_err(|why| self.daemon_words(&why))?;
        let socket = answer.tenant.and_then(|tenant| tenant.socket).ok_or("vgpud named no socket")?;
        let (tenant, uuids) = (claim.section.name.clone(), claim.uuids.clone());
        let slice = Slice { tenant, socket, uuids, ..Slice::default() };
        let shows_gpu = companion_of.is_none() && gpu_cdi.is_none();
        let spec = claim_spec(driver, uid, &slice, injection, shows_gpu)?;
        write_spec(&claim_file(cdi_dir, driver, uid), &spec)
    }

    fn remove_tenant(&self, tenant: &str) -> Result<(), String> {
        let ask = ControlCommand::Remove { tenant: tenant.to_owned(), only_look: false };
        ask_daemon(&self.settings.socket, &ask).map(drop).map_err(|why| self.daemon_words(&why))
    }

    fn daemon_words(&self, why: &io::Error) -> String {
        format!("vgpud at {}: {why}", self.settings.socket.display())
    }
}

fn remove_file(file: &Path) -> Result<(), String> {
    match fs::remove_file(file) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => Err(format!("{}: {why}", file.display())),
        _ => Ok(()),
    }
}
