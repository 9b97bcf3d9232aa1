//! Commands of an administrator to a daemon of the tests.
#![allow(dead_code, reason = "each test program uses a part")]

use std::process::{Output, Stdio};

use rustix::process::Signal;
use vgpu_control::event::DaemonEvent;
use vgpu_control::{DeviceExplanation, TermsStatus};

use crate::support::world::World;
use crate::support::{texts, vgpu, vgpud};

impl World {
    /// Runs `vgpu` with the daemon's socket.
    pub fn run(&self, words: &[&str]) -> Output {
        vgpu().args(words).arg("--socket").arg(self.admin()).output().unwrap()
    }

    /// Returns the output, and asserts success.
    pub fn says(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {err}");
        out
    }

    pub fn json<T: serde::de::DeserializeOwned>(&self, words: &[&str]) -> T {
        serde_json::from_str(&self.says(&[words, &["--json"]].concat())).unwrap()
    }

    /// Returns the error message, and asserts the exit code.
    pub fn refused(&self, words: &[&str], code: i32) -> String {
        let output = self.run(words);
        let (out, err) = texts(&output);
        assert_eq!((output.status.code(), out.as_str()), (Some(code), ""), "{words:?}: {err}");
        err
    }

    /// Terms of a tenant with one device.
    pub fn terms(&self, tenant: &str) -> TermsStatus {
        let tenant = self.status().tenants.into_iter().find(|here| here.name == tenant).unwrap();
        let [terms] = tenant.devices.as_slice() else { panic!("{tenant:?}") };
        terms.clone()
    }

    pub fn is_paused(&self, tenant: &str) -> bool {
        self.status().tenants.iter().any(|here| here.name == tenant && here.paused)
    }

    /// All sentences of `vgpu explain`.
    pub fn chain(&self, tenant: &str) -> String {
        let explained: Vec<DeviceExplanation> = self.json(&["explain", tenant]);
        explained.into_iter().flat_map(|device| device.sentences).collect::<Vec<_>>().join(" ")
    }

    /// The last event of a kind; `None`: there is none.
    pub fn last_event(&self, kind: &str) -> Option<DaemonEvent> {
        let events = self.says(&["events", "--json"]);
        let mut events = events.lines().map(|line| serde_json::from_str::<DaemonEvent>(line).unwrap());
        events.rfind(|event| event.kind == kind)
    }

    /// Kills the daemon and starts another one on the same files.
    pub fn killed_and_restarted(mut self) -> Self {
        self.daemon.signal(Signal::KILL);
        self.daemon.child.wait().unwrap();
        let Self { dir, daemon } = self;
        drop(daemon);
        Self::start_by(vgpud(), dir, "info", Stdio::null())
    }
}
