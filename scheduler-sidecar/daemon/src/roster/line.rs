//! Lines of the list of members. A line is skipped if it cannot be parsed, or if a killed daemon wrote only half of it.

use vgpu_control::finding::ProcessId;

use crate::proof::image::Image;
use crate::proof::limits::LimitsByDevice;

/// A line of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RosterLine<'t> {
    /// A process said hello.
    Member {
        /// Program that it runs.
        image: Image,
        /// Its tenant.
        tenant: &'t str,
    },
    /// The last connection of a process ended.
    Left {
        /// Program that it ran.
        image: Image,
        /// Its tenant.
        tenant: &'t str,
    },
    /// A process joined a device.
    On {
        /// The process.
        process: ProcessId,
        /// UUID of the device.
        device: &'t str,
    },
    /// A tenant's memory limit on a device.
    Limit {
        /// The limit in bytes.
        bytes: u64,
        /// The device, as the configuration names it.
        device: &'t str,
        /// The tenant.
        tenant: &'t str,
    },
}

impl<'t> RosterLine<'t> {
    /// The line, with its newline.
    pub fn to_text(self) -> String {
        let of_image = |verb: &str, image: Image, tenant: &str| {
            let Image { process: ProcessId { pid, began }, program: (device, inode), code, stack } = image;
            format!("{verb} {pid} {began} {device} {inode} {code} {stack} {tenant}\n")
        };
        match self {
            Self::Member { image, tenant } => of_image("member", image, tenant),
            Self::Left { image, tenant } => of_image("left", image, tenant),
            Self::On { process: ProcessId { pid, began }, device } => format!("on {pid} {began} {device}\n"),
            Self::Limit { bytes, device, tenant } => format!("limit {bytes} {device} {tenant}\n"),
        }
    }

    /// Parses a line without its newline; `None`: it is none.
    fn parse(line: &'t str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        let process = || Some(ProcessId { pid: u32::try_from(number(1)?).ok()?, began: number(2)? });
        match words[..] {
            [verb @ ("member" | "left"), _, _, _, _, _, _, tenant] => {
                let program = (number(3)?, number(4)?);
                let image = Image { process: process()?, program, code: number(5)?, stack: number(6)? };
                Some(if verb == "member" { Self::Member { image, tenant } } else { Self::Left { image, tenant } })
            }
            ["on", _, _, device] => Some(Self::On { process: process()?, device }),
            ["limit", _, device, tenant] => Some(Self::Limit { bytes: number(1)?, device, tenant }),
            _ => None,
        }
    }
}

/// The lines of a list that are complete and can be parsed.
pub(super) fn parse_lines(text: &str) -> impl Iterator<Item = RosterLine<'_>> {
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).filter_map(RosterLine::parse)
}

/// The lines of a tenant's memory limits.
pub(super) fn limit_lines(tenant: &str, limits: &LimitsByDevice) -> String {
    limits.iter().map(|(device, bytes)| RosterLine::Limit { bytes: *bytes, device, tenant }.to_text()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written_and_half_a_line_is_none() {
        let process = ProcessId { pid: 7, began: 9 };
        let image = Image { process, program: (1, 2), code: 3, stack: 4 };
        let all = [
            RosterLine::Member { image, tenant: "a" },
            RosterLine::Left { image, tenant: "a" },
            RosterLine::On { process, device: "GPU-1" },
            RosterLine::Limit { bytes: 5, device: "*", tenant: "a" },
        ];
        let text: String = all.into_iter().map(RosterLine::to_text).collect();
        assert_eq!(parse_lines(&text).collect::<Vec<_>>(), all);
        assert_eq!(text.lines().next(), Some("member 7 9 1 2 3 4 a"));
        for (line, _) in text.match_indices('\n').skip(1) {
            let half = text.get(..line).unwrap_or_default();
            assert_eq!(parse_lines(half).count(), half.matches('\n').count(), "{half:?}");
        }
    }
}
