//! `hekate variation show`.

use super::{made, read_all};
use crate::cli::{Cli, VariationShow};
use crate::failure::Failure;
use crate::output;
use hekate_variation::show::{charts, export, report, summary, terminal};
use serde_json::json;

/// Columns of a picture when the terminal does not report its width, and its lines.
const WIDTH: usize = 100;
const HEIGHT: usize = 16;

pub fn show(cli: &Cli, options: &VariationShow) -> Result<(), Failure> {
    let all = read_all(&options.files, options.unit)?;
    let summaries: Vec<_> = all.iter().map(summary).collect();
    let mut written = Vec::new();
    if let Some(directory) = &options.export {
        written.extend(export::all(&all, directory)?);
    }
    if let Some(path) = &options.report {
        let names: Vec<&str> = all.iter().map(|series| series.name.as_str()).collect();
        let title = format!("How the rate varies: {}", names.join(", "));
        let page = report::page(&title, &made(), &report::sections(&all)?);
        written.push(export::write(path, page.as_bytes())?);
    }
    if cli.json {
        output::json(&json!({ "series": summaries, "written": written }));
        return Ok(());
    }
    let heads = [
        "SERIES",
        "UNIT",
        "SAMPLES",
        "LEAST",
        "1 %",
        "MEDIAN",
        "99 %",
        "MOST",
        "MEAN",
        "FLATNESS",
        "KNEE",
        "ALIKE",
        "INDEPENDENT",
    ];
    output::table(&heads, &report::rows(&summaries));
    for (name, picture) in charts(&all) {
        if name != "autocorrelation" {
            println!();
            terminal::chart(&picture, width(), HEIGHT).iter().for_each(|line| println!("{line}"));
        }
    }
    for summary in &summaries {
        summary.notes.iter().for_each(|note| println!("{}: {note}", output::name(&summary.name)));
    }
    written.iter().for_each(|path| println!("wrote {}", path.display()));
    Ok(())
}

/// Columns of the terminal.
pub fn width() -> usize {
    let asked =
        rustix::termios::tcgetwinsize(std::io::stdout()).or_else(|_| rustix::termios::tcgetwinsize(std::io::stderr()));
    asked.map_or(WIDTH, |size| usize::from(size.ws_col)).clamp(40, 200)
}
