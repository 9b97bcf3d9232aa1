//! Programs that wait for their work: that work is over, and is charged at once.
//!
//! So a program that synchronises after every launch is never asked whether its stream is busy: it has just found
//! out.

use super::{Governor, active};
use crate::ledger::Joined;
use crate::order::{Order, Place};
use crate::{clock, device};
use shim_sys::cuda::CUcontext;

/// The object that a program waits for.
#[derive(Clone, Copy)]
pub enum Awaited {
    /// The program waits for this stream.
    Stream(Order),
    /// The program waits for all work of the current context.
    Current,
    /// An event, which reveals nothing about any stream.
    Event,
}

/// The work in flight when a program began to wait.
pub struct Before {
    governor: &'static Governor,
    joined: &'static Joined,
    context: CUcontext,
    awaited: Awaited,
    stream: Option<Place>,
    launches: u64,
}

/// Notes the work in flight, before the driver is asked to wait for it. `None`: nothing is measured here.
///
/// # Cost
/// One load where there is no ceiling; else one driver call.
#[inline]
pub fn before(awaited: Awaited) -> Option<Before> {
    if active() { note(awaited) } else { None }
}

#[cold]
fn note(awaited: Awaited) -> Option<Before> {
    let (context, device) = crate::enforce::on_current().ok()??;
    let governor = device.governor.as_ref()?;
    let joined = device.ledger.joined().ok()?;
    let stream = match awaited {
        Awaited::Stream(order) => Some(Place { key: order.key(), context: context.0 as usize }),
        Awaited::Current | Awaited::Event => None,
    };
    let launches = governor.meter().launches(stream);
    Some(Before { governor, joined, context, awaited, stream, launches })
}

/// The driver has waited: charges completed work.
#[cold]
pub fn after(before: &Before) {
    let Before { governor, joined, context, awaited, stream, launches } = *before;
    governor.reap(joined, context);
    if !matches!(awaited, Awaited::Event) {
        let pay = |due, since| governor.charge(joined, due, since);
        governor.meter().drained(context.0 as usize, stream, launches, clock::now(), pay);
    }
    governor.settle_debt(joined);
}

/// A stream is about to end.
pub fn stream_ending(order: Order) {
    if active() && !order.is_special() {
        device::all().filter_map(|device| device.governor.as_ref()).for_each(|governor| {
            governor.stream_ended(order.key());
        });
    }
}
