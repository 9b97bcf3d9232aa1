//! Records the begin of stream captures before the driver is called. From the first capture on, this library makes
//! its own driver calls so that they do not disturb a capture (`streams::quietly`).
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged.
#![allow(clippy::undocumented_unsafe_blocks)]

use crate::driver::streams;
use core::ffi::c_void;
use shim_sys::cuda::*;
use shim_sys::table::cuda_fn;

macro_rules! begins {
    ($($name:ident($($arg:ident : $ty:ty),*);)*) => {$(
        pub unsafe fn $name(real: cuda_fn::$name, $($arg: $ty),*) -> CUresult {
            let _begins = streams::expect_captures();
            unsafe { real($($arg),*) }
        }
    )*};
}

begins! {
    cuStreamBeginCapture(stream: CUstream);
    cuStreamBeginCapture_ptsz(stream: CUstream);
    cuStreamBeginCapture_v2(stream: CUstream, mode: u32);
    cuStreamBeginCapture_v2_ptsz(stream: CUstream, mode: u32);
    cuStreamBeginCaptureToGraph(
        stream: CUstream,
        graph: CUgraph,
        deps: *const CUgraphNode,
        edges: *const CUgraphEdgeData,
        count: usize,
        mode: u32
    );
    cuStreamBeginCaptureToGraph_ptsz(
        stream: CUstream,
        graph: CUgraph,
        deps: *const CUgraphNode,
        edges: *const CUgraphEdgeData,
        count: usize,
        mode: u32
    );
    cuStreamBeginCaptureToCig(stream: CUstream, params: *mut c_void);
    cuStreamBeginCaptureToCig_ptsz(stream: CUstream, params: *mut c_void);
    cuStreamBeginRecaptureToGraph(stream: CUstream, mode: u32, graph: CUgraph, differs: *mut c_void, data: *mut c_void);
    cuStreamBeginRecaptureToGraph_ptsz(
        stream: CUstream,
        mode: u32,
        graph: CUgraph,
        differs: *mut c_void,
        data: *mut c_void
    );
}
