//! `vgpu label`: sets labels of a tenant while its programs run.

use std::process::ExitCode;

use vgpu_config::bearer::{LabelChanges, check_label};
use vgpu_control::{ChangeResult, ControlCommand};
use vgpu_output::say::{EXIT_USAGE, Failure};

use super::ask::{DaemonAddress, format_notes, print_change};

/// Sets labels of a tenant, by which reports group usage from now on: KEY=VALUE sets one, KEY- takes it back.
///
/// Usage until now keeps the labels that it had. A label of the configuration file is covered, and shows again when the
/// command's label is taken back. Labels stay when the file is read again and when the daemon restarts. They end with
/// the tenant.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu label slot-1 user=ada project=vision
  vgpu label slot-1 user- project-
  vgpu report chargeback --gpu-rate 2.50/h --by label:project

Exit codes:
  0  the labels are so; or they were so already
  1  no such tenant; it would have more than 16 labels; or no daemon answers
  2  usage: a label is not accepted, and the daemon was not asked")]
pub struct Args {
    /// The tenant, by its name.
    tenant: String,

    /// Labels to set (KEY=VALUE) and to take back (KEY-).
    #[arg(required = true, value_name = "KEY=VALUE|KEY-")]
    changes: Vec<String>,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Asks the daemon for the labels, and prints those that hold then.
///
/// # Errors
/// [`Failure`]: a label is not accepted, the daemon does not answer, or it refuses.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let labels = read_changes(&args.changes).map_err(|words| Failure::new(EXIT_USAGE, words))?;
    let ask = ControlCommand::Label { tenant: args.tenant.clone(), labels };
    print_change(&args.daemon, &ask, label_words)
}

fn read_changes(written: &[String]) -> Result<LabelChanges, String> {
    let mut changes = LabelChanges::new();
    for text in written {
        let (name, value) = match (text.split_once('='), text.strip_suffix('-')) {
            (Some((name, value)), _) => (name, Some(value)),
            (None, Some(name)) => (name, None),
            (None, None) => {
                return Err(format!("{text:?} is no label; accepted: KEY=VALUE to set it, KEY- to take it back"));
            }
        };
        check_label(name, value)?;
        if changes.insert(name.to_owned(), value.map(str::to_owned)).is_some() {
            return Err(format!("label {name} is given twice; accepted: each label once"));
        }
    }
    Ok(changes)
}

fn label_words(done: &ChangeResult) -> String {
    let head = if done.changed.is_empty() { "it was so already" } else { "labelled" };
    let labels: Vec<String> = done.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let labels = if labels.is_empty() { "no labels".to_owned() } else { labels.join(" ") };
    format!("{}: {head}: {labels}\n", done.tenant) + &format_notes(&done.notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_with_an_equals_sign_sets_a_label_and_one_that_ends_in_a_dash_takes_it_back() {
        let read = |words: &[&str]| read_changes(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        let changes = read(&["pod=a-", "user-", "cost=1=2"]).unwrap();
        let told: Vec<_> = changes.iter().map(|(name, value)| (&**name, value.as_deref())).collect();
        assert_eq!(told, [("cost", Some("1=2")), ("pod", Some("a-")), ("user", None)]);
        for (words, said) in [
            (&["pod"][..], "\"pod\" is no label; accepted: KEY=VALUE"),
            (&["-"], "cannot be a label's name"),
            (&["=x"], "cannot be a label's name"),
            (&["pod="], "accepted: a text of 1 to 256 letters"),
            (&["pod=a", "pod-"], "label pod is given twice"),
        ] {
            assert!(read(words).is_err_and(|why| why.contains(said)), "{words:?}");
        }
    }
}
