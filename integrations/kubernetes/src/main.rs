//! `vgpu-k8s`: the command line of the agent.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use vgpu_kubernetes::device_plugin::{PluginArgs, run_plugins};
use vgpu_kubernetes::dra::{DraArgs, run_driver};
use vgpu_kubernetes::install::{InstallArgs, run_install};
use vgpu_kubernetes::nri::audit::{AuditArgs, run_audit};
use vgpu_kubernetes::nri::{NriArgs, run_nri};

/// Offers tenants of vgpud to Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "vgpu-k8s", version, max_term_width = 100)]
struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    DevicePlugin(PluginArgs),
    Nri(NriArgs),
    Dra(DraArgs),
    Audit(AuditArgs),
    InstallLibrary(InstallArgs),
}

fn main() -> ExitCode {
    let verb = Options::parse().verb;
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).with_ansi(false).init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(|why| why.to_string()).and_then(|runtime| runtime.block_on(run_verb(verb))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("vgpu-k8s: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn run_verb(verb: Verb) -> Result<(), String> {
    match verb {
        Verb::DevicePlugin(args) => run_plugins(args).await,
        Verb::Nri(args) => run_nri(args).await,
        Verb::Audit(args) => run_audit(args).await,
        Verb::InstallLibrary(args) => run_install(&args),
        Verb::Dra(args) => run_driver(args).await,
    }
}
