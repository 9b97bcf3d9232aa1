//! The variables beside the limits: modes ([`modes`]), and every row of the table of variables, as programs meet them
//! ([`rows`]), and what a program changes in its own environment after its start ([`later`]). What each value means is pinned in vgpu-core (`tests/modes.rs`, `tests/variables.rs`), bad values in
//! `input.rs`.

mod later;
mod modes;
mod rows;

use std::fs;
use vgpu_core::ledger::{Copied, copied};
use vgpu_tests::Lab;

/// What the lab's only ledger says; `None`: there is none.
fn ledger(lab: &Lab) -> Option<Copied> {
    let file = fs::read_dir(lab.state()).unwrap().next()?.unwrap();
    Some(copied(&fs::read(file.path()).unwrap()).expect("a ledger"))
}
