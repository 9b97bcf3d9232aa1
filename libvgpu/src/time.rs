//! time

pub mod credit;
pub mod governor;
pub mod meter;
pub mod turn;
