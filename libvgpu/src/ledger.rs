//! ledger

pub mod descriptor_marks;
pub mod file;
