//! A file of lines with limited size: when it is full it is renamed to `NAME.1`, that one to `NAME.2`, and so on.
//!
//! Another program (logrotate) may also rename or remove it; later lines then go to a new file. To notice this, the
//! name is checked before a line, at most once a second. Each line is in one file as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

/// Shortest time between two checks of the name.
const NAME_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The file, and how many old ones are kept.
#[derive(Debug)]
pub struct RotatingFile {
    path: PathBuf,
    /// Size in bytes at which the file is renamed and a new one begun.
    most: u64,
    /// Number of old files that are kept.
    keep: u32,
    open: Option<(File, u64)>,
    looked: Option<Instant>,
}

impl RotatingFile {
    /// Opens the file, or creates it with its directory, readable by its owner only.
    ///
    /// # Errors
    /// Any error of opening, with the path.
    pub fn open(path: &Path, most: u64, keep: u32) -> io::Result<Self> {
        let mut rotating = Self { path: path.to_owned(), most, keep, open: None, looked: None };
        rotating.open_file()?;
        Ok(rotating)
    }

    fn name_error(&self, why: &io::Error) -> io::Error {
        io::Error::new(why.kind(), format!("{}: {why}", self.path.display()))
    }

    fn open_file(&mut self) -> io::Result<&mut (File, u64)> {
        let now = Instant::now();
        if self.looked.is_none_or(|looked| now.duration_since(looked) >= NAME_CHECK_INTERVAL) {
            self.looked = Some(now);
            let there = fs::metadata(&self.path).ok().map(|meta| (meta.dev(), meta.ino()));
            let ours =
                self.open.as_ref().and_then(|(file, _)| file.metadata().ok()).map(|meta| (meta.dev(), meta.ino()));
            if there.is_none() || there != ours {
                self.open = None;
            }
        }
        if self.open.is_none() {
            if let Some(dir) = self.path.parent() {
                fs::create_dir_all(dir).map_err(|why| self.name_error(&why))?;
            }
            // Opening a fifo without a reader would block the daemon, and a device would be renamed when it is full.
            if fs::metadata(&self.path).is_ok_and(|there| !there.is_file()) {
                return Err(self.name_error(&io::Error::other("it is no regular file")));
            }
            let nonblock = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
            let mut options = OpenOptions::new();
            let options = options.append(true).create(true).mode(0o600).custom_flags(nonblock);
            let file = options.open(&self.path).map_err(|why| self.name_error(&why))?;
            let length = file.metadata().map_err(|why| self.name_error(&why))?.len();
            self.open = Some((file, length));
        }
        self.open.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Renames the file, and removes the oldest one.
    fn rotate_files(&mut self) -> io::Result<()> {
        self.open = None;
        let numbered = |number: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        if self.keep == 0 {
            return fs::remove_file(&self.path).map_err(|why| self.name_error(&why));
        }
        for number in (1..self.keep).rev() {
            match fs::rename(numbered(number), numbered(number + 1)) {
                Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(self.name_error(&why)),
                _ => {}
            }
        }
        fs::rename(&self.path, numbered(1)).map_err(|why| self.name_error(&why))
    }

    /// True if the file is empty, or if the next line of `next` bytes begins a new one.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn begins_file(&mut self, next: usize) -> io::Result<bool> {
        let most = self.most;
        let (_, length) = self.open_file()?;
        Ok(*length == 0 || length.saturating_add(next as u64) > most)
    }

    /// Writes a line, which includes its newline.
    ///
    /// # Errors
    /// Any error of writing, with the path; part of the line may be written then. The next line tries again.
    pub fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.begins_file(line.len())? && self.open_file()?.1 > 0 {
            self.rotate_files()?;
        }
        let (file, length) = self.open_file()?;
        let written = file.write_all(line);
        match written {
            Ok(()) => *length = length.saturating_add(line.len() as u64),
            Err(_) => *length = file.metadata().map_or(*length, |meta| meta.len()),
        }
        written.map_err(|why| self.name_error(&why))
    }

    /// Flushes the data to the disk.
    ///
    /// # Errors
    /// Any error of the kernel.
    pub fn sync_file(&mut self) -> io::Result<()> {
        let done = match &self.open {
            Some((file, _)) => file.sync_data(),
            None => Ok(()),
        };
        done.map_err(|why| self.name_error(&why))
    }

    /// The path of the file.
    #[must_use]
    pub fn file_path(&self) -> &Path {
        &self.path
    }
}

impl Write for RotatingFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.write_line(line).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_at_its_size_is_put_aside_and_the_oldest_one_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/log");
        let mut file = RotatingFile::open(&path, 25, 2).unwrap();
        for number in 0..8 {
            file.write_line(format!("line {number:04}\n").as_bytes()).unwrap();
        }
        let read = |name: &str| fs::read_to_string(dir.path().join("new").join(name)).unwrap();
        assert_eq!(read("log"), "line 0006\nline 0007\n");
        assert_eq!(read("log.1"), "line 0004\nline 0005\n");
        assert_eq!(read("log.2"), "line 0002\nline 0003\n");
        assert!(!dir.path().join("new/log.3").exists());
        drop(file);
        RotatingFile::open(&path, 25, 2).unwrap().write_line(b"further\n").unwrap();
        assert_eq!((read("log").as_str(), read("log.1").as_str()), ("further\n", "line 0006\nline 0007\n"));
    }

    #[test]
    fn a_fifo_or_a_device_is_refused_at_once_and_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, 0o600.into(), 0).unwrap();
        for path in [&path, Path::new("/dev/full"), dir.path()] {
            let why = RotatingFile::open(path, 25, 2).unwrap_err().to_string();
            assert_eq!(why, format!("{}: it is no regular file", path.display()));
        }
    }

    #[test]
    fn who_renames_the_file_gets_a_new_one_and_a_line_that_is_too_long_stands_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut file = RotatingFile::open(&path, 25, 2).unwrap();
        file.write_line(b"before\n").unwrap();
        fs::rename(&path, dir.path().join("aside")).unwrap();
        file.looked = None;
        file.write_line(&[b'x'; 100]).unwrap();
        assert_eq!(fs::read(&path).unwrap().len(), 100);
        assert_eq!(fs::read(dir.path().join("aside")).unwrap(), b"before\n");
    }
}
