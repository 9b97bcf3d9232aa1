//! A job's bill: its GPU-seconds and GiB-hours, from the sums of the usage record.

use serde::{Deserialize, Serialize};

/// Use of one job on one node, as the record counts it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Device time in nanoseconds.
    pub gpu_ns: u64,
    /// Memory times time, in byte seconds.
    pub memory_byte_seconds: u64,
    /// Most memory at one time, in bytes.
    pub peak_bytes: u64,
    /// True if the record has all of it.
    pub is_final: bool,
}

/// The bill in the units that people read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bill {
    /// Device time in seconds, rounded to milliseconds.
    pub gpu_seconds: String,
    /// Memory times time in GiB hours, rounded to millionths.
    pub gib_hours: String,
}

const BYTE_SECONDS_PER_GIB_HOUR: u128 = 3600 << 30;

impl Usage {
    /// Returns the bill, rounded to the nearest unit.
    #[must_use]
    pub fn to_bill(&self) -> Bill {
        let millis = (u128::from(self.gpu_ns) + 500_000) / 1_000_000;
        let millionths = (u128::from(self.memory_byte_seconds) * 1_000_000 + BYTE_SECONDS_PER_GIB_HOUR / 2)
            / BYTE_SECONDS_PER_GIB_HOUR;
        Bill {
            gpu_seconds: format!("{}.{:03}", millis / 1000, millis % 1000),
            gib_hours: format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000),
        }
    }
}

impl Bill {
    /// Adds the bill of a node to a job's comment. `None`: the comment has the node's bill. Slurm keeps small letters
    /// only.
    #[must_use]
    pub fn add_to_comment(&self, comment: &str, node: &str) -> Option<String> {
        let entry = format!("vgpu {node}: {} GPU-seconds, {} GiB-hours", self.gpu_seconds, self.gib_hours);
        let is_of_node = format!("vgpu {node}: ").to_lowercase();
        match comment {
            "" => Some(entry),
            _ if entries(comment).any(|entry| entry.to_lowercase().starts_with(&is_of_node)) => None,
            _ => Some(format!("{comment}{SEPARATOR}{entry}")),
        }
    }
}

/// Text between two entries of a comment.
const SEPARATOR: &str = "; ";

fn entries(comment: &str) -> impl Iterator<Item = &str> {
    comment.split(SEPARATOR)
}

/// Returns the number of nodes whose bills are in a job's comment.
#[must_use]
pub fn count_bills(comment: &str) -> usize {
    entries(comment).filter(|entry| entry.to_lowercase().starts_with("vgpu ")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_adds_its_bill_to_a_comment_once_and_keeps_what_is_there() {
        let bill = Bill { gpu_seconds: "1.000".into(), gib_hours: "2.000000".into() };
        let first = bill.add_to_comment("", "n1").unwrap();
        assert_eq!(first, "vgpu n1: 1.000 GPU-seconds, 2.000000 GiB-hours");
        assert_eq!((bill.add_to_comment(&first, "n1"), bill.add_to_comment(&first.to_lowercase(), "N1")), (None, None));
        let both = bill.add_to_comment(&first.to_lowercase(), "n11").unwrap();
        assert!(both.starts_with(&first.to_lowercase()) && both.contains("; vgpu n11: 1.000"), "{both}");
        assert_eq!((count_bills(""), count_bills(&first), count_bills(&both)), (0, 1, 2));
        assert_eq!(bill.add_to_comment("see ticket 7", "n1").unwrap().matches("see ticket 7; vgpu n1: ").count(), 1);
        assert_eq!(count_bills("see ticket 7"), 0);
    }

    #[test]
    fn a_bill_has_the_records_sums_in_seconds_and_gib_hours() {
        let bill = |gpu_ns, memory_byte_seconds| {
            let bill = Usage { gpu_ns, memory_byte_seconds, peak_bytes: 0, is_final: true }.to_bill();
            (bill.gpu_seconds, bill.gib_hours)
        };
        assert_eq!(bill(0, 0), ("0.000".into(), "0.000000".into()));
        assert_eq!(bill(1_234_500_000, 7200 << 30), ("1.235".into(), "2.000000".into()));
        assert_eq!(bill(999_499_999, 1 << 30), ("0.999".into(), "0.000278".into()));
        assert_eq!(bill(u64::MAX, u64::MAX).0, "18446744073.710");
    }
}
