//! Where results go: the options for it, the files, and what is shown. Not here: what stands in a report.

use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;

/// Options that each way of measuring has.
#[derive(clap::Args, Debug)]
pub struct Output {
    /// Print JSON instead of the report.
    #[arg(long)]
    pub json: bool,
    /// Fail if a budget is missed.
    #[arg(long)]
    pub check: bool,
    /// Print the names of what is measured, and measure nothing.
    #[arg(long)]
    pub list: bool,
}

/// What was measured, in all its shapes.
pub trait Report: Serialize {
    /// The report.
    fn markdown(&self) -> String;

    /// Names and contents of the pictures.
    fn pictures(&self) -> Vec<(&'static str, String)>;
}

/// A place for results, before anything is measured.
///
/// # Errors
/// It cannot be there.
pub fn prepare(out: &Path) -> Result<(), String> {
    std::fs::create_dir_all(out).map_err(|why| format!("--out {}: {why}", out.display()))
}

impl Output {
    /// Writes report.md, the results as `json`, and the pictures; prints what was asked for.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn show(&self, results: &impl Report, json: &str, out: &Path) -> Result<(), String> {
        let (report, numbers) = (results.markdown(), serde_json::to_string_pretty(results));
        let numbers = numbers.map_err(|why| why.to_string())?;
        let pictures = results.pictures();
        let texts = [("report.md", &report), (json, &numbers)];
        for (name, content) in texts.into_iter().chain(pictures.iter().map(|(name, content)| (*name, content))) {
            let path = out.join(name);
            std::fs::write(&path, content).map_err(|why| format!("{}: {why}", path.display()))?;
            eprintln!("written: {}", path.display());
        }
        if self.json {
            println!("{numbers}");
        } else {
            print!("{report}");
        }
        Ok(())
    }

    /// How the tool ends.
    pub fn code(&self, failed: bool, missed: bool) -> ExitCode {
        if failed || (self.check && missed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}
