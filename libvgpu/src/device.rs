//! device

pub mod current;
pub mod list;
pub mod multi_device_launch;
pub mod reconnect;
pub mod table;
pub mod usage;
pub mod watch;
