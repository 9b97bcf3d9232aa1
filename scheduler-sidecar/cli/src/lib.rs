//! The command line `vgpu`: parses the arguments; each command is implemented in its own file.
//!
//! Commands: [`run`], [`check`], [`doctor`], [`validate`], [`docker`], [`cdi`]; for the daemon [`status`], [`mod@top`],
//! [`ps`], [`queue`], [`set`], [`tenant`], [`slurm`], [`k8s`], [`pause`](mod@pause), [`label`], [`mod@cordon`],
//! [`mod@book`], [`groups`], [`explain`], [`events`], [`audit`], [`metrics`]; for its record [`usage`], [`report`];
//! [`sim`], [`clean`], [`completions`], [`man`]. Another program: [`mod@checkpoint`]. Shared code: [`ask`] (asks the
//! daemon), [`library`] (finds libvgpu.so and the simulated driver), [`program`] and [`elf`] (identify a program
//! without running it), [`arch`] (machine names), [`loader`] (asks the dynamic loader), [`ledgers`], [`when`] (points
//! in time), [`vgpu_output::say`] (output and exit codes). docs/cli.md is generated from the help texts here, and a
//! test keeps it up to date.
#![forbid(unsafe_code)]

pub mod audit;
pub mod book;
pub mod cdi;
pub mod check;
pub mod checkpoint;
pub mod clean;
pub mod completions;
pub mod cordon;
pub mod docker;
pub mod doctor;
pub mod events;
pub mod explain;
pub mod groups;
pub mod k8s;
pub mod label;
pub mod man;
pub mod metrics;
pub mod pause;
pub mod ps;
pub mod queue;
pub mod report;
pub mod run;
pub mod set;
pub mod sim;
pub mod slurm;
pub mod status;
pub mod tenant;
mod terms;
pub mod top;
pub mod usage;
pub mod validate;

pub mod arch;
pub mod ask;
pub mod configuration;
pub mod elf;
pub mod ledgers;
pub mod library;
pub mod loader;
pub mod program;
pub mod when;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use vgpu_output::say;

/// Shares one NVIDIA GPU among programs and containers, with a memory quota and a share of its time each.
#[derive(Debug, Parser)]
#[command(
    name = "vgpu",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  vgpu run --memory-limit 4GiB --sm-limit 30 -- python3 train.py
  vgpu run --sim --memory-limit 1GiB -- nvidia-smi   # the simulated GPU, anywhere
  vgpu docker run --memory-limit 4GiB -- --rm --gpus all IMAGE nvidia-smi
  vgpu doctor                                        # problems here, and their remedies
  vgpu top                                           # the daemon's tenants, live
  vgpu set train --sm-limit 30
  vgpu report usage --month this

Environment:
  VGPU_LIBRARY       libvgpu.so to use, instead of the one next to this program
  VGPU_RUNTIME_DIR   directory of the daemon's administrative socket
  VGPU_ADMIN_SOCKET  that socket itself, if it is elsewhere
  NO_COLOR           disables colours on every terminal"
)]
pub struct Cli {
    #[command(subcommand)]
    verb: CliVerb,
}

#[derive(Debug, Subcommand)]
enum CliVerb {
    Run(run::Args),
    Check(check::Args),
    Doctor(doctor::Args),
    Status(status::Args),
    Top(top::Args),
    Ps(ps::Args),
    Queue(queue::Args),
    Set(set::Args),
    Tenant(tenant::Args),
    Slurm(slurm::Args),
    K8s(k8s::Args),
    Pause(pause::PauseArgs),
    Resume(pause::ResumeArgs),
    Exclusive(pause::ExclusiveArgs),
    Unset(pause::UnsetArgs),
    Label(label::Args),
    Cordon(cordon::CordonArgs),
    Evacuate(cordon::EvacuateArgs),
    Uncordon(cordon::UncordonArgs),
    Book(book::BookArgs),
    Bookings(book::BookingsArgs),
    Groups(groups::Args),
    Explain(explain::Args),
    Usage(usage::Args),
    Report(report::Args),
    Validate(validate::Args),
    Events(events::Args),
    Audit(audit::Args),
    Metrics(metrics::Args),
    Docker(docker::Args),
    Cdi(cdi::Args),
    Sim(sim::Args),
    Clean(clean::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Cli {
    /// Runs the command and returns its exit code.
    ///
    /// # Errors
    /// [`say::Failure`]: a message with its exit code.
    pub fn run(self) -> Result<ExitCode, say::Failure> {
        match self.verb {
            CliVerb::Run(args) => run::run(&args).map(|never| match never {}),
            CliVerb::Check(args) => check::run(&args),
            CliVerb::Doctor(args) => doctor::run(&args),
            CliVerb::Status(args) => status::run(&args),
            CliVerb::Top(args) => top::run(&args),
            CliVerb::Ps(args) => ps::run(&args),
            CliVerb::Queue(args) => queue::run(&args),
            CliVerb::Set(args) => set::run(&args),
            CliVerb::Tenant(args) => tenant::run(&args),
            CliVerb::Slurm(args) => slurm::run(&args),
            CliVerb::K8s(args) => k8s::run(&args),
            CliVerb::Pause(args) => pause::pause(&args),
            CliVerb::Resume(args) => pause::resume(&args),
            CliVerb::Exclusive(args) => pause::exclusive(&args),
            CliVerb::Unset(args) => pause::unset(&args),
            CliVerb::Label(args) => label::run(&args),
            CliVerb::Cordon(args) => cordon::cordon(&args),
            CliVerb::Evacuate(args) => cordon::evacuate(&args),
            CliVerb::Uncordon(args) => cordon::uncordon(&args),
            CliVerb::Book(args) => book::book(&args),
            CliVerb::Bookings(args) => book::bookings(&args),
            CliVerb::Groups(args) => groups::run(&args),
            CliVerb::Explain(args) => explain::run(&args),
            CliVerb::Usage(args) => usage::run(&args),
            CliVerb::Report(args) => report::run(&args),
            CliVerb::Validate(args) => validate::run(&args),
            CliVerb::Events(args) => events::run(&args),
            CliVerb::Audit(args) => audit::run(&args),
            CliVerb::Metrics(args) => metrics::run(&args),
            CliVerb::Docker(args) => docker::run(&args),
            CliVerb::Cdi(args) => cdi::run(&args),
            CliVerb::Sim(args) => sim::run(&args),
            CliVerb::Clean(args) => clean::run(&args),
            CliVerb::Completions(args) => completions::run(&args, Self::command()),
            CliVerb::Man(args) => man::run(&args, Self::command()),
        }
    }
}
