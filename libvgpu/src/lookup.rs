//! lookup

pub mod answer;
pub mod bypasses;
pub mod hook_addresses;
pub mod in_place;
pub mod names;
