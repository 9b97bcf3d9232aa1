//! Parses the programs and their tenants, `NAME -- PROGRAM ... --and NAME -- PROGRAM ...`, and prepares their
//! environments.

use std::ffi::OsString;

use super::Args;
use crate::run;
use crate::validate::results;
use vgpu_config::suggest::nearest_word;
use vgpu_config::value::is_name;
use vgpu_control::ControlCommand;
use vgpu_control::status::TenantStatus;
use vgpu_core::units::bytes::Bytes;
use vgpu_output::say::{self, EXIT_FINDINGS, EXIT_USAGE, Failure};

/// Argument that separates the command lines of two programs.
const SEPARATOR: &str = "--and";
/// Most programs at the same time.
const MAX_PROGRAMS: usize = 16;

/// A program to run and measure, with its tenant and environment.
#[derive(Debug)]
pub struct TenantProgram {
    /// Name of the tenant that the program runs as.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Environment variables to set for the program.
    pub changes: Vec<(&'static str, OsString)>,
    /// Limits of the program's tenant, in words.
    limits: String,
}

impl TenantProgram {
    /// Returns the program for the results, without runs yet.
    pub fn without_runs(&self) -> results::ProgramResults {
        let words: Vec<String> = self.command.iter().map(|word| say::quote_word(&word.to_string_lossy())).collect();
        results::ProgramResults {
            name: self.name.clone(),
            command: words.join(" "),
            limits: self.limits.clone(),
            alone: Vec::new(),
            together: Vec::new(),
        }
    }
}

/// Splits the arguments into names and commands. `--and` ends a command only if `NAME --` follows, so programs may
/// have it as an argument.
fn split_programs(words: &[OsString]) -> Result<Vec<(String, Vec<OsString>)>, String> {
    const PROGRAM_FORM: &str = "NAME -- PROGRAM [ARGUMENT]... --and NAME -- PROGRAM [ARGUMENT]...";
    let begins = |at: usize| {
        words.get(at + 1).is_some_and(|word| word == "--") && words.get(at).is_some_and(|word| word != "--")
    };
    if !begins(0) {
        return Err(format!("the first program is not NAME -- PROGRAM; accepted: {PROGRAM_FORM}"));
    }
    let mut starts = vec![0];
    starts.extend((1..words.len()).filter(|at| words[*at] == SEPARATOR && begins(at + 1)).map(|at| at + 1));
    let mut programs: Vec<(String, Vec<OsString>)> = Vec::new();
    for (index, start) in starts.iter().enumerate() {
        let end = starts.get(index + 1).map_or(words.len(), |next| next - 1);
        let name = words[*start].to_string_lossy().into_owned();
        let command = words[start + 2..end].to_vec();
        if !is_name(&name) {
            return Err(format!("{name:?} cannot be a tenant's name; accepted: {PROGRAM_FORM}"));
        }
        if command.is_empty() {
            return Err(format!("{name} is given no program; accepted: {PROGRAM_FORM}"));
        }
        if programs.iter().any(|(other, _)| *other == name) {
            return Err(format!("{name} is given twice; accepted: each tenant once"));
        }
        programs.push((name, command));
    }
    match programs.len() {
        1 => Err(format!("one program is nothing to compare; accepted: {PROGRAM_FORM}")),
        2..=MAX_PROGRAMS => Ok(programs),
        _ => Err(format!("more than {MAX_PROGRAMS} programs")),
    }
}

/// Parses `NAME:memory=4GiB,sm=30`.
fn parse_spec(text: &str) -> Result<(String, Option<OsString>, Option<OsString>), String> {
    let refused = || format!("--tenant {text:?}; accepted: NAME, or NAME:memory=SIZE,sm=PERCENT");
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let (mut memory, mut sm) = (None, None);
    for part in rest.split(',').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("memory", size)) if memory.is_none() => memory = Some(size.into()),
            Some(("sm", percent)) if sm.is_none() => sm = Some(percent.into()),
            _ => return Err(refused()),
        }
    }
    if is_name(name) { Ok((name.to_owned(), memory, sm)) } else { Err(refused()) }
}

type PreparedPrograms = (Vec<TenantProgram>, Vec<(String, String)>, Vec<String>);

/// Returns the programs, facts about the environment, and notes for the reader.
///
/// # Errors
/// Wrong usage, no daemon, no such tenant, or no library.
pub fn prepare_programs(args: &Args) -> Result<PreparedPrograms, Failure> {
    let usage = |words: String| Failure::new(EXIT_USAGE, words);
    let given = split_programs(&args.programs).map_err(usage)?;
    let base = || run::Args { library: args.library.clone(), sim: args.sim, ..run::Args::default() };
    let version = ("vgpu".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    if args.bare {
        let changes = run::simulated_changes(&base())?;
        let program =
            |(name, command)| TenantProgram { name, command, changes: changes.clone(), limits: "no library".into() };
        return Ok((given.into_iter().map(program).collect(), vec![version], Vec::new()));
    }
    if !args.tenant.is_empty() {
        let specs: Vec<_> = args.tenant.iter().map(|text| parse_spec(text)).collect::<Result<_, _>>().map_err(usage)?;
        if let Some((name, ..)) = specs.iter().find(|(name, ..)| !given.iter().any(|(given, _)| given == name)) {
            let names: Vec<&str> = given.iter().map(|(name, _)| name.as_str()).collect();
            return Err(usage(format!("--tenant {name:?} runs nothing; accepted: {}", names.join(", "))));
        }
        let program = |(name, command): (String, Vec<OsString>)| {
            let (_, memory, sm) = specs.iter().find(|(spec, ..)| *spec == name).cloned().unwrap_or_default();
            let said = |what: &str, value: &Option<OsString>| {
                format!("{what} {}", value.as_ref().map_or("unlimited".into(), |value| value.to_string_lossy()))
            };
            let limits = format!("{}, {}, without a daemon", said("memory", &memory), said("sm", &sm));
            let args =
                run::Args { memory_limit: memory, sm_limit: sm, tenant: Some(run::new_name()?.into()), ..base() };
            Ok(TenantProgram { changes: run::environment_changes(&args)?, name, command, limits })
        };
        let programs = given.into_iter().map(program).collect::<Result<_, Failure>>()?;
        return Ok((programs, vec![version], Vec::new()));
    }
    let answer = args.daemon.ask_daemon(&ControlCommand::Status).map_err(|why| {
        let hint = "; without a daemon: --tenant NAME:memory=SIZE,sm=PERCENT, or --bare";
        Failure::new(why.code, why.words + hint)
    })?;
    let status = answer.status.ok_or_else(crate::ask::no_answer)?;
    let mut notes = Vec::new();
    let there: usize = status.tenants.iter().map(|tenant| tenant.members.len()).sum();
    if there > 0 {
        notes.push(format!(
            "{there} processes of the daemon's tenants ran before: their work is part of these numbers."
        ));
    }
    let program = |(name, command): (String, Vec<OsString>)| {
        let tenant = find_tenant(&status.tenants, &name)?;
        let args = run::Args { socket: Some(tenant.socket.clone()), ..base() };
        Ok(TenantProgram { changes: run::environment_changes(&args)?, limits: format_limits(tenant), name, command })
    };
    let programs = given.into_iter().map(program).collect::<Result<_, Failure>>()?;
    let daemon = ("vgpud".to_owned(), status.version);
    Ok((programs, vec![version, daemon], notes))
}

fn find_tenant<'a>(tenants: &'a [TenantStatus], name: &str) -> Result<&'a TenantStatus, Failure> {
    let refused = |words: String| Failure::new(EXIT_FINDINGS, words);
    let names = || tenants.iter().filter(|tenant| !tenant.removed).map(|tenant| tenant.name.as_str());
    let found = tenants.iter().find(|tenant| tenant.name == name && !tenant.removed);
    let found = found.ok_or_else(|| {
        let meant = nearest_word(name, names()).map_or(String::new(), |meant| format!(" (did you mean {meant:?}?)"));
        let names: Vec<&str> = names().take(20).collect();
        refused(format!("the daemon has no tenant {name:?}{meant}; accepted: {}", names.join(", ")))
    })?;
    if let Some(why) = &found.unusable {
        return Err(refused(format!("tenant {name} cannot be served: {why}")));
    }
    if found.paused {
        return Err(refused(format!("tenant {name} is paused; `vgpu resume {name}` lets it launch again")));
    }
    Ok(found)
}

fn format_limits(tenant: &TenantStatus) -> String {
    let memory = tenant.memory_limit.map_or("unlimited".into(), |bytes| Bytes(bytes).to_string());
    let sm = tenant.sm_limit.map_or("unlimited".into(), |percent| format!("{percent} %"));
    let floors: Vec<String> =
        tenant.devices.iter().filter_map(|device| device.sm_request).map(|percent| format!("{percent} %")).collect();
    let floor = floors.first().map_or(String::new(), |floor| format!(", request {floor}"));
    format!("memory {memory}, sm {sm}{floor}, {}", tenant.mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn programs_are_told_apart_and_keep_their_own_arguments() {
        let two = split_programs(&words("a -- ./a -- --and --flag --and b -- ./b --and")).unwrap();
        assert_eq!(two[0], ("a".into(), words("./a -- --and --flag")));
        assert_eq!(two[1], ("b".into(), words("./b --and")));
    }

    #[test]
    fn what_is_no_comparison_is_refused_in_words() {
        for (line, said) in [
            ("./a", "not NAME -- PROGRAM"),
            ("a ./a", "not NAME -- PROGRAM"),
            ("a -- ./a", "nothing to compare"),
            ("a -- ./a --and a -- ./b", "twice"),
            ("a -- --and b -- ./b", "no program"),
            ("a/b -- x --and b -- x", "cannot be a tenant's name"),
        ] {
            let why = split_programs(&words(line)).unwrap_err();
            assert!(why.contains(said), "{line}: {why}");
        }
        assert_eq!(parse_spec("a:memory=4GiB,sm=30"), Ok(("a".into(), Some("4GiB".into()), Some("30".into()))));
        assert!(["a:gpu=1", "a:sm=1,sm=2", ":sm=1", "a:sm"].iter().all(|text| parse_spec(text).is_err()));
    }
}
