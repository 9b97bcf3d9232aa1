//! Guesses which known word a misspelt one was meant to be.

/// Returns the known word nearest to `written`, if it is near enough.
///
/// Allows one slip for every three letters. A slip leaves out, adds or changes a letter, or swaps two neighbours.
#[must_use]
pub fn nearest_word<'k>(written: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    const MAX_WORD_CHARS: usize = 40;
    if written.len() > MAX_WORD_CHARS {
        return None;
    }
    let written: Vec<char> = written.to_lowercase().replace('-', "_").chars().collect();
    known
        .into_iter()
        .map(|word| (edit_distance(&written, &word.chars().collect::<Vec<_>>()), word))
        .filter(|(slips, word)| *slips <= word.len().div_ceil(3).min(3))
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, word)| word)
}

/// Returns the number of typing slips between two words: letters changed, added, left out, or swapped.
fn edit_distance(a: &[char], b: &[char]) -> usize {
    let mut above: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, &from) in a.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, &to) in b.iter().enumerate() {
            let mut least = (row[j] + usize::from(from != to)).min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && from == b[j - 1] && a[i - 1] == to {
                least = least.min(above[j - 1] + 1);
            }
            next.push(least);
        }
        above = std::mem::replace(&mut row, next);
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_another_word_is_not() {
        let known = ["memory_limit", "sm_limit", "name", "uids"];
        for (written, meant) in [
            ("memroy_limit", Some("memory_limit")),
            ("memory-limit", Some("memory_limit")),
            ("Name", Some("name")),
            ("nmae", Some("name")),
            ("sm_limits", Some("sm_limit")),
            ("uid", Some("uids")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest_word(written, known), meant, "{written}");
        }
    }
}
