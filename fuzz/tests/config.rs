//! Tests that the configuration reader answers every input in bounded time, with positions in the text. Words and
//! checks are those of the target `config` ([`vgpu_fuzz::files`]).

use std::time::Instant;

use proptest::prelude::*;
use vgpu_config::make_plan;
use vgpu_config::problem::ConfigReport;
use vgpu_config::read::MAX_FILE;
use vgpu_config::resolve::Surroundings;
use vgpu_fuzz::files::{FILE_WORDS, config};

/// Far longer than the slowest file takes unoptimised on a busy machine; only an endless loop or quadratic time
/// reaches it.
const LONG: std::time::Duration = std::time::Duration::from_secs(60);

const EXAMPLE: &str = include_str!("../../examples/daemon/vgpud.toml");

/// Reads a text, and checks its result and the time it took.
fn judged(text: &str) {
    let begin = Instant::now();
    config(text.as_bytes());
    assert!(begin.elapsed() < LONG, "{} bytes took {:?}", text.len(), begin.elapsed());
}

fn answer(text: &str) -> Result<(), ConfigReport> {
    make_plan(text, &Surroundings { run_dir: "/run/vgpu".into(), ..Default::default() }).map(drop)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        judged(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn random_words_are_answered(words in prop::collection::vec(prop::sample::select(FILE_WORDS), 0..120), gap in " ?") {
        judged(&words.join(&gap));
    }

    #[test]
    fn a_real_file_with_something_torn_out_put_in_or_doubled_is_answered(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0..40_usize, prop::sample::select(FILE_WORDS)), 1..6),
    ) {
        let mut text: Vec<char> = EXAMPLE.chars().collect();
        for (at, length, word) in cuts {
            let at = at.index(text.len());
            let end = (at + length).min(text.len());
            let torn: Vec<char> = text.splice(at..end, word.chars()).collect();
            if length % 3 == 0 {
                let to = (at * 7) % text.len();
                text.splice(to..to, torn);
            }
        }
        judged(&text.into_iter().collect::<String>());
    }
}

#[test]
fn the_worst_files_of_the_greatest_length_end_too() {
    let many = |line: &str| line.repeat((MAX_FILE - 100) / line.len());
    let numbered = |line: &dyn Fn(usize) -> String, count: usize| (0..count).map(line).collect::<String>();
    let worst = [
        many("["),
        format!("a={}", many("[")),
        format!("a={}", many("{a=")),
        many("[[tenant]]\n"),
        many("[[tenant]]\nname='a'\n"),
        many("[[tenant.device]]\n"),
        format!("[[tenant]]\nname='a'\n{}", many("[[tenant.device]]\nid=0\n")),
        format!("[[tenant]]\nname='a'\ndevices=[{}]\n", "0,".repeat(100_000)),
        format!("[[tenant]]\nname='a'\nuids=[{}-1]\n", "0,".repeat(100_000)),
        format!("[[tenant]]\nname='{}'\n", "a".repeat(MAX_FILE - 100)),
        format!("a{} = 1", ".a".repeat(MAX_FILE / 2 - 10)),
        many("\"\"\""),
        many("é"),
        many("a"),
        numbered(&|i| format!("[[tenant]]\nname='t{i}'\nreplicas=100\n"), 20_000),
        numbered(&|i| format!("[[tenant]]\nname='t{i}'\ndevices=[{}]\n", i % 256), 20_000),
        numbered(&|i| format!("[[device]]\nid={}\n", i % 300), 40_000),
        many("[[on_event]]\n"),
        format!("[[on_event]]\nexec=['/a']\nevents=[{}]\n", "'tenant.pausd',".repeat(60_000)),
        format!("[[on_event]]\nevents=['tenant']\nexec=[{}7]\n", "'/a',".repeat(100_000)),
        numbered(&|i| format!("[template.t{i}]\n"), 40_000) + "[[tenant]]\nname='a'\ntemplate='b'\n",
        numbered(&|i| format!("memory_limi{i} = 1\n"), 40_000),
        numbered(&|i| format!("[[device]]\nid='GPU-{i}'\n"), 40_000),
        numbered(&|i| format!("[[tenant]]\nname='t'\ntemplate='x{i}'\n"), 15_000)
            + &numbered(&|i| format!("[template.t{i}]\n"), 20_000),
        format!("[[tenant]]\nname='a'\ndevices=[{}]\n", numbered(&|i| format!("'GPU-{i}',"), 80_000)),
        format!(
            "[[tenant]]\nname='a'\nreplicas=100\n{}",
            numbered(&|i| format!("[[tenant.device]]\nid={i}\n"), 30_000)
        ),
    ];
    for text in worst {
        assert!(text.len() <= MAX_FILE, "{}", text.len());
        let shown: String = text.chars().take(40).collect();
        judged(&text);
        assert!(answer(&text).is_err(), "{shown:?} was accepted");
    }
    let beyond = answer(&"#".repeat(MAX_FILE + 1)).unwrap_err();
    assert!(beyond.problems[0].what.contains("at most 1048576"), "{beyond:?}");
}
