//! Tests of the help, the completions and docs/cli.md: complete, with examples, and consistent with the programs.
//!
//! `UPDATE=1 cargo test -p vgpu-cli --test help` rewrites the generated part of docs/cli.md.

#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{CommandFactory as _, Parser as _};
use support::{texts, vgpu, vgpud};
use vgpu_cli::Cli;
use vgpu_cli::checkpoint::CheckpointOptions;
use vgpu_config::options::Options;

/// Every command of the program.
const VERBS: &[&[&str]] = &[
    &[],
    &["run"],
    &["check"],
    &["doctor"],
    &["status"],
    &["top"],
    &["ps"],
    &["queue"],
    &["set"],
    &["tenant"],
    &["tenant", "add"],
    &["tenant", "remove"],
    &["tenant", "list"],
    &["cordon"],
    &["evacuate"],
    &["uncordon"],
    &["slurm"],
    &["slurm", "prolog"],
    &["slurm", "task"],
    &["slurm", "epilog"],
    &["k8s"],
    &["pause"],
    &["resume"],
    &["exclusive"],
    &["unset"],
    &["label"],
    &["book"],
    &["bookings"],
    &["groups"],
    &["explain"],
    &["usage"],
    &["validate"],
    &["report"],
    &["report", "usage"],
    &["report", "chargeback"],
    &["report", "idle"],
    &["report", "rightsizing"],
    &["report", "efficiency"],
    &["report", "energy"],
    &["report", "slo"],
    &["report", "monthly"],
    &["report", "trend"],
    &["report", "savings"],
    &["events"],
    &["audit"],
    &["metrics"],
    &["cdi"],
    &["cdi", "generate"],
    &["docker"],
    &["docker", "run"],
    &["sim"],
    &["sim", "stat"],
    &["sim", "reset"],
    &["sim", "fault"],
    &["sim", "fault", "illegal-address"],
    &["sim", "fault", "lost"],
    &["sim", "fault", "reset"],
    &["sim", "profiles"],
    &["sim", "env"],
    &["clean"],
    &["completions"],
    &["man"],
];

/// Every command of `vgpu-checkpoint`.
const CHECKPOINT_VERBS: &[&[&str]] = &[&[], &["suspend"], &["resume"], &["state"]];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Runs the program of this crate that moves processes off their devices.
fn checkpoint() -> Command {
    support::clean(Command::new(env!("CARGO_BIN_EXE_vgpu-checkpoint")))
}

/// Returns the output of a command at a fixed width.
fn printed(command: &mut Command) -> String {
    let output = command.env("COLUMNS", "100").env("NO_COLOR", "1").output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{err}");
    out.lines().map(str::trim_end).collect::<Vec<_>>().join("\n") + "\n"
}

fn help(verb: &[&str]) -> String {
    printed(vgpu().args(verb).arg("--help"))
}

#[test]
fn the_help_of_every_verb_has_an_example() {
    for verb in VERBS {
        let text = help(verb);
        let example = format!("vgpu {}", verb.join(" "));
        let (_, examples) = text.split_once("Examples:\n").unwrap_or_else(|| panic!("{verb:?} has no examples"));
        assert!(examples.contains(example.trim()), "{verb:?}: {examples}");
    }
    assert!(printed(vgpud().arg("--help")).contains("Examples:\n  vgpud "));
    for verb in CHECKPOINT_VERBS {
        let text = printed(checkpoint().args(*verb).arg("--help"));
        assert!(text.contains("Examples:\n  vgpu-checkpoint "), "{verb:?}: {text}");
    }
}

/// Returns the examples of a help text.
fn examples(command: &clap::Command) -> Vec<String> {
    let text = [command.get_after_long_help(), command.get_after_help()].into_iter().flatten().next();
    let text = text.map(ToString::to_string).unwrap_or_default();
    let part = text.split_once("Examples:\n").map_or("", |(_, rest)| rest.split("\n\n").next().unwrap_or(""));
    part.lines().map(|line| line.trim().to_owned()).collect()
}

/// Splits a shell line into its simple commands, each as words, without redirections.
fn commands(line: &str) -> Vec<Vec<String>> {
    let inner = line.split_once("$(").and_then(|(_, rest)| rest.split_once(')')).map_or(line, |(inner, _)| inner);
    let (mut all, mut words, mut word, mut quote) = (Vec::new(), Vec::new(), None::<String>, None);
    for letter in inner.chars().chain([';']) {
        match (quote, letter) {
            (Some(mark), _) if mark == letter => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => {
                all.push(std::mem::take(&mut words));
                break;
            }
            (None, ' ') => words.extend(word.take()),
            (None, '|' | '&' | ';' | '>') => {
                words.extend(word.take());
                all.push(std::mem::take(&mut words));
            }
            _ => word.get_or_insert_default().push(letter),
        }
    }
    all.retain_mut(|words| {
        let begin = words.iter().position(|word| !word.contains('=')).unwrap_or(words.len());
        words.drain(..begin);
        matches!(words.first().map(String::as_str), Some("vgpu" | "vgpud"))
    });
    all
}

#[test]
fn every_example_of_the_help_is_understood() {
    let mut count = 0;
    let vgpu = Cli::command();
    for verb in VERBS {
        let command = verb.iter().fold(&vgpu, |command, name| command.find_subcommand(name).unwrap());
        for line in examples(command) {
            for words in commands(&line).iter().filter(|words| words[0] == "vgpu") {
                let parsed = Cli::try_parse_from(words);
                assert!(parsed.is_ok(), "{line}\n{}", parsed.err().unwrap());
                count += 1;
            }
        }
    }
    for line in examples(&Options::command()) {
        for words in commands(&line).iter().filter(|words| words[0] == "vgpud") {
            let parsed = Options::try_parse_from(words);
            assert!(parsed.is_ok(), "{line}\n{}", parsed.err().unwrap());
            count += 1;
        }
    }
    let checkpoint = CheckpointOptions::command();
    for verb in CHECKPOINT_VERBS {
        let command = verb.iter().fold(&checkpoint, |command, name| command.find_subcommand(name).unwrap());
        for line in examples(command) {
            let parsed = CheckpointOptions::try_parse_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}\n{}", parsed.err().unwrap());
            count += 1;
        }
    }
    assert!(count > 70, "{count} examples");
}

#[test]
fn what_stands_below_the_options_fits_a_line_so_that_examples_can_be_copied() {
    fn all(command: &clap::Command, wide: &mut Vec<String>) {
        let below = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        wide.extend(below.lines().filter(|line| line.chars().count() > 100).map(str::to_owned));
        command.get_subcommands().for_each(|verb| all(verb, wide));
    }
    use clap::CommandFactory as _;
    let mut wide = Vec::new();
    all(&vgpu_cli::Cli::command(), &mut wide);
    all(&vgpu_config::options::Options::command(), &mut wide);
    all(&CheckpointOptions::command(), &mut wide);
    assert!(wide.is_empty(), "{wide:#?}");
}

#[test]
fn every_verb_that_can_fail_documents_its_exit_codes() {
    for verb in VERBS.iter().filter(|verb| verb.len() == 1).map(|verb| verb[0]) {
        assert!(help(&[verb]).contains("Exit codes:\n"), "{verb}");
    }
    assert!(printed(vgpud().arg("--help")).contains("Exit codes:\n"));
}

#[test]
fn a_verb_that_does_not_exist_is_usage() {
    for args in [&["frobnicate"][..], &["sim", "frobnicate"], &["status", "--frobnicate"], &[]] {
        let output = vgpu().args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(texts(&output).1.contains("Usage:"));
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let shell =
        format!("{} completions bash | head -n 1 >/dev/null; echo ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_vgpu"));
    let output = Command::new("bash").args(["-c", &shell]).output().unwrap();
    assert_eq!(texts(&output), ("0\n".into(), String::new()));
}

/// Compares a generated text with the file in the repository, or rewrites it if asked.
fn in_step(path: &Path, generated: &str) {
    if std::env::var_os("UPDATE").is_some() {
        fs::write(path, generated).unwrap();
    }
    let file = fs::read_to_string(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    assert!(file == generated, "{} is not what the programs say; UPDATE=1 rewrites it", path.display());
}

/// Returns the completions of a program for a shell.
fn completions(program: &str, shell: &str) -> String {
    printed(vgpu().args(["completions", "--of", program, shell]))
}

#[test]
fn every_verb_of_the_program_is_tested_here_and_completed_in_every_shell() {
    let listed = help(&[]);
    let (_, verbs) = listed.split_once("Commands:\n").unwrap();
    let verbs = verbs.split("\n\n").next().unwrap().lines().filter_map(|line| line.strip_prefix("  "));
    let verbs: Vec<&str> =
        verbs.filter(|line| !line.starts_with(' ')).filter_map(|line| line.split(' ').next()).collect();
    assert!(verbs.len() > 10, "{verbs:?}");
    let texts = ["bash", "zsh", "fish"].map(|shell| (shell, completions("vgpu", shell)));
    for verb in verbs {
        assert!(verb == "help" || VERBS.contains(&&[verb][..]), "{verb} is not in VERBS");
        for ((shell, text), marked) in
            texts.iter().zip([format!("vgpu,{verb})"), format!("'{verb}:"), format!("\"{verb}\" -d")])
        {
            assert!(text.contains(&marked), "{shell} does not complete {verb}");
        }
    }
}

#[test]
fn bash_accepts_the_completions_and_completes_a_verb() {
    for (program, words, expected) in [
        ("vgpu", "vgpu che", "check"),
        ("vgpu", "vgpu sim pro", "profiles"),
        ("vgpu", "vgpu expl", "explain"),
        ("vgpu", "vgpu set --mem", "--memory-limit"),
        ("vgpu", "vgpu status --wat", "--watch"),
        ("vgpu", "vgpu top --inter", "--interval"),
        ("vgpud", "vgpud --mem", "--memory-limit"),
        ("vgpu-checkpoint", "vgpu-checkpoint sus", "suspend"),
    ] {
        let typed: Vec<&str> = words.split(' ').collect();
        let last = typed.len() - 1;
        let function = program.replace('-', "__");
        let shell = format!(
            "eval \"$({} completions --of {program} bash)\"; COMP_WORDS=({words}); COMP_CWORD={last}; _{function} {program} '{}' '{}'; echo ${{COMPREPLY[@]}}",
            env!("CARGO_BIN_EXE_vgpu"),
            typed[last],
            typed[last - 1]
        );
        let output = Command::new("bash").args(["-c", &shell]).output();
        let output = output.unwrap();
        assert_eq!(texts(&output), (format!("{expected}\n"), String::new()));
    }
}

#[test]
fn the_reference_in_the_documentation_is_what_the_programs_say() {
    const BEGIN: &str = "<!-- generated: from here on what `--help` prints -->\n";
    let mut generated = String::new();
    for verb in VERBS {
        let name = format!("vgpu {}", verb.join(" "));
        generated.push_str(&format!("\n### {}\n\n```text\n{}```\n", name.trim(), help(verb)));
    }
    generated.push_str(&format!("\n### vgpud\n\n```text\n{}```\n", printed(vgpud().arg("--help"))));
    for verb in CHECKPOINT_VERBS {
        let name = format!("vgpu-checkpoint {}", verb.join(" "));
        let text = printed(checkpoint().args(*verb).arg("--help"));
        generated.push_str(&format!("\n### {}\n\n```text\n{text}```\n", name.trim()));
    }
    let path = root().join("docs/cli.md");
    let page = fs::read_to_string(&path).unwrap();
    let (prose, _) = page.split_once(BEGIN).expect("the mark of the generated part");
    in_step(&path, &format!("{prose}{BEGIN}{generated}"));
}
