//! The simulated GPU: a device model in shared memory, its hardware profiles and its ground truth.
//!
//! All processes of one simulated machine map the same file. The model has its own allocator, which counts
//! memory. No thread sleeps for a kernel: device time is computed from timestamps when a caller asks. A process
//! may be killed at any instruction; the next process that looks removes its slot.
//!
//! How the model treats time: a device has one engine for kernels and two for copies (`sched`). On each engine
//! processes take turns in slices, or share it evenly under MPS. Inside a process an engine runs its work in the
//! order of submission, whatever the stream, as if every kernel filled the device. That order never violates the
//! order of a stream. Streams decide when an event is reached, the answer to a query, and when a wait ends
//! (`engine`). docs/simulated-device.md lists which behaviours of real devices this reproduces, with sources, and
//! which it does not.
//!
//! Not here: the C interfaces (sim/cuda, sim/nvml), stream capture, graphs.

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
mod numbers;
pub mod profile;
pub mod release;
pub mod sched;
mod segments;
pub mod share;
pub mod slab;
pub mod timeline;
pub mod truth;
pub mod virtual_device;
pub mod xid;

pub use device::{DeviceIdentity, DeviceMemory, ProcessUse, UtilisationSample};
pub use machine::{MachineView, default_directory, now, wall_ns};
pub use profile::DeviceProfile;
pub use timeline::DeviceTimeline;
pub use truth::MachineTruth;
pub use virtual_device::VirtualDevice;
