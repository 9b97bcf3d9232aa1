//! driver

pub mod contexts;
pub mod green_contexts;
pub mod launch;
pub mod library;
pub mod own;
pub mod pointers;
pub mod primary_contexts;
pub mod streams;
