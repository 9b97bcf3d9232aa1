//! What the host did meanwhile: processor time and run delay of processes, stolen time; and what kind of host it is.
//!
//! A device is idle while the thread that should launch waits for a core. That is no fault of the library, so it is
//! measured (by the kernel's own `schedstat`) and shown beside every figure.

use serde::Serialize;
use std::fs;
use std::process::Command;

/// Counters at one moment, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Time on a processor.
    pub cpu_ns: u64,
    /// Time runnable without one.
    pub delay_ns: u64,
}

impl Usage {
    /// Of all threads of a process; nothing if it is gone.
    pub fn of(pid: u32) -> Usage {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Usage::default() };
        let stats = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok());
        stats.map(|text| Usage::read(&text)).fold(Usage::default(), |sum, one| Usage {
            cpu_ns: sum.cpu_ns + one.cpu_ns,
            delay_ns: sum.delay_ns + one.delay_ns,
        })
    }

    /// From the text of a `schedstat`.
    fn read(text: &str) -> Usage {
        let mut words = text.split_whitespace().map(|word| word.parse().unwrap_or(0));
        Usage { cpu_ns: words.next().unwrap_or(0), delay_ns: words.next().unwrap_or(0) }
    }

    /// What was added since.
    pub fn since(self, before: Usage) -> Usage {
        Usage {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            delay_ns: self.delay_ns.saturating_sub(before.delay_ns),
        }
    }
}

/// Time that the machine below took from this one, ns, per core.
pub fn stolen_ns() -> u64 {
    fs::read_to_string("/proc/stat").map_or(0, |text| stolen(&text) / cores() as u64)
}

fn stolen(stat: &str) -> u64 {
    const NS_PER_TICK: u64 = 10_000_000; // USER_HZ is 100 for whoever reads /proc
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    let steal = all.and_then(|words| words.split_whitespace().nth(7)?.parse::<u64>().ok());
    steal.unwrap_or(0) * NS_PER_TICK
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The machine and the moment, as they stand at the top of a report.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// Cores.
    pub cores: usize,
    /// What they are.
    pub processor: String,
    /// Of the kernel.
    pub kernel: String,
    /// UTC.
    pub date: String,
    /// Of the checkout, `-dirty` if it was changed.
    pub commit: String,
    /// As it was typed.
    pub command: String,
    /// Load average when it began.
    pub load: String,
}

impl Facts {
    /// The head of a report; `model` says that the device is simulated.
    pub fn head(&self, model: &str) -> String {
        let Facts { cores, processor, kernel, date, commit, command, load } = self;
        format!(
            "Measured on {date} at commit {commit} with\n\n```sh\n{command}\n```\n\n\
             Machine: {cores} cores of {processor}, Linux {kernel}, load average at the beginning {load}. {model}\n\n"
        )
    }

    /// Asks the machine; `tool` is the program's name.
    pub fn ask(tool: &str) -> Facts {
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
        Facts {
            cores: cores(),
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
        assert_eq!(Usage::read("420000 77000 12\n"), Usage { cpu_ns: 420_000, delay_ns: 77_000 });
        assert_eq!(stolen("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 1 1 1 1 1 1 99 1 1\n"), 80_000_000);
        assert_eq!(stolen(""), 0);
    }

    #[test]
    fn a_process_that_works_has_used_a_processor() {
        assert!(Usage::of(std::process::id()).cpu_ns > 0);
        assert_eq!(Usage::of(u32::MAX), Usage::default());
    }
}
