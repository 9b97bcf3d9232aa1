//! The agent of a Kubernetes node: offers tenants of vgpud to the cluster as devices, and makes tenants of claims
//! ([`dra`]).
//!
//! ```text
//! vgpud ──status──► offer ──► slices ──► plugin, one a resource ◄──calls── kubelet
//!                                          │    ▲
//!                             allocate ◄───┘    └── kubelet (registration), pods (slice owners) ──► labels ──► vgpud
//!
//! container runtime ──► nri ──► engines::kubernetes (annotations) ──► tenants of vgpud
//! ```
//!
//! `device_plugin` starts the parts of the first line, `nri` those of the last. `install` puts the library onto the
//! node, for containers to load.
#![forbid(unsafe_code)]

pub mod allocate;
pub mod api;
pub mod authority;
pub mod device_plugin;
pub mod dra;
pub mod install;
pub mod kubelet;
pub mod labels;
pub mod nri;
pub mod offer;
pub mod plugin;
pub mod pods;
pub mod signals;
pub mod slices;
