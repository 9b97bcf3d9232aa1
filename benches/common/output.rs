//! Output of results: the options for it, the files, and the text on stdout. Not here: the contents of a report.

use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;

/// Options that each way of measuring has.
#[derive(clap::Args, Debug)]
pub struct OutputOptions {
    /// Prints JSON instead of the report.
    #[arg(long)]
    pub json: bool,
    /// Fails if a budget is missed.
    #[arg(long)]
    pub check: bool,
    /// Prints the names of the measurements, and measures nothing.
    #[arg(long)]
    pub list: bool,
}

/// Results of a measurement, in all forms.
pub trait MeasuredReport: Serialize {
    /// Returns the report as Markdown.
    fn to_markdown(&self) -> String;

    /// Pictures that the report shows.
    fn all_pictures(&self) -> Vec<Picture>;
}

/// A picture and the numbers that it is drawn from.
pub struct Picture {
    /// Name of both files, without the extension.
    pub name: &'static str,
    /// The picture itself as SVG.
    pub svg: String,
    /// The numbers as CSV, with a line of column names.
    pub csv: String,
}

/// Lines of comma-separated values. A field that contains a comma or a quote is quoted.
pub fn csv(heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let field = |text: &str| {
        if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
    };
    let line = |fields: Vec<&str>| fields.into_iter().map(field).collect::<Vec<_>>().join(",") + "\n";
    let rows = rows.into_iter().map(|row| line(row.iter().map(String::as_str).collect()));
    std::iter::once(line(heads.to_vec())).chain(rows).collect()
}

/// Creates the output directory before anything is measured.
///
/// # Errors
/// The directory cannot be created.
pub fn prepare_output(out: &Path) -> Result<(), String> {
    std::fs::create_dir_all(out).map_err(|why| format!("--out {}: {why}", out.display()))
}

/// Writes report.md and the pictures, and prints the report, or all figures as JSON.
///
/// # Errors
/// A file cannot be written.
pub fn write(results: &impl MeasuredReport, out: &Path, json: bool) -> Result<(), String> {
    let (report, pictures) = (results.to_markdown(), results.all_pictures());
    let mut files = vec![("report.md".to_owned(), &report)];
    for Picture { name, svg, csv } in &pictures {
        files.extend([(format!("{name}.svg"), svg), (format!("{name}.csv"), csv)]);
    }
    for (name, content) in files {
        let path = out.join(name);
        std::fs::write(&path, content).map_err(|why| format!("{}: {why}", path.display()))?;
        eprintln!("written: {}", path.display());
    }
    if json {
        println!("{}", serde_json::to_string_pretty(results).map_err(|why| why.to_string())?);
    } else {
        print!("{report}");
    }
    Ok(())
}

impl OutputOptions {
    /// Exit code of the tool.
    pub fn exit_code(&self, failed: bool, missed: bool) -> ExitCode {
        if failed || (self.check && missed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_with_a_comma_or_a_quote_stays_one_field() {
        let row = ["a, b".to_owned(), "c \"d\"".to_owned(), String::new()];
        assert_eq!(csv(&["x", "y", "z"], [row.to_vec()]), "x,y,z\n\"a, b\",\"c \"\"d\"\"\",\n");
    }
}
