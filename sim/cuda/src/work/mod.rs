//! Work for the device with its addresses resolved, ready to be queued: by a call in a stream, or by the launch of a
//! graph.
//!
//! Not here: the C functions (`calls`), nodes of graphs (`graph::node`).

pub(crate) mod copy;
pub(crate) mod fill;
pub(crate) mod kernel;
