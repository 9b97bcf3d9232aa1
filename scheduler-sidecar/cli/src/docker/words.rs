//! Parses the arguments of `docker run`: finds the image, and the variables of ours that are set already.
//!
//! Options are passed on unchanged. To find the image, this file must know which options take a value: all except
//! those in [`FLAGS`].

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

/// Options of `docker run` and `podman run` that take no separate value.
const FLAGS: &[&str] = &[
    "detach",
    "disable-content-trust",
    "env-host",
    "help",
    "http-proxy",
    "init",
    "interactive",
    "no-healthcheck",
    "no-hostname",
    "no-hosts",
    "oom-kill-disable",
    "passwd",
    "privileged",
    "publish-all",
    "quiet",
    "read-only",
    "read-only-tmpfs",
    "replace",
    "rm",
    "rmi",
    "rootfs",
    "sig-proxy",
    "tls-verify",
    "tty",
    "unsetenv-all",
    "use-api-socket",
];

/// One-letter options without a value.
const SHORT_FLAGS: &[u8] = b"ditPq";

/// Options that give the container a GPU, or may.
const GPU_OPTIONS: &[&str] = &["gpus", "runtime", "device", "privileged"];

/// The parsed arguments of a `docker run`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DockerWords {
    /// All arguments except variables of ours that were removed.
    pub kept: Vec<OsString>,
    /// Name of the image to run.
    pub image: Option<OsString>,
    /// Value of `-e LD_PRELOAD=...`; not in `kept`.
    pub preload: Option<OsString>,
    /// Value of `-e LD_LIBRARY_PATH=...`; not in `kept` if ours precedes it.
    pub library_path: Option<OsString>,
    /// True if options give a GPU.
    pub gpu: bool,
    /// True if the engine may pull a missing image.
    pub pulls: bool,
}

/// Parses the arguments. With `searched`, our LD_LIBRARY_PATH is added and theirs is appended to it.
pub fn read(words: &[OsString], searched: bool) -> DockerWords {
    let mut said = DockerWords { pulls: true, ..DockerWords::default() };
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let text = word.as_bytes();
        let ends = text == b"--";
        if ends || !text.starts_with(b"-") || text == b"-" {
            let image = if ends { rest.next() } else { Some(word) };
            said.kept.extend(ends.then(|| word.clone()));
            said.kept.extend(image.cloned());
            said.image = image.cloned();
            break;
        }
        let (name, mut value) = split_option(text);
        let apart = value.is_none() && takes_value(name, text);
        let next = if apart { rest.next() } else { None };
        value = value.or(next.map(|word| word.as_bytes()));
        let name = long_name(name, text);
        said.gpu |= GPU_OPTIONS.iter().any(|brings| name == brings.as_bytes());
        said.pulls &= !(name == b"pull" && value == Some(b"never"));
        if name == b"env" {
            let (variable, set) = split_variable(value.unwrap_or_default());
            let taken = match variable.as_bytes() {
                b"LD_PRELOAD" => {
                    said.preload = set;
                    true
                }
                b"LD_LIBRARY_PATH" => {
                    said.library_path = set;
                    searched
                }
                _ => false,
            };
            if taken {
                said.kept.extend(flags_before(text).map(|letters| OsStr::from_bytes(letters).to_owned()));
                continue;
            }
        }
        said.kept.push(word.clone());
        said.kept.extend(next.cloned());
    }
    said.kept.extend(rest.cloned());
    said
}

/// Splits an option into its name and the value in the same argument: `--name=value`, `-n=value`, `-nvalue`,
/// `-itnvalue`.
fn split_option(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    if let Some(name) = text.strip_prefix(b"--") {
        return match name.iter().position(|byte| *byte == b'=') {
            Some(at) => (&name[..at], Some(&name[at + 1..])),
            None => (name, None),
        };
    }
    let letters = &text[1..];
    match letters.iter().position(|letter| !SHORT_FLAGS.contains(letter)) {
        None => (letters, None),
        Some(at) => {
            let value = &letters[at + 1..];
            (&letters[at..=at], (!value.is_empty()).then(|| value.strip_prefix(b"=").unwrap_or(value)))
        }
    }
}

/// Returns the options without a value that precede another in the same argument: `-it` of `-ite`.
fn flags_before(text: &[u8]) -> Option<&[u8]> {
    let letters = text.get(1..)?.iter().take_while(|letter| SHORT_FLAGS.contains(letter)).count();
    (letters > 0 && !text.starts_with(b"--")).then(|| &text[..=letters])
}

/// Returns true if an option without a value in its own argument takes the next one.
fn takes_value(name: &[u8], text: &[u8]) -> bool {
    if text.starts_with(b"--") {
        !FLAGS.iter().any(|alone| name == alone.as_bytes())
    } else {
        !name.iter().all(|letter| SHORT_FLAGS.contains(letter))
    }
}

/// Returns the long name of a relevant option.
fn long_name<'a>(name: &'a [u8], text: &[u8]) -> &'a [u8] {
    if name == b"e" && !text.starts_with(b"--") { b"env" } else { name }
}

/// Parses `NAME=value`, or `NAME` alone, which takes the value of this environment.
fn split_variable(text: &[u8]) -> (&OsStr, Option<OsString>) {
    match text.iter().position(|byte| *byte == b'=') {
        Some(at) => (OsStr::from_bytes(&text[..at]), Some(OsStr::from_bytes(&text[at + 1..]).to_owned())),
        None => (OsStr::from_bytes(text), std::env::var_os(OsStr::from_bytes(text))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &str) -> DockerWords {
        read(&words.split_ascii_whitespace().map(OsString::from).collect::<Vec<_>>(), false)
    }

    fn image(words: &str) -> Option<String> {
        said(words).image.map(|image| image.into_string().unwrap())
    }

    #[test]
    fn the_image_is_found_behind_options_of_every_form() {
        for words in [
            "img",
            "--rm img cmd -x",
            "-it img",
            "-it --rm -v /a:/b img",
            "-v/a:/b img",
            "-itv /a:/b img",
            "--volume=/a:/b img",
            "--name x -p 80:80 --gpus all img sh -c ls",
            "-e A=1 --env B=2 -eC=3 img",
            "--read-only --cap-drop ALL --user 1000 img",
            "--rm -- img --not-an-option",
            "-h x img",
            "-dh x img",
            "-hx img",
            "-itP -c 2 -l a=b -m 1g -u 1000 -w /srv -a stdin -p 80:80 img",
        ] {
            assert_eq!(image(words).as_deref(), Some("img"), "{words}");
        }
        for words in ["", "--rm", "-v /a:/b", "--name img"] {
            assert_eq!(image(words), None, "{words}");
        }
    }

    #[test]
    fn everything_is_passed_on_but_a_preload_that_would_displace_ours() {
        let words = "--rm -e A=1 -v /a:/b img sh -e LD_PRELOAD=/not/an/option";
        assert_eq!(said(words).kept, words.split(' ').collect::<Vec<_>>());
        for words in [
            "-e LD_PRELOAD=/x.so --rm img",
            "--env LD_PRELOAD=/x.so --rm img",
            "--env=LD_PRELOAD=/x.so --rm img",
            "-eLD_PRELOAD=/x.so --rm img",
        ] {
            let said = said(words);
            assert_eq!(
                (said.preload.unwrap(), said.kept),
                ("/x.so".into(), vec!["--rm".into(), "img".into()]),
                "{words}"
            );
        }
    }

    #[test]
    fn letters_before_a_variable_that_is_taken_out_stay() {
        for (words, kept) in [
            ("-ite LD_PRELOAD=/x.so --rm img", "-it --rm img"),
            ("-deLD_PRELOAD=/x.so img", "-d img"),
            ("-de=LD_PRELOAD=/x.so img", "-d img"),
            ("-ite A=1 img", "-ite A=1 img"),
        ] {
            assert_eq!(said(words).kept, kept.split(' ').collect::<Vec<_>>(), "{words}");
        }
    }

    #[test]
    fn what_brings_a_gpu_is_seen_and_what_may_not_be_pulled() {
        for (words, gpu) in [
            ("--gpus all i", true),
            ("--runtime=nvidia i", true),
            ("--device nvidia.com/gpu=0 i", true),
            ("--rm i --gpus all", false),
        ] {
            assert_eq!(said(words).gpu, gpu, "{words}");
        }
        assert!(said("img").pulls && !said("--pull never img").pulls && !said("--pull=never img").pulls);
        assert_eq!(said("-e LD_LIBRARY_PATH=/y img").library_path, Some("/y".into()));
    }
}
