//! Units: amounts of memory, shares of device time, and device UUIDs, with how people write them.

pub mod bytes;
pub(crate) mod decimal;
pub mod share;
pub mod uuid;
