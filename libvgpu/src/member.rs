//! member

pub mod boot;
pub mod configuration;
pub mod enforce;
pub mod register;
