//! Measures the host's influence: processor time and run delay of processes, stolen time, and facts about the host.
//!
//! A device is idle while the thread that should launch waits for a core. That is no fault of the library. The tools
//! therefore read this delay from the kernel's `schedstat` and show it next to every figure.

use serde::Serialize;
use std::fs;
use std::process::Command;

/// A process's use of processors up to one moment, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostUsage {
    /// Time that threads ran on a processor.
    pub cpu_ns: u64,
    /// Time that threads were runnable without a processor.
    pub delay_ns: u64,
}

impl HostUsage {
    /// Sum over all threads of a process; zero if the process is gone.
    pub fn of_process(pid: u32) -> HostUsage {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return HostUsage::default() };
        let stats = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok());
        stats.map(|text| HostUsage::read(&text)).fold(HostUsage::default(), |sum, one| HostUsage {
            cpu_ns: sum.cpu_ns + one.cpu_ns,
            delay_ns: sum.delay_ns + one.delay_ns,
        })
    }

    /// Parses the text of a `schedstat` file.
    fn read(text: &str) -> HostUsage {
        let mut words = text.split_whitespace().map(|word| word.parse().unwrap_or(0));
        HostUsage { cpu_ns: words.next().unwrap_or(0), delay_ns: words.next().unwrap_or(0) }
    }

    /// Difference to an earlier reading.
    pub fn since_reading(self, before: HostUsage) -> HostUsage {
        HostUsage {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            delay_ns: self.delay_ns.saturating_sub(before.delay_ns),
        }
    }
}

/// Time per core that the hypervisor took from this machine, in ns.
pub fn stolen_ns() -> u64 {
    fs::read_to_string("/proc/stat").map_or(0, |text| stolen_ticks(&text) / usable_cores() as u64)
}

fn stolen_ticks(stat: &str) -> u64 {
    const NS_PER_TICK: u64 = 10_000_000; // the kernel reports /proc values at USER_HZ = 100
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    let steal = all.and_then(|words| words.split_whitespace().nth(7)?.parse::<u64>().ok());
    steal.unwrap_or(0) * NS_PER_TICK
}

/// Number of cores that this process may use.
pub fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Facts about the machine and the run, for the head of a report.
#[derive(Clone, Debug, Serialize)]
pub struct HostFacts {
    /// Number of cores that this process may use.
    pub cores: usize,
    /// Model name of the processor.
    pub processor: String,
    /// Version of the Linux kernel.
    pub kernel: String,
    /// Date of the run, UTC.
    pub date: String,
    /// Commit of the source tree, with `-dirty` if it was changed.
    pub commit: String,
    /// Command line of the tool in this run.
    pub command: String,
    /// Load average at the start.
    pub load: String,
}

impl HostFacts {
    /// Head of a report. `model` states that the device is simulated.
    pub fn report_head(&self, model: &str) -> String {
        let HostFacts { cores, processor, kernel, date, commit, command, load } = self;
        format!(
            "Measured on {date} at commit {commit} with\n\n```sh\n{command}\n```\n\n\
             Machine: {cores} cores of {processor}, Linux {kernel}, load average at the beginning {load}. {model}\n\n"
        )
    }

    /// Collects the facts. `tool` is the program's name.
    pub fn ask_machine(tool: &str) -> HostFacts {
        let said = |program: &str, arguments: &[&str]| {
            let out = Command::new(program).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
            let text = out.ok().filter(|out| out.status.success()).map(|out| out.stdout);
            text.map_or("unknown".to_owned(), |text| String::from_utf8_lossy(&text).trim().to_owned())
        };
        let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpu = file("/proc/cpuinfo");
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        let mut command: Vec<String> = std::env::args().collect();
        if let Some(own) = command.first_mut() {
            *own = tool.into();
        }
        HostFacts {
            cores: usable_cores(),
            processor: model.unwrap_or("unknown").trim().to_owned(),
            kernel: file("/proc/sys/kernel/osrelease").trim().to_owned(),
            date: said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            commit: said("git", &["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]),
            command: command.join(" "),
            load: file("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_understood() {
        assert_eq!(HostUsage::read("420000 77000 12\n"), HostUsage { cpu_ns: 420_000, delay_ns: 77_000 });
        assert_eq!(stolen_ticks("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 1 1 1 1 1 1 99 1 1\n"), 80_000_000);
        assert_eq!(stolen_ticks(""), 0);
    }

    #[test]
    fn a_process_that_works_has_used_a_processor() {
        assert!(HostUsage::of_process(std::process::id()).cpu_ns > 0);
        assert_eq!(HostUsage::of_process(u32::MAX), HostUsage::default());
    }
}
