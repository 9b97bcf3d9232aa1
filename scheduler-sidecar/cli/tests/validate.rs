//! Tests of `vgpu validate` with programs that print their durations: results, exit codes, and that no process is
//! left. Measurements on a device: tests/tests/validate.rs.

#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{eventually, texts, vgpu};
use vgpu_cli::validate::isolation::{self, ISOLATION_MATRIX};

/// Two shell scripts, as programs without the library.
fn two(options: &[&str], a: &str, b: &str) -> Command {
    let mut command = vgpu();
    command.args(["validate", "--bare"]).args(options);
    command.args(["a", "--", "sh", "-c", a, "--and", "b", "--", "sh", "-c", b]);
    command
}

fn run(options: &[&str], a: &str, b: &str) -> Output {
    two(options, a, b).output().unwrap()
}

/// Returns a script that prints one number alone, and another while the other program runs.
fn speaker(place: &Path, own: &str, other: &str, alone: &str, together: &str) -> String {
    format!(
        "cd {}; touch {own}; sleep 0.3; if [ -e {other} ]; then s={together}; else s={alone}; fi; sleep 0.9; rm -f {own}; \
         echo loading; echo '{{\"seconds\": '$s'}}'",
        place.display()
    )
}

#[test]
fn the_numbers_of_the_published_study_come_out_as_published_from_programs_to_reports() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("report");
    let a = speaker(place.path(), "a", "b", "0.609", "1.227");
    let b = speaker(place.path(), "b", "a", "1.135", "1.778");
    let output = run(&["--runs", "1", "--measure", "json", "--json", "--out", out.to_str().unwrap()], &a, &b);
    let (text, err) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(err.contains("1 rounds say little"), "{err}");
    let json: Value = serde_json::from_str(&text).unwrap();
    let percent = |program: usize, what: &str| {
        let value = json["programs"][program]["result"][what].as_f64().unwrap();
        (value * 100.0).round() / 100.0
    };
    assert_eq!(
        (percent(0, "latency_change_percent"), percent(0, "throughput_change_percent")),
        (101.48, -50.37),
        "{text}"
    );
    assert_eq!(
        (percent(1, "latency_change_percent"), percent(1, "throughput_change_percent")),
        (56.65, -36.16),
        "{text}"
    );
    assert_eq!((json["complete"].as_bool(), json["rounds"].as_u64()), (Some(true), Some(1)));
    for (file, number) in [("report.md", "+101.48 %"), ("report.html", "-36.16 %"), ("report.json", "101.47")] {
        let text = fs::read_to_string(out.join(file)).unwrap();
        assert!(text.contains(number) && !text.contains("INCOMPLETE"), "{file}: {text}");
    }
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("<script") && !page.contains("http:") && !page.contains("https:"));
}

#[test]
fn a_program_that_fails_is_told_with_its_last_words_and_what_it_ended_with() {
    let fine = "exit 0";
    for (a, options, code, said) in [
        (
            "echo some words; echo its last words >&2; exit 7",
            &[][..],
            1,
            &["a, alone, ended with exit code 7", "its last words"][..],
        ),
        ("kill -9 $$", &[], 1, &["a, alone, was killed by signal 9", "said nothing"]),
        (
            "echo no number",
            &["--pattern", "took {ms} ms"],
            3,
            &["a, alone, said nothing of its iterations", "no number"],
        ),
        ("exec sleep 60", &["--timeout", "200ms"], 1, &["longer than 200ms"]),
    ] {
        let begin = Instant::now();
        let output = run(options, a, fine);
        let (text, err) = texts(&output);
        assert_eq!((output.status.code(), text.as_str()), (Some(code), ""), "{a}: {err}");
        assert!(said.iter().all(|said| err.contains(said)), "{a}: {err}");
        assert!(begin.elapsed() < Duration::from_secs(40), "{:?}", begin.elapsed());
    }
    let nowhere = vgpu()
        .args(["validate", "--bare", "a", "--", "/no/such/program", "--and", "b", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(nowhere.status.code(), Some(127), "{}", texts(&nowhere).1);
    for (words, said) in [
        (&["a", "--", "true"][..], "nothing to compare"),
        (&["true", "false"], "NAME -- PROGRAM"),
        (&["--pattern", "ms", "a", "--", "true", "--and", "b", "--", "true"], "{ms}"),
        (&["--runs", "0", "a", "--", "true", "--and", "b", "--", "true"], "--runs"),
        (&["--tenant", "c", "a", "--", "true", "--and", "b", "--", "true"], "runs nothing"),
        (&["--tenant", "a:sm=101", "a", "--", "true", "--and", "b", "--", "true"], "101"),
    ] {
        let output = vgpu().arg("validate").args(words).output().unwrap();
        let err = texts(&output).1;
        assert!(output.status.code() == Some(2) && err.contains(said), "{words:?}: {err}");
    }
    let nobody = vgpu()
        .args(["validate", "--socket", "/no/such/socket", "a", "--", "true", "--and", "b", "--", "true"])
        .output()
        .unwrap();
    assert!(nobody.status.code() == Some(1) && texts(&nobody).1.contains("--bare"), "{}", texts(&nobody).1);
}

fn interrupt(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn an_interrupt_ends_the_programs_and_leaves_no_report_of_nothing() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("report");
    // With a child that does not receive signals to its parent.
    let a = format!("sleep 600 & echo $! > {0}/child; echo $$ > {0}/own; wait", place.path().display());
    let mut command = two(&["--out", out.to_str().unwrap()], &a, "true");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let read = |name: &str| fs::read_to_string(place.path().join(name)).unwrap_or_default().trim().to_owned();
    eventually("it runs", || !read("own").is_empty());
    let pids = [read("own"), read("child")];
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let lives = |pid: &String| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !(stat.is_empty() || stat.contains(") Z "))
    };
    eventually("both are gone", || !pids.iter().any(lives));
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0, "nothing was measured");
}

#[test]
fn an_interrupt_after_whole_rounds_leaves_a_report_that_says_that_it_is_not_whole() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("report");
    let count = format!("echo x >> {}/count; sleep 0.02", place.path().display());
    let mut command = two(&["--runs", "1000", "--out", out.to_str().unwrap()], &count, &count);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("some rounds are done", || {
        fs::read_to_string(place.path().join("count")).is_ok_and(|text| text.lines().count() > 20)
    });
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let json: Value = serde_json::from_str(&fs::read_to_string(out.join("report.json")).unwrap()).unwrap();
    assert_eq!((json["complete"].as_bool(), json["cut"].as_str()), (Some(false), Some("interrupted")));
    for file in ["report.md", "report.html"] {
        assert!(fs::read_to_string(out.join(file)).unwrap().contains("INCOMPLETE: interrupted"), "{file}");
    }
    assert_eq!(fs::read_dir(&out).unwrap().count(), 3, "and nothing half written");
}

#[test]
fn each_cell_of_the_isolation_matrix_names_tests_that_exist_and_the_page_shows_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    for axis in &ISOLATION_MATRIX {
        for cell in [&axis.daemon, &axis.alone] {
            assert!(!cell.tests.is_empty() && !cell.words.is_empty(), "{}", axis.name);
            for (file, name) in cell.tests {
                let text =
                    fs::read_to_string(root.join(file)).unwrap_or_else(|why| panic!("{}: {file}: {why}", axis.name));
                assert!(text.contains(&format!("#[test]\nfn {name}(")), "{}: {file} has no test {name}", axis.name);
            }
        }
    }
    let page = fs::read_to_string(root.join("docs/validate.md")).unwrap();
    for row in isolation::isolation_table().rows {
        let line = format!("| {} |", row.join(" | "));
        assert!(page.contains(&line), "docs/validate.md lacks\n{line}");
    }
}
