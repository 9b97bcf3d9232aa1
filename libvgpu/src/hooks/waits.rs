//! Programs that wait for their work: that work is over, and is charged at once.
//!
//! So a program that synchronises after every launch is never asked whether its stream is busy: it has just found
//! out.

use crate::device::table;
use crate::driver::streams::{StreamId, StreamLocation};
use crate::ledger::joined::JoinedLedger;
use crate::member::enforce;
use crate::time::governor::{Governor, is_active};
use shim_sys::cuda::CUcontext;

/// The object that a program waits for.
#[derive(Clone, Copy)]
pub enum WaitTarget {
    /// The program waits for this stream.
    Stream(StreamId),
    /// The program waits for all work of the current context.
    Current,
    /// An event, which reveals nothing about any stream.
    Event,
}

/// The work in flight when a program began to wait.
pub struct BeforeWait {
    governor: &'static Governor,
    joined: &'static JoinedLedger,
    context: CUcontext,
    awaited: WaitTarget,
    stream: Option<StreamLocation>,
    launches: u64,
}

/// Notes the work in flight, before the driver is asked to wait for it. `None`: nothing is measured here.
///
/// # Cost
/// One load where there is no ceiling; else one driver call.
#[inline]
pub fn before_wait(awaited: WaitTarget) -> Option<BeforeWait> {
    if is_active() { note_in_flight(awaited) } else { None }
}

#[cold]
fn note_in_flight(awaited: WaitTarget) -> Option<BeforeWait> {
    let (context, device) = enforce::on_current().ok()??;
    let governor = device.governor.as_ref()?;
    let joined = device.ledger.membership().ok()?;
    let stream = match awaited {
        WaitTarget::Stream(order) => Some(StreamLocation { key: order.stream_key(), context: context.0 as usize }),
        WaitTarget::Current | WaitTarget::Event => None,
    };
    let launches = governor.launch_count(stream);
    Some(BeforeWait { governor, joined, context, awaited, stream, launches })
}

/// The driver has waited: charges completed work.
#[cold]
pub fn after_wait(before: &BeforeWait) {
    let BeforeWait { governor, joined, context, awaited, stream, launches } = *before;
    let drained = if matches!(awaited, WaitTarget::Event) { None } else { Some((stream, launches)) };
    governor.note_waited(joined, context, drained);
}

/// A stream is about to end.
pub fn stream_ending(order: StreamId) {
    if is_active() && !order.is_special() {
        table::all().filter_map(|device| device.governor.as_ref()).for_each(|governor| {
            governor.stream_ended(order.stream_key());
        });
    }
}
