//! The content of a report, independent of its format: facts, tables, notes, pictures. Also its plain-text formats.

use vgpu_output::say::{self, escaped};

/// A report for people, independent of the format that it is written in.
#[derive(Debug, Clone, Default)]
pub struct Sheet {
    /// Title of the report.
    pub title: String,
    /// A warning above everything else: data that is missing from the report.
    pub warning: Option<String>,
    /// Names and values that hold for the whole report.
    pub facts: Vec<(String, String)>,
    /// Tables of the report, in the order shown.
    pub tables: Vec<Table>,
    /// Pictures as SVG, shown in HTML only.
    pub pictures: Vec<String>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// A table of a report.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Heading; empty if it is the only table.
    pub heading: String,
    /// Heading of each column.
    pub heads: Vec<String>,
    /// Number of leading columns that are text and left-aligned; the others are numbers.
    pub words: usize,
    /// Rows, each with one text for each column.
    pub rows: Vec<Vec<String>>,
    /// Last row with totals, if the table has one.
    pub total: Option<Vec<String>>,
}

impl Sheet {
    /// Returns the report for a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", escaped(&self.title));
        text.extend(self.warning.iter().map(|warning| format!("!! {}\n", escaped(warning))));
        text.extend(self.facts.iter().map(|(name, value)| format!("{}: {}\n", escaped(name), escaped(value))));
        for table in &self.tables {
            text.push('\n');
            if !table.heading.is_empty() {
                text.push_str(&format!("{}\n", escaped(&table.heading)));
            }
            let heads = table.heads.iter().map(|head| head.to_uppercase()).collect();
            let rows = std::iter::once(heads).chain(table.rows.iter().cloned()).chain(table.total.clone());
            text.push_str(&say::table(&rows.collect::<Vec<_>>()));
        }
        if !self.notes.is_empty() {
            text.push('\n');
            text.extend(self.notes.iter().map(|note| format!("note: {}\n", escaped(note))));
        }
        text
    }

    /// Returns the report as Markdown (with GitHub's tables).
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n", plain(&self.title));
        text.extend(self.warning.iter().map(|warning| format!("\n> **{}**\n", plain(warning))));
        if !self.facts.is_empty() {
            text.push('\n');
            text.extend(self.facts.iter().map(|(name, value)| format!("- {}: {}\n", plain(name), plain(value))));
        }
        for table in &self.tables {
            if !table.heading.is_empty() {
                text.push_str(&format!("\n## {}\n", plain(&table.heading)));
            }
            let line = |cells: &[String]| {
                format!("| {} |\n", cells.iter().map(|cell| plain(cell)).collect::<Vec<_>>().join(" | "))
            };
            let rule = |column: usize| if column < table.words { "---" } else { "---:" };
            let rules: Vec<&str> = (0..table.heads.len()).map(rule).collect();
            text.push_str(&format!("\n{}| {} |\n", line(&table.heads), rules.join(" | ")));
            text.extend(table.rows.iter().map(|row| line(row)));
            if let Some(total) = &table.total {
                let bold: Vec<String> = total
                    .iter()
                    .map(|cell| if cell.is_empty() { String::new() } else { format!("**{}**", plain(cell)) })
                    .collect();
                text.push_str(&format!("| {} |\n", bold.join(" | ")));
            }
        }
        if !self.notes.is_empty() {
            text.push_str("\nNotes:\n\n");
            text.extend(self.notes.iter().map(|note| format!("- {}\n", plain(note))));
        }
        text
    }
}

/// Escapes text for Markdown: no hidden character, mark-up, link, cell separator or HTML is left.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' | '\r' => out.push(' '),
            '|' | '\\' | '`' | '*' | '[' | ']' | '#' => out.extend(['\\', letter]),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            letter if say::is_hidden(letter) => out.extend(letter.escape_default()),
            letter => out.push(letter),
        }
    }
    out
}

/// Returns a heading and rows as CSV (RFC 4180), with cells quoted as needed. A cell that a spreadsheet would read as
/// a formula, for example a label, gets a leading apostrophe; numbers stay numbers. Hidden characters except line
/// breaks are escaped.
#[must_use]
pub fn csv(heads: &[String], rows: &[Vec<String>]) -> String {
    let cell = |text: &String| {
        let text = &text.split('\n').map(escaped).collect::<Vec<_>>().join("\n");
        let formula = text.starts_with(['=', '+', '-', '@']) && text.parse::<f64>().is_err();
        let text = &if formula { format!("'{text}") } else { text.clone() };
        if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.clone() }
    };
    let line = |cells: &[String]| cells.iter().map(cell).collect::<Vec<_>>().join(",") + "\n";
    std::iter::once(line(heads)).chain(rows.iter().map(|row| line(row))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_a_cell_ends_no_cell_and_is_no_markup() {
        let table = Table {
            heads: vec!["who".into(), "n".into()],
            words: 1,
            rows: vec![vec!["a|b <i> *x*\n".into(), "1".into()]],
            total: Some(vec!["".into(), "1".into()]),
            ..Table::default()
        };
        let sheet = Sheet { title: "T".into(), tables: vec![table], ..Sheet::default() };
        assert_eq!(
            sheet.markdown(),
            "# T\n\n| who | n |\n| --- | ---: |\n| a\\|b &lt;i&gt; \\*x\\*  | 1 |\n|  | **1** |\n"
        );
        let formula = ["=1+1", "@x", "+x,y", "-1.50", "+", "a=b", "-"].map(|cell| vec![cell.to_owned()]);
        assert_eq!(csv(&["a".into()], &formula), "a\n'=1+1\n'@x\n\"'+x,y\"\n-1.50\n'+\na=b\n'-\n");
        assert_eq!(csv(&["a".into()], &[vec!["x,\"y\"".into()], vec!["z".into()]]), "a\n\"x,\"\"y\"\"\"\nz\n");
    }

    /// Nothing hidden deceives a terminal that shows the file, or a reader of a line with reversed direction.
    #[test]
    fn nothing_hidden_stands_in_a_report_of_any_form() {
        let cell = "a\u{202e}b\x1b[31m|\r=1\u{feff}";
        let table = Table { heads: vec!["who".into()], words: 1, rows: vec![vec![cell.into()]], ..Table::default() };
        let sheet = Sheet { title: "T".into(), tables: vec![table], notes: vec![cell.into()], ..Sheet::default() };
        let rows = [vec![cell.to_owned()], vec!["\u{202e}=1".into()], vec!["\t=1".into()], vec!["a\nb".into()]];
        for text in [sheet.text(), sheet.markdown(), csv(&["who".into()], &rows)] {
            assert!(text.contains("a\\u{202e}b"), "{text:?}");
            assert!(text.chars().all(|letter| letter == '\n' || !say::is_hidden(letter)), "{text:?}");
        }
    }
}
