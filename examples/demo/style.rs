//! Output on the terminal: colours and a progress line only on a terminal, no colours with NO_COLOR.

use std::io::{IsTerminal, Write};

/// Settings for the demo's output.
pub struct Style {
    colours: bool,
    terminal: bool,
}

impl Style {
    /// Chooses the style for standard output.
    pub fn of_stdout() -> Self {
        let terminal = std::io::stdout().is_terminal();
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { colours: terminal && wanted, terminal }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Returns `text` as a heading, bold if colours are on.
    pub fn strong(&self, text: &str) -> String {
        self.paint("1", text)
    }

    /// Text about a tenant, in its colour.
    pub fn tenant(&self, name: &str, text: &str) -> String {
        self.paint(if name == "a" { "36" } else { "35" }, text)
    }

    /// The verdict on a limit: kept or not.
    pub fn verdict(&self, kept: bool) -> String {
        if kept { self.paint("32", "kept") } else { self.paint("31", "NOT KEPT") }
    }

    /// Prints the progress line, or a dot if the output is no terminal.
    pub fn progress(&self, done: f64, shares: &[Option<f64>]) {
        let mut out = std::io::stdout();
        let _ = if self.terminal {
            let bar: String = (0..30).map(|at| if done * 30.0 > f64::from(at) { '#' } else { '.' }).collect();
            let shares: Vec<String> =
                shares.iter().map(|share| share.map_or("  ... ".into(), |share| format!("{share:5.1}%"))).collect();
            write!(out, "\r  [{bar}] {} ", shares.join(" "))
        } else {
            write!(out, ".")
        };
        let _ = out.flush();
    }

    /// Ends the progress line.
    pub fn progress_done(&self) {
        if self.terminal { print!("\r\x1b[K") } else { println!() }
    }
}

/// A size in GiB or MiB.
pub fn gib(bytes: u64) -> String {
    const GIB_BYTES: u64 = 1 << 30;
    match bytes {
        bytes if bytes % GIB_BYTES == 0 => format!("{} GiB", bytes / GIB_BYTES),
        bytes if bytes >= GIB_BYTES => format!("{:.2} GiB", bytes as f64 / GIB_BYTES as f64),
        bytes => format!("{} MiB", bytes >> 20),
    }
}
