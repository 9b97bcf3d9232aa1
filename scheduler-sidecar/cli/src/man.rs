//! `vgpu man`: writes the manual pages of vgpu, of its commands, of vgpu-checkpoint and of vgpud, from the same source
//! as `--help`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::checkpoint::CheckpointOptions;
use vgpu_config::options::Options;
use vgpu_output::say::{self, EXIT_FINDINGS, Failure};

/// Writes the manual pages of vgpu, vgpu-checkpoint and vgpud.
///
/// The pages have the text of `--help`: vgpu(1), a page for each command such as vgpu-run(1), vgpu-checkpoint(8), and
/// vgpud(8).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu man ~/.local/share/man
  vgpu man /tmp/pages && man /tmp/pages/man1/vgpu-run.1

Exit codes:
  0  written; each file's name is printed
  1  one cannot be written
  2  usage")]
pub struct Args {
    /// Directory for the directories man1 and man8.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// A manual page.
#[derive(Debug)]
pub struct ManPage {
    /// Name, like `vgpu-run`.
    pub name: String,
    /// Section: 1, or 8 for programs that administrators start.
    pub section: &'static str,
    /// The page in roff.
    pub text: String,
}

/// Writes the pages; `vgpu` is the whole command line.
///
/// # Errors
/// A directory or a file cannot be written; the pages before it are.
pub fn run(args: &Args, vgpu: Command) -> Result<ExitCode, Failure> {
    for page in all_pages(vgpu)? {
        let dir = args.dir.join(format!("man{}", page.section));
        let file = dir.join(format!("{}.{}", page.name, page.section));
        let cannot = |what: &Path, why: &io::Error| Failure::new(EXIT_FINDINGS, format!("{}: {why}", what.display()));
        fs::create_dir_all(&dir).map_err(|why| cannot(&dir, &why))?;
        fs::write(&file, page.text).map_err(|why| cannot(&file, &why))?;
        say::print_text(&format!("{}\n", file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns all pages, each program followed by its commands.
///
/// # Errors
/// None in practice: rendering writes into memory.
pub fn all_pages(vgpu: Command) -> io::Result<Vec<ManPage>> {
    let mut pages = Vec::new();
    for (command, section, others) in [
        (vgpu, "1", "vgpud(8)"),
        (Options::command(), "8", "vgpu(1), vgpu-status(1), vgpu-set(1)"),
        (CheckpointOptions::command(), "8", "vgpu(1), vgpud(8)"),
    ] {
        let mut command = command.disable_help_subcommand(true);
        command.build();
        add(&command, section, others, &mut pages)?;
    }
    Ok(pages)
}

fn add(command: &Command, section: &'static str, others: &str, pages: &mut Vec<ManPage>) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    pages.push(ManPage { text: page_text(command, &name, section, others)?, name: name.clone(), section });
    let others = format!("{name}({section}), {others}");
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        add(verb, section, &others, pages)?;
    }
    Ok(())
}

fn page_text(command: &Command, name: &str, section: &str, others: &str) -> io::Result<String> {
    let man = Man::new(command.clone()).title(name).section(section).manual("vgpu");
    let man = man.source(concat!("vgpu ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|verb| !verb.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    let mut roff = Roff::new();
    if let Some(after) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        add_sections(&after.to_string(), &mut roff);
    }
    roff.control("SH", ["SEE ALSO"]).text([roman(others)]);
    roff.to_writer(&mut page)?;
    String::from_utf8(page).map_err(io::Error::other)
}

/// Renders the text after the options in `--help`. A line like `Examples:` becomes a heading; the lines below it keep
/// their breaks.
fn add_sections(after: &str, roff: &mut Roff) {
    for line in after.lines() {
        match line.strip_suffix(':').filter(|heading| !heading.starts_with(' ')) {
            Some(heading) => {
                roff.control("fi", []).control("SH", [heading.to_uppercase().as_str()]).control("nf", []);
            }
            None if line.trim().is_empty() => {}
            None => {
                let line = line.strip_prefix("  ").unwrap_or(line);
                roff.text([if line.starts_with("vgpu") { bold(line) } else { roman(line) }]);
            }
        }
    }
    roff.control("fi", []);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_of_the_help_are_sections_and_lines_stay_lines() {
        let mut roff = Roff::new();
        add_sections("Examples:\n  vgpu x -- y\n\nExit codes:\n  0  fine\n  .so is no request", &mut roff);
        let text = roff.to_roff();
        assert!(text.contains(".SH EXAMPLES\n.nf\n\\fBvgpu x \\-\\- y\\fR\n"), "{text}");
        assert!(text.contains(".SH \"EXIT CODES\"\n.nf\n0  fine\n\\&.so is no request\n.fi"), "{text}");
    }

    #[test]
    fn a_page_for_each_program_and_verb() {
        let pages = all_pages(crate::Cli::command()).unwrap();
        let names: Vec<_> = pages.iter().map(|page| format!("{}.{}", page.name, page.section)).collect();
        for name in
            ["vgpu.1", "vgpu-run.1", "vgpu-sim-stat.1", "vgpud.8", "vgpu-checkpoint.8", "vgpu-checkpoint-resume.8"]
        {
            assert!(names.iter().any(|known| known == name), "{name} is not among {names:?}");
        }
        for page in &pages {
            for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "\"SEE ALSO\""] {
                assert!(page.text.contains(&format!("\n.SH {heading}\n")), "{}: {heading}", page.name);
            }
        }
    }
}
