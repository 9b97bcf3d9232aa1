//! `vgpu report savings`.

use super::scope::{ReportForm, ReportTexts};
use vgpu_accounting::report::apportion::format_decimal;
use vgpu_accounting::report::savings::{DecimalAmount, HOURS_PER_MONTH, LatencyCost, SavingsQuestion, compute_savings};
use vgpu_output::say::Failure;

/// Computes the savings of sharing: dedicated GPUs against fewer shared ones. Needs no record.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu report savings --gpu-price 2.24 --tenant-price 0.08
  vgpu report savings --dedicated 4 --shared 1 --tenants 4 --gpu-price 2.24 --currency USD
  vgpu report savings --gpu-price 2.24 --hours 160 --format json
  vgpu report savings --gpu-price 2.24 --tenant-price 0.08 --added-ms 618 --loss 1 --revenue 10

How:
  dedicated = DEDICATED x GPU-PRICE x HOURS
  shared    = (SHARED x GPU-PRICE + TENANTS x TENANT-PRICE) x HOURS
  lost      = REVENUE x HOURS x LOSS % x ADDED-MS / 100 ms, at most REVENUE x HOURS
  vgpu validate measures how many milliseconds sharing adds.

Exit codes:
  0  computed
  1  it cannot be written
  2  usage")]
pub struct Args {
    /// Number of GPUs without sharing.
    #[arg(long, value_name = "GPUS", default_value_t = 2)]
    dedicated: u32,

    /// Number of GPUs with sharing.
    #[arg(long, value_name = "GPUS", default_value_t = 1)]
    shared: u32,

    /// Number of tenants that share the GPUs.
    #[arg(long, value_name = "TENANTS", default_value_t = 2)]
    tenants: u32,

    /// Price of a GPU for an hour.
    #[arg(long, value_name = "AMOUNT", value_parser = DecimalAmount::read)]
    gpu_price: DecimalAmount,

    /// Additional price of each tenant, for an hour.
    #[arg(long, value_name = "AMOUNT", default_value = "0", value_parser = DecimalAmount::read)]
    tenant_price: DecimalAmount,

    /// Number of hours; 730 are a month.
    #[arg(long, value_name = "HOURS", default_value = HOURS_PER_MONTH, value_parser = DecimalAmount::read)]
    hours: DecimalAmount,

    /// Milliseconds by which sharing delays answers.
    #[arg(long, value_name = "MS", value_parser = DecimalAmount::read, requires_all = ["loss", "revenue"])]
    added_ms: Option<DecimalAmount>,

    /// Percent of the revenue that is lost for each 100 ms of delay.
    #[arg(long, value_name = "PERCENT", value_parser = DecimalAmount::read, requires = "added_ms")]
    loss: Option<DecimalAmount>,

    /// Revenue of an hour.
    #[arg(long, value_name = "AMOUNT", value_parser = DecimalAmount::read, requires = "added_ms")]
    revenue: Option<DecimalAmount>,

    /// Currency that follows amounts: EUR.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    currency: String,

    #[command(flatten)]
    form: ReportForm,

    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let answer = compute_savings(SavingsQuestion {
        dedicated: args.dedicated,
        shared: args.shared,
        tenants: args.tenants,
        gpu_price: args.gpu_price,
        tenant_price: args.tenant_price,
        hours: args.hours,
        latency: args.added_ms.zip(args.loss.zip(args.revenue)).map(|(added_ms, (loss, revenue))| LatencyCost {
            added_ms,
            loss,
            revenue,
        }),
        currency: args.currency.clone(),
    });
    let heads = ["dedicated", "shared", "saved", "saved_percent", "currency", "lost_by_latency", "net"]
        .map(str::to_owned)
        .to_vec();
    let row = vec![
        format_decimal(answer.dedicated, 2),
        format_decimal(answer.shared, 2),
        answer.saved_text(),
        answer.percent_text().unwrap_or_default(),
        args.currency.clone(),
        answer.question.latency.map(|_| format_decimal(answer.lost, 2)).unwrap_or_default(),
        answer.question.latency.map(|_| answer.net_text()).unwrap_or_default(),
    ];
    args.form
        .write(args.json, &ReportTexts { sheet: answer.to_sheet(), json: answer.to_json(), csv: (heads, vec![row]) })
}
