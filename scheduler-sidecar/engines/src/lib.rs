//! Requests of schedulers, as tenants of vgpud: [`request`] turns a job into a tenant's section, [`bill`] turns its
//! usage into a bill, [`slurm`] reads Slurm's texts, [`kubernetes`] reads annotations and variables of a container.
//!
//! Pure functions: no IO, no clock, no environment. The command line runs the schedulers' programs and asks vgpud.
#![forbid(unsafe_code)]

pub mod bill;
pub mod kubernetes;
pub mod request;
pub mod slurm;
