//! Renders a sheet as one self-contained HTML file: no scripts, no fonts, no external pictures. Its content security
//! policy enforces that.

use super::sheet::{ReportSheet, SheetTable};

const PAGE_STYLE: &str = "\
:root{color-scheme:light dark;--line:#8886;--soft:#8882;--one:#2f6fbb;--two:#c8641b}\
@media(prefers-color-scheme:dark){:root{--one:#6ea8e8;--two:#f0a060}}\
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}\
table{border-collapse:collapse;margin:1rem 0;width:100%}\
th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top;overflow-wrap:anywhere}\
.n{text-align:right;font-variant-numeric:tabular-nums}th{font-weight:600}\
tr.total td{font-weight:600;border-top:2px solid var(--line)}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}dt{opacity:.7}dd{margin:0}\
.warning{border:2px solid var(--two);padding:.6rem 1rem;font-weight:600}\
svg{max-width:100%;height:auto;margin:1rem 0}svg text{fill:currentColor;font:12px system-ui,sans-serif}\
.notes{opacity:.85}@media print{body{margin:0}}";

/// Returns the whole file.
#[must_use]
pub fn to_html(sheet: &ReportSheet) -> String {
    let title = escape_html(&sheet.title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{PAGE_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    page.extend(sheet.warning.iter().map(|warning| format!("<p class=\"warning\">{}</p>\n", escape_html(warning))));
    if !sheet.facts.is_empty() {
        page.push_str("<dl>\n");
        let fact = |(name, value): &(String, String)| {
            format!("<dt>{}</dt><dd>{}</dd>\n", escape_html(name), escape_html(value))
        };
        page.extend(sheet.facts.iter().map(fact));
        page.push_str("</dl>\n");
    }
    page.extend(sheet.tables.iter().map(table_html));
    page.extend(sheet.pictures.iter().map(|picture| format!("{picture}\n")));
    if !sheet.notes.is_empty() {
        page.push_str("<h2>Notes</h2>\n<ul class=\"notes\">\n");
        page.extend(sheet.notes.iter().map(|note| format!("<li>{}</li>\n", escape_html(note))));
        page.push_str("</ul>\n");
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn table_html(table: &SheetTable) -> String {
    let mut text = String::new();
    if !table.heading.is_empty() {
        text.push_str(&format!("<h2>{}</h2>\n", escape_html(&table.heading)));
    }
    let row = |tag: &str, cells: &[String]| {
        let cell = |(column, cell): (usize, &String)| {
            let class = if column < table.words { "" } else { " class=\"n\"" };
            format!("<{tag}{class}>{}</{tag}>", escape_html(cell))
        };
        cells.iter().enumerate().map(cell).collect::<String>()
    };
    text.push_str(&format!("<table>\n<thead><tr>{}</tr></thead>\n<tbody>\n", row("th", &table.heads)));
    text.extend(table.rows.iter().map(|cells| format!("<tr>{}</tr>\n", row("td", cells))));
    text.extend(table.total.iter().map(|cells| format!("<tr class=\"total\">{}</tr>\n", row("td", cells))));
    text.push_str("</tbody>\n</table>\n");
    text
}

/// Escapes text for HTML and SVG, in content and in quoted attributes. Hidden characters become U+FFFD.
#[must_use]
pub fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(letter),
            letter if vgpu_output::say::is_hidden(letter) => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::chart::{ChartBar, draw_bars};
    use super::*;

    #[test]
    fn a_page_needs_nothing_else_and_shows_names_as_they_are() {
        let evil = "<script>alert('x')</script>\u{1b}[2J";
        let one = SheetTable { heads: vec![evil.into()], rows: vec![vec![evil.into()]], ..SheetTable::default() };
        let bar = ChartBar { name: evil.into(), value: 1.0, shown: evil.into() };
        let sheet = ReportSheet {
            title: evil.into(),
            warning: Some(evil.into()),
            facts: vec![(evil.into(), evil.into())],
            tables: vec![one],
            pictures: vec![draw_bars(evil, &[bar])],
            notes: vec![evil.into()],
        };
        let page = to_html(&sheet);
        assert!(!page.contains("<script") && !page.contains('\u{1b}'), "{page}");
        assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("url("), "{page}");
        assert!(!page.contains(" src=") && !page.contains(" href="), "{page}");
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    }
}
