//! The program's symbol lookups (`dlsym`, `dlvsym`, `cuGetProcAddress`) and their answers.
//!
//! - [`answer`]: what a lookup gets; its `loader`: `dlopen`, `dlmopen`, and lookups of the loader's own functions
//! - [`names`]: the names that are decided here; [`hook_addresses`], [`in_place`]: the hooks that replace functions
//! - [`bypasses`]: lookups that lead around the hooks

pub mod answer;
pub mod bypasses;
pub mod hook_addresses;
pub mod in_place;
pub mod names;
