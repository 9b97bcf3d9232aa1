//! Synchronising calls and the end of a stream. In a synchronising call the driver takes back memory that pools hold
//! beyond their thresholds, and the charge follows; the meter charges the work that has finished.
//!
//! Queries are not hooked: by the driver's documentation only waiting calls do this.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::waits::{self, WaitTarget};
use crate::driver::streams::StreamId;
use crate::member::enforce;
use crate::memory::deferred_frees;
use crate::memory::pools::{self, ShrinkingCall, WaitedFor};
use shim_sys::cuda::*;
use shim_sys::table::cuda_fn;

macro_rules! wait {
    ($($name:ident ( $($arg:ident : $ty:ty)? ) for $what:expr, $awaited:expr;)*) => {$(
        #[inline]
        pub unsafe fn $name(real: cuda_fn::$name $(, $arg: $ty)?) -> CUresult {
            let (since, announced) = (deferred_frees::last_free_number(), pools::begin_shrinking());
            let in_flight = waits::before_wait($awaited);
            let result = unsafe { real($($arg)?) };
            if result.ok() {
                note_synchronised($what, since, announced);
                in_flight.as_ref().into_iter().for_each(waits::after_wait);
            }
            result
        }
    )*};
}

wait! {
    cuStreamSynchronize(stream: CUstream) for WaitedFor::Stream(StreamId { stream, per_thread: false }), WaitTarget::Stream(StreamId { stream, per_thread: false });
    cuStreamSynchronize_ptsz(stream: CUstream) for WaitedFor::Stream(StreamId { stream, per_thread: true }), WaitTarget::Stream(StreamId { stream, per_thread: true });
    cuEventSynchronize(event: CUevent) for WaitedFor::Event, WaitTarget::Event;
    cuCtxSynchronize() for WaitedFor::Current, WaitTarget::Current;
    cuCtxSynchronize_v2(ctx: CUcontext) for WaitedFor::Context(ctx), WaitTarget::Event;
}

macro_rules! end {
    ($($name:ident)*) => {$(
        /// Work that the stream has not reached must not be attributed to a later stream with the same handle.
        #[inline]
        pub unsafe fn $name(real: cuda_fn::$name, stream: CUstream) -> CUresult {
            stream_ending(StreamId { stream, per_thread: false });
            waits::stream_ending(StreamId { stream, per_thread: false });
            unsafe { real(stream) }
        }
    )*};
}

end! { cuStreamDestroy cuStreamDestroy_v2 }

/// Lets the charges of pools follow a wait.
///
/// # Cost
/// One branch where no pool holds unused memory and no free is deferred.
#[inline]
fn note_synchronised(waited_for: WaitedFor, since: u64, announced: Option<ShrinkingCall>) {
    if pools::may_have_shrunk() {
        note_shrunk(waited_for, since, announced.as_ref());
    }
}

#[cold]
fn note_shrunk(waited_for: WaitedFor, since: u64, announced: Option<&ShrinkingCall>) {
    // A forked child has no pools.
    if enforce::is_enforced() == Ok(true) {
        pools::note_synchronised(waited_for, since, announced);
    }
}

/// Handles a stream that is about to be destroyed.
///
/// # Cost
/// Two loads where no pool is charged and no free is deferred.
#[inline]
fn stream_ending(order: StreamId) {
    if pools::any_in_streams() {
        forget_stream(order);
    }
}

#[cold]
fn forget_stream(order: StreamId) {
    if !order.is_special() && enforce::is_enforced() == Ok(true) {
        pools::forget_stream(order);
    }
}
