//! The content of a report, independent of its format: facts, tables, notes, pictures. Also its plain-text formats.

use vgpu_output::say::{self, escape_line};

/// A report for people, independent of the format that it is written in.
#[derive(Debug, Clone, Default)]
pub struct ReportSheet {
    /// Title of the report.
    pub title: String,
    /// A warning above everything else: data that is missing from the report.
    pub warning: Option<String>,
    /// Names and values that hold for the whole report.
    pub facts: Vec<(String, String)>,
    /// Tables of the report, in the order shown.
    pub tables: Vec<SheetTable>,
    /// Pictures as SVG, shown in HTML only.
    pub pictures: Vec<String>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// A table of a report.
#[derive(Debug, Clone, Default)]
pub struct SheetTable {
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

impl ReportSheet {
    /// Returns the report for a terminal.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{}\n", escape_line(&self.title));
        text.extend(self.warning.iter().map(|warning| format!("!! {}\n", escape_line(warning))));
        text.extend(self.facts.iter().map(|(name, value)| format!("{}: {}\n", escape_line(name), escape_line(value))));
        for table in &self.tables {
            text.push('\n');
            if !table.heading.is_empty() {
                text.push_str(&format!("{}\n", escape_line(&table.heading)));
            }
            let heads = table.heads.iter().map(|head| head.to_uppercase()).collect();
            let rows = std::iter::once(heads).chain(table.rows.iter().cloned()).chain(table.total.clone());
            text.push_str(&say::lay_out_table(&rows.collect::<Vec<_>>()));
        }
        if !self.notes.is_empty() {
            text.push('\n');
            text.extend(self.notes.iter().map(|note| format!("note: {}\n", escape_line(note))));
        }
        text
    }

    /// Returns the report as Markdown (with GitHub's tables).
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut text = format!("# {}\n", escape_markdown(&self.title));
        text.extend(self.warning.iter().map(|warning| format!("\n> **{}**\n", escape_markdown(warning))));
        if !self.facts.is_empty() {
            text.push('\n');
            text.extend(
                self.facts
                    .iter()
                    .map(|(name, value)| format!("- {}: {}\n", escape_markdown(name), escape_markdown(value))),
            );
        }
        for table in &self.tables {
            if !table.heading.is_empty() {
                text.push_str(&format!("\n## {}\n", escape_markdown(&table.heading)));
            }
            let line = |cells: &[String]| {
                format!("| {} |\n", cells.iter().map(|cell| escape_markdown(cell)).collect::<Vec<_>>().join(" | "))
            };
            let rule = |column: usize| if column < table.words { "---" } else { "---:" };
            let rules: Vec<&str> = (0..table.heads.len()).map(rule).collect();
            text.push_str(&format!("\n{}| {} |\n", line(&table.heads), rules.join(" | ")));
            text.extend(table.rows.iter().map(|row| line(row)));
            if let Some(total) = &table.total {
                let bold: Vec<String> = total
                    .iter()
                    .map(|cell| if cell.is_empty() { String::new() } else { format!("**{}**", escape_markdown(cell)) })
                    .collect();
                text.push_str(&format!("| {} |\n", bold.join(" | ")));
            }
        }
        if !self.notes.is_empty() {
            text.push_str("\nNotes:\n\n");
            text.extend(self.notes.iter().map(|note| format!("- {}\n", escape_markdown(note))));
        }
        text
    }
}

/// Escapes text for Markdown: no hidden character, mark-up, link, cell separator or HTML is left.
fn escape_markdown(text: &str) -> String {
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
pub fn to_csv(heads: &[String], rows: &[Vec<String>]) -> String {
    let cell = |text: &String| {
        let text = &text.split('\n').map(escape_line).collect::<Vec<_>>().join("\n");
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
        let table = SheetTable {
            heads: vec!["who".into(), "n".into()],
            words: 1,
            rows: vec![vec!["a|b <i> *x*\n".into(), "1".into()]],
            total: Some(vec!["".into(), "1".into()]),
            ..SheetTable::default()
        };
        let sheet = ReportSheet { title: "T".into(), tables: vec![table], ..ReportSheet::default() };
        assert_eq!(
            sheet.to_markdown(),
            "# T\n\n| who | n |\n| --- | ---: |\n| a\\|b &lt;i&gt; \\*x\\*  | 1 |\n|  | **1** |\n"
        );
        let formula = ["=1+1", "@x", "+x,y", "-1.50", "+", "a=b", "-"].map(|cell| vec![cell.to_owned()]);
        assert_eq!(to_csv(&["a".into()], &formula), "a\n'=1+1\n'@x\n\"'+x,y\"\n-1.50\n'+\na=b\n'-\n");
        assert_eq!(to_csv(&["a".into()], &[vec!["x,\"y\"".into()], vec!["z".into()]]), "a\n\"x,\"\"y\"\"\"\nz\n");
    }

    /// Nothing hidden deceives a terminal that shows the file, or a reader of a line with reversed direction.
    #[test]
    fn nothing_hidden_stands_in_a_report_of_any_form() {
        let cell = "a\u{202e}b\x1b[31m|\r=1\u{feff}";
        let table =
            SheetTable { heads: vec!["who".into()], words: 1, rows: vec![vec![cell.into()]], ..SheetTable::default() };
        let sheet =
            ReportSheet { title: "T".into(), tables: vec![table], notes: vec![cell.into()], ..ReportSheet::default() };
        let rows = [vec![cell.to_owned()], vec!["\u{202e}=1".into()], vec!["\t=1".into()], vec!["a\nb".into()]];
        for text in [sheet.to_text(), sheet.to_markdown(), to_csv(&["who".into()], &rows)] {
            assert!(text.contains("a\\u{202e}b"), "{text:?}");
            assert!(text.chars().all(|letter| letter == '\n' || !say::is_hidden(letter)), "{text:?}");
        }
    }
}
