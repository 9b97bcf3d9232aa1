//! What a report says, before it is written in any form: facts, tables, notes, pictures; and its plain forms.

use vgpu_output::say::{self, escaped};

/// A report for people.
#[derive(Debug, Clone, Default)]
pub struct Sheet {
    /// Its title.
    pub title: String,
    /// A warning above everything else: what is missing from it.
    pub warning: Option<String>,
    /// Names and values that hold for all of it.
    pub facts: Vec<(String, String)>,
    /// Its tables.
    pub tables: Vec<Table>,
    /// Pictures, as SVG; in HTML only.
    pub pictures: Vec<String>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

/// A table.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Its heading; empty: the only one.
    pub heading: String,
    /// The heads of its columns.
    pub heads: Vec<String>,
    /// So many columns are words, to the left; the others numbers.
    pub words: usize,
    /// Its rows.
    pub rows: Vec<Vec<String>>,
    /// The sum of its rows.
    pub total: Option<Vec<String>>,
}

impl Sheet {
    /// For a terminal.
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

    /// As Markdown (GitHub's tables).
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

/// Text that Markdown takes as it is: nothing in it is hidden, a mark, a link, a cell's end or HTML.
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

/// A head and rows as CSV (RFC 4180): what needs it is quoted. A cell that a spreadsheet would take for a formula, which a
/// label may be, begins with an apostrophe; numbers stay numbers. Characters that are hidden are escaped, but for line
/// breaks.
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

    /// A terminal that shows the file, and a reader of a line that is turned around, are deceived by nothing in it.
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
