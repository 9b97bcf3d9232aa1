//! Ground of the library, without any knowledge of the driver: machine code, the panic guard, the loader's functions,
//! and small parts.
//!
//! - [`arch`]: machine-specific code, one file per machine; no other module knows registers
//! - [`guard`]: the panic guard around each hook
//! - [`loader`], [`search_order`]: the loader's own functions, and the order in which it searches
//! - [`name_text`], [`sorted_map`], [`uuid`], [`clock`], [`lock`], [`thread`]: small parts

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
