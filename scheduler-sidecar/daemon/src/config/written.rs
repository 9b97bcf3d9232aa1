//! Settings from the command line: parses `--tenant` and the limits, and words the errors.

use std::fmt;
use std::path::{Path, PathBuf};

use vgpu_core::limits::Mode;
use vgpu_core::units::bytes::{Bytes, SIZE_FORMS, Size, parse_size};
use vgpu_core::units::share::{SHARE_FORMS, Share, parse_share};

use super::{DaemonConfig, TenantConfig};
use vgpu_accounting::record::RecordSettings;
use vgpu_config::options::Options;
use vgpu_config::paths::{self, MAX_SOCKET_PATH};
use vgpu_config::plan::{Keep, LogPlan, MetricsPlan};
use vgpu_config::time::TimeConfig;
use vgpu_config::value::{self, WrittenValue::Text, WrongValue, is_name};

/// An invalid option. The message names the option, its value and what is accepted.
#[derive(Debug)]
pub struct ConfigError(String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// A tenant as given on the command line: its name and its own options.
struct WrittenTenant<'a> {
    name: &'a str,
    memory: Option<Option<Bytes>>,
    sm: Option<Option<Share>>,
    mode: Option<Mode>,
    strict: Option<bool>,
    socket: Option<PathBuf>,
}

impl<'a> WrittenTenant<'a> {
    fn new(name: &'a str) -> Self {
        Self { name, memory: None, sm: None, mode: None, strict: None, socket: None }
    }
}

impl DaemonConfig {
    /// Parses the options.
    ///
    /// # Errors
    /// [`ConfigError`] for the first invalid option.
    pub fn new(options: &Options) -> Result<Self, ConfigError> {
        let memory =
            options.memory_limit.as_deref().map(|text| parse_memory("--memory-limit", text)).transpose()?.flatten();
        let sm = options.sm_limit.as_deref().map(|text| parse_ceiling("--sm-limit", text)).transpose()?.flatten();
        let mut written = options.tenants.iter().map(|text| parse_tenant(text)).collect::<Result<Vec<_>, _>>()?;
        // Options of a tenant without any `--tenant` mean one tenant named `default`.
        if written.is_empty() && (options.socket.is_some() || memory.is_some() || sm.is_some()) {
            written.push(WrittenTenant::new("default"));
        }
        if let Some(socket) = &options.socket {
            match written.as_mut_slice() {
                [only] if only.socket.is_none() => only.socket = Some(socket.clone()),
                [_] => return Err(ConfigError("--socket and socket= both name the tenant's socket; give one".into())),
                many => {
                    let count = many.len();
                    return Err(ConfigError(format!(
                        "--socket names one socket, but there are {count} tenants; give each its own: \
                         --tenant NAME:socket=PATH"
                    )));
                }
            }
        }

        let all_named = !written.is_empty() && written.iter().all(|tenant| tenant.socket.is_some());
        let runtime_dir = options.runtime_dir.clone().unwrap_or_else(paths::runtime_dir);
        let tenants = written
            .into_iter()
            .map(|written| {
                let place = || runtime_dir.join("tenants").join(written.name).join("vgpud.sock");
                let socket = socket_path(&written.socket.clone().unwrap_or_else(place))?;
                let (memory, sm) = (written.memory.unwrap_or(memory), written.sm.unwrap_or(sm));
                Ok(TenantConfig {
                    mode: written.mode.unwrap_or_default(),
                    strict: written.strict.unwrap_or_default(),
                    ..TenantConfig::on_all_devices(written.name, socket, memory, sm.filter(|sm| !sm.is_all()))
                })
            })
            .collect::<Result<Vec<_>, _>>()?;

        let admin = match &options.admin_socket {
            Some(path) if path.as_os_str() == "none" => None,
            Some(path) => Some(socket_path(path)?),
            None if all_named && options.runtime_dir.is_none() => None,
            None => Some(socket_path(&paths::admin_socket(&runtime_dir))?),
        };
        let run_dir = (!all_named || options.runtime_dir.is_some()).then_some(runtime_dir);
        let state_dir = match &options.state_dir {
            Some(path) if path.as_os_str() == "none" => None,
            Some(path) => Some(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
            None => run_dir.as_deref().map(paths::state_dir),
        };
        let config = Self {
            tenants,
            admin,
            run_dir,
            record: RecordSettings { dir: state_dir, keep: Keep::default(), exact: true },
            max_connections: usize::try_from(options.max_connections).unwrap_or(usize::MAX),
            time: TimeConfig::default(),
            arbitrate: true,
            devices: Vec::new(),
            log: LogPlan::default(),
            metrics: MetricsPlan::default(),
            proof: None,
        };
        config.check_distinct()?;
        Ok(config)
    }

    fn check_distinct(&self) -> Result<(), ConfigError> {
        for (index, tenant) in self.tenants.iter().enumerate() {
            for earlier in &self.tenants[..index] {
                if earlier.name == tenant.name {
                    return Err(ConfigError(format!("--tenant {:?} is given twice", tenant.name)));
                }
                if earlier.socket == tenant.socket {
                    return Err(ConfigError(format!(
                        "the tenants {:?} and {:?} have the same socket, {}; the socket is what tells them apart",
                        earlier.name,
                        tenant.name,
                        tenant.socket.display()
                    )));
                }
            }
            if let Some(admin) = self.admin.as_ref().filter(|admin| admin.parent() == tenant.socket.parent()) {
                return Err(ConfigError(format!(
                    "the administrative socket {} lies in the directory that is mounted into the containers of the \
                     tenant {:?}; name another with --admin-socket",
                    admin.display(),
                    tenant.name
                )));
            }
        }
        Ok(())
    }
}

/// `NAME` or `NAME:memory=SIZE,sm=PERCENT,mode=MODE,strict=BOOL,socket=PATH`.
fn parse_tenant(text: &str) -> Result<WrittenTenant<'_>, ConfigError> {
    const KEYS: &str =
        "accepted: NAME, or NAME:memory=SIZE,sm=PERCENT,mode=MODE,strict=BOOL,socket=PATH with any of these";
    let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
    if !is_name(name) {
        return Err(ConfigError(format!(
            "--tenant {text:?}: the name {name:?} cannot be used; accepted: 1 to 64 letters, digits, '-', '_' and '.', \
             not beginning with '.'"
        )));
    }
    let mut written = WrittenTenant::new(name);
    for part in rest.into_iter().flat_map(|rest| rest.split(',')) {
        let Some((key, said)) = part.split_once('=') else {
            return Err(ConfigError(format!("--tenant {text:?}: {part:?} is not KEY=VALUE; {KEYS}")));
        };
        let option = format!("--tenant {text:?}: {key}");
        let twice = match key {
            "memory" => written.memory.replace(parse_memory(&option, said)?).is_some(),
            "sm" => written.sm.replace(parse_ceiling(&option, said)?).is_some(),
            "mode" => written.mode.replace(parse_word(&option, said, value::read_mode(&Text(said)))?).is_some(),
            "strict" => written.strict.replace(parse_word(&option, said, value::strict_text(said))?).is_some(),
            "socket" => written.socket.replace(PathBuf::from(said)).is_some(),
            _ => return Err(ConfigError(format!("--tenant {text:?}: {key:?} is not a key; {KEYS}"))),
        };
        if twice {
            return Err(ConfigError(format!("{option} is given twice")));
        }
    }
    Ok(written)
}

/// A memory limit in bytes. A percentage needs the size of a device, and the daemon has not asked for any yet.
fn parse_memory(option: &str, text: &str) -> Result<Option<Bytes>, ConfigError> {
    match parse_size(text) {
        Ok(Size::Bytes(bytes)) => Ok(Some(bytes)),
        Ok(Size::Unlimited) => Ok(None),
        Ok(Size::Percent(_)) => Err(ConfigError(format!(
            "{option} {text:?} is a percentage, and vgpud does not know the size of the device; accepted: bytes, or a \
             number with a unit like 1.5GiB, or unlimited"
        ))),
        Err(why) => Err(ConfigError(format!("{option} {text:?} {why}; accepted: {SIZE_FORMS}"))),
    }
}

/// A ceiling on device time.
fn parse_ceiling(option: &str, text: &str) -> Result<Option<Share>, ConfigError> {
    parse_share(text).map_err(|why| ConfigError(format!("{option} {text:?} {why}; accepted: {SHARE_FORMS}")))
}

/// A value with the same syntax as in the file.
fn parse_word<T>(option: &str, text: &str, read: Result<T, WrongValue>) -> Result<T, ConfigError> {
    read.map_err(|why| ConfigError(format!("{option} {text:?} {}; accepted: {}", why.what, why.accepted)))
}

/// An absolute path that fits into a Unix socket address.
fn socket_path(path: &Path) -> Result<PathBuf, ConfigError> {
    let wrong = |why: &str| ConfigError(format!("the socket path {path:?} {why}"));
    if path.file_name().is_none() {
        return Err(wrong("names no file"));
    }
    let absolute = std::path::absolute(path).map_err(|why| wrong(&format!("cannot be made absolute: {why}")))?;
    let length = absolute.as_os_str().len();
    if length > MAX_SOCKET_PATH {
        return Err(wrong(&format!("is {length} bytes long; a Unix socket's path has at most {MAX_SOCKET_PATH}")));
    }
    Ok(absolute)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn config(args: &[&str]) -> Result<DaemonConfig, String> {
        let args = std::iter::once("vgpud").chain(args.iter().copied());
        DaemonConfig::new(&Options::try_parse_from(args).unwrap()).map_err(|why| why.to_string())
    }

    #[test]
    fn one_tenant_takes_the_plain_options() {
        let args = ["--tenant", "a", "--socket", "/x/s", "--memory-limit", "1.5GiB", "--sm-limit", "12.5"];
        let config = config(&args).unwrap();
        let [tenant] = config.tenants.as_slice() else { panic!() };
        assert_eq!((tenant.name.as_str(), tenant.socket.as_path()), ("a", Path::new("/x/s")));
        assert_eq!(
            (tenant.lowest_memory(), tenant.lowest_ceiling()),
            (Some(Bytes(3 << 29)), Share::from_permille(125))
        );
        assert_eq!(config.admin, None, "nothing is opened beside what was named");
    }

    #[test]
    fn without_a_tenant_there_is_none_and_limits_without_a_name_are_one_tenants() {
        let none = config(&["--runtime-dir", "/r"]).unwrap();
        assert!(none.tenants.is_empty());
        assert_eq!(none.admin.as_deref(), Some(Path::new("/r/admin.sock")));
        assert!(config(&[]).unwrap().admin.is_some(), "the administrative socket is opened all the same");
        for option in [["--socket", "/x/s"], ["--memory-limit", "1GiB"], ["--sm-limit", "10"]] {
            let names: Vec<_> = config(&option).unwrap().tenants.into_iter().map(|tenant| tenant.name).collect();
            assert_eq!(names, ["default"], "{option:?}");
        }
    }

    #[test]
    fn several_tenants_have_their_own_limits_and_the_plain_options_are_defaults() {
        let config = config(&[
            "--runtime-dir",
            "/r",
            "--memory-limit",
            "1GiB",
            "--tenant",
            "a:memory=4GiB,sm=30",
            "--tenant",
            "b:socket=/s/b,memory=unlimited",
            "--tenant",
            "c",
        ])
        .unwrap();
        let limits: Vec<_> =
            config.tenants.iter().map(|tenant| (tenant.lowest_memory(), tenant.lowest_ceiling())).collect();
        assert_eq!(
            limits,
            [(Some(Bytes(4 << 30)), Share::from_percent(30)), (None, None), (Some(Bytes(1 << 30)), None)]
        );
        let sockets: Vec<_> = config.tenants.iter().map(|tenant| tenant.socket.to_str().unwrap()).collect();
        assert_eq!(sockets, ["/r/tenants/a/vgpud.sock", "/s/b", "/r/tenants/c/vgpud.sock"]);
        assert_eq!(config.admin.as_deref(), Some(Path::new("/r/admin.sock")));
    }

    #[test]
    fn every_bad_option_is_refused_naming_it_its_value_and_what_is_accepted() {
        let long = format!("/{}", "x".repeat(107));
        let table: &[(&[&str], &[&str])] = &[
            (&["--memory-limit", "abc"], &["--memory-limit", "\"abc\"", "is not a size", "accepted:"]),
            (&["--memory-limit", "0"], &["--memory-limit", "\"0\"", "is zero", "accepted:"]),
            (&["--memory-limit", "25%"], &["--memory-limit", "\"25%\"", "percentage", "accepted:"]),
            (&["--sm-limit", "101"], &["--sm-limit", "\"101\"", "more than 100%", "accepted:"]),
            (&["--sm-limit", ""], &["--sm-limit", "\"\"", "accepted:"]),
            (&["--tenant", ""], &["--tenant", "\"\"", "accepted:"]),
            (&["--tenant", ".hidden"], &["--tenant", "\".hidden\"", "accepted:"]),
            (&["--tenant", "a/b"], &["--tenant", "\"a/b\"", "accepted:"]),
            (&["--tenant", "a:"], &["--tenant", "\"\" is not KEY=VALUE", "accepted:"]),
            (&["--tenant", "a:memory"], &["\"memory\" is not KEY=VALUE", "accepted:"]),
            (&["--tenant", "a:memroy=1G"], &["\"memroy\" is not a key", "accepted:"]),
            (&["--tenant", "a:memory=1X"], &["memory \"1X\"", "accepted:"]),
            (&["--tenant", "a:sm=1,sm=2"], &["sm is given twice"]),
            (&["--tenant", "a", "--tenant", "a"], &["\"a\" is given twice"]),
            (&["--tenant", "a:socket=/s", "--tenant", "b:socket=/s"], &["\"a\"", "\"b\"", "/s"]),
            (&["--tenant", "a", "--tenant", "b", "--socket", "/s"], &["--socket", "2 tenants", "socket=PATH"]),
            (&["--tenant", "a:socket=/s", "--socket", "/s"], &["--socket", "socket=", "give one"]),
            (&["--socket", "/x/s", "--admin-socket", "/x/s"], &["administrative socket", "/x/s"]),
            (&["--socket", "/x/s", "--admin-socket", "/x/t"], &["administrative socket", "/x/t", "--admin-socket"]),
            (&["--socket", "/"], &["\"/\"", "names no file"]),
            (&["--socket", &long], &["108 bytes", "107"]),
        ];
        for (args, words) in table {
            let message = config(args).err().unwrap_or_else(|| panic!("{args:?} was accepted"));
            for word in *words {
                assert!(message.contains(word), "{args:?}: {message:?} lacks {word:?}");
            }
        }
    }
}
