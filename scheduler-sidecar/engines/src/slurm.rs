//! Slurm's texts: the detailed line of a job, the line of a node, generic resources and lists of hosts.
//!
//! The texts are those of `scontrol -d -o show job` and `scontrol -o show node`, Slurm 22.05. A user chooses parts of a
//! job's text, such as its name, and can write there whatever Slurm writes elsewhere. So each word that counts must be
//! there exactly once; a second one is refused.

use std::collections::BTreeMap;

/// Name of the count-only resource that sets the memory limit: `--gres=shard:1,vgpu_mem:20G`.
pub const MEMORY_GRES: &str = "vgpu_mem";

/// Resources of a job on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobGres {
    /// Whole devices.
    pub gpus: u64,
    /// Shares of a device.
    pub shards: u64,
    /// Bytes of memory; 0: none were asked for.
    pub memory_bytes: u64,
}

/// A job, as far as a tenant needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmJob {
    /// Account that the job is charged to, if Slurm has one.
    pub account: Option<String>,
    /// Its resources on the node.
    pub gres: JobGres,
}

/// Devices and shares of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeGres {
    /// Whole devices.
    pub gpus: u64,
    /// Shares of all devices together.
    pub shards: u64,
}

/// Shards of each GPU of a node: the same number, or one for each GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardCounts {
    /// Every GPU has so many.
    Same(u32),
    /// GPUs by the number that Slurm gives them, and their shards.
    Each(BTreeMap<String, u32>),
}

impl ShardCounts {
    /// Reads `4`, or `0=2,1=6`.
    ///
    /// # Errors
    /// A message with the accepted forms.
    pub fn read(text: &str) -> Result<Self, String> {
        const FORMS: &str = "accepted: a number from 1 on, or one for each GPU like 0=2,1=6";
        let count = |text: &str| text.parse().ok().filter(|count| *count > 0).ok_or_else(|| FORMS.to_owned());
        if !text.contains('=') {
            return count(text).map(Self::Same);
        }
        let mut each = BTreeMap::new();
        for entry in text.split(',') {
            let (gpu, shards) = entry.split_once('=').ok_or(FORMS)?;
            if gpu.is_empty() || each.insert(gpu.to_owned(), count(shards)?).is_some() {
                return Err(FORMS.to_owned());
            }
        }
        Ok(Self::Each(each))
    }

    /// Returns the shards of a GPU; `None`: it is not named.
    #[must_use]
    pub fn of_gpu(&self, gpu: &str) -> Option<u32> {
        match self {
            Self::Same(count) => Some(*count),
            Self::Each(each) => each.get(gpu).copied(),
        }
    }
}

/// Reads a job's line for one node.
///
/// # Errors
/// A message: the node or its resources are not in the text, or are there twice.
pub fn read_job(text: &str, node: &str) -> Result<SlurmJob, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let on_node = |group: &&[&str]| {
        let [nodes, cpus, memory, _] = group else { return false };
        let hosts = nodes.strip_prefix("Nodes=");
        cpus.starts_with("CPU_IDs=") && memory.starts_with("Mem=") && hosts.is_some_and(|hosts| has_host(hosts, node))
    };
    let mut groups = words.windows(4).filter(on_node);
    let gres = match (groups.next().and_then(<[&str]>::last), groups.next()) {
        (Some(gres), None) => gres.strip_prefix("GRES=").ok_or("Slurm's text has no GRES= for this node")?,
        (None, _) => return Err(format!("Slurm's text of the job does not have the node {node}")),
        (Some(_), Some(_)) => {
            return Err(format!("Slurm's text of the job has the node {node} twice; is it part of the job's name?"));
        }
    };
    let mut accounts = words.iter().filter_map(|word| word.strip_prefix("Account="));
    let account = match (accounts.next(), accounts.next()) {
        (Some(_), Some(_)) => {
            return Err("Slurm's text of the job has two accounts; is one part of the job's name?".into());
        }
        (account, _) => account.filter(|account| *account != "(null)" && !account.is_empty()),
    };
    Ok(SlurmJob { account: account.map(str::to_owned), gres: read_job_gres(gres)? })
}

/// Reads a node's line.
///
/// # Errors
/// A message: its resources are not there or not understood.
pub fn read_node(text: &str) -> Result<NodeGres, String> {
    let list = text.split_whitespace().find_map(|word| word.strip_prefix("Gres="));
    let list = list.ok_or("Slurm's text of the node has no Gres=")?;
    let mut node = NodeGres { gpus: 0, shards: 0 };
    for (name, count) in read_gres_list(list)? {
        match name {
            "gpu" => node.gpus += count,
            "shard" => node.shards += count,
            _ => {}
        }
    }
    Ok(node)
}

fn read_job_gres(list: &str) -> Result<JobGres, String> {
    let mut gres = JobGres::default();
    for (name, count) in read_gres_list(list)? {
        match name {
            "gpu" => gres.gpus += count,
            "shard" => gres.shards += count,
            MEMORY_GRES => gres.memory_bytes += count,
            _ => {}
        }
    }
    Ok(gres)
}

/// Reads `gpu:a100:2(IDX:0-1),shard:8(S:0),vgpu_mem(CNT:21474836480)`: names and counts.
fn read_gres_list(list: &str) -> Result<Vec<(&str, u64)>, String> {
    if list.is_empty() || list == "(null)" {
        return Ok(Vec::new());
    }
    split_outside(list, '(', ')')
        .into_iter()
        .map(|entry| {
            let not_read = || format!("Slurm's resource {entry:?} is not understood");
            let (head, details) = match entry.split_once('(') {
                Some((head, details)) => (head, details.strip_suffix(')').ok_or_else(not_read)?),
                None => (entry, ""),
            };
            let (name, rest) = head.split_once(':').unwrap_or((head, ""));
            let count = match details.strip_prefix("CNT:") {
                Some(count) => read_count(count),
                None => read_count(rest.rsplit(':').next().unwrap_or_default()),
            };
            Ok((name, count.ok_or_else(not_read)?))
        })
        .collect()
}

/// Reads a number with one of Slurm's suffixes, which are powers of 1024.
fn read_count(text: &str) -> Option<u64> {
    let suffixes = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let last = text.chars().next_back()?.to_ascii_uppercase();
    let (digits, shift) = match suffixes.iter().find(|(suffix, _)| *suffix == last) {
        Some((_, shift)) => (text.get(..text.len() - 1)?, *shift),
        None => (text, 0),
    };
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse::<u64>().ok().filter(|_| plain)?.checked_mul(1 << shift)
}

/// Splits at the commas outside brackets.
fn split_outside(text: &str, open: char, close: char) -> Vec<&str> {
    let mut depth = 0_u32;
    text.split(move |letter| {
        if letter == open {
            depth += 1;
        } else if letter == close {
            depth = depth.saturating_sub(1);
        }
        letter == ',' && depth == 0
    })
    .collect()
}

/// Returns true if a list of hosts such as `n1,gpu[01-03,7],x[1-2]y[0-3]` has the host.
fn has_host(list: &str, host: &str) -> bool {
    split_outside(list, '[', ']').into_iter().any(|pattern| matches_host(pattern, host))
}

fn matches_host(pattern: &str, host: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('[') else { return pattern == host };
    let (Some((ranges, tail)), Some(rest)) = (rest.split_once(']'), host.strip_prefix(head)) else { return false };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    // The digits of the host may continue in the pattern's next part.
    (1..=digits).any(|taken| {
        let (number, after) = rest.split_at(taken);
        ranges.split(',').any(|range| in_range(range, number)) && matches_host(tail, after)
    })
}

/// Returns true if a range such as `7` or `01-12` has the number. Its first number gives the least number of digits.
fn in_range(range: &str, number: &str) -> bool {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (Ok(low), Ok(high), Ok(here)) = (first.parse::<u64>(), last.parse::<u64>(), number.parse::<u64>()) else {
        return false;
    };
    (low..=high).contains(&here) && format!("{here:0width$}", width = first.len()) == number
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of Slurm 22.05, shortened.
    fn job_line(name: &str, nodes: &str) -> String {
        format!(
            "JobId=11 JobName={name} UserId=nobody(65534) GroupId=nogroup(65534) MCS_label=N/A Account=(null) QOS=(null) \
             NodeList=n[1-2] BatchHost=n1 NumNodes=2 TRES=cpu=2,node=2,billing=2 JOB_GRES=shard:2 {nodes}MinCPUsNode=1 \
             Command=/tmp/job.sh TresPerNode=gres:shard:1 "
        )
    }

    #[test]
    fn the_resources_on_this_node_are_read_from_the_group_that_has_the_node() {
        let line = job_line(
            "job.sh",
            "  Nodes=n1 CPU_IDs=2-3 Mem=0 GRES=shard:1(IDX:0)   Nodes=n[2-3] CPU_IDs=1 Mem=0 \
             GRES=shard:2(IDX:1),vgpu_mem(CNT:21474836480) ",
        );
        let gres = |node| read_job(&line, node).map(|job| (job.gres.gpus, job.gres.shards, job.gres.memory_bytes));
        assert_eq!(gres("n1"), Ok((0, 1, 0)));
        assert_eq!(gres("n3"), Ok((0, 2, 20 << 30)));
        assert!(gres("n4").unwrap_err().contains("does not have the node n4"));
        let line = job_line("job.sh", "  Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:h100:2(IDX:0-1) ");
        assert_eq!(read_job(&line, "n2").unwrap().gres.gpus, 2);
        let line = job_line("job.sh", "  Nodes=n1 CPU_IDs=0 Mem=0 GRES= ");
        assert_eq!(read_job(&line, "n1").unwrap().gres, JobGres::default());
    }

    #[test]
    fn a_job_name_that_looks_like_resources_or_an_account_is_refused() {
        let real = "  Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:1(IDX:0) ";
        for name in ["x\nNodes=n1 CPU_IDs=0 Mem=0 GRES=shard:4(IDX:0)", "x Nodes=n[0-9] CPU_IDs=0 Mem=0 GRES="] {
            let why = read_job(&job_line(name, real), "n1").unwrap_err();
            assert!(why.contains("twice"), "{why}");
        }
        assert!(read_job(&job_line("x Account=boss", real), "n1").unwrap_err().contains("two accounts"));
        assert!(read_job(&job_line("Nodes=n1", real), "n1").is_ok(), "a harmless name");
    }

    #[test]
    fn the_account_is_read_if_there_is_one() {
        let line = job_line("x", "  Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0) ");
        assert_eq!(read_job(&line, "n1").unwrap().account, None);
        let line = line.replace("Account=(null)", "Account=vision");
        assert_eq!(read_job(&line, "n1").unwrap().account.as_deref(), Some("vision"));
    }

    #[test]
    fn a_nodes_devices_and_shares_are_summed_over_types_and_sockets() {
        let node = |gres: &str| read_node(&format!("NodeName=n1 Gres={gres} GresUsed=gpu:0 Comment=x Gres=gpu:9"));
        assert_eq!(node("gpu:1,shard:4,vgpu_mem:140G"), Ok(NodeGres { gpus: 1, shards: 4 }));
        assert_eq!(node("gpu:a:2(S:0-1),gpu:b:2(S:0,1),shard:16(S:0)"), Ok(NodeGres { gpus: 4, shards: 16 }));
        assert_eq!(node("(null)"), Ok(NodeGres { gpus: 0, shards: 0 }));
        assert!(node("gpu:many").unwrap_err().contains("\"gpu:many\" is not understood"));
        assert!(read_node("slurm_load_node error").is_err());
    }

    #[test]
    fn gpus_may_have_different_numbers_of_shards() {
        assert_eq!(ShardCounts::read("4").unwrap().of_gpu("7"), Some(4));
        let each = ShardCounts::read("0=2,1=6").unwrap();
        assert_eq!((each.of_gpu("0"), each.of_gpu("1"), each.of_gpu("2")), (Some(2), Some(6), None));
        for text in ["", "0", "x", "-1", "0=", "=2", "0=0", "0=2,", "0=2,0=3", "0=2,3"] {
            assert!(ShardCounts::read(text).unwrap_err().contains("accepted: "), "{text:?}");
        }
    }

    #[test]
    fn counts_have_slurms_suffixes_and_nothing_else() {
        for (text, count) in [("0", 0), ("20G", 20 << 30), ("3k", 3 << 10), ("2T", 2 << 40)] {
            assert_eq!(read_count(text), Some(count), "{text}");
        }
        for text in ["", "G", "-1", "+1", "1.5G", "1GG", "18446744073709551616", "99999999T", "é"] {
            assert_eq!(read_count(text), None, "{text}");
        }
    }

    #[test]
    fn lists_of_hosts_have_ranges_with_leading_zeros_and_several_brackets() {
        for (list, host, has) in [
            ("n1", "n1", true),
            ("n1", "n10", false),
            ("n[1-2]", "n2", true),
            ("n[1-2]", "n3", false),
            ("n[01-12]", "n07", true),
            ("n[01-12]", "n7", false),
            ("n[1-12]", "n07", false),
            ("n[9-11]", "n10", true),
            ("n[1,5-7],m3", "m3", true),
            ("n[1,5-7],m3", "n6", true),
            ("n[1,5-7]x,m3", "n6x", true),
            ("r[1-2]n[1-4]", "r2n4", true),
            ("r[1-2]n[1-4]", "r2n5", false),
            ("r[1-2][0-1]", "r21", true),
            ("n[1-2", "n1", false),
            ("", "n1", false),
        ] {
            assert_eq!(has_host(list, host), has, "{list} {host}");
        }
    }
}
