//! lookup

pub mod answer;
pub mod bypasses;
pub mod names;
