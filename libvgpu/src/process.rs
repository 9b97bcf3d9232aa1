//! process

pub mod copies;
pub mod environment;
pub mod fork;
pub mod helper_thread;
pub mod limit_request;
pub mod message;
pub mod mode;
pub mod tenant;
