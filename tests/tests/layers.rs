//! Dependencies point downwards, between crates, between the modules of a crate, and between the modules of a room (a
//! module with a row of its own). The table "Layers" of ARCHITECTURE.md gives the order; a crate or a room is checked
//! once it has a row there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use vgpu_tests::artefacts::checkout;

/// A row of the table: a crate, or a room of one, and its modules, the lowest first.
struct Layers {
    place: String,
    modules: Vec<String>,
}

impl Layers {
    /// The sources of the crate, and the names of the modules that lead to the room; none for a row of a whole crate.
    fn source_and_room(&self) -> (PathBuf, Vec<&str>) {
        let (place, room) = self.place.split_once("/src/").unwrap_or((&self.place, ""));
        (checkout().join(place).join("src"), room.split('/').filter(|name| !name.is_empty()).collect())
    }
}

/// The rows of the table, the lowest crate first.
fn table() -> Vec<Layers> {
    let page = fs::read_to_string(checkout().join("ARCHITECTURE.md")).expect("the page");
    let (_, section) = page.split_once("\n## Layers\n").expect("the section");
    let section = section.split("\n## ").next().expect("its text");
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let row = |line: &str| {
        let (place, modules) = line.strip_prefix("| ")?.split_once(" | ")?;
        let place = names(place).pop()?;
        Some(Layers { place, modules: names(modules) })
    };
    section.lines().filter_map(row).collect()
}

/// Source text without comments and without the unit tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let text = text.split("#[cfg(test)]\npub(crate) mod tests {").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Paths that a use tree such as `crate::{a::b, c::{self, d}}` names.
fn expanded(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let (mut depth, mut begin) = (0_u32, 0);
    let ends = tree.char_indices().filter_map(|(at, letter)| {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => return Some(at),
            _ => {}
        }
        None
    });
    for end in ends.chain([tree.len()]).collect::<Vec<_>>() {
        let part = tree[begin..end].trim();
        begin = (end + 1).min(tree.len());
        match part.split_once('{') {
            Some((head, rest)) => {
                expanded(&format!("{prefix}{}", head.trim()), rest.trim_end().trim_end_matches('}'), paths);
            }
            None if part.is_empty() => {}
            None => paths.push(format!("{prefix}{}", part.split(" as ").next().unwrap_or_default())),
        }
    }
}

/// Every path in the source that begins with `crate::` or `super::`.
fn paths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for begin in ["crate::", "super::"] {
        for (at, _) in code.match_indices(begin) {
            let before = code[..at].chars().next_back();
            // Part of a longer path, which is found at its own start, or of `pub(in crate::x)`.
            if before.is_some_and(|letter| letter.is_alphanumeric() || "_:$".contains(letter)) {
                continue;
            }
            let rest = &code[at..];
            let plain = rest.find(|c: char| !(c.is_alphanumeric() || "_:".contains(c))).unwrap_or(rest.len());
            if rest[plain..].starts_with('{') {
                let end = rest.find(';').unwrap_or(rest.len());
                expanded("", &rest[..end], &mut found);
            } else {
                found.push(rest[..plain].to_owned());
            }
        }
    }
    found
}

/// The module of the crate or room that a path names, seen from a file of module `here`. `None`: it is the file's own
/// module, or lies outside the room. Items of the root itself belong to the module `lib`.
fn leads_to(room: &[&str], here: &[&str], path: &str, modules: &[String]) -> Option<String> {
    let mut names = path.split("::").peekable();
    let mut base: Vec<&str> = here.to_vec();
    if names.next_if_eq(&"crate").is_some() {
        base.clear();
    }
    while let Some(word) = names.next_if(|word| ["super", "self"].contains(word)) {
        if word == "super" {
            base.pop();
        }
    }
    base.extend(names);
    let (there, rest) = base.split_at_checked(room.len())?;
    let top = rest.first().copied().filter(|top| !top.is_empty() && *top != "*")?;
    if there != room || Some(&top) == here.get(room.len()) {
        return None;
    }
    Some(if modules.iter().any(|module| module == top) { top.to_owned() } else { "lib".to_owned() })
}

/// Modules that a file uses although they are not below its own module in `modules`, which has the lowest layer first.
fn upward(room: &[&str], here: &[&str], text: &str, modules: &[String]) -> Vec<String> {
    let rank = |name: &str| modules.iter().position(|module| module == name).unwrap_or(usize::MAX);
    let Some(top) = here.get(room.len()) else { return Vec::new() };
    let all = paths(&code(text));
    all.into_iter()
        .filter(|path| leads_to(room, here, path, modules).is_some_and(|to| rank(&to) >= rank(top)))
        .collect()
}

/// All Rust files below a directory.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory of the checkout") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn modules_use_only_modules_that_lie_below_them() {
    let table = table();
    assert!(table.len() >= 4, "{} rows", table.len());
    let mut wrong = Vec::new();
    for row in &table {
        let Layers { place, modules } = row;
        let (src, room) = row.source_and_room();
        let (mut all, mut there) = (Vec::new(), BTreeSet::new());
        files(&room.iter().fold(src.clone(), |dir, name| dir.join(name)), &mut all);
        for file in &all {
            let relative = file.strip_prefix(&src).expect("below").with_extension("");
            let here: Vec<&str> = relative.iter().map(|name| name.to_str().expect("a plain name")).collect();
            // Programs use the whole crate, and unit tests any module.
            let is_test = |name: &&str| name.ends_with("tests") || name.starts_with("test_");
            if ["lib", "bin", "main"].contains(&here[0]) || here.iter().any(is_test) {
                continue;
            }
            there.insert(here[room.len()].to_owned());
            let text = fs::read_to_string(file).expect("a source file");
            let found = upward(&room, &here, &text, modules);
            wrong.extend(found.iter().map(|path| format!("{place}: {}.rs: {path}", relative.display())));
        }
        let listed: BTreeSet<String> = modules.iter().cloned().collect();
        assert_eq!(there, listed, "{place}: its modules are not those of the table in ARCHITECTURE.md");
    }
    assert!(wrong.is_empty(), "these point upwards in the table of ARCHITECTURE.md: {wrong:#?}");
}

#[test]
fn crates_depend_only_on_crates_that_lie_below_them() {
    let workspace = fs::read_to_string(checkout().join("Cargo.toml")).expect("the workspace");
    let packages: Vec<(&str, &str)> = workspace
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.split_once(" = { path = \"")?;
            Some((name, rest.split('"').next()?))
        })
        .collect();
    let table: Vec<Layers> = table().into_iter().filter(|row| row.source_and_room().1.is_empty()).collect();
    let mut seen = 0;
    for (rank, Layers { place, .. }) in table.iter().enumerate() {
        let manifest = fs::read_to_string(checkout().join(place).join("Cargo.toml")).expect("a manifest");
        let (_, dependencies) = manifest.split_once("[dependencies]\n").expect("its dependencies");
        for name in dependencies.lines().take_while(|line| !line.starts_with('[')) {
            let name = name.split(['.', ' ']).next().unwrap_or_default();
            let Some((_, path)) = packages.iter().find(|(package, _)| *package == name) else { continue };
            let Some(below) = table.iter().position(|row| row.place == *path) else { continue };
            assert!(below < rank, "{place} depends on {path}, which does not lie below it in ARCHITECTURE.md");
            seen += 1;
        }
    }
    assert!(seen > 0, "no dependency between crates of the table was seen");
}

#[test]
fn a_use_that_points_upwards_is_seen_in_every_form() {
    let modules = ["low", "middle", "high"].map(str::to_owned);
    let from = |here: &[&str], text: &str| upward(&[], here, text, &modules);
    for up in [
        "use crate::high::Thing;",
        "use super::high::{self, Thing};",
        "use crate::{low::A, high::{B, C}};",
        "fn f() { crate::high::call() }",
        "use crate::Root;",
        "use super::Root;",
    ] {
        assert_eq!(
            from(&["middle"], up).len(),
            1 + usize::from(up.contains("self, Thing") || up.contains("B, C")),
            "{up}"
        );
    }
    assert_eq!(from(&["middle", "inner"], "use super::super::high::Thing;").len(), 1);
    for down in [
        "use crate::low::Thing;",
        "use super::low;",
        "// crate::high says more",
        "#[cfg(test)]\nmod tests {\n    use crate::high::Thing;\n}",
        "use crate::middle::inner;",
    ] {
        assert!(from(&["middle"], down).is_empty(), "{down}");
    }
    assert!(from(&["middle", "inner"], "use super::Thing;\nuse super::super::low;").is_empty());
}

#[test]
fn a_use_that_points_upwards_inside_a_room_is_seen_in_every_form() {
    let modules = ["low", "middle", "high"].map(str::to_owned);
    let from = |text: &str| upward(&["room"], &["room", "middle"], text, &modules);
    for up in ["use crate::room::high::Thing;", "use super::high;", "use super::Root;", "use crate::room::Root;"] {
        assert_eq!(from(up).len(), 1, "{up}");
    }
    for down in
        ["use crate::room::low;", "use super::low::Thing;", "use crate::other::high;", "use super::middle::Thing;"]
    {
        assert!(from(down).is_empty(), "{down}");
    }
    let inner = upward(&["room"], &["room", "middle", "inner"], "use super::Thing;\nuse super::super::high;", &modules);
    assert_eq!(inner, ["super::super::high"]);
}
