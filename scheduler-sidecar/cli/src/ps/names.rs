//! Finds the names of containers, in files that engines leave or by asking the engine's socket.
//!
//! The search is short, and every source is optional: without a name the id is shown. Users who may not read an
//! engine's files, as every user but root, get ids.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use vgpu_control::place::{self, ContainerEngine, ProcessPlace};
use vgpu_output::say::escape_line;

/// Longest time that all questions to an engine's socket may take together.
const ENGINE_TIMEOUT: Duration = Duration::from_millis(500);
/// Most bytes read of a file or an answer; 4 MiB.
const MAX_ANSWER_BYTES: u64 = 4 << 20;
/// Longest name shown, in characters.
const MAX_NAME_CHARS: usize = 60;

/// The sources of names, and the names found.
#[derive(Debug)]
pub struct ContainerNames {
    root: PathBuf,
    socket: PathBuf,
    until: Option<Instant>,
    known: HashMap<String, Option<String>>,
}

impl ContainerNames {
    /// Uses this host's files, and the engine's socket in `DOCKER_HOST` if that is a path.
    #[must_use]
    pub fn on_this_host() -> Self {
        let named = std::env::var("DOCKER_HOST").ok().and_then(|host| host.strip_prefix("unix://").map(PathBuf::from));
        Self::under_root(Path::new("/"), named.unwrap_or_else(|| "/var/run/docker.sock".into()))
    }

    /// Uses another root directory and another socket.
    #[must_use]
    pub fn under_root(root: &Path, socket: PathBuf) -> Self {
        Self { root: root.to_owned(), socket, until: None, known: HashMap::new() }
    }

    /// Starts a later refresh: unknown names may be asked for again, known ones are kept.
    pub fn begin_look(&mut self) {
        self.until = None;
        self.known.retain(|_, name| name.is_some());
    }

    /// Returns the place of a process. Checks that its id in its own pid namespace is the one that the member
    /// reported. If it differs, for example because this program sees other ids than the daemon, nothing is returned.
    #[must_use]
    pub fn place_of(&mut self, pid: u32, inside: u32) -> ProcessPlace {
        let proc = self.root.join("proc").join(pid.to_string());
        let innermost = |status: &str| -> Option<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
            line.split_ascii_whitespace().next_back()?.parse().ok()
        };
        let is_meant = fs::read_to_string(proc.join("status")).is_ok_and(|text| innermost(&text) == Some(inside));
        let Some(cgroup) = is_meant.then(|| fs::read_to_string(proc.join("cgroup")).ok()).flatten() else {
            return ProcessPlace::default();
        };
        let mut place = place::parse_cgroup(&cgroup);
        place.name = self.name(&place);
        place
    }

    fn name(&mut self, place: &ProcessPlace) -> Option<String> {
        let (engine, id) = (place.engine?, place.id.as_ref()?);
        // The id becomes part of a path.
        if !place::is_id(id) {
            return None;
        }
        if let Some(known) = self.known.get(id) {
            return known.clone();
        }
        let name = match engine {
            ContainerEngine::Docker => self.docker_name(id),
            ContainerEngine::Podman => self.podman_name(id),
            ContainerEngine::Containerd | ContainerEngine::CriO | ContainerEngine::Unknown => self.annotated_name(id),
            ContainerEngine::Lxc | ContainerEngine::Nspawn | ContainerEngine::Slurm => None,
        };
        let name = name.map(|name| escape_line(&name).chars().take(MAX_NAME_CHARS).collect::<String>());
        let name = name.filter(|name| !name.is_empty());
        self.known.insert(id.clone(), name.clone());
        name
    }

    fn docker_name(&mut self, id: &str) -> Option<String> {
        let file = format!("var/lib/docker/containers/{id}/config.v2.json");
        let kept = self.read_json(&file).or_else(|| self.ask_engine(id))?;
        Some(kept.get("Name")?.as_str()?.trim_start_matches('/').to_owned())
    }

    fn podman_name(&self, id: &str) -> Option<String> {
        let all = self.read_json("var/lib/containers/storage/overlay-containers/containers.json")?;
        let own = all.as_array()?.iter().find(|own| own.get("id").and_then(Value::as_str) == Some(id))?;
        own.get("names")?.as_array()?.first()?.as_str().map(str::to_owned)
    }

    /// Returns the name in the annotations of Kubernetes (`namespace/pod/container`) or nerdctl.
    fn annotated_name(&self, id: &str) -> Option<String> {
        let spaces = ["k8s.io", "default"]
            .map(|space| format!("run/containerd/io.containerd.runtime.v2.task/{space}/{id}/config.json"));
        let places =
            spaces.into_iter().chain([format!("run/containers/storage/overlay-containers/{id}/userdata/config.json")]);
        let spec = places.into_iter().find_map(|file| self.read_json(&file))?;
        let said = |name: &str| spec.get("annotations")?.get(name)?.as_str().filter(|said| !said.is_empty());
        if let Some(name) = said("nerdctl/name") {
            return Some(name.to_owned());
        }
        let cri = [
            "io.kubernetes.cri.sandbox-namespace",
            "io.kubernetes.cri.sandbox-name",
            "io.kubernetes.cri.container-name",
        ];
        let crio = ["io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.container.name"];
        [cri, crio].into_iter().find_map(|keys| {
            let all: Option<Vec<&str>> = keys.into_iter().map(said).collect();
            Some(all?.join("/"))
        })
    }

    fn read_json(&self, file: &str) -> Option<Value> {
        let mut text = Vec::new();
        fs::File::open(self.root.join(file)).ok()?.take(MAX_ANSWER_BYTES).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Asks the engine, if there is time left.
    fn ask_engine(&mut self, id: &str) -> Option<Value> {
        let until = *self.until.get_or_insert_with(|| Instant::now() + ENGINE_TIMEOUT);
        http_get(&self.socket, &format!("/containers/{id}/json"), until).ok()
    }
}

/// Sends a query over HTTP on a socket.
///
/// # Errors
/// Nobody answers, not in time, or not with success and JSON.
fn http_get(socket: &Path, path: &str, until: Instant) -> io::Result<Value> {
    let left = || match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(Some(left)),
    };
    left()?;
    // Connecting to a local socket blocks only while the listener accepts nothing, which the deadline cannot
    // interrupt. So connect without blocking.
    let mut stream = connect(socket)?;
    stream.set_write_timeout(left()?)?;
    // With HTTP/1.0 the answer ends with the connection and is not chunked.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let (mut answer, mut part) = (Vec::new(), [0; 8192]);
    loop {
        stream.set_read_timeout(left()?)?;
        match stream.read(&mut part)? {
            0 => break,
            count => answer.extend_from_slice(part.get(..count).unwrap_or_default()),
        }
        if answer.len() as u64 > MAX_ANSWER_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    if head.split(' ').nth(1) != Some("200") {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(serde_json::from_str(body)?)
}

fn connect(socket: &Path) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let own = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&own, &SocketAddrUnix::new(socket)?)?;
    let stream = UnixStream::from(own);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    struct Host(tempfile::TempDir);

    impl Host {
        /// Creates a host with a process 40 that is 7 in its own namespace, in this control group.
        fn new(cgroup: &str) -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            host.put("proc/40/status", "Name:\tpython3\nNSpid:\t40\t7\n");
            host.put("proc/40/cgroup", cgroup);
            host
        }

        fn put(&self, file: &str, text: &str) {
            let path = self.0.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn shown(&self) -> Option<String> {
            ContainerNames::under_root(self.0.path(), self.0.path().join("sock")).place_of(40, 7).short_text()
        }
    }

    #[test]
    fn a_name_is_found_where_the_engine_left_it_and_else_the_id_is_shown() {
        let host = Host::new(&format!("0::/system.slice/docker-{ID}.scope\n"));
        assert_eq!(host.shown().as_deref(), Some("0123456789ab"));
        host.put(&format!("var/lib/docker/containers/{ID}/config.v2.json"), r#"{"Name":"/train\u001b[2J"}"#);
        assert_eq!(host.shown().as_deref(), Some("train\\u{1b}[2J"), "nothing moves the cursor");
        let host = Host::new(&format!("0::/machine.slice/libpod-{ID}.scope/container"));
        host.put(
            "var/lib/containers/storage/overlay-containers/containers.json",
            &format!(r#"[{{"id":"x","names":["no"]}},{{"id":"{ID}","names":["chat"]}}]"#),
        );
        assert_eq!(host.shown().as_deref(), Some("chat"));
        let host = Host::new(&format!("0::/kubepods.slice/cri-containerd-{ID}.scope"));
        host.put(
            &format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}/config.json"),
            r#"{"annotations":{"io.kubernetes.cri.container-name":"c","io.kubernetes.cri.sandbox-name":"p",
                "io.kubernetes.cri.sandbox-namespace":"n"}}"#,
        );
        assert_eq!(host.shown().as_deref(), Some("n/p/c"));
        let host = Host::new(&format!("0::/kubepods.slice/crio-{ID}.scope"));
        let file = format!("run/containers/storage/overlay-containers/{ID}/userdata/config.json");
        host.put(
            &file,
            r#"{"annotations":{"io.kubernetes.container.name":"c","io.kubernetes.pod.name":"p",
                "io.kubernetes.pod.namespace":"n"}}"#,
        );
        assert_eq!(host.shown().as_deref(), Some("n/p/c"));
        host.put(&file, "{damaged");
        assert_eq!(host.shown().as_deref(), Some("0123456789ab"));
    }

    #[test]
    fn a_process_that_is_another_by_its_inner_number_is_not_told_of() {
        let host = Host::new("0::/system.slice/x.service");
        assert_eq!(host.shown().as_deref(), Some("x.service"));
        let mut names = ContainerNames::under_root(host.0.path(), "/none".into());
        assert_eq!((names.place_of(40, 8), names.place_of(41, 7)), (ProcessPlace::default(), ProcessPlace::default()));
    }

    #[test]
    fn an_engine_is_asked_where_its_files_are_elsewhere_and_one_that_is_silent_is_not_waited_for() {
        let host = Host::new(&format!("0::/docker/{ID}\n"));
        let listener = UnixListener::bind(host.0.path().join("sock")).unwrap();
        let engine = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = [0; 256];
            let count = stream.read(&mut question).unwrap();
            let question = String::from_utf8_lossy(&question[..count]).into_owned();
            stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{\"Name\":\"/far\"}").unwrap();
            drop(stream);
            // The next connection gets no answer.
            (question, listener.accept().unwrap())
        });
        assert_eq!(host.shown().as_deref(), Some("far"));
        let begin = Instant::now();
        assert_eq!(host.shown().as_deref(), Some("0123456789ab"));
        assert!(
            begin.elapsed() >= ENGINE_TIMEOUT && begin.elapsed() < Duration::from_secs(20),
            "{:?}",
            begin.elapsed()
        );
        let (question, _) = engine.join().unwrap();
        assert!(question.starts_with(&format!("GET /containers/{ID}/json HTTP/1.0\r\n")), "{question}");
    }
}
