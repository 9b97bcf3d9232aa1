//! Processes that are suspended: `vgpu-checkpoint` moved their memory off their devices, and their calls of CUDA wait.
//!
//! The daemon cannot ask the driver for the state of a process, because it loads no driver of CUDA. It believes the
//! program that changed the state. It forgets a suspension when NVML lists the process on a device, and when the
//! process runs another program. Only while the daemon has no list of NVML does it take finished work as a sign, which
//! is the tenant's own report. A process that stayed locked is on NVML's list all the time, so its sign is finished
//! work.

use serde::{Deserialize, Serialize};
use vgpu_control::finding::ProcessId;

use crate::connection::PeerCredentials;
use crate::proof::image::Image;
use crate::proof::processes;

/// Time after a suspension in which work from before it may still be reported: the member's thread may wait for a
/// processor.
const LATE_REPORT_NS: u64 = 1_000_000_000;

/// A suspended process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendedProcess {
    /// The process, and the program that it ran when it was suspended.
    pub image: Image,
    /// Boot of the host that started the process.
    pub boot: String,
    /// Name of its tenant when it was suspended.
    pub tenant: String,
    /// Time since which it is suspended, in seconds since 1970.
    pub since: i64,
    /// True if its memory is on the device: it stayed locked in the middle of a change, and only its calls wait.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_locked: bool,
    /// Time at which this daemon learned of the suspension, in ns; 0: a daemon before this one did.
    #[serde(skip)]
    pub learned: u64,
    /// The caller that announced to resume it.
    #[serde(skip)]
    pub resumed_by: Option<PeerCredentials>,
}

impl SuspendedProcess {
    /// The process.
    #[must_use]
    pub fn process(&self) -> ProcessId {
        self.image.process
    }

    /// True if the process lives and runs the program that was suspended. `boot`: the current boot of the host.
    ///
    /// # Cost
    /// As [`processes::read_image`].
    #[must_use]
    pub fn is_alive(&self, boot: &str) -> bool {
        self.boot == boot && processes::read_image(self.image.process.pid) == Some(self.image)
    }

    /// True if it was suspended when the driver was asked for its list, at `asked` in ns.
    #[must_use]
    pub fn was_suspended_at(&self, asked: u64) -> bool {
        self.learned < asked
    }

    /// True if work that is reported at `now` in ns was done after the suspension.
    #[must_use]
    pub fn is_later_work(&self, now: u64) -> bool {
        now.saturating_sub(self.learned) > LATE_REPORT_NS
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};

    use super::*;

    fn suspended(pid: u32, boot: &str) -> SuspendedProcess {
        let (image, boot, tenant) = (processes::read_image(pid).unwrap(), boot.to_owned(), "a".to_owned());
        SuspendedProcess { image, boot, tenant, since: 1, is_locked: false, learned: 0, resumed_by: None }
    }

    #[test]
    fn lists_from_before_a_suspension_and_work_that_was_read_late_are_no_signs_of_life() {
        let one = SuspendedProcess { learned: 10, ..suspended(std::process::id(), "now") };
        assert!(!one.was_suspended_at(9) && !one.was_suspended_at(10) && one.was_suspended_at(11));
        assert!(!one.is_later_work(10 + LATE_REPORT_NS) && one.is_later_work(11 + LATE_REPORT_NS));
    }

    #[test]
    fn a_suspension_ends_with_its_program_and_with_the_boot_of_the_host() {
        let mut child = Command::new("sh")
            .args(["-c", "echo on; read _; exec sh -c 'echo again; read _'"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "on");
        let one = suspended(child.id(), "now");
        assert!(one.is_alive("now") && !one.is_alive("next"));
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"\n").unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "again");
        assert!(!one.is_alive("now"), "the same process runs a program again");
        drop(stdin);
        child.wait().unwrap();
        assert!(!one.is_alive("now"));
    }
}
