//! The daemon: options, configuration, log, signals, serve.
#![forbid(unsafe_code)]

use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use scheduler_sidecar::daemon::activation;
use scheduler_sidecar::daemon::check;
use scheduler_sidecar::daemon::config::Config;
use scheduler_sidecar::daemon::notify::Notifier;
use scheduler_sidecar::daemon::options::Options;
use scheduler_sidecar::daemon::reactor::{Reactor, Told};
use scheduler_sidecar::daemon::scribe::Scribe;
use scheduler_sidecar::daemon::source::Source;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing::level_filters::LevelFilter;

/// How long the end waits for somebody who reads the log.
const LAST_WORDS: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(file) = &options.check {
        return check::run(file, &options).unwrap_or_else(|why| fail(why.code, &why));
    }
    let read = match &options.config {
        Some(file) => from_file(file, &options),
        None => Config::new(&options).map(|config| (config, None)).map_err(Into::into),
    };
    let (config, file) = match read {
        Ok(read) => read,
        Err(why) => return fail(2, &*why),
    };
    let level = file.as_ref().map(|(_, plan, _)| plan.daemon.log.as_str()).or(options.log.as_deref());
    let level = level.and_then(|level| level.parse().ok()).unwrap_or(LevelFilter::INFO);
    let scribe = match Scribe::start(std::io::stderr()) {
        Ok(scribe) => scribe,
        Err(why) => return fail(1, &format_args!("cannot start the log: {why}")),
    };
    tracing_subscriber::fmt().with_max_level(level).with_target(false).with_writer(scribe.clone()).init();
    let served = serve(config, file);
    scribe.finish(LAST_WORDS);
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail(1, &*why),
    }
}

type Whatever = Box<dyn std::error::Error>;
type Read = (Source, scheduler_sidecar::config::plan::Plan, String);

fn from_file(file: &std::path::Path, options: &Options) -> Result<(Config, Option<Read>), Whatever> {
    let source = Source::new(file, options);
    let text = source.text()?;
    let plan = source.plan(&text)?;
    Ok((Config::from(&plan), Some((source, plan, text))))
}

fn serve(mut config: Config, file: Option<Read>) -> Result<(), Whatever> {
    let activated = activation::socket()?;
    if let Some(activated) = &activated {
        let other = config.admin.take().filter(|path| *path != activated.path);
        if let Some(other) = other {
            tracing::warn!(socket = %activated.path.display(), not = %other.display(), "administrators come by the service manager's socket");
        }
    }
    let stop = UnixStream::pair()?;
    let reload = UnixStream::pair()?;
    for (signal, to) in
        [(SIGTERM, &stop.1), (SIGINT, &stop.1), (SIGHUP, if file.is_some() { &reload.1 } else { &stop.1 })]
    {
        signal_hook::low_level::pipe::register(signal, to.try_clone()?)?;
    }
    let told = Told { stop: stop.0, reload: reload.0 };
    let mut reactor = Reactor::new(config, told, file, Notifier::from_environment())?;
    if let Some(activated) = activated {
        reactor.administer_by(activated)?;
    }
    Ok(reactor.run()?)
}

fn fail(code: u8, why: &dyn std::fmt::Display) -> ExitCode {
    for line in why.to_string().lines() {
        eprintln!("vgpud: {line}");
    }
    ExitCode::from(code)
}
