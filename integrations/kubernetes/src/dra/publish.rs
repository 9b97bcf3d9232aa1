//! Keeps the node's ResourceSlice at the API server as vgpud has its devices.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};
use vgpu_control::ask_status;

use super::claims::DraSettings;
use super::slice::{
    API_VERSION, limits_device, offered_devices, replace_slice, resource_slice, shared_devices, slice_name,
};

/// Time between two questions to vgpud.
const ASK_PERIOD: Duration = Duration::from_secs(1);

/// Time after which the slice is looked at without a change, because a kubelet or a person may have removed it.
const SLICE_CHECK_PERIOD: Duration = Duration::from_secs(60);

/// Questions without an answer after which the slice has no devices. A daemon that is replaced answers sooner.
const MAX_SILENT_ASKS: u32 = 5;

/// Publishes the node's devices without end.
pub async fn publish_devices(settings: DraSettings, registered: std::sync::Arc<Notify>) {
    let (mut silent, mut told) = (0, String::new());
    let (mut published, mut looked): (Option<Value>, Option<Instant>) = (None, None);
    loop {
        let asked = settings.clone();
        let found = tokio::task::spawn_blocking(move || read_devices(&asked)).await;
        let wanted = match found.map_err(std::io::Error::other).and_then(|found| found) {
            Ok(devices) => {
                silent = 0;
                Some(devices)
            }
            Err(why) => {
                silent += 1;
                if silent == 1 {
                    warn!(%why, socket = %settings.socket.display(), "vgpud does not answer");
                }
                (silent >= MAX_SILENT_ASKS).then(|| Value::Array(Vec::new()))
            }
        };
        let is_old = looked.is_none_or(|looked| looked.elapsed() >= SLICE_CHECK_PERIOD);
        if let Some(wanted) = wanted.filter(|wanted| is_old || published.as_ref() != Some(wanted)) {
            let (settings, devices) = (settings.clone(), wanted.clone());
            let done = tokio::task::spawn_blocking(move || publish_once(&settings, &devices)).await;
            match done.unwrap_or_else(|why| Err(why.to_string())) {
                Ok(()) => {
                    (published, looked) = (Some(wanted), Some(Instant::now()));
                    told.clear();
                }
                Err(why) => {
                    if told != why {
                        warn!(%why, "the node's ResourceSlice cannot be published; trying again");
                    }
                    (told, published) = (why, None);
                }
            }
        }
        if timeout(ASK_PERIOD, registered.notified()).await.is_ok() {
            looked = None;
            // Let the kubelet, which has just started, finish what it removes.
            sleep(ASK_PERIOD).await;
        }
    }
}

/// Returns the devices of the slice.
fn read_devices(settings: &DraSettings) -> std::io::Result<Value> {
    let status = ask_status(&settings.socket)?;
    Ok(match settings.companion_of {
        Some(_) => limits_device(),
        None => shared_devices(&offered_devices(&status, &settings.driver)),
    })
}

/// Makes the slice, or replaces one with other devices.
fn publish_once(settings: &DraSettings, devices: &Value) -> Result<(), String> {
    let DraSettings { driver, node, api, .. } = settings;
    let path = format!("/apis/{API_VERSION}/resourceslices");
    let own = format!("{path}/{}", slice_name(node, driver));
    let found = api.get(&own)?;
    let wanted = |owner| resource_slice(node, driver, owner, devices);
    let count = devices.as_array().map_or(0, Vec::len);
    match found {
        None => {
            // A slice without an owner is left behind when the node goes.
            let owner = api.get(&format!("/api/v1/nodes/{node}"))?;
            let owner = owner.as_ref().and_then(|node| node["metadata"]["uid"].as_str());
            api.create(&path, &wanted(owner))?;
            info!(driver, devices = count, "published the node's ResourceSlice");
        }
        Some(found) => {
            if let Some(object) = replace_slice(&found, &wanted(None)) {
                api.replace(&own, &object)?;
                info!(driver, devices = count, "replaced the node's ResourceSlice");
            }
        }
    }
    Ok(())
}
