//! This process as a member of its tenant: from the environment to limits to devices, and the check that every hook
//! begins with.
//!
//! - [`configuration`]: the limits that were asked for; [`boot`]: reads them once, at the first `cuInit` or `nvmlInit`
//! - [`register`]: registers the devices; [`enforce`]: the check, and what a forked child gives up

pub mod boot;
pub mod configuration;
pub mod enforce;
pub mod register;
