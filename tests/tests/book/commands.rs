//! Executes every command in a block of `sh`, `bash` or `console`. The commands of a page run in order in one shell.
//!
//! The lines after a command in a `console` block are its expected output. `...` stands for any text, and on a line of
//! its own for any lines.

use crate::elsewhere;
use crate::pages::{self, Page};
use crate::setting::{self, Setting};
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use vgpu_tests::artefacts::checkout;

/// A command of a page.
#[derive(Debug)]
pub struct Step {
    /// File and line of the command, such as `docs/top.md:9`.
    pub place: String,
    pub text: String,
    /// Expected output, if the page shows one.
    pub shown: Option<Vec<String>>,
    /// Mark of the command's block.
    pub mark: Option<String>,
}

impl Step {
    /// The command on one line, without comment lines.
    pub fn plain(&self) -> String {
        let text = self.text.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n");
        let text = text.replace("\\\n", " ");
        let text = text.split_once(" # ").map_or(text.as_str(), |(command, _)| command);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// True if bash needs no further line to complete `text`.
fn is_whole(text: &str) -> bool {
    if text.ends_with('\\') {
        return false;
    }
    let out = Command::new("bash").args(["-n", "-c", text]).stdin(Stdio::null()).output().expect("bash");
    out.status.success() && out.stderr.is_empty()
}

/// Returns the commands of a page.
pub fn steps(page: &Page) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for block in page.blocks() {
        let console = match block.language.as_str() {
            "sh" | "bash" => false,
            "console" => true,
            _ => continue,
        };
        let (mut text, mut begun) = (String::new(), 0);
        for (number, line) in block.text.lines().enumerate() {
            let line = match (console, text.is_empty()) {
                (true, true) => match line.strip_prefix("$ ") {
                    Some(line) => line,
                    None => {
                        let step =
                            steps.last_mut().unwrap_or_else(|| panic!("{}: output before a command", page.name()));
                        step.shown.get_or_insert_default().push(line.to_owned());
                        continue;
                    }
                },
                (true, false) => line.strip_prefix("> ").unwrap_or(line),
                (false, _) => line,
            };
            if text.is_empty() {
                begun = block.line + number;
            } else {
                text.push('\n');
            }
            text.push_str(line);
            if is_whole(&text) {
                let step = Step {
                    place: format!("{}:{begun}", page.name()),
                    text: std::mem::take(&mut text),
                    shown: console.then(Vec::new),
                    mark: block.mark.clone(),
                };
                // A block with only comments holds no command.
                if !step.plain().is_empty() {
                    steps.push(step);
                }
            }
        }
        assert!(text.is_empty(), "{}:{begun}: not a whole command: {text}", page.name());
    }
    steps
}

/// Returns the shell text that runs the command: daemons in the background, views on a terminal, endless output cut
/// short.
fn wrapped(step: &Step, setting: &Setting) -> String {
    let (text, plain) = (setting.here(&step.text), step.plain());
    let quoted = format!("'{}'", setting.here(&plain).replace('\'', "'\\''"));
    let view =
        plain.starts_with("vgpu top") && !["--once", "--batch", "--json"].iter().any(|word| plain.contains(word));
    if plain.starts_with("vgpud --config") && !plain.ends_with('&') {
        format!("{} & served", setting.here(&plain))
    } else if plain.starts_with("vgpud ") && plain.ends_with('&') {
        format!("{text}\nserved")
    } else if view {
        format!("terminal {quoted}")
    } else if plain == "vgpu top --json" || plain.contains("--follow") || plain.contains("--watch") {
        format!("follow {quoted}")
    } else {
        text
    }
}

/// Compares a line; `...` in `shown` stands for any text.
fn is_line(shown: &str, said: &str) -> bool {
    let mut parts = shown.split("...");
    let Some(mut rest) = said.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    for (number, part) in parts.iter().enumerate() {
        if number + 1 == parts.len() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.is_empty()
}

/// Compares all lines; a line `...` in `shown` stands for any number of lines.
fn is_shown(shown: &[String], said: &[&str]) -> bool {
    match (shown, said) {
        ([], said) => said.is_empty(),
        ([dots, rest @ ..], said) if dots.trim() == "..." => (0..=said.len()).any(|at| is_shown(rest, &said[at..])),
        ([first, rest @ ..], [line, lines @ ..]) => is_line(first, line) && is_shown(rest, lines),
        _ => false,
    }
}

#[test]
fn dots_stand_for_anything_and_nothing_else_does() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(is_shown(&lines("a ... c\n...\nend"), &["a b c", "x", "y", "end"]));
    assert!(is_shown(&lines("...\nend"), &["end"]));
    assert!(!is_shown(&lines("a b"), &["a b", "c"]) && !is_shown(&lines("a ... c"), &["a b d"]));
}

/// Runs the commands in one shell. Returns the output and exit code of each; `None` if it was not reached.
fn done(setting: &Setting, steps: &[&Step]) -> Vec<Option<(String, i32)>> {
    let mut script = setting.prelude();
    for (number, step) in steps.iter().enumerate() {
        let wrapped = wrapped(step, setting);
        script.push_str(&format!("printf '\\036{number}\\n'\n{wrapped}\nprintf '\\037%d\\n' $?\n"));
    }
    let (file, log) = (setting.path().join("page.sh"), setting.path().join("page.log"));
    fs::write(&file, script).expect("a directory of our own");
    let out = File::create(&log).expect("a directory of our own");
    let mut shell = setting.shell();
    shell.arg(&file).stdin(Stdio::null()).stdout(out.try_clone().expect("a file")).stderr(out).process_group(0);
    let mut child = shell.spawn().expect("bash");
    let begin = Instant::now();
    while child.try_wait().expect("our child").is_none() && begin.elapsed() < Duration::from_secs(300) {
        std::thread::sleep(Duration::from_millis(20));
    }
    // Ends daemons and every other process that the page started, stopped ones included.
    let group = -i32::try_from(child.id()).expect("a number of a process");
    for signal in [libc::SIGTERM, libc::SIGCONT, libc::SIGKILL] {
        // SAFETY: the group id is that of a child that was not yet waited for; otherwise the group is empty.
        unsafe { libc::kill(group, signal) };
        std::thread::sleep(Duration::from_millis(if signal == libc::SIGCONT { 100 } else { 0 }));
    }
    let _ = child.wait();
    let said = String::from_utf8_lossy(&fs::read(&log).expect("its log")).into_owned();
    let mut ended = Vec::new();
    for number in 0..steps.len() {
        let part = said.split_once(&format!("\x1e{number}\n")).and_then(|(_, rest)| rest.split_once('\x1f'));
        ended.push(part.and_then(|(text, rest)| Some((text.to_owned(), rest.lines().next()?.parse().ok()?))));
    }
    ended
}

/// Returns the faults of a page's commands, and the number of commands that ran.
fn judged(page: &Page) -> (Vec<String>, usize) {
    let steps = steps(page);
    let mut wrong = Vec::new();
    let mut here = Vec::new();
    for step in &steps {
        match elsewhere::judged(step) {
            Ok(true) => here.push(step),
            Ok(false) => {}
            Err(why) => wrong.push(format!("{}: `{}`: {why}", step.place, step.plain())),
        }
    }
    if here.is_empty() {
        return (wrong, 0);
    }
    let setting = Setting::of(page);
    for (step, ended) in here.iter().zip(done(&setting, &here)) {
        let Some((said, code)) = ended else {
            wrong.push(format!("{}: `{}` did not end, or ended the shell", step.place, step.plain()));
            break;
        };
        if !setting.has_smi && step.text.contains("nvidia-smi") {
            continue; // already reported as skipped
        }
        let said = setting.there(&said);
        let lines: Vec<&str> = said.trim_end_matches('\n').lines().map(str::trim_end).collect();
        let as_shown = step.shown.as_ref().is_none_or(|shown| is_shown(shown, &lines));
        let allowed = step.shown.is_some() && code < 126 || setting::may_end_with(&step.plain(), code);
        if !allowed || !as_shown {
            let shown = step
                .shown
                .as_ref()
                .map_or(String::new(), |shown| format!("\nand not as it stands there:\n{}", shown.join("\n")));
            wrong.push(format!("{}: `{}` ended with {code} and said:\n{said}{shown}", step.place, step.plain()));
        }
    }
    (wrong, here.len())
}

#[test]
fn every_command_in_the_book_does_what_the_book_says() {
    assert!(checkout().join("Makefile").exists());
    let pages = pages::book();
    let (next, wrong, count) = (AtomicUsize::new(0), Mutex::new(Vec::new()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(page) = pages.get(next.fetch_add(1, Relaxed)) {
                    let (bad, done) = judged(page);
                    count.fetch_add(done, Relaxed);
                    wrong.lock().expect("nobody panicked").extend(bad);
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("nobody panicked");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n\n"));
    assert!(count.into_inner() > 60, "commands were executed");
}

#[test]
fn no_row_of_what_is_executed_elsewhere_is_left_over() {
    let all: Vec<Step> = pages::book().iter().flat_map(steps).collect();
    for row in elsewhere::ROWS {
        assert!(all.iter().any(|step| row.is_of(step)), "no page has `{}`", row.command);
    }
}
