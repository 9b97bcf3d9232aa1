//! process

pub mod copies;
pub mod device_count;
pub mod environment;
pub mod fork;
pub mod helper_thread;
pub mod limit_request;
pub mod message;
pub mod mode;
pub mod strictness;
pub mod tenant;
