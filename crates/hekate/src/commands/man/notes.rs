//! The text below a command's help, as sections of its page.

use clap_mangen::roff::{Roff, roman};

/// Empty lines separate paragraphs; indented lines are examples or tables and stay as they are.
pub fn render(text: &str, roff: &mut Roff) {
    let mut last = "";
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        let (section, paragraph) = section_of(paragraph);
        if section == last {
            roff.control("PP", []);
        } else {
            roff.control("SH", [section]);
        }
        last = section;
        lines(paragraph, roff);
    }
}

fn section_of(paragraph: &str) -> (&'static str, &str) {
    let headed = [
        ("Exit status:", "EXIT STATUS"),
        ("Examples:", "EXAMPLES"),
        ("Example:", "EXAMPLES"),
        ("Options (-o), as in /etc/fstab:", "MOUNT OPTIONS"),
    ];
    for (head, section) in headed {
        if let Some(rest) = paragraph.strip_prefix(head) {
            return (section, rest.strip_prefix(' ').unwrap_or(rest));
        }
    }
    (if paragraph.contains("\n  ") { "EXAMPLES" } else { "NOTES" }, paragraph)
}

fn lines(paragraph: &str, roff: &mut Roff) {
    let mut as_it_is = false;
    for line in paragraph.lines().filter(|line| !line.trim().is_empty()) {
        // An example on the line of its heading is a paragraph of its own.
        let example = line.starts_with("  ") || line.starts_with("hekate ");
        if example != as_it_is {
            roff.control(if example { "nf" } else { "fi" }, []);
            as_it_is = example;
        }
        roff.text([roman(line.trim_end())]);
    }
    if as_it_is {
        roff.control("fi", []);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_become_sections() {
        let mut roff = Roff::new();
        render(
            "Examples:\n  hekate stop     at once\nMore:\n  hekate status\n\nSomething.\n\nExit status: 0 done;\n1 not.",
            &mut roff,
        );
        let text = roff.render();
        let wanted = [
            ".SH EXAMPLES\n.nf\n",
            "stop     at once\n.fi\nMore:\n.nf\n",
            ".SH NOTES\nSomething",
            ".SH \"EXIT STATUS\"\n",
        ];
        assert!(wanted.iter().all(|part| text.contains(part)), "{text}");
    }
}
