//! member

pub mod boot;
pub mod enforce;
