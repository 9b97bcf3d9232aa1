//! ffi

pub mod arch;
pub mod clock;
pub mod guard;
pub mod loader;
pub mod lock;
pub mod name_text;
pub mod search_order;
pub mod sorted_map;
pub mod thread;
pub mod uuid;
