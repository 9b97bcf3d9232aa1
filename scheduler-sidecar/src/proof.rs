//! Is it enforced? What the kernel and the driver say of processes at the devices, beside what is registered.
//!
//! [`processes`] looks through /proc ([`image`]: which program a process runs), [`driver`] asks NVML, [`judge`] compares both with who is registered and with what
//! tenants may hold ([`limits`]), without IO; [`uncharged`] is the memory that the driver holds beside the ledgers, which
//! counts against limits. Events, and the policy that stops processes, are the daemon's. docs/threats.md names what cannot
//! be seen this way.

pub mod driver;
pub mod image;
pub mod judge;
pub mod limits;
pub mod processes;
pub mod time;
pub mod uncharged;
