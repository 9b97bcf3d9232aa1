//! A file of JSON in the directory of state.
//!
//! It is written under another name and then renamed, so a killed daemon leaves the old or the new content.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::warn;

/// Largest file that is read, in bytes: the most overrides, with reasons of the longest request.
const MAX_FILE_BYTES: u64 = 32 << 20;

/// A file of the directory of state.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
}

impl StateFile {
    /// The file of this name.
    pub fn below(state_dir: &Path, name: &str) -> Self {
        Self { path: state_dir.join(name) }
    }

    /// Reads what the last daemon kept; the default if there is no file. A file that cannot be understood is put aside
    /// and reported with these words, so that nothing is lost.
    pub fn read_or_put_aside<T: DeserializeOwned + Default>(&self, words: &str) -> T {
        match self.read() {
            Ok(kept) => kept,
            Err(why) if why.kind() == io::ErrorKind::NotFound => T::default(),
            Err(why) => {
                let aside = self.path.with_extension("unreadable");
                let moved = fs::rename(&self.path, &aside);
                warn!(file = %self.path.display(), %why, aside = %aside.display(), moved = moved.is_ok(), "{words}");
                T::default()
            }
        }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// There is none, or it cannot be understood.
    pub fn read<T: DeserializeOwned>(&self) -> io::Result<T> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&self.path, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        let mut text = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Writes everything, complete or not at all. It is on the disk when this returns.
    ///
    /// # Errors
    /// The directory or the file cannot be written; the old content is unchanged.
    pub fn save<T: Serialize>(&self, kept: &T) -> io::Result<()> {
        self.write(kept, true)
    }

    /// Writes everything, complete or not at all, and does not wait for the disk: it outlives the daemon, but perhaps
    /// no loss of power.
    ///
    /// # Errors
    /// As [`Self::save`].
    pub fn save_soon<T: Serialize>(&self, kept: &T) -> io::Result<()> {
        self.write(kept, false)
    }

    fn write<T: Serialize>(&self, kept: &T, waits: bool) -> io::Result<()> {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(dir)?;
        let temporary = self.path.with_extension("new");
        let _ = fs::remove_file(&temporary);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(&temporary, flags, Mode::from_raw_mode(0o600))?);
        let written = serde_json::to_vec(kept)
            .map_err(io::Error::from)
            .and_then(|text| file.write_all(&text))
            .and_then(|()| if waits { file.sync_all() } else { Ok(()) })
            .and_then(|()| fs::rename(&temporary, &self.path))
            .and_then(|()| if waits { File::open(dir)?.sync_all() } else { Ok(()) });
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }
}
