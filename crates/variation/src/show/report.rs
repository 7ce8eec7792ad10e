//! A report: one HTML file with everything in it, without scripts or external parts, so that it can be sent and
//! printed.

use super::chart::{self, Chart, number};
use super::{Summary, charts, summary};
use crate::error::Result;
use crate::series::Series;

const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;max-width:66rem;margin:2rem auto;padding:0 1rem;color:#111;background:#fff}\
h1{font-size:1.6rem;margin-bottom:.2rem}h2{font-size:1.2rem;margin-top:2.2rem}\
table{border-collapse:collapse;font-size:.9rem}\
th,td{padding:.3rem .55rem;white-space:nowrap;border-bottom:1px solid #999;text-align:right;font-variant-numeric:tabular-nums}\
th:first-child,td:first-child{text-align:left}th{border-bottom:2px solid #111;white-space:normal;vertical-align:bottom}\
.wide{overflow-x:auto}svg{max-width:100%;height:auto}p,li{max-width:46rem}.quiet{color:#444}\
@media print{h2{break-after:avoid}svg,table{break-inside:avoid}}";

/// A part of a report.
pub struct Section {
    pub heading: String,
    /// HTML.
    pub body: String,
}

/// Text as HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A paragraph of plain text.
pub fn paragraph(text: &str) -> String {
    format!("<p>{}</p>\n", escape(text))
}

/// A list of plain text.
pub fn list(lines: &[String]) -> String {
    let items: String = lines.iter().map(|line| format!("<li>{}</li>\n", escape(line.trim_start()))).collect();
    format!("<ul>\n{items}</ul>\n")
}

/// A table of plain text.
pub fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |tag: &str, cells: &mut dyn Iterator<Item = &str>| -> String {
        cells.map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect()
    };
    let row = |row: &Vec<String>| format!("<tr>{}</tr>\n", cells("td", &mut row.iter().map(String::as_str)));
    let body: String = rows.iter().map(row).collect();
    let head = cells("th", &mut heads.iter().copied());
    format!("<div class=\"wide\"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n")
}

/// A chart, with a text for readers who do not see it.
///
/// # Errors
///
/// The chart cannot be drawn.
pub fn figure(picture: &Chart) -> Result<String> {
    let svg = chart::svg(picture)?;
    // A page has one head; and the drawing is one image to a screen reader.
    let label = format!(
        "<svg role=\"img\" aria-label=\"{}: {} against {}\" viewBox=\"0 0 960 500\" ",
        escape(&picture.title),
        escape(&picture.y.label),
        escape(&picture.x.label)
    );
    Ok(format!("{}\n", svg.replacen("<svg ", &label, 1)))
}

/// The whole file. `made` names the time and the program.
pub fn page(title: &str, made: &str, sections: &[Section]) -> String {
    let section = |section: &Section| format!("<h2>{}</h2>\n{}", escape(&section.heading), section.body);
    let body: String = sections.iter().map(section).collect();
    let (title, made) = (escape(title), escape(made));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<p class=\"quiet\">{made}</p>\n{body}</body>\n</html>\n"
    )
}

/// The parts of a report about series.
///
/// # Errors
///
/// A chart cannot be drawn.
pub fn sections(all: &[Series]) -> Result<Vec<Section>> {
    let summaries: Vec<Summary> = all.iter().map(summary).collect();
    let mut sections = vec![Section { heading: "In numbers".into(), body: numbers(&summaries) }];
    for (name, picture) in charts(all) {
        let body = paragraph(explanation(name)) + &figure(&picture)?;
        sections.push(Section { heading: picture.title.clone(), body });
    }
    if summaries.iter().any(|summary| !summary.latencies_us.is_empty()) {
        sections.push(Section { heading: "Latencies".into(), body: latencies(&summaries) });
    }
    let notes: Vec<String> = summaries
        .iter()
        .flat_map(|summary| summary.notes.iter().map(|note| format!("{}: {note}", summary.name)))
        .collect();
    if !notes.is_empty() {
        sections.push(Section { heading: "Notes".into(), body: notes.iter().map(|note| paragraph(note)).collect() });
    }
    Ok(sections)
}

fn explanation(name: &str) -> &'static str {
    match name {
        "or-better" => {
            "Read it from the left: the best sample, then for each share of the samples the rate that they all reach. A curve \
             that stays high and flat belongs to a machine that can be planned with; one that begins high and falls only \
             looks fast in its best moments."
        }
        "time-line" => {
            "Every sample in the order of time. Of series with more than 2,000 samples the least and most of each piece are drawn."
        }
        _ => {
            "How alike samples are that lie some distance apart. Near 0 from the first step on, each sample tells something new; \
             a slow fall means that good and bad times last."
        }
    }
}

fn numbers(summaries: &[Summary]) -> String {
    let heads = [
        "series",
        "unit",
        "samples",
        "least",
        "1 %",
        "median",
        "99 %",
        "most",
        "mean",
        "flatness",
        "knee",
        "neighbours alike",
        "worth independent",
    ];
    table(&heads, &rows(summaries))
        + &paragraph(
            "1 %: this share of the samples does not exceed the rate. Flatness: mean over most; 1 is a machine that always gives \
             its best. Knee: where the curve below bends most. Alike: correlation of a sample with the next, from -1 to 1. \
             Independent: how many independent samples say as much.",
        )
}

/// The cells of a table of summaries, for a terminal too.
pub fn rows(summaries: &[Summary]) -> Vec<Vec<String>> {
    let row = |summary: &Summary| {
        let at = |share: f64| {
            summary.quantiles.iter().find(|(at, _)| *at == share).map_or(String::new(), |(_, rate)| rate_text(*rate))
        };
        let knee = summary
            .knee
            .map_or("none".into(), |(share, rate)| format!("{} at {:.0} %", rate_text(rate), share * 100.0));
        let independent = summary.samples as f64 / summary.samples_per_independent_one;
        vec![
            summary.name.clone(),
            summary.unit.to_string(),
            number(summary.samples as f64),
            rate_text(summary.least),
            at(0.01),
            at(0.5),
            at(0.99),
            rate_text(summary.most),
            rate_text(summary.mean),
            format!("{:.2}", summary.flatness),
            knee,
            format!("{:.2}", summary.autocorrelation_1),
            number(independent.round()),
        ]
    };
    summaries.iter().map(row).collect()
}

/// Whole above 100, with digits below.
pub fn rate_text(rate: f64) -> String {
    if rate >= 100.0 { number(rate.round()) } else { number((rate * 100.0).round() / 100.0) }
}

fn latencies(summaries: &[Summary]) -> String {
    let with: Vec<&Summary> = summaries.iter().filter(|summary| !summary.latencies_us.is_empty()).collect();
    let shares: Vec<f64> =
        with.first().map(|summary| summary.latencies_us.iter().map(|(share, _)| *share).collect()).unwrap_or_default();
    let heads: Vec<String> = std::iter::once("series".into())
        .chain(
            shares
                .iter()
                .map(|share| if *share == 1.0 { "most".into() } else { format!("{} %", number(share * 100.0)) }),
        )
        .collect();
    let row = |summary: &&Summary| {
        let cell =
            |(_, us): &(f64, f64)| crate::measure::picture::time(std::time::Duration::from_nanos((us * 1e3) as u64));
        std::iter::once(summary.name.clone()).chain(summary.latencies_us.iter().map(cell)).collect()
    };
    table(&heads.iter().map(String::as_str).collect::<Vec<_>>(), &with.iter().map(row).collect::<Vec<_>>())
        + &paragraph("Of all operations of the series: this share took no longer. Values are at most 1 % off.")
}
