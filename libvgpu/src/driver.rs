//! driver

pub mod contexts;
pub mod launch;
pub mod library;
pub mod own;
pub mod streams;
