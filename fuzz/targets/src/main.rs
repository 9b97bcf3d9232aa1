//! Entry point of libFuzzer. `VGPU_FUZZ_TARGET` names the function that gets its inputs, `VGPU_FUZZ_SEEDS` the
//! directory to which the initial inputs are written.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;
use vgpu_fuzz::{TARGETS, Target};

static CHOSEN: OnceLock<&Target> = OnceLock::new();

fn chosen() -> &'static Target {
    CHOSEN.get_or_init(|| {
        let name = std::env::var("VGPU_FUZZ_TARGET").unwrap_or_default();
        let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        let target = TARGETS.iter().find(|target| target.name == name);
        let target = target.unwrap_or_else(|| panic!("VGPU_FUZZ_TARGET={name:?}; accepted: {}", known.join(", ")));
        if let Some(dir) = std::env::var_os("VGPU_FUZZ_SEEDS").map(PathBuf::from) {
            for (number, seed) in target.seeds.iter().enumerate() {
                std::fs::write(dir.join(format!("seed-{number}")), seed).expect("the directory of seeds is writable");
            }
            let words = target.words.iter().enumerate().map(|(number, word)| (10_000 + number, word));
            for (number, word) in words {
                std::fs::write(dir.join(format!("seed-{number}")), word).expect("the directory of seeds is writable");
            }
        }
        target
    })
}

libfuzzer_sys::fuzz_target!(init: { let _ = chosen(); }, |bytes: &[u8]| (chosen().run)(bytes));
