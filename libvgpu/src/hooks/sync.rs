//! Synchronising calls: the driver gives back what pools hold beyond their thresholds in them, and the charge follows; the
//! meter charges what is over. And the end of a stream.
//!
//! Queries do not: by the driver's documentation it is the calls that wait.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on as they came.
#![allow(clippy::undocumented_unsafe_blocks)]

use crate::departing;
use crate::governor::{self, Awaited};
use crate::order::Order;
use crate::pools::{self, Waited};
use shim_sys::cuda::*;
use shim_sys::table::cuda_fn;

macro_rules! wait {
    ($($name:ident ( $($arg:ident : $ty:ty)? ) for $what:expr, $awaited:expr;)*) => {$(
        #[inline]
        pub unsafe fn $name(real: cuda_fn::$name $(, $arg: $ty)?) -> CUresult {
            let (since, announced) = (departing::newest(), pools::shrinking());
            let in_flight = governor::before($awaited);
            let result = unsafe { real($($arg)?) };
            if result.ok() {
                pools::synchronised($what, since, announced);
                in_flight.as_ref().into_iter().for_each(governor::after);
            }
            result
        }
    )*};
}

wait! {
    cuStreamSynchronize(stream: CUstream) for Waited::Stream(Order { stream, per_thread: false }), Awaited::Stream(Order { stream, per_thread: false });
    cuStreamSynchronize_ptsz(stream: CUstream) for Waited::Stream(Order { stream, per_thread: true }), Awaited::Stream(Order { stream, per_thread: true });
    cuEventSynchronize(event: CUevent) for Waited::Event, Awaited::Event;
    cuCtxSynchronize() for Waited::Current, Awaited::Current;
    cuCtxSynchronize_v2(ctx: CUcontext) for Waited::Context(ctx), Awaited::Event;
}

macro_rules! end {
    ($($name:ident)*) => {$(
        /// What the stream has still to come to must not be taken for that of the next one with its handle.
        #[inline]
        pub unsafe fn $name(real: cuda_fn::$name, stream: CUstream) -> CUresult {
            pools::stream_ending(Order { stream, per_thread: false });
            governor::stream_ending(Order { stream, per_thread: false });
            unsafe { real(stream) }
        }
    )*};
}

end! { cuStreamDestroy cuStreamDestroy_v2 }
