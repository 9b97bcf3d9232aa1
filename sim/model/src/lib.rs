//! The simulated GPU: a device model in shared memory, its profiles and its ground truth.
//!
//! Many processes share one machine, a file mapped by all. Memory is counted by an allocator of its own; device time is
//! computed from timestamps when somebody looks, no thread sleeps for a kernel. A process may be killed at any
//! instruction: its slot is buried by whoever looks next.
//!
//! What the model says about time: a device has an engine for kernels and two for copies (`sched`). On each processes
//! take turns in slices, or share evenly under MPS; inside a process the work of an engine runs one after another in the
//! order of submission, whatever its stream, as when every kernel fills the device. That order is always one the streams
//! allow. Streams decide when an event is reached, what a query answers and what a wait waits for (`engine`).
//! docs/simulated-device.md says which behaviours of real devices this reproduces, from which source, and which not.
//!
//! Not here: the C interfaces (sim/cuda, sim/nvml), capture, graphs.

pub mod admin;
mod bury;
pub mod checkpoint;
pub mod device;
pub mod engine;
pub mod faults;
pub mod forecast;
pub mod layout;
mod lines;
pub mod lock;
pub mod machine;
pub mod memory;
pub mod profile;
pub mod release;
pub mod sched;
mod segments;
pub mod share;
pub mod slab;
pub mod timeline;
pub mod truth;
pub mod virtual_device;

pub use device::{Identity, Memory, ProcessUse, Sample};
pub use machine::{Machine, directory, now, wall};
pub use profile::Profile;
pub use timeline::Timeline;
pub use truth::Truth;
pub use virtual_device::VirtualDevice;
