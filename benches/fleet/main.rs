//! Simulates a fleet whose jobs stall, in virtual time: the GPU-hours that are lost without and with idle steps.

mod model;
mod picture;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use model::{FleetDay, FleetOutcome, FleetPlan, percent, reaping_steps, simulate_fleet};
use serde::Serialize;
use vgpu_benches::output::{self, MeasuredReport, OutputOptions, Picture};

/// Most percent of the allocated GPU-hours that may be lost with idle steps.
const BUDGET_PERCENT: f64 = 1.0;

#[derive(Parser, Debug)]
#[command(about = "Simulates a fleet whose jobs stall: GPU-hours lost without and with idle steps")]
struct FleetOptions {
    /// Directory of report.md and the picture.
    #[arg(long, default_value = "target/fleet")]
    out: PathBuf,
    /// Seed of the drawn jobs.
    #[arg(long, default_value_t = FleetPlan::DOCUMENTS.seed)]
    seed: u64,
    #[command(flatten)]
    output: OutputOptions,
}

/// Results, with the lost percentage of each day.
#[derive(Serialize)]
struct FleetReport {
    seed: u64,
    tenants: usize,
    days: u64,
    lost_percent_without: f64,
    lost_percent_with: f64,
    jobs_ended: u64,
    jobs_ended_wrongly: u64,
    lost_percent_of_days_without: Vec<f64>,
    lost_percent_of_days_with: Vec<f64>,
}

impl FleetReport {
    fn of(plan: &FleetPlan, without: &FleetOutcome, with: &FleetOutcome) -> Self {
        let days = |outcome: &FleetOutcome| {
            outcome.days.iter().map(|FleetDay { lost, allocated }| percent(*lost, *allocated)).collect::<Vec<_>>()
        };
        Self {
            seed: plan.seed,
            tenants: plan.training + plan.notebooks,
            days: plan.days,
            lost_percent_without: without.lost_percent(),
            lost_percent_with: with.lost_percent(),
            jobs_ended: with.ended,
            jobs_ended_wrongly: with.ended_wrongly,
            lost_percent_of_days_without: days(without),
            lost_percent_of_days_with: days(with),
        }
    }
}

impl MeasuredReport for FleetReport {
    fn to_markdown(&self) -> String {
        format!(
            "# A fleet whose jobs stall\n\n\
             {} tenants, {} days, in virtual time (`vgpu-fleet`, seed {}). Nothing is measured: the jobs are drawn, so often\n\
             stalled that about 5.5 % of the GPU-hours are lost without steps. The detectors and the steps are those of\n\
             the daemon. A training job without a launch for 30 minutes is ended, a notebook after two hours.\n\n\
             | | without idle steps | with idle steps |\n|---|---|---|\n\
             | GPU-hours lost to stalled jobs and forgotten notebooks | {:.2} % | {:.2} % |\n\
             | jobs that a step ended | | {} |\n| of them jobs that would have worked again | | {} |\n\n\
             ![GPU-hours lost on each day](lost.svg)\n",
            self.tenants,
            self.days,
            self.seed,
            self.lost_percent_without,
            self.lost_percent_with,
            self.jobs_ended,
            self.jobs_ended_wrongly
        )
    }

    fn all_pictures(&self) -> Vec<Picture> {
        vec![picture::draw_lost(&self.lost_percent_of_days_without, &self.lost_percent_of_days_with)]
    }
}

fn main() -> ExitCode {
    let options = FleetOptions::parse();
    if options.output.list {
        println!("fleet");
        return ExitCode::SUCCESS;
    }
    let plan = FleetPlan { seed: options.seed, ..FleetPlan::DOCUMENTS };
    let (training, notebooks) = (reaping_steps(10, 20), reaping_steps(10, 110));
    let without = simulate_fleet(&plan, None);
    let with = simulate_fleet(&plan, Some((&training, &notebooks)));
    let report = FleetReport::of(&plan, &without, &with);
    let written =
        output::prepare_output(&options.out).and_then(|()| output::write(&report, &options.out, options.output.json));
    if let Err(why) = written {
        eprintln!("vgpu-fleet: {why}");
        return ExitCode::FAILURE;
    }
    options.output.exit_code(false, report.lost_percent_with >= BUDGET_PERCENT || report.jobs_ended_wrongly > 0)
}
