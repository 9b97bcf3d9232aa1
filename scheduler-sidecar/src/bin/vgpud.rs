//! The daemon: options, configuration, log, signals, serve.
#![forbid(unsafe_code)]

use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use clap::Parser as _;
use scheduler_sidecar::daemon::config::Config;
use scheduler_sidecar::daemon::options::Options;
use scheduler_sidecar::daemon::reactor::Reactor;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing::level_filters::LevelFilter;

fn main() -> ExitCode {
    let options = Options::parse();
    let config = match Config::new(&options) {
        Ok(config) => config,
        Err(why) => return fail(2, &why),
    };
    let level = options.log.parse().unwrap_or(LevelFilter::INFO);
    tracing_subscriber::fmt().with_max_level(level).with_target(false).with_writer(std::io::stderr).init();
    match signals().map_err(Into::into).and_then(|stop| serve(config, stop)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail(1, &*why),
    }
}

fn serve(config: Config, stop: UnixStream) -> Result<(), Box<dyn std::error::Error>> {
    Ok(Reactor::new(config, stop)?.run()?)
}

/// A stream that becomes readable when the daemon is told to end.
fn signals() -> std::io::Result<UnixStream> {
    let (stop, told) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, told.try_clone()?)?;
    }
    Ok(stop)
}

fn fail(code: u8, why: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("vgpud: {why}");
    ExitCode::from(code)
}
