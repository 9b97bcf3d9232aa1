//! Options for a tenant's terms, which `vgpu set` and `vgpu tenant add` share.

/// Terms as written on the command line; the daemon's file has keys of the same names.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TermsOptions {
    /// Most memory on each device: 4GiB, 1500M, 25%, unlimited.
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<String>,

    /// Ceiling on the device's time in percent: 30, 12.5, unlimited.
    #[arg(long, value_name = "PERCENT")]
    pub sm_limit: Option<String>,

    /// Floor: guaranteed device time while the tenant wants it, in percent: 30, 12.5, none.
    #[arg(long, value_name = "PERCENT")]
    pub sm_request: Option<String>,

    /// The tenant's part of the time that floors leave: 1 to 10000.
    #[arg(long, value_name = "N")]
    pub weight: Option<String>,

    /// Class, the first is served first: latency, normal, batch.
    #[arg(long, value_name = "CLASS")]
    pub class: Option<String>,
}
