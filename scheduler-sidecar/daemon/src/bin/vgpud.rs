//! The daemon's program: parses options, reads the configuration, starts the log, handles signals, and serves.
#![forbid(unsafe_code)]

use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use vgpu_config::options::Options;
use vgpu_config::paths::ADMIN_SOCKET_VARIABLE;
use vgpu_config::plan::LogPlan;
use vgpu_config::raw::LogFormat;
use vgpu_daemon::actions::{ActionRunner, BECOME_PROGRAM, become_program};
use vgpu_daemon::activation::{self, ActivatedSocket};
use vgpu_daemon::audit::AuditLog;
use vgpu_daemon::check;
use vgpu_daemon::config::DaemonConfig;
use vgpu_daemon::import;
use vgpu_daemon::journal::{EventJournal, EventLayer};
use vgpu_daemon::notify::ServiceNotifier;
use vgpu_daemon::reactor::{LoopInputs, Reactor};
use vgpu_daemon::rotate::RotatingFile;
use vgpu_daemon::scribe::LogWriter;
use vgpu_daemon::source::{ConfigSource, PastDeadlines};

/// Longest time that shutdown waits for the programs of actions, before it kills them.
const ACTION_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest time that shutdown waits for the log to be written.
const LOG_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|first| first == BECOME_PROGRAM) {
        return become_program(args);
    }
    let options = Options::parse();
    // If a file may not grow (RLIMIT_FSIZE), writing then returns an error instead of killing the daemon. A driver
    // that is asked while the configuration is read may write too.
    if let Err(why) = signal_hook::flag::register(SIGXFSZ, Arc::default()) {
        return fail_with(1, &format_args!("cannot handle SIGXFSZ: {why}"));
    }
    if let Some(file) = &options.check {
        return check::run(file, &options).unwrap_or_else(|why| fail_with(why.code, &why));
    }
    if let Some(file) = &options.import {
        return import::run(file, &options).unwrap_or_else(|why| fail_with(why.code, &why));
    }
    let read = match &options.config {
        Some(file) => from_file(file, &options),
        None => DaemonConfig::new(&options).map(|config| (config, None)).map_err(Into::into),
    };
    let (config, file) = match read {
        Ok(read) => read,
        Err(why) => return fail_with(2, &*why),
    };
    let level = file.as_ref().map(|(_, plan, _)| plan.daemon.log.as_str()).or(options.log.as_deref());
    let level = level.and_then(|level| level.parse().ok()).unwrap_or(LevelFilter::INFO);
    let journal = EventJournal::new();
    let scribe = match write_log(&config.log, level, &journal) {
        Ok(scribe) => scribe,
        Err(why) => return fail_with(1, &format_args!("cannot start the log: {why}")),
    };
    let activated = activation::activated_socket();
    let actions = file.as_ref().map(|(_, plan, _)| {
        let handed = activated.iter().flatten().next().map(|activated| activated.path.clone());
        let admin = handed.or_else(|| config.admin.clone()).map(|admin| (ADMIN_SOCKET_VARIABLE, admin));
        let run_dir = ("VGPU_RUNTIME_DIR", plan.daemon.run_dir.clone());
        ActionRunner::new(&plan.actions, [run_dir].into_iter().chain(admin).collect())
    });
    if let Some(actions) = &actions {
        journal.act_by(actions.clone());
    }
    let served = serve(config, file, journal.clone(), activated);
    if let Some(actions) = &actions {
        actions.finish_runs(ACTION_DRAIN_TIMEOUT);
    }
    journal.finish_audit();
    scribe.finish_writing(LOG_DRAIN_TIMEOUT);
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail_with(1, &*why),
    }
}

/// Starts the log, the events made from its lines, and the audit log.
fn write_log(log: &LogPlan, level: LevelFilter, journal: &EventJournal) -> std::io::Result<LogWriter> {
    let file = log.file.as_ref().map(|file| RotatingFile::open(file, log.max_size, log.keep));
    let (scribe, no_file) = match file {
        Some(Ok(file)) => (LogWriter::start(file)?, None),
        // A full disk must not stop enforcement.
        Some(Err(why)) => (LogWriter::start(std::io::stderr())?, Some(why)),
        None => (LogWriter::start(std::io::stderr())?, None),
    };
    let audit = log.audit.as_ref().map(|file| AuditLog::start(file, log.max_size, log.keep));
    let no_audit = audit.as_ref().and_then(|audit| audit.as_ref().err().map(ToString::to_string));
    if let Some(audit) = audit {
        journal.audit_to(audit.map_err(|why| why.to_string()));
    }
    let lines = tracing_subscriber::fmt::layer().with_target(false).with_writer(scribe.clone());
    let lines = match log.format {
        LogFormat::Text => lines.with_filter(level).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_filter(level).boxed(),
    };
    tracing_subscriber::registry().with(lines).with(EventLayer(journal.clone()).with_filter(LevelFilter::INFO)).init();
    if let Some(why) = no_file {
        tracing::warn!(%why, "the log's file cannot be written: it goes to standard error");
    }
    if let Some(why) = no_audit {
        tracing::warn!(%why, "there is no audit log until the daemon is restarted; limits are still enforced");
    }
    Ok(scribe)
}

type AnyError = Box<dyn std::error::Error>;
type ReadConfiguration = (ConfigSource, vgpu_config::plan::ConfigPlan, String);

fn from_file(file: &std::path::Path, options: &Options) -> Result<(DaemonConfig, Option<ReadConfiguration>), AnyError> {
    let source = ConfigSource::new(file, options);
    let text = source.read_text()?;
    let plan = source.make_plan(&text, PastDeadlines::All)?;
    let mut config = DaemonConfig::from(&plan);
    if let Some(proof) = &mut config.proof {
        proof.driver = options.driver != "none";
    }
    Ok((config, Some((source, plan, text))))
}

fn serve(
    mut config: DaemonConfig,
    file: Option<ReadConfiguration>,
    journal: EventJournal,
    activated: Result<Option<ActivatedSocket>, String>,
) -> Result<(), AnyError> {
    let activated = activated?;
    if let Some(activated) = &activated {
        let other = config.admin.take().filter(|path| *path != activated.path);
        if let Some(other) = other {
            tracing::warn!(socket = %activated.path.display(), not = %other.display(), "administrators connect to \
                 the service manager's socket");
        }
    }
    let stop = UnixStream::pair()?;
    let reload = UnixStream::pair()?;
    for (signal, to) in
        [(SIGTERM, &stop.1), (SIGINT, &stop.1), (SIGHUP, if file.is_some() { &reload.1 } else { &stop.1 })]
    {
        signal_hook::low_level::pipe::register(signal, to.try_clone()?)?;
    }
    let told = LoopInputs { stop: stop.0, reload: reload.0 };
    let mut reactor = Reactor::new(config, told, file, ServiceNotifier::from_environment(), journal)?;
    if let Some(activated) = activated {
        reactor.administer_by(activated)?;
    }
    Ok(reactor.run()?)
}

fn fail_with(code: u8, why: &dyn std::fmt::Display) -> ExitCode {
    for line in why.to_string().lines() {
        eprintln!("vgpud: {line}");
    }
    ExitCode::from(code)
}
