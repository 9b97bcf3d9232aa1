//! An API server that keeps the few kinds of objects that a driver needs, written from the published interface.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

/// Token that requests must bear.
pub const TOKEN: &str = "a-token-of-a-test";

/// Objects by their path, and the requests that came.
#[derive(Debug, Clone, Default)]
pub struct ApiStub(Arc<Mutex<ApiState>>);

#[derive(Debug, Default)]
struct ApiState {
    objects: BTreeMap<String, Value>,
    requests: Vec<String>,
    version: u64,
    is_down: bool,
}

impl ApiStub {
    /// Puts an object at a path.
    pub fn put(&self, path: &str, object: Value) {
        self.0.lock().unwrap().objects.insert(path.to_owned(), object);
    }

    /// Removes an object.
    pub fn remove(&self, path: &str) {
        self.0.lock().unwrap().objects.remove(path);
    }

    /// The object at a path.
    pub fn object(&self, path: &str) -> Option<Value> {
        self.0.lock().unwrap().objects.get(path).cloned()
    }

    /// The first lines of all requests.
    pub fn requests(&self) -> Vec<String> {
        self.0.lock().unwrap().requests.clone()
    }

    /// Answers every request with an error from now on, or does not.
    pub fn set_down(&self, is_down: bool) {
        self.0.lock().unwrap().is_down = is_down;
    }

    /// Serves on a port of this machine until the test ends. `wrap` adds encryption.
    pub fn serve<S: Read + Write>(&self, wrap: impl Fn(std::net::TcpStream) -> S + Send + 'static) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let stub = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that does not trust the server hangs up.
                let _ = stub.answer(wrap(stream));
            }
        });
        port
    }

    fn answer(&self, stream: impl Read + Write) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        let (mut first, mut length, mut token) = (String::new(), 0, String::new());
        reader.read_line(&mut first)?;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().unwrap(),
                "authorization" => token = value.to_owned(),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let words: Vec<&str> = first.split_whitespace().collect();
        let [verb, target, _] = words[..] else { return Ok(()) };
        let (status, object) = self.decide(verb, target, &token, serde_json::from_slice(&body).ok());
        let text = object.to_string();
        let stream = reader.get_mut();
        write!(
            stream,
            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
            text.len()
        )?;
        stream.flush()
    }

    fn decide(&self, verb: &str, target: &str, token: &str, body: Option<Value>) -> (u16, Value) {
        let mut state = self.0.lock().unwrap();
        state.requests.push(format!("{verb} {target}"));
        let refused =
            |status: u16, words: &str| (status, json!({ "kind": "Status", "code": status, "message": words }));
        if token != format!("Bearer {TOKEN}") {
            return refused(401, "Unauthorized");
        }
        if state.is_down {
            return refused(503, "the server is not ready");
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        match (verb, body) {
            ("GET", _) if query.starts_with("fieldSelector=") => {
                let items: Vec<&Value> = state
                    .objects
                    .iter()
                    .filter(|(at, _)| at.starts_with(&format!("{path}/")))
                    .map(|(_, it)| it)
                    .collect();
                (200, json!({ "kind": "List", "items": items }))
            }
            ("GET", _) => match state.objects.get(path) {
                Some(object) => (200, object.clone()),
                None => refused(404, "not found"),
            },
            ("POST", Some(mut object)) => {
                let at = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
                if state.objects.contains_key(&at) {
                    return refused(409, "already exists");
                }
                state.version += 1;
                object["metadata"]["resourceVersion"] = json!(state.version.to_string());
                state.objects.insert(at, object.clone());
                (201, object)
            }
            ("PUT", Some(mut object)) => {
                let Some(before) = state.objects.get(path) else { return refused(404, "not found") };
                if before["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                    return refused(409, "the object has been modified");
                }
                state.version += 1;
                object["metadata"]["resourceVersion"] = json!(state.version.to_string());
                state.objects.insert(path.to_owned(), object.clone());
                (200, object)
            }
            _ => refused(405, "not allowed"),
        }
    }
}
