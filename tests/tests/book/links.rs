//! Checks that the contents list every page and that every link has a target.

use crate::pages::{self, Page};
use std::collections::BTreeMap;
use std::path::{Component, PathBuf};
use vgpu_tests::artefacts::checkout;

#[test]
fn every_page_is_in_the_contents_once_and_nothing_else_is() {
    let contents = Page::read("docs/SUMMARY.md");
    let mut listed: Vec<String> = contents.links().iter().map(|link| format!("docs/{link}")).collect();
    listed.sort();
    let mut there: Vec<String> = pages::book().iter().map(|page| page.name().to_owned()).collect();
    there.retain(|name| name != "README.md" && name != "docs/SUMMARY.md");
    there.push("docs/measurements/README.md".into());
    there.sort();
    assert_eq!(listed, there, "docs/SUMMARY.md on the left");
}

#[test]
fn every_page_begins_with_its_title_and_the_readme_leads_to_the_book() {
    for page in pages::book() {
        assert!(page.text.starts_with("# "), "{}", page.name());
    }
    let readme = Page::read("README.md").links();
    assert!(readme.iter().any(|link| link == "docs/SUMMARY.md"), "README.md links docs/SUMMARY.md");
}

/// Removes `..` from a path.
fn plain(path: PathBuf) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        if part == Component::ParentDir {
            plain.pop()
        } else {
            plain.push(part);
            true
        };
        plain
    })
}

#[test]
fn every_link_leads_to_a_file_and_to_a_place_in_it() {
    let pages = pages::every();
    let anchors: BTreeMap<PathBuf, _> = pages.iter().map(|page| (page.path.clone(), page.anchors())).collect();
    let (mut links, mut wrong) = (0, Vec::new());
    // The report of a measured run is kept as the tool wrote it; its links belong to the place where it was written.
    let record = |page: &&Page| page.path.starts_with("docs/measurements") && page.path.ends_with("report.md");
    for page in pages.iter().filter(|page| !record(page)) {
        for link in page.links() {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            links += 1;
            let (file, place) = link.split_once('#').map_or((link.as_str(), None), |(file, place)| (file, Some(place)));
            let target =
                if file.is_empty() { page.path.clone() } else { plain(page.path.with_file_name("").join(file)) };
            if !checkout().join(&target).exists() {
                wrong.push(format!("{}: ({link}): there is no {}", page.name(), target.display()));
            } else if let Some(place) = place
                && !anchors.get(&target).is_some_and(|known| known.contains(place))
            {
                wrong.push(format!("{}: ({link}): {} has no #{place}", page.name(), target.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(links > 150, "{links} links were looked at");
}
