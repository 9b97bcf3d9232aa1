//! Passes one call through the launch gates of all the devices it works on, each in the context of its stream.
//!
//! A kernel runs in the current context and has one gate (`hooks::launch`). A copy runs in the context of its stream,
//! which need not be the current one. A cooperative launch can run on several devices at once. Gates are passed in
//! order of the device numbers, so that two multi-device launches cannot deadlock on each other's gates.

use crate::device::table::Device;
use crate::driver::launch::MeteredLaunch;
use crate::driver::own;
use crate::driver::streams;
use shim_sys::cuda::{CUcontext, CUresult};

/// One device's share of a call.
pub struct CallPart {
    /// The device on which this part of the call does its work.
    pub device: &'static Device,
    /// The launch on that device.
    pub launch: MeteredLaunch,
}

/// Makes a call that works on several devices. First it waits at each gate without launching.
pub fn through_all(parts: &mut [CallPart], real: &mut dyn FnMut() -> CUresult) -> CUresult {
    // Insertion sort: there are a few devices at most, and the standard library's sort takes 3 KB of code.
    for end in 1..parts.len() {
        let mut at = end;
        while at > 0 && parts[at - 1].device.index > parts[at].device.index {
            parts.swap(at - 1, at);
            at -= 1;
        }
    }
    if parts.len() > 1 {
        parts.iter().for_each(wait_at_gate);
    }
    pass_gates(parts, real)
}

/// Waits until the part's launch may go, in the context of its stream.
fn wait_at_gate(part: &CallPart) {
    let (Some(governor), Ok(joined)) = (&part.device.governor, part.device.ledger.membership()) else { return };
    let is_current = streams::current() == part.launch.context;
    if is_current || enter_context(part.launch.context) {
        governor.wait_at_gate(joined, &part.launch);
        if !is_current {
            leave_context();
        }
    }
}

/// Passes the gates of `parts` one after the other, then makes the call.
pub fn pass_gates(parts: &[CallPart], real: &mut dyn FnMut() -> CUresult) -> CUresult {
    let Some((part, rest)) = parts.split_first() else { return real() };
    let Some(governor) = &part.device.governor else { return pass_gates(rest, real) };
    let joined = match part.device.ledger.membership() {
        Ok(joined) => joined,
        Err(_) if part.device.is_observed() => return pass_gates(rest, real),
        Err(_) => return CUresult::NOT_PERMITTED,
    };
    let context = part.launch.context;
    if streams::current() == context {
        let further: &mut dyn FnMut() -> CUresult = &mut || pass_gates(rest, real);
        return governor.launch(joined, part.launch, further);
    }
    if !enter_context(context) {
        return pass_gates(rest, real);
    }
    let further: &mut dyn FnMut() -> CUresult = &mut || {
        leave_context();
        let result = pass_gates(rest, real);
        enter_context(context);
        result
    };
    let result = governor.launch(joined, part.launch, further);
    leave_context();
    result
}

/// Makes `context` current; false: the driver refused.
fn enter_context(context: CUcontext) -> bool {
    // SAFETY: a context that the driver has just named; `leave` pops every successful push.
    own::cuCtxPushCurrent_v2().is_some_and(|push| unsafe { push(context) }.ok())
}

/// Restores the context that was current before `enter`.
fn leave_context() {
    let mut left = CUcontext::NULL;
    if let Some(pop) = own::cuCtxPopCurrent_v2() {
        // SAFETY: a pointer to a local; `enter` pushed the context that is popped.
        let _ = unsafe { pop(&raw mut left) };
    }
}
