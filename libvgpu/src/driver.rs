//! driver

pub mod contexts;
pub mod library;
pub mod own;
pub mod streams;
