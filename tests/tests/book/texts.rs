//! Checks blocks of other languages: the daemon reads its files, parsers read JSON and Python, and the compiler reads
//! C. tests/kubernetes/test_chart.py reads YAML, and only that of docs/kubernetes.md.

use crate::pages::{self, Block, Page};
use std::fs;
use std::process::Command;
use tempfile::TempDir;
use vgpu_tests::artefacts::vgpud;

/// Every block of a language, with its page.
fn all(language: &str) -> Vec<(Page, Block)> {
    let of = |page: Page| {
        let blocks = page.blocks().into_iter().filter(|block| block.language == language);
        blocks.map(|block| (Page { path: page.path.clone(), text: String::new() }, block)).collect::<Vec<_>>()
    };
    pages::book().into_iter().flat_map(of).collect()
}

#[test]
fn every_file_of_the_daemon_can_be_served() {
    let dir = TempDir::new().unwrap();
    let all = all("toml");
    assert!(all.len() > 4);
    for (page, block) in all {
        let file = dir.path().join("vgpud.toml");
        // A block may show only part of a file. The daemon needs at least one tenant to serve and one device for its
        // sums, so missing ones are added.
        let tenant = if block.text.contains("[[tenant]]") { "" } else { "\n[[tenant]]\nname = \"somebody\"\n" };
        let device =
            if block.text.contains("[[device]]") { "" } else { "\n[[device]]\nid = \"*\"\nmemory = \"80GiB\"\n" };
        fs::write(&file, format!("{}{tenant}{device}", block.text)).unwrap();
        let out = Command::new(vgpud()).args(["--driver", "none", "--check"]).arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{}:{}: {said}", page.name(), block.line);
    }
}

#[test]
fn every_json_is_json() {
    for (page, block) in all("json") {
        // `...` stands for more elements of the same kind.
        let text = block.text.replace(", ...", "").replace("{...}", "{}").replace("[...]", "[]");
        let lines = text.lines().map(serde_json::from_str::<serde_json::Value>).collect::<Result<Vec<_>, _>>();
        let whole = serde_json::from_str::<serde_json::Value>(&text);
        assert!(lines.is_ok() || whole.is_ok(), "{}:{}: {:?}", page.name(), block.line, whole.err());
    }
}

#[test]
fn every_python_and_every_c_is_understood() {
    let dir = TempDir::new().unwrap();
    for (language, program, arguments) in [
        ("python", "python3", &["-c", "import sys; compile(open(sys.argv[1]).read(), sys.argv[1], 'exec')"][..]),
        ("c", "cc", &["-fsyntax-only", "-x", "c"]),
    ] {
        for (page, block) in all(language) {
            let file = dir.path().join("text");
            fs::write(&file, &block.text).unwrap();
            let out = Command::new(program).args(arguments).arg(&file).output().unwrap();
            assert!(out.status.success(), "{}:{}: {}", page.name(), block.line, String::from_utf8_lossy(&out.stderr));
        }
    }
}

#[test]
fn every_fence_names_a_language_that_is_looked_at() {
    for page in pages::book() {
        for block in page.blocks() {
            let known = ["sh", "bash", "console", "toml", "json", "yaml", "python", "c", "text"]
                .contains(&block.language.as_str());
            let known = known && (block.language != "yaml" || page.name() == "docs/kubernetes.md");
            assert!(
                known,
                "{}:{}: a block of `{}`; `text` is looked at by nobody",
                page.name(),
                block.line,
                block.language
            );
        }
    }
}
