//! Fuzz targets for all input that a tenant or an administrator can send: one function per interface, which
//! panics if a guarantee is broken.
//!
//! The same functions run in two ways: under libFuzzer, which searches for inputs that reach new code (`make
//! fuzz`, [targets](../targets/src/main.rs), a separate package), and on seeded random inputs in `cargo test` and
//! `make soak` ([`random`]), which needs no C++ compiler and little time.
//!
//! - [`wire`]: lines between members and daemon, in both directions, and the terms file
//! - [`pages`]: the report page that a tenant writes, and the arbiter's reaction
//! - [`files`]: the configuration, and the administrator's line
//!
//! Not here: sockets (scheduler-sidecar/daemon/tests/soak.rs sends random input to a running daemon).

pub mod files;
pub mod pages;
pub mod random;
pub mod wire;

/// A fuzz target: a function of the product's inputs and the seeds for it.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name of the target: `make fuzz TARGETS=name`.
    pub name: &'static str,
    /// Checks one input; panics if a guarantee is broken.
    pub run: fn(&[u8]),
    /// Valid inputs to start from.
    pub seeds: &'static [&'static [u8]],
    /// Words from which inputs are built.
    pub words: &'static [&'static str],
    /// Length of the longest input that is useful, bytes.
    pub longest: usize,
}

/// All fuzz targets.
pub const TARGETS: &[Target] = &[
    Target { name: "ask", run: wire::ask, seeds: wire::ASKS, words: wire::WIRE_WORDS, longest: 4200 },
    Target { name: "reply", run: wire::reply, seeds: wire::REPLIES, words: wire::WIRE_WORDS, longest: 4200 },
    Target { name: "terms", run: wire::terms, seeds: wire::TERMS, words: wire::WIRE_WORDS, longest: 8192 },
    Target { name: "report", run: pages::report, seeds: pages::SEEDS, words: &[], longest: 4096 },
    Target { name: "arbiter", run: pages::arbiter, seeds: pages::SEEDS, words: &[], longest: 4096 },
    Target { name: "config", run: files::config, seeds: files::CONFIGS, words: files::FILE_WORDS, longest: 8192 },
    Target { name: "admin", run: files::admin, seeds: files::QUESTIONS, words: files::KEYS, longest: 4200 },
];
