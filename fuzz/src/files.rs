//! The configuration file and the administrator's line: every input gets an answer in bounded time.

use std::sync::LazyLock;

use jiff::tz::TimeZone;
use vgpu_config::make_plan;
use vgpu_config::plan::ConfigPlan;
use vgpu_config::problem::MAX_PROBLEMS_SHOWN;
use vgpu_config::resolve::Surroundings;
use vgpu_control::ControlCommand;
use vgpu_daemon::answer;

/// Valid configuration files, from which the fuzzer starts.
pub const CONFIGS: &[&[u8]] = &[
    include_bytes!("../../examples/daemon/vgpud.toml"),
    include_bytes!("../../scheduler-sidecar/daemon/tests/config/plan.toml"),
    include_bytes!("../../scheduler-sidecar/daemon/tests/config/time.toml"),
    include_bytes!("../../scheduler-sidecar/daemon/tests/config/floors.toml"),
];

/// Words for configuration files; some occur more often, and some make a file invalid.
pub const FILE_WORDS: &[&str] = &[
    "[daemon]",
    "[time]",
    "[defaults]",
    "[template.a]",
    "[template.\"\"]",
    "[[device]]",
    "[[tenant]]",
    "[[tenant.device]]",
    "[[group]]",
    "[tenant]",
    "[device.x]",
    "run_dir = ",
    "state_dir = ",
    "log = ",
    "name = ",
    "template = ",
    "devices = ",
    "replicas = ",
    "gpu = ",
    "group = ",
    "uids = ",
    "memory_limit = ",
    "sm_limit = ",
    "sm_request = ",
    "weight = ",
    "class = ",
    "quantum = ",
    "mode = ",
    "strict = ",
    "on_error = ",
    "on_loss = ",
    "[[on_event]]",
    "events = ",
    "exec = ",
    "timeout = ",
    "at_once = ",
    "tenant.paused",
    "/bin/true",
    "id = ",
    "memory = ",
    "overcommit = ",
    "arbitrate = ",
    "heartbeat = ",
    "gone = ",
    "name",
    "weight",
    "=",
    "=",
    "\n",
    "\n",
    "\n",
    ".",
    ",",
    "[",
    "]",
    "{",
    "}",
    "\"",
    "'",
    "\"\"\"",
    "#",
    "\\",
    "\0",
    "\u{feff}",
    "\"a\"",
    "\"b\"",
    "\"*\"",
    "\"MIG-1\"",
    "0",
    "1",
    "-1",
    "1e999",
    "nan",
    "0x10",
    "1_000",
    "99999999999999999999",
    "0.25",
    "true",
    "1979-05-27",
    "\"4ms\"",
    "\"50%\"",
    "\"1GiB\"",
    "\"unlimited\"",
    "\"batch\"",
    "\"observe\"",
    "\"auto\"",
    "\"/x\"",
    "\u{e9}\u{202e}",
    "\"\u{e9}\u{202e}\"",
];

/// Valid requests of administrators, from which the fuzzer starts.
pub const QUESTIONS: &[&[u8]] = &[
    b"{\"hello\":2,\"ask\":\"status\"}",
    b"{\"hello\":2,\"ask\":\"pause\",\"tenant\":\"a\"}",
    b"{\"hello\":2,\"ask\":\"set\",\"tenant\":\"a\",\"device\":\"0\",\"change\":{\"memory_limit\":\"1GiB\",\"sm_limit\":\"30\",\
\"sm_request\":\"none\",\"weight\":\"3\",\"class\":\"batch\",\"quantum\":\"4ms\"}}",
    b"{\"hello\":2,\"ask\":\"add\",\"section\":{\"name\":\"b\",\"gpu\":\"0.5\",\"template\":\"a\",\"devices\":[\"0\"],\
\"uids\":[\"1-2\"],\"group\":\"g\",\"labels\":{\"k\":\"v\"}},\"pid\":1,\"seconds\":9,\"replace\":true}",
    b"{\"hello\":2,\"ask\":\"remove\",\"tenant\":\"b\"}",
];

/// Words from which requests of administrators are built.
pub const KEYS: &[&str] = &[
    "\"hello\":1",
    "\"hello\":2",
    "\"ask\":",
    "\"status\"",
    "\"ps\"",
    "\"set\"",
    "\"pause\"",
    "\"resume\"",
    "\"explain\"",
    "\"add\"",
    "\"section\":",
    "\"name\":",
    "\"gpu\":",
    "\"devices\":",
    "\"uids\":",
    "\"labels\":",
    "\"pid\":",
    "\"seconds\":",
    "\"tenant\":",
    "\"device\":",
    "\"*\"",
    "\"change\":",
    "\"memory_limit\":",
    "\"sm_limit\":",
    "\"sm_request\":",
    "\"weight\":",
    "\"class\":",
    "\"quantum\":",
    "\"mode\":",
    "\"strict\":",
    "observe",
    "unlimited",
    "none",
    "default",
    "latency",
    "50%",
    "1GiB",
    "0.5",
    "500us",
    "1e400",
    "-1",
    "99999999999999999999",
    "null",
    "[",
    "{",
    "}",
    "]",
    ",",
    "\\u0000",
    "\u{e9}\u{202e}",
];

/// Checks a configuration file: it gives a plan, or printable problems with their positions in the text.
pub fn config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let event_kinds = vgpu_control::event::triggering_kinds();
    match make_plan(&text, &Surroundings { run_dir: "/run/vgpu".into(), event_kinds, ..Default::default() }) {
        Ok(_) => {}
        Err(report) => {
            assert!(!report.problems.is_empty() && report.problems.len() <= MAX_PROBLEMS_SHOWN);
            let lines: Vec<&str> = text.split('\n').collect();
            for problem in &report.problems {
                let line = problem.line.checked_sub(1).and_then(|line| lines.get(line));
                let line = line.unwrap_or_else(|| panic!("{problem} is nowhere"));
                assert!((1..=line.chars().count() + 2).contains(&problem.column), "{problem}");
            }
            assert!(report.to_lines("f").chars().all(|c| c == '\n' || (' '..='~').contains(&c)), "can be printed");
        }
    }
}

/// A plan that tenants of administrators' requests are added to.
static PLAN: LazyLock<ConfigPlan> = LazyLock::new(|| {
    let text =
        "[template.a]\nweight = 2\n[[device]]\nid = 0\nmemory = \"80GiB\"\n[[tenant]]\nname = \"t\"\ngpu = 0.5\n";
    let around = Surroundings { run_dir: "/run/vgpu".into(), ..Default::default() };
    make_plan(text, &around).expect("a valid file")
});

/// Checks an administrator's line: it is understood, or refused with printable words. The values of `set` and `add`
/// are parsed like those of the configuration file.
pub fn admin(line: &[u8]) {
    let refused = match answer::parse_question(line) {
        Err(words) => return assert!(!words.is_empty()),
        Ok(ControlCommand::Set { change, .. }) => change.read(str::to_owned).err(),
        Ok(ControlCommand::Add { section, .. }) => {
            section.resolve_tenant(&PLAN, &PLAN.tenants, &TimeZone::UTC).err().map(|why| why.to_string())
        }
        Ok(_) => None,
    };
    if let Some(words) = refused {
        assert!(!words.is_empty() && !words.contains(['\n', '\0', '\u{202e}']), "can be printed: {words:?}");
    }
}
