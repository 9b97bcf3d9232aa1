//! Launches and uploads of executable graphs.

use super::executable;
use crate::calls::launch::spend;
use crate::door::{Answer, Door};
use crate::graph::exec::Exec;
use crate::graph::memory::Line;
use crate::graph::run;
use shim_sys::cuda::*;

/// The stream of a handle, with its device.
pub(crate) fn line(d: &Door, stream: CUstream) -> Result<Line, CUresult> {
    let (context, id) = d.stream(stream)?;
    let engine = d.driver()?.device(context.device)?.engine.clone();
    Ok(Line { device: context.device, engine, stream: id })
}

pub(super) fn upload(d: &Door, exec: &Exec, stream: CUstream) -> Answer {
    run::upload(d.driver()?, exec, &line(d, stream)?)
}

pub(crate) unsafe fn cuGraphLaunch(d: &Door, exec: CUgraphExec, stream: CUstream) -> Answer {
    let x = executable(d, exec)?;
    let (driver, line) = (d.driver()?, line(d, stream)?);
    spend(driver.device(line.device)?.profile.launch_host_ns);
    run::launch(driver, &x, &line)
}

pub(crate) unsafe fn cuGraphUpload(d: &Door, exec: CUgraphExec, stream: CUstream) -> Answer {
    let x = executable(d, exec)?;
    upload(d, &x, stream)
}
