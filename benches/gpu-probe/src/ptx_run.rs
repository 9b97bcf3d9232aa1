//! A very small interpreter of the probe's own device code, for tests only. It runs one thread with a timer that the
//! test provides, and knows only the instructions in kernels.ptx. The tests check the kernels' behaviour; only the
//! driver's compiler decides whether they are valid.

use std::collections::HashMap;

use crate::kernels::KERNEL_PTX;

/// One thread of one kernel, run to its end.
pub struct PtxThread<'a> {
    pub params: Vec<u64>,
    pub thread: u64,
    pub block: u64,
    /// Returns the next reading of the device's timer.
    pub timer: &'a mut dyn FnMut() -> u64,
    /// Words of device memory, by address.
    pub memory: HashMap<u64, u64>,
    /// Number of instructions executed so far.
    pub steps: u64,
}

impl PtxThread<'_> {
    /// Runs a kernel of the text.
    pub fn run(&mut self, kernel: &str) {
        let code = kernel_instructions(kernel);
        let labels: HashMap<&str, usize> =
            code.iter().enumerate().filter_map(|(at, line)| Some((line.strip_suffix(':')?, at))).collect();
        let mut registers: HashMap<String, u64> = HashMap::new();
        let mut at = 0;
        while at < code.len() {
            let mut line = code[at];
            at += 1;
            if line.ends_with(':') {
                continue;
            }
            self.steps += 1;
            if let Some(rest) = line.strip_prefix('@') {
                let (predicate, rest) = rest.split_once(char::is_whitespace).expect("an instruction after a predicate");
                if registers[predicate] == 0 {
                    continue;
                }
                line = rest.trim();
            }
            let (opcode, operands) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let operands: Vec<&str> = operands.split(',').map(str::trim).filter(|o| !o.is_empty()).collect();
            match opcode {
                "ret" => return,
                "bra" | "bra.uni" => at = labels[operands[0]],
                "bar.sync" => {}
                _ => self.run_instruction(opcode, &operands, &mut registers),
            }
        }
        panic!("the kernel has no end");
    }

    fn run_instruction(&mut self, opcode: &str, operands: &[&str], registers: &mut HashMap<String, u64>) {
        let narrow = opcode.ends_with("32");
        let cut = |value: u64| if narrow { value & 0xffff_ffff } else { value };
        let value = |operand: &str| -> u64 {
            match operand.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
                None => operand.parse().unwrap_or_else(|_| registers[operand]),
            }
        };
        let result = match opcode.split('.').next().unwrap() {
            "ld" => {
                let name = operands[1].trim_matches(['[', ']']);
                self.params[name.rsplit('_').next().unwrap().parse::<usize>().unwrap()]
            }
            "st" => {
                let place = operands[0].trim_matches(['[', ']']);
                let (base, offset) = place.split_once('+').unwrap_or((place, "0"));
                self.memory.insert(value(base) + offset.parse::<u64>().unwrap(), cut(value(operands[1])));
                return;
            }
            "mov" => match operands[1] {
                "%globaltimer" | "%clock64" => (self.timer)(),
                "%tid.x" => self.thread,
                "%ctaid.x" => self.block,
                other => value(other),
            },
            "cvta" => value(operands[1]),
            "add" => value(operands[1]).wrapping_add(value(operands[2])),
            "sub" => value(operands[1]).wrapping_sub(value(operands[2])),
            "min" => value(operands[1]).min(value(operands[2])),
            "max" => value(operands[1]).max(value(operands[2])),
            "xor" => value(operands[1]) ^ value(operands[2]),
            "shl" => value(operands[1]) << value(operands[2]),
            "shr" => value(operands[1]) >> value(operands[2]),
            "setp" => {
                let (a, b) = (value(operands[1]), value(operands[2]));
                u64::from(match opcode.split('.').nth(1).unwrap() {
                    "eq" => a == b,
                    "ne" => a != b,
                    "lt" => a < b,
                    "ge" => a >= b,
                    other => panic!("the interpreter has no comparison {other}"),
                })
            }
            other => panic!("the interpreter has no instruction {other}"),
        };
        registers.insert(operands[0].to_owned(), cut(result));
    }
}

/// The instructions and labels of one kernel, without declarations.
fn kernel_instructions(kernel: &str) -> Vec<&'static str> {
    let text = KERNEL_PTX.split(&format!(".entry {kernel}(")).nth(1).expect("the kernel is in the text");
    let body = &text[text.find('{').unwrap() + 1..text.find('}').unwrap()];
    body.lines()
        .map(|line| line.split("//").next().unwrap().trim().trim_end_matches(';').trim())
        .filter(|line| !line.is_empty() && !line.starts_with('.'))
        .collect()
}

mod tests {
    use super::*;
    use crate::kernels::{HEAD_WORDS, RECORD_WORDS, SliceRecording};

    const OUT: u64 = 0x10_0000;

    /// Runs a kernel with a timer that advances by `step` at each reading and jumps where the test requires.
    fn run(kernel: &str, params: &[u64], block: u64, step: u64, jumps: &[(u64, u64)]) -> (HashMap<u64, u64>, u64, u64) {
        let mut now = 1_000_000;
        let mut jumps = jumps.to_vec();
        let mut timer = || {
            now += step;
            if let Some(at) = jumps.iter().position(|(from, _)| now >= *from) {
                now += jumps.remove(at).1;
            }
            now
        };
        let mut thread = PtxThread {
            params: params.to_vec(),
            thread: 0,
            block,
            timer: &mut timer,
            memory: HashMap::new(),
            steps: 0,
        };
        thread.run(kernel);
        let (memory, steps) = (thread.memory, thread.steps);
        (memory, steps, now - 1_000_000)
    }

    fn run_recording(memory: &HashMap<u64, u64>, capacity: usize) -> Option<SliceRecording> {
        let words: Vec<u64> = (0..HEAD_WORDS + capacity * RECORD_WORDS)
            .map(|word| memory.get(&(OUT + 8 * word as u64)).copied().unwrap_or(0))
            .collect();
        SliceRecording::read(&words)
    }

    #[test]
    fn the_spin_kernel_takes_the_time_that_it_is_told() {
        let (_, _, took) = run("vgpu_spin_ns", &[50_000], 0, 100, &[]);
        assert!((50_000..50_300).contains(&took), "{took}");
        assert_eq!(run("vgpu_spin_ns", &[0], 0, 100, &[]).2, 100, "one reading and the end");
    }

    #[test]
    fn the_spin_kernel_does_not_count_the_time_of_others() {
        let (_, _, took) = run("vgpu_spin_ns", &[50_000], 0, 100, &[(1_020_000, 2_000_000), (4_000_000, 2_000_000)]);
        assert!((2_050_000..2_050_400).contains(&took), "one slice of 2 ms was elsewhere: {took}");
    }

    #[test]
    fn a_timer_that_stands_still_hangs_no_kernel() {
        // The kernel's bound is a million readings beyond the nanoseconds; this length makes that sum wrap around to
        // 2000.
        let ns = 0_u64.wrapping_sub(1_000_000) + 2000;
        let (_, steps, _) = run("vgpu_spin_ns", &[ns], 0, 0, &[]);
        assert!((2000..2000 * 12).contains(&steps), "{steps}");
        let (memory, steps, _) = run("vgpu_slices", &[OUT, 4, ns, 20_000], 0, 0, &[]);
        assert!((2000..2000 * 25).contains(&steps), "{steps}");
        assert_eq!(run_recording(&memory, 4).unwrap().smallest_step, None);
    }

    #[test]
    fn the_recorder_writes_every_gap_with_its_two_ends() {
        let jumps = [(1_100_000, 2_000_000), (3_300_000, 50_000)];
        let (memory, _, _) = run("vgpu_slices", &[OUT, 8, 3_000_000, 20_000], 0, 100, &jumps);
        let got = run_recording(&memory, 8).unwrap();
        assert_eq!((got.seen, got.gaps.len()), (2, 2));
        let lengths: Vec<u64> = got.gaps.iter().map(|(before, after)| after - before).collect();
        assert!((2_000_000..2_000_300).contains(&lengths[0]) && (50_000..50_300).contains(&lengths[1]), "{lengths:?}");
        assert!(got.last - got.first >= 3_000_000);
        assert_eq!(got.smallest_step, Some(200), "two readings of the same made-up timer a round");
    }

    #[test]
    fn the_recorder_counts_on_but_writes_nothing_beyond_its_room() {
        let jumps: Vec<(u64, u64)> = (1..=5).map(|i| (1_000_000 + i * 200_000, 100_000)).collect();
        let (memory, _, _) = run("vgpu_slices", &[OUT, 2, 3_000_000, 20_000], 0, 100, &jumps);
        let got = run_recording(&memory, 2).unwrap();
        assert_eq!((got.seen, got.gaps.len()), (5, 2));
        let beyond = OUT + 8 * (HEAD_WORDS + 2 * RECORD_WORDS) as u64;
        assert!(memory.keys().all(|address| *address < beyond));
    }

    #[test]
    fn only_the_first_block_writes() {
        let (memory, _, _) = run("vgpu_slices", &[OUT, 8, 500_000, 20_000], 3, 100, &[(1_100_000, 100_000)]);
        assert!(memory.is_empty());
    }

    #[test]
    fn the_work_kernel_does_as_many_rounds_as_it_is_told() {
        let (one, few, _) = run("vgpu_work", &[10, OUT], 0, 1, &[]);
        let (other, many, _) = run("vgpu_work", &[20, OUT], 0, 1, &[]);
        assert_eq!(many - few, 10 * 9, "nine instructions a round");
        assert_ne!(one[&OUT], other[&OUT], "the result depends on every round");
    }
}
