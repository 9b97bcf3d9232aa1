//! Renders the suggested limits for people, programs and spreadsheets.

use serde_json::{Value, json};
use vgpu_core::units::bytes::Bytes;

use super::{AdviceMargins, Rightsizing, SeenUse};
use crate::report::apportion::format_decimal;
use crate::report::chart::{ChartBar, draw_bars};
use crate::report::sheet::{ReportSheet, SheetTable};
use crate::report::usage::whole_number;

impl Rightsizing {
    /// Returns the report for people.
    #[must_use]
    pub fn to_sheet(&self, care: AdviceMargins, mut facts: Vec<(String, String)>) -> ReportSheet {
        let size = |bytes: Option<u64>| bytes.map_or("unlimited".to_owned(), |bytes| Bytes(bytes).to_string());
        let share = |share: Option<u32>| {
            share.map_or("unlimited".to_owned(), |share| format!("{} %", format_decimal(share.into(), 1)))
        };
        let kept = |text: Option<String>| text.unwrap_or_else(|| "keep".into());
        let memory = |((tenant, device), seen): (&(String, String), &SeenUse)| {
            let advice = seen.memory_advice(care);
            vec![
                tenant.clone(),
                device.clone(),
                Bytes(seen.peak).to_string(),
                size(seen.memory_limit),
                kept(advice.limit.map(|limit| Bytes(limit).to_string())),
                advice.why,
            ]
        };
        let time = |((tenant, device), seen): (&(String, String), &SeenUse)| {
            let advice = seen.share_advice(care);
            vec![
                tenant.clone(),
                device.clone(),
                share(Some(seen.busiest_row())),
                share(seen.sm_limit),
                kept(advice.limit.map(|limit| share(Some(limit)))),
                advice.why,
            ]
        };
        let table = |heading: &str, most: &str, rows: Vec<Vec<String>>| SheetTable {
            heading: heading.into(),
            heads: ["tenant", "device", most, "limit", "suggested", "why"].map(str::to_owned).to_vec(),
            words: 6,
            rows,
            total: None,
        };
        let (few, all) = self.count_below(150);
        facts.push(("tenants that never had more than 15 % of their memory limit".into(), format!("{few} of {all}")));
        #[allow(clippy::cast_precision_loss)] // only for a picture
        let bar = |((tenant, _), seen): (&(String, String), &SeenUse)| {
            let limit = seen.memory_limit.filter(|limit| *limit > 0)?;
            let part = seen.peak as f64 / limit as f64 * 100.0;
            Some(ChartBar { name: tenant.clone(), value: part, shown: format!("{part:.0} % of {}", Bytes(limit)) })
        };
        ReportSheet {
            title: "Limits that fit".into(),
            facts,
            tables: vec![
                table("Memory", "peak", self.0.iter().map(memory).collect()),
                table("Device time", "busiest minute", self.0.iter().map(time).collect()),
            ],
            pictures: vec![draw_bars("Peak memory of the limit", &self.0.iter().filter_map(bar).collect::<Vec<_>>())],
            notes: vec![
                "Data older than keep_fine has one value for each hour, so a single busy minute is not visible there."
                    .into(),
                "To apply: vgpu set TENANT --memory-limit SIZE --sm-limit PERCENT, and in the file, so that it stays."
                    .into(),
            ],
            ..ReportSheet::default()
        }
    }

    /// Returns the report as JSON.
    #[must_use]
    pub fn to_json(&self, care: AdviceMargins) -> Value {
        let percent = |share: u32| f64::from(share) / 10.0;
        let line = |((tenant, device), seen): (&(String, String), &SeenUse)| {
            let (memory, time) = (seen.memory_advice(care), seen.share_advice(care));
            json!({
                "tenant": tenant,
                "device": device,
                "seen_seconds": seen.seconds,
                "peak_bytes": seen.peak,
                "refused_allocations": seen.refused,
                "memory_limit": seen.memory_limit,
                "suggested_memory_limit": memory.limit,
                "memory_why": memory.why,
                "gpu_ns": (seen.gpu_ns > 0 || seen.unmeasured_ns == 0).then(|| whole_number(seen.gpu_ns)),
                "wait_ns": whole_number(seen.wait_ns),
                "busiest_percent": percent(seen.busiest_row()),
                "p95_percent": percent(seen.busy_p95()),
                "sm_limit": seen.sm_limit.map(percent),
                "suggested_sm_limit": time.limit.map(percent),
                "time_why": time.why,
            })
        };
        json!({ "lines": self.0.iter().map(line).collect::<Vec<_>>() })
    }

    /// Returns the report as CSV.
    #[must_use]
    pub fn to_csv(&self, care: AdviceMargins) -> (Vec<String>, Vec<Vec<String>>) {
        let heads = [
            "tenant",
            "device",
            "peak_bytes",
            "memory_limit",
            "suggested_memory_limit",
            "memory_why",
            "p95_percent",
            "sm_limit",
            "suggested_sm_limit",
            "time_why",
        ];
        let row = |((tenant, device), seen): (&(String, String), &SeenUse)| {
            let (memory, time) = (seen.memory_advice(care), seen.share_advice(care));
            let text = |number: Option<u64>| number.map_or(String::new(), |number| number.to_string());
            let share = |share: Option<u32>| share.map_or(String::new(), |share| format_decimal(share.into(), 1));
            vec![
                tenant.clone(),
                device.clone(),
                seen.peak.to_string(),
                text(seen.memory_limit),
                text(memory.limit),
                memory.why,
                share(Some(seen.busy_p95())),
                share(seen.sm_limit),
                share(time.limit),
                time.why,
            ]
        };
        (heads.map(str::to_owned).to_vec(), self.0.iter().map(row).collect())
    }
}
