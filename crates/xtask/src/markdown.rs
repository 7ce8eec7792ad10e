//! The lines of Markdown pages, as several checks need them.

/// Number (from 1) and text of the lines outside of code blocks.
pub fn lines(text: &str) -> Vec<(usize, &str)> {
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mark = ["```", "~~~"].into_iter().find(|mark| line.trim_start().starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (Some(_), _) => {}
            (None, None) => lines.push((index + 1, line)),
        }
    }
    lines
}

/// A line without its code spans.
pub fn prose(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// The code spans of a line.
pub fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_blocks_are_left_out_and_code_spans_are_apart() {
        assert_eq!(lines("a\n```\nb\n~~~\n```\nc"), [(1, "a"), (6, "c")]);
        assert_eq!(prose("a `b` c"), "a  c");
        assert_eq!(code_spans("a `b` c `d`").collect::<Vec<_>>(), ["b", "d"]);
    }
}
