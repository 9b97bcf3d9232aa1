//! The daemon's command line as written; the daemon's configuration resolves its meaning.

use std::path::PathBuf;

use clap::Parser;

/// Shares this machine's GPUs among tenants: gives each tenant's programs limits and turns, over one Unix socket per
/// tenant.
#[derive(Debug, Parser)]
#[command(
    name = "vgpud",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  vgpud --tenant a --socket /run/vgpu/a/vgpud.sock --memory-limit 4GiB --sm-limit 30
  vgpud --tenant a:memory=4GiB,sm=30 --tenant b:memory=8GiB,sm=60,socket=/srv/b/vgpud.sock
  vgpud --check /etc/vgpu/vgpud.toml && vgpud --config /etc/vgpu/vgpud.toml
  vgpud --import device-plugin.yaml > /etc/vgpu/vgpud.toml
  docker run -v /run/vgpu/a:/run/vgpu/a:ro -e VGPU_SOCKET=/run/vgpu/a/vgpud.sock ...

Places:
  A tenant without a socket of its own gets <runtime dir>/tenants/<name>/vgpud.sock. Mount that
  directory, not the socket, into the tenant's container, read-only: a process that can replace
  the socket's file prevents a restarted daemon from serving. The administrative socket is
  <runtime dir>/admin.sock; if every tenant's socket is named, only --admin-socket or --runtime-dir
  opens one. --runtime-dir, --state-dir, --admin-socket and --log override the file. An
  administrative socket from systemd (LISTEN_PID, LISTEN_FDS) overrides all of them.

Signals:
  SIGTERM and SIGINT stop the daemon, and SIGHUP too if it has no file. With --config, SIGHUP reads
  the file again: tenants are added and removed, members stay; a file with an error changes
  nothing.

Exit codes:
  0  stopped by a signal, its sockets are removed; or with --check, --import: no errors
  1  could not start or continue; or with --check, --import: the file has errors
  2  usage: an option or the file of --config is wrong, nothing was started
  3  with --check, --import: the file cannot be read"
)]
pub struct Options {
    /// Takes devices, tenants and all settings from this file (docs/vgpud.md); SIGHUP reads it again.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["tenants", "socket", "memory_limit", "sm_limit", "max_connections"]
    )]
    pub config: Option<PathBuf>,

    /// Shows the meaning of the file, or all its errors, and starts nothing.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["config", "tenants", "socket", "memory_limit", "sm_limit", "max_connections"]
    )]
    pub check: Option<PathBuf>,

    /// Prints a configuration file made from one of NVIDIA's device plugin or a compose file, and starts nothing.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["config", "check", "tenants", "socket", "memory_limit", "sm_limit", "max_connections"]
    )]
    pub import: Option<PathBuf>,

    /// With --check: prints JSON.
    #[arg(long, requires = "check")]
    pub json: bool,

    /// With a file: asks the driver for the devices (auto), or takes them from the file alone (none).
    #[arg(long, value_name = "WHETHER", default_value = "auto", value_parser = ["auto", "none"])]
    pub driver: String,

    /// A tenant, repeatable: NAME, or NAME:memory=SIZE,sm=PERCENT,mode=MODE,strict=BOOL,socket=PATH with any of these
    /// keys.
    #[arg(long = "tenant", value_name = "NAME[:KEY=VALUE,...]")]
    pub tenants: Vec<String>,

    /// Socket of the members, if there is only one tenant.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Memory limit per device of every tenant without its own.
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<String>,

    /// Ceiling on device time in percent, of every tenant without its own.
    #[arg(long, value_name = "PERCENT")]
    pub sm_limit: Option<String>,

    /// Administrative socket, which `vgpu` connects to; `none` for no such socket.
    #[arg(long, value_name = "PATH")]
    pub admin_socket: Option<PathBuf>,

    /// Directory of the sockets without a path of their own [default: $VGPU_RUNTIME_DIR, /run/vgpu,
    /// $XDG_RUNTIME_DIR/vgpu].
    #[arg(long, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,

    /// Directory of the record of usage, which outlives the daemon; `none` for no record [default: /var/lib/vgpu for
    /// root,
    /// $XDG_STATE_HOME/vgpu; RUNTIME_DIR/state with another runtime directory; none if every socket is named].
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Maximum number of open connections of a tenant.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,

    /// Lowest level of log lines on stderr: error, warn, info, debug or off [default: info].
    #[arg(long, value_name = "LEVEL", value_parser = ["off", "error", "warn", "info", "debug"])]
    pub log: Option<String>,
}
