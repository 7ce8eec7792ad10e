//! `hekate man DIR`: the man pages, from the same declaration as the command line and its help.
//!
//! It is a hidden command of the program and not of `xtask`, because the declaration is in this crate: so the pages of
//! a package are always those of the program in it.

mod mount_helper;
mod notes;

use crate::cli::Cli;
use crate::failure::Failure;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use hekate_proto::Error;
use std::path::Path;

/// Texts at the foot and head of each page.
const MANUAL: &str = "Hekate";
const SOURCE: &str = concat!("hekate ", env!("CARGO_PKG_VERSION"));
const COMMANDS: &str = "1";
const ADMINISTRATION: &str = "8";

/// One page, as roff(7).
struct Page {
    name: String,
    section: &'static str,
    text: Vec<u8>,
}

/// Writes DIR/man1 and DIR/man8.
pub fn man(directory: &Path) -> Result<(), Failure> {
    for page in pages()? {
        let place = directory.join(format!("man{}", page.section));
        let file = place.join(format!("{}.{}", page.name, page.section));
        std::fs::create_dir_all(&place)
            .and_then(|()| std::fs::write(&file, &page.text))
            .map_err(|e| Error::io(format!("write {}", file.display()), e))?;
    }
    Ok(())
}

fn pages() -> Result<Vec<Page>, Failure> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    command_pages(&root, None, &mut pages)?;
    pages.push(mount_helper::page(&root)?);
    Ok(pages)
}

/// The page of a command, and those of its subcommands.
fn command_pages(command: &Command, parent: Option<&str>, pages: &mut Vec<Page>) -> Result<(), Failure> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let text = command_page(command, parent).map_err(|e| Error::io(format!("write the page of {name}"), e))?;
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        command_pages(inner, Some(&name), pages)?;
    }
    pages.push(Page { name, section: COMMANDS, text });
    Ok(())
}

fn command_page(command: &Command, parent: Option<&str>) -> std::io::Result<Vec<u8>> {
    let man = Man::new(command.clone()).section(COMMANDS);
    let mut text = title(command.get_display_name().unwrap_or_else(|| command.get_name()), COMMANDS);
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.get_subcommands().any(|inner| !inner.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    let mut rest = Roff::new();
    if let Some(after) = command.get_after_help() {
        notes::render(&after.to_string(), &mut rest);
    }
    if parent.is_none() {
        files(&mut rest);
    }
    see_also(command, parent, &mut rest);
    rest.to_writer(&mut text)?;
    Ok(text)
}

/// The title line. It has no date, so that the same source makes the same page; the generator would omit the field.
fn title(name: &str, section: &str) -> Vec<u8> {
    format!(".TH {name} {section} \"\" \"{SOURCE}\" \"{MANUAL}\"\n").into_bytes()
}

const FILES: &[(&str, &str)] = &[
    ("/var/lib/hekate", "the state of root's server: the cluster's record or its place in one, its keys, logs"),
    ("/run/hekate/server.sock", "where it answers"),
    ("$XDG_STATE_HOME/hekate (~/.local/state/hekate)", "the state of another user's server"),
    ("$XDG_RUNTIME_DIR/hekate/server.sock", "where that answers; without XDG_RUNTIME_DIR in its state directory"),
    ("/etc/default/hekate", "options of the server that systemd runs as hekate.service"),
];

fn files(roff: &mut Roff) {
    roff.control("SH", ["FILES"]);
    tagged(roff, FILES.iter().map(|(name, what)| (name.to_string(), what.to_string())));
}

/// Paragraphs that begin with a term.
fn tagged(roff: &mut Roff, rows: impl IntoIterator<Item = (String, String)>) {
    for (tag, text) in rows {
        roff.control("TP", []).text([clap_mangen::roff::bold(tag)]).text([roman(text)]);
    }
}

fn see_also(command: &Command, parent: Option<&str>, roff: &mut Roff) {
    let mut pages: Vec<String> = parent.iter().map(|parent| format!("{parent}(1)")).collect();
    if matches!(command.get_name(), "hekate" | "mount" | "umount") {
        pages.push("mount.hekate(8)".into());
    }
    if parent.is_none() {
        pages.push("systemd.mount(5)".into());
    }
    roff.control("SH", ["SEE ALSO"]).text([roman(pages.join(", "))]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn words(command: &Command, before: &str, all: &mut Vec<String>) {
        let name =
            if before.is_empty() { command.get_name().into() } else { format!("{before}-{}", command.get_name()) };
        command.get_subcommands().filter(|inner| !inner.is_hide_set()).for_each(|inner| words(inner, &name, all));
        all.push(name);
    }

    #[test]
    fn every_command_has_a_page_with_what_a_page_has() {
        let pages: BTreeMap<String, String> = pages()
            .unwrap()
            .into_iter()
            .map(|page| (format!("{}({})", page.name, page.section), String::from_utf8(page.text).unwrap()))
            .collect();
        let mut commands = Vec::new();
        words(&Cli::command(), "", &mut commands);
        assert!(commands.contains(&"hekate-volume-create".to_owned()), "{commands:?}");
        assert_eq!(pages.len(), commands.len() + 1, "pages of commands, and of the mount helper: {:?}", pages.keys());
        for command in commands {
            let page = &pages[&format!("{command}(1)")];
            let (name, synopsis) = (command.replace('-', "\\-"), command.replace('-', " "));
            assert!(page.contains(&format!(".SH NAME\n{name} \\- ")), "{page}");
            assert!(page.contains(&format!(".SH SYNOPSIS\n\\fB{synopsis}\\fR")), "{page}");
            assert!(!page.contains("mount\\-helper"), "hidden: {page}");
        }
        assert!(pages["mount.hekate(8)"].contains("cache=SECONDS"));
    }
}
